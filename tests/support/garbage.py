"""What tests of garbage collection share: a clock, and content that comes and goes."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from typing import Any

from trainshed.model.access import KeyKind, Permission, Principal
from trainshed.model.content import ContentKind
from trainshed.store import contents, queue
from trainshed.store.contents import Release
from trainshed.store.database import Database

PUBLISHER = Principal("key", "p", KeyKind.HUMAN, frozenset(Permission), label="somebody")
GRACE = 3600.0
REFUSED = frozenset({"BLOB_BEING_DELETED", "BLOB_NOT_FOUND", "CONTENT_NOT_FOUND"})
"""What a publisher may be told while garbage is collected; it sends again then."""


@dataclass
class Clock:
    now: float = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def put(database: Database, blobs: Any, content: bytes, at: float) -> str:
    """Store and record bytes as every door does: once the row is there, look whether the bytes still are."""
    blob = blobs.put(io.BytesIO(content))
    database.write(lambda c: queue.put_blobs(c, {blob.sha256: blob.size}, at=at))
    if blobs.missing([blob.sha256]):
        raise queue.blob_being_deleted(blob.sha256)
    return str(blob.sha256)


def publish(
    database: Database, blobs: Any, version: str, files: list[bytes], *, at: float, name: str = "team/data"
) -> str:
    """Publish a Dataset of these files; the digest of its manifest."""
    held = [put(database, blobs, content, at) for content in files]
    manifest = json.dumps(sorted(held)).encode()
    digest = put(database, blobs, manifest, at)
    wanted = Release(ContentKind.DATASETS, name, version, digest, len(manifest), "{}", len(held), 1, held)
    database.write(lambda c: contents.publish(c, PUBLISHER, wanted, None, at=at))
    return digest


def withdraw(database: Database, version: str, *, at: float, name: str = "team/data") -> None:
    database.write(lambda c: contents.withdraw(c, ContentKind.DATASETS, name, version, at=at))


def rows(database: Database) -> set[str]:
    with database.read() as connection:
        return set(connection.exec_driver_sql("SELECT sha256 FROM blobs").scalars())
