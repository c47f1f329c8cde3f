"""Collecting garbage: bytes that nothing needs any more leave the store, a while after their last use.

One pass goes through all manifests and blobs in windows, in its own thread. Each step is either a short
transaction or a removal of bytes, and a crash between any two of them is finished by the next pass: what is
marked is removed and then forgotten, and nobody may count on it meanwhile (`trainshed.store.garbage`).
"""

from __future__ import annotations

import itertools
import json
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

import structlog

from trainshed.content.blobs import Blob, BlobError, BlobStore
from trainshed.control import metrics
from trainshed.control.background import Background
from trainshed.control.crashpoints import Point, reach
from trainshed.store import garbage as store
from trainshed.store import settings
from trainshed.store.database import Database, DatabaseUnavailable
from trainshed.store.garbage import Marked

PASS_SECONDS = 3600.0
"""Between two passes."""
SWEEP_SECONDS = 86_400.0
"""Between two looks through the store itself for bytes that no row knows."""
MIN_GRACE_SECONDS = 300.0
"""The last use of a blob is noted to the minute (`store.queue.TOUCH_SECONDS`) and transactions take time."""
TAKE_OVER_SECONDS = 900.0
"""After so long a mark of another process is taken over: that process removes nothing under it any more."""
REMOVE_SECONDS = 60.0
"""How long bytes are removed under one mark."""
_WINDOW = 2000
_MARKED_AT_ONCE = 500
_ROWS_AT_ONCE = 2000
_PAUSE_SECONDS = 0.02
"""Between windows: a pass shall not take a core from what runs."""
_REPORT_SECONDS = 1.0

T = TypeVar("T")

log = structlog.get_logger(__name__)


class Stopped(Exception):
    """This process ends; the next one goes on."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a pass has done so far."""

    looked_at: int = 0
    """Windows of rows."""
    manifests: int = 0
    """Let go: nothing named them any more."""
    blobs: int = 0
    """Removed from the store."""
    bytes: int = 0
    """Theirs."""
    adopted: int = 0
    """Found in the store without a row; they count as used now."""


class Collector:
    """Removes what nothing needs.

    A deployment has one that runs, if all goes well. Of two, each leaves alone what the other has marked.
    """

    def __init__(
        self,
        database: Database,
        blobs: BlobStore,
        clock: Callable[[], float],
        *,
        grace_seconds: float,
        patience_seconds: float = 0.0,
        stopping: threading.Event | None = None,
    ) -> None:
        """``grace_seconds``: how long bytes stay after their last use; at least `MIN_GRACE_SECONDS` count.

        ``patience_seconds``: how long one removal may take before the store gives it up.
        """
        self._database = database
        self._blobs = blobs
        self._clock = clock
        self._grace = max(grace_seconds, MIN_GRACE_SECONDS)
        # The data folder of an SQLite database belongs to one controller: what is marked, this one marked.
        self._alone = database.dialect == "sqlite"
        self._take_over = max(TAKE_OVER_SECONDS, 2 * (REMOVE_SECONDS + patience_seconds))
        self._stopping = stopping or threading.Event()
        self._unfinished: list[Marked] = []

    def run(self, *, sweep: bool = False, told: Callable[[Found], None] = lambda _: None) -> Found:
        """One pass; ``sweep`` looks through the store itself as well. Raises `Stopped`, `BlobError`."""
        found = self.finish_left()
        steps = (self.let_manifests_go, self.remove_unneeded, *((self.adopt,) if sweep else ()))
        for step in steps:
            for so_far in step(found):
                found = so_far
                told(found)
        return found

    def finish_left(self) -> Found:
        """Remove what an earlier pass has marked and not removed."""
        found, mine = Found(), self._unfinished
        self._unfinished = []
        for marked in mine:
            # Past this nobody could tell whether another process has taken it over.
            if self._alone or self._clock() - marked.mark < self._take_over / 2 - REMOVE_SECONDS:
                found = self.remove(marked, found)
        while (marked := self.take_over()).sizes:
            found = self.remove(marked, found)
            self._check()
        return found

    def let_manifests_go(self, found: Found) -> Iterator[Found]:
        """Manifests that nothing names keep no blobs any more."""
        cutoff = self._clock() - self._grace
        for after, last in self._windows(store.manifest_window):
            with self._database.read() as connection:
                dead = store.dead_manifests(connection, after, last, cutoff=cutoff)
            for some in _pieces(dead, _MARKED_AT_ONCE):
                found = replace(found, manifests=found.manifests + self._let_go(some, cutoff))
            yield found
        while self._database.write(lambda c: store.drop_rows(c, _ROWS_AT_ONCE)):
            reach(Point.GARBAGE_AFTER_ROWS)
            self._check()

    def remove_unneeded(self, found: Found) -> Iterator[Found]:
        """Blobs that nothing needs and nobody used for a while go."""
        cutoff = self._clock() - self._grace
        for after, last in self._windows(store.blob_window):
            with self._database.read() as connection:
                unneeded = store.unneeded_blobs(connection, after, last, cutoff=cutoff)
            for some in _pieces(unneeded, _MARKED_AT_ONCE):
                found = self.remove(self.mark(some, cutoff), found)
                self._check()
            found = replace(found, looked_at=found.looked_at + 1)
            yield found

    def adopt(self, found: Found) -> Iterator[Found]:
        """Bytes in the store without a row get one: they go like any others, unless they are used."""
        for some in _pieces(self._blobs.names(), _WINDOW):
            found = replace(found, adopted=found.adopted + self._adopt(some))
            yield found
            self._check()

    def mark(self, names: tuple[str, ...], cutoff: float) -> Marked:
        """Mark those of the blobs that are unneeded still."""
        at = self._clock()
        marked = self._database.write(lambda c: store.mark(c, names, cutoff=cutoff, at=at))
        reach(Point.GARBAGE_AFTER_MARK)
        return marked

    def take_over(self) -> Marked:
        """Marks that nobody works under any more."""
        at = self._clock()
        cutoff = at - self._grace
        before = math.nextafter(at, math.inf) if self._alone else at - self._take_over
        with self._database.read() as connection:
            if not store.any_left(connection, before):
                return Marked(at, {})
        return self._database.write(
            lambda c: store.take_over(c, before=before, cutoff=cutoff, at=at, count=_MARKED_AT_ONCE),
        )

    def remove(self, marked: Marked, found: Found) -> Found:
        """Remove the bytes, then the rows. What is not done in time is left to a later pass."""
        if not marked.sizes:
            return found
        begun, gone = time.monotonic(), []
        failure: BlobError | None = None
        for name in marked.sizes:
            if self._stopping.is_set() or time.monotonic() - begun > REMOVE_SECONDS:
                break
            try:
                self._blobs.delete(name)
            except BlobError as error:
                failure = error
                break
            reach(Point.GARBAGE_AFTER_REMOVE)
            gone.append(name)
        self._database.write(lambda c: store.forget(c, marked, gone))
        reach(Point.GARBAGE_AFTER_FORGET)
        done = set(gone)
        if left := {name: size for name, size in marked.sizes.items() if name not in done}:
            self._unfinished.append(Marked(marked.mark, left))
        size = sum(marked.sizes[name] for name in gone)
        metrics.garbage_blobs.inc(len(gone))
        metrics.garbage_bytes.inc(size)
        if failure is not None:
            raise failure
        return replace(found, blobs=found.blobs + len(gone), bytes=found.bytes + size)

    def _let_go(self, names: tuple[str, ...], cutoff: float) -> int:
        at = self._clock()
        gone = self._database.write(lambda c: store.let_go(c, names, cutoff=cutoff, at=at))
        reach(Point.GARBAGE_AFTER_LET_GO)
        return gone

    def _adopt(self, some: tuple[Blob, ...]) -> int:
        sizes = {blob.sha256: blob.size for blob in some}
        with self._database.read() as connection:
            strange = store.unrecorded(connection, sizes)
        # A row that was missing a moment ago may have been forgotten with its bytes.
        left = {name: sizes[name] for name in strange if self._blobs.exists(name)}
        if not left:
            return 0
        at = self._clock()
        count = self._database.write(lambda c: store.adopt(c, left, at=at))
        reach(Point.GARBAGE_AFTER_ADOPT)
        return count

    def _windows(self, window: Callable[[Any, str, int], str | None]) -> Iterator[tuple[str, str]]:
        after, first = "", True
        while True:
            with self._database.read() as connection:
                last = window(connection, after, _WINDOW)
            if last is None:
                return
            if not first:
                self._stopping.wait(_PAUSE_SECONDS)
            self._check()
            yield after, last
            after, first = last, False

    def _check(self) -> None:
        if self._stopping.is_set():
            raise Stopped


class Housekeeping:
    """Passes at their times and when somebody asked for one, beside the controller's thread."""

    def __init__(
        self,
        database: Database,
        blobs: BlobStore,
        clock: Callable[[], float],
        background: Background,
        *,
        grace_seconds: float,
        patience_seconds: float = 0.0,
        regularly: bool = True,
    ) -> None:
        self._database = database
        self._clock = clock
        self._background = background
        self._regularly = regularly
        self._stopping = threading.Event()
        self._collector = Collector(
            database,
            blobs,
            clock,
            grace_seconds=grace_seconds,
            patience_seconds=patience_seconds,
            stopping=self._stopping,
        )
        self._passed = float("-inf")
        # Marks of an earlier process: whoever stores what is marked waits for us.
        self._left = True
        self._served: str | None = None

    def look(self) -> None:
        """Begin a pass if one is due."""
        if not self._background.offers(_KEY):
            return
        with self._database.read() as connection:
            request = request_of(settings.get(connection, settings.GARBAGE_REQUEST))
            report = request_of(settings.get(connection, settings.GARBAGE_REPORT))
        asked = request.get("request_id")
        # One that is "running" was left by a process that is gone, unless it is ours.
        over = report.get("request_id") == asked and report.get("state") in {"done", "failed"}
        if asked is not None and asked != self._served and not over:
            self._served = asked
            self._background.start(_KEY, lambda: self._pass(asked))
        elif self._regularly and time.monotonic() - self._passed >= PASS_SECONDS:
            self._passed = time.monotonic()
            self._background.start(_KEY, lambda: self._pass(None))
        elif self._left:
            self._background.start(_KEY, self._finish)

    def close(self) -> None:
        """End soon; the next process goes on."""
        self._stopping.set()
        self._background.close()

    def _finish(self) -> bool:
        try:
            self._collector.finish_left()
        except Stopped:
            return True
        except BlobError as error:
            log.warning("garbage cannot be removed now; it is tried again", reason=str(error))
            return False
        self._left = False
        return True

    def _pass(self, asked: str | None) -> bool:
        report, begun = Report(self._database, self._clock, asked), self._clock()
        sweep = asked is not None or self._sweep_is_due(begun)
        try:
            found = self._collector.run(sweep=sweep, told=report.tell)
        except Stopped:
            return True
        except DatabaseUnavailable:
            self._served, self._passed = None, float("-inf")
            raise
        except BlobError as error:
            log.warning("garbage cannot be collected now", reason=str(error))
            report.end("failed", reason=str(error))
            self._left = True
            return False
        self._left = False
        if sweep:
            # Only now: a sweep that failed is due still.
            self._database.write(lambda c: settings.put(c, settings.GARBAGE_SWEPT, repr(begun)))
        did = found.blobs or found.manifests or found.adopted
        if did:
            log.info("collected garbage", **asdict(found))
        if did or asked is not None:
            report.end("done", found=found)
        return True

    def _sweep_is_due(self, now: float) -> bool:
        """Whether the store itself was not looked through for a day."""
        with self._database.read() as connection:
            last = float(settings.get(connection, settings.GARBAGE_SWEPT) or "-inf")
        return now - last >= SWEEP_SECONDS


class Report:
    """What the newest pass did, where every process can read it. Told once a second if somebody waits."""

    def __init__(self, database: Database, clock: Callable[[], float], request_id: str | None) -> None:
        self._database = database
        self._clock = clock
        self._request_id = request_id
        self._found = Found()
        self._started_at = clock()
        self._told = float("-inf")

    def tell(self, found: Found) -> None:
        self._found = found
        if self._request_id is not None and time.monotonic() - self._told >= _REPORT_SECONDS:
            self._told = time.monotonic()
            self._put("running")

    def end(self, state: str, *, found: Found | None = None, reason: str | None = None) -> None:
        """The pass is over: ``done``, or ``failed`` and why."""
        self._found = found or self._found
        self._put(state, reason)

    def _put(self, state: str, reason: str | None = None) -> None:
        document = {
            "request_id": self._request_id,
            "state": state,
            "reason": reason,
            "started_at": self._started_at,
            "updated_at": self._clock(),
            **asdict(self._found),
        }
        text = json.dumps(document)
        self._database.write(lambda c: settings.put(c, settings.GARBAGE_REPORT, text))


def request_of(text: str | None) -> dict[str, Any]:
    """A request or a report as it was stored; empty where there is none."""
    return dict(json.loads(text)) if text else {}


def _pieces(items: Iterable[T], size: int) -> Iterator[tuple[T, ...]]:
    source = iter(items)
    while some := tuple(itertools.islice(source, size)):
        yield some


_KEY = "garbage"
