"""Brings what a launch needs to its node, in pieces: the server's side of `trainshed.engines.ray.carried`.

Which files and mounts there are stands in the intent, so a restart of the server begins again, and what has
come already is not sent twice.
"""

from __future__ import annotations

import base64
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import structlog

from trainshed.engines.contract import EngineError
from trainshed.engines.ray import wire
from trainshed.engines.ray.channel import Channel
from trainshed.engines.ray.mirror import SENDING, Mirror
from trainshed.jobkit import folder
from trainshed.jobkit.walk import Entry, Kind, UnreadableRoot, open_below, walk

Json = dict[str, Any]
log = structlog.get_logger(__name__)
_PIECE_BYTES = 1 << 20
_PIECES_AT_ONCE = 200
_PIECE_COST = 200
"""Bytes that a piece takes besides its data."""
_AGAIN_SECONDS = 2.0
_SAY_SECONDS = 1.0
_BREATH_SECONDS = 0.002
"""Between two messages, so that whoever else waits for the channel has it."""
_MB = 1_000_000


class State(Enum):
    """How far it got."""

    UNDER_WAY = "under way"
    THERE = "there"
    FAILED = "failed"
    HOST_GONE = "host gone"


class _Unreadable(Exception):
    """A source is not there, or is not what it was."""


class _HostGone(Exception):
    """Nobody is there to send to."""


class _Ended(Exception):
    """It is not wanted any more."""


@dataclass(slots=True)
class _Item:
    """A file on its way, or a folder (``size`` is `None`)."""

    place: str
    """Where it goes, below the node's folder of what was brought."""
    root: Path
    inside: str
    """Of a file of a tree: its path below ``root``."""
    size: int | None
    executable: bool = False
    at: int = 0

    def open(self) -> int:
        if self.inside:
            return open_below(self.root, self.inside)
        return os.open(self.root, os.O_RDONLY | os.O_CLOEXEC)


class Carrying:
    """One unit's content on its way, by a thread of its own."""

    def __init__(
        self, unit: str, mirror: Mirror, intent: Json, channel: Channel, on_end: Callable[[], None]
    ) -> None:
        self._unit = unit
        self._mirror = mirror
        self._intent = intent
        self._channel = channel
        self._on_end = on_end
        self._stop = threading.Event()
        self.state = State.UNDER_WAY
        self.why = ""
        self.host = ""
        """The host that has what was sent."""
        self._sent = self._total = 0
        self._said_at = 0.0
        self._thread = threading.Thread(target=self._run, name=f"ray-carry-{unit}", daemon=True)
        self._thread.start()

    def cancel(self) -> None:
        """Let it end, however far it is."""
        self._stop.set()

    def close(self) -> None:
        """End it."""
        self.cancel()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._total = sum(item.size or 0 for item in self._items())
            self._send_all()
            self.state = State.THERE
        except _HostGone:
            self.state = State.HOST_GONE
        except _Ended:
            self.state = State.FAILED
        except (_Unreadable, OSError, UnreadableRoot) as error:
            self.why = f"What it needs cannot be brought to its node: {error}"
            self.state = State.FAILED
        except Exception as error:
            log.exception("what an attempt needs is not brought to its node", attempt=self._unit)
            self.why = f"What it needs cannot be brought to its node: {type(error).__name__}: {error}"
            self.state = State.FAILED
        self._on_end()

    # What there is to send

    def _items(self) -> Iterator[_Item]:
        for number, (_, source, executable) in enumerate(self._intent["files"]):
            yield self._file(wire.file_place(number), Path(source), executable=bool(executable))
        for number, mount in enumerate(self._intent["mounts"]):
            top, place = Path(mount["source"]).resolve(), wire.mount_place(number)
            if top.is_dir():
                yield _Item(place, top, "", None)
                yield from self._tree(place, top)
            else:
                yield self._file(place, top)

    @staticmethod
    def _file(place: str, source: Path, *, executable: bool | None = None) -> _Item:
        facts = source.stat()
        if not stat.S_ISREG(facts.st_mode):
            raise _Unreadable(f"{source} is no file")
        return _Item(place, source, "", facts.st_size, _runs(facts) if executable is None else executable)

    @staticmethod
    def _tree(place: str, top: Path) -> Iterator[_Item]:
        """Links, devices and what is mounted inside stay here."""
        for entry in walk(top, lambda _: True, lambda: None):
            match entry.kind:
                case Kind.DIRECTORY:
                    yield _Item(f"{place}/{entry.path}", top, entry.path, None)
                case Kind.FILE:
                    facts = entry.status()
                    yield _Item(f"{place}/{entry.path}", top, entry.path, facts.st_size, _runs(facts))
                case Kind.UNREADABLE | Kind.TOO_DEEP:
                    raise _Unreadable(_named(top, entry))
                case _:
                    pass

    # Sending it

    def _send_all(self) -> None:
        batch: list[tuple[_Item, Json]] = []
        room = _PIECE_BYTES
        for item in self._items():
            while True:
                piece = self._piece(item, room)
                batch.append((item, piece))
                room -= len(piece["data"]) * 3 // 4 + _PIECE_COST
                if room > 0 and len(batch) < _PIECES_AT_ONCE:
                    break  # it is whole
                self._deliver(batch)
                batch, room = [], _PIECE_BYTES
                if item.at >= (item.size or 0):
                    break
        self._deliver(batch)

    def _deliver(self, batch: list[tuple[_Item, Json]]) -> None:
        """Send these until they are there; of the last one as much as was in its piece."""
        while batch:
            wanted = {id(item): piece["at"] + piece["bytes"] for item, piece in batch}
            sizes = self._tell([piece for _, piece in batch])
            again = []
            for (item, _), size in zip(batch, sizes, strict=True):
                self._sent += size - item.at
                item.at = size
                if size < wanted[id(item)]:
                    again.append(item)
            self._say()
            batch = [(item, self._piece(item, _PIECE_BYTES)) for item in again]

    def _piece(self, item: _Item, room: int) -> Json:
        """What comes next of it."""
        data = b""
        if item.size:
            most = min(item.size - item.at, max(room, 1))
            fd = item.open()
            try:
                data = os.pread(fd, most, item.at)
                changed = len(data) < most or os.fstat(fd).st_size != item.size
            finally:
                os.close(fd)
            if changed:
                raise _Unreadable(f"{item.root / item.inside} changes while it is sent")
        return {
            "path": item.place,
            "size": item.size,
            "executable": item.executable,
            "at": item.at,
            "bytes": len(data),
            "data": base64.b64encode(data).decode(),
        }

    def _tell(self, pieces: list[Json]) -> list[int]:
        while True:
            if self._stop.wait(_BREATH_SECONDS) or self._mirror.is_over():
                raise _Ended
            try:
                answer = self._channel.call("tell", self._unit, "take", [pieces])
            except EngineError as error:
                answer = {"failed": error.message}
            if "gone" in answer:
                raise _HostGone
            if "new" not in answer:
                if self._stop.wait(_AGAIN_SECONDS):
                    raise _Ended
                continue
            new = answer["new"]
            if self.host not in {"", new["host"]}:
                raise _HostGone  # another one took its place, and has nothing
            self.host = new["host"]
            if "error" in new:
                raise _Unreadable(new["error"])
            sizes: list[int] = new["sizes"]
            return sizes

    def _say(self) -> None:
        now = time.monotonic()
        if now - self._said_at < _SAY_SECONDS:
            return
        self._said_at = now
        said = f"{self._sent // _MB} of {-(-self._total // _MB)} MB are on the node"
        with suppress(OSError):  # it is for people; where all was forgotten meanwhile no folder is made
            folder.write_durably(self._mirror.path, SENDING, {"said": said})
        self._on_end()


def _runs(facts: os.stat_result) -> bool:
    return bool(facts.st_mode & 0o100)


def _named(top: Path, entry: Entry) -> str:
    return f"{top / entry.path}: {entry.kind.value} {entry.reason}".rstrip()
