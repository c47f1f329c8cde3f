"""What follows the end of an Attempt: again or not, counted or not, without which node (C33, C34, C35).

A gang ends as a whole: several replicas that fall in one Attempt are one failure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

MACHINE_XIDS = frozenset({48, 62, 63, 64, 74, 79, 94, 95})
"""NVML XIDs that say that the GPU, not the program, is at fault (C34)."""
BACK_OFF_SECONDS = 10.0
MAX_BACK_OFF_SECONDS = 300.0
CRASH_LOOP_EXITS = 3
CRASH_LOOP_SECONDS = 60.0
MAX_REPLACED_TRIES = 3
"""So often in a row a machine may be blamed without progress; then the program, or a person, is due."""
PROGRESS_SECONDS = 600.0
"""An Attempt that ran so long got somewhere."""
MAX_PLATFORM_TRIES = 20
"""So often in a row an Attempt may fail through the platform alone; then a person must look."""
_SIGKILL_CODES = frozenset({137, -9})


class Cause(StrEnum):
    """Why an Attempt was made (C33). Only `AUTO_FAILURE` counts against the maximum."""

    INITIAL = "initial"
    AUTO_FAILURE = "auto_failure"
    MANUAL = "manual"
    PREEMPTED = "preempted"
    NODE_REPLACED = "node_replaced"
    PLATFORM = "platform"


class ExitClass(StrEnum):
    """Whose fault an end is (C35)."""

    USER = "user"
    OOM = "oom"
    MACHINE = "machine"
    PLATFORM = "platform"
    IMAGE = "image"
    PREEMPTED = "preempted"


class EndedBy(StrEnum):
    """How a replica ended, in the words of the engines' exit records and ours."""

    EXIT = "exit"
    STOP = "stop"
    """By us because another replica failed; says nothing about this one."""
    PREEMPTION = "preemption"
    TIMEOUT = "timeout"
    MEMORY = "memory"
    DISK = "disk"
    NOT_STARTED = "not_started"
    LOST = "lost"
    IMAGE = "image"
    PRECHECK = "precheck"


@dataclass(frozen=True, slots=True)
class Evidence:
    """One sign of a machine fault on a node (C34)."""

    node: str
    kind: str
    """`xid`, `device_lost`, `nic_down`, `heartbeat_lost` or `node_lost`."""
    xid: int | None = None
    detail: str = ""

    @property
    def proves_machine(self) -> bool:
        """Whether this alone makes the machine the culprit."""
        return self.kind in _MACHINE_KINDS if self.kind != "xid" else self.xid in MACHINE_XIDS

    @property
    def words(self) -> str:
        name = f"XID {self.xid}" if self.kind == "xid" else self.kind.replace("_", " ")
        return f"{name} on node {self.node}" + (f" ({self.detail})" if self.detail else "")


_MACHINE_KINDS = frozenset({"device_lost", "nic_down", "heartbeat_lost", "node_lost"})


@dataclass(frozen=True, slots=True)
class ReplicaEnd:
    """How one replica ended."""

    rank: int
    node: str
    ended_by: EndedBy
    exit_code: int | None = None
    at: float = 0.0
    """When; the first one that fell of itself decides."""
    message: str = ""
    transient: bool = False
    """The engine or a registry says that the same may work later."""
    code: str = ""
    """The error code if the engine knows one: `BASH_MISSING`, say."""


@dataclass(frozen=True, slots=True)
class GangEnd:
    """How an Attempt ended."""

    replicas: Sequence[ReplicaEnd]
    evidence: Sequence[Evidence] = ()
    ran_seconds: float = 0.0
    """Of user code."""

    @property
    def culprit(self) -> ReplicaEnd | None:
        """The replica that fell first of itself."""
        own = [one for one in self.replicas if one.ended_by is not EndedBy.STOP and one.exit_code != 0]
        return min(own, key=lambda one: (one.at, one.rank), default=None)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an end was: class, node at fault, and a sentence."""

    exit_class: ExitClass
    node: str | None
    exit_code: int | None
    message: str
    transient: bool = False
    fingerprint: str = ""
    """Equal for exits that look the same, for the crash loop of C35."""
    code: str = ""
    """The error code if it is the end of the task."""
    proven: bool = False
    """Whether the machine itself gave evidence: a lost watcher alone may be the program's own doing."""

    @property
    def final(self) -> bool:
        """Whether trying again cannot help, whatever the budget."""
        return not self.transient and (
            self.exit_class in {ExitClass.IMAGE, ExitClass.PLATFORM} or self.code in _FINAL_CODES
        )


@dataclass(frozen=True, slots=True)
class PastAttempt:
    """One line of the ledger: why an Attempt was made, and how it ended."""

    cause: Cause
    exit_class: ExitClass | None = None
    """``None`` while it runs, or where it did not fail."""
    fingerprint: str = ""
    ran_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class FaultPolicy:
    """`fault_tolerance` of a task (C33, C34)."""

    enabled: bool = False
    max_resubmissions: int = 0
    replace_node: bool = False

    @property
    def budget(self) -> int:
        return self.max_resubmissions if self.enabled else 0

    @property
    def replaces(self) -> bool:
        return self.enabled and self.replace_node


@dataclass(frozen=True, slots=True)
class Resubmit:
    """Run the whole gang again."""

    cause: Cause
    delay_seconds: float
    number: int
    """Of counted resubmissions, this one included where it counts."""
    budget: int
    message: str
    exclude_node: str | None = None
    """A node that the next Attempt must not use (C34)."""
    cordon_node: str | None = None
    """A node that nothing may use until somebody cleared it (C34)."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The task has failed."""

    code: str
    message: str
    exit_class: ExitClass


def classify(end: GangEnd) -> Verdict:
    """Whose fault an end was (C35): what the machine reports goes before what a program says."""
    culprit = end.culprit
    proof = next((one for one in end.evidence if one.proves_machine), None)
    if any(one.ended_by is EndedBy.PREEMPTION for one in end.replicas):
        verdict = Verdict(ExitClass.PREEMPTED, None, None, "it made room for a task of higher rank")
    elif proof is not None:
        code = None if culprit is None else culprit.exit_code
        verdict = Verdict(ExitClass.MACHINE, proof.node, code, proof.words, proven=True)
    elif culprit is None:
        verdict = Verdict(ExitClass.PLATFORM, None, None, "nobody knows how it ended", transient=True)
    else:
        verdict = _of_replica(culprit)
    return verdict


def _of_replica(culprit: ReplicaEnd) -> Verdict:
    """The same from the replica that fell first."""
    by = culprit.ended_by
    if by is EndedBy.EXIT and _out_of_memory(culprit):
        by = EndedBy.MEMORY
    exit_class, how = _ENDINGS[by]
    said = f": {culprit.message}" if culprit.message else ""
    message = f"replica {culprit.rank} on {culprit.node} {how.format(code=culprit.exit_code)}{said}"
    return Verdict(
        exit_class,
        culprit.node,
        culprit.exit_code,
        message,
        transient=culprit.transient or (by is EndedBy.NOT_STARTED and not culprit.code),
        code=culprit.code or _CODES.get(by, ""),
        # Whichever replica fell first: what a program does wrong it does on all of them.
        fingerprint=f"{by.value}:{culprit.exit_code}",
    )


def decide_retry(ledger: Sequence[PastAttempt], end: GangEnd, policy: FaultPolicy) -> Resubmit | GiveUp:
    """What follows: ``ledger`` has every Attempt so far, the one that ended last; it failed or was preempted.

    One end of a gang is one failure, however many replicas fell.
    """
    verdict = classify(end)
    used, budget = resubmissions_used(ledger), policy.budget
    exit_class = verdict.exit_class
    if exit_class is ExitClass.PREEMPTED:
        return Resubmit(Cause.PREEMPTED, 0.0, used, budget, f"queued again: {verdict.message}")
    if verdict.final:
        return GiveUp(verdict.code, verdict.message, exit_class)
    if exit_class is ExitClass.PLATFORM:
        return _platform(ledger, verdict, used, budget)
    if exit_class is ExitClass.MACHINE and policy.replaces and verdict.node:
        return _replaced(ledger, verdict, end, used, budget)
    return _counted(ledger, verdict, end, used, budget)


def _replaced(
    ledger: Sequence[PastAttempt], verdict: Verdict, end: GangEnd, used: int, budget: int
) -> Resubmit | GiveUp:
    """Another node, not counted (C34): bounded, because a program can look like a broken machine."""
    node, row = verdict.node, _without_progress(ledger, end)
    if _crash_loop(ledger, verdict, end):
        return _loops(verdict)
    if row >= MAX_REPLACED_TRIES:
        message = (
            f"{row} tries in a row in place of lost ones brought less than {PROGRESS_SECONDS:.0f} s of work"
            f" each: {verdict.message}"
        )
        return GiveUp(verdict.code or "EXECUTION_LOST", message, verdict.exit_class)
    return Resubmit(
        Cause.NODE_REPLACED,
        back_off(row),
        used,
        budget,
        f"another node instead of {node}: {verdict.message}",
        exclude_node=node,
        cordon_node=node if verdict.proven else None,
    )


def _without_progress(ledger: Sequence[PastAttempt], end: GangEnd) -> int:
    """Replacements in a row that got nowhere; what others cut short between them says nothing."""
    count = 0
    for place, one in enumerate(reversed(ledger)):
        if one.cause in {Cause.PREEMPTED, Cause.PLATFORM}:
            continue
        ran = one.ran_seconds if place else end.ran_seconds
        if one.cause is not Cause.NODE_REPLACED or ran >= PROGRESS_SECONDS:
            break
        count += 1
    return count


def _counted(
    ledger: Sequence[PastAttempt], verdict: Verdict, end: GangEnd, used: int, budget: int
) -> Resubmit | GiveUp:
    """A failure that uses up a resubmission, if there is one and it makes sense."""
    if used < budget and _crash_loop(ledger, verdict, end):
        return _loops(verdict)
    if used < budget:
        message = f"resubmission {used + 1} of {budget} after: {verdict.message}"
        return Resubmit(Cause.AUTO_FAILURE, back_off(used), used + 1, budget, message)
    spent = f"; {used} of {budget} resubmissions used" if budget else ""
    return GiveUp(verdict.code or "EXECUTION_LOST", f"{verdict.message}{spent}", verdict.exit_class)


def _loops(verdict: Verdict) -> GiveUp:
    message = f"{CRASH_LOOP_EXITS} times in a row, each within {CRASH_LOOP_SECONDS:.0f} s: {verdict.message}"
    return GiveUp("CRASH_LOOP", message, verdict.exit_class)


def resubmissions_used(ledger: Sequence[PastAttempt]) -> int:
    """Counted resubmissions (C33): neither the first submission nor manual, preempted or replaced ones."""
    return sum(one.cause is Cause.AUTO_FAILURE for one in ledger)


def back_off(before: int) -> float:
    """Seconds before the next try: 10 s doubled each time, at most 300 s."""
    return min(MAX_BACK_OFF_SECONDS, BACK_OFF_SECONDS * float(1 << min(before, 10)))


def _platform(ledger: Sequence[PastAttempt], verdict: Verdict, used: int, budget: int) -> Resubmit | GiveUp:
    row = _in_a_row(ledger, Cause.PLATFORM)
    if row >= MAX_PLATFORM_TRIES:
        return GiveUp("LAUNCH_FAILED", f"{row + 1} tries in a row: {verdict.message}", verdict.exit_class)
    said = f"tried again ({row + 1} of {MAX_PLATFORM_TRIES} in a row), not counted"
    message = f"{said}: {verdict.message}"
    return Resubmit(Cause.PLATFORM, back_off(row), used, budget, message, exclude_node=None)


def _in_a_row(ledger: Sequence[PastAttempt], cause: Cause) -> int:
    """How many Attempts at the end of the ledger were made for one cause."""
    count = 0
    for one in reversed(ledger):
        if one.cause is not cause:
            break
        count += 1
    return count


def _crash_loop(ledger: Sequence[PastAttempt], verdict: Verdict, end: GangEnd) -> bool:
    """Three identical ends that may be the program's, each under a minute, one after the other (C35)."""
    own = verdict.exit_class is ExitClass.USER or _only_lost(verdict)
    if not own or end.ran_seconds >= CRASH_LOOP_SECONDS:
        return False
    past = [
        one for one in ledger[:-1] if one.exit_class not in {None, ExitClass.PREEMPTED, ExitClass.PLATFORM}
    ]
    recent = past[-(CRASH_LOOP_EXITS - 1) :]
    return len(recent) == CRASH_LOOP_EXITS - 1 and all(
        one.exit_class is verdict.exit_class
        and one.fingerprint == verdict.fingerprint
        and one.ran_seconds < CRASH_LOOP_SECONDS
        for one in recent
    )


def _only_lost(verdict: Verdict) -> bool:
    """Whether nothing but the loss itself speaks of the machine: a program can end its own watcher."""
    return verdict.exit_class is ExitClass.MACHINE and not verdict.proven


def _out_of_memory(culprit: ReplicaEnd) -> bool:
    """A kill from outside, or CUDA's own words in the last line of the log."""
    text = culprit.message.lower()
    return culprit.exit_code in _SIGKILL_CODES or any(words in text for words in _MEMORY_WORDS)


_MEMORY_WORDS = ("out of memory", "outofmemoryerror", "cuda error: out of memory", "memoryerror")
_ENDINGS: Mapping[EndedBy, tuple[ExitClass, str]] = {
    EndedBy.EXIT: (ExitClass.USER, "ended with exit code {code}"),
    EndedBy.STOP: (ExitClass.PLATFORM, "was stopped"),
    EndedBy.PREEMPTION: (ExitClass.PREEMPTED, "made room"),
    EndedBy.TIMEOUT: (ExitClass.USER, "ran into its time limit"),
    EndedBy.MEMORY: (ExitClass.OOM, "ran out of memory, exit code {code}"),
    EndedBy.DISK: (ExitClass.USER, "wrote more than its disk holds"),
    EndedBy.NOT_STARTED: (ExitClass.PLATFORM, "was not started"),
    EndedBy.LOST: (ExitClass.MACHINE, "was lost"),
    EndedBy.IMAGE: (ExitClass.IMAGE, "got no image"),
    EndedBy.PRECHECK: (ExitClass.USER, "did not pass its precheck"),
}
_CODES: Mapping[EndedBy, str] = {
    EndedBy.EXIT: "NONZERO_EXIT",
    EndedBy.TIMEOUT: "TRIAL_TIMEOUT",
    EndedBy.MEMORY: "MEMORY_LIMIT_EXCEEDED",
    EndedBy.DISK: "DISK_LIMIT_EXCEEDED",
    EndedBy.NOT_STARTED: "LAUNCH_FAILED",
    EndedBy.LOST: "EXECUTION_LOST",
    EndedBy.IMAGE: "IMAGE_PULL_FAILED",
    EndedBy.PRECHECK: "PRECHECK_FAILED",
}
_FINAL_CODES = frozenset({"TRIAL_TIMEOUT", "PRECHECK_FAILED"})
"""The same would happen again: a time limit of the task's own, a check that decides (C31)."""
