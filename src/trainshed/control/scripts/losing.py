"""What is stored when an Attempt came to nothing: the Job waits for another place, or it is over (b, g.7)."""

from __future__ import annotations

import json
from typing import Any

from trainshed.control.scripts.ground import Ground, Look, close_attempt, locked_look, move
from trainshed.engines.providers.contract import ProviderError, QuotaExhausted
from trainshed.model.scripts.states import AttemptState, FailureKind, Note, Reason
from trainshed.model.states import OutputStatus, State
from trainshed.policy.budget import charge
from trainshed.policy.migration import Consequence, backoff, recheck
from trainshed.store import attempts, providers, queue, scripts
from trainshed.store.attempts import End
from trainshed.store.database import Connection
from trainshed.store.script_records import ScriptAttempt

_UNKNOWN_RESET_SECONDS = 3600.0


class Losses:
    """Records losses, with what they mean for the provider. Thread-safe."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground

    def before_start(
        self,
        look: Look,
        attempt: ScriptAttempt,
        what: Consequence,
        said: str,
        error: ProviderError | None = None,
        *,
        state: AttemptState = AttemptState.REJECTED,
    ) -> None:
        """An Attempt that certainly did not start: PREPARING -> QUEUED, or the Job is over."""
        now = self._ground.clock()
        sentence = f"{attempt.provider}: {said}".rstrip(".") + "."

        def store(connection: Connection) -> None:
            here = locked_look(connection, look.trial.id, now)
            if here is None:
                return
            blame(connection, attempt.provider, what, said, error, now)
            if what.fails:
                self._over(connection, here, attempt, what, sentence)
                return
            # One that is not tried again for this Job gives no reason to wait.
            wait = 0.0 if what.excluded else backoff(here.script.placements, self._ground.work.retry_seconds)
            values = {"launch_failures": here.trial.launch_failures + 1}
            step = (State.PREPARING, State.QUEUED, str(what.reason).upper(), sentence)
            if not move(connection, here, step, values=values, at=now):
                # A stop came first: it needs to know that there is nothing to stop.
                close_attempt(connection, attempt, state, at=now, message=said)
                return
            close_attempt(connection, attempt, state, at=now, message=said)
            end_attempt(connection, here, attempt, now, "not_started", said)
            later = now + wait if wait else None
            changes: dict[str, Any] = {"provider": None, "not_before": later, "waiting_since": now}
            if what.excluded:
                changes["excluded"] = json.dumps({**here.script.excluded_providers, attempt.provider: said})
                scripts.note(
                    connection,
                    look.trial.id,
                    Note.PROVIDER_EXCLUDED,
                    f"{attempt.provider} is not tried again for this Job: {said}",
                    at=now,
                    values=changes,
                )
            again = f"Another place is looked for{f' in {wait:g} s' if wait else ''}."
            scripts.note(connection, look.trial.id, Note.RETRY_SCHEDULED, again, at=now, values=changes)

        self._ground.database.write(store)

    @staticmethod
    def _over(
        connection: Connection, here: Look, attempt: ScriptAttempt, what: Consequence, sentence: str
    ) -> None:
        values = {
            "output_status": OutputStatus.NONE,
            "error_code": str(what.reason).upper(),
            "error_message": sentence,
        }
        step = (State.PREPARING, State.FAILED, str(what.reason).upper(), sentence)
        made = move(connection, here, step, values=values, at=here.now)
        close_attempt(connection, attempt, AttemptState.REJECTED, at=here.now, message=sentence)
        if made:
            end_attempt(connection, here, attempt, here.now, "not_started", sentence)
            scripts.change(
                connection,
                here.trial.id,
                {"failure_kind": str(FailureKind.PROVIDER_ERROR), "message": sentence},
            )


def end_attempt(
    connection: Connection,
    look: Look,
    attempt: ScriptAttempt,
    at: float,
    how: str,
    said: str,
    exit_code: int | None = None,
) -> None:
    """Close the Attempt in the books of all engines, and make what it holds due for release.

    The time of this server's own GPUs is charged with it: at every moment it is reserved or used (P5).
    """
    attempts.end_all(connection, [End(attempt.attempt_id, at, how, said, exit_code)])
    held = look.held
    if held is None or held.attempt_id != attempt.attempt_id:
        return
    attempts.let_go(connection, [held.id])
    if used := charge(held.gpus, held.timeout_seconds, attempt.started_at, at):
        queue.charge(connection, look.trial.project_id, used)


def blame(
    connection: Connection,
    provider: str,
    what: Consequence,
    said: str,
    error: ProviderError | None,
    now: float,
) -> None:
    """What an error means for the provider, whatever Job met it. One Job's own fault means nothing (g.7)."""
    known = providers.state_of(connection, provider)
    failures = (known.failures if known else 0) + 1
    if what.cools_down:
        pause = max(error.retry_after or 0.0 if error else 0.0, recheck(failures))
        values = {"cooldown_until": now + pause, "failures": failures, "message": said}
        providers.change_state(connection, provider, values)
    elif what.exhausted:
        resets = error.resets_at if isinstance(error, QuotaExhausted) else None
        until = resets if resets is not None and resets > now else now + _UNKNOWN_RESET_SECONDS
        providers.change_state(connection, provider, {"exhausted_until": until})
    elif what.logged_out:
        values = {"health": "auth_required", "message": said, "checked_at": now}
        providers.change_state(connection, provider, values)


def reason_of(error: ProviderError, *, started: bool) -> Reason:
    """Why a Job left where it ran, by what its provider answered."""
    if error.code == "quota_exhausted":
        return Reason.QUOTA_EXHAUSTED
    return Reason.SESSION_LOST if started else Reason.LOST_BEFORE_START
