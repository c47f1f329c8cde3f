"""Noticing that files grow, for every reader of them together.

One task looks at each file once, however many readers it has: often while the file grows, ten times a second
while it does not.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

_FIRST_PAUSE_SECONDS = 0.01
_LAST_PAUSE_SECONDS = 0.1
_PAUSE_GROWTH = 1.5


@dataclass(slots=True, eq=False)
class _File:
    """One file and when it is looked at next."""

    size: int
    look_at: float
    pause: float = _FIRST_PAUSE_SECONDS
    wake: list[Callable[[], None]] = field(default_factory=list)


class GrowthWatch:
    """Who waits for which files. Used on the event loop only; its task runs while somebody waits."""

    def __init__(self) -> None:
        self._files: dict[str, _File] = {}
        self._task: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def watching(self, files: Collection[str], wake: Callable[[], None]) -> Iterator[None]:
        """Call ``wake`` whenever one of ``files`` changes its size, comes or goes."""
        now = asyncio.get_running_loop().time()
        for path in files:
            watched = self._files.get(path)
            if watched is None:
                watched = self._files[path] = _File(file_size(path), now + _FIRST_PAUSE_SECONDS)
            watched.wake.append(wake)
        if self._files and self._task is None:
            self._task = asyncio.create_task(self._run(), name="growth-watch")
        try:
            yield
        finally:
            for path in files:
                watched = self._files[path]
                watched.wake.remove(wake)
                if not watched.wake:
                    del self._files[path]

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._files:
                now = loop.time()
                for path, watched in list(self._files.items()):
                    if watched.look_at <= now:
                        _look(path, watched, now)
                due = min(watched.look_at for watched in self._files.values())
                await asyncio.sleep(max(due - loop.time(), _FIRST_PAUSE_SECONDS))
        finally:
            self._task = None


def file_size(path: str) -> int:
    """Bytes of a file; -1 where there is none or it cannot be seen."""
    try:
        return os.stat(path).st_size  # noqa: PTH116 - many a second, and a Path costs more than the call
    except OSError:
        return -1


def _look(path: str, watched: _File, now: float) -> None:
    size = file_size(path)
    if size == watched.size:
        watched.pause = min(watched.pause * _PAUSE_GROWTH, _LAST_PAUSE_SECONDS)
    else:
        watched.size, watched.pause = size, _FIRST_PAUSE_SECONDS
        for wake in watched.wake:
            wake()
    watched.look_at = now + watched.pause
