"""The controller: one thread that reconciles, woken by hints, correct without them.

It may be killed between any two instructions; the next one re-derives from the rows and the engine's evidence
what to do (design section 3). All times are Unix seconds by the injected clock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

import structlog

from trainshed.content.blobs import FolderBlobStore
from trainshed.control import metrics
from trainshed.control.finishing import Finisher
from trainshed.control.fleet import encode_nodes
from trainshed.control.placing import Placer
from trainshed.control.reconcile import Reconciler
from trainshed.engines.contract import Engine
from trainshed.model.ids import IdFactory
from trainshed.policy.effective import ServerPolicy
from trainshed.store import queue, settings
from trainshed.store.database import Database, DatabaseUnavailable

DAY_SECONDS = 86_400.0
LOOK_AT_ALL_SECONDS = 2.0
SWEEP_SECONDS = 30.0
RETENTION_SECONDS = 60.0
_PAUSE_AFTER_ERROR = 1.0

log = structlog.get_logger(__name__)


class Controller:
    """Runs what was accepted, on one engine. ``start`` and ``stop`` once each; ``wake`` from any thread."""

    def __init__(
        self,
        database: Database,
        engine: Engine,
        blobs: FolderBlobStore,
        policy: ServerPolicy,
        clock: Callable[[], float] = time.time,
        ids: IdFactory | None = None,
        *,
        log_retention_days: float = 90.0,
        poll_seconds: float = 1.0,
    ) -> None:
        self._database = database
        self._engine = engine
        self._clock = clock
        self._retention = log_retention_days * DAY_SECONDS
        self._poll = poll_seconds
        self._stopping = threading.Event()
        self._hint = threading.Event()
        ids = ids or IdFactory(clock)
        self._placer = Placer(database, engine.name, policy, clock, ids)
        finisher = Finisher(database, engine, blobs, policy, clock, ids)
        self._reconciler = Reconciler(
            database, engine, blobs, policy, self._placer, finisher, clock, self.wake
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
        if threading.current_thread() is not self._thread and not self._hint.is_set():
            self._hint.set()
            self._engine.interrupt()

    def stop(self) -> None:
        """Stop deciding. Attempts go on running; the next controller finds them again."""
        self._stopping.set()
        self._engine.interrupt()
        if self._thread.is_alive():
            self._thread.join()
        self._reconciler.close()

    def _run(self) -> None:
        changed: set[str] = set()
        while not self._stopping.is_set():
            try:
                again = self._step(changed)
            except DatabaseUnavailable as error:
                log.warning("the database did not answer; trying again", error=str(error))
                again, changed = False, set()
                self._looked_at_all = float("-inf")
                self._stopping.wait(_PAUSE_AFTER_ERROR)
                continue
            except Exception:
                log.exception("a step of the controller failed; it starts over from the rows")
                again, changed = False, set()
                self._looked_at_all = float("-inf")
                self._stopping.wait(_PAUSE_AFTER_ERROR)
                continue
            changed = self._engine.changed(0.0 if again or self._hint.is_set() else self._pause())
            self._hint.clear()

    def _step(self, changed: set[str]) -> bool:
        now = time.monotonic()
        everything = now - self._looked_at_all >= LOOK_AT_ALL_SECONDS
        if everything:
            self._looked_at_all = now
            self._read_nodes()
            with self._database.read() as connection:
                if self._placer.differs(connection):
                    self._placer.reload()
        again = self._reconciler.step(changed, everything=everything)
        self._placer.publish()
        if now - self._swept >= SWEEP_SECONDS:
            self._swept = now
            self._sweep()
        if now - self._retired >= RETENTION_SECONDS:
            self._retired = now
            self._retire_logs()
        self.ready.set()
        return again

    def _pause(self) -> float:
        """Seconds until there is something to do without a hint."""
        due = [t for t in (self._placer.next_delayed(), self._reconciler.next_release()) if t is not None]
        return max(0.0, min([self._poll, *(t - self._clock() for t in due)]))

    def _read_nodes(self) -> None:
        nodes = self._engine.nodes()
        self._reconciler.nodes = nodes
        text = encode_nodes(nodes)
        if text != self._nodes_text:
            self._database.write(lambda connection: settings.put(connection, settings.NODES, text))
            self._nodes_text = text

    def _sweep(self) -> None:
        """End what carries our mark and belongs to nobody (promise P6).

        Only this thread opens Attempts, so none can appear between the reading and the sweep.
        """
        with self._database.read() as connection:
            known = [allocation.attempt_id for allocation in queue.unreleased(connection)]
        for stranger in self._engine.sweep(known):
            metrics.strangers.inc()
            log.warning("ended a stranger", attempt=stranger)

    def _retire_logs(self) -> None:
        now = self._clock()
        with self._database.read() as connection:
            expired = queue.expired_logs(connection, now - self._retention)
        for attempt_id in expired:
            self._database.write(partial(queue.mark_log_deleted, attempt_id=attempt_id, at=now))
            self._engine.forget(attempt_id)
