"""Words that people and programs read about a task: states, events, reasons, causes (c1, c2, C33, C35)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from types import MappingProxyType

from trainshed.model.states import State


class Shown(StrEnum):
    """The state of a task as the page shows it (c1)."""

    QUEUING = "Queuing"
    STARTING = "Starting"
    PULLING_IMAGE = "PullingImage"
    PRECHECKING = "Prechecking"
    RUNNING = "Running"
    REPLACING = "Replacing"
    STOPPING = "Stopping"
    SAVING_CHECKPOINT = "SavingCheckpoint"
    FINISHING = "Finishing"
    RETAINING = "Retaining"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    STOPPED = "Stopped"


class Detail(StrEnum):
    """What a task does within its state, from its newest event."""

    PULLING = "pulling"
    """Some replica pulls its image."""
    PRECHECK = "precheck"
    """GPUs and network are checked."""
    RUNTIME_ENV = "runtime_env"
    """Ray builds the runtime environment; the driver has not started."""
    NOTICE = "notice"
    """The exit notice was sent, and the program saves (C36)."""
    RETENTION = "retention"
    """The Ray cluster is kept for a look inside (C50)."""


SHOWN: Mapping[State, Shown] = MappingProxyType(
    {
        State.QUEUED: Shown.QUEUING,
        State.AWAITING_APPROVAL: Shown.QUEUING,
        State.DENIED: Shown.STOPPED,
        State.PREPARING: Shown.STARTING,
        State.RUNNING: Shown.RUNNING,
        State.CHECKPOINTING: Shown.RUNNING,
        State.MIGRATING: Shown.REPLACING,
        State.COLLECTING: Shown.FINISHING,
        State.STOPPING: Shown.STOPPING,
        State.SUCCEEDED: Shown.SUCCEEDED,
        State.FAILED: Shown.FAILED,
        State.CANCELLED: Shown.STOPPED,
    }
)
"""The table of c1, where no detail says more."""

SHOWN_WITH: Mapping[tuple[State, Detail], Shown] = MappingProxyType(
    {
        (State.PREPARING, Detail.PULLING): Shown.PULLING_IMAGE,
        (State.PREPARING, Detail.PRECHECK): Shown.PRECHECKING,
        (State.RUNNING, Detail.RUNTIME_ENV): Shown.STARTING,
        (State.STOPPING, Detail.NOTICE): Shown.SAVING_CHECKPOINT,
        (State.COLLECTING, Detail.RETENTION): Shown.RETAINING,
    }
)
"""The words of sub-states. A detail that is not here with its state is left over, and says nothing."""

DENIED_CODE = "APPROVAL_DENIED"
"""The code that goes with `Stopped` where a person said no."""


def shown_state(state: State, detail: Detail | None = None) -> Shown:
    """The word on the page for a state; list and page use this one (C59)."""
    found = SHOWN_WITH.get((state, detail)) if detail is not None else None
    return found or SHOWN[state]


def states_shown_as(word: Shown) -> frozenset[State]:
    """The states in which a task may be shown so, for filters of lists."""
    plain = {state for state, shown in SHOWN.items() if shown is word}
    return frozenset(plain | {state for (state, _), shown in SHOWN_WITH.items() if shown is word})


class ReplicaState(StrEnum):
    """The state of a replica (c1)."""

    PENDING = "Pending"
    PULLING = "Pulling"
    STARTING = "Starting"
    READY = "Ready"
    """Its shim has reported; the start barrier waits for the others (C27)."""
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    LOST = "Lost"
    TERMINATING = "Terminating"


REPLICA_ENDED = frozenset({ReplicaState.SUCCEEDED, ReplicaState.FAILED, ReplicaState.LOST})


class EventCode(StrEnum):
    """What happened to a task (c2). Events are kept with the task, for good."""

    SUBMITTED = "SUBMITTED"
    QUEUED = "QUEUED"
    SPEC_CHOSEN = "SPEC_CHOSEN"
    ADMITTED = "ADMITTED"
    PLACED = "PLACED"
    IMAGE_PULLING = "IMAGE_PULLING"
    IMAGE_PULL_RETRY = "IMAGE_PULL_RETRY"
    IMAGE_PULL_FAILED = "IMAGE_PULL_FAILED"
    PREPARING = "PREPARING"
    """What is mounted is brought to the node, and how far that is."""
    PRECHECK_STARTED = "PRECHECK_STARTED"
    PRECHECK_PASSED = "PRECHECK_PASSED"
    PRECHECK_FAILED = "PRECHECK_FAILED"
    STARTED = "STARTED"
    STOP_REQUESTED = "STOP_REQUESTED"
    PRIORITY_CHANGED = "PRIORITY_CHANGED"
    EXIT_NOTICE_SENT = "EXIT_NOTICE_SENT"
    EXIT_NOTICE_HEARD = "EXIT_NOTICE_HEARD"
    EXIT_NOTICE_UNHEARD = "EXIT_NOTICE_UNHEARD"
    PREEMPTED = "PREEMPTED"
    RESUBMITTED = "RESUBMITTED"
    CRASH_LOOP = "CRASH_LOOP"
    NODE_SUSPECTED = "NODE_SUSPECTED"
    NODE_REPLACED = "NODE_REPLACED"
    REPLICA_LOST = "REPLICA_LOST"
    ENGINE_UNKNOWN = "ENGINE_UNKNOWN"
    """The engine has not answered; nothing is concluded from that (c8)."""
    METRICS_PORT_TAKEN = "METRICS_PORT_TAKEN"
    METRICS_ENDPOINT_DEAD = "METRICS_ENDPOINT_DEAD"
    DASHBOARD_LIMITED = "DASHBOARD_LIMITED"
    SHELL_OPENED = "SHELL_OPENED"
    SHELL_CLOSED = "SHELL_CLOSED"
    DASHBOARD_OPENED = "DASHBOARD_OPENED"
    """Somebody reaches into the task (C50); the actor says who."""
    SCALED = "SCALED"
    RETAINING = "RETAINING"
    CLEANED = "CLEANED"
    CLEANUP_FAILED = "CLEANUP_FAILED"
    FINISHED = "FINISHED"


class WaitingReason(StrEnum):
    """Why a task waits: of those that apply, the first in this order is the one to tell (c2)."""

    MISCONFIGURED = "Misconfigured"
    NO_MATCHING_SPEC = "NoMatchingSpec"
    HELD = "Held"
    AWAITING_APPROVAL = "AwaitingApproval"
    EXCEEDS_MAX_QUOTA = "ExceedsMaxQuota"
    WAITING_FOR_QUOTA = "WaitingForQuota"
    FRAGMENTED = "Fragmented"
    WAITING_FOR_PREEMPTED = "WaitingForPreempted"
    BEHIND = "Behind"
    PENDING_EVALUATION = "PendingEvaluation"


_REASON_ORDER = {reason: place for place, reason in enumerate(WaitingReason)}


def first_reason(reasons: Iterable[WaitingReason]) -> WaitingReason:
    """The reason to tell; `PendingEvaluation` where none is known."""
    return min(reasons, key=_REASON_ORDER.__getitem__, default=WaitingReason.PENDING_EVALUATION)


class Cause(StrEnum):
    """Why an Attempt began: the ledger of C33."""

    INITIAL = "initial"
    AUTO_FAILURE = "auto_failure"
    """The only one that spends `max_resubmissions`."""
    MANUAL = "manual"
    PREEMPTED = "preempted"
    NODE_REPLACED = "node_replaced"
    PLATFORM = "platform"
    """We, or the engine, lost it through no fault of the program's or the machine's."""


COUNTED_CAUSES = frozenset({Cause.AUTO_FAILURE})
QUEUE_TIME_KEPT = frozenset({Cause.AUTO_FAILURE, Cause.PREEMPTED, Cause.NODE_REPLACED, Cause.PLATFORM})
"""Attempts that queue with the time of the first submission; a manual one takes a new place (c5)."""


class ExitClass(StrEnum):
    """Whose fault an end was (C35)."""

    USER = "user"
    OOM = "oom"
    MACHINE = "machine"
    """The only one that replaces a node (C34)."""
    PLATFORM = "platform"
    IMAGE = "image"
    PREEMPTED = "preempted"


class FailureReason(StrEnum):
    """Codes of `Failed` that are not an exit code."""

    APPROVAL_DENIED = "APPROVAL_DENIED"
    BASH_MISSING = "BASH_MISSING"
    IMAGE_LACKS_RAY = "IMAGE_LACKS_RAY"
    IMAGE_PULL_FAILED = "IMAGE_PULL_FAILED"
    NO_CONTAINER_RUNTIME = "NO_CONTAINER_RUNTIME"
    PRECHECK_FAILED = "PRECHECK_FAILED"
    SSH_UNAVAILABLE = "SSH_UNAVAILABLE"
