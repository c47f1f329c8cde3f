"""The files of a Runner Revision: which trees may be published, and the one name of their content.

Both sides of a publication apply these rules: the client before it uploads, the server before it believes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trainshed.model.errors import Fault

MAX_FILES = 10_000
MAX_TREE_BYTES = 64 << 20
MAX_PATH_BYTES = 1024
MAX_PART_BYTES = 255
REGULAR_MODE = "100644"
EXECUTABLE_MODE = "100755"
MANIFEST_SCHEMA = "trainshed.runner-tree/1"
CONTROL_CHARACTER = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_CODE = "INVALID_RUNNER"
_SHOWN_CHARS = 200
_LINK_MODE = "120000"
_SUBMODULE_MODE = "160000"


@dataclass(frozen=True, slots=True)
class RunnerFile:
    """One file of a published tree."""

    path: str
    """Relative POSIX path below the published directory."""
    mode: str
    """Git's mode: ``100644`` or ``100755``."""
    size: int
    sha256: str
    """64 lower-case hex digits over the file's bytes."""

    @property
    def executable(self) -> bool:
        return self.mode == EXECUTABLE_MODE


def path_text(path: str) -> str:
    """A path as faults show it: what no terminal shows is escaped, so that the file can be found."""
    short = path[:_SHOWN_CHARS]
    shown = "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in short
    )
    return f"{shown}…" if len(path) > _SHOWN_CHARS else shown


def path_fault(path: str) -> str | None:
    """Why ``path`` cannot name a file of a Runner or of a content, or ``None``."""
    try:
        encoded = path.encode()
    except UnicodeEncodeError:
        return "the name is not UTF-8"
    parts = path.split("/")
    rules = (
        (CONTROL_CHARACTER.search(path), "holds control characters"),
        ("\\" in path, "holds a backslash"),
        (path.startswith("/"), "is an absolute path"),
        (".." in parts, "leaves the published directory"),
        ("" in parts or "." in parts, "has an empty or `.` part"),
        (any(part.lower() == ".git" for part in parts), "has a part named `.git`"),
        (
            any(len(part.encode()) > MAX_PART_BYTES for part in parts),
            f"has a part over {MAX_PART_BYTES} bytes",
        ),
        (len(encoded) > MAX_PATH_BYTES, f"is longer than {MAX_PATH_BYTES} bytes"),
    )
    return next((message for broken, message in rules if broken), None)


def tree_faults(files: Sequence[RunnerFile]) -> list[Fault]:
    """Everything that keeps these files from being published as a Runner; empty if nothing does.

    Symbolic links are refused wherever they lead: a link out of the tree would run what nobody froze, and
    one inside it can be committed as the file it stands for.
    """
    faults = []
    if len(files) > MAX_FILES:
        faults.append(Fault("", _CODE, f"the tree has {len(files)} files; at most {MAX_FILES}"))
    if (total := sum(file.size for file in files)) > MAX_TREE_BYTES:
        faults.append(Fault("", _CODE, f"the tree has {total} bytes; at most {MAX_TREE_BYTES}"))
    paths = {file.path for file in files}
    seen: set[str] = set()
    for file in files:
        shown = path_text(file.path)
        if fault := path_fault(file.path) or _mode_fault(file.mode):
            faults.append(Fault(shown, _CODE, f"`{shown}` {fault}"))
        if file.path in seen:
            faults.append(Fault(shown, _CODE, f"`{shown}` is listed twice"))
        seen.add(file.path)
        if above := next((each for each in _directories(file.path) if each in paths), None):
            faults.append(Fault(shown, _CODE, f"`{path_text(above)}` is both a file and a directory"))
    return faults


def case_collisions(paths: Iterable[str]) -> list[tuple[str, ...]]:
    """Groups of paths that differ only in case: fine on Linux, one file on some other systems."""
    groups: dict[str, set[str]] = defaultdict(set)
    for path in paths:
        for each in (path, *_directories(path)):
            groups[each.casefold()].add(each)
    return sorted(tuple(sorted(group)) for group in groups.values() if len(group) > 1)


def tree_manifest(files: Iterable[RunnerFile]) -> bytes:
    """The canonical manifest of a tree: JSON with sorted keys, no spaces, files in order of their paths."""
    entries = [
        {"mode": file.mode, "path": file.path, "sha256": file.sha256, "size": file.size}
        for file in sorted(files, key=lambda file: file.path.encode())
    ]
    document = {"files": entries, "schema": MANIFEST_SCHEMA}
    return json.dumps(document, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()


def snapshot_sha256(files: Iterable[RunnerFile]) -> str:
    """The name of a tree's content: the SHA-256 of its canonical manifest (``runner.snapshot_sha256``)."""
    return hashlib.sha256(tree_manifest(files)).hexdigest()


def _mode_fault(mode: str) -> str | None:
    if mode in {REGULAR_MODE, EXECUTABLE_MODE}:
        return None
    if mode == _LINK_MODE:
        return "is a symbolic link; a Runner holds regular files only, so commit the file itself in its place"
    if mode == _SUBMODULE_MODE:
        return "is a submodule; a Runner is frozen from one commit, so commit the files themselves"
    return f"has git mode {mode}; only {REGULAR_MODE} and {EXECUTABLE_MODE} are files a Runner may hold"


def _directories(path: str) -> Iterable[str]:
    parts = path.split("/")
    return ("/".join(parts[:depth]) for depth in range(1, len(parts)))
