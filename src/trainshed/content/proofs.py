"""Writing a file of which what was written is brought to the device, read back and hashed meanwhile.

Receiving, syncing and reading back a gigabyte one after the other takes the sum of their times; side by side
they take that of the slowest. What is proved is the same: every byte was synced and dropped from the cache
before it is read, and nobody is told that it is there before all of them were compared.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

BUFFER_BYTES = 1 << 20
_STRETCH_BYTES = 4 << 20
"""What is proved at once, at least: shorter ones would cost the device more than they save."""
_PAGE_BYTES = 4096
"""The cache drops whole pages only, so stretches end with one."""


class ChangedOnDevice(Exception):
    """The device did not give back what was written from byte ``offset`` on."""

    def __init__(self, offset: int) -> None:
        super().__init__(f"the device did not give back what was written at byte {offset}")
        self.offset = offset


class ProvedFile:
    """The bytes of an open file from ``start`` on, written by one thread.

    ``digest``, if given, is fed with what the device gives back, in order; it counts once `prove` returned.
    The descriptor must stay open until the context was left: until then ``pool`` may be reading from it.
    """

    def __init__(self, pool: ThreadPoolExecutor, fd: int, start: int = 0, digest: Any = None) -> None:
        self._pool = pool
        self._fd = fd
        self._digest = digest
        self._place = self._begun = start
        self._check = 0
        self._proving: Future[None] | None = None

    @property
    def place(self) -> int:
        """Where the next piece goes."""
        return self._place

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._proving is not None and not self._proving.cancel():
            self._proving.exception()

    def write(self, piece: memoryview) -> None:
        """Write the next bytes. Raises `OSError`, and `ChangedOnDevice` of what was written before them."""
        left = piece
        while left:
            count = os.pwrite(self._fd, left, self._place)
            self._add(left[:count])
            left = left[count:]

    def prove(self) -> None:
        """Return once all that was written is durable and was given back. Raises as `write` does."""
        self._settled()
        if self._place > self._begun:
            _prove(self._fd, self._begun, self._place, self._check, self._digest)
        self._begun, self._check = self._place, 0

    def _add(self, written: memoryview) -> None:
        """Count written bytes, and begin to prove them where nothing is being proved."""
        end = (self._place + len(written)) // _PAGE_BYTES * _PAGE_BYTES
        cut = end - self._place
        idle = self._proving is None or self._proving.done()
        self._place += len(written)
        if not idle or cut < 0 or end - self._begun < _STRETCH_BYTES:
            self._check = zlib.crc32(written, self._check)
            return
        self._settled()
        check = zlib.crc32(written[:cut], self._check)
        self._proving = self._pool.submit(_prove, self._fd, self._begun, end, check, self._digest)
        self._begun, self._check = end, zlib.crc32(written[cut:])

    def _settled(self) -> None:
        proving, self._proving = self._proving, None
        if proving is not None:
            proving.result()


def stretch(fd: int, start: int, end: int) -> Iterator[memoryview]:
    """The bytes of a file from ``start`` to ``end``; a piece is valid until the next one is asked for."""
    # Most are small, and clearing a whole buffer takes longer than hashing one of them.
    buffer = memoryview(bytearray(min(BUFFER_BYTES, max(1, end - start))))
    while start < end and (count := os.preadv(fd, [buffer[: end - start]], start)):
        yield buffer[:count]
        start += count


def _prove(fd: int, start: int, end: int, check: int, digest: Any) -> None:
    os.fdatasync(fd)
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(fd, start, end - start, os.POSIX_FADV_DONTNEED)
    found = 0
    for piece in stretch(fd, start, end):
        found = zlib.crc32(piece, found)
        if digest is not None:
            digest.update(piece)
    if found != check:
        raise ChangedOnDevice(start)
