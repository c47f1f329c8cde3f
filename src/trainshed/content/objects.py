"""Blobs in an object store: S3-compatible, Google Cloud Storage, Azure, or any other that obstore speaks.

A blob's object is named by its SHA-256. An object appears whole or not at all, so what has to be kept from
appearing is the wrong whole:

- Bytes whose digest was promised go straight through. They are hashed on the way, and where they differ the
  last piece is never handed over: the upload is aborted, and nothing was visible.
- Bytes without a promise have no name until the last one is hashed, so they wait in a file without a name on
  this machine's disk.

A temporary object that is copied to its name would spare that file, but S3 copies at most 5 GiB.

What is stored is then read back from the store and hashed again (contract E105). Where that differs, twice,
the object is taken away. Between its appearing and its read-back nobody counts on it: a blob counts once the
database says so, and that is written after `put` returned.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import re
import secrets
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from obstore.exceptions import (
    BaseError,
    NotFoundError,
    PermissionDeniedError,
    UnauthenticatedError,
)

from trainshed.content.blobs import (
    Blob,
    BlobNotFound,
    BlobReader,
    BlobTooLarge,
    DigestMismatch,
    Readable,
    ReadBackMismatch,
    StoreFull,
    StoreUnavailable,
    check_promise,
    check_read_back,
    check_stored,
    checked_name,
    pieces,
)
from trainshed.content.proofs import BUFFER_BYTES
from trainshed.content.shards import NAME

PART_BYTES = 8 << 20
"""Up to here one request stores a blob; what is larger goes in parts of at least this size."""
_MOST_PARTS = 9_000
"""S3 takes 10,000."""
_BYTES_IN_FLIGHT = 32 << 20
_ASKING_THREADS = 32
_TRIES = 3
_PREFIX = "sha256"
_PROBE = b"trainshed"
_FULL = re.compile(r"507 Insufficient|StorageFull|InsufficientStorage|QuotaExceeded|os error (28|122)\b")
_NO_CREDENTIALS = re.compile(r"\b169\.254\.169\.254\b|metadata\.google\.internal|TokenRequest")
"""Whom the providers' clients ask where the environment says nothing."""
_STATUS = re.compile(r"status code: (\d{3}(?: [A-Z][A-Za-z-]*)*)")
_CODE = re.compile(r"<Code>(\w{1,60})</Code>")
_CAUSE = re.compile(
    r"Connection refused|[Cc]onnection reset|dns error|timed out|TimedOut|invalid peer certificate"
    r"|No such file or directory|Permission denied|Read-only file system|Not a directory"
)


class ObjectBlobStore:
    """A `BlobStore` in an object store.

    ``store`` is obstore's; its timeouts and repetitions are its own. ``spool`` is a local folder for bytes
    that have no name yet. ``place`` says where the blobs lie, for people; it holds no secrets.
    """

    def __init__(self, store: Any, spool: Path, place: str) -> None:
        self.place = place
        self._store = store
        self._spool = spool
        self._asking = ThreadPoolExecutor(_ASKING_THREADS, "blobs")
        try:
            spool.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StoreUnavailable(f"{spool}: {error.strerror}") from error

    def put(
        self,
        source: Readable,
        *,
        sha256: str | None = None,
        size: int | None = None,
        limit: int | None = None,
    ) -> Blob:
        """See `BlobStore.put`."""
        bounded = _bounded(source, size, limit)
        begun = _take(bounded, PART_BYTES)
        if len(begun) < PART_BYTES:
            blob = Blob(hashlib.sha256(begun).hexdigest(), len(begun))
            check_promise(blob, sha256, size)
            self._send_whole(blob, bytes(begun))
        elif sha256 is not None and size is not None:
            blob = Blob(sha256, size)
            self._send(blob, _joined(begun, bounded))
        else:
            blob = self._put_through_disk(_joined(begun, bounded), sha256, size)
        self._read_back(blob)
        return blob

    def put_many(self, contents: Mapping[Blob, bytes]) -> None:
        """See `BlobStore.put_many`."""

        def put(each: tuple[Blob, bytes]) -> None:
            blob, content = each
            self.put(io.BytesIO(content), sha256=blob.sha256, size=blob.size)

        for blob, content in contents.items():
            check_promise(Blob(hashlib.sha256(content).hexdigest(), len(content)), blob.sha256, blob.size)
        list(self._asking.map(put, contents.items()))

    def adopt(self, file: Path, blob: Blob, cancelled: Callable[[], bool] = lambda: False) -> None:
        """See `BlobStore.adopt`."""
        with _local_errors(file):
            source = file.open("rb", buffering=0)
        with source:
            self._send(blob, _until(cancelled, _file_pieces(file, source)))
            self._read_back(blob, cancelled)
        with _local_errors(file):
            file.unlink()

    def open(self, sha256: str, start: int = 0, length: int | None = None) -> BlobReader:
        """See `BlobStore.open`. A window that goes past the end is cut there."""
        if start < 0 or (length is not None and length < 0):
            raise ValueError("start and length are counted from 0")
        if length == 0:
            self.size(sha256)
            return _ObjectReader(self._window, sha256, start, 0)
        try:
            return _ObjectReader(self._window, sha256, start, length)
        except StoreUnavailable:
            # A window behind the last byte is refused by each store in words of its own.
            if self.size(sha256) > start:
                raise
            return _ObjectReader(self._window, sha256, start, 0)

    def size(self, sha256: str) -> int:
        """See `BlobStore.size`."""
        with self._errors(absent=sha256):
            return int(self._store.head(_key(sha256))["size"])

    def exists(self, sha256: str) -> bool:
        """Whether the blob is stored."""
        try:
            self.size(sha256)
        except BlobNotFound:
            checked_name(sha256)
            return False
        return True

    def missing(self, names: Iterable[str]) -> list[str]:
        """See `BlobStore.missing`; asks for many at once."""
        asked = list(dict.fromkeys(names))
        there = self._asking.map(self.exists, asked)
        return [name for name, found in zip(asked, there, strict=True) if not found]

    def unlike(self, sizes: Mapping[str, int]) -> list[str]:
        """See `BlobStore.unlike`; asks for many at once."""

        def length(name: str) -> int | None:
            try:
                return self.size(name)
            except BlobNotFound:
                return None

        found = self._asking.map(length, sizes)
        return [name for name, length in zip(sizes, found, strict=True) if length != sizes[name]]

    def delete(self, sha256: str) -> bool:
        """See `BlobStore.delete`. Stores do not tell whether there was something, so it is asked first."""
        there = self.exists(sha256)
        if there:
            with contextlib.suppress(BlobNotFound), self._errors(absent=sha256):
                self._store.delete(_key(sha256))
        return there

    def verify(self, sha256: str) -> Blob:
        """See `BlobStore.verify`."""
        found = self._hash(sha256)
        check_stored(sha256, found)
        return found

    def names(self) -> Iterator[Blob]:
        """See `BlobStore.names`."""
        for key, size in self._keys():
            if (name := _name_in(key)) is not None:
                yield Blob(name, size)

    def strangers(self) -> Iterator[str]:
        """See `BlobStore.strangers`."""
        return iter(sorted(key for key, _ in self._keys() if _name_in(key) is None))

    def check(self) -> None:
        """See `BlobStore.check`; stores, reads and removes a small object."""
        key = f"probe-{secrets.token_hex(8)}"
        with self._errors():
            self._store.put(key, _PROBE)
            found = bytes(self._store.get(key).bytes())
            self._store.delete(key)
        if found != _PROBE:
            raise StoreUnavailable(f"{self.place} does not give back what was stored there")

    def close(self) -> None:
        """End the threads that ask for many blobs at once."""
        self._asking.shutdown()

    def _put_through_disk(self, content: Iterable[bytes], sha256: str | None, size: int | None) -> Blob:
        with _local_errors(self._spool):
            file = tempfile.TemporaryFile(dir=self._spool, buffering=0)  # noqa: SIM115 - closed below
        with file:
            digest, total = hashlib.sha256(), 0
            for piece in content:
                digest.update(piece)
                total += len(piece)
                with _local_errors(self._spool):
                    left = memoryview(piece)
                    while left:
                        left = left[file.write(left) :]
            blob = Blob(digest.hexdigest(), total)
            check_promise(blob, sha256, size)
            file.seek(0)
            self._send(blob, _file_pieces(self._spool, file))
        return blob

    def _send_whole(self, blob: Blob, content: bytes) -> None:
        with self._errors():
            self._store.put(_key(blob.sha256), content, use_multipart=False)

    def _send(self, blob: Blob, content: Iterable[bytes]) -> None:
        """Store what is proven, on its way, to be the blob's bytes; anything else is never completed."""
        if blob.size < PART_BYTES:
            self._send_whole(blob, b"".join(_proven(blob, content)))
            return
        feed = _Feed(_proven(blob, content))
        part = max(PART_BYTES, -(-blob.size // _MOST_PARTS))
        with self._errors():
            try:
                self._store.put(
                    _key(blob.sha256),
                    feed,
                    use_multipart=True,
                    chunk_size=part,
                    max_concurrency=max(1, _BYTES_IN_FLIGHT // part),
                )
            except BaseException:
                # What the source raised is the source's, whatever became of it on the way.
                if feed.error is not None:
                    raise _SourceFailed(feed.error) from None
                raise

    def _read_back(self, blob: Blob, cancelled: Callable[[], bool] = lambda: False) -> None:
        """Compare what the store gives back; one difference may have come up on the way here."""
        for last in (False, True):
            try:
                check_read_back(blob, self._hash(blob.sha256, cancelled))
            except ReadBackMismatch:
                if last:
                    with contextlib.suppress(StoreUnavailable):
                        self.delete(blob.sha256)
                    raise
            except BlobNotFound:
                raise StoreUnavailable(f"{self.place} has lost blob {blob.sha256} right away") from None
            else:
                return

    def _hash(self, sha256: str, cancelled: Callable[[], bool] = lambda: False) -> Blob:
        digest, size = hashlib.sha256(), 0
        with self.open(sha256) as reader:
            for piece in _until(cancelled, reader.chunks()):
                digest.update(piece)
                size += len(piece)
        return Blob(digest.hexdigest(), size)

    def _window(self, sha256: str, start: int, end: int | None) -> tuple[int, Iterator[bytes]]:
        """The size of a blob and its bytes from ``start`` to ``end``."""
        options: dict[str, Any] = {}
        if end is not None:
            options = {"range": (start, end)}
        elif start:
            options = {"range": {"offset": start}}
        with self._errors(absent=sha256):
            found = self._store.get(_key(sha256), options=options)
            return int(found.meta["size"]), self._chunks(found, sha256)

    def _chunks(self, found: Any, sha256: str) -> Iterator[bytes]:
        with self._errors(absent=sha256):
            yield from found.stream(BUFFER_BYTES)

    def _keys(self) -> Iterator[tuple[str, int]]:
        """Every key below the blobs' prefix, from there on, and the length of its object."""
        with self._errors():
            for batch in self._store.list(_PREFIX, chunk_size=1000):
                for entry in batch:
                    yield entry["path"].partition(f"{_PREFIX}/")[2], entry["size"]

    @contextlib.contextmanager
    def _errors(self, *, absent: str | None = None) -> Iterator[None]:
        """Turn obstore's errors into ours. They carry whole answers, so only what is known is told (P9)."""
        try:
            yield
        except _SourceFailed as failed:
            raise failed.error from None
        except (FileNotFoundError, NotFoundError) as error:
            # Where something is stored, or the store says so, it is the bucket that is missing.
            if absent is not None and "NoSuchBucket" not in str(error):
                raise BlobNotFound(f"no blob {absent}") from None
            raise StoreUnavailable(f"{self.place}: there is no such bucket or container") from None
        except (PermissionDeniedError, UnauthenticatedError, PermissionError) as error:
            said = f"refuses its credentials ({_reason(error)})"
            raise StoreUnavailable(f"{self.place} {said}; they come from the environment") from None
        except (BaseError, OSError, ValueError) as error:
            if _NO_CREDENTIALS.search(str(error)):
                said = "the environment holds no credentials for it, and this machine has no role that does"
                raise StoreUnavailable(f"{self.place}: {said}") from None
            kind = StoreFull if _FULL.search(str(error)) else StoreUnavailable
            raise kind(f"{self.place}: {_reason(error)}") from None


class _ObjectReader(BlobReader):
    """A window on an object; goes on behind the last byte where a connection breaks."""

    def __init__(
        self,
        window: Callable[[str, int, int | None], tuple[int, Iterator[bytes]]],
        sha256: str,
        start: int,
        length: int | None,
    ) -> None:
        self._window = window
        self._sha256 = sha256
        self._chunks: Iterator[bytes] = iter(())
        self._chunk = memoryview(b"")
        self._failures = 0
        end = start if length == 0 else None if length is None else start + length
        if end != start:
            size, self._chunks = window(sha256, start, end)
            end = size if end is None else min(end, size)
        super().__init__(start, max(0, (end or 0) - start))

    def _fill(self, view: memoryview) -> int:
        while not self._chunk:
            try:
                self._chunk = memoryview(next(self._chunks)).cast("B")
            except (StopIteration, StoreUnavailable) as error:
                self._failures += 1
                if self._failures >= _TRIES:
                    if isinstance(error, StoreUnavailable):
                        raise
                    said = f"blob {self._sha256} ended {self._left} bytes early"
                    raise StoreUnavailable(said) from None
                _, self._chunks = self._window(self._sha256, self._place, self._place + self._left)
            else:
                self._failures = 0 if self._chunk else self._failures
        count = min(len(view), len(self._chunk))
        view[:count] = self._chunk[:count]
        self._chunk = self._chunk[count:]
        return count

    def close(self) -> None:
        self._chunks, self._chunk = iter(()), memoryview(b"")
        super().close()


class _Feed:
    """An iterator that remembers what its source raised: obstore hands on some errors and rewords others."""

    def __init__(self, content: Iterator[bytes]) -> None:
        self._content = content
        self.error: BaseException | None = None

    def __iter__(self) -> _Feed:
        return self

    def __next__(self) -> bytes:
        try:
            return next(self._content)
        except StopIteration:
            raise
        except BaseException as error:
            self.error = error
            raise


class _SourceFailed(BaseException):
    """Carries an error of the source past the mapping of the store's errors."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


def _key(sha256: str) -> str:
    return f"{_PREFIX}/{checked_name(sha256)[:2]}/{sha256}"


def _name_in(key: str) -> str | None:
    """The blob that lies at a key below the prefix, if it is one."""
    name = key.rpartition("/")[2]
    return name if NAME.fullmatch(name) and key == f"{name[:2]}/{name}" else None


def _bounded(source: Readable, size: int | None, limit: int | None) -> Iterator[bytes]:
    """The pieces of a source, as bytes of their own; raises as soon as there are too many."""
    total = 0
    for piece in pieces(source):
        total += len(piece)
        if limit is not None and total > limit:
            raise BlobTooLarge(f"more than {limit} bytes")
        if size is not None and total > size:
            raise DigestMismatch(f"promised {size} bytes, received more")
        yield bytes(piece)


def _take(content: Iterator[bytes], least: int) -> bytearray:
    """At least so many bytes, or all there are."""
    taken = bytearray()
    for piece in content:
        taken += piece
        if len(taken) >= least:
            break
    return taken


def _joined(begun: bytearray, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield bytes(begun)
    yield from rest


def _proven(blob: Blob, content: Iterable[bytes]) -> Iterator[bytes]:
    """The content, held back by one piece: the last one is given only if all are the blob's."""
    digest, size, held = hashlib.sha256(), 0, b""
    for piece in content:
        digest.update(piece)
        size += len(piece)
        if held:
            yield held
        held = piece
    check_promise(Blob(digest.hexdigest(), size), blob.sha256, blob.size)
    if held:
        yield held


def _until(cancelled: Callable[[], bool], content: Iterable[bytes]) -> Iterator[bytes]:
    for piece in content:
        if cancelled():
            raise StoreUnavailable("the server ends; the blob is stored when it is asked for again")
        yield piece


def _reason(error: Exception) -> str:
    """What went wrong, without addresses, headers and bodies."""
    text = str(error)
    status, code, cause = _STATUS.search(text), _CODE.search(text), _CAUSE.search(text)
    if status:
        return f"it answers {status[1]}{f' ({code[1]})' if code else ''}"
    if cause:
        return f"it does not answer: {'timed out' if cause[0] == 'TimedOut' else cause[0]}"
    said = text.partition("\n")[0].rpartition(" - ")[2]
    return re.sub(r"\S*(://|\?)\S*", "…", said)[:200] or type(error).__name__


def _file_pieces(path: Path, source: Readable) -> Iterator[bytes]:
    """What a local file holds."""
    while True:
        with _local_errors(path):
            piece = source.read(BUFFER_BYTES)
        if not piece:
            return
        yield piece


@contextlib.contextmanager
def _local_errors(path: Path) -> Iterator[None]:
    """Errors of this machine's disk, which are not those of the store."""
    try:
        yield
    except OSError as error:
        kind = StoreFull if error.errno in {errno.ENOSPC, errno.EDQUOT} else StoreUnavailable
        raise kind(f"{path}: {error.strerror or error}") from error
