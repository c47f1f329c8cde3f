"""The blob store: nothing half visible, nothing wrong visible, whatever happens on the way."""

from __future__ import annotations

import errno
import hashlib
import io
import itertools
import os
import signal
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trainshed.content import syncs
from trainshed.content.blobs import (
    Blob,
    BlobNotFound,
    BlobTooLarge,
    DigestMismatch,
    FolderBlobStore,
    ReadBackMismatch,
    StoreFull,
    StoreUnavailable,
)

DATA = b"some bytes\n" * 1000
NAME = hashlib.sha256(DATA).hexdigest()


def files_below(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file()]


def assert_nothing_is_left(store: FolderBlobStore) -> None:
    assert files_below(store.root) == []


class OnlyRead:
    """A source without ``readinto``, in odd pieces."""

    def __init__(self, data: bytes) -> None:
        self._stream = io.BytesIO(data)

    def read(self, size: int, /) -> bytes:
        return self._stream.read(min(size, 77))


@pytest.mark.parametrize("source", [io.BytesIO, OnlyRead])
def test_E105_a_stored_blob_is_there_under_its_digest(store, source):
    blob = store.put(source(DATA), sha256=NAME, size=len(DATA))
    assert (blob.sha256, blob.size) == (NAME, len(DATA))
    assert store.path(NAME).read_bytes() == DATA
    assert store.exists(NAME)
    assert store.size(NAME) == len(DATA)
    assert store.verify(NAME) == blob
    assert len(files_below(store.root)) == 1


def test_an_empty_blob_is_a_blob(store):
    blob = store.put(io.BytesIO(b""))
    assert blob.size == 0
    assert store.open(blob.sha256).read() == b""


def test_a_broken_promise_of_digest_or_size_leaves_nothing(store):
    with pytest.raises(DigestMismatch, match="promised sha256"):
        store.put(io.BytesIO(DATA), sha256="0" * 64)
    for size in (len(DATA) - 1, len(DATA) + 1):
        with pytest.raises(DigestMismatch, match=f"promised {size} bytes"):
            store.put(io.BytesIO(DATA), size=size)
    assert_nothing_is_left(store)


def test_more_bytes_than_allowed_are_refused_before_they_are_all_read(store):
    source = io.BytesIO(b"x" * (8 << 20))
    with pytest.raises(BlobTooLarge):
        store.put(source, limit=100)
    assert source.tell() < 2 << 20
    assert_nothing_is_left(store)


def test_an_error_of_the_source_passes_through_and_leaves_nothing(store):
    class Torn(io.RawIOBase):
        calls = 0

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: memoryview) -> int:
            self.calls += 1
            if self.calls > 2:
                raise ConnectionResetError("peer went away")
            return len(buffer)

    with pytest.raises(ConnectionResetError):
        store.put(Torn())
    assert_nothing_is_left(store)


def test_E105_a_byte_that_flips_between_write_and_read_back_is_found(store, monkeypatch):
    def damaging(fd: int) -> None:
        real(fd)
        os.pwrite(fd, b"S", 0)

    real = os.fdatasync
    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", damaging)
        with pytest.raises(ReadBackMismatch, match="did not give back"):
            store.put(io.BytesIO(DATA))
    assert_nothing_is_left(store)


def test_storing_again_heals_a_damaged_copy(store):
    store.put(io.BytesIO(DATA))
    place = store.path(NAME)
    place.chmod(0o600)
    place.write_bytes(b"damaged")
    with pytest.raises(ReadBackMismatch, match="is damaged"):
        store.verify(NAME)
    store.put(io.BytesIO(DATA))
    assert store.verify(NAME).size == len(DATA)


def test_identical_puts_at_the_same_time_all_succeed(store):
    start = threading.Barrier(8)

    def put(_: int) -> str:
        start.wait()
        return store.put(io.BytesIO(DATA)).sha256

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(put, range(8))) == {NAME}
    assert files_below(store.root) == [store.path(NAME)]


def test_a_full_disk_is_named_and_leaves_nothing(mount_tmpfs):
    store = FolderBlobStore(mount_tmpfs("size=1m") / "blobs")
    with pytest.raises(StoreFull, match="No space left"):
        store.put(io.BytesIO(os.urandom(4 << 20)))
    assert_nothing_is_left(store)
    store.put(io.BytesIO(DATA), sha256=NAME)


def test_a_disk_without_inodes_is_full_too(mount_tmpfs):
    store = FolderBlobStore(mount_tmpfs("size=1m,nr_inodes=270") / "blobs")

    def fill() -> None:
        for n in range(20):
            store.put(io.BytesIO(bytes([n])))

    with pytest.raises(StoreFull):
        fill()
    assert not list((store.root / "incoming").iterdir())


def test_of_several_none_is_stored_on_a_disk_that_fills(mount_tmpfs):
    store = FolderBlobStore(mount_tmpfs("size=1m") / "blobs")
    many = [os.urandom(300_000) for _ in range(5)]
    with pytest.raises(StoreFull, match="No space left"):
        store.put_many({Blob(hashlib.sha256(data).hexdigest(), len(data)): data for data in many})
    assert_nothing_is_left(store)


def faulty_reads(patched: pytest.MonkeyPatch) -> None:
    """The device gives back another byte of whatever has one byte."""
    real = os.preadv

    def faulty(fd: int, buffers: list[memoryview], offset: int) -> int:
        count = real(fd, buffers, offset)
        if os.fstat(fd).st_size == 1 and count:
            buffers[0][0] ^= 1
        return count

    patched.setattr(os, "preadv", faulty)


@pytest.fixture(params=["by one sync of all", "each by itself"])
def dirty_bytes(request, monkeypatch):
    """What others have to write decides how several are made durable."""
    found = 0 if request.param == "by one sync of all" else 1 << 40
    monkeypatch.setattr("trainshed.content.syncs._dirty_bytes", lambda: found)
    return found


SEVERAL = {
    Blob(hashlib.sha256(data).hexdigest(), len(data)): data for data in (DATA, b"x", b"", b"y" * 70_000)
}


def test_E105_of_several_none_is_stored_where_the_device_gives_back_another_byte(
    store, dirty_bytes, monkeypatch
):
    with monkeypatch.context() as patched:
        faulty_reads(patched)
        with pytest.raises(ReadBackMismatch, match="gave back"):
            store.put_many(SEVERAL)
    assert_nothing_is_left(store)
    store.put_many(SEVERAL)
    assert set(store.names()) == set(SEVERAL)


def test_P1_several_have_their_names_only_once_all_are_on_the_device(store, dirty_bytes, monkeypatch):
    seen: list[tuple[str, bool]] = []
    real_sync, real_fsync = syncs._sync_all, os.fsync

    def sync_all(fd: int) -> int:
        seen.append(("all", any(store.names())))
        return real_sync(fd)

    def fsync(fd: int) -> None:
        kind = "folder" if stat.S_ISDIR(os.fstat(fd).st_mode) else "file"
        seen.append((kind, any(store.names())))
        real_fsync(fd)

    monkeypatch.setattr(syncs, "_sync_all", sync_all)
    monkeypatch.setattr(os, "fsync", fsync)
    store.put_many(SEVERAL)
    if dirty_bytes:
        assert sorted(seen) == [("file", False)] * 4 + [("folder", True)] * 4
    else:
        assert seen == [("all", False), ("all", True)]


def test_several_are_stored_readable_for_all_and_whatever_the_mask(store, dirty_bytes):
    mask = os.umask(0o077)
    try:
        store.put_many(SEVERAL)
    finally:
        os.umask(mask)
    assert {stat.S_IMODE(store.path(blob.sha256).stat().st_mode) for blob in SEVERAL} == {0o444}


@pytest.mark.parametrize("failing", [1, 2])
def test_P1_a_sync_that_fails_is_never_answered_as_stored(store, monkeypatch, failing):
    calls = iter(range(1, 10))
    monkeypatch.setattr(syncs, "_dirty_bytes", lambda: 0)
    monkeypatch.setattr(syncs, "_sync_all", lambda _: errno.EIO if next(calls) == failing else 0)
    with pytest.raises(StoreUnavailable, match="Input/output error"):
        store.put_many(SEVERAL)
    assert not list((store.root / "batches").iterdir())
    if failing == 1:
        assert_nothing_is_left(store)


def test_a_read_only_folder_is_named(mount_tmpfs):
    disk = mount_tmpfs("size=1m")
    store = FolderBlobStore(disk / "blobs")
    store.put(io.BytesIO(DATA))
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    with pytest.raises(StoreUnavailable, match="Read-only"):
        store.put(io.BytesIO(b"more"))
    with pytest.raises(StoreUnavailable, match="Read-only"):
        store.delete(NAME)
    assert store.open(NAME).read() == DATA
    with pytest.raises(StoreUnavailable):
        FolderBlobStore(disk / "other")


@given(start=st.integers(0, 12_000), length=st.none() | st.integers(0, 12_000))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_window_reads_what_a_slice_reads(store, start, length):
    store.put(io.BytesIO(DATA))
    end = None if length is None else start + length
    with store.open(NAME, start, length) as reader:
        assert reader.remaining == len(DATA[start:end])
        assert b"".join(reader.chunks(501)) == DATA[start:end]


def test_unknown_and_malformed_names_are_not_found(store):
    for name in ("0" * 64, "../../etc/passwd", NAME.upper(), "", NAME + "\n"):
        for call in (store.open, store.path, store.size, store.verify):
            with pytest.raises(BlobNotFound):
                call(name)
    with pytest.raises(ValueError, match="from 0"):
        store.open(NAME, -1)


def test_missing_lists_each_absent_name_once_in_order(store):
    store.put(io.BytesIO(DATA))
    assert store.missing(["1" * 64, NAME, "0" * 64, "1" * 64]) == ["1" * 64, "0" * 64]


@pytest.mark.parametrize("asked", [1, 9, 40])
def test_what_is_missing_is_told_of_many_blobs_in_a_shard_as_of_one(tmp_path, asked):
    store = FolderBlobStore(tmp_path / "blobs")
    of_one_shard = (each for each in itertools.count() if _digest(each).startswith("00"))
    numbers = list(itertools.islice(of_one_shard, 60))
    for number in numbers:
        store.put(io.BytesIO(str(number).encode()))
    names = [_digest(number) for number in numbers[:asked]]
    gone = [*names[::3], "00" + "f" * 62, "ab" * 32]
    for name in names[::3]:
        assert store.delete(name)
    assert store.missing([*names, *gone]) == gone


def _digest(number: int) -> str:
    return hashlib.sha256(str(number).encode()).hexdigest()


def test_delete_keeps_open_readers_alive(store):
    store.put(io.BytesIO(DATA))
    with store.open(NAME) as reader:
        assert store.delete(NAME)
        assert reader.read() == DATA
    assert not store.delete(NAME)
    assert not store.exists(NAME)


def test_a_finished_file_is_taken_in_by_its_name_alone(store):
    finished = store.root / "finished"
    finished.write_bytes(DATA)
    store.adopt(finished, Blob(NAME, len(DATA)))
    assert store.verify(NAME) == Blob(NAME, len(DATA))
    assert files_below(store.root) == [store.path(NAME)]
    with pytest.raises(StoreUnavailable, match="No such file"):
        store.adopt(finished, Blob(NAME, len(DATA)))


def test_every_blob_is_named_and_nothing_else(store):
    blobs = {store.put(io.BytesIO(bytes([n]) * n)) for n in range(20)}
    (store.root / "sha256" / "00" / "stray").write_bytes(b"what an operator left")
    assert set(store.names()) == blobs


WRITER = """
import sys, time
from pathlib import Path
from trainshed.content.blobs import FolderBlobStore

class Endless:
    def read(self, size):
        print("reading", flush=True)
        time.sleep(60)
        return b""

FolderBlobStore(Path(sys.argv[1])).put(Endless())
"""


def test_P1_the_part_file_of_a_killed_writer_goes_and_that_of_a_living_one_stays(store):
    with subprocess.Popen([sys.executable, "-c", WRITER, store.root], stdout=subprocess.PIPE) as writer:
        try:
            assert writer.stdout.readline() == b"reading\n"
            FolderBlobStore(store.root)
            assert len(files_below(store.root)) == 1
        finally:
            writer.send_signal(signal.SIGKILL)
            writer.wait(10)
    FolderBlobStore(store.root)
    assert_nothing_is_left(store)


BATCH_WRITER = """
import sys, time
from pathlib import Path
from trainshed.content import syncs
from trainshed.content.blobs import Blob, FolderBlobStore

def wait(fd):
    print("syncing", flush=True)
    time.sleep(60)

syncs._dirty_bytes = lambda: 0
syncs._sync_all = wait
store = FolderBlobStore(Path(sys.argv[1]))
store.put_many({Blob(%r, 1): b"x", Blob(%r, 1): b"y"})
"""


def test_P1_the_batch_of_a_killed_writer_goes_and_that_of_a_living_one_stays(store):
    names = [hashlib.sha256(data).hexdigest() for data in (b"x", b"y")]
    command = [sys.executable, "-c", BATCH_WRITER % tuple(names), store.root]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        try:
            assert writer.stdout.readline() == b"syncing\n"
            FolderBlobStore(store.root)
            assert sorted(path.name for path in files_below(store.root / "batches")) == sorted(names)
            assert store.missing(names) == names
        finally:
            writer.send_signal(signal.SIGKILL)
            writer.wait(10)
    FolderBlobStore(store.root)
    assert_nothing_is_left(store)
    assert not list((store.root / "batches").iterdir())
