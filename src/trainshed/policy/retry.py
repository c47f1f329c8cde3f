"""How a Trial ends, and whether a start that failed is tried again (E66, E69, E70, E76, E79, A2, A7, A9).

Before user code has started, the platform may try again on the same frozen input, a bounded number of times
with growing pauses. Afterwards never: whatever is lost then ends the Trial.
"""

from __future__ import annotations

import signal as signals
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from trainshed.model.states import OutputStatus, State
from trainshed.policy.effective import EffectiveResources


class Ending(StrEnum):
    """Why an Attempt is over. The words are those of the engines' exit records, and ``lost``."""

    EXIT = "exit"
    STOP = "stop"
    TIMEOUT = "timeout"
    MEMORY = "memory"
    DISK = "disk"
    NOT_STARTED = "not_started"
    LOST = "lost"
    """User code may have started, and nobody knows how it ended."""


@dataclass(frozen=True, slots=True)
class TrialError:
    """One error code of a Trial: what it means, and what the reader can do."""

    code: str
    meaning: str
    advice: str


TRIAL_ERRORS: Mapping[str, TrialError] = {
    error.code: error
    for error in (
        TrialError(
            "NONZERO_EXIT",
            "The program ended with an exit code other than zero, or by a signal.",
            "Read the end of the log; the raw exit code is in `exit_code`.",
        ),
        TrialError(
            "TRIAL_TIMEOUT",
            "The program was ended because it ran for its whole `timeout_seconds`.",
            "Submit a new Job with a longer timeout.",
        ),
        TrialError(
            "MEMORY_LIMIT_EXCEEDED",
            "The program needed more memory than its `memory_mb`, and the kernel ended it.",
            "Submit a new Job with more memory, or make the program use less.",
        ),
        TrialError(
            "DISK_LIMIT_EXCEEDED",
            "The program wrote more than its `storage_mb`, and was ended.",
            "Submit a new Job with more disk, or make the program write less.",
        ),
        TrialError(
            "OUTPUT_COLLECTION_FAILED",
            "The exit code is zero, but not every declared output could be stored and verified.",
            "The log says which files and why; what was stored can be downloaded.",
        ),
        TrialError(
            "EXECUTION_LOST",
            "User code had started, or may have, and the platform lost sight of it; it is never run again.",
            "Submit a new Job; look at the node and the server's log for the cause.",
        ),
        TrialError(
            "LAUNCH_FAILED",
            "The program could not be started, and the tries that policy allows are used up.",
            "The message names the last failure; `trainshed doctor` shows what is missing.",
        ),
        TrialError(
            "RUNNER_NOT_FOUND",
            "Access to the Runner was revoked while the Trial waited.",
            "Ask the Runner's owner for access, then submit a new Job.",
        ),
        TrialError(
            "RUNNER_HASH_MISMATCH",
            "The stored bytes of the Runner are not those that were accepted; nothing was started.",
            "Tell the administrator: the server's storage is damaged.",
        ),
        TrialError(
            "IMAGE_PULL_FAILED",
            "The image could not be pulled, as often as `images.pull_retries` lets it be tried.",
            "The message holds the registry's last answer; check that the image can still be pulled.",
        ),
        TrialError(
            "IMAGE_UNSUITABLE",
            "The image is here, but Trials cannot run in it; no user code was started (E45).",
            "Use a Linux image for this machine with Bash and Python; the message says what is missing.",
        ),
        TrialError(
            "ACCESS_DENIED",
            "Access to content that the Trial uses was revoked, or it was withdrawn, while the Trial waited.",
            "Ask the content's owner, or an administrator for a plugin, then submit a new Job.",
        ),
        TrialError(
            "CONTENT_DAMAGED",
            "The stored bytes of content that the Trial uses are damaged or gone; nothing was started.",
            "Owner: `trainshed content verify NAME@VERSION --repair`. Then publish it again and resubmit.",
        ),
        TrialError(
            "CONTENT_UNAVAILABLE",
            "The store of content did not answer, however often it was asked; nothing was started.",
            "Submit a new Job later; an administrator should look at the store.",
        ),
        TrialError(
            "CONTENT_DISK_FULL",
            "There was no room on the node for the content that the Trial uses; nothing was started.",
            "Tell the administrator to free disk, or to lower `content.cache_bytes`; then submit a new Job.",
        ),
        TrialError(
            "APPROVAL_DENIED",
            "A person decided that the Trial must not run.",
            "Talk to the approver; a new Job asks again.",
        ),
    )
}
"""Every code that a Trial's ``error`` can hold. ``docs/scheduling.md`` shows this table."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how fast a failed start is tried again (A9)."""

    max_starts: int = 5
    first_pause_seconds: float = 1.0
    factor: float = 4.0
    longest_pause_seconds: float = 60.0

    def pause(self, failures: int) -> float:
        """Seconds to wait after the ``failures``-th failed start (1, 2, ...)."""
        # The exponent is bounded so that a large count cannot overflow.
        grown = self.first_pause_seconds * self.factor ** min(failures - 1, 32)
        return min(grown, self.longest_pause_seconds)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a Trial ends: its last state, the error code it shows (``None`` without one) and a sentence."""

    state: State
    error_code: str | None
    message: str


@dataclass(frozen=True, slots=True)
class Again:
    """Put the Trial back into the queue, with its old place, and start it no earlier than ``not_before``."""

    not_before: float
    message: str


def outcome(
    *,
    ending: Ending,
    exit_code: int | None,
    exit_signal: int | None,
    output_status: OutputStatus,
    stop_requested: bool,
    limits: EffectiveResources,
    detail: str = "",
    outputs: int = 0,
) -> Outcome:
    """The end of a Trial whose user code started, or may have, and whose outputs are collected.

    ``outputs`` is how many are stored. An accepted stop always ends as cancelled (E76); the exit code and
    the outputs are kept beside it. Raises `ValueError` while collection is still going on, or if user code
    certainly did not start and nobody asked for a stop: `after_failed_start` decides then.
    """
    if output_status in {OutputStatus.PENDING, OutputStatus.COLLECTING}:
        raise ValueError(f"outputs are still {output_status}; the Trial has not ended yet")
    if stop_requested:
        return Outcome(State.CANCELLED, None, _stopped(ending, exit_code, exit_signal))
    more = f": {detail}" if detail else ""
    memory, disk = limits.amounts.memory_mb, limits.amounts.storage_mb
    ran = limits.timeout_seconds
    cut_short = {
        Ending.TIMEOUT: ("TRIAL_TIMEOUT", f"The program was ended after {ran} s, its timeout."),
        Ending.MEMORY: ("MEMORY_LIMIT_EXCEEDED", f"The program needed more than {memory} MiB of memory."),
        Ending.DISK: ("DISK_LIMIT_EXCEEDED", f"The program wrote more than {disk} MiB."),
        Ending.LOST: ("EXECUTION_LOST", f"The platform lost sight of the running program{more}."),
        Ending.STOP: ("EXECUTION_LOST", f"The program was stopped, but not on request{more}."),
    }
    if ending is Ending.NOT_STARTED:
        raise ValueError("user code did not start; decide with after_failed_start")
    if ending in cut_short:
        return _failed(*cut_short[ending])
    if exit_code != 0:
        return _failed("NONZERO_EXIT", f"Failed {_how(exit_code, exit_signal)}.")
    if output_status in {OutputStatus.FAILED, OutputStatus.PARTIAL}:
        what = "none" if output_status is OutputStatus.FAILED else "not all"
        message = f"The program ended with exit code 0, but {what} of its outputs could be stored{more}."
        return _failed("OUTPUT_COLLECTION_FAILED", message)
    stored = f"{outputs} output{'' if outputs == 1 else 's'} stored and verified" if outputs else "no outputs"
    return Outcome(State.SUCCEEDED, None, f"Succeeded: {stored}.")


def after_failed_start(
    *,
    failures: int,
    error_code: str,
    error: str,
    retryable: bool,
    stop_requested: bool,
    now: float,
    policy: RetryPolicy | None = None,
) -> Again | Outcome:
    """What to do with a Trial whose user code certainly has not started (A9).

    ``failures`` counts its failed starts, this one included. ``error_code`` is kept if it is one that a
    Trial can show (``RUNNER_NOT_FOUND``, say); any other becomes ``LAUNCH_FAILED``.
    """
    if failures < 1:
        raise ValueError("there is no failed start to decide about")
    if stop_requested:
        return Outcome(State.CANCELLED, None, "Stopped on request before user code started.")
    rules = policy or RetryPolicy()
    if retryable and failures < rules.max_starts:
        pause = rules.pause(failures)
        message = (
            f"Start {failures} of at most {rules.max_starts} failed before user code ran ({error});"
            f" the next try comes in {pause:g} s."
        )
        return Again(now + pause, message)
    code = error_code if error_code in TRIAL_ERRORS else "LAUNCH_FAILED"
    tries = f"{failures} tries" if failures > 1 else "1 try"
    why = "trying again cannot help" if not retryable else f"after {tries}"
    return _failed(code, f"User code was not started ({why}): {error}")


def after_failed_pull(*, failures: int, error: str, pull_retries: int, now: float) -> Again | Outcome:
    """What to do with a Trial whose image could not be pulled for the ``failures``-th time in a row (C38).

    ``pull_retries`` is how often a pull is repeated: 0 never, -1 for ever.
    """
    if pull_retries < 0 or failures <= pull_retries:
        pause = RetryPolicy().pause(failures)
        bound = "" if pull_retries < 0 else f" of at most {pull_retries + 1}"
        return Again(
            now + pause, f"Pull {failures}{bound} failed ({error}); the next try comes in {pause:g} s."
        )
    tries = f"{failures} tries" if failures > 1 else "1 try"
    return _failed(
        "IMAGE_PULL_FAILED", f"User code was not started: the image was not pulled in {tries}: {error}"
    )


def content_revoked(content: str) -> Outcome:
    """The end of a waiting Trial whose project may no longer use a content that it froze (A2, E94, E95)."""
    message = f"{content} may not be used by this project any more; nothing was started."
    return _failed("ACCESS_DENIED", message)


def access_revoked(runner: str) -> Outcome:
    """The end of a waiting Trial whose project may no longer read its Runner (A2)."""
    message = f"Access to the Runner {runner} was revoked before the Trial started; nothing was started."
    return _failed("RUNNER_NOT_FOUND", message)


def _failed(code: str, message: str) -> Outcome:
    return Outcome(State.FAILED, TRIAL_ERRORS[code].code, message)


def _stopped(ending: Ending, exit_code: int | None, exit_signal: int | None) -> str:
    match ending:
        case Ending.NOT_STARTED:
            return "Stopped on request before user code started."
        case Ending.LOST:
            return "Stopped on request; how the program ended is not known."
        case _:
            return f"Stopped on request; the program ended {_how(exit_code, exit_signal)}."


def _how(exit_code: int | None, exit_signal: int | None) -> str:
    if exit_signal is not None:
        try:
            name = signals.Signals(exit_signal).name
        except ValueError:
            name = "unnamed"
        return f"by signal {exit_signal} ({name}), exit code {exit_code}"
    return "without an exit code" if exit_code is None else f"with exit code {exit_code}"
