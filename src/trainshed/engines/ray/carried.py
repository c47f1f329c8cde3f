"""The node's side of what travels in pieces: content before the start, and what the program wrote.

Whatever is asked may be asked again, also late: a piece whose answer was lost comes twice, and the second one
changes nothing.
"""

from __future__ import annotations

import base64
import os
import stat
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from trainshed.jobkit.walk import Entry, Kind, UnreadableRoot, open_below, touch_below, walk

Json = dict[str, Any]
PIECE_BYTES = 1 << 20
_PAGE_ENTRIES, _PAGE_SECONDS = 2_000, 2.0


class Arrivals:
    """What is brought to a unit, in a folder of its own. Thread-safe."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._guard = threading.Lock()
        self._closed = False

    def take(self, pieces: Iterable[Json]) -> list[int]:
        """Keep these; how many bytes of each one's file are here then. Raises `OSError`.

        A piece is added where it begins at the file's end. One that begins before that is here already, as
        sources do not change; a file that is longer than it should be is begun again.
        """
        with self._guard:
            if self._closed:
                raise FileNotFoundError(f"{self._place} takes nothing any more")
            self._place.mkdir(mode=0o700, exist_ok=True)
            return [self._keep(piece) for piece in pieces]

    def _keep(self, piece: Json) -> int:
        parts = piece["path"].split("/")
        if not {"", ".", ".."}.isdisjoint(parts):
            raise ValueError(f"{piece['path']!r} is no place for a file")
        place = self._place.joinpath(*parts)
        if piece["size"] is None:
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            return 0
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            here = os.fstat(fd).st_size
            if here > piece["size"]:
                os.ftruncate(fd, 0)
                here = 0
            if here == piece["at"]:
                data = memoryview(base64.b64decode(piece["data"]))
                while data:
                    written = os.write(fd, data)
                    here, data = here + written, data[written:]
            os.fchmod(fd, 0o755 if piece["executable"] else 0o644)
            return here
        finally:
            os.close(fd)

    def close(self) -> None:
        """Let nothing come any more."""
        with self._guard:
            self._closed = True


class Leavings:
    """What a program has in its work folder, also while it runs. No link of its making is followed."""

    def __init__(self, work: Callable[[], Path]) -> None:
        self._work = work
        self._closed = False

    def close(self) -> None:
        """From here on the work folder may be incomplete."""
        self._closed = True

    def listed(self, names: Sequence[str], after: str) -> Json | None:
        """A page of what lies below these folders, after ``after`` in the walk's order; `None`: gone."""
        files: list[list[Any]] = []
        skipped: list[str] = []
        last = ""
        until = time.monotonic() + _PAGE_SECONDS
        reached = after.split("/") if after else []
        work = self._work()

        def enter(path: str) -> bool:
            # What lies below a folder comes after it; a whole folder before the place reached is known.
            return _concerns(path, names) and path.split("/") >= reached[: path.count("/") + 1]

        more = False
        try:
            for entry in walk(work, enter, lambda: None):
                if entry.path.split("/") <= reached or not _concerns(entry.path, names):
                    continue
                if len(files) + len(skipped) >= _PAGE_ENTRIES or (last and time.monotonic() > until):
                    more = True
                    break
                last = entry.path
                _note(entry, names, files, skipped)
        except UnreadableRoot as error:
            if not error.gone and not work.is_symlink():
                raise  # else the program moved it away, or did not get it yet
        # Only now: whatever was seen was seen before anything was removed.
        return None if self._closed else {"files": files, "skipped": skipped, "more": last if more else None}

    def read(self, wanted: Iterable[tuple[str, int]]) -> list[list[Any] | None] | None:
        """For each path, what begins there, with the file's inode, size and time; `None`: there is none.

        For as many as fit into one message. `None` in place of all: the work folder is gone.
        """
        pieces: list[list[Any] | None] = []
        room = PIECE_BYTES
        for path, at in wanted:
            piece = self._piece(path, at, room)
            pieces.append(piece)
            room -= len(piece[0]) if piece is not None else 0
            if room <= 0:
                break
        return None if self._closed else pieces

    def _piece(self, path: str, at: int, most: int) -> list[Any] | None:
        try:
            fd = open_below(self._work(), path)
            try:
                facts = os.fstat(fd)
                if not stat.S_ISREG(facts.st_mode):
                    return None
                data = os.pread(fd, most, at)
            finally:
                os.close(fd)
        except OSError:
            return None
        return [base64.b64encode(data).decode(), facts.st_ino, facts.st_size, facts.st_mtime_ns]

    def ask(self, path: str) -> bool:
        """Make an empty file there; whether that could be done."""
        try:
            touch_below(self._work(), path)
        except OSError:
            return False
        return True


def _concerns(path: str, names: Sequence[str]) -> bool:
    """Whether it is one of ``names``, below one, or on the way to one."""
    return any(f"{path}/".startswith(f"{name}/") or f"{name}/".startswith(f"{path}/") for name in names)


def _note(entry: Entry, names: Sequence[str], files: list[list[Any]], skipped: list[str]) -> None:
    below = any(entry.path.startswith(f"{name}/") for name in names)
    if entry.kind is Kind.DIRECTORY:
        return
    if entry.kind is Kind.FILE and below:
        try:
            facts = entry.status()
        except OSError:
            return  # it went away meanwhile
        files.append([entry.path, facts.st_size, facts.st_mtime_ns])
    else:
        skipped.append(entry.path)
