"""What follows when an Attempt of a script Job ends, errs or has to leave: pure rules (sections b, c.4, g).

Times are seconds, moments Unix seconds.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum

from trainshed.model.scripts.states import AttemptState, FailureKind, Reason

MAX_ATTEMPTS = 6
"""Accepted Attempts; one that saved a newer checkpoint is not counted."""
MAX_PLACEMENTS = 30
QUEUE_SECONDS = 6 * 3600.0
"""How long a Job waits for a place."""
UNREACHABLE_NOTE_SECONDS, UNREACHABLE_LOST_SECONDS = 1800.0, 3 * 3600.0
"""How long a provider may not answer before it is told, and before its run counts as lost."""
STALLED_SECONDS = 900.0
"""A checkpoint that takes longer is not waited for."""
ASK_SECONDS = 600.0
"""How long one that must leave may take to save."""
HANDOFF_SECONDS = 1800.0
"""So long before the end of a session another Attempt is prepared for."""
UNCONFIRMED_SECONDS = 300.0
"""How long a cancel may take before the Job says cancelled without a proof."""
ENVIRONMENT_FAILED = 90
"""The runner's exit code where packages or datasets could not be had."""
_MISSING = re.compile(
    r"could not be installed( anywhere)?: (No matching distribution found for [^;]+|Because [^;]+)"
)
"""What the runner says where the installer found no such package, or no such version; and whether it is
certain that this is so for every Python and every machine."""
START_SECONDS = 15.0
"""A death by signal so soon after the start is not the script's fault."""
DELIVERY_PAUSES = (20.0, 60.0)
"""Between tries to bring outputs."""
_SIGNALS_FROM = 128
RETRY_SECONDS = 30.0
"""How long a Job waits after a loss before another place is looked for."""
_LONGEST_PAUSE = 1800.0
_FIRST_RECHECK, _LONGEST_RECHECK = 60.0, 900.0


def backoff(losses: int, first: float = RETRY_SECONDS) -> float:
    """How long to wait after the ``losses``-th loss in a row (1, 2, …); ``first`` after one."""
    return min(_LONGEST_PAUSE, first * 2.0 ** min(max(losses, 1) - 1, 20))


def recheck(failures: int) -> float:
    """When to look again at a provider that failed ``failures`` times in a row (g.7)."""
    return min(_LONGEST_RECHECK, _FIRST_RECHECK * 2.0 ** min(max(failures, 1) - 1, 20))


class Ending(StrEnum):
    """What the end of an Attempt means for its Job."""

    DONE = "done"
    FAILED = "failed"
    LOST = "lost"
    """Another Attempt is due."""
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class End:
    """How an Attempt ended, as far as it is known."""

    phase: str
    """The provider's word: ``succeeded``, ``failed``, ``cancelled`` or ``lost``."""
    exit_code: int | None = None
    """As the provider or the runner says."""
    started: bool = False
    ran_seconds: float = 0.0
    progressed: bool = False
    """Whether the program was heard of: a metric, a step or a checkpoint."""
    interactive: bool = False
    message: str = ""
    before: Collection[str] = ()
    """What was said of the ends of earlier Attempts at the same provider."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What follows."""

    ending: Ending
    reason: Reason
    attempt: AttemptState
    message: str
    failure: FailureKind | None = None


def judge_end(end: End) -> Verdict:
    """What the end of an Attempt means. Of one that nobody asked to go."""
    said = f": {end.message.rstrip('.')}" if end.message else ""
    if end.phase == "cancelled":
        sentence = f"It was stopped at the provider, not by us{said}"
        return Verdict(Ending.CANCELLED, Reason.REMOTE_CANCELLED, AttemptState.CANCELLED, sentence)
    if end.phase == "succeeded" or (end.exit_code == 0 and end.phase != "lost"):
        return Verdict(Ending.DONE, Reason.COMPLETED, AttemptState.SUCCEEDED, "The script ended well.")
    if end.phase == "lost" or end.exit_code is None:
        return _lost(end, f"The session is gone{said}")
    if end.exit_code == ENVIRONMENT_FAILED:
        return _environment_failed(end)
    early = end.ran_seconds < START_SECONDS and not end.progressed
    if end.exit_code > _SIGNALS_FROM and early:
        number = end.exit_code - _SIGNALS_FROM
        return _lost(end, f"Signal {number} ended it as it began; the script is not to blame")
    return Verdict(
        Ending.FAILED,
        Reason.SCRIPT_FAILED,
        AttemptState.FAILED,
        f"The script ended with exit code {end.exit_code}.",
        FailureKind.USER_ERROR,
    )


def _environment_failed(end: End) -> Verdict:
    """Tried elsewhere, or there again, unless the package is certainly nowhere, or was not there twice."""
    missing = _MISSING.search(end.message)
    if missing is None:
        return _lost(end, "Packages or datasets could not be had there (exit 90); the script is not to blame")
    anywhere, why = missing.group(1), missing.group(2).rstrip(".")
    again = _lost(end, f"Packages could not be had there (exit 90): {why}")
    if not anywhere and again.message not in end.before:
        return again
    said = f"Packages could not be had {'at all' if anywhere else 'there twice'} (exit 90): {why}."
    return Verdict(Ending.FAILED, Reason.SCRIPT_FAILED, AttemptState.FAILED, said, FailureKind.USER_ERROR)


def _lost(end: End, sentence: str) -> Verdict:
    if end.interactive and end.started:
        said = f"{sentence}, and what is interactive cannot go on elsewhere."
        return Verdict(
            Ending.FAILED,
            Reason.INTERACTIVE_LOST,
            AttemptState.LOST,
            said,
            FailureKind.PROVIDER_ERROR,
        )
    reason = Reason.SESSION_LOST if end.started else Reason.LOST_BEFORE_START
    return Verdict(Ending.LOST, reason, AttemptState.LOST, f"{sentence}.")


@dataclass(frozen=True, slots=True)
class Budget:
    """What a Job used up."""

    accepted: int = 0
    free: int = 0
    """Those of them that saved a newer checkpoint."""
    placements: int = 0
    waiting_since: float | None = None
    max_attempts: int | None = None
    """As gpu.yaml limits it."""


def gave_up(budget: Budget, now: float) -> str | None:
    """Why nothing more is tried, in a sentence; ``None``: go on."""
    if budget.max_attempts is not None and budget.accepted >= budget.max_attempts:
        return f"{budget.accepted} Attempts were made, as many as max_attempts allows."
    if budget.accepted - budget.free >= MAX_ATTEMPTS:
        return f"{MAX_ATTEMPTS} Attempts came to no newer checkpoint."
    if budget.placements >= MAX_PLACEMENTS:
        return f"It was placed {budget.placements} times in vain."
    if budget.waiting_since is not None and now - budget.waiting_since > QUEUE_SECONDS:
        return f"No provider had room for {QUEUE_SECONDS / 3600:g} hours."
    return None


@dataclass(frozen=True, slots=True)
class Consequence:
    """What an error of a provider means for it and for the Job (g.7)."""

    reason: Reason
    cools_down: bool = False
    """It is left alone for a while, by all Jobs."""
    exhausted: bool = False
    logged_out: bool = False
    excluded: bool = False
    """For this Job alone."""
    fails: bool = False
    """The Job is over."""


CONSEQUENCES: Mapping[str, Consequence] = {
    "rate_limited": Consequence(Reason.RATE_LIMITED, cools_down=True),
    "provider_unavailable": Consequence(Reason.PROVIDER_UNAVAILABLE, cools_down=True),
    "quota_exhausted": Consequence(Reason.QUOTA_EXHAUSTED, exhausted=True),
    "auth_required": Consequence(Reason.AUTH_REQUIRED, logged_out=True),
    "invalid_job": Consequence(Reason.INVALID_FOR_PROVIDER, excluded=True),
    "remote_not_found": Consequence(Reason.LOST_BEFORE_START),
    "provider_permanent": Consequence(Reason.PROVIDER_PERMANENT, fails=True),
}
"""Error code of `trainshed.engines.providers.contract` -> what follows before the start."""


def must_leave(
    now: float,
    *,
    started_at: float,
    ran_before: float,
    limit: float | None,
    session_seconds: float | None,
    can_resume: bool,
    quota_ends: bool = False,
) -> Reason | None:
    """Why a run has to leave now, if it has to (c.4, g.9).

    ``limit``: seconds of running time of all Attempts together, where overrun is enforced. A session's end is
    no reason where nothing could go on from a checkpoint: it uses the session up, and so with a quota
    (`quota_ends_first`).
    """
    if limit is not None and ran_before + (now - started_at) > limit:
        return Reason.HOURS_EXCEEDED
    over = session_seconds is not None and now >= handoff_at(started_at, session_seconds)
    return Reason.HANDOFF if can_resume and (over or quota_ends) else None


def quota_ends_first(
    left_hours: float, needed_hours: float, running: int, now: float, resets_at: float | None
) -> bool:
    """Whether what is left of a quota ends within the time of a handoff, and before the Job does (g.9).

    ``running`` counts the runs that use it up, this Job's among them. Routing asks the same, so that a Job
    that leaves for this reason is not sent back.
    """
    hours = left_hours / max(1, running)
    renewed = resets_at is not None and now < resets_at <= now + hours * 3600
    return hours * 3600 <= HANDOFF_SECONDS and needed_hours > hours and not renewed


def handoff_at(started_at: float, session_seconds: float) -> float:
    """When one whose session ends goes on elsewhere; half of a short session is used at least."""
    return started_at + session_seconds - min(HANDOFF_SECONDS, session_seconds / 2)
