"""Blobs in parts: what counts, what does not, and how an upload goes on after anything."""

from __future__ import annotations

import hashlib
import io
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from obstore.store import MemoryStore

from support.examples import examples
from support.waiting import wait_until
from trainshed.content.blobs import (
    Blob,
    BlobTooLarge,
    DigestMismatch,
    FolderBlobStore,
    ReadBackMismatch,
    StoreFull,
    StoreUnavailable,
)
from trainshed.content.objects import ObjectBlobStore
from trainshed.content.uploads import (
    KEPT_SECONDS,
    MAX_UNFINISHED,
    OffsetMismatch,
    SizeMismatch,
    TooManyUploads,
    UploadBusy,
    Uploads,
    UploadState,
)
from trainshed.model.errors import Refusal

DATA = os.urandom(1000) * 300
SIZE = len(DATA)
NAME = hashlib.sha256(DATA).hexdigest()


class Desk:
    """Uploads over a store, what they recorded, and a way to do without them."""

    def __init__(self, folder: Path, store=None, **options) -> None:
        self.store = store or FolderBlobStore(folder / "blobs")
        self.folder = folder / "blobs" / "uploads"
        self.recorded: list[Blob] = []
        self.allow = lambda _: None
        self.record = self.recorded.append
        self._options = {"reserve_bytes": 0, **options}
        self.uploads = self._open()

    def _open(self) -> Uploads:
        return Uploads(
            self.folder,
            self.store,
            # Looked up each time: tests change them.
            allow=lambda name: self.allow(name),  # noqa: PLW0108 - as above
            record=lambda _, blob, __: self.record(blob),
            **self._options,
        )

    def begin_anew(self) -> None:
        """As after a restart: nothing is remembered but what is on disk."""
        self.uploads.close()
        self.uploads = self._open()

    def send(self, start: int, end: int, *, data=DATA, size=SIZE, name=NAME, project="p", **options):
        part = io.BytesIO(data[start:end])
        return self.uploads.append(project, name, part, offset=start, size=size, **options)

    def left(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())


@pytest.fixture
def desk(tmp_path):
    opened = Desk(tmp_path)
    yield opened
    opened.uploads.close()


@pytest.fixture
def remote(tmp_path):
    opened = Desk(tmp_path, ObjectBlobStore(MemoryStore(), tmp_path / "spool", "memory"))
    yield opened
    opened.uploads.close()
    opened.store.close()


@pytest.fixture(params=["desk", "remote"])
def any_desk(request):
    return request.getfixturevalue(request.param)


def test_what_a_killed_server_left_behind_the_counted_bytes_is_cut_off(desk):
    desk.send(0, 1000)
    [data] = [path for path in desk.folder.iterdir() if path.stat().st_size == 1000]
    with data.open("ab") as file:
        file.write(bytes(SIZE))
    desk.begin_anew()
    assert desk.send(1000, 2000).offset == 2000
    assert data.stat().st_size == 2000
    assert desk.send(2000, SIZE).stored


def test_E105_a_blob_in_parts_is_stored_verified_and_recorded(any_desk):
    desk = any_desk
    assert desk.uploads.state("p", NAME) == UploadState()
    assert desk.send(0, 100_000) == UploadState(100_000, SIZE)
    assert desk.uploads.state("p", NAME) == UploadState(100_000, SIZE)
    assert not desk.store.exists(NAME)
    assert desk.send(100_000, SIZE) == UploadState(SIZE, SIZE, stored=True)
    assert desk.store.verify(NAME) == Blob(NAME, SIZE)
    assert desk.recorded == [Blob(NAME, SIZE)]
    assert desk.left() == []


@given(cuts=st.lists(st.integers(0, SIZE), max_size=6), restarts=st.sets(st.integers(0, 6)))
@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_parts_with_any_restarts_between_give_the_blob(desk, cuts, restarts):
    ends = [*sorted(cuts), SIZE]
    for number, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
        if number in restarts:
            desk.begin_anew()
        state = desk.send(start, end)
        assert state.offset == end
        if state.stored:
            break
    assert desk.store.verify(NAME) == Blob(NAME, SIZE)
    assert desk.store.delete(NAME)
    assert desk.left() == []


def test_another_offset_is_refused_with_the_right_one(desk):
    with pytest.raises(OffsetMismatch) as refused:
        desk.send(5, 10)
    assert refused.value.offset == 0
    desk.send(0, 1000)
    for start, end in ((0, 1000), (999, 2000), (1001, 2000), (SIZE, SIZE)):
        with pytest.raises(OffsetMismatch) as refused:
            desk.send(start, end)
        assert refused.value.offset == 1000
    assert desk.send(1000, SIZE).stored


def test_parts_belong_to_a_project(desk):
    desk.send(0, 1000, project="p")
    assert desk.uploads.state("q", NAME) == UploadState()
    desk.send(0, 2000, project="q")
    assert desk.send(1000, SIZE, project="p").stored
    assert desk.send(2000, SIZE, project="q").stored
    assert desk.left() == []


def test_a_size_that_was_not_announced_at_first_is_refused_unless_all_begins_anew(desk):
    wrong = {"size": SIZE + 7}
    desk.send(0, 1000, **wrong)
    with pytest.raises(SizeMismatch, match=f"has {SIZE + 7} bytes"):
        desk.send(1000, 2000)
    assert desk.send(0, 500) == UploadState(500, SIZE)
    assert desk.send(500, SIZE).stored


def test_bytes_beyond_the_size_do_not_count(desk):
    desk.send(0, 1000)
    with pytest.raises(BlobTooLarge, match=f"beyond the {SIZE} bytes"):
        desk.uploads.append("p", NAME, io.BytesIO(DATA), offset=1000, size=SIZE)
    assert desk.uploads.state("p", NAME).offset == 1000
    assert desk.send(1000, SIZE).stored


def test_a_blob_larger_than_is_taken_here_is_refused_before_any_byte(tmp_path):
    desk = Desk(tmp_path, max_bytes=1000)
    with pytest.raises(BlobTooLarge, match="1000 bytes here"):
        desk.send(0, 10)
    assert desk.left() == []
    desk.uploads.close()


def test_wrong_bytes_are_thrown_away_and_the_right_ones_taken_afterwards(any_desk):
    desk = any_desk
    wrong = bytes([DATA[0] ^ 1]) + DATA[1:]
    desk.send(0, 1000, data=wrong)
    with pytest.raises(DigestMismatch, match=f"promised sha256 {NAME}"):
        desk.send(1000, SIZE, data=wrong)
    assert desk.left() == []
    assert not desk.store.exists(NAME)
    assert desk.send(0, SIZE).stored


def test_an_empty_blob_and_an_empty_part(desk):
    empty = hashlib.sha256().hexdigest()
    assert desk.send(0, 0, size=0, name=empty) == UploadState(0, 0, stored=True)
    assert desk.store.size(empty) == 0
    assert desk.send(0, 0) == UploadState(0, SIZE)
    assert desk.send(0, SIZE).stored


class Torn:
    """A sender that goes away."""

    def __init__(self, data: bytes) -> None:
        self._pieces = [data, None]

    def read(self, _size: int, /) -> bytes:
        piece = self._pieces.pop(0)
        if piece is None:
            raise ConnectionResetError("peer went away")
        return piece


def test_nothing_of_a_part_that_broke_off_counts(desk):
    desk.send(0, 1000)
    with pytest.raises(ConnectionResetError):
        desk.uploads.append("p", NAME, Torn(b"x" * 5000), offset=1000, size=SIZE)
    assert desk.uploads.state("p", NAME).offset == 1000
    assert (desk.folder / desk.left()[0]).stat().st_size == 1000
    assert desk.send(1000, SIZE).stored


def test_what_a_killed_server_wrote_and_did_not_count_is_written_over(desk):
    desk.send(0, 1000)
    (data,) = desk.folder.glob("*.data")
    with data.open("ab") as file:
        file.write(b"half a part")
    desk.begin_anew()
    assert desk.send(1000, SIZE).stored


def test_an_upload_whose_bytes_are_gone_begins_anew(desk):
    desk.send(0, 1000)
    (data,) = desk.folder.glob("*.data")
    data.unlink()
    with pytest.raises(OffsetMismatch) as refused:
        desk.send(1000, 2000)
    assert refused.value.offset == 0
    assert desk.send(0, SIZE).stored


def test_E105_a_part_that_the_device_does_not_give_back_is_refused_at_once(desk, monkeypatch):
    desk.send(0, 1000)
    real = os.preadv

    def faulty(fd, buffers, offset):
        count = real(fd, buffers, offset)
        if offset >= 1000 and count:
            buffers[0][0] ^= 1
        return count

    with monkeypatch.context() as patched:
        patched.setattr(os, "preadv", faulty)
        with pytest.raises(ReadBackMismatch, match="at byte 1000"):
            desk.send(1000, 2000)
    assert desk.uploads.state("p", NAME).offset == 1000
    assert desk.send(1000, SIZE).stored


def test_two_who_send_the_same_at_once_both_come_to_the_end(desk):
    def send_all(_: int) -> UploadState:
        offset = 0
        while True:
            if desk.store.exists(NAME):
                # As the server answers before it looks at uploads.
                return UploadState(SIZE, SIZE, stored=True)
            try:
                state = desk.send(offset, min(SIZE, offset + 37_000))
            except OffsetMismatch as error:
                offset = error.offset
            except (UploadBusy, StoreUnavailable):
                continue
            else:
                offset = state.offset
                if state.stored:
                    return state

    with ThreadPoolExecutor(4) as pool:
        assert all(state.stored for state in pool.map(send_all, range(4)))
    assert desk.store.verify(NAME) == Blob(NAME, SIZE)


def test_who_comes_while_a_part_arrives_is_told_that_it_is_busy(desk):
    arriving, go_on = threading.Event(), threading.Event()

    class Slow:
        def read(self, _size: int, /) -> bytes:
            if go_on.is_set():
                return b""
            arriving.set()
            go_on.wait()
            return DATA[:1000]

    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(desk.uploads.append, "p", NAME, Slow(), offset=0, size=SIZE)
        arriving.wait()
        with pytest.raises(UploadBusy):
            desk.send(0, 10)
        go_on.set()
        assert slow.result() == UploadState(1000, SIZE)


def test_two_processes_that_share_a_folder_go_on_with_each_others_uploads(desk, tmp_path):
    other = Desk(tmp_path, desk.store)
    desk.send(0, 1000)
    other.send(1000, 2000)
    desk.send(2000, 3000)
    assert other.send(3000, SIZE).stored
    assert other.recorded == [Blob(NAME, SIZE)]
    with pytest.raises(OffsetMismatch):
        desk.send(3000, 4000)
    other.uploads.close()


class SlowStore(ObjectBlobStore):
    """A store that takes its time with finished files."""

    def __init__(self, folder: Path) -> None:
        super().__init__(MemoryStore(), folder, "slow")
        self.storing, self.go_on = threading.Event(), threading.Event()

    def adopt(self, file, blob, cancelled=lambda: False) -> None:
        self.storing.set()
        wait_until(lambda: self.go_on.is_set() or cancelled())
        super().adopt(file, blob, cancelled)


@pytest.fixture
def slow(tmp_path):
    opened = Desk(tmp_path, SlowStore(tmp_path / "spool"))
    yield opened
    opened.store.go_on.set()
    opened.uploads.close()
    opened.store.close()


def test_finishing_that_takes_long_goes_on_beside_the_requests(slow):
    assert slow.send(0, SIZE, wait=0.0) == UploadState(SIZE, SIZE)
    slow.store.storing.wait()
    assert slow.uploads.state("p", NAME) == UploadState(SIZE, SIZE)
    # Waiting on, as often as wanted; nobody can write to it meanwhile.
    assert slow.send(SIZE, SIZE, wait=0.0) == UploadState(SIZE, SIZE)
    with pytest.raises(UploadBusy):
        slow.send(0, 10)
    slow.store.go_on.set()
    assert slow.send(SIZE, SIZE) == UploadState(SIZE, SIZE, stored=True)
    assert slow.store.verify(NAME) == Blob(NAME, SIZE)
    assert slow.left() == []


def test_a_failure_that_nobody_waited_for_is_told_to_who_asks_next(desk):
    go_on, real = threading.Event(), desk.uploads._finish

    def later(project: str, name: str, size: int) -> None:
        go_on.wait()
        real(project, name, size)

    desk.uploads._finish = later
    assert desk.send(0, SIZE, data=bytes(SIZE), wait=0.0) == UploadState(SIZE, SIZE)
    go_on.set()
    wait_until(lambda: not desk.left())
    with pytest.raises(DigestMismatch):
        desk.send(SIZE, SIZE)
    assert desk.send(0, SIZE).stored


def test_a_server_that_ends_lets_go_and_the_next_one_finishes(slow):
    assert not slow.send(0, SIZE, wait=0.0).stored
    slow.store.storing.wait()
    slow.begin_anew()
    assert not slow.store.exists(NAME)
    slow.store.go_on.set()
    assert slow.send(SIZE, SIZE) == UploadState(SIZE, SIZE, stored=True)
    assert slow.recorded == [Blob(NAME, SIZE)]


def test_a_blob_that_is_being_removed_is_finished_later(desk):
    def refuse(name: str) -> None:
        raise Refusal.of("BLOB_BEING_DELETED", name)

    desk.allow = refuse
    with pytest.raises(Refusal):
        desk.send(0, SIZE)
    assert desk.uploads.state("p", NAME) == UploadState(SIZE, SIZE)
    desk.allow = lambda _: None
    assert desk.send(SIZE, SIZE).stored


def test_a_blob_that_was_stored_and_not_recorded_is_recorded_later(any_desk):
    desk = any_desk

    def fail(_: Blob) -> None:
        raise StoreUnavailable("the database is away")

    desk.record = fail
    with pytest.raises(StoreUnavailable, match="the database"):
        desk.send(0, SIZE)
    assert desk.store.exists(NAME)
    desk.begin_anew()
    desk.record = desk.recorded.append
    assert desk.send(SIZE, SIZE).stored
    assert desk.recorded == [Blob(NAME, SIZE)]
    assert desk.left() == []


def test_P7_wrong_bytes_that_were_removed_by_half_prove_nothing(desk, monkeypatch):
    """A server killed while it threw wrong bytes away must not take the store's copy for the sender's."""
    desk.store.put(io.BytesIO(DATA))
    desk.send(0, SIZE - 1, data=bytes(SIZE))
    unlink, removed = Path.unlink, []

    def killed(path: Path, **options) -> None:
        if removed and path.parent == desk.folder:
            raise KeyboardInterrupt
        removed.append(path)
        unlink(path, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", killed)
        with pytest.raises(KeyboardInterrupt):
            desk.send(SIZE - 1, SIZE, data=bytes(SIZE))
    desk.begin_anew()
    with pytest.raises(OffsetMismatch):
        desk.send(SIZE, SIZE)
    assert desk.recorded == []
    assert desk.send(0, SIZE).stored


def test_a_store_that_fails_gets_the_blob_when_it_is_back(remote):
    real = remote.store._store

    class Down:
        def put(self, *_: object, **__: object) -> None:
            raise OSError("Connection refused (os error 111)")

    remote.store._store = Down()
    with pytest.raises(StoreUnavailable, match="Connection refused"):
        remote.send(0, SIZE)
    remote.store._store = real
    assert remote.send(SIZE, SIZE).stored


def test_a_full_disk_is_named_and_gives_back_what_the_part_took(mount_tmpfs):
    desk = Desk(mount_tmpfs("size=1m"))
    big = os.urandom(2 << 20)
    facts = {"data": big, "size": len(big), "name": hashlib.sha256(big).hexdigest()}
    desk.send(0, 100_000, **facts)
    with pytest.raises(StoreFull, match="No space left"):
        desk.send(100_000, len(big), **facts)
    assert desk.uploads.state("p", facts["name"]).offset == 100_000
    assert desk.send(0, SIZE).stored
    desk.uploads.close()


def test_uploads_leave_room_to_everything_else(tmp_path):
    desk = Desk(tmp_path, reserve_bytes=1 << 60)
    with pytest.raises(StoreFull, match="leave"):
        desk.send(0, 10)
    assert desk.uploads.state("p", NAME).offset == 0
    desk.uploads.close()


def test_a_project_cannot_begin_without_end(desk):
    for number in range(MAX_UNFINISHED):
        desk.send(0, 1, name=f"{number:064x}")
    with pytest.raises(TooManyUploads):
        desk.send(0, 1)
    assert desk.send(0, SIZE, project="another").stored
    desk.send(1, 2, name=f"{0:064x}")


def test_uploads_that_nobody_goes_on_with_are_removed_after_a_day(tmp_path):
    now = [0.0]
    desk = Desk(tmp_path, clock=lambda: now[0])
    desk.send(0, 1000)
    desk.send(0, 1000, project="lively")
    began = min(path.stat().st_mtime for path in desk.folder.iterdir())
    now[0] = began + KEPT_SECONDS + 60
    for path in desk.folder.glob(f"*{hashlib.sha256(b'lively').hexdigest()[:16]}.state"):
        os.utime(path, (now[0], now[0]))
    assert desk.uploads.sweep() == 1
    assert desk.uploads.state("p", NAME) == UploadState()
    assert desk.uploads.state("lively", NAME).offset == 1000
    assert len(desk.left()) == 2
    assert desk.send(0, SIZE).stored
    desk.uploads.close()


def test_a_part_beyond_four_gibibytes_is_written_where_it_belongs(tmp_path):
    """The first part is a hole of 4 GiB + 1 byte, put there by hand: reading it costs no disk."""
    hole = (4 << 30) + 1
    desk = Desk(tmp_path)
    name = "f" * 64
    desk.send(0, 0, size=hole + 1000, name=name)
    (data,), (state,) = desk.folder.glob("*.data"), desk.folder.glob("*.state")
    os.truncate(data, hole)
    state.write_bytes(b"%020d %020d\n" % (hole, hole + 1000))
    sent = desk.uploads.append("p", name, io.BytesIO(DATA[:500]), offset=hole, size=hole + 1000)
    assert sent == UploadState(hole + 500, hole + 1000)
    with data.open("rb") as file:
        file.seek(hole)
        assert file.read() == DATA[:500]
    desk.uploads.close()


def test_the_uploads_folder_holds_nothing_that_others_may_read(desk):
    desk.send(0, 1000)
    modes = {path.stat().st_mode & 0o777 for path in desk.folder.iterdir()}
    assert modes == {0o600}
    assert desk.folder.stat().st_mode & 0o777 == 0o700
