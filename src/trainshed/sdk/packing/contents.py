"""A set of files as one immutable content: its manifest, and bringing to the server what that lacks.

A tree that nobody touched is named by the digest it had, without reading a file of it. What was read is
remembered as `trainshed.sdk.stat_cache` does it, together with what was found in the text.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainshed.sdk.errors import ConfigurationError, NotFreezable
from trainshed.sdk.home import find_home, private_folder
from trainshed.sdk.packing.errors import invalid_spec
from trainshed.sdk.packing.files import Files

if TYPE_CHECKING:
    from trainshed.sdk.client import Client
    from trainshed.sdk.scan import LocalFile

_FORMAT = 1
_KEPT_TREES = 256
_MOST_LOOKED_THROUGH = 1 << 20
"""Larger files are data rather than text that somebody wrote a token into."""
_MOST_NOTED = 20
Progress = Callable[[int, int], None]
"""Told bytes done and bytes in all."""


@dataclass(frozen=True, slots=True)
class Notes:
    """What was noticed of a tree's files beside their bytes."""

    unnamed: tuple[tuple[str, str], ...] = ()
    """Paths that no content can hold, with the reason; they do not ship."""
    tokens: tuple[tuple[str, int], ...] = ()
    """Files and lines on which something of the shape of a token stands."""


@dataclass(slots=True)
class PackedTree:
    """One content. ``manifest_sha256`` names it."""

    manifest_sha256: str
    files: int
    bytes: int
    notes: Notes
    read: int
    """How many files were read to know it."""
    _load: Callable[[], list[tuple[LocalFile, str]]] = field(repr=False)

    def upload(self, client: Client, progress: Progress | None = None) -> int:
        """Bring what the server lacks; how many blobs that were. Raises what uploads raise."""
        from trainshed.sdk.blobs import Upload  # noqa: PLC0415 - not for a dry run
        from trainshed.sdk.scan import open_stream  # noqa: PLC0415 - as above

        entries = self._load()
        encoded = _encoded(entries)
        once = {digest: file for file, digest in entries}
        uploads = [
            Upload(digest, file.size, partial(open_stream, file), file.path) for digest, file in once.items()
        ]
        uploads.append(
            Upload(self.manifest_sha256, len(encoded), lambda: io.BytesIO(encoded), "the manifest")
        )
        return client.blob_uploads.send(uploads, progress=progress)


def pack_tree(files: Files, kind: str, *, look_for_tokens: bool) -> PackedTree:
    """What ``files`` are as a content; ``kind`` keeps what is remembered apart. Raises `InvalidSpec`."""
    began_ns = time.time_ns()
    cache = _Cache(files.root, kind)
    signature = files.signature()
    if (head := cache.head(signature)) is not None:
        notes = Notes(_pairs(head["unnamed"]), _pairs(head["tokens"]))
        load = partial(_load_known, files, cache, notes)
        return PackedTree(head["manifest_sha256"], head["files"], head["bytes"], notes, 0, load)
    from trainshed.sdk.stat_cache import young  # noqa: PLC0415 - not for an unchanged tree

    named, unnamed = _judge_names(files)
    known = cache.entries()
    kept = [known.get(file.path) for file in named]
    fresh = [file for file, entry in zip(named, kept, strict=True) if not _untouched(file, entry)]
    digests = iter(_hash(fresh))
    rows: list[tuple[LocalFile, str, int]] = []
    for file, entry in zip(named, kept, strict=True):
        if entry is not None and _untouched(file, entry):
            rows.append((file, str(entry[-2]), int(entry[-1])))
        else:
            rows.append((file, next(digests), _token_line(file) if look_for_tokens else 0))
    tokens = tuple((file.path, line) for file, _, line in rows if line)
    notes = Notes(tuple(unnamed), tokens)
    entries = [(file, digest) for file, digest, _ in rows]
    encoded = _encoded(entries)
    total = sum(file.size for file in named)
    packed = PackedTree(
        hashlib.sha256(encoded).hexdigest(), len(named), total, notes, len(fresh), lambda: entries
    )
    old = [row for row in rows if not young(row[0], began_ns)]
    cache.remember(signature, packed, old, whole=len(old) == len(rows))
    return packed


def _encoded(entries: Sequence[tuple[LocalFile, str]]) -> bytes:
    from trainshed.model.content import ContentFile, ContentKind, make_manifest  # noqa: PLC0415 - not for an unchanged tree

    files = (ContentFile(file.path, file.size, digest, file.executable) for file, digest in entries)
    return make_manifest(ContentKind.DATASETS, files).encode()


def _judge_names(files: Files) -> tuple[list[LocalFile], list[tuple[str, str]]]:
    """The files that a bundle can hold, and the others with the reason."""
    from trainshed.model.runner_tree import path_fault  # noqa: PLC0415 - not for an unchanged tree

    named: list[LocalFile] = []
    unnamed: list[tuple[str, str]] = []
    for file in files.local_files():
        if (fault := path_fault(file.path)) is None:
            named.append(file)
        else:
            unnamed.append((escaped(file.path), fault))
    return named, unnamed


def escaped(path: str) -> str:
    """A path as it can be written down."""
    return path.encode("utf-8", "backslashreplace").decode()


def _hash(files: Sequence[LocalFile]) -> list[str]:
    from trainshed.sdk.scan import hash_files  # noqa: PLC0415 - not for an unchanged tree

    if not files:
        return []
    try:
        return hash_files(files)
    except NotFreezable as error:
        told = "; ".join(fault.message for fault in error.faults[:5])
        raise invalid_spec(
            told.replace(" while it was being published", " while it was being packed"),
            "Pack again when nothing writes there any more, and when every file can be read.",
            files=[fault.path for fault in error.faults[:50]],
        ) from None


def _token_line(file: LocalFile) -> int:
    """The first line with something of the shape of a token; 0 if there is none, or it is no text."""
    from trainshed.model.scripts.secret_names import find_tokens  # noqa: PLC0415 - not for an unchanged tree

    if not 0 < file.size <= _MOST_LOOKED_THROUGH:
        return 0
    try:
        with open(file.place, "rb") as stream:
            content = stream.read(_MOST_LOOKED_THROUGH)
    except OSError:
        return 0
    return 0 if b"\0" in content[:8192] else next(find_tokens(content), 0)


def _untouched(file: LocalFile, entry: Any) -> bool:
    return isinstance(entry, list) and entry[:-2] == list(file.state)


def _load_known(files: Files, cache: _Cache, notes: Notes) -> list[tuple[LocalFile, str]]:
    """The digests of a tree that is unchanged; what the cache lost meanwhile is read again."""
    known = cache.entries()
    unnamed = {path for path, _ in notes.unnamed}
    named = [file for file in files.local_files() if not unnamed or escaped(file.path) not in unnamed]
    kept = [known.get(file.path) for file in named]
    lost = [file for file, entry in zip(named, kept, strict=True) if not _untouched(file, entry)]
    digests = iter(_hash(lost))
    return [
        (file, str(entry[-2]) if entry is not None and _untouched(file, entry) else next(digests))
        for file, entry in zip(named, kept, strict=True)
    ]


def _pairs(found: Any) -> tuple[tuple[str, Any], ...]:
    return tuple((str(one), other) for one, other in found)


class _Cache:
    """What is remembered of one tree. What cannot be read is forgotten, no error."""

    def __init__(self, root: str, kind: str) -> None:
        name = hashlib.sha256(f"{kind}\0{root}".encode("utf-8", "surrogateescape")).hexdigest()[:40]
        self._root = root
        self._folder = find_home().data / "packed"
        self._file = self._folder / f"{name}.json"

    def head(self, signature: str) -> dict[str, Any] | None:
        """What the tree was, if no file of it was touched since."""
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError), self._file.open("rb") as file:
            head = json.loads(file.readline())
            if head["format"] == _FORMAT and head["whole"] and head["signature"] == signature:
                return dict(head)
        return None

    def entries(self) -> dict[str, Any]:
        """By path: size, times and inode of a file, its digest, and the line of a token or 0."""
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError), self._file.open("rb") as file:
            if json.loads(file.readline())["format"] == _FORMAT:
                entries = json.loads(file.readline())
                if isinstance(entries, dict):
                    return entries
        return {}

    def remember(
        self, signature: str, packed: PackedTree, rows: Sequence[tuple[LocalFile, str, int]], *, whole: bool
    ) -> None:
        head = {
            "format": _FORMAT,
            "root": escaped(self._root),
            "whole": whole,
            "signature": signature,
            "manifest_sha256": packed.manifest_sha256,
            "files": packed.files,
            "bytes": packed.bytes,
            "unnamed": packed.notes.unnamed[:_MOST_NOTED],
            "tokens": packed.notes.tokens[:_MOST_NOTED],
        }
        if len(packed.notes.unnamed) > _MOST_NOTED:
            head["whole"] = False
        entries = {file.path: [*file.state, digest, line] for file, digest, line in rows}
        with contextlib.suppress(OSError, ConfigurationError):
            private_folder(self._folder)
            import secrets  # noqa: PLC0415 - not for an unchanged tree

            part = self._folder / f".{secrets.token_hex(8)}.part"
            try:
                with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                    file.write(f"{json.dumps(head)}\n{json.dumps(entries)}")
                part.replace(self._file)
            finally:
                part.unlink(missing_ok=True)
            _prune(self._folder)


def _prune(folder: Path) -> None:
    """Forget the trees that were packed longest ago."""
    kept = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in kept[_KEPT_TREES:]:
        path.unlink(missing_ok=True)
