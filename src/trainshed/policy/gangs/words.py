"""Why a task waits, in words with numbers: what blocks it, and what would unblock it (P10, c2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from trainshed.policy.gangs.snapshot import GangClass, GangReason, GangWait
from trainshed.policy.words import iso

Words = tuple[str, str]
"""What blocks, and what would unblock."""


def sentence(key: GangClass, reason: GangReason) -> Words:
    """What blocks a task of this class and what would unblock it."""
    blocked, unblock = _WORDS[reason.code](key, reason)
    return (f"{blocked}; {reason.note}" if reason.note else blocked), unblock


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _then(reason: GangReason) -> str:
    return "" if reason.until is None else f", expected by {iso(reason.until)}"


def _quota_name(key: GangClass, reason: GangReason) -> str:
    return f"project {key.project} ({key.resource_type.value}, pool {key.pool}, spec {reason.spec})"


def _misconfigured(key: GangClass, _: GangReason) -> Words:
    missing = key.missing or f"pool {key.pool} or what the task names in it is gone"
    return (
        f"the catalogue in force does not let it start: {missing}",
        "an administrator puts it back into the catalogue, or a new task",
    )


def _no_matching_spec(key: GangClass, reason: GangReason) -> Words:
    excluded = f" beside {_count(len(key.excluded), 'excluded node')}" if key.excluded else ""
    replicas = f"{_count(reason.requested, 'replica')} on spec {reason.spec} in pool {key.pool}"
    blocked = (
        f"needs {replicas}; {reason.largest} would fit on the nodes that are up, even if these were"
        f" empty{excluded}"
    )
    return blocked, f"{reason.requested - reason.largest} more such places, or a task that asks for less"


def _held(key: GangClass, reason: GangReason) -> Words:
    if reason.until is None:
        return (
            f"the queue of project {key.project} in pool {key.pool} is stopped",
            "an administrator starts it again",
        )
    return f"waits for its next try until {iso(reason.until)}", f"the time, {iso(reason.until)}"


def _approval(_key: GangClass, _reason: GangReason) -> Words:
    return "a person has to approve it", "the approval"


def _exceeds(key: GangClass, reason: GangReason) -> Words:
    most = reason.limit or 0
    need = f"needs {_count(reason.requested, 'unit')}"
    blocked = f"{need}; {_quota_name(key, reason)} can never have more than {most}"
    return blocked, f"an administrator raises the quota by {reason.requested - most}, or a new task"


def _quota(key: GangClass, reason: GangReason) -> Words:
    need = f"needs {_count(reason.requested, 'unit')}"
    left = f"may take {reason.available} more now of at most {reason.limit or 0}"
    short = _count(max(1, reason.requested - reason.available), "unit")
    return f"{need}; {_quota_name(key, reason)} {left}", f"{short} returned{_then(reason)}, or a higher quota"


def _noun(key: GangClass) -> str:
    return "GPU" if key.choices[0].amounts.gpus else "CPU core"


def _resources(key: GangClass, reason: GangReason) -> Words:
    need = f"needs {_count(reason.requested, _noun(key))} on spec {reason.spec} in pool {key.pool}"
    there = f"{reason.available} are free, {reason.largest} of {reason.limit or 0} replicas fit"
    short = _count(max(1, reason.requested - reason.available), f"more {_noun(key)}")
    return f"{need}; {there}", f"{short} free{_then(reason)}"


def _fragmented(key: GangClass, reason: GangReason) -> Words:
    need = f"needs {_count(reason.requested, _noun(key))} on spec {reason.spec} in pool {key.pool}"
    pieces = f"but in pieces: {reason.largest} of {reason.limit or 0} replicas fit"
    short = _count(max(1, (reason.limit or 0) - reason.largest), "more replica")
    return f"{need}; {reason.available} are free, {pieces}", f"room for {short}{_then(reason)}"


def _preempted(_: GangClass, reason: GangReason) -> Words:
    left = reason.requested - reason.available
    return (
        f"{_count(reason.requested, 'task')} of lower rank make room for it; {reason.available} are gone",
        f"the end of {_count(left, 'more task')}{_then(reason)}",
    )


def _behind(key: GangClass, reason: GangReason) -> Words:
    limit = key.max_run_seconds
    late = "without max_run_seconds it" if limit is None else f"a run of up to {limit} s"
    first = reason.behind or "another task"
    blocked = (
        f"what it needs ({reason.requested} on spec {reason.spec}) is kept for {first}, which comes first;"
        f" {late} could delay that"
    )
    return blocked, f"the start of {first}{_then(reason)}, or a max_run_seconds that ends before"


def _pending(_key: GangClass, _reason: GangReason) -> Words:
    return "the scheduler has not looked at it yet", "the next pass"


_WORDS: Mapping[GangWait, Callable[[GangClass, GangReason], Words]] = {
    GangWait.MISCONFIGURED: _misconfigured,
    GangWait.NO_MATCHING_SPEC: _no_matching_spec,
    GangWait.HELD: _held,
    GangWait.AWAITING_APPROVAL: _approval,
    GangWait.EXCEEDS_MAX_QUOTA: _exceeds,
    GangWait.WAITING_FOR_QUOTA: _quota,
    GangWait.WAITING_FOR_RESOURCES: _resources,
    GangWait.FRAGMENTED: _fragmented,
    GangWait.WAITING_FOR_PREEMPTED: _preempted,
    GangWait.BEHIND: _behind,
    GangWait.PENDING_EVALUATION: _pending,
}
