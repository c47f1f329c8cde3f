"""Looking at a file or a folder that is to be published: what is in it, and the SHA-256 of every file.

Only regular files are published. Links, devices, FIFOs, sockets, names that are not UTF-8 and names that
would collide elsewhere are refused, all of them at once. Left out are `SKIPPED`: bookkeeping of version
control, caches of Python and notebooks, and what desktops leave behind, and what a rule of
`trainshed.sdk.leaving_out` names. Empty folders are not published.
"""

from __future__ import annotations

import hashlib
import os
import stat
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import BinaryIO

from trainshed.sdk.errors import ContentChanged, FieldFault, LocalFileError, NotFreezable

SKIPPED = frozenset(
    {
        ".git",
        ".hg",
        ".svn",
        "__pycache__",
        ".ipynb_checkpoints",
        ".pytest_cache",
        ".mypy_cache",
        ".ruff_cache",
        ".DS_Store",
        "Thumbs.db",
        "desktop.ini",
    }
)
"""Names of files and folders that are never published, wherever they are."""
NEVER = "never published"
MAX_THREADS = 8
_CHUNK = 1 << 20
_BATCH_FILES = 64
_BATCH_BYTES = 8 << 20
_CODE = "INVALID_CONTENT"
_LEAVE_OUT = "move it away or exclude it (`--exclude`)"
_KINDS = (
    (stat.S_ISLNK, "is a symbolic link; publish the file itself in its place"),
    (stat.S_ISFIFO, f"is a FIFO; {_LEAVE_OUT}"),
    (stat.S_ISSOCK, f"is a socket; {_LEAVE_OUT}"),
    (stat.S_ISBLK, f"is a device; {_LEAVE_OUT}"),
    (stat.S_ISCHR, f"is a device; {_LEAVE_OUT}"),
)
_by_name = attrgetter("name")
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

Rule = Callable[[str, bool], str | None]
"""Why a path (relative; whether it is a folder) is left out, or ``None``. What is below is not asked for."""
Progress = Callable[[int, int], None]
"""Told (bytes done, bytes in all), from several threads."""


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A regular file as it was found."""

    path: str
    """Relative, ``/`` between parts."""
    place: str
    """Where it lies."""
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    executable: bool

    @property
    def state(self) -> tuple[int, int, int, int]:
        """What changes when the file is written or replaced."""
        return self.size, self.mtime_ns, self.ctime_ns, self.inode


_NUMBERS = 5


@dataclass(slots=True)
class _Folder:
    """The regular files of one folder, without an object for each."""

    prefix: str
    """Relative: empty, or it ends in ``/``."""
    place: str
    names: list[str] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    """Of each file in turn: size, mtime_ns, ctime_ns, inode, mode."""


@dataclass(slots=True)
class Tree:
    """Everything found below a path."""

    root: Path
    """The path, links followed."""
    folders: list[_Folder] = field(default_factory=list)
    """Those that hold regular files, in the order of their names."""
    skipped: dict[str, str] = field(default_factory=dict)
    """What was left out, and why: `NEVER` or what the rule said. Of a folder what is in it is not listed."""
    faults: list[FieldFault] = field(default_factory=list)
    target: str | None = None
    """Where a single file lies that was named by a link, which gives it its name."""
    _files: list[LocalFile] | None = None

    @property
    def files(self) -> list[LocalFile]:
        """The regular files, in the order of the paths' bytes.

        Made when they are asked for: a tree that is unchanged needs none.
        """
        if self._files is None:
            self._files = []
            for folder in self.folders:
                numbers = iter(folder.numbers)
                told = zip(folder.names, *[numbers] * _NUMBERS, strict=True)
                self._files += [
                    LocalFile(
                        folder.prefix + name,
                        self.target or f"{folder.place}/{name}",
                        size,
                        mtime_ns,
                        ctime_ns,
                        inode,
                        bool(mode & stat.S_IXUSR),
                    )
                    for name, size, mtime_ns, ctime_ns, inode, mode in told
                ]
            self._files.sort(key=lambda file: file.path.encode("utf-8", "surrogateescape"))
        return self._files

    @property
    def total_bytes(self) -> int:
        return sum(sum(folder.numbers[::_NUMBERS]) for folder in self.folders)

    def signature(self) -> str:
        """The same for two looks only if no file was written, replaced, added, removed or renamed between."""
        digest = hashlib.sha256()
        for folder in self.folders:
            # A path holds no NUL and a name is not empty, so that this is one way to write all of it down.
            digest.update("\0".join([folder.prefix, *folder.names, "\0"]).encode("utf-8", "surrogateescape"))
            try:
                digest.update(array("q", folder.numbers))
            except OverflowError:
                # Inodes of some file systems, and times of damaged ones.
                digest.update(repr(folder.numbers).encode())
        return digest.hexdigest()

    def check(
        self,
        also: Sequence[FieldFault] = (),
        more: Callable[[], Sequence[FieldFault]] = tuple,
    ) -> None:
        """Refuse what must not be published, with every fault: raises `NotFreezable`.

        ``also`` are faults of other places. ``more`` is asked for what need not be looked for alone: it is
        told beside others.
        """
        from trainshed.model.manifests import tree_faults  # noqa: PLC0415 - not for an unchanged tree

        wrong = tree_faults(file.path for file in self.files)
        found = [*self.faults, *(FieldFault(each.path, each.code, each.message) for each in wrong)]
        if not self.folders and not found:
            but = "but what is left out" if self.skipped else ""
            found.append(FieldFault("", _CODE, f"{self.root} holds no files {but}".rstrip()))
        if found := [*found, *also]:
            refuse(self.root, [*found, *more()])


def refuse(root: Path, faults: Sequence[FieldFault]) -> None:
    """Raise `NotFreezable` if there are faults."""
    if faults:
        count = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        raise NotFreezable(
            faults[0].code,
            f"{root} cannot be published: {faults[0].message}{count}",
            tuple(faults),
            hint="Correct or move away what is named; nothing was sent.",
        )


def look(path: Path, rule_at: Callable[[Path, bool], Rule] | None = None) -> Tree:
    """Find every file below ``path`` (a folder, or one file). Nothing is read yet; faults are noted.

    Where ``path`` itself is a link, it is followed: who names it means what it leads to, under its name.

    ``rule_at`` answers for the resolved path, and whether it is a folder, what is left out. Raises
    `LocalFileError` where there is nothing to look at, and what ``rule_at`` raises.
    """
    try:
        root = path.resolve(strict=True)
        info = root.stat()
    except (OSError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise LocalFileError(f"cannot read {path}: {reason}") from None
    tree = Tree(root)
    is_folder = stat.S_ISDIR(info.st_mode)
    rule = None if rule_at is None else rule_at(root, is_folder)
    if is_folder:
        _walk(tree, str(root), rule)
        tree.folders.sort(key=lambda folder: folder.prefix)
    else:
        alone = _Folder("", str(root.parent))
        tree.target = str(root)
        # What is left out for what it is stays so under another name.
        if rule is not None and (why := rule(root.name, is_folder) or rule(path.name, is_folder)):
            tree.skipped[path.name] = why
        else:
            _judge(tree, alone, path.name, info)
        tree.folders += [alone] if alone.names else []
    return tree


def _walk(tree: Tree, root: str, rule: Rule | None) -> None:
    """Look at a folder and those below it, without following links and without recursion."""
    waiting = [_Folder("", root)]
    while waiting:
        folder = waiting.pop()
        prefix, place = folder.prefix, folder.place
        try:
            with os.scandir(place) as found:
                for entry in sorted(found, key=_by_name):
                    name = entry.name
                    if name in SKIPPED:
                        tree.skipped[prefix + name] = NEVER
                    elif rule and (why := rule(prefix + name, entry.is_dir(follow_symlinks=False))):
                        tree.skipped[prefix + name] = why
                    elif entry.is_dir(follow_symlinks=False):
                        waiting.append(_Folder(f"{prefix}{name}/", entry.path))
                    else:
                        _judge(tree, folder, name, entry.stat(follow_symlinks=False))
        except OSError as error:
            where = prefix.rstrip("/")
            tree.faults.append(FieldFault(_shown(where), _CODE, f"`{_shown(where)}` {_unreadable(error)}"))
        if folder.names:
            tree.folders.append(folder)


def _judge(tree: Tree, folder: _Folder, name: str, info: os.stat_result) -> None:
    mode = info.st_mode
    if stat.S_ISREG(mode):
        folder.names.append(name)
        folder.numbers += (info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino, mode)
        return
    path = folder.prefix + name
    said = next((words for is_kind, words in _KINDS if is_kind(mode)), "is no regular file")
    tree.faults.append(FieldFault(_shown(path), _CODE, f"`{_shown(path)}` {said}"))


@contextmanager
def opened(file: LocalFile) -> Iterator[int]:
    """The file's descriptor, if it is still the one that was found; raises `LocalFileError`.

    When the block ends the file must be as it was, or what was read of it is not one state of it.
    """
    descriptor = open_unchanged(file)
    try:
        yield descriptor
        _unchanged(file, descriptor)
    finally:
        os.close(descriptor)


def open_unchanged(file: LocalFile) -> int:
    """A descriptor of the file that was found; raises `LocalFileError`."""
    try:
        descriptor = os.open(file.place, _OPEN)
    except OSError as error:
        raise LocalFileError(f"`{_shown(file.path)}` {_unreadable(error)}") from None
    try:
        _unchanged(file, descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def open_stream(file: LocalFile) -> BinaryIO:
    """The file to read from for an upload. Raises `LocalFileError`."""
    return os.fdopen(open_unchanged(file), "rb", buffering=0)


def hash_files(
    files: Sequence[LocalFile], progress: Progress | None = None, files_progress: Progress | None = None
) -> list[str]:
    """The SHA-256 of each file, several at a time; a constant amount of memory however large they are.

    Raises `NotFreezable` with every file that cannot be read or changes while it is.
    """
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - not for an unchanged tree

    total = sum(file.size for file in files)
    counter = _Counter(total, progress)
    named = _Counter(len(files), files_progress)
    faults: list[FieldFault] = []

    def batch(some: Sequence[LocalFile]) -> list[str]:
        buffer = memoryview(bytearray(min(_CHUNK, max(1, *(file.size for file in some)))))
        found = []
        for file in some:
            try:
                found.append(_hash(file, buffer, counter))
                named.add(1)
            except LocalFileError as error:
                found.append("")
                faults.append(FieldFault(_shown(file.path), _CODE, error.message))
        return found

    threads = max(1, min(MAX_THREADS, os.cpu_count() or 1))
    with ThreadPoolExecutor(max_workers=threads) as pool:
        digests = [digest for some in pool.map(batch, _batches(files)) for digest in some]
    if faults:
        faults.sort(key=lambda fault: fault.path)
        refuse(Path(os.path.commonpath([file.place for file in files])), faults)
    return digests


def _hash(file: LocalFile, buffer: memoryview, counter: _Counter) -> str:
    digest = hashlib.sha256()
    with opened(file) as descriptor:
        done = 0
        while count := os.readv(descriptor, [buffer]):
            digest.update(buffer[:count])
            done += count
            counter.add(count)
            if done > file.size:
                break
    return digest.hexdigest()


def _batches(files: Sequence[LocalFile]) -> Iterator[list[LocalFile]]:
    """Small files many at a time: handing one to a thread costs more than reading it."""
    some: list[LocalFile] = []
    size = 0
    for file in files:
        some.append(file)
        size += file.size
        if len(some) == _BATCH_FILES or size >= _BATCH_BYTES:
            yield some
            some, size = [], 0
    if some:
        yield some


class _Counter:
    """Adds up what several threads have read."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._total = total
        self._done = 0
        self._progress = progress

    def add(self, count: int) -> None:
        if self._progress is not None:
            # Losing one of two additions at once makes a bar jump, and nothing else.
            self._done += count
            self._progress(min(self._done, self._total), self._total)


def _unchanged(file: LocalFile, descriptor: int) -> None:
    info = os.fstat(descriptor)
    state = (info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino)
    if not stat.S_ISREG(info.st_mode) or state != file.state:
        raise ContentChanged(
            f"`{_shown(file.path)}` changed while it was being published",
            hint="Publish again when nothing writes there any more.",
        )


def _unreadable(error: OSError) -> str:
    return f"cannot be read: {error.strerror or error}"


def _shown(path: str) -> str:
    from trainshed.model.runner_tree import path_text  # noqa: PLC0415 - not for an unchanged tree

    return path_text(path)
