"""Runs that have to go: they took longer than declared, their session ends, or they are gone (c.4, g.9).

A run is asked to save, and stopped when it did or its time is over. Then its checkpoints are taken in, and
the Job is routed again. What was asked and when is a note; everything else follows from the rows.
"""

from __future__ import annotations

from pathlib import Path

import structlog

from trainshed.content.blobs import BlobError
from trainshed.control.crashpoints import Point, reach
from trainshed.control.scripts.checkpoints import Checkpoints
from trainshed.control.scripts.fetching import Fetcher
from trainshed.control.scripts.ground import Ground, Look, close_attempt, locked_look, move, run_of
from trainshed.control.scripts.losing import end_attempt
from trainshed.control.scripts.routing import RoutePlanner, left_to_do
from trainshed.control.scripts.watching import Watcher
from trainshed.engines.providers.contract import ProviderError, RemoteNotFound
from trainshed.model.scripts.states import LIVE_ATTEMPTS, AttemptState, Note, Reason, Word
from trainshed.model.states import State
from trainshed.policy import approval
from trainshed.policy.approval import Rule
from trainshed.policy.migration import (
    ASK_SECONDS,
    UNCONFIRMED_SECONDS,
    backoff,
    handoff_at,
    must_leave,
    quota_ends_first,
)
from trainshed.policy.routing.snapshot import need_of
from trainshed.store import script_attempts, script_work, scripts
from trainshed.store.database import Connection
from trainshed.store.script_records import ScriptAttempt, ScriptEvent

_OVERRAN = "It runs longer than it declared."
_SESSION = "Its session ends soon."

log = structlog.get_logger(__name__)


class Leaver:
    """Has runs go. Thread-safe for different Trials."""

    def __init__(
        self,
        ground: Ground,
        planner: RoutePlanner,
        watcher: Watcher,
        checkpoints: Checkpoints,
        fetcher: Fetcher,
    ) -> None:
        self._ground = ground
        self._planner = planner
        self._watcher = watcher
        self._checkpoints = checkpoints
        self._fetcher = fetcher

    def check(self, look: Look, attempt: ScriptAttempt) -> None:
        """Ask a run that has to go to save; have it leave once it did, or takes too long."""
        quota = self._quota_ends(look, attempt)
        why = self._why(look, attempt, quota_ends=quota)
        if why is None:
            self._note_no_handoff(look, attempt, quota_ends=quota)
            return
        because = _OVERRAN if why is Reason.HOURS_EXCEEDED else _ending(attempt.provider, quota=quota)
        with self._ground.database.read() as connection:
            asked = script_work.note_of(connection, look.trial.id, Note.HANDOFF_REQUESTED, attempt.number)
            saved = script_attempts.checkpoints_of(connection, look.trial.id)
        if asked is None:
            asked = self._ask(look, attempt, because)
        new = any(each.attempt == attempt.number and each.saved_at >= asked.at for each in saved)
        told = not asked.message.endswith(_UNTOLD)
        if told and not new and look.now - asked.at <= ASK_SECONDS:
            return
        now = self._ground.clock()

        def store(connection: Connection) -> None:
            here = locked_look(connection, look.trial.id, now)
            if here is None or here.trial.state not in {State.RUNNING, State.CHECKPOINTING}:
                return
            kept = "Its newest checkpoint is kept." if new else "No newer checkpoint was made."
            said = f"{because} {kept}"
            move(connection, here, (here.trial.state, State.MIGRATING, str(why).upper(), said), at=now)

        self._ground.database.write(store)

    def _note_no_handoff(self, look: Look, attempt: ScriptAttempt, *, quota_ends: bool) -> None:
        """Say once of a run whose session or quota ends soon that it stays there until then (g.9)."""
        _, session = self._limits(look, attempt)
        if attempt.started_at is None:
            return
        over = session is not None and look.now >= handoff_at(attempt.started_at, session)
        if not (over or quota_ends):
            return
        with self._ground.database.read() as connection:
            if script_work.note_of(connection, look.trial.id, Note.HANDOFF_SKIPPED, attempt.number):
                return
        now = self._ground.clock()
        ends = _ending(attempt.provider, quota=quota_ends).rstrip(".")
        said = f"{ends}, and it could not go on from a checkpoint elsewhere."
        self._ground.database.write(
            lambda c: scripts.note(c, look.trial.id, Note.HANDOFF_SKIPPED, said, at=now, level="warning")
        )

    def due(self, look: Look, attempt: ScriptAttempt) -> float | None:
        """When, by what is known now, the run will have to go (Unix seconds)."""
        if attempt.started_at is None:
            return None
        limit, session = self._limits(look, attempt)
        moments = [] if limit is None else [attempt.started_at + limit - look.script.ran_seconds]
        return min(moments + ([] if session is None else [attempt.started_at + session]), default=None)

    def _limits(self, look: Look, attempt: ScriptAttempt) -> tuple[float | None, float | None]:
        spec, script = look.spec, look.script
        limit = approval.overrun_after(
            look.policy, script.source, attempt.provider, spec.declared_hours, interactive=spec.interactive
        )
        if script.overrun_approved or look.approved_by(Rule.OVERRUN):
            limit = None  # a person let it go on to its end
        provider = self._ground.providers.get(attempt.provider)
        hours = provider.capabilities().max_session_hours if provider else None
        session = None if hours is None else hours * 3600.0
        held = look.held
        if limit is None and held is not None and held.timeout_seconds < look.trial.timeout_seconds:
            session = float(held.timeout_seconds)  # a budget gave it an end, which is no overrun
        return limit, session

    def _quota_ends(self, look: Look, attempt: ScriptAttempt) -> bool:
        """Whether what is left at its provider ends before the Job does, and soon."""
        now, name = look.now, attempt.provider
        with self._ground.database.read() as connection:
            quota = self._planner.quota(connection, name, now)
            if quota is None:
                return False
            running = script_work.busy(connection)[name]
        needed = need_of(look.spec, left_fraction=left_to_do(look)).hours
        return quota_ends_first(quota.left_hours, needed, running, now, quota.resets_at)

    def _why(self, look: Look, attempt: ScriptAttempt, *, quota_ends: bool) -> Reason | None:
        provider = self._ground.providers.get(attempt.provider)
        if attempt.started_at is None or provider is None:
            return None
        limit, session = self._limits(look, attempt)
        keeps = look.spec.checkpoint_interval_min > 0 and not look.spec.interactive
        return must_leave(
            look.now,
            started_at=attempt.started_at,
            ran_before=look.script.ran_seconds,
            limit=limit,
            session_seconds=session,
            can_resume=keeps and provider.capabilities().resume,
            quota_ends=quota_ends,
        )

    def _ask(self, look: Look, attempt: ScriptAttempt, because: str) -> ScriptEvent:
        """Ask for a checkpoint, and note it; the note says also where nobody could be asked."""
        provider, run = self._ground.providers.get(attempt.provider), run_of(attempt)
        told = False
        if run is not None and provider is not None:
            try:
                told = provider.request_checkpoint(run)
            except ProviderError as error:
                log.warning("a run cannot be asked to save", run=run.ref, reason=error.message)
        reach(Point.SCRIPT_AFTER_ASK)
        now = self._ground.clock()
        said = f"{because} " + (
            f"It is asked to save, within {ASK_SECONDS / 60:g} minutes." if told else f"It {_UNTOLD}"
        )

        def store(connection: Connection) -> ScriptEvent | None:
            scripts.note(connection, look.trial.id, Note.HANDOFF_REQUESTED, said, at=now)
            return script_work.note_of(connection, look.trial.id, Note.HANDOFF_REQUESTED, attempt.number)

        noted = self._ground.database.write(store)
        assert noted is not None  # noqa: S101 - it was just written
        return noted

    # MIGRATING

    def overran(self, look: Look) -> bool:
        """Whether it leaves because it ran longer than it declared, and has left."""
        if look.last is None or look.last.state in LIVE_ATTEMPTS:
            return False
        with self._ground.database.read() as connection:
            why = script_work.entered(connection, look.trial.id, Word.MIGRATING)
        return why is not None and why.reason == Reason.HOURS_EXCEEDED

    def leave(self, look: Look) -> bool:
        """Stop what still runs, take in what it saved, and queue the Job again; whether that is done."""
        attempt = look.last
        if attempt is None:
            return True
        if attempt.state in LIVE_ATTEMPTS:
            self._urge(look, attempt)
            return False
        if not self._take_in(look, attempt):
            return False
        now = self._ground.clock()

        def store(connection: Connection) -> None:
            here = locked_look(connection, look.trial.id, now)
            if here is None or here.trial.state is not State.MIGRATING:
                return
            why = script_work.entered(connection, look.trial.id, Word.MIGRATING)
            planned = why is not None and why.reason in {Reason.HANDOFF, Reason.HOURS_EXCEEDED}
            said = "Another place is looked for."
            step = (State.MIGRATING, State.QUEUED, "RESUMING", said)
            if not move(connection, here, step, at=now):
                return
            end_attempt(connection, here, attempt, attempt.ended_at or now, "lost", attempt.message or "")
            first = self._ground.work.retry_seconds
            wait = 0.0 if planned else backoff(self._losses_in_a_row(here), first)
            values = {"provider": None, "not_before": now + wait if wait else None, "waiting_since": now}
            if wait:
                said = f"Another place is looked for in {wait:g} s."
                scripts.note(
                    connection, look.trial.id, Note.RETRY_SCHEDULED, said, at=now, values=dict(values)
                )
            scripts.change(connection, look.trial.id, values)

        self._ground.database.write(store)
        return True

    @staticmethod
    def _losses_in_a_row(look: Look) -> int:
        """Counted from the newest Attempt that saved something."""
        return max(1, look.script.accepted_attempts - look.script.free_attempts)

    def _urge(self, look: Look, attempt: ScriptAttempt) -> None:
        provider, run = self._ground.providers.get(attempt.provider), run_of(attempt)
        if provider is not None and run is not None:
            try:
                provider.cancel(run)
                reach(Point.SCRIPT_AFTER_OVERRUN_STOP)
            except RemoteNotFound:
                pass  # its status says so too
            except ProviderError as error:
                log.warning("a run cannot be stopped now", run=run.ref, reason=error.message)
            self._watcher.watch(look, attempt)
        with self._ground.database.read() as connection:
            since = script_work.entered(connection, look.trial.id, Word.MIGRATING)
        if since is not None and look.now - since.at > UNCONFIRMED_SECONDS:
            self._abandon(look, attempt)

    def _abandon(self, look: Look, attempt: ScriptAttempt) -> None:
        """Go on without a proof that it has ended: it is cancelled again when its release is proved."""
        now = self._ground.clock()

        def store(connection: Connection) -> None:
            here = locked_look(connection, look.trial.id, now)
            live = here.live if here else None
            if here is None or live is None or live.attempt_id != attempt.attempt_id:
                return
            said = f"{live.provider} does not confirm that it stopped; it is cancelled until it does."
            close_attempt(connection, live, AttemptState.ABANDONED, at=now, message=said)
            ran = now - live.started_at if live.started_at else 0.0
            values = {"ran_seconds": here.script.ran_seconds + ran}
            scripts.note(
                connection,
                look.trial.id,
                Note.ATTEMPT_ABANDONED,
                said,
                at=now,
                level="warning",
                values=values,
            )

        self._ground.database.write(store)

    def _take_in(self, look: Look, attempt: ScriptAttempt) -> bool:
        """Its checkpoints, as far as they can be had; whether nothing is to be waited for."""
        found = self._fetcher.files_of(attempt)
        if found is None:
            return self._fetcher.gave_up(attempt.attempt_id)
        return self.take_in(look, attempt, found.checkpoints)

    def take_in(self, look: Look, attempt: ScriptAttempt, store: Path) -> bool:
        """Bring what is new in a run's store here; whether that is done."""
        try:
            self._checkpoints.bring(look, attempt, store)
        except (BlobError, OSError) as error:
            log.warning("a checkpoint cannot be kept now", trial=look.trial.id, reason=str(error))
            return False
        return True


def _ending(provider: str, *, quota: bool) -> str:
    return f"What is left of the hours at {provider} ends soon." if quota else _SESSION


_UNTOLD = "cannot be asked to save."
