"""Content for tests of what a node keeps: a store behind a door, a clock, published folders."""

from __future__ import annotations

import io
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from trainshed.content.blobs import Blob, BlobReader, FolderBlobStore, StoreUnavailable
from trainshed.model.content import ContentFile, ContentKind, make_manifest


class Remote:
    """A real folder store behind a door, as one that is not on this machine: it counts, waits and fails."""

    def __init__(self, folder: FolderBlobStore) -> None:
        self._folder = folder
        self.opened: Counter[str] = Counter()
        self.gate = threading.Event()
        self.gate.set()
        self.waiting = threading.Semaphore(0)
        self.away = False

    def open(self, sha256: str, start: int = 0, length: int | None = None) -> BlobReader:
        if self.away:
            raise StoreUnavailable("the store does not answer")
        self.opened[sha256] += 1
        self.waiting.release()
        self.gate.wait(20)
        return self._folder.open(sha256, start, length)

    def put(self, source: object, **promise: object) -> Blob:
        return self._folder.put(source, **promise)  # type: ignore[arg-type]

    def size(self, sha256: str) -> int:
        return self._folder.size(sha256)

    def exists(self, sha256: str) -> bool:
        return self._folder.exists(sha256)

    def missing(self, names: Iterable[str]) -> list[str]:
        return self._folder.missing(names)

    def unlike(self, sizes: Mapping[str, int]) -> list[str]:
        return self._folder.unlike(sizes)

    def delete(self, sha256: str) -> bool:
        return self._folder.delete(sha256)

    def verify(self, sha256: str) -> Blob:
        return self._folder.verify(sha256)

    def names(self) -> Iterator[Blob]:
        return self._folder.names()

    def strangers(self) -> Iterator[str]:
        return self._folder.strangers()


class Slow(Remote):
    """One that gives files of more than one piece a piece at a time, and each only once it is told to."""

    PIECE = 64 << 10

    def __init__(self, folder: FolderBlobStore) -> None:
        super().__init__(folder)
        self.asked = threading.Semaphore(0)
        """Counts the pieces asked for."""
        self.given = 0
        self._pieces = threading.Semaphore(0)

    def give(self, pieces: int) -> None:
        """Let so many more pieces go."""
        self._pieces.release(pieces)

    def open(self, sha256: str, start: int = 0, length: int | None = None) -> BlobReader:
        reader = super().open(sha256, start, length)
        return reader if reader.remaining <= self.PIECE else _Pieces(self, reader)

    def piece(self, reader: BlobReader, view: memoryview) -> int:
        self.asked.release()
        self._pieces.acquire()
        self.given += 1
        return reader.readinto(view)


class _Pieces(BlobReader):
    def __init__(self, store: Slow, reader: BlobReader) -> None:
        super().__init__(0, reader.remaining)
        self._store = store
        self._reader = reader

    def _fill(self, view: memoryview) -> int:
        return self._store.piece(self._reader, view[: Slow.PIECE])

    def close(self) -> None:
        self._reader.close()
        super().close()


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def publish(
    store: FolderBlobStore, files: dict[str, bytes], executables: Iterable[str] = (), about: str = ""
) -> str:
    listed = []
    for path, content in files.items():
        blob = store.put(io.BytesIO(content))
        listed.append(ContentFile(path, blob.size, blob.sha256, path in set(executables)))
    manifest = make_manifest(ContentKind.DATASETS, listed, {"about": about})
    return store.put(io.BytesIO(manifest.encode())).sha256


def content_of(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
