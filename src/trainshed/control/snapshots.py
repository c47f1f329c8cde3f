"""The frozen files of a Runner Revision, checked to be the published bytes (promise P7, E8)."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainshed.content.blobs import BlobError, FolderBlobStore
from trainshed.model.errors import Refusal
from trainshed.model.runner import RunnerDefinition, definition_from_document
from trainshed.model.runner_tree import RunnerFile

_KEPT = 4096
Stamp = tuple[int, int, int]


def manifest_files(manifest: str) -> list[RunnerFile]:
    """The files of a stored manifest (see `trainshed.model.runner_tree.tree_manifest`)."""
    return [
        RunnerFile(path=f["path"], mode=f["mode"], size=f["size"], sha256=f["sha256"])
        for f in json.loads(manifest)["files"]
    ]


class Snapshots:
    """Proves that stored blobs still are what their names say. Thread-safe.

    A blob is hashed when it is first needed and again whenever its file changed since; a file that is as it
    was costs one ``stat``.
    """

    def __init__(self, blobs: FolderBlobStore) -> None:
        self._blobs = blobs
        self._proved: dict[str, Stamp] = {}
        self._files: dict[str, list[RunnerFile]] = {}
        self._definitions: dict[str, RunnerDefinition] = {}
        self._lock = threading.Lock()

    def known_files(self, snapshot_sha256: str) -> list[RunnerFile] | None:
        """The files of a snapshot that was parsed before."""
        return self._files.get(snapshot_sha256)

    def files(self, snapshot_sha256: str, manifest: str) -> list[RunnerFile]:
        """The files of a snapshot; a snapshot never changes, so they are parsed once."""
        found = self._files.get(snapshot_sha256)
        if found is None:
            found = manifest_files(manifest)
            self._keep(self._files, snapshot_sha256, found)
        return found

    def definition(self, snapshot_sha256: str, document: str) -> RunnerDefinition:
        found = self._definitions.get(snapshot_sha256)
        if found is None:
            found = definition_from_document(json.loads(document))
            self._keep(self._definitions, snapshot_sha256, found)
        return found

    def check(self, files: Sequence[RunnerFile]) -> None:
        """Raise `Refusal` ``RUNNER_HASH_MISMATCH`` unless all stored bytes are the published ones."""
        for file in files:
            try:
                self._check_blob(file.sha256)
            except (BlobError, OSError) as error:
                raise Refusal.of(
                    "RUNNER_HASH_MISMATCH",
                    f"the stored bytes of `{file.path}` are not the published ones: {error}",
                    path="runner",
                ) from error

    def _check_blob(self, sha256: str) -> None:
        stamp = _stamp(self._blobs.path(sha256))
        if self._proved.get(sha256) == stamp:
            return
        self._blobs.verify(sha256)
        self._keep(self._proved, sha256, stamp)

    def _keep(self, cache: dict[str, Any], key: str, value: object) -> None:
        with self._lock:
            if len(cache) >= _KEPT:
                cache.clear()
            cache[key] = value


def _stamp(path: Path) -> Stamp:
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns
