"""Blobs as verified files of this machine: a local store's own, or fetched from a remote one."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import structlog

from trainshed.content.blobs import (
    BlobError,
    BlobNotFound,
    BlobStore,
    DigestMismatch,
    FolderBlobStore,
    Readable,
    StoreFull,
)
from trainshed.content.flights import Cancelled, Flights, Progress, never, silent
from trainshed.content.linked_trees import Stamp, stamp_of
from trainshed.content.proofs import BUFFER_BYTES

_PARALLEL = 8
_KEPT_PROOFS = 1 << 16
_NOTE_USE_SECONDS = 60.0
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})

log = structlog.get_logger(__name__)


class LocalContentError(Exception):
    """Content cannot be had on this machine. ``retryable`` says whether asking again can help.

    ``code`` is ``CONTENT_DAMAGED``, ``CONTENT_UNAVAILABLE`` or ``CONTENT_DISK_FULL``.
    """

    def __init__(self, code: str, message: str, *, retryable: bool, sha256: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retryable = retryable
        self.sha256 = sha256
        """The blob that it is about, if it is about one."""

    def of(self, what: str) -> LocalContentError:
        """The same, of ``what``: people know contents and files, not blobs."""
        said = f"{what}: {self.message}"
        return LocalContentError(self.code, said, retryable=self.retryable, sha256=self.sha256)


def damaged(message: str, *, retryable: bool = False) -> LocalContentError:
    """The stored bytes are not those of their name, or are gone."""
    return LocalContentError("CONTENT_DAMAGED", message, retryable=retryable)


@contextlib.contextmanager
def explained(place: Path) -> Iterator[None]:
    """Turn what store and system say about ``place`` into a `LocalContentError`."""
    try:
        yield
    except BlobNotFound as error:
        raise damaged(f"the store does not have it any more: {error}") from error
    except DigestMismatch as error:
        raise damaged(f"the store holds other bytes: {error}") from error
    except StoreFull as error:
        raise _full(str(error)) from error
    except BlobError as error:
        message = f"the store did not answer: {error}"
        raise LocalContentError("CONTENT_UNAVAILABLE", message, retryable=True) from error
    except OSError as error:
        if error.errno in _FULL:
            raise _full(f"{place}: {error.strerror}") from error
        message = f"{error.filename or place}: {error.strerror}"
        raise LocalContentError("CONTENT_UNAVAILABLE", message, retryable=True) from error


@contextlib.contextmanager
def _about(sha256: str) -> Iterator[None]:
    try:
        yield
    except LocalContentError as error:
        error.sha256 = sha256
        raise


def _full(reason: str) -> LocalContentError:
    message = f"there is no room for content on this machine ({reason}); free space on its disk"
    return LocalContentError("CONTENT_DISK_FULL", message, retryable=True)


@dataclass(slots=True)
class _Cached:
    size: int
    inode: int
    used_at: float
    noted_at: float


class VerifiedBlobs:
    """Answers paths whose bytes were hashed, once, and again whenever the file is not as it was.

    Thread-safe. Of a remote ``store``, ``root`` becomes a cache that only `drop` makes smaller.
    """

    def __init__(self, root: Path, store: BlobStore, clock: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock
        self.remote = not isinstance(store, FolderBlobStore)
        self._folder = store if isinstance(store, FolderBlobStore) else FolderBlobStore(root)
        self._lock = threading.Lock()
        self._flights = Flights()
        self._proved: dict[str, Stamp] = {}
        self._cached: dict[str, _Cached] = {}
        self.bytes = 0
        """What the cache holds; a local store's own blobs do not count."""
        if self.remote:
            for place in (root / "sha256").glob("*/*"):
                self._note(place.name, place)

    def file(
        self,
        sha256: str,
        *,
        on_bytes: Callable[[int], None] = lambda _: None,
        cancelled: Callable[[], bool] = never,
    ) -> Path:
        """The verified file. Raises `LocalContentError` and `Cancelled`."""
        if (place := self._proved_file(sha256)) is not None:
            return place
        return self._flights.share(
            sha256, lambda _: self._provide(sha256, on_bytes, cancelled), cancelled=cancelled
        )

    def bring(
        self,
        sizes: Mapping[str, int],
        *,
        on_progress: Progress = silent,
        cancelled: Callable[[], bool] = never,
    ) -> None:
        """`file` for each, several at once; what needs no reading is not part of the progress."""
        todo = deque(sha256 for sha256 in sizes if self._proved_file(sha256) is None)
        if todo:
            meter = _Meter(sum(sizes[sha256] for sha256 in todo), on_progress)
            crew = _Crew(todo, cancelled)
            crew.run(lambda sha256: self.file(sha256, on_bytes=meter, cancelled=crew.is_over))

    def place(self, sha256: str) -> Path:
        """Where a file is that was brought. Raises `BlobNotFound`."""
        return self._folder.path(sha256)

    def missing(self, names: Iterable[str]) -> list[str]:
        """Those that would have to be fetched."""
        return self._folder.missing(names) if self.remote else []

    def last_uses(self) -> list[tuple[float, str]]:
        """When each cached file was used last (Unix seconds)."""
        with self._lock:
            return [(each.used_at, sha256) for sha256, each in self._cached.items()]

    def named_by(self, inodes: Collection[int]) -> list[str]:
        """Which cached files have these inodes."""
        wanted = set(inodes)
        with self._lock:
            return [sha256 for sha256, each in self._cached.items() if each.inode in wanted] if wanted else []

    def drop(self, sha256: str, *, linked: bool = False) -> None:
        """Remove a file from the cache; one that has other names only if ``linked``."""
        with contextlib.suppress(BlobError, OSError):
            if linked or self._folder.path(sha256).stat().st_nlink == 1:
                self._folder.delete(sha256)
                with self._lock:
                    self.bytes -= self._cached.pop(sha256).size if sha256 in self._cached else 0

    def _proved_file(self, sha256: str) -> Path | None:
        known = self._proved.get(sha256)
        if known is None:
            return None
        with contextlib.suppress(BlobError, OSError):
            place = self._folder.path(sha256)
            if stamp_of(place.stat()) == known:
                self._note_use(sha256, place)
                return place
        return None

    def _provide(self, sha256: str, on_bytes: Callable[[int], None], cancelled: Callable[[], bool]) -> Path:
        with _about(sha256), explained(Path(sha256)):
            if self.remote and not self._folder.exists(sha256):
                return self._fetch(sha256, on_bytes, cancelled)
            place = self._folder.path(sha256)
            stamp = stamp_of(place.stat())
            if _sha256(place, on_bytes, cancelled) != sha256:
                if not self.remote:
                    raise damaged(f"the stored bytes of the blob {sha256} are damaged")
                log.warning("a cached file was damaged; it is fetched again", sha256=sha256)
                self.drop(sha256, linked=True)
                return self._fetch(sha256, on_bytes, cancelled)
            self._prove(sha256, place, stamp)
            return place

    def _fetch(self, sha256: str, on_bytes: Callable[[int], None], cancelled: Callable[[], bool]) -> Path:
        for last in (False, True):
            try:
                with self._store.open(sha256) as reader:
                    self._folder.put(_Watched(reader, on_bytes, cancelled), sha256=sha256)
                break
            except DigestMismatch:
                if last:
                    raise
        place = self._folder.path(sha256)
        self._prove(sha256, place, stamp_of(place.stat()))
        return place

    def _prove(self, sha256: str, place: Path, stamp: Stamp) -> None:
        with self._lock:
            if len(self._proved) >= _KEPT_PROOFS:
                self._proved.clear()
            self._proved[sha256] = stamp
        if self.remote:
            self._note(sha256, place)

    def _note(self, sha256: str, place: Path) -> None:
        """Count a cached file."""
        with contextlib.suppress(OSError):
            status = place.stat()
            with self._lock:
                known = self._cached.get(sha256)
                self.bytes += status.st_size - (known.size if known else 0)
                self._cached[sha256] = _Cached(
                    status.st_size, status.st_ino, status.st_atime, status.st_atime
                )
            self._note_use(sha256, place)

    def _note_use(self, sha256: str, place: Path) -> None:
        """Remember the use, on disk as the access time: that of modification belongs to the stamp."""
        cached = self._cached.get(sha256)
        if cached is None:
            return
        now = cached.used_at = self._clock()
        if not 0 <= now - cached.noted_at < _NOTE_USE_SECONDS:
            cached.noted_at = now
            with contextlib.suppress(OSError):
                os.utime(place, ns=(int(now * 1e9), place.stat().st_mtime_ns))


class _Watched:
    """A source that tells how far it was read and ends when nobody wants it any more."""

    def __init__(
        self, source: Readable, on_bytes: Callable[[int], None], cancelled: Callable[[], bool]
    ) -> None:
        self._source = source
        self._on_bytes = on_bytes
        self._cancelled = cancelled

    def read(self, size: int, /) -> bytes:
        if self._cancelled():
            raise Cancelled
        data = self._source.read(size)
        self._on_bytes(len(data))
        return data


class _Meter:
    """Adds up what several threads do."""

    def __init__(self, total: int, on_progress: Progress) -> None:
        self._total = total
        self._on_progress = on_progress
        self._done = 0
        self._lock = threading.Lock()

    def __call__(self, count: int) -> None:
        with self._lock:
            self._done = min(self._done + count, self._total)
            done = self._done
        self._on_progress(done, self._total)


class _Crew:
    """A few threads that share a list of work; the first error ends all of it."""

    def __init__(self, todo: deque[str], cancelled: Callable[[], bool]) -> None:
        self._todo = todo
        self._cancelled = cancelled
        self._failed = threading.Event()

    def is_over(self) -> bool:
        return self._failed.is_set() or self._cancelled()

    def run(self, work: Callable[[str], object]) -> None:
        errors: list[Exception] = []

        def drain() -> None:
            with contextlib.suppress(IndexError):
                while not self.is_over():
                    sha256 = self._todo.popleft()
                    try:
                        work(sha256)
                    except Exception as error:  # noqa: BLE001 - the caller's thread raises it
                        errors.append(error)
                        self._failed.set()

        threads = min(_PARALLEL, len(self._todo))
        if threads == 1:
            drain()
        else:
            with ThreadPoolExecutor(threads, "content") as pool:
                for _ in range(threads):
                    pool.submit(drain)
        if self._cancelled():
            raise Cancelled
        if real := [error for error in errors if not isinstance(error, Cancelled)]:
            raise real[0]


def _sha256(place: Path, on_bytes: Callable[[int], None], cancelled: Callable[[], bool]) -> str:
    digest, buffer = hashlib.sha256(), memoryview(bytearray(BUFFER_BYTES))
    with place.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            if cancelled():
                raise Cancelled
            digest.update(buffer[:count])
            on_bytes(count)
    return digest.hexdigest()
