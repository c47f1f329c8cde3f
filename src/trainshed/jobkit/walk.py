"""Walking a directory that a hostile program may have filled, without ever leaving it.

Every step opens one name relative to an open directory and never follows a link, so neither a link nor a
directory swapped during the walk leads out. Nor does a mount: what one shows below the root is not read.
Names come sorted: the same tree gives the same walk.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from trainshed.jobkit.tree import crossed, mount_id

MAX_DEPTH = 64
"""Directories below the root. Deeper ones are named, not entered; each level holds one open file."""
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Besides links: opening a FIFO would wait for its writer, and a terminal would become ours.
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NEW_FILE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class Kind(Enum):
    """What a directory entry is, as its directory says; links are not followed."""

    FILE = "file"
    DIRECTORY = "directory"
    LINK = "symbolic link"
    SPECIAL = "device, FIFO or socket"
    TOO_DEEP = "directory below the depth limit"
    UNREADABLE = "directory that cannot be read"


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry. ``folder`` is its open directory, valid until the walk is asked for the next entry."""

    path: str
    """Relative to the root; bytes that are not UTF-8 are escaped as surrogates."""
    kind: Kind
    folder: int
    reason: str = ""

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    def status(self) -> os.stat_result:
        """The entry's own status. Raises `OSError`."""
        return os.stat(self.name, dir_fd=self.folder, follow_symlinks=False)

    def open(self) -> int:
        """Open the entry for reading, of whatever kind it is; the caller closes it. Raises `OSError`."""
        return _open_within(self.name, _FILE_FLAGS, self.folder)


def _open_within(name: str, flags: int, folder: int) -> int:
    """Open a name of ``folder`` unless something is mounted there."""
    fd = os.open(name, flags, dir_fd=folder)
    if mount_id(fd) == mount_id(folder):
        return fd
    os.close(fd)
    raise crossed(name)


@contextmanager
def _folder_below(root: Path, folders: Sequence[str]) -> Iterator[int]:
    here = os.open(root, _DIRECTORY_FLAGS)
    try:
        for folder in folders:
            deeper = _open_within(folder, _DIRECTORY_FLAGS, here)
            os.close(here)
            here = deeper
        yield here
    finally:
        os.close(here)


def open_below(root: Path, path: str) -> int:
    """Open a file below ``root`` part by part, following no link; the caller closes it. Raises `OSError`."""
    *folders, name = path.split("/")
    with _folder_below(root, folders) as folder:
        return _open_within(name, _FILE_FLAGS, folder)


def touch_below(root: Path, path: str) -> None:
    """Make an empty file in a folder below ``root`` that is there, following no link. Raises `OSError`."""
    *folders, name = path.split("/")
    with _folder_below(root, folders) as folder:
        os.close(os.open(name, _NEW_FILE_FLAGS, 0o666, dir_fd=folder))


class UnreadableRoot(Exception):
    """The root of a walk cannot be read; ``reason`` is the system's word for it."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.gone = isinstance(error, FileNotFoundError)
        self.reason = error.strerror or str(error)


def walk(
    root: Path,
    enter: Callable[[str], bool],
    on_entry: Callable[[], None],
) -> Generator[Entry, None, None]:
    """All entries below ``root``, each directory before what it holds.

    Only directories for which ``enter`` says so are entered. ``on_entry`` is called for each name that is
    read, before sorting, and may raise to bound the walk. Raises `UnreadableRoot`.
    """
    try:
        fd = os.open(root, _DIRECTORY_FLAGS)
    except OSError as error:
        raise UnreadableRoot(error) from error
    try:
        names = _names(fd, on_entry)
        yield from _below(fd, names, "", enter, on_entry)
    except _UnreadableFolder as error:
        raise UnreadableRoot(error.error) from error
    finally:
        os.close(fd)


class _UnreadableFolder(Exception):
    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


def _names(folder: int, on_entry: Callable[[], None]) -> list[tuple[str, Kind]]:
    found = []
    try:
        with os.scandir(folder) as entries:
            for each in entries:
                on_entry()
                found.append((each.name, _kind(each)))
    except OSError as error:
        raise _UnreadableFolder(error) from error
    return sorted(found, key=lambda pair: pair[0])


def _below(
    folder: int,
    names: list[tuple[str, Kind]],
    prefix: str,
    enter: Callable[[str], bool],
    on_entry: Callable[[], None],
) -> Generator[Entry, None, None]:
    for name, kind in names:
        path = f"{prefix}{name}"
        if kind is not Kind.DIRECTORY or not enter(path):
            yield Entry(path, kind, folder)
        elif path.count("/") >= MAX_DEPTH:
            yield Entry(path, Kind.TOO_DEEP, folder)
        else:
            yield Entry(path, kind, folder)
            yield from _inside(Entry(path, Kind.UNREADABLE, folder), enter, on_entry)


def _inside(
    directory: Entry,
    enter: Callable[[str], bool],
    on_entry: Callable[[], None],
) -> Generator[Entry, None, None]:
    try:
        fd = _open_within(directory.name, _DIRECTORY_FLAGS, directory.folder)
    except OSError as error:
        yield replace(directory, reason=error.strerror or "")
        return
    try:
        names = _names(fd, on_entry)
    except _UnreadableFolder as error:
        yield replace(directory, reason=error.error.strerror or "")
    else:
        yield from _below(fd, names, f"{directory.path}/", enter, on_entry)
    finally:
        os.close(fd)


def _kind(entry: os.DirEntry[str]) -> Kind:
    if entry.is_symlink():
        return Kind.LINK
    if entry.is_dir(follow_symlinks=False):
        return Kind.DIRECTORY
    return Kind.FILE if entry.is_file(follow_symlinks=False) else Kind.SPECIAL
