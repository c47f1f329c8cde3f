"""Reading log files: records from any place on, the last records of a long file, exact bytes of a stream.

The format is that of ``trainshed.jobkit.frames``. A file may still grow, may miss its end after a crash,
and may be gone; a reader stops before the first frame that is not whole and says how far it came (P8).
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from trainshed.jobkit import frames
from trainshed.model.logs import LogFiles

CHUNK_BYTES = 1 << 18
FIRST_CHUNK_BYTES = 1 << 17
"""Read at once, later and at first; larger than any frame, so no whole frame in one is the file's end."""
_HEADER = frames.HEADER
_HEADER_BYTES = frames.HEADER.size
_TEXT = frozenset(frames.STREAM_NAMES)


class Position(NamedTuple):
    """A place between two records: a frame's offset in the file, and a record's offset in its payload."""

    frame: int
    inside: int


START = Position(0, 0)


class Record(NamedTuple):
    """One line, or one piece of a line that is long or was written slowly, or a gap."""

    frame: int
    inside: int
    next_frame: int
    next_inside: int
    stream: int
    """``frames.STDOUT``, ``STDERR`` or ``GAP``."""
    time_ns: int
    data: bytes
    """Without the line end."""
    partial: bool
    """The program wrote no line end here: the line goes on in the stream's next record, or never ended."""
    dropped: int = 0
    """Of a gap: how many bytes of output are missing here."""

    @property
    def position(self) -> Position:
        return Position(self.frame, self.inside)

    @property
    def next(self) -> Position:
        """Where the record after it begins."""
        return Position(self.next_frame, self.next_inside)

    def raw(self) -> bytes:
        """The program's bytes: the records of a stream joined are exactly what it wrote."""
        return self.data if self.partial else self.data + b"\n"


class _Frame(NamedTuple):
    offset: int
    stream: int
    time_ns: int
    payload: bytes

    @property
    def end(self) -> int:
        return self.offset + _HEADER_BYTES + len(self.payload)


class LogReader:
    """One replica's log file, opened for reading. A file that is not there reads as empty.

    ``reached`` is where the newest ``records`` stopped; ``ended`` whether that was the end of the log, after
    which nothing follows.
    """

    def __init__(self, files: LogFiles) -> None:
        self._index = files.index
        self._fd = _open(files.frames)
        self.exists = self._fd >= 0
        self.reached = START
        self.ended = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def records(self, start: Position = START) -> Iterator[Record]:
        """Records from ``start``, which must be a `Position` that came from this file."""
        self.reached, self.ended = start, False
        for frame in self._frames(start.frame):
            inside = start.inside if frame.offset == start.frame else 0
            if frame.stream == frames.EOF:
                self.reached, self.ended = Position(frame.offset, 0), True
                return
            yield from _records_of(frame, inside)
            self.reached = Position(frame.end, 0)

    def tail(self, count: int, most_bytes: int) -> list[Record]:
        """The last ``count`` records, fewer if they have over ``most_bytes``; then ``reached`` is the end."""
        found: deque[Record] = deque()
        size = 0
        starts = [0, *self._indexed()]
        following: int | None = None
        while starts and len(found) < count and size < most_bytes:
            start = starts.pop()
            segment = list(self._segment(start, following, count, most_bytes))
            if following is None:
                ended, reached = self.ended, self.reached
            elif self.reached.frame != following:
                # The index and the file do not fit each other: do without the index.
                starts, following = [0], None
                found.clear()
                size = 0
                continue
            found.extendleft(reversed(segment))
            size += sum(len(record.data) for record in segment)
            following = start
            if segment and segment[0].position != (start, 0):
                break  # its beginning found no room, so nothing before it may be shown
        self.ended, self.reached = ended, reached
        while len(found) > count or (size > most_bytes and len(found) > 1):
            size -= len(found.popleft().data)
        return list(found)

    def _segment(self, start: int, stop: int | None, count: int, most_bytes: int) -> deque[Record]:
        """The last records between two frames, bounded by ``count`` and ``most_bytes``."""
        kept: deque[Record] = deque()
        size = 0
        for record in self.records(Position(start, 0)):
            if stop is not None and record.frame >= stop:
                self.reached = Position(record.frame, 0)
                break
            kept.append(record)
            size += len(record.data)
            while len(kept) > count or (size > most_bytes and len(kept) > 1):
                size -= len(kept.popleft().data)
        return kept

    def stream_bytes(self, stream: int, piece_bytes: int = 1 << 20) -> Iterator[bytes]:
        """Exactly the bytes the program wrote to ``stream``; all pieces but the last have ``piece_bytes``."""
        parts: list[bytes] = []
        size = 0
        for frame in self._frames(0):
            if frame.stream == stream:
                parts.append(frame.payload)
                size += len(frame.payload)
                if size >= piece_bytes:
                    yield b"".join(parts)
                    parts.clear()
                    size = 0
            elif frame.stream == frames.EOF:
                self.ended = True
        if parts:
            yield b"".join(parts)

    def has_end(self) -> bool:
        """Whether the file ends as a finished log does; cheap, for a file that nobody writes any more."""
        if self._fd < 0:
            return False
        size = os.fstat(self._fd).st_size
        last = os.pread(self._fd, _HEADER_BYTES, max(0, size - _HEADER_BYTES))
        if len(last) < _HEADER_BYTES:
            return False
        length, stream, *_ = _HEADER.unpack(last)
        return bool(length == 0 and stream == frames.EOF)

    def _frames(self, offset: int) -> Iterator[_Frame]:
        """Whole frames from ``offset`` on; stops before the first that is torn or not a frame at all."""
        if self._fd < 0:
            return
        wanted = FIRST_CHUNK_BYTES
        while True:
            chunk = os.pread(self._fd, wanted, offset)
            wanted = CHUNK_BYTES
            available, at = len(chunk), 0
            while available - at >= _HEADER_BYTES:
                length, stream, _, _, time_ns = _HEADER.unpack_from(chunk, at)
                if not _plausible(length, stream):
                    return
                end = at + _HEADER_BYTES + length
                if end > available:
                    break
                yield _Frame(offset + at, stream, time_ns, chunk[at + _HEADER_BYTES : end])
                if stream == frames.EOF:
                    return
                at = end
            if not at:
                return
            offset += at

    def _indexed(self) -> list[int]:
        """Frame offsets from the index, ascending; none where it is missing or makes no sense."""
        if self._fd < 0:
            return []
        try:
            content = self._index.read_bytes()
        except OSError:
            return []
        size = os.fstat(self._fd).st_size
        whole = len(content) - len(content) % frames.OFFSET.size
        offsets = [offset for (offset,) in frames.OFFSET.iter_unpack(content[:whole])]
        ascending = all(low < high for low, high in zip([0, *offsets], offsets, strict=False))
        return [offset for offset in offsets if offset < size] if ascending else []


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return -1


def _plausible(length: int, stream: int) -> bool:
    if stream == frames.EOF:
        return length == 0
    if stream == frames.GAP:
        return length == frames.OFFSET.size
    return stream in _TEXT and length <= frames.MAX_PAYLOAD


def _records_of(frame: _Frame, start: int) -> Iterator[Record]:
    # The inner loop of everything that reads logs: no object but the record itself is made in it.
    offset, stream, time_ns, payload = frame
    end, size = offset + _HEADER_BYTES + len(payload), len(payload)
    if stream == frames.GAP:
        (dropped,) = frames.OFFSET.unpack(payload)
        yield Record(offset, 0, end, 0, stream, time_ns, b"", partial=False, dropped=dropped)
        return
    while start < size:
        stop = payload.find(b"\n", start)
        if stop < 0:
            yield Record(offset, start, end, 0, stream, time_ns, payload[start:], partial=True)
            return
        after = stop + 1
        if after == size:
            yield Record(offset, start, end, 0, stream, time_ns, payload[start:stop], partial=False)
            return
        yield Record(offset, start, offset, after, stream, time_ns, payload[start:stop], partial=False)
        start = after
