"""Reading a file that its program may still be writing to, and noticing if it does."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable

from trainshed.content.proofs import BUFFER_BYTES


class FileChanged(Exception):
    """The file is not what it was when it was opened."""


class SteadyFile:
    """Reads an open file and raises `FileChanged` unless it stayed what it was when it was opened.

    The check comes with the last read, so a store that hits it has not yet made anything visible.
    """

    def __init__(self, fd: int, status: os.stat_result, check: Callable[[], None]) -> None:
        self.size = status.st_size
        self._fd = fd
        self._stamp = stamp_of(status)
        self._check = check
        self._place = 0

    def read(self, size: int, /) -> bytes:
        buffer = bytearray(size)
        return bytes(buffer[: self.readinto(memoryview(buffer))])

    def readinto(self, buffer: memoryview, /) -> int:
        self._check()
        count = os.preadv(self._fd, [buffer], self._place)
        self._place += count
        if self._place > self.size or (not count and not self._is_steady()):
            raise FileChanged
        return count

    def content(self) -> bytes:
        """All of a small file."""
        found = bytearray()
        while piece := self.read(self.size + 1):
            found += piece
        return bytes(found)

    def sha256(self) -> str:
        """The digest of the whole file; afterwards the file is read from its start again."""
        digest, buffer = hashlib.sha256(), memoryview(bytearray(min(BUFFER_BYTES, self.size + 1)))
        while count := self.readinto(buffer):
            digest.update(buffer[:count])
        self._place = 0
        return digest.hexdigest()

    def _is_steady(self) -> bool:
        return self._place == self.size and stamp_of(os.fstat(self._fd)) == self._stamp


def stamp_of(status: os.stat_result) -> tuple[int, int, int]:
    # The change time cannot be set back by a program, the modification time can.
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns
