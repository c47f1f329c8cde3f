"""Blobs: which are missing, storing small ones together, one whole, a large one in parts (E105)."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from trainshed.content.blobs import (
    Blob,
    BlobTooLarge,
    DigestMismatch,
    FolderBlobStore,
    ReadBackMismatch,
    StoreUnavailable,
)
from trainshed.content.uploads import OffsetMismatch, SizeMismatch, TooManyUploads, UploadBusy
from trainshed.model.access import Permission
from trainshed.model.errors import FaultList, Refusal
from trainshed.server.bodies import Body
from trainshed.server.documents import Param
from trainshed.server.endpoints import Call, Operation, Routes
from trainshed.server.shapes import blobs as shapes
from trainshed.server.shapes import requests
from trainshed.server.storage import record_stored, reserved
from trainshed.store import possession, queue

routes = Routes("content")

PUBLISH = (Permission.RUNNER_PUBLISH, Permission.CONTENT_PUBLISH)
MAX_ASKED = 10_000
MAX_BATCH = 200
"""Blobs that are fetched together."""
MAX_STORED = 1000
"""Blobs that are stored together: each request costs a transaction and two syncs."""
_STORED_REMOTELY = 128
"""An object store is asked for each of them, and its answers may take their time."""
MAX_BATCH_BYTES = 8 << 20
_RECORD = re.compile(rb"([0-9a-f]{64}) ([0-9]{1,9})\n")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_NUMBER = re.compile(r"[0-9]{1,18}")
_COUNT = {"type": "integer", "minimum": 0}
_OFFSET = Param("offset", _COUNT, "Where the part begins.", example=0, refuses=("INVALID_SPEC",))
_SIZE = Param("size", _COUNT, "Bytes of the whole blob.", example=5_000_000_000, refuses=("INVALID_SPEC",))
_STORING = (
    "BLOB_BEING_DELETED",
    "CONTENT_HASH_MISMATCH",
    "CONTENT_QUOTA_EXCEEDED",
    "INVALID_SPEC",
    "STORAGE_FULL",
    "STORAGE_UNAVAILABLE",
    "UPLOAD_BUSY",
)


@routes.post(
    "/blobs/missing",
    Operation(
        "Ask which blobs to send",
        answer=shapes.MissingAnswer,
        any_of=PUBLISH,
        takes=requests.MissingBlobs,
        max_body=lambda services: services.bodies.other,
        refuses=("INVALID_SPEC", "STORAGE_UNAVAILABLE"),
    ),
)
def ask_missing(call: Call) -> shapes.MissingAnswer:
    """So that only what is new is uploaded. Those that are not named here are kept for now.

    What your project has not sent yet is missing, whoever else did: knowing a digest proves nothing.
    """
    body = Body(call.object())
    body.known(["sha256"])
    asked = body.words("sha256")
    if "sha256" not in body.values:
        body.fault("sha256", "is missing")
    if len(asked) > MAX_ASKED:
        body.fault("sha256", f"at most {MAX_ASKED} at once")
    elif not all(_SHA256.fullmatch(digest) for digest in asked):
        body.fault("sha256", "each must be 64 lower-case hex digits")
    body.finish()
    sizes = _usable(call, list(dict.fromkeys(asked)))
    # What is recorded and gone, or cut off, is asked for again, which heals it.
    lost = set(call.services.blobs.unlike(sizes))
    missing = [digest for digest in dict.fromkeys(asked) if digest not in sizes or digest in lost]
    local = isinstance(call.services.blobs, FolderBlobStore)
    return shapes.MissingAnswer(
        missing=missing,
        max_blob_bytes=call.services.bodies.blob,
        max_blobs=MAX_STORED if local else _STORED_REMOTELY,
    )


@routes.post(
    "/blobs",
    Operation(
        "Store several small blobs",
        answer=shapes.StoredBlobs,
        any_of=PUBLISH,
        takes_bytes=True,
        max_body=lambda services: min(services.bodies.blob, MAX_BATCH_BYTES),
        refuses=_STORING,
    ),
)
def put_blobs(call: Call) -> shapes.StoredBlobs:
    """All of them or none. The body is, for each blob, a line with its SHA-256 and its size, and its bytes.

    A line is 64 lower-case hex digits, a space, decimal digits and a line feed. At most 1000 blobs and 8 MiB.
    """
    assert call.stream is not None  # noqa: S101 - the operation takes bytes
    # All at once: fetching each piece by itself out of the event loop takes longer than its way here.
    contents = _unpacked(b"".join(iter(partial(call.stream.read, MAX_BATCH_BYTES), b"")))
    sizes = {blob.sha256: blob.size for blob in contents}
    _refuse_going(call, sizes)
    with _room(call, sizes) as reservation:
        with _refusals():
            call.services.blobs.put_many(contents)
        _record(call, sizes, reservation)
    return shapes.StoredBlobs(stored=len(contents), bytes=sum(sizes.values()))


@routes.put(
    "/blobs/{sha256}",
    Operation(
        "Store a blob",
        answer=shapes.StoredBlob,
        any_of=PUBLISH,
        takes_bytes=True,
        max_body=lambda services: services.bodies.blob,
        refuses=_STORING,
    ),
)
def put_blob(call: Call, sha256: str) -> shapes.StoredBlob:
    """The raw bytes; they are hashed, synced, read back and hashed again before this answers (E105)."""
    _check_name(sha256)
    assert call.stream is not None  # noqa: S101 - the operation takes bytes
    _refuse_going(call, [sha256])
    declared = call.stream.declared
    with _room(call, {sha256: call.services.bodies.blob if declared is None else declared}) as reservation:
        with _refusals():
            blob = call.services.blobs.put(call.stream, sha256=sha256, size=declared)
        _record(call, {blob.sha256: blob.size}, reservation)
    return shapes.StoredBlob(sha256=blob.sha256, size=blob.size)


@routes.get(
    "/blobs/{sha256}/upload",
    Operation(
        "See how far an upload has come",
        answer=shapes.BlobUpload,
        any_of=PUBLISH,
        refuses=("INVALID_SPEC", "STORAGE_UNAVAILABLE"),
    ),
)
def read_upload(call: Call, sha256: str) -> shapes.BlobUpload:
    """Where the next part of this blob begins; uploads of other projects do not count."""
    _check_name(sha256)
    if stored := _stored(call, sha256):
        return stored
    state = call.services.uploads.state(call.project, sha256)
    return shapes.BlobUpload(sha256=sha256, offset=state.offset, size=state.size, stored=False)


@routes.put(
    "/blobs/{sha256}/upload",
    Operation(
        "Store a part of a blob",
        answer=shapes.BlobUpload,
        any_of=PUBLISH,
        params=(_OFFSET, _SIZE),
        takes_bytes=True,
        max_body=lambda services: services.bodies.blob,
        refuses=(*_STORING, "UPLOAD_OFFSET_MISMATCH"),
    ),
)
def put_part(call: Call, sha256: str) -> shapes.BlobUpload:
    """Raw bytes from `offset` on, at most as many as a blob that is sent whole; durable once answered.

    The part that reaches `size` finishes the blob: its whole digest is proven and it is read back. Where that
    takes long, `stored` is false; an empty part at `offset` = `size` waits on. Another offset than where the
    upload ends is refused with the right one in `offset`. What nobody goes on with is removed after a day.
    """
    _check_name(sha256)
    offset, size = _numbers(call)
    assert call.stream is not None  # noqa: S101 - the operation takes bytes
    stored = _stored(call, sha256)
    if stored is None:
        _refuse_going(call, [sha256])
        with _refusals():
            state = call.services.uploads.append(call.project, sha256, call.stream, offset=offset, size=size)
        stored = shapes.BlobUpload(sha256=sha256, offset=state.offset, size=state.size, stored=state.stored)
    # What is not needed any more is taken all the same: its sender listens only afterwards.
    while call.stream.read():
        continue
    return stored


@routes.delete(
    "/blobs/{sha256}/upload",
    Operation(
        "Give an upload up",
        answer=shapes.BlobUpload,
        any_of=PUBLISH,
        refuses=("INVALID_SPEC", "STORAGE_UNAVAILABLE", "UPLOAD_BUSY"),
    ),
)
def give_upload_up(call: Call, sha256: str) -> shapes.BlobUpload:
    """What came of it goes at once, and so does its room in the quota; a blob that is stored stays.

    The same where there is none. Refused while somebody sends a part of it.
    """
    _check_name(sha256)
    with _refusals():
        call.services.uploads.give_up(call.project, sha256)
    return _stored(call, sha256) or shapes.BlobUpload(sha256=sha256, offset=0, size=None, stored=False)


def _unpacked(body: bytes) -> dict[Blob, bytes]:
    contents: dict[Blob, bytes] = {}
    place = 0
    while place < len(body):
        line = _RECORD.match(body, place)
        if line is None:
            said = f"byte {place} must begin a line with a SHA-256, a space and a size"
            raise Refusal.of("INVALID_SPEC", said, path="body")
        blob, start = Blob(line[1].decode(), int(line[2])), line.end()
        place = start + blob.size
        if place > len(body):
            raise Refusal.of("INVALID_SPEC", f"the body ends inside blob {blob.sha256}", path="body")
        contents[blob] = body[start:place]
    if len(contents) > MAX_STORED:
        raise Refusal.of("INVALID_SPEC", f"at most {MAX_STORED} blobs at once", path="body")
    return contents


def _check_name(sha256: str) -> None:
    if not _SHA256.fullmatch(sha256):
        raise Refusal.of("INVALID_SPEC", "a blob is named by 64 lower-case hex digits", path="sha256")


def _numbers(call: Call) -> tuple[int, int]:
    faults, found = FaultList(), []
    for name in ("offset", "size"):
        text = call.query.get(name, "")
        if _NUMBER.fullmatch(text):
            found.append(int(text))
        else:
            faults.add(name, "INVALID_SPEC", f"`{name}` must be a whole number of bytes in the query")
    if not faults and found[0] > found[1]:
        faults.add("offset", "INVALID_SPEC", f"a part cannot begin behind the {found[1]} bytes of the blob")
    faults.raise_if_any()
    return found[0], found[1]


def _usable(call: Call, names: list[str]) -> dict[str, int]:
    """Those that the project may count on, with their sizes; garbage collection leaves them alone now."""
    database, at = call.services.database, call.now
    with database.read() as connection:
        sizes = possession.sizes(connection, call.project, names)
        usable, stale = queue.untouched_blobs(connection, sizes, at=at)
    if stale:
        usable = database.write(lambda c: queue.touch_blobs(c, sizes, at=at))
    return {name: size for name, size in sizes.items() if name in usable}


def _record(call: Call, sizes: Mapping[str, int], reservation: str | None) -> None:
    """What was received whole, hashed and stored: the project has proved that it has it."""
    services = call.services
    at, project = services.clock(), call.project
    record_stored(services.database, services.blobs, sizes, at=at, sender=project, reservation=reservation)


def _refuse_going(call: Call, names: Collection[str]) -> None:
    """What is stored now would go with the copy that is being removed.

    Of what others sent that is told only once the bytes are proved: who has a digest alone learns nothing.
    """
    with call.services.database.read() as connection:
        own = possession.proved(connection, call.project, names)
        if going := queue.going_blobs(connection, own):
            raise queue.blob_being_deleted(min(going))


@contextmanager
def _room(call: Call, sizes: Mapping[str, int]) -> Iterator[str | None]:
    """Disk is left to everything else, and a project with a quota sends no more than it may hold."""
    services = call.services
    services.uploads.check_room()
    request = services.ids.ulid()
    with reserved(services.database, call.project, sizes, request=request, at=call.now) as reservation:
        yield reservation


def _stored(call: Call, sha256: str) -> shapes.BlobUpload | None:
    """The end of an upload that is not needed: the project sent the blob before and it is there."""
    sizes = _usable(call, [sha256])
    if not sizes or call.services.blobs.unlike(sizes):
        return None
    return shapes.BlobUpload(sha256=sha256, offset=sizes[sha256], size=sizes[sha256], stored=True)


@contextmanager
def _refusals() -> Iterator[None]:
    """What the store and the uploads raise, as the caller is told it."""
    try:
        yield
    except ReadBackMismatch as error:
        # Not the sender's fault: the storage is.
        raise StoreUnavailable(str(error)) from error
    except DigestMismatch as error:
        raise Refusal.of("CONTENT_HASH_MISMATCH", str(error), path="sha256") from None
    except OffsetMismatch as error:
        raise Refusal.of("UPLOAD_OFFSET_MISMATCH", str(error), path="offset", offset=error.offset) from None
    except (SizeMismatch, BlobTooLarge) as error:
        raise Refusal.of("INVALID_SPEC", str(error), path="size") from None
    except TooManyUploads as error:
        raise Refusal.of("CONTENT_QUOTA_EXCEEDED", str(error)) from None
    except UploadBusy as error:
        busy = Refusal.of("UPLOAD_BUSY", str(error))
        busy.retry_after = 1
        raise busy from None
