"""Remembering the SHA-256 of files that were not touched since, so that nothing is read twice.

One file per published folder below this user's home. A digest counts while a file's size, times and inode
are those it had when it was read. Times have a grain: a file written within one grain of being read could be
written again without a trace, so what was that young when it was read is read again next time, as git does
with its index.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainshed.sdk.errors import ConfigurationError
from trainshed.sdk.home import Home, private_folder
from trainshed.sdk.scan import LocalFile, Tree

_FORMAT = 1
_FINE_GRAIN_NS = 100_000_000
"""Ten times the coarsest clock tick of a local Linux file system."""
_COARSE_GRAIN_NS = 4_000_000_000
"""Twice that of FAT, for times without a fraction of a second."""
_KEPT_TREES = 256
_SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Known:
    """What was published of an unchanged folder last time."""

    manifest_sha256: str
    files: int
    bytes: int


class StatCache:
    """What is remembered of one folder as one kind of content. What cannot be read is forgotten, no error."""

    def __init__(self, home: Home, root: Path, kind: str, now_ns: Callable[[], int] = time.time_ns) -> None:
        name = hashlib.sha256(f"{kind}\0{root}".encode("utf-8", "surrogateescape")).hexdigest()[:40]
        self._folder = home.data / "trees"
        self._file = self._folder / f"{name}.json"
        self._now_ns = now_ns

    def unchanged(self, tree: Tree) -> Known | None:
        """What the folder was when it was remembered, if every file of it is untouched since."""
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError), self._file.open("rb") as file:
            head = json.loads(file.readline())
            if head["format"] == _FORMAT and head["whole"] and head["signature"] == tree.signature():
                return Known(head["manifest_sha256"], head["files"], head["bytes"])
        return None

    def digests(self, files: Sequence[LocalFile]) -> list[str | None]:
        """The digest of each file that is untouched since it was read, ``None`` of the others."""
        kept = self._load()
        found: list[str | None] = []
        for file in files:
            entry = kept.get(file.path)
            untouched = isinstance(entry, list) and entry[:-1] == list(file.state)
            found.append(str(entry[-1]) if untouched and entry else None)
        return found

    def remember(self, tree: Tree, digests: Sequence[str], manifest_sha256: str, read_ns: int) -> None:
        """Keep the digests of files that were read at ``read_ns`` or later and were old enough then."""
        files = tree.files
        entries = {
            file.path: [*file.state, digest]
            for file, digest in zip(files, digests, strict=True)
            if not young(file, read_ns)
        }
        head = {
            "format": _FORMAT,
            "root": os.fspath(tree.root).encode("utf-8", "backslashreplace").decode(),
            "whole": len(entries) == len(files),
            "signature": tree.signature(),
            "manifest_sha256": manifest_sha256,
            "files": len(files),
            "bytes": tree.total_bytes,
        }
        with contextlib.suppress(OSError, ConfigurationError):
            private_folder(self._folder)
            import secrets  # noqa: PLC0415 - not for an unchanged tree

            part = self._folder / f".{secrets.token_hex(8)}.part"
            try:
                with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                    # `json.dump` would take several times as long: it encodes piece by piece in Python.
                    file.write(f"{json.dumps(head)}\n{json.dumps(entries)}")
                part.replace(self._file)
            finally:
                part.unlink(missing_ok=True)
            self._prune()

    def _load(self) -> dict[str, Any]:
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError), self._file.open("rb") as file:
            if json.loads(file.readline())["format"] == _FORMAT:
                entries = json.loads(file.readline())
                if isinstance(entries, dict):
                    return entries
        return {}

    def _prune(self) -> None:
        """Forget the folders published longest ago."""
        kept = sorted(self._folder.glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in kept[_KEPT_TREES:]:
            path.unlink(missing_ok=True)


def young(file: LocalFile, read_ns: int) -> bool:
    """Whether the file may have been written again after it was read, within one tick of its times."""
    newest = max(file.mtime_ns, file.ctime_ns)
    coarse = file.mtime_ns % _SECOND_NS == 0 and file.ctime_ns % _SECOND_NS == 0
    return newest + (_COARSE_GRAIN_NS if coarse else _FINE_GRAIN_NS) > read_ns
