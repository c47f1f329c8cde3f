"""COLLECT and the end: what a run wrote becomes Artifacts, and its Job is over (sections b, i)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import structlog

from trainshed.content.blobs import BlobError
from trainshed.content.outputs import Collection, CollectionCancelled, CollectLimits, collect
from trainshed.control import metrics
from trainshed.control.crashpoints import Point, reach
from trainshed.control.finishing import ArtifactBatch
from trainshed.control.scripts.checkpoints import Checkpoints
from trainshed.control.scripts.fetching import Fetcher, Written
from trainshed.control.scripts.ground import Ground, Look, close_attempt, locked_look, move, run_of
from trainshed.control.scripts.losing import end_attempt
from trainshed.control.scripts.watching import Watcher
from trainshed.engines.providers.contract import Provider, ProviderError, RemoteNotFound, Run
from trainshed.model.errors import Refusal
from trainshed.model.globs import OutputPatterns
from trainshed.model.scripts.states import LIVE_ATTEMPTS, AttemptState, FailureKind, Note, Reason, Word
from trainshed.model.states import OutputStatus, State
from trainshed.model.words import counted
from trainshed.policy.migration import UNCONFIRMED_SECONDS
from trainshed.store import jobs, queue, script_attempts, scripts
from trainshed.store.database import Connection
from trainshed.store.script_records import ScriptAttempt

OUTPUTS = "outputs"
_COUNTED = 100_000
_ENDS: dict[str, tuple[State, Reason]] = {
    AttemptState.SUCCEEDED: (State.SUCCEEDED, Reason.COMPLETED),
    AttemptState.FAILED: (State.FAILED, Reason.SCRIPT_FAILED),
    AttemptState.LOST: (State.FAILED, Reason.INTERACTIVE_LOST),
    AttemptState.ABANDONED: (State.FAILED, Reason.INTERACTIVE_LOST),
    AttemptState.CANCELLED: (State.CANCELLED, Reason.REMOTE_CANCELLED),
}
_FAILURES = {
    Reason.SCRIPT_FAILED: FailureKind.USER_ERROR,
    Reason.INTERACTIVE_LOST: FailureKind.PROVIDER_ERROR,
}

log = structlog.get_logger(__name__)


class Ender:
    """Ends Jobs. Thread-safe for different Trials."""

    def __init__(self, ground: Ground, watcher: Watcher, checkpoints: Checkpoints, fetcher: Fetcher) -> None:
        self._ground = ground
        self._watcher = watcher
        self._checkpoints = checkpoints
        self._fetcher = fetcher

    def finish(self, look: Look) -> bool:
        """COLLECTING -> the end; whether it came to that."""
        attempt = look.last
        assert attempt is not None  # noqa: S101 - without an Attempt nothing is collected
        written = self._fetcher.files_of(attempt)
        if written is None and not self._fetcher.gave_up(attempt.attempt_id, patient=True):
            return False
        found = self._collect(look, attempt, written, CollectLimits())
        if found is None:
            return False
        state, reason = _ENDS[attempt.state]
        if look.script.word == Word.MIGRATING:
            reason = Reason.LATE_RESULT
        self._close(look, attempt, found, state, reason, fetched=written is not None)
        return True

    def gather(self, look: Look) -> int | None:
        """Bring what a run wrote by now, as somebody asked; how many outputs there are.

        ``None``: it must be tried again. Nothing that was kept before is let go.
        """
        attempt = look.last
        written = self._fetcher.files_of(attempt) if attempt is not None else None
        there = written is not None and (written.root / OUTPUTS).is_dir()
        if there and self._collect(look, attempt, written, CollectLimits()) is None:
            return None
        with self._ground.database.read() as connection:
            return len(jobs.list_artifacts(connection, look.trial.id, limit=_COUNTED))

    # STOPPING

    def stop(self, look: Look) -> bool:
        """Have it end, wait for the proof within a bound, keep what it wrote; whether it is over (b, a.5)."""
        attempt = look.last
        if attempt is None or attempt.state not in LIVE_ATTEMPTS:
            return self._stopped(look, attempt)
        provider = self._ground.providers.get(attempt.provider)
        if provider is not None:
            try:
                self._cancel(look, attempt, provider)
            except ProviderError as error:
                log.warning("a run cannot be cancelled now", attempt=attempt.key, reason=error.message)
        with self._ground.database.read() as connection:
            mine = script_attempts.attempts_of(connection, [look.trial.id])[look.trial.id][-1]
        if mine.state not in LIVE_ATTEMPTS:
            return True
        since = look.trial.stop_accepted_at or look.now
        if provider is None or look.now - since > UNCONFIRMED_SECONDS:
            said = f"{attempt.provider} does not confirm that it stopped; it is cancelled until it does."
            self._note_end(look, attempt, AttemptState.ABANDONED, said, note=Note.ATTEMPT_ABANDONED)
            return True
        return False

    def _cancel(self, look: Look, attempt: ScriptAttempt, provider: Provider) -> None:
        run = run_of(attempt)
        if run is None and provider.capabilities().named_by_attempt:
            # The engine remembers a stop of what it never heard of, and then never starts it.
            provider.cancel(Run(attempt.attempt_id))
            self._note_end(look, attempt, AttemptState.CANCELLED, "Stopped before it began.")
            return
        if run is None and provider.capabilities().lookup_by_key:
            run = provider.lookup_by_key(attempt.key)
            if run is None:
                self._note_end(look, attempt, AttemptState.REJECTED, "The provider never had it.")
                return
            values: dict[str, Any] = {"remote_ref": run.ref, "url": run.url, "submitted_at": look.now}
            values["state"] = str(AttemptState.SUBMITTED)
            self._ground.database.write(
                lambda connection: script_attempts.change_attempt(connection, attempt.attempt_id, values)
            )
        if run is None:
            return
        try:
            provider.cancel(run)
        except RemoteNotFound:
            self._note_end(look, attempt, AttemptState.LOST, "The provider does not know it any more.")
            return
        reach(Point.SCRIPT_AFTER_CANCEL)
        with self._ground.database.read() as connection:
            mine = script_attempts.attempts_of(connection, [look.trial.id])[look.trial.id][-1]
        self._watcher.watch(look, mine)

    def _note_end(
        self, look: Look, attempt: ScriptAttempt, state: AttemptState, said: str, *, note: Note | None = None
    ) -> None:
        now = self._ground.clock()

        def store(connection: Connection) -> None:
            here = locked_look(connection, look.trial.id, now)
            live = here.live if here else None
            if live is None or live.attempt_id != attempt.attempt_id:
                return
            close_attempt(connection, live, state, at=now, message=said)
            if note is not None:
                scripts.note(connection, look.trial.id, note, said, at=now, level="warning")

        self._ground.database.write(store)

    def _stopped(self, look: Look, attempt: ScriptAttempt | None) -> bool:
        written, limits = (
            None,
            CollectLimits(
                max_bytes=self._ground.policy.collect_bytes,
                deadline_seconds=self._ground.policy.collect_seconds,
            ),
        )
        if attempt is not None and attempt.started_at is not None:
            written = self._fetcher.files_of(attempt)
            if written is None and not self._fetcher.gave_up(attempt.attempt_id):
                return False
        found = self._collect(look, attempt, written, limits)
        if found is None:
            return False
        unsure = attempt is not None and attempt.state == AttemptState.ABANDONED
        reason = Reason.CANCEL_UNCONFIRMED if unsure else Reason.CANCELLED
        self._close(look, attempt, found, State.CANCELLED, reason, fetched=written is not None)
        return True

    # Both

    def _collect(
        self, look: Look, attempt: ScriptAttempt | None, written: Written | None, limits: CollectLimits
    ) -> Collection | None:
        """What it wrote, as Artifacts; ``None`` where it has to be done again."""
        if written is None or attempt is None:
            return Collection()
        ground = self._ground
        batch = ArtifactBatch(ground.database, ground.blobs, ground.ids, ground.clock, look.trial)
        hurried = self._hurried(look)
        try:
            found = collect(
                written.root,
                OutputPatterns((f"{OUTPUTS}/**",)),
                {},
                ground.blobs,
                limits,
                on_file=batch.add,
                cancelled=lambda: ground.closing.is_set() or hurried(),
            )
            batch.flush()
        except CollectionCancelled:
            return None
        except Refusal as refusal:
            if refusal.code != "BLOB_BEING_DELETED":
                raise
            return None
        try:
            self._checkpoints.bring(look, attempt, written.checkpoints)
        except (BlobError, OSError) as error:
            log.warning("a last checkpoint cannot be kept", trial=look.trial.id, reason=str(error))
        return found

    def _hurried(self, look: Look) -> Callable[[], bool]:
        """Whether a stop came that bounds the rest: collecting begins again then."""
        if look.trial.state is State.STOPPING:
            return lambda: False

        def stopped() -> bool:
            with self._ground.database.read() as connection:
                trial = queue.by_id(connection, [look.trial.id]).get(look.trial.id)
            return trial is not None and trial.state is State.STOPPING

        return stopped

    def _close(
        self,
        look: Look,
        attempt: ScriptAttempt | None,
        found: Collection,
        state: State,
        reason: Reason,
        *,
        fetched: bool,
    ) -> None:
        now = self._ground.clock()
        said = _sentence(look, attempt, reason)
        code = str(reason).upper()
        status = OutputStatus(found.status.value)
        values: dict[str, Any] = {
            "output_status": status,
            "output_problems": _problems(found),
            "exit_code": attempt.exit_code if attempt else None,
            "error_code": code if state is State.FAILED else None,
            "error_message": said if state is State.FAILED else None,
        }

        def store(connection: Connection) -> bool:
            here = locked_look(connection, look.trial.id, now)
            if here is None:
                return False
            if not move(connection, here, (look.trial.state, state, code, said), values=values, at=now):
                return False
            if attempt is not None:
                _close_books(connection, here, attempt, now)
            count = len(jobs.list_artifacts(connection, look.trial.id, limit=_COUNTED))
            changes: dict[str, Any] = {"outputs_count": count, "message": said}
            if state is State.FAILED and reason in _FAILURES:
                changes["failure_kind"] = str(_FAILURES[reason])
            scripts.change(connection, look.trial.id, changes)
            if attempt is not None and attempt.started_at is not None and not fetched:
                text = f"What it wrote could not be brought from {attempt.provider}; `gpu fetch` tries again."
                scripts.note(connection, look.trial.id, Note.FETCH_FAILED, text, at=now, level="warning")
            elif count and state is not State.SUCCEEDED:
                kept = f"{counted(count, 'file')} that it wrote {'is' if count == 1 else 'are'} kept."
                scripts.note(connection, look.trial.id, Note.OUTPUTS_KEPT, kept, at=now)
            reach(Point.SCRIPT_END_BEFORE_COMMIT)
            return True

        if self._ground.database.write(store):
            metrics.ends.labels(status=state.value, code=code).inc()
        reach(Point.SCRIPT_END_AFTER_COMMIT)


def _close_books(connection: Connection, look: Look, attempt: ScriptAttempt, now: float) -> None:
    """End the Attempt, and have what it holds released."""
    ended = attempt.ended_at or now
    how = "exit" if attempt.exit_code is not None else attempt.state
    end_attempt(connection, look, attempt, ended, how, attempt.message or "", attempt.exit_code)


def _sentence(look: Look, attempt: ScriptAttempt | None, reason: Reason) -> str:
    if reason is Reason.CANCELLED:
        return "Cancelled; what it wrote until then is kept." if attempt else "Cancelled."
    if reason is Reason.CANCEL_UNCONFIRMED:
        return "Cancelled, although the provider does not confirm that the run ended."
    return (attempt.message if attempt else None) or look.script.message or "It has ended."


def _problems(found: Collection) -> str | None:
    if not found.problems:
        return None
    listed = [{"name": p.name, "code": p.code.value, "message": p.message} for p in found.problems]
    if found.problems_not_shown:
        more = f"{found.problems_not_shown} more outputs have problems"
        listed.append({"name": "...", "code": "OUTPUT_MORE_PROBLEMS", "message": more})
    return json.dumps(listed)
