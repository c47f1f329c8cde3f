"""The words that contract G says for the states of a script Job, and the moves between them (section b).

A script Job has one Trial, and a Trial has the states of `model.states`. What G distinguishes further while a
Trial is queued is its `Phase`. `word_of` is the translation; `REASONS` is the table of section b, which every
recorded transition is checked against.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from trainshed.model.states import State


class Word(StrEnum):
    """A state of a script Job as `gpu` and MCP say it."""

    QUEUED = "queued"
    ROUTING = "routing"
    AWAITING_APPROVAL = "awaiting_approval"
    PROVISIONING = "provisioning"
    RUNNING = "running"
    CHECKPOINTING = "checkpointing"
    MIGRATING = "migrating"
    CANCELLING = "cancelling"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    DENIED = "denied"


class Phase(StrEnum):
    """Where a Trial that is queued stands on its way to a provider."""

    WAITING = "waiting"
    """New, or no provider has room: routed at once, or from `not_before` on."""
    ROUTING = "routing"
    """A provider is being chosen, or one was and it is being placed there."""
    RESUMING = "resuming"
    """Another Attempt is being routed after one was lost; the Job still says `migrating`."""


W, S, P = Word, State, Phase
TERMINAL_WORDS = frozenset({W.DONE, W.FAILED, W.CANCELLED, W.DENIED})
SETTLED_WAITS = frozenset({W.QUEUED, W.ROUTING})
"""A submission that waits is over at any other word, or at `queued` with a time to begin (a.1)."""

_OF_STATE: Mapping[State, Word] = {
    S.AWAITING_APPROVAL: W.AWAITING_APPROVAL,
    S.DENIED: W.DENIED,
    S.PREPARING: W.PROVISIONING,
    S.RUNNING: W.RUNNING,
    S.CHECKPOINTING: W.CHECKPOINTING,
    S.MIGRATING: W.MIGRATING,
    S.COLLECTING: W.RUNNING,
    S.STOPPING: W.CANCELLING,
    S.SUCCEEDED: W.DONE,
    S.FAILED: W.FAILED,
    S.CANCELLED: W.CANCELLED,
}
_OF_PHASE: Mapping[Phase, Word] = {P.WAITING: W.QUEUED, P.ROUTING: W.ROUTING, P.RESUMING: W.MIGRATING}


def word_of(state: State, phase: Phase) -> Word:
    """The word for a Trial in ``state``; ``phase`` matters while it is queued."""
    return _OF_PHASE[phase] if state is S.QUEUED else _OF_STATE[state]


class Reason(StrEnum):
    """Why a script Job changed its state (section b)."""

    SUBMITTED = "submitted"
    ROUTING_STARTED = "routing_started"
    GAVE_UP = "gave_up"
    NO_CAPACITY = "no_capacity"
    APPROVAL_REQUIRED = "approval_required"
    PLACED = "placed"
    NO_PROVIDER_FITS = "no_provider_fits"
    DENIED = "denied"
    APPROVAL_EXPIRED = "approval_expired"
    STARTED = "started"
    RATE_LIMITED = "rate_limited"
    PROVIDER_UNAVAILABLE = "provider_unavailable"
    QUOTA_EXHAUSTED = "quota_exhausted"
    AUTH_REQUIRED = "auth_required"
    INVALID_FOR_PROVIDER = "invalid_for_provider"
    PROVISION_TIMEOUT = "provision_timeout"
    LOST_BEFORE_START = "lost_before_start"
    COMPLETED = "completed"
    SCRIPT_FAILED = "script_failed"
    PROVIDER_PERMANENT = "provider_permanent"
    CHECKPOINT_BEGIN = "checkpoint_begin"
    CHECKPOINT_END = "checkpoint_end"
    CHECKPOINT_STALLED = "checkpoint_stalled"
    INTERACTIVE_LOST = "interactive_lost"
    SESSION_LOST = "session_lost"
    STATUS_LOST = "status_lost"
    HANDOFF = "handoff"
    HOURS_EXCEEDED = "hours_exceeded"
    LATE_RESULT = "late_result"
    USER_CANCEL = "user_cancel"
    REMOTE_CANCELLED = "remote_cancelled"
    CANCELLED = "cancelled"
    CANCEL_UNCONFIRMED = "cancel_unconfirmed"


R = Reason
_LOSSES = frozenset({R.SESSION_LOST, R.STATUS_LOST, R.QUOTA_EXHAUSTED, R.HANDOFF, R.HOURS_EXCEEDED})
_ENDS: Mapping[Word, frozenset[Reason]] = {
    W.DONE: frozenset({R.COMPLETED}),
    W.FAILED: frozenset({R.SCRIPT_FAILED, R.INTERACTIVE_LOST, R.PROVIDER_PERMANENT}),
    W.MIGRATING: _LOSSES,
    W.CANCELLING: frozenset({R.USER_CANCEL}),
    W.CANCELLED: frozenset({R.USER_CANCEL, R.REMOTE_CANCELLED}),
}
REASONS: Mapping[tuple[Word | None, Word], frozenset[Reason]] = {
    (None, W.QUEUED): frozenset({R.SUBMITTED}),
    (W.QUEUED, W.ROUTING): frozenset({R.ROUTING_STARTED}),
    (W.QUEUED, W.FAILED): frozenset({R.GAVE_UP, R.NO_PROVIDER_FITS}),
    (W.QUEUED, W.CANCELLED): frozenset({R.USER_CANCEL}),
    (W.ROUTING, W.QUEUED): frozenset({R.NO_CAPACITY}),
    (W.ROUTING, W.AWAITING_APPROVAL): frozenset({R.APPROVAL_REQUIRED}),
    (W.ROUTING, W.PROVISIONING): frozenset({R.PLACED}),
    (W.ROUTING, W.FAILED): frozenset({R.NO_PROVIDER_FITS, R.GAVE_UP}),
    (W.ROUTING, W.CANCELLED): frozenset({R.USER_CANCEL}),
    (W.AWAITING_APPROVAL, W.PROVISIONING): frozenset({R.PLACED}),
    (W.AWAITING_APPROVAL, W.QUEUED): frozenset({R.NO_CAPACITY}),
    (W.AWAITING_APPROVAL, W.FAILED): frozenset({R.NO_PROVIDER_FITS, R.GAVE_UP}),
    (W.AWAITING_APPROVAL, W.DENIED): frozenset({R.DENIED, R.APPROVAL_EXPIRED}),
    (W.AWAITING_APPROVAL, W.CANCELLED): frozenset({R.USER_CANCEL}),
    (W.PROVISIONING, W.RUNNING): frozenset({R.STARTED}),
    (W.PROVISIONING, W.QUEUED): frozenset(
        {
            R.RATE_LIMITED,
            R.PROVIDER_UNAVAILABLE,
            R.QUOTA_EXHAUSTED,
            R.AUTH_REQUIRED,
            R.INVALID_FOR_PROVIDER,
            R.PROVISION_TIMEOUT,
            R.LOST_BEFORE_START,
        }
    ),
    (W.PROVISIONING, W.DONE): _ENDS[W.DONE],
    (W.PROVISIONING, W.FAILED): _ENDS[W.FAILED],
    (W.PROVISIONING, W.CANCELLING): _ENDS[W.CANCELLING],
    (W.PROVISIONING, W.CANCELLED): _ENDS[W.CANCELLED],
    (W.RUNNING, W.CHECKPOINTING): frozenset({R.CHECKPOINT_BEGIN}),
    (W.CHECKPOINTING, W.RUNNING): frozenset({R.CHECKPOINT_END, R.CHECKPOINT_STALLED}),
    **{(word, end): reasons for word in (W.RUNNING, W.CHECKPOINTING) for end, reasons in _ENDS.items()},
    (W.MIGRATING, W.PROVISIONING): frozenset({R.PLACED}),
    (W.MIGRATING, W.QUEUED): frozenset({R.NO_CAPACITY}),
    (W.MIGRATING, W.AWAITING_APPROVAL): frozenset({R.APPROVAL_REQUIRED}),
    (W.MIGRATING, W.DONE): frozenset({R.LATE_RESULT}),
    (W.MIGRATING, W.FAILED): frozenset({R.GAVE_UP, R.NO_PROVIDER_FITS, R.LATE_RESULT}),
    (W.MIGRATING, W.CANCELLING): frozenset({R.USER_CANCEL}),
    (W.MIGRATING, W.CANCELLED): frozenset({R.USER_CANCEL}),
    (W.CANCELLING, W.CANCELLED): frozenset({R.CANCELLED, R.CANCEL_UNCONFIRMED}),
}
"""From, to -> why. ``None`` is before the Job existed."""


class Note(StrEnum):
    """Something that happened and left the state alone (section b)."""

    APPROVED = "approved"
    SUBMIT_CONFIRMED = "submit_confirmed"
    RECOVERED = "recovered"
    STATUS_UNREACHABLE = "status_unreachable"
    STATUS_RECOVERED = "status_recovered"
    FETCHED = "fetched"
    FETCH_FAILED = "fetch_failed"
    OUTPUTS_KEPT = "outputs_kept"
    PROVIDER_EXCLUDED = "provider_excluded"
    RETRY_SCHEDULED = "retry_scheduled"
    SUBMIT_AMBIGUOUS = "submit_ambiguous"
    ATTEMPT_ABANDONED = "attempt_abandoned"
    ORPHAN_CANCELLED = "orphan_cancelled"
    HANDOFF_REQUESTED = "handoff_requested"
    HANDOFF_SKIPPED = "handoff_skipped"
    CHECKPOINT_FOUND = "checkpoint_found"
    CHECKPOINT_COPIED = "checkpoint_copied"
    STORAGE_UNAVAILABLE = "storage_unavailable"
    DATA_UPLOADING = "data_uploading"
    DATA_UPLOADED = "data_uploaded"
    DATA_REUSED = "data_reused"
    GPU_MISMATCH = "gpu_mismatch"
    INTERNAL_ERROR = "internal_error"


class ImpossibleTransition(Exception):
    """A transition that section b does not have."""


def check_transition(before: Word | None, after: Word, reason: Reason) -> None:
    """Raise `ImpossibleTransition` unless section b has ``before -> after`` for this reason."""
    if reason not in REASONS.get((before, after), frozenset()):
        raise ImpossibleTransition(f"a script Job cannot go from {before} to {after} because of {reason}")


class AttemptState(StrEnum):
    """How far one Attempt at a provider got."""

    SUBMITTING = "submitting"
    """Committed; the provider may or may not have heard of it."""
    SUBMITTED = "submitted"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    LOST = "lost"
    CANCELLED = "cancelled"
    REJECTED = "rejected"
    """The provider refused it before anything was made there."""
    ABANDONED = "abandoned"
    """Given up although it may still be there; it is cancelled when it is met again."""


LIVE_ATTEMPTS = frozenset({AttemptState.SUBMITTING, AttemptState.SUBMITTED, AttemptState.RUNNING})


class FailureKind(StrEnum):
    """Whose fault a failure is."""

    USER_ERROR = "user_error"
    NO_PROVIDER = "no_provider"
    PROVIDER_ERROR = "provider_error"
    INVALID_JOB = "invalid_job"
    INTERNAL = "internal"
