"""WATCH: how a run goes, by its provider's word and its log (sections b, f, g.6, k.5).

What was read of a log is stored in one transaction with what it said: no line is lost, none counts twice.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import structlog

from trainshed.control.crashpoints import Point, reach
from trainshed.control.scripts.ground import Ground, Look, close_attempt, locked_look, look_at, move, run_of
from trainshed.control.scripts.heard import Heard, known_progress, listen, progress_values
from trainshed.control.scripts.hiding import masker
from trainshed.control.scripts.losing import Losses, blame
from trainshed.engines.providers.contract import (
    ENDED,
    AuthRequired,
    LogChunk,
    Phase,
    Provider,
    ProviderError,
    RemoteNotFound,
    Run,
    Status,
    Unavailable,
)
from trainshed.engines.providers.framelog import LineLog
from trainshed.model.scripts.spec import OWN_ENGINES
from trainshed.model.scripts.states import AttemptState, Note, Reason, Word
from trainshed.model.states import State
from trainshed.policy.migration import (
    CONSEQUENCES,
    ENVIRONMENT_FAILED,
    STALLED_SECONDS,
    UNREACHABLE_LOST_SECONDS,
    UNREACHABLE_NOTE_SECONDS,
    Consequence,
    End,
    Ending,
    Verdict,
    judge_end,
)
from trainshed.store import attempts, script_attempts, script_work, scripts
from trainshed.store.attempts import Start
from trainshed.store.database import Connection
from trainshed.store.script_records import ScriptAttempt

_MOST_CHUNKS = 50
"""Of a log that is read in one pass; the rest follows at once."""
_RUNNING = frozenset({State.RUNNING, State.CHECKPOINTING})
_SLEEP_FACTOR = 3.0
"""A pause between two looks that is so much longer than it should be was a sleep of this machine (k.5)."""
_LOOK_SECONDS = 10.0
"""Between two looks for a provider that is not there."""
_DRIVER_SHARE = 0.9
"""A driver shows somewhat less than what a card is sold with."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far a log was read: the provider's own mark, and where the copy of it here ends."""

    mark: str | None = None
    kept: int = 0
    """Bytes, of a run that is elsewhere."""
    finished: bool = False
    declared: bool = False
    worth: int = 0
    """How progress was learnt so far (`trainshed.model.scripts.wire.Progress`)."""

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, text: str | None) -> Cursor:
        return cls(**json.loads(text)) if text else cls()


@dataclass(frozen=True, slots=True)
class _Seen:
    """One look at a run."""

    status: Status
    lines: Sequence[str]
    cursor: Cursor
    more: bool
    """Whether the log goes on beyond what was read."""


class Watcher:
    """Looks at runs. Thread-safe for different Trials."""

    def __init__(self, ground: Ground, losses: Losses) -> None:
        self._ground = ground
        self._losses = losses
        self._tried: dict[str, float] = {}
        self._guard = threading.Lock()

    def watch(self, look: Look, attempt: ScriptAttempt) -> bool:
        """Look at a run that was submitted, and store what is new; whether to look again at once.

        Of one that has ended, the Attempt says so afterwards; its Job is left to whoever ends it.
        """
        provider, run = self._ground.providers.get(attempt.provider), run_of(attempt)
        if run is None:
            return False
        if provider is None:
            gone = Unavailable(f"this server has no provider {attempt.provider} any more")
            self._unreachable(look, attempt, _LOOK_SECONDS, gone)
            return False
        try:
            seen = self._look(provider, run, attempt, masker(self._ground, look, attempt.provider))
        except RemoteNotFound as error:
            seen = _Seen(Status(Phase.LOST, message=error.message), (), Cursor.of(attempt.cursor), more=False)
        except ProviderError as error:
            self._unreachable(look, attempt, provider.capabilities().poll_interval_s, error)
            return False
        with self._guard:
            self._tried[attempt.attempt_id] = self._ground.clock()
        if seen.status.phase is Phase.PENDING and self._too_long(look, attempt, provider, run):
            return True
        return self._store(look, attempt, seen)

    def forget_all_but(self, attempt_ids: set[str]) -> None:
        """When runs were looked at last is of no use once they ended."""
        with self._guard:
            self._tried = {key: at for key, at in self._tried.items() if key in attempt_ids}

    # The provider

    def _look(
        self, provider: Provider, run: Run, attempt: ScriptAttempt, mask: Callable[[str], str]
    ) -> _Seen:
        """The status first: what it ended with is certain before the last lines are read."""
        status = provider.status(run)
        status = replace(status, message=mask(status.message))
        cursor = Cursor.of(attempt.cursor)
        lines: list[str] = []
        if status.phase is Phase.PENDING or cursor.finished:
            return _Seen(status, lines, cursor, more=False)
        mark, finished = cursor.mark, False
        for _ in range(_MOST_CHUNKS):
            chunk = self._read(provider, run, mark, status)
            lines += map(mask, chunk.lines)
            finished, stuck = chunk.finished, chunk.cursor == mark
            mark = chunk.cursor
            if finished or stuck or not chunk.lines:
                break
        else:
            return _Seen(status, lines, self._keep(attempt, cursor, mark, lines, finished=False), more=True)
        return _Seen(status, lines, self._keep(attempt, cursor, mark, lines, finished=finished), more=False)

    @staticmethod
    def _read(provider: Provider, run: Run, mark: str | None, status: Status) -> LogChunk:
        try:
            return provider.logs(run, mark)
        except RemoteNotFound:
            if status.phase in ENDED:
                return LogChunk((), mark or "", finished=True)
            raise
        except ProviderError:
            if status.phase in ENDED:
                # The end is known; the rest of its log may never come, and no Job waits for it for ever.
                log.warning("the end of a log cannot be read", run=run.ref)
                return LogChunk((), mark or "", finished=True)
            raise

    def _keep(
        self,
        attempt: ScriptAttempt,
        before: Cursor,
        mark: str | None,
        lines: Sequence[str],
        *,
        finished: bool,
    ) -> Cursor:
        """Keep the lines of a run that is elsewhere; what a crash left behind the cursor is dropped."""
        if attempt.provider in OWN_ENGINES:
            return replace(before, mark=mark, finished=finished)
        kept, at = before.kept, int(self._ground.clock() * 1e9)
        copy = self.copy_of(attempt)
        if lines:
            kept = copy.append(lines, begins_at=kept, at_ns=at)
        if finished:
            kept = copy.end(begins_at=kept, at_ns=at)
        return replace(before, mark=mark, kept=kept, finished=finished)

    def copy_of(self, attempt: ScriptAttempt) -> LineLog:
        """Where the log of a run that is elsewhere is kept here."""
        return LineLog(log_folder(self._ground, attempt))

    # What follows

    def _store(self, look: Look, attempt: ScriptAttempt, seen: _Seen) -> bool:
        now = self._ground.clock()
        known = known_progress(
            look.script.progress,
            look.script.metrics,
            declared=seen.cursor.declared,
            worth=seen.cursor.worth,
        )
        heard = listen(seen.lines, known, saves=look.trial.state is State.CHECKPOINTING)
        cursor = replace(seen.cursor, declared=heard.progress.declared, worth=heard.progress.worth)

        def store(connection: Connection) -> None:
            here = locked_look(connection, look.trial.id, now)
            live = here.live if here else None
            if here is None or live is None or live.attempt_id != attempt.attempt_id:
                return
            self._note_reached(connection, here, live, now)
            changes: dict[str, Any] = {"cursor": cursor.text(), "seen_at": now}
            changes |= {"lines": live.lines + len(seen.lines), "unreachable_seconds": 0.0}
            if heard.exit is not None:
                changes |= {"exit_code": heard.exit.code, "message": heard.exit.message or None}
            state = here.trial.state
            started = _began(seen, heard, live, now)
            if started is not None and live.started_at is None:
                changes |= {"started_at": started, "state": str(AttemptState.RUNNING)}
                attempts.start_all(connection, [Start(attempt.attempt_id, started, {})])
                state = self._started(connection, here, attempt, started, now)
            small = self._device(connection, here, live, seen, heard, changes, now)
            script_attempts.change_attempt(connection, attempt.attempt_id, changes)
            if seen.lines:
                scripts.change(connection, look.trial.id, progress_values(heard.progress))
            self._saves(connection, here, state, heard, now)
            if seen.status.phase in ENDED and not seen.more:
                self._ended(connection, here, live, seen, heard, now)
            elif small and state in _RUNNING:
                said = "Its GPU has less memory than the Job needs; another place is looked for."
                now_in = State.CHECKPOINTING if heard.saving and heard.saving[-1] else state
                move(connection, here, (now_in, State.MIGRATING, "SESSION_LOST", said), at=now)
            reach(Point.SCRIPT_WATCH_BEFORE_COMMIT)

        self._ground.database.write(store)
        reach(Point.SCRIPT_WATCH_AFTER_COMMIT)
        return seen.more

    @staticmethod
    def _started(
        connection: Connection, here: Look, attempt: ScriptAttempt, started: float, now: float
    ) -> State:
        """PREPARING -> RUNNING; the state after it."""
        if here.trial.state is not State.PREPARING:
            return here.trial.state
        simulated = " (simulated)" if here.held is not None and here.held.simulated else ""
        gpu = f", {here.script.gpu}{simulated}" if here.script.gpu else ""
        said = f"Started on {attempt.provider}{gpu}."
        values: dict[str, Any] = {"user_code_started": True}
        if here.trial.started_at is None:
            values["started_at"] = started
        step = (State.PREPARING, State.RUNNING, "STARTED", said)
        made = move(connection, here, step, values=values, at=now, happened_at=started)
        return State.RUNNING if made else here.trial.state

    @staticmethod
    def _saves(connection: Connection, here: Look, state: State, heard: Heard, now: float) -> None:
        """RUNNING <-> CHECKPOINTING, for each save that was heard of."""
        if state not in _RUNNING or not heard.saving:
            return
        steps = []
        for begins in heard.saving:
            before, after = (
                (State.RUNNING, State.CHECKPOINTING) if begins else (State.CHECKPOINTING, State.RUNNING)
            )
            if state is not before:
                continue
            code = Reason.CHECKPOINT_BEGIN if begins else Reason.CHECKPOINT_END
            said = "A checkpoint is being saved." if begins else "The checkpoint is saved."
            steps.append((before, after, str(code).upper(), said))
            state = after
        if steps:
            move(connection, here, *steps, at=now)

    @staticmethod
    def _device(
        connection: Connection,
        here: Look,
        live: ScriptAttempt,
        seen: _Seen,
        heard: Heard,
        changes: dict[str, Any],
        now: float,
    ) -> bool:
        """Compare the accelerator that is there with what was promised; whether it is too small (g.6)."""
        device = heard.device
        name = (device.name if device else None) or seen.status.gpu
        real = name or ("cpu" if device is not None and device.kind == "cpu" else None)
        if real is None or live.gpu_real == real:
            return False
        changes["gpu_real"] = real
        promised, needed = live.gpu_promised, here.spec.vram_gb
        values: dict[str, Any] = {"gpu": real if name else here.script.gpu}
        vram = device.vram_gb if device is not None else None
        small = needed is not None and vram is not None and vram < needed * _DRIVER_SHARE
        if small:
            said = f"it gave {real} with {vram:g} GB where {needed:g} GB are needed"
            values["excluded"] = json.dumps({**here.script.excluded_providers, live.provider: said})
        scripts.change(connection, here.trial.id, values)
        simulated = here.held is not None and here.held.simulated
        if promised is not None and not simulated and (small or not _same_gpu(promised, real)):
            said = f"{live.provider} promised {promised}, and it runs on {real}."
            scripts.note(connection, here.trial.id, Note.GPU_MISMATCH, said, at=now, level="warning")
        return small

    @staticmethod
    def _ended(
        connection: Connection, here: Look, live: ScriptAttempt, seen: _Seen, heard: Heard, now: float
    ) -> None:
        """Note the end on the Attempt and what it means for the Job; who ends the Job reads that."""
        started = _began(seen, heard, live, now)
        verdict = verdict_of(here, live, seen.status, heard, started, now)
        ended = seen.status.finished_at or now
        code = seen.status.exit_code
        code = code if code is not None else heard.exit.code if heard.exit else live.exit_code
        close_attempt(connection, live, verdict.attempt, at=ended, exit_code=code, message=verdict.message)
        ran = max(0.0, ended - started) if started is not None else 0.0
        scripts.change(connection, here.trial.id, {"ran_seconds": here.script.ran_seconds + ran})
        # It may have begun in this very look, so where it stands is read again.
        moved = look_at(connection, here.trial.id, now)
        assert moved is not None  # noqa: S101 - it is locked
        settle(connection, moved, verdict, now)

    def _too_long(self, look: Look, attempt: ScriptAttempt, provider: Provider, run: Run) -> bool:
        """One that does not begin is given up; it is cancelled, and met again it is cancelled again."""
        since, allowed = attempt.submitted_at, provider.capabilities().provision_s
        if since is None or look.now - since <= allowed or look.trial.state is not State.PREPARING:
            return False
        try:
            provider.cancel(run)
        except ProviderError as error:
            log.warning("a run that does not begin cannot be cancelled", run=run.ref, reason=error.message)
        self._losses.before_start(
            look,
            attempt,
            Consequence(Reason.PROVISION_TIMEOUT, cools_down=True),
            f"it did not begin within {allowed / 60:g} minutes",
            state=AttemptState.ABANDONED,
        )
        return True

    def _unreachable(self, look: Look, attempt: ScriptAttempt, usual: float, error: ProviderError) -> None:
        """Count how long nobody answers, while this process runs and the machine is awake (k.5).

        ``usual``: the seconds between two looks.
        """
        now = self._ground.clock()
        with self._guard:
            last = self._tried.get(attempt.attempt_id)
            self._tried[attempt.attempt_id] = now
        passed = 0.0 if last is None else min(max(0.0, now - last), max(60.0, _SLEEP_FACTOR * usual))
        total = attempt.unreachable_seconds + passed

        def store(connection: Connection) -> None:
            here = locked_look(connection, look.trial.id, now)
            live = here.live if here else None
            if here is None or live is None or live.attempt_id != attempt.attempt_id:
                return
            script_attempts.change_attempt(connection, attempt.attempt_id, {"unreachable_seconds": total})
            if attempt.unreachable_seconds <= UNREACHABLE_NOTE_SECONDS < total:
                said = f"{attempt.provider} has not answered for {total / 60:.0f} minutes: {error.message}."
                scripts.note(
                    connection, look.trial.id, Note.STATUS_UNREACHABLE, said, at=now, level="warning"
                )
            if total > UNREACHABLE_LOST_SECONDS:
                self._abandon(connection, here, live, now)

        self._ground.database.write(store)
        if isinstance(error, AuthRequired):
            self._ground.database.write(
                lambda connection: blame(
                    connection, attempt.provider, CONSEQUENCES[error.code], error.message, error, now
                )
            )

    @staticmethod
    def _abandon(connection: Connection, here: Look, live: ScriptAttempt, now: float) -> None:
        hours = UNREACHABLE_LOST_SECONDS / 3600
        said = f"{live.provider} has not answered for {hours:g} hours: the run counts as lost."
        close_attempt(connection, live, AttemptState.ABANDONED, at=now, message=said)
        scripts.note(connection, here.trial.id, Note.ATTEMPT_ABANDONED, said, at=now, level="warning")
        reason = Reason.STATUS_LOST if here.trial.state in _RUNNING else Reason.LOST_BEFORE_START
        ran = now - live.started_at if live.started_at else 0.0
        scripts.change(connection, here.trial.id, {"ran_seconds": here.script.ran_seconds + ran})
        settle(connection, here, Verdict(Ending.LOST, reason, AttemptState.ABANDONED, said), now)

    @staticmethod
    def _note_reached(connection: Connection, here: Look, live: ScriptAttempt, now: float) -> None:
        if live.unreachable_seconds > UNREACHABLE_NOTE_SECONDS:
            said = f"{live.provider} answers again."
            scripts.note(connection, here.trial.id, Note.STATUS_RECOVERED, said, at=now)

    def end_stalled(self, look: Look) -> None:
        """CHECKPOINTING -> RUNNING where the save does not come to an end (b)."""
        now = self._ground.clock()

        def store(connection: Connection) -> None:
            here = locked_look(connection, look.trial.id, now)
            if here is None or here.trial.state is not State.CHECKPOINTING:
                return
            since = script_work.entered(connection, look.trial.id, Word.CHECKPOINTING)
            if since is None or now - since.at <= STALLED_SECONDS:
                return
            said = f"The checkpoint takes more than {STALLED_SECONDS / 60:g} minutes; it is not waited for."
            code = str(Reason.CHECKPOINT_STALLED).upper()
            move(connection, here, (State.CHECKPOINTING, State.RUNNING, code, said), at=now)

        self._ground.database.write(store)


def log_folder(ground: Ground, attempt: ScriptAttempt) -> Path:
    """Where the log of a run that is elsewhere is kept here."""
    return ground.work.logs / attempt.provider / "attempts" / attempt.attempt_id


def _began(seen: _Seen, heard: Heard, live: ScriptAttempt, now: float) -> float | None:
    """When the run began, if it did: one that ended between two looks began when it was submitted (b)."""
    if live.started_at is not None:
        return live.started_at
    status = seen.status
    if status.started_at is not None:
        return status.started_at
    if status.phase is Phase.RUNNING:
        return now
    finished = status.phase in {Phase.SUCCEEDED, Phase.FAILED}
    if finished or seen.lines or heard.exit is not None:
        return live.submitted_at or now
    return None


def verdict_of(
    here: Look, live: ScriptAttempt, status: Status, heard: Heard, started: float | None, now: float
) -> Verdict:
    """What the end of a run means, by all that is known of it."""
    code = status.exit_code
    if code is None:
        code = heard.exit.code if heard.exit else live.exit_code
    ended = status.finished_at or now
    told = (heard.exit.message if heard.exit else "") or live.message or ""
    message = told if told and code == ENVIRONMENT_FAILED else status.message or told
    earlier = [each for each in here.attempts if each.number < live.number]
    progress, phase = heard.progress, status.phase
    if heard.exit is not None and heard.exit.stopped and phase is not Phase.LOST:
        phase = Phase.CANCELLED  # it left because it was told to, whatever its exit code
    elif phase is Phase.LOST and heard.exit and not heard.exit.stopped and status.exit_code is not None:
        # The runner was killed once it had told of the end, and what it wrote is there.
        phase, code = Phase.FAILED, heard.exit.code
    return judge_end(
        End(
            phase=str(phase),
            exit_code=code,
            started=started is not None,
            ran_seconds=0.0 if started is None else max(0.0, ended - started),
            progressed=progress.source is not None or heard.stored > 0 or here.done_fraction > 0,
            interactive=here.spec.interactive,
            message=message,
            before=[each.message or "" for each in earlier if each.provider == live.provider],
        )
    )


def settle(connection: Connection, here: Look, verdict: Verdict, now: float) -> None:
    """Move the Job on from an Attempt that has ended. What it held stays until outputs are taken in.

    Where the Job is leaving or being stopped, it stays there: who has it leave looks at the Attempt.
    """
    state = here.trial.state
    code, said = str(verdict.reason).upper(), verdict.message
    if state is State.MIGRATING and verdict.ending in {Ending.DONE, Ending.FAILED}:
        move(connection, here, (State.MIGRATING, State.COLLECTING, "LATE_RESULT", said), at=now)
        return
    if state is State.PREPARING:
        if verdict.ending is Ending.LOST:
            return  # nothing of it began: it is queued again by whoever looks at it next
        first = (State.PREPARING, State.RUNNING, "STARTED", "It began and ended between two looks.")
        values = {"user_code_started": True, "started_at": here.trial.started_at or now}
        moved = move(connection, here, first, values=values, at=now)
        state = State.RUNNING if moved else state
    if state not in _RUNNING:
        return
    after = State.MIGRATING if verdict.ending is Ending.LOST else State.COLLECTING
    move(connection, here, (state, after, code if after is State.MIGRATING else "ENDED", said), at=now)


def _same_gpu(promised: str, real: str) -> bool:
    plain = ["".join(c for c in name.casefold() if c.isalnum()) for name in (promised, real)]
    return plain[0] in plain[1] or plain[1] in plain[0]
