"""Making what was written durable: one name, or all of a file system at once.

Syncing a thousand small files one by one makes the device flush its cache a thousand times. `Syncs` has the
file system written out once for all who wait; nothing else is as cheap for many files.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import threading
import weakref
from pathlib import Path

_DIRTY_BYTES_A_FILE = 512 << 10
"""About as many bytes a disk writes in the time that syncing one more file by itself takes."""
_LIBC = ctypes.CDLL(None, use_errno=True)
_SYNCFS = getattr(_LIBC, "syncfs", None)
"""Linux has it; elsewhere every file is synced by itself."""
_MEMORY = Path("/proc/meminfo")
_DIRTY = ("Dirty:", "Writeback:")


class Syncs:
    """Syncs of the file system that a folder lies on. Thread-safe.

    Who asks while one is going on waits for the next, together with all others who do: that one begins after
    everything they wrote.
    """

    def __init__(self, folder: Path) -> None:
        # Kept open: the system tells of failed writing since the last time that this descriptor was asked.
        self._fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._fd)
        self._turns = threading.Condition()
        self._running = False
        self._begun = 0
        self._ended = 0
        self._failed = 0
        self._errno = 0

    def pay_off(self, files: int) -> bool:
        """Whether a sync of everything is cheaper than one of each of the ``files`` that wait for it.

        It also waits for what others wrote, to any file: while a program writes gigabytes it is not.
        """
        return _SYNCFS is not None and files > 1 and _dirty_bytes() <= files * _DIRTY_BYTES_A_FILE

    def sync(self) -> None:
        """Return once all that was written before, names and bytes, survives a loss of power.

        Raises `OSError`, also where it is what another program wrote that could not be written out.
        """
        with self._turns:
            mine = self._begun + 1
            while self._running and self._ended < mine:
                self._turns.wait()
            leads = self._ended < mine
            if leads:
                self._begun, self._running = mine, True
        if leads:
            code = errno.EINTR
            try:
                code = _sync_all(self._fd)
            finally:
                with self._turns:
                    self._running, self._ended = False, mine
                    if code:
                        # The system tells of it once. It may have been about what the next ones wrote.
                        self._failed, self._errno = mine + 1, code
                    self._turns.notify_all()
        with self._turns:
            if mine <= self._failed:
                raise OSError(self._errno, os.strerror(self._errno))


def sync_folder(folder: str | Path) -> None:
    """Make the names in a folder durable. Raises `OSError`."""
    sync_file(folder, os.O_DIRECTORY)


def sync_file(path: str | Path, flags: int = 0, *, folder: int | None = None) -> None:
    """Make the bytes of a file durable, by its path or by its name in an open folder. Raises `OSError`."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags, dir_fd=folder)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def locked(fd: int) -> bool:
    """Whether the file or folder could be locked now; the lock ends with the last copy of ``fd``."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _sync_all(fd: int) -> int:
    """The error number of a sync, 0 where all is well."""
    if _SYNCFS is None or _SYNCFS(fd) == 0:
        return 0
    return ctypes.get_errno()


def _dirty_bytes() -> int:
    """Bytes in memory, of whichever program and disk, that are to be written or are being written."""
    with _MEMORY.open() as lines:
        return sum(int(line.split()[1]) for line in lines if line.startswith(_DIRTY)) << 10
