"""Which files of a folder anybody opens or reads, as the kernel tells it (inotify)."""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path
from typing import Self

_LIBC = ctypes.CDLL(None, use_errno=True)
_ACCESS, _OPEN = 0x1, 0x20
_EVENT = struct.Struct("iIII")


class Watch:
    """Watches a folder and everything that lies below it when the context begins.

    Looking at a folder's entries opens the folder, so a scan is seen as well as a read.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: set[str] = set()

    def __enter__(self) -> Self:
        folders = [self._folder, *(Path(name) for name, _, _ in os.walk(self._folder))]
        self._fd = _LIBC.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        assert self._fd >= 0, os.strerror(ctypes.get_errno())
        self._names: dict[int, Path] = {}
        for folder in folders:
            number = _LIBC.inotify_add_watch(self._fd, os.fsencode(folder), _ACCESS | _OPEN)
            assert number >= 0, f"{folder}: {os.strerror(ctypes.get_errno())}"
            self._names[number] = folder
        return self

    def __exit__(self, *_error: object) -> None:
        os.close(self._fd)

    def opened(self) -> set[str]:
        """What was opened or read until now, relative to the folder; ``.`` is the folder itself."""
        try:
            while True:
                self._take(os.read(self._fd, 1 << 16))
        except BlockingIOError:
            return set(self._seen)

    def _take(self, data: bytes) -> None:
        place = 0
        while place < len(data):
            number, _, _, length = _EVENT.unpack_from(data, place)
            place += _EVENT.size
            name = os.fsdecode(data[place : place + length].rstrip(b"\0"))
            place += length
            assert number in self._names, "the kernel lost events"
            self._seen.add(str((self._names[number] / name).relative_to(self._folder)))
