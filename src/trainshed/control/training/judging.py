"""What the end of an Attempt leads to: a terminal state, or the queue again (C33-C36, c8). Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainshed.control.training.frozen import spec_of
from trainshed.control.training.holding import parts_of
from trainshed.control.training.observing import View
from trainshed.engines.contract import EndedBy, Observation, Phase
from trainshed.model.states import State
from trainshed.policy.gangs import retry
from trainshed.policy.gangs.retry import Cause, Evidence, ExitClass, FaultPolicy, PastAttempt, Resubmit
from trainshed.store.gangs import Gang
from trainshed.store.records import Attempt

_CODE = re.compile(r"([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+):\s*")
FINAL_CODES = frozenset(
    {
        "BASH_MISSING",
        "SSH_UNAVAILABLE",
        "IMAGE_LACKS_RAY",
        "IMAGE_UNSUITABLE",
        "NO_CONTAINER_RUNTIME",
        "PRECHECK_FAILED",
        "TRIAL_TIMEOUT",
        "LAUNCH_INVALID",
        "NOT_SUPPORTED_BY_ENGINE",
        "CONTENT_DAMAGED",
        "MOUNT_SUB_PATH_UNKNOWN",
    }
)
"""What no other try cures, whatever the budget."""
_OWN_CODES: Mapping[EndedBy, str] = {
    EndedBy.PRECHECK: "PRECHECK_FAILED",
    EndedBy.TIMEOUT: "TRIAL_TIMEOUT",
    EndedBy.DISK: "DISK_LIMIT_EXCEEDED",
    EndedBy.MEMORY: "MEMORY_LIMIT_EXCEEDED",
}
_PULL_FAILED = "IMAGE_PULL_FAILED"
_SHOWN_CHARS = 300
_WORDS: Mapping[EndedBy, retry.EndedBy] = {
    EndedBy.EXIT: retry.EndedBy.EXIT,
    EndedBy.STOP: retry.EndedBy.STOP,
    EndedBy.GANG: retry.EndedBy.STOP,
    EndedBy.TIMEOUT: retry.EndedBy.TIMEOUT,
    EndedBy.MEMORY: retry.EndedBy.MEMORY,
    EndedBy.DISK: retry.EndedBy.DISK,
    EndedBy.NOT_STARTED: retry.EndedBy.NOT_STARTED,
    EndedBy.PRECHECK: retry.EndedBy.PRECHECK,
}


@dataclass(frozen=True, slots=True)
class Failure:
    """A start that certainly did not reach user code, for a reason outside of the members."""

    code: str
    detail: str
    retryable: bool


@dataclass(frozen=True, slots=True)
class Judgement:
    """How an Attempt ended, and what follows."""

    state: State
    """`SUCCEEDED`, `FAILED`, `CANCELLED`, or `QUEUED` for another Attempt."""
    code: str
    message: str
    ended_by: str
    exit_class: ExitClass | None = None
    failed_rank: int | None = None
    exit_code: int | None = None
    exit_signal: int | None = None
    task: Mapping[str, Any] = field(default_factory=dict)
    """Columns of ``tasks`` to set, for another Attempt."""
    not_before: float = 0.0
    broken: tuple[Evidence, ...] = ()
    """What was found broken, on nodes of this gang."""
    cordon_node: str | None = None
    error: str | None = None
    """The code that a failed task shows."""


def past_of(attempts: Sequence[Attempt], exit_codes: Mapping[str, int | None]) -> list[PastAttempt]:
    """The ledger of C33, oldest first; ``exit_codes`` are those of each Attempt's failed member."""
    found = []
    for each in attempts:
        ran = 0.0
        if each.started_at is not None and each.ended_at is not None:
            ran = max(0.0, each.ended_at - each.started_at)
        found.append(
            PastAttempt(
                Cause(each.cause),
                None if each.exit_class is None else ExitClass(each.exit_class),
                f"{each.ended_by}:{exit_codes.get(each.id)}",
                ran,
            )
        )
    return found


def judge(
    gang: Gang,
    view: View | None,
    *,
    ledger: Sequence[PastAttempt],
    evidence: Sequence[Evidence] = (),
    failure: Failure | None = None,
    last_line: str = "",
    single_machine: bool = False,
    now: float,
) -> Judgement:
    """What an Attempt came to that is over, or never began (then ``failure`` says why).

    ``last_line`` is what the member that failed said last (`telling_line`).
    ``single_machine``: the engine has one node, so none is excluded; what broke of it is cordoned (c9).
    """
    if gang.trial.state is State.STOPPING:
        return _stopped(view)
    if gang.allocation.evicted_at is not None and _had_to_go(gang, view):
        return _preempted(gang, ledger)
    if failure is None and view is not None and view.succeeded and not _was_ended(view, evidence):
        return Judgement(State.SUCCEEDED, "FINISHED", _success(gang, view), "exit", exit_code=0)
    return _failed(gang, view, ledger, evidence, failure, last_line, single_machine, now)


def _had_to_go(gang: Gang, view: View | None) -> bool:
    """Whether an evicted gang ended because of that: one that was not told yet may have ended by itself."""
    if view is None or not view.has_started:
        return True
    if view.driver_code is not None:
        return False  # only its cluster was still kept (C50)
    at = gang.allocation.evicted_at or 0.0
    told = view.noticed or any(_asked(each) for each in view.core)
    late = (view.ended_at or at) >= at
    return told or (late and not view.succeeded)


def _asked(seen: Observation) -> bool:
    return seen.exit is not None and seen.exit.ended_by is EndedBy.STOP


def _was_ended(view: View, evidence: Sequence[Evidence]) -> bool:
    """Whether it was told to end because of what broke under it: then it is not done, whatever its code."""
    return bool(evidence) and view.driver_code is None and any(_asked(each) for each in view.core)


def _stopped(view: View | None) -> Judgement:
    if view is None or not view.has_started:
        return Judgement(State.CANCELLED, "CANCELLED", "Stopped on request before user code started.", "stop")
    rank = view.failed
    seen = view.seen[0] if rank is None else view.of(rank)
    code = seen.exit.code if seen.exit else None
    signal = seen.exit.signal if seen.exit else None
    how = "with exit code 0" if rank is None else f"with exit code {code}"
    return Judgement(
        State.CANCELLED,
        "CANCELLED",
        f"Stopped on request; the program ended {how}.",
        "stop",
        exit_code=code,
        exit_signal=signal,
    )


def _preempted(gang: Gang, ledger: Sequence[PastAttempt]) -> Judgement:
    reason = gang.allocation.evict_reason or "a task of higher rank needs its place"
    return Judgement(
        State.QUEUED,
        "PREEMPTED_QUEUED",
        f"It made room ({reason}) and is queued again with its first submission time;"
        f" {retry.resubmissions_used(ledger)} resubmissions used, as before.",
        "preemption",
        exit_class=ExitClass.PREEMPTED,
        task={"next_cause": Cause.PREEMPTED.value},
    )


def _failed(
    gang: Gang,
    view: View | None,
    ledger: Sequence[PastAttempt],
    evidence: Sequence[Evidence],
    failure: Failure | None,
    last_line: str,
    single_machine: bool,  # noqa: FBT001 - as of the caller
    now: float,
) -> Judgement:
    spec, parts = spec_of(gang.task), parts_of(gang.allocation)
    nodes = {part.rank: part.node for part in parts}
    ends = _ends(view, nodes, failure, last_line)
    ran = 0.0
    if view is not None and view.started_at is not None:
        ran = max(0.0, (view.ended_at or now) - view.started_at)
    here = [each for each in evidence if each.node in set(nodes.values())]
    end = retry.GangEnd(ends, here, ran)
    verdict = retry.classify(end)
    culprit = end.culprit
    rank = None if culprit is None else culprit.rank
    code, final = _code_of(view, failure, rank)
    fault = FaultPolicy(
        spec.fault_tolerance.enabled,
        spec.fault_tolerance.max_resubmissions,
        spec.fault_tolerance.replace_node,
    )
    followed = retry.decide_retry(ledger, end, fault)
    seen = view.of(rank) if view is not None and rank is not None else None
    common: dict[str, Any] = {
        # As the fingerprint begins, which the ledger compares (C35).
        "ended_by": verdict.fingerprint.partition(":")[0] or (culprit.ended_by if culprit else "lost"),
        "exit_class": verdict.exit_class,
        "failed_rank": rank,
        "exit_code": verdict.exit_code,
        "exit_signal": seen.exit.signal if seen is not None and seen.exit is not None else None,
        "broken": tuple(here),
    }
    if isinstance(followed, Resubmit) and not final:
        return _again(followed, common, single_machine=single_machine, now=now)
    message = followed.message if not isinstance(followed, Resubmit) else verdict.message
    given = "" if isinstance(followed, Resubmit) else followed.code
    if given == "CRASH_LOOP":
        return Judgement(
            State.FAILED, "CRASH_LOOP", message, error=code or verdict.code or "NONZERO_EXIT", **common
        )
    error = code or given or "NONZERO_EXIT"
    return Judgement(State.FAILED, error, message, error=error, **common)


def _again(followed: Resubmit, common: Mapping[str, Any], *, single_machine: bool, now: float) -> Judgement:
    task: dict[str, Any] = {"next_cause": followed.cause.value}
    code = "RESUBMITTED"
    cordon = followed.cordon_node
    if followed.cause is Cause.AUTO_FAILURE:
        task["resubmissions"] = followed.number
    message = followed.message
    if followed.cause is Cause.NODE_REPLACED:
        code = "NODE_REPLACED"
        if single_machine:
            node = followed.exclude_node
            if cordon is None:
                again = f"again on {node}, of which nothing is known to be broken"
            elif any(each.kind == "device_lost" for each in common["broken"]):
                again = f"again on {node} without the GPUs that broke"
            else:
                again = f"again on {node}, as there is no other"
            message = message.replace(f"another node instead of {node}", again, 1)
        if followed.exclude_node is not None and not single_machine:
            task["excluded"] = followed.exclude_node
    delay = followed.delay_seconds
    later = f"; the next try comes in {delay:g} s" if delay else ""
    return Judgement(
        State.QUEUED,
        code,
        f"{message[:1].upper()}{message[1:]}{later}.",
        task=task,
        not_before=now + delay if delay else 0.0,
        cordon_node=cordon,
        **common,
    )


def _ends(
    view: View | None, nodes: Mapping[int, str], failure: Failure | None, last_line: str
) -> list[retry.ReplicaEnd]:
    if failure is not None:
        how = retry.EndedBy.IMAGE if failure.code == _PULL_FAILED else retry.EndedBy.NOT_STARTED
        said = failure.detail
        return [retry.ReplicaEnd(0, nodes[0], how, None, 0.0, said, failure.retryable, failure.code)]
    if view is not None and view.driver_code:
        # Whatever became of its cluster afterwards (C50).
        last, at = view.ranks[-1], view.ended_at or 0.0
        end = retry.ReplicaEnd(
            last, nodes[last], retry.EndedBy.EXIT, view.driver_code, at, last_line[-_SHOWN_CHARS:]
        )
        return [end]
    found = []
    for rank, seen in view.blamed() if view is not None else ():
        found.append(_end(rank, nodes[rank], seen, last_line if view and rank == view.failed else ""))
    return found


def _end(rank: int, node: str, seen: Observation, last_line: str) -> retry.ReplicaEnd:
    if seen.exit is None:
        lost = seen.phase is Phase.LOST
        how = retry.EndedBy.LOST if lost else retry.EndedBy.STOP
        return retry.ReplicaEnd(rank, node, how, None, float("inf"), seen.detail)
    done = seen.exit
    last = last_line[-_SHOWN_CHARS:] if done.ended_by is EndedBy.EXIT else ""
    message = _CODE.sub("", done.detail, count=1) or last
    code = found.group(1) if (found := _CODE.match(done.detail)) else ""
    unstarted = done.ended_by is EndedBy.NOT_STARTED and code not in FINAL_CODES
    return retry.ReplicaEnd(
        rank, node, _WORDS[done.ended_by], done.code, done.finished_at, message, unstarted, code
    )


def telling_line(lines: Sequence[tuple[bool, str]]) -> str:
    """Of the end of a log, as ``(whether stderr, line)``, the line that most likely says why it ended.

    The last of stderr, where causes are written, else the last of all; a line without a word says nothing.
    """
    worded = [(is_error, line.strip()) for is_error, line in lines if any(map(str.isalnum, line))]
    errors = [line for is_error, line in worded if is_error]
    return (errors or [line for _, line in worded] or [""])[-1]


def _code_of(view: View | None, failure: Failure | None, rank: int | None) -> tuple[str, bool]:
    """The code that says most, empty if the class says enough; and whether no other try can help."""
    if failure is not None:
        return failure.code, failure.code in FINAL_CODES or not failure.retryable
    done = view.of(rank).exit if view is not None and rank is not None else None
    if done is None or (view is not None and view.driver_code):
        return "", False
    said = _CODE.match(done.detail)
    code = said.group(1) if said else _OWN_CODES.get(done.ended_by, "")
    return code, code in FINAL_CODES


def _success(gang: Gang, view: View) -> str:
    many = len(view.seen)
    if gang.task.kind == "ray":
        return "The driver succeeded."
    return (
        "The program ended with exit code 0." if many == 1 else f"All {many} replicas ended with exit code 0."
    )
