"""The server's data folder: checked before anything is started, locked while a server uses it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trainshed import __version__

ANNOUNCEMENT = "server.json"
LOCK_FILE = "serve.lock"
CONTROLLER_LOCK_FILE = "controller.lock"
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_PROBE_BYTES = 256 << 10
"""Less than this is as good as nothing."""
_UNWRITABLE = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})


class FolderUnusable(Exception):
    """The data folder cannot be used; the message is one sentence for the operator."""


class FolderInUse(FolderUnusable):
    """Another server works on the same data folder."""


@dataclass(frozen=True, slots=True)
class DataFolder:
    """Where everything of a server lies."""

    root: Path

    @property
    def database(self) -> Path:
        return self.root / "trainshed.sqlite"

    @property
    def content(self) -> Path:
        return self.root / "content"

    @property
    def engine(self) -> Path:
        return self.root / "local"

    @property
    def owner_key(self) -> Path:
        return self.root / "owner.key"

    @property
    def secrets_key(self) -> Path:
        """With what hidden values are encrypted (P9)."""
        return self.root / "secrets.key"


def open_folder(root: Path) -> DataFolder:
    """Create the folder if needed and prove that it can be written. Raises `FolderUnusable`.

    A full disk is no reason: what is stored can be read, and Trials that run come to their ends.
    """
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _probe(root):
            pass
    except (FileExistsError, NotADirectoryError):
        raise FolderUnusable(f"{root} is not a folder") from None
    except OSError as error:
        if error.errno in _FULL:
            return DataFolder(root)
        if error.errno in _UNWRITABLE:
            raise FolderUnusable(f"the data folder {root} cannot be written: {error.strerror}") from error
        raise FolderUnusable(f"the data folder {root} cannot be used: {error.strerror}") from error
    return DataFolder(root)


def check_database(folder: DataFolder) -> None:
    """Refuse to begin anew beside what an earlier server left. Raises `FolderUnusable`.

    The database is made before anything else, so a folder that holds more and no database has lost it.
    """
    with contextlib.suppress(FileNotFoundError):
        if folder.database.stat().st_size:
            return
    attempts = folder.engine / "attempts"
    if folder.owner_key.exists() or (attempts.is_dir() and any(attempts.iterdir())):
        raise FolderUnusable(
            f"{folder.root} holds what a server left, but its database {folder.database.name} is missing: "
            "put it back, name another with --database-url, or choose an empty folder to begin anew"
        )


def write_fault(folder: DataFolder) -> str | None:
    """Why nothing can be stored in the folder now, ``None`` if something can; costs a small write."""
    try:
        with _probe(folder.root) as fd:
            os.posix_fallocate(fd, 0, _PROBE_BYTES)
    except OSError as error:
        return error.strerror or type(error).__name__
    return None


@contextlib.contextmanager
def _probe(root: Path) -> Iterator[int]:
    """A new file that is gone afterwards."""
    place = root / f".probe-{os.getpid()}"
    place.unlink(missing_ok=True)
    fd = os.open(place, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        yield fd
    finally:
        os.close(fd)
        place.unlink()


@contextlib.contextmanager
def take(folder: DataFolder, role: str, *, one_controller: bool) -> Iterator[None]:
    """Hold the folder for this process; raises `FolderInUse`.

    A server with role ``all`` wants it alone. ``api`` and ``controller`` share it with each other; with
    ``one_controller`` a second controller is refused instead of standing by.
    """
    with contextlib.ExitStack() as stack:
        whole = _lock(folder, LOCK_FILE, alone=role == "all")
        stack.callback(os.close, whole)
        if role == "controller" and one_controller:
            stack.callback(os.close, _lock(folder, CONTROLLER_LOCK_FILE, alone=True))
        yield


def _lock(folder: DataFolder, name: str, *, alone: bool) -> int:
    fd = os.open(folder.root / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(fd, 32).decode("ascii", "replace").strip()
        os.close(fd)
        said = f" (process {holder})" if holder else ""
        what = "controller" if name == CONTROLLER_LOCK_FILE else "server"
        raise FolderInUse(f"another {what}{said} uses the data folder {folder.root}") from None
    with contextlib.suppress(OSError):  # a full disk: only the name of the holder is lost
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd


def announce(folder: DataFolder, url: str) -> None:
    """Say where this server is, for clients on this machine: ``server.json``, readable by its user only."""
    document = {"url": url, "pid": os.getpid(), "started_at": time.time(), "version": __version__}
    part = folder.root / f".{ANNOUNCEMENT}-{os.getpid()}"
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        json.dump(document, file)
    part.replace(folder.root / ANNOUNCEMENT)


def withdraw(folder: DataFolder) -> None:
    """Take back this process's own announcement."""
    place = folder.root / ANNOUNCEMENT
    with contextlib.suppress(OSError, ValueError):
        if json.loads(place.read_text(encoding="utf-8"))["pid"] == os.getpid():
            place.unlink()
