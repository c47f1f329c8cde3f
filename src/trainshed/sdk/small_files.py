"""Downloading many small files: asked for and synced together, each proved before it has its name."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainshed.sdk.download import Source, in_the_way, open_parent, open_part, set_mode
from trainshed.sdk.errors import Conflict, LocalFileError, NotFound, ServerUnavailable, TrainshedError
from trainshed.sdk.transport import Transport

SMALL_BYTES = 64 << 10
"""Up to here a request for a file alone costs more than its bytes."""
MAX_THREADS = 8
"""Each keeps the files of a group and their folders open."""
_BATCH = 128
_BATCH_BYTES = 4 << 20
_GROUP = 32
_ONE_BY_ONE = frozenset({"CONTENT_DAMAGED", "STORAGE_UNAVAILABLE", "NOT_FOUND", "METHOD_NOT_ALLOWED"})
"""One of them may be meant; and an older server knows no such route."""
_RECORD = re.compile(rb"([0-9a-f]{64}) ([0-9]{1,9})\n")


def batches(sources: Iterable[Source]) -> Iterator[list[Source]]:
    """The sources, as many together as one request brings."""
    batch: list[Source] = []
    size = 0
    for source in sources:
        if batch and (len(batch) == _BATCH or size + source.size > _BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(source)
        size += source.size
    if batch:
        yield batch


@dataclass(frozen=True, slots=True)
class SmallFiles:
    """Fetches batches of small files of one version into one folder."""

    transport: Transport
    where: str
    """The route that answers several blobs at once."""
    folder: Path
    overwrite: bool
    done: Callable[[Source], None]
    """Told of each file that has its name."""

    def fetch(self, batch: Sequence[Source]) -> list[Source]:
        """Download the files of ``batch``; those whose bytes did not come whole are left and answered.

        To be asked for each alone: then the refusal is about one file. Raises `UnsafeName`,
        `LocalFileError`, `ApiError`, `ConnectionFailed`.
        """
        wanted = []
        for group in _groups(batch):
            with contextlib.ExitStack() as stack:
                parents = _Parents(self.folder, stack)
                for source in group:
                    with _local_errors(self.folder / source.name):
                        there = in_the_way(
                            parents.of(source),
                            self.folder / source.name,
                            source,
                            overwrite=self.overwrite,
                        )
                    if there:
                        self.done(source)
                    else:
                        wanted.append(source)
        if not wanted:
            return []
        try:
            digests = list(dict.fromkeys(source.sha256 for source in wanted))
            found = _proved(self.transport.ask_bytes(self.where, {"sha256": digests}))
        except (ServerUnavailable, NotFound, Conflict) as error:
            if error.code not in _ONE_BY_ONE:
                raise
            return wanted
        here: list[Source] = []
        left: list[Source] = []
        for source in wanted:
            content = found.get(source.sha256)
            (here if content is not None and len(content) == source.size else left).append(source)
        for group in _groups(here):
            self._write(group, found)
        return left

    def _write(self, group: Sequence[Source], found: Mapping[str, bytes]) -> None:
        """Write all of the group, sync them, then name them."""
        with contextlib.ExitStack() as stack:
            parents = _Parents(self.folder, stack)
            parts: dict[str, tuple[Source, int, int]] = {}
            try:
                for source in group:
                    with _local_errors(self.folder / source.name):
                        parent = parents.of(source)
                        part, descriptor = open_part(source, parent, source.name)
                        stack.callback(os.close, descriptor)
                        parts[part] = (source, descriptor, parent)
                        _put(descriptor, found[source.sha256])
                        set_mode(source, descriptor)
                for source, descriptor, _ in parts.values():
                    with _local_errors(self.folder / source.name):
                        os.fsync(descriptor)
                for part, (source, _, parent) in list(parts.items()):
                    target = self.folder / source.name
                    with _local_errors(target):
                        os.rename(part, target.name, src_dir_fd=parent, dst_dir_fd=parent)
                    del parts[part]
                    self.done(source)
            finally:
                # So little is not gone on with.
                for part, (_, _, parent) in parts.items():
                    with contextlib.suppress(OSError):
                        os.unlink(part, dir_fd=parent)


def sync_folders(folder: Path, names: Iterable[str]) -> None:
    """Make the names below ``folder`` durable, each folder once. Raises `LocalFileError`."""
    below = {parent for name in names for parent in Path(name).parents}
    for each in sorted(below, key=lambda path: len(path.parts), reverse=True):
        with _local_errors(folder / each), open_parent(folder, str(each / "x")) as descriptor:
            os.fsync(descriptor)


class _Parents:
    """The folders of a group's files, each opened once."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self._open: dict[str, int] = {}

    def of(self, source: Source) -> int:
        parent = source.name.rpartition("/")[0]
        if parent not in self._open:
            self._open[parent] = self._stack.enter_context(open_parent(self._folder, source.name))
        return self._open[parent]


def _groups(sources: Sequence[Source]) -> Iterator[Sequence[Source]]:
    return (sources[start : start + _GROUP] for start in range(0, len(sources), _GROUP))


def _proved(packed: bytes) -> dict[str, bytes]:
    """The blobs of an answer that are what they are called."""
    found: dict[str, bytes] = {}
    place = 0
    while (line := _RECORD.match(packed, place)) is not None:
        digest, start = line[1].decode(), line.end()
        place = start + int(line[2])
        content = packed[start:place]
        if hashlib.sha256(content).hexdigest() == digest:
            found[digest] = content
    return found


def _put(descriptor: int, content: bytes) -> None:
    """Write a whole part file, and have the system begin to bring it to the device."""
    os.ftruncate(descriptor, 0)
    os.lseek(descriptor, 0, os.SEEK_SET)
    left = memoryview(content)
    while left:
        left = left[os.write(descriptor, left) :]
    if hasattr(os, "posix_fadvise"):
        # The first sync of a group then waits for all of it.
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


@contextlib.contextmanager
def _local_errors(target: Path) -> Iterator[None]:
    try:
        yield
    except TrainshedError:
        raise
    except OSError as error:
        raise LocalFileError(f"cannot write {target}: {error.strerror or error}") from error
