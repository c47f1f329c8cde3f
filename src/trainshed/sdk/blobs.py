"""Bringing bytes to the server: only those that it lacks, several at once, large ones in parts.

Whatever happens to the connection or the server, an upload goes on behind the last byte that the server has
confirmed. A file that does not hold what it held when it was hashed is named, and nothing of it counts.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from trainshed.sdk.answers import mapping
from trainshed.sdk.errors import (
    Conflict,
    ContentChanged,
    IntegrityError,
    InvalidAnswer,
    LocalFileError,
    TrainshedError,
)
from trainshed.sdk.loopback import Content, Streamed
from trainshed.sdk.transport import Transport, route

PARALLEL_UPLOADS = 4
PART_BYTES = 32 << 20
"""The largest part that is sent at once, and sent again where its answer is lost."""
OUTAGE_SECONDS = 300.0
"""How long a server that does not answer is waited for, in the middle of an upload."""
SMALL_BYTES = 256 << 10
"""Up to here a blob is sent together with others."""
_BATCH_BYTES = 4 << 20
_BATCH = 128
"""Blobs that are sent together to a server that does not say how many it likes best."""
_MOST_TOGETHER = 1000
_DIGESTS_A_CALL = 1000
_DEFAULT_LIMIT = 64 << 20
_FINISHING_PAUSE_SECONDS = 1.0
_ROUNDS_WITHOUT_PROGRESS = 20
_READ_BYTES = 1 << 20
_NO_ROOM = "CONTENT_QUOTA_EXCEEDED"
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Upload:
    """Bytes with a known digest. ``open`` begins at their first byte each time; ``label`` names them."""

    sha256: str
    size: int
    open: Callable[[], BinaryIO]
    label: str


class BlobUploads:
    """Sends blobs to one server."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def missing(self, digests: Sequence[str]) -> set[str]:
        """Those of the digests that the server has no blob for. It keeps the others for a while."""
        return self._missing(digests).digests

    def send(
        self,
        uploads: Iterable[Upload],
        *,
        parallel: int = PARALLEL_UPLOADS,
        progress: Progress | None = None,
        files_progress: Progress | None = None,
    ) -> int:
        """Bring all of them to the server; how many it did not have yet.

        ``progress`` is told the bytes done and the bytes in all, ``files_progress`` the blobs, from one
        thread at a time. The first failure ends the others; what was sent stays, and sending again goes on
        there. Only where the quota refuses one are unfinished ones given up, and what has changed is: they
        would hold their room for a day. Raises `ContentChanged`, `LocalFileError`, `IntegrityError` and what
        the transport raises.
        """
        wanted = {upload.sha256: upload for upload in uploads}
        meter = _Meter(sum(upload.size for upload in wanted.values()), progress)
        files = _Meter(len(wanted), files_progress)
        found = self._missing(list(wanted))
        missing, limit = found.digests, found.most_bytes
        files.add(len(wanted) - len(missing))
        meter.add(sum(upload.size for digest, upload in wanted.items() if digest not in missing))
        # A large one that begins last would go on alone.
        waiting = sorted((wanted[digest] for digest in missing), key=lambda upload: -upload.size)
        sending = _Sending(self._transport, min(limit, PART_BYTES), meter, files)
        pool = ThreadPoolExecutor(max(1, parallel), "upload")
        try:
            batches = _batches(waiting, min(limit // 2, _BATCH_BYTES), found.most, max(1, parallel))
            futures = [pool.submit(sending.send, batch) for batch in batches]
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
        except Conflict as error:
            sending.stop()
            pool.shutdown(cancel_futures=True)
            if error.code == _NO_ROOM:
                sending.give_up()
            raise
        finally:
            sending.stop()
            pool.shutdown(cancel_futures=True)
        return len(waiting)

    def _missing(self, digests: Sequence[str]) -> _Missing:
        found = _Missing()
        for start in range(0, len(digests), _DIGESTS_A_CALL):
            body = {"sha256": list(digests[start : start + _DIGESTS_A_CALL])}
            where = route("content", "blobs", "missing")
            answer = mapping(self._transport.call("POST", where, body=body, repeatable=True), "digests")
            found.digests.update(answer.get("missing", ()))
            found.most_bytes = _number(answer.get("max_blob_bytes", found.most_bytes))
            found.most = max(1, min(_number(answer.get("max_blobs", found.most)), _MOST_TOGETHER))
        return found


@dataclass(slots=True)
class _Missing:
    """What the server said of many digests."""

    digests: set[str] = field(default_factory=set)
    """Those that it has no blob for."""
    most_bytes: int = _DEFAULT_LIMIT
    """In one request."""
    most: int = _BATCH
    """Blobs in one request."""


class _Stopped(Exception):
    """Another upload failed; this one does not count."""


@dataclass(slots=True)
class _Meter:
    """Bytes done of all bytes."""

    total: int
    tell: Progress | None
    _done: int = 0
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def add(self, count: int) -> None:
        if count and self.tell is not None:
            with self._guard:
                self._done += count
                self.tell(self._done, self.total)


@dataclass(frozen=True, slots=True)
class _Sending:
    """One `BlobUploads.send`."""

    transport: Transport
    part_bytes: int
    meter: _Meter
    files: _Meter
    _stopping: threading.Event = field(default_factory=threading.Event)
    _unfinished: set[str] = field(default_factory=set)

    def stop(self) -> None:
        self._stopping.set()

    def give_up(self) -> None:
        """Remove what the server has of uploads in parts that did not come to their end, where it can."""
        for where in sorted(self._unfinished):
            # Else it goes after a day. An older server knows no other way.
            with suppress(TrainshedError):
                self.transport.call("DELETE", where)

    def send(self, batch: Sequence[Upload]) -> None:
        self._send(batch)
        self.files.add(len(batch))

    def _send(self, batch: Sequence[Upload]) -> None:
        if len(batch) > 1:
            self._send_together(batch)
            return
        [upload] = batch
        with _local_errors(upload), upload.open() as file:
            if upload.size > self.part_bytes:
                where = route("content", "blobs", upload.sha256, "upload")
                self._unfinished.add(where)
                try:
                    self._send_parts(upload, file, where)
                except ContentChanged:
                    # Nobody has these bytes any more.
                    with suppress(TrainshedError):
                        self.transport.call("DELETE", where)
                    raise
                self._unfinished.discard(where)
            else:
                where = route("content", "blobs", upload.sha256)
                self._store([upload], "PUT", where, self._streamed(upload, file, 0, upload.size))
                self.meter.add(upload.size)

    def _send_together(self, batch: Sequence[Upload]) -> None:
        body = bytearray()
        for upload in batch:
            with _local_errors(upload), upload.open() as file:
                body += b"%s %d\n" % (upload.sha256.encode(), upload.size)
                body += b"".join(self._read(upload, file, upload.size))
        self._store(batch, "POST", route("content", "blobs"), bytes(body))
        self.meter.add(sum(upload.size for upload in batch))

    def _send_parts(self, upload: Upload, file: BinaryIO, where: str) -> None:
        offset, told, stuck = self._begun(upload, where), 0, 0
        while True:
            self.meter.add(offset - told)
            told = max(told, offset)
            count = min(self.part_bytes, upload.size - offset)
            content = self._streamed(upload, file, offset, count)
            asked_at = time.monotonic()
            try:
                answer = self._store([upload], "PUT", where, content, offset=offset, size=upload.size)
                if answer.get("stored") is True:
                    self.meter.add(upload.size - told)
                    return
                reached = _number(answer.get("offset"))
            except Conflict as error:
                if error.code != "UPLOAD_OFFSET_MISMATCH":
                    raise
                # An answer was lost, another client sends the same, or the server lost what it had.
                reached = _number(error.body.get("offset"))
            if reached == offset == upload.size:
                # All is there; the server reads it back or passes it on to its store.
                self._pause(max(0.0, asked_at + _FINISHING_PAUSE_SECONDS - time.monotonic()))
                continue
            stuck = 0 if reached > told else stuck + 1
            if stuck > _ROUNDS_WITHOUT_PROGRESS:
                raise InvalidAnswer(f"the upload of {upload.label} does not get beyond byte {told}")
            offset = min(reached, upload.size)

    def _begun(self, upload: Upload, where: str) -> int:
        """Where an earlier upload of the same bytes ended."""
        answer = self._patiently(lambda: self.transport.call("GET", where))
        state = mapping(answer, "an upload")
        return _number(state.get("offset")) if state.get("size") == upload.size else 0

    def _streamed(self, upload: Upload, file: BinaryIO, offset: int, count: int) -> Streamed:
        """A part of a file as a body: it is read while it is sent, and again where it is sent again."""

        def pieces() -> Iterator[bytes]:
            file.seek(offset)
            return self._read(upload, file, count)

        return Streamed(count, pieces)

    def _read(self, upload: Upload, file: BinaryIO, count: int) -> Iterator[bytes]:
        """The next bytes of the file; nothing may be missing, and nothing may follow the last ones."""
        left = count
        while True:
            if self._stopping.is_set():
                raise _Stopped
            with _local_errors(upload):
                piece = file.read(min(left, _READ_BYTES))
                ended = len(piece) == left
                longer = ended and file.tell() == upload.size and file.read(1)
            if longer:
                raise _changed(upload, "it has become longer")
            if not (piece or ended):
                raise _changed(upload, "it has become shorter")
            yield piece
            if ended:
                return
            left -= len(piece)

    def _store(
        self, uploads: Sequence[Upload], method: str, where: str, content: Content, **query: int
    ) -> Mapping[str, Any]:
        def once() -> Any:
            # All that is stored is named by its hash, so that it may be sent again.
            return self.transport.call(method, where, content=content, query=query, repeatable=True)

        try:
            return mapping(self._patiently(once), "a blob")
        except Conflict as error:
            if error.code != "CONTENT_HASH_MISMATCH":
                raise
            raise self._blamed(uploads) from error

    def _patiently(self, once: Callable[[], Any]) -> Any:
        def unless_stopped() -> Any:
            if self._stopping.is_set():
                raise _Stopped
            return once()

        return self.transport.patiently(unless_stopped, outage_seconds=OUTAGE_SECONDS)

    def _pause(self, seconds: float) -> None:
        if self._stopping.wait(seconds):
            raise _Stopped

    def _blamed(self, uploads: Sequence[Upload]) -> TrainshedError:
        """Whose fault it is that the server got other bytes than were announced."""
        for upload in uploads:
            digest, size = hashlib.sha256(), 0
            with _local_errors(upload), upload.open() as file:
                while piece := file.read(_READ_BYTES):
                    digest.update(piece)
                    size += len(piece)
            if (digest.hexdigest(), size) != (upload.sha256, upload.size):
                return _changed(upload, f"its sha256 is now {digest.hexdigest()}")
        return IntegrityError(f"{uploads[0].label}: other bytes reached the server than were sent")


def _batches(waiting: Sequence[Upload], most_bytes: int, most: int, parallel: int) -> Iterator[list[Upload]]:
    """Large ones each by itself, small ones together, so that all who send have something."""
    small = [upload for upload in waiting if upload.size <= min(SMALL_BYTES, most_bytes)]
    yield from ([upload] for upload in waiting[: len(waiting) - len(small)])
    most = min(most, max(1, -(-len(small) // parallel)))
    batch: list[Upload] = []
    left = 0
    for upload in small:
        if batch and (len(batch) >= most or upload.size > left):
            yield batch
            batch = []
        left = (left if batch else most_bytes) - upload.size
        batch.append(upload)
    if batch:
        yield batch


def _changed(upload: Upload, how: str) -> ContentChanged:
    return ContentChanged(
        f"{upload.label} was changed since its bytes were hashed: {how}",
        hint="Publish again when nothing writes to it.",
    )


@contextmanager
def _local_errors(upload: Upload) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LocalFileError(f"{upload.label}: {error.strerror or error}") from error


def _number(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InvalidAnswer("the server says of an upload what is no number of bytes")
    return value
