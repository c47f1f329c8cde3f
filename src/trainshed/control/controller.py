"""The controller: one thread that reconciles, woken by hints, correct without them.

It may be killed between any two instructions; the next one re-derives from the rows and the engine's evidence
what to do (design section 3). All times are Unix seconds by the injected clock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial

import structlog

from trainshed.content.blobs import BlobStore
from trainshed.content.local import LocalContent
from trainshed.control import metrics
from trainshed.control.artifacts import ArtifactRetention
from trainshed.control.background import Background, Workers
from trainshed.control.checkpoints import CheckpointRetention
from trainshed.control.crashpoints import Point, reach
from trainshed.control.finishing import Finisher
from trainshed.control.fleet import encode_nodes
from trainshed.control.garbage import Housekeeping
from trainshed.control.placing import Placer
from trainshed.control.reconcile import Reconciler
from trainshed.control.scripts.approving import expire
from trainshed.control.scripts.ground import ScriptWork
from trainshed.control.scripts.scripts import Scripts
from trainshed.control.training.gangs import Gangs, Training
from trainshed.engines.contract import Engine, EngineError
from trainshed.model.ids import IdFactory
from trainshed.policy.effective import ServerPolicy
from trainshed.store import gangs, queue, settings
from trainshed.store.database import Database, DatabaseUnavailable

DAY_SECONDS = 86_400.0
LOOK_AT_ALL_SECONDS = 2.0
SWEEP_SECONDS = 30.0
RETENTION_SECONDS = 60.0
_PAUSE_AFTER_ERROR = 1.0
_GATHER_SECONDS = 0.005
"""Least time between the begins of two steps that hints ask for: what comes meanwhile shares one."""
_THREADS = 4
_PREPARING_THREADS = 64
"""They wait for registries and stores; a slow one must not keep others from starting."""
_RETIRED_AT_ONCE = 100

log = structlog.get_logger(__name__)


class Controller:
    """Runs what was accepted, on one engine. ``start`` and ``stop`` once each; ``wake`` from any thread.

    Instead of ``start``, a caller may drive it with `step` from one thread.
    """

    def __init__(  # noqa: PLR0913 - what it works with, and its settings
        self,
        database: Database,
        engine: Engine,
        blobs: BlobStore,
        policy: ServerPolicy,
        clock: Callable[[], float] = time.time,
        ids: IdFactory | None = None,
        *,
        content: LocalContent,
        pull_retries: int = 3,
        log_retention_days: float = 90.0,
        artifact_retention_days: float | None = None,
        gc_grace_hours: float = 24.0,
        gc: bool = True,
        training: Training | None = None,
        scripts: ScriptWork | None = None,
        store_patience_seconds: float = 0.0,
        poll_seconds: float = 1.0,
        executor: Callable[[str], Executor] | None = None,
    ) -> None:
        self._database = database
        self._engine = engine
        self._clock = clock
        self._retention = log_retention_days * DAY_SECONDS
        self._poll = poll_seconds
        self._stopping = threading.Event()
        self._hint = threading.Event()
        self._wake_guard = threading.Lock()
        ids = ids or IdFactory(clock)
        executor = executor or _threads
        finisher = Finisher(database, engine, blobs, content, policy, clock, ids)
        self._scripts = (
            None
            if scripts is None
            else Scripts(
                scripts,
                database,
                engine,
                blobs,
                content,
                policy,
                clock,
                ids,
                finisher,
                Background(executor("scripts"), clock, self.wake),
            )
        )
        self._placer = Placer(
            database,
            engine.name,
            policy,
            clock,
            ids,
            places=None if self._scripts is None else self._scripts.places,
        )
        self._checkpoints = CheckpointRetention(database, clock)
        self._artifacts = ArtifactRetention(database, clock, artifact_retention_days)
        self._content = content
        self._workers = Workers(
            preparing=Background(executor("prepare"), clock, self.wake),
            collecting=Background(executor("collect"), clock, self.wake),
            releasing=Background(executor("release"), clock, self.wake),
        )
        self._gangs = (
            None
            if training is None
            else Gangs(
                training,
                database,
                engine,
                content,
                policy,
                clock,
                ids,
                self._workers,
                guests=None if self._scripts is None else self._scripts.guests,
            )
        )
        if self._scripts is not None and self._gangs is not None:
            self._scripts.connect(self._gangs)
        self._reconciler = Reconciler(
            database,
            engine,
            content,
            policy,
            self._placer,
            finisher,
            clock,
            self._workers,
            pull_retries=pull_retries,
            gangs=self._gangs,
            scripts=self._scripts,
        )
        self._garbage = Housekeeping(
            database,
            blobs,
            clock,
            Background(executor("garbage"), clock, self.wake),
            grace_seconds=gc_grace_hours * 3600.0,
            patience_seconds=store_patience_seconds,
            regularly=gc,
        )
        self._thread = threading.Thread(target=self._run, name="controller", daemon=True)
        self._looked_at_all = self._swept = self._retired = float("-inf")
        self._nodes_text = ""
        self.ready = threading.Event()
        """Set once the first look is done: the nodes are known and what ran before was found again (P14)."""

    def start(self) -> None:
        self._database.on_write(self.wake)
        self._thread.start()

    def wake(self) -> None:
        """Hint that there may be something to do; cheap, and safe to forget."""
        if threading.current_thread() is self._thread or self._hint.is_set():
            return
        # Under a lock, because nobody may ring an engine that was closed after `stop`.
        with self._wake_guard:
            if not self._stopping.is_set():
                self._hint.set()
                self._engine.interrupt()

    def stop(self) -> None:
        """Stop deciding. Attempts go on running; the next controller finds them again."""
        with self._wake_guard:
            self._stopping.set()
            self._engine.interrupt()
        if self._thread.is_alive():
            self._thread.join()
        self._garbage.close()
        if self._gangs is not None:
            self._gangs.close()
        if self._scripts is not None:
            self._scripts.close()
        self._reconciler.close()
        if self._gangs is not None:
            self._gangs.disconnect()

    def step(self, changed: set[str] | None = None, *, everything: bool = True) -> bool:
        """One look at the world and what follows from it; whether another should follow at once.

        ``changed`` are Attempts that may have news; ``everything`` looks at all and tidies up as well.
        """
        now = time.monotonic()
        everything = everything or now - self._looked_at_all >= LOOK_AT_ALL_SECONDS
        if everything:
            self._looked_at_all = now
            self._read_nodes()
            self._check_queue(thoroughly=now - self._swept >= SWEEP_SECONDS)
        changed = changed or set()
        if self._gangs is not None:
            changed = changed | self._gangs.news()
        again = self._gangs is not None and self._gangs.step(changed, everything=everything)
        if self._scripts is not None:
            again |= self._scripts.step(changed, everything=everything)
        again |= self._reconciler.step(changed, everything=everything)
        self._placer.publish()
        if now - self._swept >= SWEEP_SECONDS:
            self._swept = now
            self._sweep()
        if now - self._retired >= RETENTION_SECONDS and not self._retire():
            self._retired = now
        if everything:
            expire(self._database, self._clock())
            self._garbage.look()
        self.ready.set()
        return again

    def _run(self) -> None:
        changed: set[str] = set()
        again = False
        begun = float("-inf")
        while not self._stopping.is_set():
            try:
                if again or not self.ready.is_set():
                    changed |= self._engine.changed(0.0)
                else:
                    changed |= self._engine.changed(self._pause())
                    # A first hint is followed at once; a burst of them makes few steps, and few commits.
                    if (early := begun + _GATHER_SECONDS - time.monotonic()) > 0:
                        self._stopping.wait(early)
                        changed |= self._engine.changed(0.0)
                self._hint.clear()
                begun = time.monotonic()
                again = self.step(changed, everything=False)
                changed = set()
            except DatabaseUnavailable as error:
                log.warning("the database did not answer; trying again", error=str(error))
                self._start_over()
            except Exception:
                log.exception("a step of the controller failed; it starts over from the rows")
                self._start_over()

    def _start_over(self) -> None:
        self._looked_at_all = float("-inf")
        self._placer.reload()
        if self._gangs is not None:
            self._gangs.reload()
        self._stopping.wait(_PAUSE_AFTER_ERROR)

    def _pause(self) -> float:
        """Seconds until there is something to do without a hint."""
        tasks = None if self._gangs is None else self._gangs.next_at()
        jobs = None if self._scripts is None else self._scripts.next_at()
        times = (self._placer.next_delayed(), self._workers.next_due(), tasks, jobs)
        due = [t for t in times if t is not None]
        return max(0.0, min([self._poll, *(t - self._clock() for t in due)]))

    def _read_nodes(self) -> None:
        nodes = self._engine.nodes()
        self._reconciler.nodes = nodes
        text = encode_nodes(nodes)
        if text != self._nodes_text:
            self._database.write(lambda connection: settings.put(connection, settings.NODES, text))
            self._nodes_text = text
        if self._gangs is not None:
            self._gangs.read_nodes(nodes)
        if self._scripts is not None:
            self._scripts.read_nodes(nodes)

    def _check_queue(self, *, thoroughly: bool) -> None:
        with self._database.snapshot() as connection:
            self._placer.read_changes(connection)
            if self._placer.differs(connection, thoroughly=thoroughly):
                self._placer.reload()
            if self._gangs is not None:
                self._gangs.check(connection, thoroughly=thoroughly)

    def _sweep(self) -> None:
        """End what carries our mark and belongs to nobody (promise P6).

        Only this thread opens Attempts here, so none can appear between the reading and the sweep. Those that
        run elsewhere, which others open, say themselves what they hold here.
        """
        with self._database.read() as connection:
            known = [allocation.attempt_id for allocation in queue.unreleased(connection)]
            units = [] if self._gangs is None else self._gangs.known_units(connection)
        if self._scripts is not None:
            known += self._scripts.known_units()
        strangers = list(self._engine.sweep([*known, *units]))
        if self._gangs is not None:
            strangers += self._gangs.sweep([*known, *units])
        for stranger in strangers:
            metrics.strangers.inc()
            log.warning("ended a stranger", attempt=stranger)
        if self._scripts is not None:
            self._scripts.tidy(known)
        for holder in self._content.release_others(known):
            log.info("let go of content that an ended Attempt held", attempt=holder)
        # Removing a tree of many files takes its time.
        self._workers.releasing.start("content", self._trim_content)
        reach(Point.SWEEP_AFTER_ENGINE)

    def _trim_content(self) -> bool:
        self._content.trim()
        usage = self._content.usage()
        metrics.cache_bytes.set(usage.bytes)
        metrics.cache_trees.set(usage.trees)
        return True

    def _retire(self) -> bool:
        """Delete some of what is past its time; whether there may be more."""
        more = [self._checkpoints.run(), self._artifacts.run(), self._retire_logs()]
        return any(more)

    def _retire_logs(self) -> bool:
        """Delete some logs that are past their retention; whether there may be more."""
        with self._database.read() as connection:
            expired = queue.expired_logs(connection, self._clock() - self._retention, _RETIRED_AT_ONCE)
            units = gangs.units_of(connection, expired)
        for attempt_id in expired:
            try:
                # In this order, so that a crash between the two leaves no log that nobody deletes.
                for unit in units[attempt_id]:
                    self._engine.forget(unit)
                    if self._gangs is not None:
                        self._gangs.forget(unit)
                if self._scripts is not None:
                    self._scripts.forget(attempt_id)
            except (EngineError, OSError) as error:
                log.warning("an expired log cannot be deleted", attempt=attempt_id, error=str(error))
                continue
            reach(Point.RETIRE_AFTER_ENGINE)
            self._database.write(partial(queue.mark_log_deleted, attempt_id=attempt_id, at=self._clock()))
            reach(Point.RETIRE_AFTER_COMMIT)
        return len(expired) == _RETIRED_AT_ONCE


def _threads(name: str) -> Executor:
    threads = _PREPARING_THREADS if name in {"prepare", "scripts"} else _THREADS
    return ThreadPoolExecutor(max_workers=threads, thread_name_prefix=name)
