"""What a client sends to publish a Runner: the git objects that prove its files belong to a commit.

The client uploads the files' bytes as blobs and sends the raw commit, the raw trees from the root down to the
published directory, and the list of files. The server recomputes every hash on that way
(``trainshed.content.runner_revision``).
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainshed.model.errors import FaultList
from trainshed.model.runner_tree import MAX_FILES, RunnerFile
from trainshed.model.selectors import FULL_COMMIT

MAX_COMMIT_BYTES = 1 << 20
MAX_TREE_OBJECT_BYTES = 4 << 20
MAX_DEPTH = 32
"""Directories between the root of the repository and the published one."""
_CODE = "INVALID_RUNNER"
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MODE = re.compile(r"[0-7]{6}")
_KEYS = ("commit", "commit_object", "tree_objects", "subdirectory", "files")
_FILE_KEYS = ("path", "mode", "size", "sha256")


@dataclass(frozen=True, slots=True)
class Publication:
    """A tree of one commit, offered as a Runner Revision. Nothing in it is believed before it is verified."""

    commit: str
    """40 lower-case hex digits."""
    commit_object: bytes
    tree_objects: tuple[bytes, ...]
    """Raw trees: the root's first, the published directory's last."""
    subdirectory: str
    """The published directory, relative to the root; empty for the root itself."""
    files: tuple[RunnerFile, ...]

    def as_document(self) -> dict[str, Any]:
        """The wire form: JSON values, git objects in base64."""
        return {
            "commit": self.commit,
            "commit_object": base64.b64encode(self.commit_object).decode(),
            "tree_objects": [base64.b64encode(tree).decode() for tree in self.tree_objects],
            "subdirectory": self.subdirectory,
            "files": [
                {"path": file.path, "mode": file.mode, "size": file.size, "sha256": file.sha256}
                for file in self.files
            ],
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Publication:
        """Read the wire form. Checks shapes only; raises `Refusal` with every fault at once.

        Further keys are left to the caller, which knows what else its request may carry.
        """
        check = _Checker(FaultList())
        publication = cls(
            commit=check.text("commit", document.get("commit"), FULL_COMMIT, "a full commit: 40 hex digits"),
            commit_object=check.base64("commit_object", document.get("commit_object"), MAX_COMMIT_BYTES),
            tree_objects=check.trees(document.get("tree_objects")),
            subdirectory=check.text("subdirectory", document.get("subdirectory", ""), None, "text"),
            files=check.files(document.get("files")),
        )
        check.faults.raise_if_any()
        return publication


PUBLICATION_KEYS = frozenset(_KEYS)
"""The keys of the wire form."""


@dataclass(frozen=True, slots=True)
class _Checker:
    faults: FaultList

    def add(self, path: str, message: str) -> None:
        self.faults.add(path, _CODE, f"`{path}` {message}")

    def text(self, path: str, value: Any, pattern: re.Pattern[str] | None, what: str) -> str:
        if isinstance(value, str) and (pattern is None or pattern.fullmatch(value)):
            return value
        self.add(path, f"must be {what}")
        return ""

    def base64(self, path: str, value: Any, limit: int) -> bytes:
        try:
            data = base64.b64decode(value, validate=True) if isinstance(value, str) else None
        except ValueError:
            data = None
        if data is None:
            self.add(path, "must be a git object in base64")
        elif len(data) > limit:
            self.add(path, f"has {len(data)} bytes; at most {limit}")
        else:
            return data
        return b""

    def trees(self, value: Any) -> tuple[bytes, ...]:
        if not isinstance(value, list) or not 1 <= len(value) <= MAX_DEPTH + 1:
            self.add("tree_objects", f"must be a list of 1 to {MAX_DEPTH + 1} git trees")
            return ()
        return tuple(
            self.base64(f"tree_objects[{place}]", tree, MAX_TREE_OBJECT_BYTES)
            for place, tree in enumerate(value)
        )

    def files(self, value: Any) -> tuple[RunnerFile, ...]:
        if not isinstance(value, list):
            self.add("files", "must be a list of files")
            return ()
        if len(value) > MAX_FILES:
            self.add("files", f"has {len(value)} files; at most {MAX_FILES}")
            return ()
        return tuple(self.file(f"files[{place}]", entry) for place, entry in enumerate(value))

    def file(self, path: str, entry: Any) -> RunnerFile:
        if not isinstance(entry, dict) or entry.keys() != set(_FILE_KEYS):
            self.add(path, f"must be an object with exactly the keys {', '.join(_FILE_KEYS)}")
            return RunnerFile("", "", 0, "")
        size = entry["size"]
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            self.add(f"{path}.size", "must be a number of bytes")
            size = 0
        return RunnerFile(
            path=self.text(f"{path}.path", entry["path"], None, "text"),
            mode=self.text(f"{path}.mode", entry["mode"], _MODE, "git's mode, such as 100644"),
            size=size,
            sha256=self.text(f"{path}.sha256", entry["sha256"], _SHA256, "64 lower-case hex digits"),
        )
