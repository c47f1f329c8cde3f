"""What every start makes sure of: instance id, project `default`, owner key, the shipped Runner."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable
from pathlib import Path

import structlog

from trainshed.content.blobs import BlobStore, StoreFull
from trainshed.content.shipped import BRANCH, publish_shipped
from trainshed.model.access import (
    KeyKind,
    Permission,
    Principal,
    Visibility,
    key_hash,
    new_key_text,
)
from trainshed.model.errors import Refusal
from trainshed.model.ids import IdFactory
from trainshed.server.publisher import store_revision
from trainshed.store import access, settings
from trainshed.store.database import Connection, Database, DatabaseFull
from trainshed.store.records import Key, Project

DEFAULT_PROJECT = "default"
SHIPPED = "envloop/bash"
_PLATFORM = Principal(
    key_id="",
    project_id=DEFAULT_PROJECT,
    kind=KeyKind.SERVICE,
    permissions=frozenset(Permission),
    owner=True,
    label="trainshed",
)

log = structlog.get_logger(__name__)


def prepare(
    database: Database, blobs: BlobStore, owner_key: Path, clock: Callable[[], float], ids: IdFactory
) -> str:
    """Make sure of all of it; repeatable, also by several processes at once. Answers the instance id."""
    instance = _known_instance(database) or database.write(lambda c: _instance(c, clock()))
    _ensure_owner_key(database, owner_key, clock, ids)
    try:
        _publish_shipped(database, blobs, clock())
    except (DatabaseFull, StoreFull) as error:
        # What is stored can be read all the same, and what runs comes to its end.
        log.warning("the disk is full: the shipped runner is not made sure of", reason=str(error))
    except Refusal as refusal:
        if refusal.code != "BLOB_BEING_DELETED":
            raise
        log.warning("old bytes of the shipped runner are being removed; the next start makes sure of it")
    return instance


def _known_instance(database: Database) -> str | None:
    with database.read() as connection:
        return settings.get(connection, settings.INSTANCE_ID)


def _instance(connection: Connection, now: float) -> str:
    there = settings.get(connection, settings.INSTANCE_ID)
    if access.find_project(connection, DEFAULT_PROJECT) is None:
        access.create_project(connection, Project(DEFAULT_PROJECT, "Default", 0, None, None, 0.0, now))
    if there is None:
        there = secrets.token_hex(16)
        settings.put(connection, settings.INSTANCE_ID, there)
    return there


def _ensure_owner_key(database: Database, path: Path, clock: Callable[[], float], ids: IdFactory) -> None:
    """The durable file comes first, then the row: a crash between leaves a file that is adopted here."""
    text = _read_or_create(path)
    hashed = key_hash(text)
    with database.read() as connection:
        if access.find_principal(connection, hashed, at=clock()) is not None:
            return
    row = Key(
        id=ids.key(),
        hash=hashed,
        project_id=DEFAULT_PROJECT,
        kind=KeyKind.HUMAN,
        label="owner",
        user=None,
        permissions=json.dumps(sorted(Permission)),
        owner=True,
        created_at=clock(),
        created_by="service:trainshed",
        expires_at=None,
        revoked_at=None,
    )

    def insert(connection: Connection) -> None:
        known = any(key.hash == hashed for key in access.list_keys(connection, DEFAULT_PROJECT))
        if not known:
            access.insert_key(connection, row)

    database.write(insert)


def _read_or_create(path: Path) -> str:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        text = path.read_text(encoding="ascii").strip()
        if text:
            return text
        # A crash came between creating the file and writing it; nothing knows of a key yet.
        fd = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW)
    text = new_key_text()
    with os.fdopen(fd, "w", encoding="ascii") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return text


def _publish_shipped(database: Database, blobs: BlobStore, now: float) -> None:
    verified = publish_shipped(SHIPPED, blobs)
    published = store_revision(
        database, blobs, _PLATFORM, SHIPPED, verified, ref=BRANCH, visibility=Visibility.PUBLIC, at=now
    )
    if published.created:
        log.info("published a shipped runner", runner=published.revision.selector)
