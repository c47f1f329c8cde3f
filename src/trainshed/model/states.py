"""States of a Trial and the one table of allowed moves (design section 6).

The table is checked here, again in the database (``store``), and drawn in ``docs/concepts.md``; no other
module may decide whether a move is allowed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum


class State(StrEnum):
    """Where a Trial is on its way (design section 3)."""

    QUEUED = "queued"
    """Accepted and frozen; waits for admission and placement. Ended by the controller or a stop."""
    AWAITING_APPROVAL = "awaiting_approval"
    """Waits for a person's yes or no."""
    DENIED = "denied"
    """A person said no. Terminal."""
    PREPARING = "preparing"
    """Holds an allocation; user code has not started."""
    RUNNING = "running"
    """User code was started."""
    CHECKPOINTING = "checkpointing"
    """Runs and saves its state, usually because it must go soon."""
    MIGRATING = "migrating"
    """Leaves one place; policy allows another Attempt."""
    COLLECTING = "collecting"
    """The program ended; outputs and the last log bytes are being stored."""
    STOPPING = "stopping"
    """A stop was accepted; the program is ended, outputs are collected within a bound."""
    SUCCEEDED = "succeeded"
    """Exit code zero and every output stored. Terminal."""
    FAILED = "failed"
    """Anything else that ended without a stop. Terminal."""
    CANCELLED = "cancelled"
    """Ended by an accepted stop. Terminal."""


S = State
TERMINAL = frozenset({S.SUCCEEDED, S.FAILED, S.CANCELLED, S.DENIED})
ACTIVE = frozenset(
    {S.PREPARING, S.RUNNING, S.CHECKPOINTING, S.MIGRATING, S.COLLECTING, S.STOPPING},
)
"""States in which a Trial may hold an allocation."""
WAITING = frozenset({S.QUEUED, S.AWAITING_APPROVAL})

MOVES: Mapping[State, frozenset[State]] = {
    S.QUEUED: frozenset({S.AWAITING_APPROVAL, S.PREPARING, S.FAILED, S.STOPPING}),
    S.AWAITING_APPROVAL: frozenset({S.QUEUED, S.DENIED, S.FAILED, S.STOPPING}),
    S.PREPARING: frozenset({S.RUNNING, S.QUEUED, S.FAILED, S.STOPPING}),
    S.RUNNING: frozenset({S.CHECKPOINTING, S.COLLECTING, S.MIGRATING, S.STOPPING}),
    S.CHECKPOINTING: frozenset({S.RUNNING, S.COLLECTING, S.MIGRATING, S.STOPPING}),
    S.MIGRATING: frozenset({S.QUEUED, S.COLLECTING, S.FAILED, S.STOPPING}),
    S.COLLECTING: frozenset({S.SUCCEEDED, S.FAILED, S.CANCELLED, S.MIGRATING, S.STOPPING}),
    S.STOPPING: frozenset({S.CANCELLED}),
    S.SUCCEEDED: frozenset(),
    S.FAILED: frozenset(),
    S.CANCELLED: frozenset(),
    S.DENIED: frozenset(),
}
REOPENINGS: Mapping[State, frozenset[State]] = {
    state: frozenset({S.QUEUED}) for state in (S.SUCCEEDED, S.FAILED, S.CANCELLED)
}
"""Further moves of training tasks alone: a person resubmits one that has ended (contract C, c7).

A Trial of a Runner has none: it never gets a second Attempt (promise P3).
"""


class ImpossibleMove(Exception):
    """A move that the table does not allow; nothing was changed."""

    def __init__(self, before: State, after: State) -> None:
        super().__init__(f"a Trial cannot go from {before} to {after}")
        self.before = before
        self.after = after


def check_move(before: State, after: State, *, task: bool = False) -> None:
    """Raise `ImpossibleMove` unless the table allows ``before -> after``, for a training ``task`` or not."""
    if after not in MOVES[before] and not (task and after in REOPENINGS.get(before, ())):
        raise ImpossibleMove(before, after)


class AllocationState(StrEnum):
    """Release runs beside the Trial's state; ``cleanup_confirmed`` is read from here (E68)."""

    HELD = "held"
    RELEASING = "releasing"
    RELEASED = "released"
    """Confirmed by evidence."""
    LEAKED = "leaked"
    """Could not be confirmed yet; escalated and retried for ever."""


class OutputStatus(StrEnum):
    """How far the declared outputs of a Trial got (contract E b4)."""

    PENDING = "pending"
    COLLECTING = "collecting"
    COMPLETE = "complete"
    PARTIAL = "partial"
    FAILED = "failed"
    NONE = "none"
    """Nothing was declared, or user code never started."""


E_TRIAL_WORDS: Mapping[State, str] = {
    S.QUEUED: "queued",
    S.AWAITING_APPROVAL: "queued",
    S.PREPARING: "preparing",
    S.RUNNING: "running",
    S.CHECKPOINTING: "running",
    S.MIGRATING: "preparing",
    S.COLLECTING: "running",
    S.STOPPING: "stopping",
    S.SUCCEEDED: "succeeded",
    S.FAILED: "failed",
    S.CANCELLED: "cancelled",
    S.DENIED: "cancelled",
}
"""Contract E b12: the words that the published client knows for a Trial."""

E_TRIAL_STATUSES = ("queued", "preparing", "running", "stopping", "succeeded", "failed", "cancelled")
E_JOB_STATUSES = ("queued", "running", "stopping", "completed", "failed", "cancelled")


def job_status(states: Iterable[State], *, stop_accepted: bool) -> str:
    """The E word of a Job from its Trials' states (contract E b12).

    ``stop_accepted`` means that a stop of the whole Job was accepted while some Trial was not terminal.
    """
    seen = set(states)
    if not seen <= TERMINAL:
        if stop_accepted:
            return "stopping"
        return "queued" if seen <= WAITING else "running"
    if stop_accepted:
        return "cancelled"
    if S.FAILED in seen:
        return "failed"
    return "cancelled" if seen & {S.CANCELLED, S.DENIED} else "completed"
