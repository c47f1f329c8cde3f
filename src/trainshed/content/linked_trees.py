"""A folder of hard links: the files of a content under their own names, without a copy of their bytes.

A tree is built beside its place and renamed there whole. Its index remembers what every file and folder
looked like, so that a later look finds whatever changed without reading a byte (decision 16).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trainshed.jobkit.tree import copy_file
from trainshed.model.content import ContentFile
from trainshed.model.strict_json import canonical_json

FILES, INDEX, INFO = "files", "index.jsonl", "info.json"
_END = "[]\n"
_FOLDER_BYTES, _ENTRY_BYTES = 4096, 64
"""About what a folder and a name cost, so that many small trees do not count as nothing."""
_NOT_LINKED = frozenset({errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EOPNOTSUPP})
"""Another file system, one without hard links, or 65,000 names already."""
_READABLE, _EXECUTABLE = 0o444, 0o555
Stamp = tuple[int, int, int]


def stamp_of(status: os.stat_result) -> Stamp:
    """What changes when a file's bytes do: inode, size, modification time.

    Not the change time: that of a file moves with every tree that links to it.
    """
    return status.st_ino, status.st_size, status.st_mtime_ns


@dataclass(frozen=True, slots=True)
class TreeInfo:
    """What is known of a tree without reading its index."""

    own_bytes: int
    """Disk that goes with the tree: copies, folders and names, but no bytes that it only links to."""
    keeper: str
    """A blob whose absence says that nobody can want this tree any more."""
    entries: int = 0
    """Files and folders, which a look at the tree asks for one by one."""


def name_of(files: Sequence[ContentFile]) -> str:
    """A name for a tree that no manifest names: equal files have equal names."""
    rows = sorted((file.path, file.sha256, file.executable) for file in files)
    return f"files-{hashlib.sha256(canonical_json(rows).encode()).hexdigest()}"


class CopyDiffers(Exception):
    """A copy does not hold the bytes of its source."""


def build(
    folder: Path,
    files: Iterable[ContentFile],
    source: Callable[[str], Path],
    keeper: str,
    check: Callable[[], None],
) -> TreeInfo:
    """Make ``folder``, which is empty, a tree of these files; ``source`` answers a verified file of a digest.

    ``check`` is called now and then and may raise. Raises `OSError`, `CopyDiffers`, and `ValueError` for a
    path that leads out of the tree.
    """
    top = folder / FILES
    top.mkdir()
    made: dict[str, str] = {"": os.fspath(top)}
    own = _FOLDER_BYTES
    crowded: dict[str, str] = {}
    with (folder / INDEX).open("w", encoding="utf-8") as index:
        entries = 0
        for file in files:
            check()
            entries += 1
            if not {"", ".", ".."}.isdisjoint(file.path.split("/")):
                raise ValueError(f"{file.path[:80]!r} names no file of a tree")
            parent, _, name = file.path.rpartition("/")
            for each in _missing(parent, made):
                made[each] = f"{top}/{each}"
                Path(made[each]).mkdir()
                own += _FOLDER_BYTES
            place = f"{made[parent]}/{name}"
            copied = _put(crowded.get(file.sha256) or os.fspath(source(file.sha256)), place, file, crowded)
            own += _ENTRY_BYTES + (file.size if copied else 0)
            index.write(_row(file.path, *stamp_of(os.lstat(place))))
        for name, place in made.items():
            Path(place).chmod(_EXECUTABLE)
            index.write(_row(name, os.lstat(place).st_mtime_ns))
        index.write(_END)
    info = TreeInfo(own, keeper, entries + len(made))
    (folder / INFO).write_text(json.dumps(asdict(info)), encoding="utf-8")
    return info


def read_info(folder: Path) -> TreeInfo | None:
    """What is known of the tree in ``folder``; ``None`` if it is not whole."""
    try:
        document = json.loads((folder / INFO).read_bytes())
        # One written without the number is looked at each time.
        return TreeInfo(int(document["own_bytes"]), str(document["keeper"]), int(document.get("entries", 0)))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def inodes(folder: Path) -> Iterator[int]:
    """The inode of every file of the tree in ``folder``, as far as its index can be read."""
    with contextlib.suppress(OSError, ValueError):
        for _, *facts in _rows(folder):
            if len(facts) > 1:
                yield facts[0]


def fault(folder: Path) -> str | None:
    """What of the tree in ``folder`` is not as it was built, in a sentence; ``None`` if nothing is."""
    top = folder / FILES
    try:
        for path, *facts in _rows(folder):
            status = os.lstat(f"{top}/{path}")
            if len(facts) == 1:
                if status.st_mtime_ns != facts[0]:
                    return f"names in `{path or '.'}` were added or removed"
            elif not stat.S_ISREG(status.st_mode) or stamp_of(status) != tuple(facts):
                return f"`{path}` was changed"
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    except ValueError as error:
        return f"its index cannot be read: {error}"
    return None


def _row(*facts: str | int) -> str:
    return f"{json.dumps(facts)}\n"


def _rows(folder: Path) -> Iterator[list[Any]]:
    """The index: a path and its stamp for each file, a path and its modification time for each folder."""
    with (folder / INDEX).open(encoding="utf-8") as index:
        line = ""
        for line in index:
            if line != _END:
                yield json.loads(line)
    if line != _END:
        raise ValueError("it has no end")


def _missing(parent: str, made: dict[str, str]) -> list[str]:
    """The folders from the top to ``parent`` that are not there yet."""
    missing = []
    while parent not in made:
        missing.append(parent)
        parent = parent.rpartition("/")[0]
    return missing[::-1]


def _put(source: str, place: str, file: ContentFile, crowded: dict[str, str]) -> bool:
    """Link ``source`` to ``place``; whether it had to be copied."""
    if not file.executable:
        try:
            os.link(source, place)
        except OSError as error:
            if error.errno not in _NOT_LINKED:
                raise
        else:
            return False
    # A link shares the mode of its source, and who may be executed here must not be so everywhere.
    copy_file(source, place, _EXECUTABLE if file.executable else _READABLE)
    _prove(place, file)
    if not file.executable:
        crowded[file.sha256] = place
    return True


def _prove(place: str, file: ContentFile) -> None:
    """Bring a copy to the device, and see that it is one."""
    with Path(place).open("rb") as copy:
        os.fsync(copy.fileno())
        if hashlib.file_digest(copy, "sha256").hexdigest() != file.sha256:
            raise CopyDiffers(f"the copy of `{file.path}` does not have its bytes")
