"""Blobs that come in parts: begun, interrupted, gone on with, and finished without reading it all once more.

An upload belongs to a project and a digest. Its bytes lie in a file beside the store, and a line beside that
file says how many of them count. A part is written behind them, synced, dropped from the cache, read back
from the device (`trainshed.content.proofs`) and only then counted, so whoever was answered may forget what he
sent. What is read back also feeds the digest of the whole: when the last part has come there is nothing left
to hash, and a local store takes the file in by its name. Where that cannot be, after a restart or with a
remote store, finishing goes on beside the requests, and who asks is told that it does.

Several processes may serve the same folder: each upload is locked while somebody writes to it. Its room is
reserved as long as it lies there (`Room`); one of which nothing counts is not kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from trainshed.content.blobs import (
    Blob,
    BlobError,
    BlobNotFound,
    BlobStore,
    BlobTooLarge,
    DigestMismatch,
    Readable,
    StoreFull,
    StoreUnavailable,
    checked_name,
    pieces,
    store_errors,
)
from trainshed.content.proofs import ProvedFile, stretch
from trainshed.content.syncs import locked, sync_folder

KEPT_SECONDS = 86_400.0
"""How long an upload is kept that nobody goes on with."""
FINISHING_SECONDS = 10.0
"""How long a request waits for the blob to be finished."""
MAX_UNFINISHED = 64
"""Unfinished uploads of one project."""
_CATCH_UP_BYTES = 256 << 20
"""How much of what was there before one request hashes, beside its own part."""
SWEEP_SECONDS = 3600.0
_FINISHERS = 4
_PROVERS = 4
_STATE = re.compile(rb"(\d{20}) (\d{20})\n")
_NAME = re.compile(r"[0-9a-f]{64}\.[0-9a-f]{16}")


class OffsetMismatch(BlobError):
    """The part does not begin where the upload ends."""

    def __init__(self, offset: int) -> None:
        super().__init__(f"the upload goes on at byte {offset}")
        self.offset = offset


class SizeMismatch(BlobError):
    """The upload was begun for another size."""


class DiskReserved(StoreFull):
    """The disk has less than uploads leave to everything else; both in bytes."""

    def __init__(self, root: Path, free: int, reserve: int) -> None:
        super().__init__(f"{root}: {free} bytes are free, and uploads leave {reserve} to everything else")
        self.free = free
        self.reserve = reserve


class Room(Protocol):
    """Keeps room for uploads, each under its own name."""

    def reserve(self, project: str, name: str, blob: Blob) -> None:
        """Keep room for the whole blob, or go on keeping it; may refuse. What it raises passes through."""
        ...

    def give_back(self, name: str) -> None:
        """The upload is gone, and stored nothing."""
        ...


class NoQuota:
    """A `Room` that is never full."""

    def reserve(self, project: str, name: str, blob: Blob) -> None:
        """See `Room.reserve`."""

    def give_back(self, name: str) -> None:
        """See `Room.give_back`."""


class UploadBusy(BlobError):
    """Somebody else is writing to this upload now."""


class TooManyUploads(BlobError):
    """The project has begun `MAX_UNFINISHED` uploads and finished none of them."""


@dataclass(frozen=True, slots=True)
class UploadState:
    """How far an upload has come."""

    offset: int = 0
    """So many bytes count; the next part begins here."""
    size: int | None = None
    """Bytes in all; ``None`` where nothing was begun."""
    stored: bool = False
    """The blob is stored and verified. Until then a whole upload is being finished."""


@dataclass(slots=True)
class _Running:
    """The digest of an upload's first ``done`` bytes, as far as this process has seen them."""

    digest: Any = field(default_factory=hashlib.sha256)
    done: int = 0
    end: int = 0
    """Where the part that came last ends."""


@dataclass(frozen=True, slots=True)
class _Held:
    """An upload's two files, open and locked."""

    name: str
    data: int
    state: int
    folder: Path

    def blob(self, size: int) -> Blob:
        return Blob(self.name.partition(".")[0], size)

    def read_state(self) -> UploadState:
        return _parse(os.pread(self.state, 64, 0))

    def write_state(self, offset: int, size: int) -> None:
        os.pwrite(self.state, b"%020d %020d\n" % (offset, size), 0)
        os.fdatasync(self.state)

    def remove(self) -> None:
        # First it says that nothing counts: a whole upload without its bytes is one that the store has.
        os.ftruncate(self.state, 0)
        os.fdatasync(self.state)
        for path in _files_of(self.folder, self.name):
            path.unlink(missing_ok=True)


class Uploads:
    """The unfinished uploads below ``root``, which must lie on the file system of a local ``store``.

    ``allow`` is asked before a blob is stored and may refuse it; ``record`` notes what was stored, for which
    project and by which upload, whose room is used then: every byte came from the project, even where the
    store had them already. Whatever they raise passes through to whoever waits for it. Thread-safe. Raises
    `StoreUnavailable` where the folder cannot be made.
    """

    def __init__(
        self,
        root: Path,
        store: BlobStore,
        *,
        allow: Callable[[str], None],
        record: Callable[[str, Blob, str], None],
        room: Room | None = None,
        max_bytes: int = 1 << 40,
        reserve_bytes: int = 1 << 30,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._root = root
        self._store = store
        self._allow = allow
        self._record = record
        self._room = room or NoQuota()
        self._max_bytes = max_bytes
        self._reserve = reserve_bytes
        self._clock = clock
        self._running: dict[str, _Running] = {}
        self._finishing: dict[str, Future[None]] = {}
        self._guard = threading.Lock()
        self._pool = ThreadPoolExecutor(_FINISHERS, "uploads")
        self._provers = ThreadPoolExecutor(_PROVERS, "uploads-proof")
        self._closing = threading.Event()
        with store_errors(root):
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._sweeper = threading.Thread(target=self._sweep_now_and_then, name="uploads-sweep", daemon=True)
        self._sweeper.start()

    def close(self) -> None:
        """Stop finishing; what was not finished is when it is asked for again."""
        self._closing.set()
        self._pool.shutdown(cancel_futures=True)
        self._sweeper.join()

    def state(self, project: str, sha256: str) -> UploadState:
        """How far the upload has come; offset 0 where there is none."""
        return self._state(_name_of(project, sha256))

    def append(
        self, project: str, sha256: str, part: Readable, *, offset: int, size: int, wait: float | None = None
    ) -> UploadState:
        """Add a part that begins at byte ``offset`` of ``size``; it is durable when this returns.

        The last part finishes the blob. That is waited for ``wait`` seconds (`FINISHING_SECONDS`); a state
        that is whole and not stored means that it goes on, and asking again with an empty part waits on.
        Where finishing fails, asking again tries again.

        Raises `OffsetMismatch`, `SizeMismatch`, `BlobTooLarge`, `UploadBusy`, `TooManyUploads`, `StoreFull`,
        `StoreUnavailable`, `ReadBackMismatch`; another `DigestMismatch` where the whole is not what its name
        says: then it is thrown away. What ``part`` raises passes through, and nothing of the part counts.
        """
        name = _name_of(project, sha256)
        if size > self._max_bytes:
            raise BlobTooLarge(f"a blob may have {self._max_bytes} bytes here, not {size}")
        if not self._is_whole(name, offset, size):
            with self._hold(name, create=offset == 0) as held:
                try:
                    offset = self._append(project, held, part, offset, size)
                except BaseException:
                    with contextlib.suppress(OSError):
                        if not held.read_state().offset:
                            self._drop(held)
                    raise
        if offset < size:
            return UploadState(offset, size)
        return self._finished(project, name, size, FINISHING_SECONDS if wait is None else wait)

    def check_room(self) -> None:
        """Whether the disk has more than what is left to everything else. Raises `DiskReserved`."""
        with store_errors(self._root):
            disk = os.statvfs(self._root)
        if (free := disk.f_bavail * disk.f_frsize) < self._reserve:
            raise DiskReserved(self._root, free, self._reserve)

    def give_up(self, project: str, sha256: str) -> None:
        """Remove the upload, its bytes and its room at once; nothing where there is none.

        Raises `UploadBusy` while somebody writes to it or it is being finished, and `StoreUnavailable`.
        """
        name = _name_of(project, sha256)
        with contextlib.suppress(OffsetMismatch), self._hold(name) as held:
            self._drop(held)
            self._done_with(name)

    def sweep(self, older_than: float = KEPT_SECONDS) -> int:
        """Remove uploads that nobody went on with for so many seconds; how many there were."""
        removed = 0
        for name in self._names():
            with contextlib.suppress(UploadBusy, OffsetMismatch, StoreUnavailable):
                if not self._abandoned(name, older_than):
                    continue
                with self._hold(name) as held:
                    # Somebody may have gone on with it until it was locked.
                    if self._abandoned(name, older_than):
                        self._drop(held)
                        removed += 1
        with self._guard:
            unheard = {name: each for name, each in self._finishing.items() if each.done()}
            for name in unheard.keys() - self._names():
                del self._finishing[name]
        return removed

    def _append(self, project: str, held: _Held, part: Readable, offset: int, size: int) -> int:
        """Write one part; how many bytes count now."""
        state = held.read_state()
        if state.size != size:
            if offset:
                raise _wrong_size(state)
            # Whoever begins anew may know better than whoever began.
            state = self._begin_anew(held, size)
        elif os.fstat(held.data).st_size < state.offset:
            # Removed by half, by a server that was killed.
            state = self._begin_anew(held, size)
        if state.offset != offset:
            raise OffsetMismatch(state.offset)
        self.check_room()
        self._room.reserve(project, held.name, held.blob(size))
        with store_errors(self._root):
            # A server that was killed may have left a part behind them that does not count.
            os.ftruncate(held.data, offset)
        try:
            running = self._write(held, part, offset, size)
            with store_errors(self._root):
                held.write_state(running.end, size)
        except BaseException:
            with contextlib.suppress(OSError):
                os.ftruncate(held.data, offset)
            raise
        with self._guard:
            self._running[held.name] = running
        return running.end

    def _begin_anew(self, held: _Held, size: int) -> UploadState:
        self._forget(held.name)
        with store_errors(self._root):
            held.write_state(0, size)
            os.ftruncate(held.data, 0)
        return UploadState(0, size)

    def _write(self, held: _Held, part: Readable, offset: int, size: int) -> _Running:
        """Bring a part to the device, and let the digest of the whole go on as far as it can."""
        with store_errors(self._root):
            running = self._caught_up(held, offset)
        goes_on = running.done == offset
        with ProvedFile(self._provers, held.data, offset, running.digest if goes_on else None) as file:
            for piece in pieces(part):
                if file.place + len(piece) > size:
                    raise BlobTooLarge(f"the part goes beyond the {size} bytes of the blob")
                with store_errors(self._root):
                    file.write(piece)
            with store_errors(self._root):
                file.prove()
            return _Running(running.digest, file.place if goes_on else running.done, file.place)

    def _caught_up(self, held: _Held, offset: int) -> _Running:
        """A digest of what lies before ``offset``, as far as that can be had in a request's time."""
        with self._guard:
            known = self._running.get(held.name, _Running())
        running = _Running(known.digest.copy(), known.done) if known.done <= offset else _Running()
        caught_up = min(offset, running.done + _CATCH_UP_BYTES)
        for piece in stretch(held.data, running.done, caught_up):
            running.digest.update(piece)
        running.done = caught_up
        return running

    def _finished(self, project: str, name: str, size: int, wait: float) -> UploadState:
        with self._guard:
            future = self._finishing.get(name)
            if future is None:
                future = self._finishing[name] = self._pool.submit(self._finish, project, name, size)
        try:
            future.result(wait)
        except TimeoutError:
            return UploadState(size, size)
        except UploadBusy:
            # Another process finishes it.
            self._done_with(name)
            return UploadState(size, size)
        except BaseException:
            self._done_with(name)
            raise
        self._done_with(name)
        return UploadState(size, size, stored=True)

    def _done_with(self, name: str) -> None:
        with self._guard:
            self._finishing.pop(name, None)

    def _finish(self, project: str, name: str, size: int) -> None:
        with self._hold(name) as held:
            blob = held.blob(size)
            if held.read_state().offset != size:
                raise StoreUnavailable("the upload was taken back meanwhile; begin again")
            if os.fstat(held.data).st_size == size:
                self._prove(held, blob)
                self._allow(blob.sha256)
                # It may have lain here whole for longer than its room was kept.
                self._room.reserve(project, name, blob)
                self._store.adopt(_files_of(self._root, name)[0], blob, self._closing.is_set)
            elif not self._store.exists(blob.sha256):
                self._drop(held)
                raise StoreUnavailable("the bytes of the upload are gone; begin again")
            # Else an earlier try got as far as the store and not as far as its record.
            self._record(project, blob, name)
            held.remove()
        self._forget(name)

    def _prove(self, held: _Held, blob: Blob) -> None:
        """Hash what was not hashed as it came. Wrong bytes are thrown away."""
        with self._guard:
            running = self._running.setdefault(held.name, _Running())
        for piece in stretch(held.data, running.done, blob.size):
            if self._closing.is_set():
                raise StoreUnavailable("the server ends; the upload goes on when it is asked for again")
            running.digest.update(piece)
            running.done += len(piece)
        found = running.digest.hexdigest()
        if (running.done, found) != (blob.size, blob.sha256):
            self._drop(held)
            raise DigestMismatch(f"promised sha256 {blob.sha256}, received {found} ({running.done} bytes)")

    def _drop(self, held: _Held) -> None:
        """Remove an upload that stored nothing; its room first, or a crash would keep it for nothing."""
        self._room.give_back(held.name)
        held.remove()
        self._forget(held.name)

    def _forget(self, name: str) -> None:
        with self._guard:
            self._running.pop(name, None)

    def _state(self, name: str) -> UploadState:
        _, state = _files_of(self._root, name)
        try:
            return _parse(state.read_bytes())
        except FileNotFoundError:
            return UploadState()

    def _is_whole(self, name: str, offset: int, size: int) -> bool:
        """Whether all has come: then nothing is written, only finished."""
        with self._guard:
            if offset == size and name in self._finishing:
                return True
        return offset == size and self._state(name) == UploadState(size, size)

    def _abandoned(self, name: str, older_than: float) -> bool:
        with store_errors(self._root, absent=name), contextlib.suppress(BlobNotFound):
            _, state = _files_of(self._root, name)
            return state.stat().st_mtime < self._clock() - older_than
        return False

    def _names(self) -> set[str]:
        with store_errors(self._root):
            return {path.stem for path in self._root.iterdir() if _NAME.fullmatch(path.stem)}

    def _sweep_now_and_then(self) -> None:
        while True:
            with contextlib.suppress(BlobError):
                self.sweep()
            if self._closing.wait(SWEEP_SECONDS):
                return

    @contextlib.contextmanager
    def _hold(self, name: str, *, create: bool = False) -> Iterator[_Held]:
        """Lock an upload for this thread. Raises `UploadBusy`, and `OffsetMismatch` where there is none."""
        data_path, state_path = _files_of(self._root, name)
        with contextlib.ExitStack() as stack:
            new = create and not state_path.exists()
            if new:
                self._check_count(name)
            flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if create else 0)
            try:
                with store_errors(self._root, absent=name):
                    state = os.open(state_path, flags, 0o600)
            except BlobNotFound:
                raise OffsetMismatch(0) from None
            stack.callback(os.close, state)
            # It may have been finished or removed between opening and locking.
            if not locked(state) or not os.fstat(state).st_nlink:
                raise UploadBusy("another client sends the same bytes now")
            with store_errors(self._root):
                data = os.open(data_path, flags | os.O_CREAT, 0o600)
                stack.callback(os.close, data)
                if new:
                    sync_folder(self._root)
            yield _Held(name, data, state, self._root)

    def _check_count(self, name: str) -> None:
        project = name.partition(".")[2]
        if sum(each.endswith(project) for each in self._names()) >= MAX_UNFINISHED:
            raise TooManyUploads(f"the project has {MAX_UNFINISHED} unfinished uploads")


def _name_of(project: str, sha256: str) -> str:
    return f"{checked_name(sha256)}.{hashlib.sha256(project.encode()).hexdigest()[:16]}"


def _files_of(root: Path, name: str) -> tuple[Path, Path]:
    """Where the bytes lie, and where it says how many of them count."""
    return root / f"{name}.data", root / f"{name}.state"


def _parse(text: bytes) -> UploadState:
    found = _STATE.match(text)
    return UploadState(int(found[1]), int(found[2])) if found else UploadState()


def _wrong_size(state: UploadState) -> BlobError:
    return OffsetMismatch(0) if state.size is None else SizeMismatch(f"the upload has {state.size} bytes")
