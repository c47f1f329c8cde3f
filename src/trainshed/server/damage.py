"""Stored bytes that are damaged or gone, told to whoever reads them: what is hit, and what mends it.

It lasts until somebody mends it, so it has a code of its own (`CONTENT_DAMAGED`) that no client repeats.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from trainshed.content.blobs import BlobNotFound, BlobStore, DigestMismatch
from trainshed.model import mending
from trainshed.model.content import ContentKind
from trainshed.model.errors import Refusal
from trainshed.model.manifests import ManifestFault, ManifestScan
from trainshed.store.records import ContentVersion

_SEARCHED = 200_000
"""Files of a manifest among which the name of a damaged one is looked for."""


class Hit:
    """What a damaged blob is to whoever reads it. It is asked for only once there is damage."""

    def __init__(self, what: Callable[[], str], hint: str, code: str = "CONTENT_DAMAGED") -> None:
        self._what = what
        self._hint = hint
        self._code = code

    def refusal(self, problem: str) -> Refusal:
        """What the reader is told."""
        return Refusal.of(self._code, f"{self._what()}: {problem}", hint=self._hint)

    def size(self, blobs: BlobStore, sha256: str, expected: int | None) -> int:
        """The bytes of a blob; raises `Refusal` unless it is stored with as many as ``expected``."""
        try:
            stored = blobs.size(sha256)
        except BlobNotFound:
            raise self.refusal(f"its stored bytes are gone (blob {sha256})") from None
        except DigestMismatch as error:
            raise self.refusal(str(error)) from None
        if expected is not None and stored != expected:
            raise self.refusal(f"{stored} of its {expected} bytes are stored (blob {sha256})")
        return stored


def of_version(
    blobs: BlobStore, version: ContentVersion, *, path: str | None = None, sha256: str | None = None
) -> Hit:
    """A file of a version, by its path or its digest; with neither its manifest."""

    def what() -> str:
        file = path
        if file is None and sha256 is not None:
            file = _path_of(blobs, version.manifest_sha256, sha256) or f"the blob {sha256}"
        return f"the manifest of {version.uri}" if file is None else f"`{file}` of {version.uri}"

    publish = mending.publish_content(ContentKind(version.kind), version.name, version.version)
    taken_out = mending.take_out(f"{version.name}@{version.version}")
    hint = (
        f"Publish it again from its source, which sends what is gone or cut off: {publish}. For what was "
        f"changed the owner of the server runs {taken_out} before."
    )
    return Hit(what, hint)


def of_output(noun: str, name: str, job_id: str) -> Hit:
    """A file that a Job produced."""
    hint = (
        f"Only a program produced it: restore it from a backup, or run it again: {mending.rerun(job_id)}. "
        f"An administrator sees all of the damage with `trainshed content verify {job_id}`."
    )
    return Hit(lambda: f"`{name}` of this {noun}", hint)


def of_runner(path: str, revision: str) -> Hit:
    """A file of a Runner Revision (contract E b13 has a code for these)."""
    publish = mending.publish_runner(*revision.rsplit("@", 1))
    hint = (
        f"Publish it again from its commit, which sends what is gone: {publish}. For what was changed the "
        f"owner of the server runs {mending.take_out(revision)} before."
    )
    return Hit(lambda: f"`{path}` of {revision}", hint, "RUNNER_HASH_MISMATCH")


def _path_of(blobs: BlobStore, manifest_sha256: str, sha256: str) -> str | None:
    try:
        with blobs.open(manifest_sha256) as reader:
            files = islice(ManifestScan(reader.read), _SEARCHED)
            return next((file.path for file in files if file.sha256 == sha256), None)
    except (BlobNotFound, DigestMismatch, ManifestFault):
        return None
