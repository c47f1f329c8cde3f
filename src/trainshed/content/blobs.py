"""Content-addressed storage: bytes under the name of their SHA-256, durable and verified before they count.

A blob is written to a hidden part file, synced, read back from the device, hashed as the device gives it back
and only then renamed to its name (contract E105). Whoever sees a name sees the whole, right content; a crash,
a full disk or a wrong digest leaves nothing visible.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import secrets
import stat
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from trainshed.content.batches import Batches, NotGivenBack
from trainshed.content.proofs import BUFFER_BYTES, ChangedOnDevice, ProvedFile, stretch
from trainshed.content.shards import NAME, Shards
from trainshed.content.syncs import locked, sync_folder

_PROVERS = 4
"""Large blobs that are read back at a time."""
_PROBE_BYTES = 256 << 10
"""Less than this is as good as nothing."""
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class BlobError(Exception):
    """The store could not do what it was asked; nothing became visible."""


class BlobNotFound(BlobError):
    """There is no blob of that name."""


class BlobTooLarge(BlobError):
    """The source holds more bytes than the caller allows."""


class DigestMismatch(BlobError):
    """The bytes are not those that were promised."""


class ReadBackMismatch(DigestMismatch):
    """What the store gives back is not what was written: it is faulty, or somebody changed what it holds."""


class StoreFull(BlobError):
    """The disk or its quota is full."""


class StoreUnavailable(BlobError):
    """The store cannot be used: not reachable, read-only, not permitted, an I/O error."""


@dataclass(frozen=True, slots=True)
class Blob:
    """A stored, verified content."""

    sha256: str
    size: int


class Readable(Protocol):
    """A source of bytes; ``b""`` is its end. Errors it raises pass through `BlobStore.put` unchanged."""

    def read(self, size: int, /) -> bytes: ...


class BlobStore(Protocol):
    """Where immutable content lies. All methods are thread-safe; names are 64 lower-case hex digits."""

    def put(
        self,
        source: Readable,
        *,
        sha256: str | None = None,
        size: int | None = None,
        limit: int | None = None,
    ) -> Blob:
        """Store all bytes of ``source``, durable and verified when this returns.

        ``sha256`` and ``size`` are what the sender promised: raises `DigestMismatch` where the bytes differ.
        Raises `BlobTooLarge` beyond ``limit`` bytes, `StoreFull`, `StoreUnavailable`. Storing what is there
        already is fine and heals a damaged copy.
        """
        ...

    def put_many(self, contents: Mapping[Blob, bytes]) -> None:
        """Store several small blobs at the price of few; durable and verified when this returns.

        Raises as `put` does; then, unless the store failed halfway, none of them is stored.
        """
        ...

    def adopt(self, file: Path, blob: Blob, cancelled: Callable[[], bool] = lambda: False) -> None:
        """Store a file of ours whose bytes were read back and are those of ``blob``; the file is used up.

        A large file may take minutes where the store is remote; ``cancelled`` is asked meanwhile. Raises
        `StoreUnavailable` when it says so and where the store does, `StoreFull`, `DigestMismatch`; the file
        stays then.
        """
        ...

    def open(self, sha256: str, start: int = 0, length: int | None = None) -> BlobReader:
        """Read ``length`` bytes (or to the end) from byte ``start``.

        Raises `BlobNotFound`, and `ReadBackMismatch` where something else lies in its place.
        """
        ...

    def size(self, sha256: str) -> int:
        """Bytes of a blob. Raises as `open` does."""
        ...

    def exists(self, sha256: str) -> bool: ...

    def missing(self, names: Iterable[str]) -> list[str]:
        """Those of ``names`` that are not stored, each once, in the order given."""
        ...

    def unlike(self, sizes: Mapping[str, int]) -> list[str]:
        """Those of these blobs, SHA-256 -> bytes, that are not stored or have another length, in order."""
        ...

    def delete(self, sha256: str) -> bool:
        """Remove a blob; whether there was one. Readers that have it open go on reading."""
        ...

    def verify(self, sha256: str) -> Blob:
        """Read a stored blob whole and compare. Raises `ReadBackMismatch`, `BlobNotFound`."""
        ...

    def names(self) -> Iterator[Blob]:
        """Every stored blob, in no particular order; those that come or go meanwhile may be left out.

        What is no blob is passed over. The length is what the store says; nobody has read the bytes.
        """
        ...

    def strangers(self) -> Iterator[str]:
        """What lies among the blobs and is none, by its place below them, in order. Nothing removes it."""
        ...

    def check(self) -> None:
        """Prove that blobs can be stored now. Raises `StoreUnavailable`, `StoreFull`."""
        ...


class BlobReader(io.RawIOBase):
    """A window on a blob's bytes."""

    def __init__(self, start: int, length: int) -> None:
        super().__init__()
        self._place = start
        self._left = length

    @property
    def remaining(self) -> int:
        """Bytes of the window that were not read yet."""
        return self._left

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview | bytearray, /) -> int:  # type: ignore[override]  # any writable buffer
        view = memoryview(buffer).cast("B")[: self._left]
        count = self._fill(view) if view else 0
        self._place += count
        self._left -= count
        return count

    def chunks(self, size: int = BUFFER_BYTES) -> Iterator[bytes]:
        """The rest of the window in pieces of at most ``size`` bytes."""
        while piece := self.read(size):
            yield piece

    @abstractmethod
    def _fill(self, view: memoryview) -> int:
        """Read some bytes from ``self._place`` on into ``view``, which is not empty."""


class _FileReader(BlobReader):
    """A window on a file."""

    def __init__(self, fd: int, start: int, length: int) -> None:
        super().__init__(start, length)
        self._fd = fd

    def fileno(self) -> int:
        return self._fd

    def _fill(self, view: memoryview) -> int:
        return os.preadv(self._fd, [view], self._place)

    def close(self) -> None:
        if not self.closed:
            os.close(self._fd)
        super().close()


class FolderBlobStore:
    """A `BlobStore` in a local folder; several processes may use the same one.

    Opening it creates the folder and removes part files whose writers are gone. Raises `StoreUnavailable`
    where that cannot be done.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._shards = Shards(root / "sha256", root / "aside")
        self._parts = root / "incoming"
        with store_errors(root):
            self._parts.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._shards.make()
            for folder in (self._shards.root, root, root.parent):
                sync_folder(folder)
            self._remove_abandoned_parts()
            self._batches = Batches(root / "batches", self._shards.root)
        self._provers = ThreadPoolExecutor(_PROVERS, "blobs-proof")

    def put(
        self,
        source: Readable,
        *,
        sha256: str | None = None,
        size: int | None = None,
        limit: int | None = None,
    ) -> Blob:
        """See `BlobStore.put`."""
        with self._part_file() as (fd, part):
            blob = self._write(fd, source, size, limit)
            check_promise(blob, sha256, size)
            with store_errors(part):
                self._let_in(fd, part, blob)
        return blob

    def put_many(self, contents: Mapping[Blob, bytes]) -> None:
        """See `BlobStore.put_many`. They are brought to the device and named together."""
        for blob, content in contents.items():
            check_promise(Blob(hashlib.sha256(content).hexdigest(), len(content)), blob.sha256, blob.size)
        with store_errors(self.root):
            try:
                self._put_together({blob.sha256: content for blob, content in contents.items()})
            except NotGivenBack as error:
                found = Blob(hashlib.sha256(error.found).hexdigest(), len(error.found))
                [written] = (blob for blob in contents if blob.sha256 == error.name)
                check_read_back(written, found)
                raise

    def adopt(self, file: Path, blob: Blob, cancelled: Callable[[], bool] = lambda: False) -> None:  # noqa: ARG002 - a rename takes no time
        """See `BlobStore.adopt`. The file must lie on the store's own file system."""
        with store_errors(file):
            fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                os.fsync(fd)
                self._let_in(fd, file, blob)
            finally:
                os.close(fd)

    def path(self, sha256: str) -> Path:
        """The blob's file, to be read only. Raises `BlobNotFound`."""
        if not self.exists(sha256):
            raise BlobNotFound(f"no blob {sha256}")
        return self._place(sha256)

    def open(self, sha256: str, start: int = 0, length: int | None = None) -> BlobReader:
        """See `BlobStore.open`. A window that goes past the end is cut there."""
        if start < 0 or (length is not None and length < 0):
            raise ValueError("start and length are counted from 0")
        with store_errors(self._place(checked_name(sha256)), absent=sha256) as place:
            # A FIFO would be waited for.
            fd = os.open(place, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            os.close(fd)
            raise _in_its_place(sha256)
        rest = max(0, status.st_size - start)
        return _FileReader(fd, start, rest if length is None else min(rest, length))

    def size(self, sha256: str) -> int:
        """See `BlobStore.size`."""
        with store_errors(self._place(checked_name(sha256)), absent=sha256) as place:
            status = place.stat()
        if not stat.S_ISREG(status.st_mode):
            raise _in_its_place(sha256)
        return status.st_size

    def exists(self, sha256: str) -> bool:
        """Whether the blob is stored."""
        return self._shards.is_file(checked_name(sha256))

    def missing(self, names: Iterable[str]) -> list[str]:
        """See `BlobStore.missing`."""
        wanted = dict.fromkeys(names)
        absent = self._shards.absent(wanted)
        return [name for name in wanted if name in absent]

    def unlike(self, sizes: Mapping[str, int]) -> list[str]:
        """See `BlobStore.unlike`."""
        unlike = self._shards.unlike(sizes)
        return [name for name in sizes if name in unlike]

    def delete(self, sha256: str) -> bool:
        """See `BlobStore.delete`."""
        with contextlib.suppress(BlobNotFound):
            with store_errors(self._place(checked_name(sha256)), absent=sha256) as place:
                if not self._shards.clear(sha256):
                    place.unlink()
            return True
        return False

    def verify(self, sha256: str) -> Blob:
        """See `BlobStore.verify`."""
        with self.open(sha256) as reader:
            found = _hash_file(reader.fileno())
        check_stored(sha256, found)
        return found

    def names(self) -> Iterator[Blob]:
        """See `BlobStore.names`."""
        with store_errors(self._shards.root):
            yield from (Blob(name, size) for name, size in self._shards.files())

    def strangers(self) -> Iterator[str]:
        """See `BlobStore.strangers`."""
        with store_errors(self._shards.root):
            return iter(self._shards.strangers())

    def check(self) -> None:
        """See `BlobStore.check`."""
        with self._part_file() as (fd, part), store_errors(part):
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(fd, 0, _PROBE_BYTES)
            part.unlink()

    def _let_in(self, fd: int, file: Path, blob: Blob) -> None:
        """Give a finished file its name for good."""
        self._name(fd, file, blob)
        sync_folder(self._place(blob.sha256).parent)

    def _name(self, fd: int, file: Path, blob: Blob) -> None:
        """From here on the blob is there for all."""
        os.fchmod(fd, 0o444)
        try:
            file.rename(self._place(blob.sha256))
        except IsADirectoryError:
            self._shards.clear(blob.sha256)
            file.rename(self._place(blob.sha256))

    def _put_together(self, contents: Mapping[str, bytes]) -> None:
        try:
            self._batches.put(contents)
        except IsADirectoryError:
            for name in contents:
                self._shards.clear(name)
            self._batches.put(contents)

    def _place(self, sha256: str) -> Path:
        return self._shards.place(sha256)

    def _write(self, fd: int, source: Readable, size: int | None, limit: int | None) -> Blob:
        """Bring a source to the device; what the device gives back."""
        digest = hashlib.sha256()
        with ProvedFile(self._provers, fd, digest=digest) as file:
            for piece in pieces(source):
                total = file.place + len(piece)
                if limit is not None and total > limit:
                    raise BlobTooLarge(f"more than {limit} bytes")
                if size is not None and total > size:
                    raise DigestMismatch(f"promised {size} bytes, received more")
                with store_errors(self._parts):
                    file.write(piece)
            with store_errors(self._parts):
                file.prove()
            return Blob(digest.hexdigest(), file.place)

    @contextlib.contextmanager
    def _part_file(self) -> Iterator[tuple[int, Path]]:
        """A new part file, locked for as long as its writer lives; gone afterwards unless renamed."""
        while True:
            part = self._parts / secrets.token_hex(16)
            with store_errors(part):
                fd = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            # Another process that opens the store may remove the file before it is locked.
            if locked(fd) and os.fstat(fd).st_nlink:
                break
            os.close(fd)
        try:
            yield fd, part
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)

    def _remove_abandoned_parts(self) -> None:
        for part in self._parts.iterdir():
            # A folder is nobody's part.
            with contextlib.suppress(FileNotFoundError, IsADirectoryError):
                fd = os.open(part, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    if locked(fd):
                        part.unlink(missing_ok=True)
                finally:
                    os.close(fd)


def checked_name(sha256: str) -> str:
    """``sha256``, if a blob can have that name. Raises `BlobNotFound`."""
    if not NAME.fullmatch(sha256):
        raise BlobNotFound(f"{sha256[:80]!r} is not a blob's name (64 lower-case hex digits)")
    return sha256


def check_promise(blob: Blob, sha256: str | None, size: int | None) -> None:
    """Raise `DigestMismatch` unless the bytes received are those that were promised."""
    if sha256 is not None and blob.sha256 != sha256:
        raise DigestMismatch(f"promised sha256 {sha256}, received {blob.sha256} ({blob.size} bytes)")
    if size is not None and blob.size != size:
        raise DigestMismatch(f"promised {size} bytes, received {blob.size}")


def check_read_back(blob: Blob, read_back: Blob) -> None:
    """Raise `ReadBackMismatch` unless the store gives back what was written (E105)."""
    if read_back != blob:
        raise ReadBackMismatch(
            f"wrote {blob.size} bytes with sha256 {blob.sha256}, the device gave back "
            f"{read_back.size} with {read_back.sha256}"
        )


def check_stored(sha256: str, found: Blob) -> None:
    """Raise `ReadBackMismatch` where a blob's bytes are not those of its name any more."""
    if found.sha256 != sha256:
        raise ReadBackMismatch(f"blob {sha256} is damaged: its {found.size} bytes have {found.sha256}")


def _in_its_place(sha256: str) -> ReadBackMismatch:
    return ReadBackMismatch(f"blob {sha256} is damaged: what lies in its place is no file")


def pieces(source: Readable) -> Iterator[memoryview]:
    """What a source has to give; a piece is valid until the next one is asked for."""
    readinto = getattr(source, "readinto", None)
    if readinto is None:
        while data := source.read(BUFFER_BYTES):
            yield memoryview(data)
        return
    buffer = memoryview(bytearray(BUFFER_BYTES))
    while count := readinto(buffer):
        yield buffer[:count]


def _hash_file(fd: int) -> Blob:
    digest, size = hashlib.sha256(), 0
    for piece in stretch(fd, 0, os.fstat(fd).st_size + 1):
        digest.update(piece)
        size += len(piece)
    return Blob(digest.hexdigest(), size)


@contextlib.contextmanager
def store_errors(path: Path, *, absent: str | None = None) -> Iterator[Path]:
    """Turn the system's errors into the store's, each with the place it is about."""
    try:
        yield path
    except ChangedOnDevice as error:
        raise ReadBackMismatch(str(error)) from error
    except FileNotFoundError as error:
        if absent is not None:
            raise BlobNotFound(f"no blob {absent}") from None
        raise StoreUnavailable(f"{path}: {error.strerror}") from error
    except OSError as error:
        kind = StoreFull if error.errno in _FULL else StoreUnavailable
        raise kind(f"{path}: {error.strerror}") from error
