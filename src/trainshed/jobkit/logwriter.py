"""From two pipes into one file of frames, at the speed of the pipes.

No work is done per line: a read of up to 256 KiB is cut into frames of at most 64 KiB, each at
its last line end, and all of them are written with one system call.
"""

from __future__ import annotations

import fcntl
import os
import time

from trainshed.jobkit import folder, frames

_FIRST_BUFFER = 1 << 13
# Larger is slower: a megabyte no longer fits the processor's cache, and ext4 took four times as long for it.
_LAST_BUFFER = (1 << 18) + frames.MAX_PAYLOAD
_LARGE_PIPE = 1 << 18
_HOLD_NS = int(frames.HOLD_SECONDS * 1e9)
_ROOM = 1 << 11
_OPEN_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainshed.jobkit.folder import StrPath
    from trainshed.jobkit.masking import Masker


class Stream:
    """One output pipe of the program, and the unfinished line held back from it."""

    __slots__ = ("fd", "held", "held_since", "kind", "masker")

    def __init__(self, fd: int, kind: int) -> None:
        os.set_blocking(fd, False)
        self.fd = fd
        self.kind = kind
        self.held = b""
        self.held_since = 0
        self.masker: Masker | None = None
        """Hides values in it."""


class LogWriter:
    """Appends frames. Never raises for a full disk and never waits: what it cannot keep it counts."""

    def __init__(self, frames_path: str, index_path: str, limit: int) -> None:
        self._fd = os.open(frames_path, _OPEN_FLAGS, 0o600)
        self._index_path = index_path
        self._index_fd = -1  # most logs are too short to need one
        self._buffer = bytearray(_FIRST_BUFFER)
        self._view = memoryview(self._buffer)
        self._offset = 0
        self._indexed = 0
        self._room = limit
        self._full = False
        self._dropped = 0
        self.written_bytes = 0
        """Payload kept."""
        self.dropped_bytes = 0
        """Payload lost to the limit or to a full disk."""

    @property
    def file_bytes(self) -> int:
        """Size of the file so far, frames and all."""
        return self._offset

    def read(self, stream: Stream) -> int:
        """Take what the pipe holds, up to one buffer full. 0 at the end, -1 if there is nothing now."""
        if stream.masker is not None:
            return self._read_masked(stream, stream.masker)
        held = len(stream.held)
        if len(self._buffer) - held < _ROOM:
            self._grow()
        self._buffer[:held] = stream.held
        try:
            count = os.readv(stream.fd, [self._view[held:]])
        except BlockingIOError:
            return -1
        if count == 0:
            return 0
        end = held + count
        now = time.time_ns()
        kept_from = self._cut(stream.kind, end, now)
        stream.held = bytes(self._view[kept_from:end])
        if kept_from or not held:
            stream.held_since = now
        if end == len(self._buffer) and end < _LAST_BUFFER:
            self._grow()
            self._widen(stream.fd)
        return count

    def _read_masked(self, stream: Stream, masker: Masker) -> int:
        try:
            data = os.read(stream.fd, _LARGE_PIPE)
        except BlockingIOError:
            return -1
        self._take(stream, masker.feed(data))
        return len(data)

    def _take(self, stream: Stream, data: bytes) -> None:
        """Write what did not come out of a pipe just now."""
        rest = memoryview(data)
        while rest:
            held = len(stream.held)
            while len(self._buffer) - held < _ROOM:
                self._grow()
            end = min(len(self._buffer), held + len(rest))
            self._buffer[:held] = stream.held
            self._buffer[held:end] = rest[: end - held]
            rest = rest[end - held :]
            now = time.time_ns()
            kept_from = self._cut(stream.kind, end, now)
            stream.held = bytes(self._view[kept_from:end])
            if kept_from or not held:
                stream.held_since = now

    def finish(self, stream: Stream) -> None:
        """Write all that is left of a stream at whose end we are."""
        if stream.masker is not None:
            self._take(stream, stream.masker.finish())
        self.flush_now(stream)

    def flush(self, stream: Stream, now: int) -> None:
        """Write the held line if it has waited for long enough at ``now`` (nanoseconds)."""
        if stream.held and now - stream.held_since >= _HOLD_NS:
            self.flush_now(stream)

    def flush_now(self, stream: Stream) -> None:
        """Write the held line as a piece."""
        if stream.held:
            head = frames.header(len(stream.held), stream.kind, frames.CONTINUES, time.time_ns())
            self._write([head, stream.held], [self._offset], len(stream.held))
            stream.held = b""

    def close(self) -> bool:
        """Say what was dropped, write the end, make it durable; ``False`` if a full disk prevents that."""
        self._write_gap()
        ended = self._append([frames.header(0, frames.EOF, 0, time.time_ns())])
        try:
            os.fdatasync(self._fd)
        except OSError:
            ended = False
        os.close(self._fd)
        if self._index_fd >= 0:
            os.close(self._index_fd)
        return ended and not self._dropped

    def _cut(self, kind: int, end: int, now: int) -> int:
        """Write frames out of the buffer; returns where the unfinished line begins."""
        buffer, view = self._buffer, self._view
        parts: list[bytes | memoryview] = []
        offsets: list[int] = []
        start, offset = 0, self._offset
        while start < end:
            most = min(start + frames.MAX_PAYLOAD, end)
            stop = buffer.rfind(b"\n", start, most) + 1
            flags = 0
            if not stop:
                if most - start < frames.MAX_PAYLOAD:
                    break
                stop, flags = most, frames.CONTINUES
            parts += (frames.header(stop - start, kind, flags, now), view[start:stop])
            offsets.append(offset)
            offset += frames.HEADER.size + stop - start
            start = stop
        if parts:
            self._write(parts, offsets, start)
        return start

    def _write(self, parts: list[bytes | memoryview], offsets: list[int], payload: int) -> None:
        if self._full:
            self._drop(payload)
            return
        if payload > self._room:
            while parts and len(parts[1]) <= self._room:
                self._write(parts[:2], [self._offset], len(parts[1]))
                payload -= len(parts[1])
                parts = parts[2:]
            self._full = True  # nothing later is kept: what remains is a beginning without holes
            self._drop(payload)
            self._write_gap()
            return
        if self._dropped:
            before = self._offset
            self._write_gap()
            offsets = [offset + self._offset - before for offset in offsets]
        if self._dropped or not self._append(parts):
            self._drop(payload)
            return
        self._room -= payload
        self.written_bytes += payload
        for offset in offsets:
            if offset - self._indexed >= frames.INDEX_EVERY:
                self._indexed = offset
                self._index(offset)

    def _drop(self, payload: int) -> None:
        self._dropped += payload
        self.dropped_bytes += payload

    def _write_gap(self) -> None:
        if self._dropped:
            payload = frames.OFFSET.pack(self._dropped)
            if self._append([frames.header(len(payload), frames.GAP, 0, time.time_ns()), payload]):
                self._dropped = 0

    def _append(self, parts: list[bytes | memoryview]) -> bool:
        """All of it or nothing."""
        wanted = sum(map(len, parts))
        try:
            written = os.writev(self._fd, parts)
        except OSError:
            written = 0
        if written < wanted:
            os.ftruncate(self._fd, self._offset)
            return False
        self._offset += wanted
        return True

    def _index(self, offset: int) -> None:
        try:
            if self._index_fd < 0:
                self._index_fd = os.open(self._index_path, _OPEN_FLAGS, 0o600)
            os.write(self._index_fd, frames.OFFSET.pack(offset))
        except OSError:
            return  # readers do without

    def _grow(self) -> None:
        size = min(len(self._buffer) * 16, _LAST_BUFFER)
        larger = bytearray(size)
        larger[: len(self._buffer)] = self._buffer
        self._view.release()
        self._buffer = larger
        self._view = memoryview(larger)

    @staticmethod
    def _widen(fd: int) -> None:
        try:
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _LARGE_PIPE)
        except OSError:
            return  # beyond what this user may have in pipes; only slower


def end_log(path: StrPath) -> None:
    """See to it that the log in the attempt folder ``path`` ends with an end frame.

    After a shim was killed, a torn frame may be at the tail; it is cut off. Nobody may be writing.
    """
    fd = os.open(os.path.join(path, folder.FRAMES), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        size = os.fstat(fd).st_size
        offset = _last_indexed(os.path.join(path, folder.INDEX), size)
        while offset + frames.HEADER.size <= size:
            length, kind, _, _, _ = frames.HEADER.unpack(os.pread(fd, frames.HEADER.size, offset))
            if kind == frames.EOF:
                return
            if length > frames.MAX_PAYLOAD or offset + frames.HEADER.size + length > size:
                break
            offset += frames.HEADER.size + length
        os.ftruncate(fd, offset)
        os.pwrite(fd, frames.header(0, frames.EOF, 0, time.time_ns()), offset)
        os.fdatasync(fd)
    finally:
        os.close(fd)


def _last_indexed(path: str, size: int) -> int:
    try:
        with open(path, "rb") as file:
            index = file.read()
    except FileNotFoundError:
        return 0
    for at in range(len(index) // frames.OFFSET.size - 1, -1, -1):
        (offset,) = frames.OFFSET.unpack_from(index, at * frames.OFFSET.size)
        if offset < size:
            return int(offset)
    return 0
