"""What every store of blobs does, wherever the bytes lie."""

from __future__ import annotations

import io
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from obstore.store import LocalStore, MemoryStore

from support.blob_stores import ABSENT, LARGE, SMALL, Torn, address_of, name_of, put
from support.examples import examples
from trainshed.content.addresses import open_store
from trainshed.content.blobs import (
    Blob,
    BlobNotFound,
    BlobTooLarge,
    DigestMismatch,
    FolderBlobStore,
)
from trainshed.content.objects import PART_BYTES, ObjectBlobStore


@pytest.fixture(params=["folder", "memory", "local", "seaweedfs", "moto"])
def store(request, tmp_path, credentials):
    if request.param == "folder":
        yield FolderBlobStore(tmp_path / "blobs")
        return
    spool = tmp_path / "spool"
    if request.param == "memory":
        opened = ObjectBlobStore(MemoryStore(), spool, "memory")
    elif request.param == "local":
        opened = ObjectBlobStore(LocalStore(tmp_path / "objects", mkdir=True), spool, "objects")
    else:
        opened = open_store(address_of(request.getfixturevalue(request.param)), tmp_path / "content")
    yield opened
    opened.close()


class OnlyRead:
    """A source without ``readinto``, in odd pieces."""

    def __init__(self, data: bytes) -> None:
        self._stream = io.BytesIO(data)

    def read(self, size: int, /) -> bytes:
        return self._stream.read(min(size, 777_777))


@pytest.mark.parametrize(("source", "promise"), [(io.BytesIO, True), (OnlyRead, False)])
@pytest.mark.parametrize(
    "data", [b"", SMALL, LARGE[:PART_BYTES], LARGE], ids=["empty", "small", "part", "large"]
)
def test_E105_a_stored_blob_is_there_under_its_digest(store, data, source, promise):
    name = name_of(data)
    promised = {"sha256": name, "size": len(data)} if promise else {}
    blob = store.put(source(data), **promised)
    assert blob == Blob(name, len(data))
    assert store.exists(name)
    assert store.size(name) == len(data)
    assert store.verify(name) == blob
    with store.open(name) as reader:
        assert reader.read() == data
    assert list(store.names()) == [blob]


@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["small", "large"])
def test_a_broken_promise_leaves_nothing_visible(store, data):
    with pytest.raises(DigestMismatch, match=f"promised sha256 {ABSENT}"):
        put(store, data, sha256=ABSENT)
    with pytest.raises(DigestMismatch, match=f"promised sha256 {ABSENT}"):
        put(store, data, sha256=ABSENT, size=len(data))
    for size in (len(data) - 1, len(data) + 1):
        with pytest.raises(DigestMismatch, match=f"promised {size} bytes"):
            put(store, data, sha256=name_of(data), size=size)
        with pytest.raises(DigestMismatch, match=f"promised {size} bytes"):
            put(store, data, size=size)
    assert list(store.names()) == []
    put(store, data, sha256=name_of(data), size=len(data))


@pytest.mark.parametrize("promised", [{}, {"sha256": ABSENT, "size": 64 << 20}], ids=["any", "promised"])
@pytest.mark.parametrize("after", [0, 9 << 20])
def test_an_error_of_the_source_passes_through_and_leaves_nothing(store, after, promised):
    # The second one looks like an object that is not there.
    for error in (ConnectionResetError("peer went away"), FileNotFoundError("gone")):
        with pytest.raises(type(error), match=str(error)):
            store.put(Torn(after, error), **promised)
    assert list(store.names()) == []


def test_more_bytes_than_allowed_are_refused_before_they_are_all_read(store):
    source = io.BytesIO(LARGE)
    with pytest.raises(BlobTooLarge):
        store.put(source, limit=100)
    assert source.tell() < 2 << 20
    assert list(store.names()) == []


def test_storing_again_is_fine_also_at_the_same_time(store):
    start = threading.Barrier(4)

    def work(n: int) -> str:
        start.wait()
        return put(store, LARGE if n % 2 else SMALL).sha256

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(work, range(4))) == {name_of(LARGE), name_of(SMALL)}
    assert {blob.sha256 for blob in store.names()} == {name_of(LARGE), name_of(SMALL)}
    assert store.verify(name_of(LARGE)).size == len(LARGE)


@given(start=st.integers(0, 12_000), length=st.none() | st.integers(0, 12_000))
@settings(max_examples=examples(30), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_window_reads_what_a_slice_reads(store, start, length):
    if not store.exists(name_of(SMALL)):
        put(store, SMALL)
    end = None if length is None else start + length
    with store.open(name_of(SMALL), start, length) as reader:
        assert reader.remaining == len(SMALL[start:end])
        assert b"".join(reader.chunks(501)) == SMALL[start:end]
        assert reader.remaining == 0


def test_a_window_into_a_large_blob(store):
    put(store, LARGE)
    with store.open(name_of(LARGE), 5 << 20, 3 << 20) as reader:
        assert reader.read() == LARGE[5 << 20 : 8 << 20]


def test_E105_several_small_ones_are_stored_at_once(store):
    contents = {
        Blob(name_of(data), len(data)): data for data in (b"", SMALL, *(b"%d" % n for n in range(40)))
    }
    store.put_many(contents)
    store.put_many(contents)
    store.put_many({})
    assert set(store.names()) == set(contents)
    assert all(store.verify(blob.sha256) == blob for blob in contents)


def test_of_several_none_is_stored_where_one_is_not_what_was_promised(store):
    wrong = {Blob(name_of(SMALL), len(SMALL)): SMALL, Blob(ABSENT, 3): b"abc"}
    with pytest.raises(DigestMismatch, match=f"promised sha256 {ABSENT}"):
        store.put_many(wrong)
    with pytest.raises(DigestMismatch, match="promised 4 bytes"):
        store.put_many({Blob(name_of(SMALL), len(SMALL)): SMALL, Blob(name_of(b"abc"), 4): b"abc"})
    assert list(store.names()) == []


def test_unknown_and_malformed_names_are_not_found(store):
    put(store, SMALL)
    for name in (ABSENT, "../../etc/passwd", name_of(SMALL).upper(), "", name_of(SMALL) + "\n"):
        for call in (store.open, store.size, store.verify):
            with pytest.raises(BlobNotFound):
                call(name)
    for window in ((3, None), (0, 0), (3, 4)):
        with pytest.raises(BlobNotFound):
            store.open(ABSENT, *window)
    with pytest.raises(ValueError, match="from 0"):
        store.open(name_of(SMALL), -1)


def test_missing_lists_each_absent_name_once_in_order(store):
    there = [put(store, bytes([n])).sha256 for n in range(10)]
    asked = ["1" * 64, *there, ABSENT, "1" * 64]
    assert store.missing(asked) == ["1" * 64, ABSENT]
    assert store.missing([]) == []


def test_a_deleted_blob_is_gone_and_can_come_back(store):
    put(store, SMALL)
    assert store.delete(name_of(SMALL))
    assert not store.delete(name_of(SMALL))
    assert not store.exists(name_of(SMALL))
    assert list(store.names()) == []
    put(store, SMALL)
    assert store.verify(name_of(SMALL)).size == len(SMALL)


@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["small", "large"])
def test_a_finished_file_is_taken_in(store, tmp_path, data):
    # Where the folder store keeps them, too.
    finished = getattr(store, "root", tmp_path) / "finished"
    finished.write_bytes(data)
    store.adopt(finished, Blob(name_of(data), len(data)))
    assert not finished.exists()
    assert store.verify(name_of(data)) == Blob(name_of(data), len(data))


def test_many_names_are_listed_all(store):
    blobs = {put(store, b"%d" % n) for n in range(30)}
    assert set(store.names()) == blobs


def test_what_is_gone_or_of_another_length_is_told_apart(store):
    there = [put(store, b"%d" % n) for n in range(12)]
    asked = {blob.sha256: blob.size for blob in there}
    assert store.unlike(asked) == []
    asked = {ABSENT: 0, **asked, there[3].sha256: 7}
    assert store.unlike(asked) == [ABSENT, there[3].sha256]
    assert store.unlike({}) == []
