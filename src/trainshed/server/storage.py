"""Where this server's blobs lie: opened and proven at the start, asked again for ``/readyz``."""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

from trainshed.content.addresses import StoreAddress, open_impatiently, open_store
from trainshed.content.blobs import Blob, BlobError, BlobStore, FolderBlobStore
from trainshed.content.uploads import KEPT_SECONDS, SWEEP_SECONDS, Uploads
from trainshed.server.config import ContentSettings
from trainshed.server.data_folder import DataFolder, write_fault
from trainshed.store import queue, usage
from trainshed.store.database import Connection, Database, DatabaseFull, DatabaseUnavailable

_FOLDER_SECONDS = 1.0
_FAILED_SECONDS = 1.0
_REQUEST = "request "
"""How the names of reservations begin that a request holds; those of uploads are theirs."""
_REQUEST_SECONDS = 900.0
"""Longer than one blob takes that is sent whole; of one that takes longer the quota is asked once more."""
_STORE_SECONDS = 10.0
"""Remote stores count what they are asked."""


def open_blobs(settings: ContentSettings, folder: Path, stack: contextlib.ExitStack) -> BlobStore:
    """The store of the settings, proven to be usable; ``stack`` closes it.

    Raises `StoreUnavailable` and `StoreFull` with a sentence for the operator.
    """
    address = settings.address
    if address.remote:
        # A server that cannot reach its blobs shall say so within seconds.
        quick = open_impatiently(address, folder)
        stack.callback(quick.close)
        quick.check()
    opened = open_store(address, folder)
    if not isinstance(opened, FolderBlobStore):
        stack.callback(opened.close)
    return opened


def open_uploads(
    settings: ContentSettings, folder: Path, blobs: BlobStore, database: Database, clock: Callable[[], float]
) -> Uploads:
    """What comes in parts lies where a local store takes it in without copying."""

    def allow(sha256: str) -> None:
        with database.read() as connection:
            if queue.going_blobs(connection, [sha256]):
                raise queue.blob_being_deleted(sha256)

    def record(project: str, blob: Blob, upload: str) -> None:
        sizes = {blob.sha256: blob.size}
        record_stored(database, blobs, sizes, at=clock(), sender=project, reservation=upload)

    if database.dialect == "sqlite":
        # Nobody else serves it, so whoever held them was killed. Elsewhere they expire.
        database.write(lambda c: usage.give_back_all(c, _REQUEST))

    return Uploads(
        (blobs.root if isinstance(blobs, FolderBlobStore) else folder) / "uploads",
        blobs,
        allow=allow,
        record=record,
        room=UploadRoom(database, clock),
        max_bytes=settings.max_upload_bytes,
        reserve_bytes=settings.upload_reserve_bytes,
        clock=clock,
    )


class UploadRoom:
    """The room of uploads in parts in their projects' quotas, as long as they may lie there (`Room`)."""

    def __init__(self, database: Database, clock: Callable[[], float]) -> None:
        self._database = database
        self._clock = clock

    def reserve(self, project: str, name: str, blob: Blob) -> None:
        """Raises `Refusal` ``CONTENT_QUOTA_EXCEEDED``, ``UPLOAD_BUSY``."""
        sizes, seconds = {blob.sha256: blob.size}, KEPT_SECONDS + 2 * SWEEP_SECONDS
        _reserve(self._database, project, name, sizes, at=self._clock(), seconds=seconds)

    def give_back(self, name: str) -> None:
        """What the database cannot note now expires."""
        _give_back(self._database, name)


@contextlib.contextmanager
def reserved(
    database: Database, project: str, sizes: Mapping[str, int], *, request: str, at: float
) -> Iterator[str | None]:
    """Room in the project's quota while one request stores blobs, SHA-256 -> size: for `record_stored`.

    What fails gives it back; so does what is killed, after a while. ``None`` where there is no quota: then
    nothing is written. Raises `Refusal` ``CONTENT_QUOTA_EXCEEDED``, ``UPLOAD_BUSY``.
    """
    name = f"{_REQUEST}{request}"
    if not _reserve(database, project, name, sizes, at=at, seconds=_REQUEST_SECONDS):
        yield None
        return
    try:
        yield name
    except BaseException:
        _give_back(database, name)
        raise


def _reserve(
    database: Database,
    project: str,
    name: str,
    sizes: Mapping[str, int],
    *,
    at: float,
    seconds: float,
) -> bool:
    with database.read() as connection:
        if not usage.has_quota(connection, project):
            return False
    sent = _sent(sizes)
    database.write(lambda c: usage.reserve(c, project, name, sizes, sent=sent, at=at, seconds=seconds))
    return True


def _sent(names: Collection[str]) -> str:
    """What is sent, as one word: a blob's own name, or one for several that are sent together."""
    return (
        next(iter(names)) if len(names) == 1 else hashlib.sha256("".join(sorted(names)).encode()).hexdigest()
    )


def _give_back(database: Database, name: str) -> None:
    with contextlib.suppress(DatabaseUnavailable, DatabaseFull):
        with database.read() as connection:
            if not usage.is_reserved(connection, name):
                return
        database.write(lambda c: usage.give_back(c, name))


def record_stored(
    database: Database,
    blobs: BlobStore,
    sizes: Mapping[str, int],
    *,
    at: float,
    sender: str | None = None,
    reservation: str | None = None,
) -> None:
    """Record blobs that were stored just now, SHA-256 -> size, and make sure that they still are there.

    A garbage collector may have removed old bytes of the same name between storing and recording; from the
    row on it leaves them alone, so one look is enough. ``sender`` is the project whose request brought every
    byte of them, which proves that it has them; without one nobody may name them yet. ``reservation`` is the
    room that the sender had for them. Raises `Refusal` ``BLOB_BEING_DELETED``: store again; and where there
    was no room after all, ``CONTENT_QUOTA_EXCEEDED``: then the bytes are garbage.
    """

    def record(connection: Connection) -> None:
        if sender is not None and reservation is not None:
            usage.settle(connection, sender, reservation, sizes, sent=_sent(sizes), at=at)
        queue.put_blobs(connection, sizes, at=at, sender=sender)

    database.write(record)
    if gone := blobs.missing(sizes):
        raise queue.blob_being_deleted(gone[0])


class StorageChecks:
    """Whether anything can be stored now. Anybody may ask, so what costs something is asked now and then."""

    def __init__(self, folder: DataFolder, address: StoreAddress, blobs: BlobStore) -> None:
        self._checks = {"storage": _Sometimes(lambda: _said(write_fault(folder)), _FOLDER_SECONDS)}
        if address.remote:
            quick = open_impatiently(address, folder.content)
            self._checks["content"] = _Sometimes(lambda: _content_fault(quick), _STORE_SECONDS)
        elif address.url is not None:
            self._checks["content"] = _Sometimes(lambda: _content_fault(blobs), _FOLDER_SECONDS)

    def __call__(self) -> Mapping[str, str]:
        return {name: check() for name, check in self._checks.items()}


class _Sometimes:
    """The newest answer to a question that is asked once in so many seconds."""

    def __init__(self, ask: Callable[[], str], seconds: float) -> None:
        self._ask = ask
        self._seconds = seconds
        self._guard = threading.Lock()
        self._answer = "ok"
        self._asked_at = float("-inf")

    def __call__(self) -> str:
        with self._guard:
            now = time.monotonic()
            # What failed is asked again sooner: who waits for it waits no longer than needed.
            seconds = self._seconds if self._answer == "ok" else min(self._seconds, _FAILED_SECONDS)
            if now - self._asked_at >= seconds:
                self._answer = self._ask()
                self._asked_at = now
            return self._answer


def _said(fault: str | None) -> str:
    return "ok" if fault is None else f"cannot be written: {fault}"


def _content_fault(blobs: BlobStore) -> str:
    try:
        blobs.check()
    except BlobError as error:
        return f"cannot be used: {error}"
    return "ok"
