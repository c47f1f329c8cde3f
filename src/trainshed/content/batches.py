"""Several small files made durable, proved and named together, at the price of few.

All files of a batch are written into a folder of their own and brought to the device by one sync of the file
system; then they are dropped from the cache, read back and compared byte by byte; only then each is renamed
to its place, and another sync makes the names durable. While others have much to write, which such a sync
would wait for, each file and each folder is synced by itself instead: the promise is the same.

A folder that is not locked belongs to a writer who is gone.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from trainshed.content.syncs import Syncs, locked, sync_file, sync_folder

_AT_ONCE = 4
"""Batches, each of which is in memory."""
_WAITERS = 8
_READ_AT_ONCE = 64
"""Files that are open at a time."""
_MODE = 0o444
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW


class NotGivenBack(Exception):
    """The device gave back other bytes of the file ``name`` than were written: ``found``."""

    def __init__(self, name: str, found: bytes) -> None:
        super().__init__(name)
        self.name = name
        self.found = found


class Batches:
    """Puts batches of files into ``shards``, each into the folder of its name's first two characters.

    ``root`` must lie on the same file system. Thread-safe; several processes may use the same folders.
    Opening removes what writers left who are gone. Raises `OSError`, as all methods do.
    """

    def __init__(self, root: Path, shards: Path) -> None:
        self._root = root
        self._shards = shards
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._syncs = Syncs(root)
        self._waiters = ThreadPoolExecutor(_WAITERS, "batches")
        self._room = threading.BoundedSemaphore(_AT_ONCE)
        self._guard = threading.Lock()
        self._files = 0
        for path in root.iterdir():
            # What is no folder, or holds folders, no writer left.
            with contextlib.suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
                folder = self._open(path.name)
                try:
                    if locked(folder):
                        self._remove(path.name, folder)
                finally:
                    os.close(folder)

    def put(self, contents: Mapping[str, bytes]) -> None:
        """Have all of the files, name -> bytes, in their places, durable and read back when this returns.

        Raises `NotGivenBack`. None is in its place then, nor after an `OSError` before the first is named.
        """
        with self._room, self._counted(len(contents)), self._folder() as folder:
            _write(folder, contents)
            together = self._syncs.pay_off(self._files)
            if together:
                self._syncs.sync()
            else:
                list(self._waiters.map(lambda name: sync_file(name, folder=folder), contents))
            _prove(folder, contents)
            for name in contents:
                os.rename(name, f"{self._shard(name)}/{name}", src_dir_fd=folder)
            if together:
                self._syncs.sync()
            else:
                list(self._waiters.map(sync_folder, {self._shard(name) for name in contents}))

    def _shard(self, name: str) -> str:
        return f"{self._shards}/{name[:2]}"

    @contextlib.contextmanager
    def _counted(self, files: int) -> Iterator[None]:
        """Let batches that are stored at the same time know of each other: they share their syncs."""
        with self._guard:
            self._files += files
        try:
            yield
        finally:
            with self._guard:
                self._files -= files

    @contextlib.contextmanager
    def _folder(self) -> Iterator[int]:
        """A new folder, locked for as long as its writer lives; gone afterwards with what was not renamed."""
        name, folder = self._new_folder()
        try:
            yield folder
        finally:
            with contextlib.suppress(OSError):
                self._remove(name, folder)
            os.close(folder)

    def _new_folder(self) -> tuple[str, int]:
        while True:
            name = secrets.token_hex(16)
            (self._root / name).mkdir(mode=0o700)
            # Another process that opens the store may remove the folder before it is locked.
            with contextlib.suppress(FileNotFoundError):
                folder = self._open(name)
                if locked(folder) and os.fstat(folder).st_nlink:
                    return name, folder
                os.close(folder)

    def _open(self, name: str) -> int:
        return os.open(self._root / name, _READ | os.O_DIRECTORY)

    def _remove(self, name: str, folder: int) -> None:
        for left in os.listdir(folder):
            os.unlink(left, dir_fd=folder)
        (self._root / name).rmdir()


def _write(folder: int, contents: Mapping[str, bytes]) -> None:
    masked = None
    for name, content in contents.items():
        fd = os.open(name, _CREATE, _MODE, dir_fd=folder)
        try:
            if masked is None:
                masked = stat.S_IMODE(os.fstat(fd).st_mode) != _MODE
            if masked:
                os.fchmod(fd, _MODE)
            left = memoryview(content)
            while left:
                left = left[os.write(fd, left) :]
        finally:
            os.close(fd)


def _prove(folder: int, contents: Mapping[str, bytes]) -> None:
    """Compare what the device gives back. Raises `NotGivenBack`."""
    names = list(contents)
    for start in range(0, len(names), _READ_AT_ONCE):
        _prove_some(folder, names[start : start + _READ_AT_ONCE], contents)


def _prove_some(folder: int, names: Sequence[str], contents: Mapping[str, bytes]) -> None:
    with contextlib.ExitStack() as stack:
        files = []
        for name in names:
            fd = os.open(name, _READ, dir_fd=folder)
            stack.callback(os.close, fd)
            files.append((name, fd))
            if hasattr(os, "posix_fadvise"):
                # Without the copy in memory; the device is asked for all of them before the first is read.
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_WILLNEED)
        for name, fd in files:
            if (found := _read(fd, len(contents[name]) + 1)) != contents[name]:
                raise NotGivenBack(name, found)


def _read(fd: int, most: int) -> bytes:
    buffer, size = bytearray(most), 0
    while count := os.preadv(fd, [memoryview(buffer)[size:]], size):
        size += count
    return bytes(memoryview(buffer)[:size])
