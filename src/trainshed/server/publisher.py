"""Publishing one Runner Revision: verify, claim the name, store once, move the ref.

Used over HTTP and for the Runners that this program ships.
"""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any

from trainshed.content.blobs import BlobStore
from trainshed.content.runner_revision import (
    BlobsMissing,
    RevisionMismatch,
    RevisionRefused,
    VerifiedRevision,
    verify_revision,
)
from trainshed.model.access import Principal, Visibility
from trainshed.model.errors import Refusal
from trainshed.model.publication import PUBLICATION_KEYS, Publication
from trainshed.model.selectors import FULL_COMMIT, revision_fault
from trainshed.server.bodies import Body
from trainshed.server.storage import record_stored
from trainshed.store import manifests, possession, queue, runners
from trainshed.store.database import Connection, Database
from trainshed.store.records import Revision, Runner

_FURTHER_KEYS = ("source_ref", "visibility", "dirty")
_SHOWN_MISSING = 50


@dataclass(frozen=True, slots=True)
class Published:
    """A Revision that is readable now."""

    runner: Runner
    revision: Revision
    created: bool
    """It was not published before."""


def publish(
    database: Database,
    blobs: BlobStore,
    principal: Principal,
    name: str,
    document: Mapping[str, Any],
    *,
    at: float,
) -> Published:
    """Publish ``document``, a `Publication` with ``source_ref`` and ``visibility``, under ``name``.

    Publishing a commit again is fine and changes at most the ref and a withdrawal. Raises `Refusal`
    ``INVALID_RUNNER``, ``BLOB_NOT_FOUND``, ``RUNNER_HASH_MISMATCH``, ``NAMESPACE_TAKEN``.
    """
    body = Body(document, code="INVALID_RUNNER")
    body.known([*sorted(PUBLICATION_KEYS), *_FURTHER_KEYS])
    ref = body.text("source_ref")
    if ref is not None and (fault := revision_fault(ref)):
        body.fault("source_ref", fault)
    if ref is not None and FULL_COMMIT.fullmatch(ref):
        body.fault("source_ref", "a full commit is a Revision, not a ref that could move")
    word = body.word("visibility", [str(v) for v in Visibility])
    body.boolean("dirty")
    body.finish()
    publication = Publication.from_document(document)
    verified = _verify(publication, blobs, _own(database, principal, publication, at))
    if verified.definition.name not in {None, name}:
        raise Refusal.of(
            "INVALID_RUNNER",
            f"its definition names it `{verified.definition.name}`, not `{name}`",
            path="name",
        )

    visibility = None if word is None else Visibility(word)
    return store_revision(database, blobs, principal, name, verified, ref=ref, visibility=visibility, at=at)


def store_revision(
    database: Database,
    blobs: BlobStore,
    principal: Principal,
    name: str,
    verified: VerifiedRevision,
    *,
    ref: str | None,
    visibility: Visibility | None,
    at: float,
) -> Published:
    """Make a verified Revision readable under ``name``; repeatable. Raises as `publish` does."""
    sizes = {file.sha256: file.size for file in verified.files}
    with database.read() as connection:
        known = runners.find_revision(connection, name, verified.commit) is not None
    if not known:
        record_stored(database, blobs, sizes, at=at)

    def store(connection: Connection) -> Published:
        runner = runners.claim(connection, principal, name, visibility or Visibility.PROJECT, at=at)
        if visibility is not None and visibility != runner.visibility:
            runners.set_visibility(connection, name, visibility, [])
        there = runners.find_revision(connection, name, verified.commit)
        if there is not None and there.snapshot_sha256 != verified.snapshot_sha256:
            raise Refusal.of(
                "RUNNER_HASH_MISMATCH",
                f"commit {verified.commit} was published with other files ({there.snapshot_sha256})",
                path="files",
            )
        if there is None:
            queue.put_blobs(connection, sizes, at=at)
            manifests.put_manifest(
                connection, verified.snapshot_sha256, "runners", len(verified.manifest), sizes, at=at
            )
            revision = runners.insert_revision(connection, _row(name, verified, ref, principal, at))
        else:
            runners.restore_revision(connection, there)
            revision = there
        if ref is not None:
            runners.move_ref(connection, name, ref, verified.commit, at=at)
        found = runners.find_runner(connection, name)
        assert found is not None  # noqa: S101 - claimed above in the same transaction
        return Published(found, revision, created=there is None)

    return database.write(store)


def _own(database: Database, principal: Principal, publication: Publication, at: float) -> set[str]:
    """Those of the files that the caller's project has sent. What is about to be read stays from here on."""
    names = {file.sha256 for file in publication.files}

    def touch(connection: Connection) -> set[str]:
        proved = possession.proved(connection, principal.project_id, names)
        return queue.touch_blobs(connection, proved, at=at)

    return database.write(touch)


def _verify(publication: Publication, blobs: BlobStore, own: Container[str]) -> VerifiedRevision:
    try:
        return verify_revision(publication, blobs, own)
    except RevisionRefused as refused:
        raise Refusal(refused.faults) from None
    except RevisionMismatch as mismatch:
        raise Refusal.of("RUNNER_HASH_MISMATCH", str(mismatch)) from None
    except BlobsMissing as missing:
        raise Refusal.of(
            "BLOB_NOT_FOUND", str(missing), path="files", missing=list(missing.missing[:_SHOWN_MISSING])
        ) from None


def _row(
    name: str, verified: VerifiedRevision, ref: str | None, principal: Principal, at: float
) -> dict[str, Any]:
    return {
        "runner": name,
        "revision": verified.commit,
        "snapshot_sha256": verified.snapshot_sha256,
        "manifest": verified.manifest.decode(),
        "definition": json.dumps(dict(verified.definition.raw), sort_keys=True),
        "source_ref": ref,
        "published_at": at,
        "published_by": principal.actor,
        "tree_id": verified.tree_id,
    }
