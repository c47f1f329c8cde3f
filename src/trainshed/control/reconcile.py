"""LAUNCH and OBSERVE: compares what the rows say with what the engine says, and makes the next move.

Level-triggered: `Reconciler.step` looks at the state as it is and knows nothing of how it came about, so a
crash between any two of its lines is repaired by the next step of the next process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import structlog

from trainshed.content.local import LocalContent
from trainshed.content.outputs import CollectionCancelled
from trainshed.control import metrics
from trainshed.control.background import Workers
from trainshed.control.crashpoints import Point, reach
from trainshed.control.finishing import Ended, Finisher, Released, count_start, ended_move, started_move
from trainshed.control.launching import (
    Active,
    FailedStart,
    GpusMissing,
    Inputs,
    assigned_gpus,
    build_launch,
)
from trainshed.control.placing import Placed, Placer
from trainshed.control.preparing import Preparer
from trainshed.control.scripts.scripts import Scripts
from trainshed.control.snapshots import Snapshots, published_file
from trainshed.control.training.gangs import Gangs
from trainshed.control.unstarted import store_failed_starts
from trainshed.engines.contract import Engine, EngineError, Launch, Observation, Phase
from trainshed.model.errors import Refusal
from trainshed.model.resources import Node
from trainshed.model.runner_tree import RunnerFile
from trainshed.model.states import AllocationState, State
from trainshed.policy.effective import ServerPolicy
from trainshed.store import attempts, moves, queue, runners
from trainshed.store.attempts import Start
from trainshed.store.database import Connection, Database
from trainshed.store.moves import Move
from trainshed.store.records import Allocation, Trial

_ACTOR = "controller"
_RELAUNCH_SECONDS = 5.0
OVERDUE_SECONDS = 30.0
"""How long after its grace an Attempt may still run before it is killed past its own watcher."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _News:
    """What one look at the engine found out."""

    started: list[tuple[Active, Observation]] = field(default_factory=list)
    ended: list[tuple[Active, Observation]] = field(default_factory=list)
    failed: list[FailedStart] = field(default_factory=list)
    missing: list[Active] = field(default_factory=list)


class Reconciler:
    """One engine's Attempts. `step` is called by one thread; collecting and releasing run in executors."""

    def __init__(  # noqa: PLR0913 - what it works with, and one setting
        self,
        database: Database,
        engine: Engine,
        content: LocalContent,
        policy: ServerPolicy,
        placer: Placer,
        finisher: Finisher,
        clock: Callable[[], float],
        workers: Workers,
        *,
        pull_retries: int,
        gangs: Gangs | None = None,
        scripts: Scripts | None = None,
    ) -> None:
        self._gangs = gangs
        self._scripts = scripts
        self._database = database
        self._engine = engine
        self._content = content
        self._policy = policy
        self._placer = placer
        self._finisher = finisher
        self._clock = clock
        self._workers = workers
        self._pull_retries = pull_retries
        self._preparer = Preparer(database, engine, content, clock, workers.preparing)
        self._snapshots = Snapshots()
        self._launched: dict[str, float] = {}
        self._stopped: set[str] = set()
        self._hurried: set[str] = set()
        # What the executors did, by Allocation, until a step records it: many in one transaction.
        self._collected: dict[str, Ended] = {}
        self._released: dict[str, Released] = {}
        self._again = False
        self.nodes: Sequence[Node] = ()

    def step(self, changed: set[str], *, everything: bool) -> bool:
        """One look at the world; whether another step should follow at once.

        ``changed`` are Attempts that may have news; ``everything`` looks at all of them.
        """
        self._again = False
        self._store_results()
        with self._database.read() as connection:
            self._placer.read_changes(connection)
            active = {trial.id: trial for trial in queue.active(connection) if trial.kind == moves.RUNNER}
            # What runs elsewhere holds nothing here; `Scripts` looks after it.
            unreleased = [
                a
                for a in queue.unreleased(connection)
                if a.parts is not None or a.engine == self._engine.name
            ]
            if self._scripts is not None:
                self._take_routed(connection, self._scripts.routed())
        held = [
            Active(active[a.trial_id], a)
            for a in unreleased
            if a.state is AllocationState.HELD and a.trial_id in active
        ]
        if everything:
            self._forget_all_but(held)
        if prepared := [item for item in held if self._is_prepared(item)]:
            self._launch(prepared)
        self._observe(held, changed, everything=everything)
        self._release([a for a in unreleased if a.state is not AllocationState.HELD and a.parts is None])
        placed, again = self._place(unreleased)
        if everything and self._scripts is not None:
            self._scripts.tell_waiting(self._why_waits)
        runners = [Active(item.trial, item.allocation) for item in placed if item.trial.kind == moves.RUNNER]
        if runners:
            self._launch(runners)
        self._again |= len(runners) < len(placed)
        return again or self._again or bool(self._collected or self._released)

    def _why_waits(self, trial_id: str) -> str | None:
        """Of a script Job that waits for this machine, or for a cluster."""
        here = self._placer.why_waits(trial_id)
        return here if here is not None or self._gangs is None else self._gangs.why_waits(trial_id)

    def _place(self, unreleased: Sequence[Allocation]) -> tuple[list[Placed], bool]:
        """Runner Trials and gangs share the nodes."""
        if self._gangs is None:
            return self._placer.run(self.nodes, unreleased)
        nodes = self._gangs.open_to_runners(self.nodes)
        placed, again = self._placer.run(nodes, unreleased, self._gangs.holds(), self._gangs.reserved())
        # Before gangs look again: what the first Runner Trials wait for is not to be taken from them.
        return placed, self._gangs.keep(self._placer.reserved()) or again

    def _take_routed(self, connection: Connection, routed: Collection[str]) -> None:
        """Script Jobs that were routed to this machine wait among Runner Trials from now on."""
        if fresh := [trial_id for trial_id in routed if trial_id not in self._placer]:
            for trial in queue.by_id(connection, fresh).values():
                if trial.state is State.QUEUED:
                    self._placer.add(trial)

    def close(self) -> None:
        """Finish nothing more; what is under way is repeated by the next process."""
        self._finisher.closing.set()
        self._preparer.close()
        self._workers.close()

    def _store_results(self) -> None:
        """Record what executors finished since the last step; what is lost here in a crash is done again."""
        if ended := [self._collected.pop(key) for key in list(self._collected)]:
            self._finisher.finish(ended)
        if released := [self._released.pop(key) for key in list(self._released)]:
            self._finisher.store_releases(released)

    def _forget_all_but(self, held: Sequence[Active]) -> None:
        """What is remembered of Attempts only saves work; of ended ones it saves none."""
        live = {item.allocation.attempt_id for item in held}
        self._launched = {attempt_id: at for attempt_id, at in self._launched.items() if attempt_id in live}
        self._stopped &= live
        self._hurried &= live
        self._preparer.forget_all_but({item.allocation.id for item in held})

    def _is_prepared(self, item: Active) -> bool:
        """Whether what the launch needs is there now, or certainly cannot be had."""
        return (
            item.trial.state is State.PREPARING
            and item.allocation.attempt_id not in self._launched
            and self._preparer.outcome(item.allocation.id) is not None
        )

    def _observe(self, held: Iterable[Active], changed: set[str], *, everything: bool) -> None:
        looked_at = [item for item in held if everything or self._has_news(item, changed)]
        self._hurried |= {i.allocation.attempt_id for i in looked_at if i.trial.state is State.STOPPING}
        looked_at = [item for item in looked_at if self._may_move(item)]
        if not looked_at:
            return
        seen = self._engine.observe([item.allocation.attempt_id for item in looked_at])
        news = _News()
        for item in looked_at:
            self._sort(item, seen[item.allocation.attempt_id], news)
        if news.started:
            self._store_started(news.started)
        if news.failed:
            self._store_failed_starts(news.failed)
        if news.missing:
            self._launch(news.missing)
        if news.ended:
            self._end(news.ended)

    def _sort(self, item: Active, found: Observation, news: _News) -> None:
        """What the evidence means for a Trial in its state."""
        if self._overdue(item, found):
            self._workers.releasing.start(item.allocation.id, partial(self._kill, item))
        elif item.trial.state is State.PREPARING:
            self._preparing(item, found, news)
        elif item.trial.state is State.STOPPING:
            self._stopping(item, found, news)
        elif found.phase is not Phase.RUNNING:
            news.ended.append((item, found))

    def _may_move(self, item: Active) -> bool:
        """Whether nobody prepares or collects for it now, or did and waits to be recorded."""
        key = item.allocation.id
        if self._preparer.is_busy(key):
            if item.trial.state is State.PREPARING:
                return False
            self._preparer.cancel(key)
        return self._workers.collecting.offers(key) and key not in self._collected

    def _overdue(self, item: Active, found: Observation) -> bool:
        """Whether the engine should have ended the program long ago, by a stop or its timeout.

        The engine's own watcher does that, and it can be killed, stopped or deceived by the program.
        """
        if found.phase is not Phase.RUNNING:
            return False
        trial, grace = item.trial, self._policy.stop_grace_seconds + OVERDUE_SECONDS
        ends = [] if trial.stop_accepted_at is None else [trial.stop_accepted_at + grace]
        if found.started_at is not None:
            ends.append(found.started_at + trial.timeout_seconds + grace)
        return any(self._clock() > end for end in ends)

    def _kill(self, item: Active) -> bool:
        attempt_id = item.allocation.attempt_id
        log.warning("nobody ended it in time; it is killed", attempt=attempt_id, trial=item.trial.id)
        self._engine.kill(attempt_id)
        return self._engine.observe([attempt_id])[attempt_id].phase is not Phase.RUNNING

    def _has_news(self, item: Active, changed: set[str]) -> bool:
        attempt_id, state = item.allocation.attempt_id, item.trial.state
        return (
            attempt_id in changed
            or state is State.COLLECTING
            or (state is State.STOPPING and attempt_id not in self._stopped)
        )

    def _preparing(self, item: Active, found: Observation, news: _News) -> None:
        match found.phase:
            case Phase.RUNNING:
                news.started.append((item, found))
            case Phase.EXITED if found.started_at is None:
                detail = (found.exit.detail if found.exit else "") or found.detail or "no reason was recorded"
                news.failed.append(FailedStart(item, "LAUNCH_FAILED", detail, retryable=True))
            case Phase.EXITED | Phase.LOST:
                news.ended.append((item, found))
            case Phase.ABSENT | Phase.PREPARING:
                since = self._launched.get(item.allocation.attempt_id, 0.0)
                if self._clock() - since > _RELAUNCH_SECONDS:
                    news.missing.append(item)

    def _stopping(self, item: Active, found: Observation, news: _News) -> None:
        if found.phase in {Phase.EXITED, Phase.LOST}:
            news.ended.append((item, found))
            return
        attempt_id = item.allocation.attempt_id
        if attempt_id not in self._stopped:
            # Before the start marker too: a remembered stop is what keeps the program from ever starting.
            try:
                self._engine.stop(attempt_id, grace_seconds=self._policy.stop_grace_seconds)
            except (EngineError, OSError) as error:
                log.warning("a stop failed; it is tried again", attempt=attempt_id, error=str(error))
                return
            self._stopped.add(attempt_id)
            reach(Point.STOP_AFTER_ENGINE)
        if found.phase is Phase.ABSENT:
            news.ended.append((item, found))

    def _store_started(self, started: Sequence[tuple[Active, Observation]]) -> None:
        now = self._clock()

        def store(connection: Connection) -> list[Move]:
            made = moves.apply(
                connection,
                [started_move(item.trial, seen, now) for item, seen in started],
                at=now,
                actor=_ACTOR,
            )
            attempts.start_all(
                connection,
                [
                    Start(item.allocation.attempt_id, seen.started_at or now, seen.enforcement)
                    for item, seen in started
                ],
            )
            reach(Point.RUNNING_BEFORE_COMMIT)
            return made

        for move in self._database.write(store):
            count_start(move)
        reach(Point.RUNNING_AFTER_COMMIT)

    def _store_failed_starts(self, failed: Sequence[FailedStart]) -> None:
        store_failed_starts(self._database, failed, pull_retries=self._pull_retries, now=self._clock())
        self._again = True

    def _launch(self, items: Sequence[Active]) -> None:
        launches: list[Launch] = []
        failed: list[FailedStart] = []
        unprepared: list[tuple[Active, list[RunnerFile]]] = []
        with self._database.read() as connection:
            for item in items:
                try:
                    files = self._files(connection, item.trial)
                    if not self._preparer.needed(item.trial):
                        launches.append(self._build(item, files, self._source, Inputs()))
                        continue
                    outcome = self._preparer.outcome(item.allocation.id)
                    if outcome is None:
                        unprepared.append((item, files))
                    elif isinstance(outcome, FailedStart):
                        failed.append(outcome)
                    else:
                        launches.append(self._build(item, files, outcome.source, outcome.inputs))
                except Refusal as refusal:
                    failed.append(FailedStart(item, refusal.code, refusal.message, retryable=False))
                except GpusMissing as missing:
                    failed.append(FailedStart(item, "LAUNCH_FAILED", str(missing), retryable=True))
        for item, files in unprepared:
            self._preparer.start(item, files)
            self._again |= self._preparer.outcome(item.allocation.id) is not None
        now = self._clock()
        self._launched.update({launch.attempt_id: now for launch in launches})
        errors = self._engine.launch_many(launches) if launches else {}
        reach(Point.LAUNCH_AFTER_ENGINE)
        by_attempt = {item.allocation.attempt_id: item for item in items}
        failed += [
            FailedStart(by_attempt[a], e.code, e.message, retryable=e.retryable) for a, e in errors.items()
        ]
        if failed:
            self._store_failed_starts(failed)

    def _build(
        self, item: Active, files: list[RunnerFile], source: Callable[[RunnerFile], Path], inputs: Inputs
    ) -> Launch:
        return build_launch(
            item,
            files,
            source=source,
            gpus=assigned_gpus(item.allocation, self.nodes),
            policy=self._policy,
            inputs=inputs,
        )

    def _source(self, file: RunnerFile) -> Path:
        return published_file(file, self._content.file)

    def _files(self, connection: Connection, trial: Trial) -> list[RunnerFile]:
        known = self._snapshots.known_files(trial.snapshot_sha256)
        if known is not None:
            return known
        revision = runners.find_revision(connection, trial.runner, trial.revision)
        if revision is None:
            raise Refusal.of("RUNNER_HASH_MISMATCH", f"the Revision {trial.runner}@{trial.revision} is gone")
        return self._snapshots.files(trial.snapshot_sha256, revision.manifest)

    def _end(self, ended: Sequence[tuple[Active, Observation]]) -> None:
        """Close what has nothing to collect at once and together; hand the rest to the executor."""
        plain = [Ended(i.trial, i.allocation, seen) for i, seen in ended if not self._collects(i, seen)]
        if plain:
            self._finisher.finish(plain)
            self._again = True
        collecting = [(item, seen) for item, seen in ended if self._collects(item, seen)]
        if not collecting:
            return
        self._store_collecting(collecting)
        with self._database.read() as connection:
            current = queue.by_id(connection, [item.trial.id for item, _ in collecting])
        for item, seen in collecting:
            trial = current[item.trial.id]
            if trial.state in {State.COLLECTING, State.STOPPING}:
                work = partial(self._collect, Ended(trial, item.allocation, seen))
                self._workers.collecting.start(item.allocation.id, work)

    def _store_collecting(self, ended: Sequence[tuple[Active, Observation]]) -> None:
        now = self._clock()
        fresh: list[Move] = []
        for item, seen in ended:
            if item.trial.state is State.PREPARING:
                fresh.append(started_move(item.trial, seen, now))
            if item.trial.state in {State.PREPARING, State.RUNNING}:
                fresh.append(ended_move(item.trial, seen))

        def store(connection: Connection) -> list[Move]:
            made = moves.apply(connection, fresh, at=now, actor=_ACTOR)
            reach(Point.COLLECTING_BEFORE_COMMIT)
            return made

        if fresh:
            made = self._database.write(store)
            for move in made:
                if move.after is State.RUNNING:
                    count_start(move)
        reach(Point.COLLECTING_AFTER_COMMIT)

    @staticmethod
    def _collects(item: Active, seen: Observation) -> bool:
        started = seen.started_at is not None or item.trial.user_code_started
        return bool(item.trial.output_patterns) and started

    def _collect(self, ended: Ended) -> bool:
        attempt_id, bounded = ended.allocation.attempt_id, ended.trial.state is State.STOPPING
        with self._database.read() as connection:
            files = self._files(connection, ended.trial)
        # A stop that comes while outputs are collected bounds the rest (E77): collecting begins again.
        with contextlib.suppress(CollectionCancelled):
            try:
                self._collected[ended.allocation.id] = self._finisher.collect(
                    ended, files, cancelled=lambda: not bounded and attempt_id in self._hurried
                )
            except Refusal as refusal:
                if refusal.code != "BLOB_BEING_DELETED":
                    raise
                log.info("an output's old bytes are being removed; collecting again", attempt=attempt_id)
                return False
        return True

    def _release(self, due: Iterable[Allocation]) -> None:
        leaked = 0
        for allocation in due:
            leaked += allocation.state is AllocationState.LEAKED
            if self._preparer.is_busy(allocation.id):
                self._preparer.cancel(allocation.id)  # it may still bring something that is to be released
            elif allocation.id not in self._released:
                self._workers.releasing.start(allocation.id, partial(self._release_one, allocation))
        metrics.leaked.set(leaked)

    def _release_one(self, allocation: Allocation) -> bool:
        released = self._released[allocation.id] = self._finisher.release(allocation)
        return released.result.confirmed
