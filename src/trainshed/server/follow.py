"""Waking whoever follows a Job, without asking the database for each of them.

One task looks, once after each burst of commits of this process, which Jobs have new events, and wakes their
followers; another looks at the files they read. Other processes' commits are not announced (PostgreSQL, or a
controller of its own), so a follower also looks by itself every `JobWatch.recheck_seconds`. A wake-up is a
hint and may come for nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator

import structlog
from starlette.concurrency import run_in_threadpool

from trainshed.server.growth import GrowthWatch
from trainshed.store import events
from trainshed.store.database import Database, DatabaseUnavailable

RECHECK_SECONDS = 1.0
"""How often a follower looks for what is not announced."""
_ALONE_RECHECK_SECONDS = 10.0
"""The same where every commit is announced: in case one got lost."""
_GATHER_SECONDS = 0.02
"""Commits within this time of each other are looked at together."""
_LOOK_AT_MOST = 1000

log = structlog.get_logger(__name__)


class Follower:
    """One reader's view of "something happened to the Job"."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._announced = False

    def wake(self) -> None:
        """Rows of the Job may have changed."""
        self._announced = True
        self._event.set()

    def grew(self) -> None:
        """A file that the reader watches has changed."""
        self._event.set()

    async def wait(self, seconds: float) -> bool:
        """Wait for either, at most ``seconds``; whether rows may have changed."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._event.wait(), seconds)
        self._event.clear()
        announced, self._announced = self._announced, False
        return announced


class JobWatch:
    """Who follows which Job. Everything but the database's announcement happens on the event loop."""

    def __init__(self, database: Database, *, alone: bool = False) -> None:
        """``alone``: no other process writes to the database."""
        self.recheck_seconds = _ALONE_RECHECK_SECONDS if alone else RECHECK_SECONDS
        self.growth = GrowthWatch()
        self._database = database
        self._followers: defaultdict[str, set[Follower]] = defaultdict(set)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._written = asyncio.Event()
        self._announced = False
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        database.on_write(self._on_write)

    @property
    def stopping(self) -> bool:
        """Whether the server is going down: streams shall end."""
        return self._stopping

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._written = asyncio.Event()
        self._announced = self._stopping = False
        self._task = asyncio.create_task(self._run(), name="job-watch")

    async def stop(self) -> None:
        self.end_streams()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def end_streams(self) -> None:
        """Make every stream and every waiting read end soon."""
        self._stopping = True
        for followers in self._followers.values():
            for follower in followers:
                follower.wake()

    @contextlib.asynccontextmanager
    async def follow(self, job_id: str) -> AsyncIterator[Follower]:
        follower = Follower()
        self._followers[job_id].add(follower)
        try:
            yield follower
        finally:
            self._followers[job_id].discard(follower)
            if not self._followers[job_id]:
                del self._followers[job_id]

    def _on_write(self) -> None:
        # Called by whichever thread committed; costs a flag while nobody follows or a look is due anyway.
        if self._followers and not self._announced and self._loop is not None:
            self._announced = True
            with contextlib.suppress(RuntimeError):  # the loop was closed: nobody follows any more
                self._loop.call_soon_threadsafe(self._written.set)

    async def _run(self) -> None:
        seen: int | None = None
        while True:
            await self._written.wait()
            await asyncio.sleep(_GATHER_SECONDS)
            self._written.clear()
            self._announced = False
            try:
                changed, seen = await run_in_threadpool(self._look, seen)
            except DatabaseUnavailable as error:
                log.warning("cannot look for changed jobs", reason=str(error))
                continue
            for job_id in list(self._followers) if changed is None else changed & self._followers.keys():
                for follower in self._followers[job_id]:
                    follower.wake()

    def _look(self, seen: int | None) -> tuple[set[str] | None, int]:
        """Jobs with events past ``seen``, or ``None`` for "any", and the newest event."""
        with self._database.read() as connection:
            if seen is None:
                return None, events.newest_id(connection)
            found = events.since(connection, seen, _LOOK_AT_MOST)
        if len(found) == _LOOK_AT_MOST:
            return None, found[-1][0]
        return {job_id for _, job_id in found}, found[-1][0] if found else seen
