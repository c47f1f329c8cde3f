"""The frozen files of a Runner Revision, checked to be the published bytes (promise P7, E8)."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from trainshed.content.blobs import BlobStore, FolderBlobStore
from trainshed.content.verified import LocalContentError, VerifiedBlobs
from trainshed.model.errors import Refusal
from trainshed.model.runner import RunnerDefinition, definition_from_document
from trainshed.model.runner_tree import RunnerFile

_KEPT = 4096


def manifest_files(manifest: str) -> list[RunnerFile]:
    """The files of a stored manifest (see `trainshed.model.runner_tree.tree_manifest`)."""
    return [
        RunnerFile(path=f["path"], mode=f["mode"], size=f["size"], sha256=f["sha256"])
        for f in json.loads(manifest)["files"]
    ]


def published_file(file: RunnerFile, verified: Callable[[str], Path]) -> Path:
    """Where the bytes of a Runner's file are. Raises `Refusal` ``RUNNER_HASH_MISMATCH`` if they are not."""
    try:
        return verified(file.sha256)
    except LocalContentError as error:
        raise Refusal.of(
            "RUNNER_HASH_MISMATCH",
            f"the stored bytes of `{file.path}` are not the published ones: {error.message}",
            path="runner",
        ) from error


class Snapshots:
    """Files and definitions of snapshots, each parsed once, as a snapshot never changes. Thread-safe."""

    def __init__(self, blobs: BlobStore | None = None) -> None:
        local = isinstance(blobs, FolderBlobStore)
        self._verified = VerifiedBlobs(Path(), blobs, time.time) if local and blobs is not None else None
        self._files: dict[str, list[RunnerFile]] = {}
        self._definitions: dict[str, RunnerDefinition] = {}
        self._lock = threading.Lock()

    def known_files(self, snapshot_sha256: str) -> list[RunnerFile] | None:
        """The files of a snapshot that was parsed before."""
        return self._files.get(snapshot_sha256)

    def files(self, snapshot_sha256: str, manifest: str) -> list[RunnerFile]:
        """The files of a snapshot."""
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
        """Raise `Refusal` ``RUNNER_HASH_MISMATCH`` unless all stored bytes are the published ones.

        Those of a remote store are verified when they are fetched for an Attempt: asking for each of them
        would make every submission wait for the network.
        """
        if self._verified is not None:
            for file in files:
                published_file(file, self._verified.file)

    def _keep(self, cache: dict[str, Any], key: str, value: object) -> None:
        with self._lock:
            if len(cache) >= _KEPT:
                cache.clear()
            cache[key] = value
