"""Object stores, over stores that do what real ones do on a bad day."""

from __future__ import annotations

import errno
import io
from pathlib import Path
from typing import Any

import pytest
from obstore.store import MemoryStore

from support.blob_stores import ABSENT, LARGE, SMALL, name_of, put
from trainshed.content.blobs import (
    Blob,
    DigestMismatch,
    ReadBackMismatch,
    StoreFull,
    StoreUnavailable,
)
from trainshed.content.objects import ObjectBlobStore


class Wrapped:
    """An obstore store whose calls may be changed."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class Answer:
    """What ``get`` answers, with other bytes."""

    def __init__(self, meta: Any, chunks: Any) -> None:
        self.meta = meta
        self._chunks = chunks

    def stream(self, _size: int) -> Any:
        return iter(self._chunks)

    def bytes(self) -> bytes:
        return b"".join(self._chunks)


class Liar(Wrapped):
    """Gives back other bytes than it was given, so many times."""

    times = 100

    def get(self, path: str, *, options: Any = None) -> Any:
        found = self._store.get(path, options=options)
        if self.times <= 0:
            return found
        self.times -= 1
        data = bytearray(found.bytes())
        data[len(data) // 2] ^= 1
        return Answer(found.meta, [bytes(data)])


def objects(store: Any, tmp_path: Path) -> ObjectBlobStore:
    return ObjectBlobStore(store, tmp_path / "spool", "the store")


@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["small", "large"])
def test_E105_what_the_store_gives_back_differently_is_taken_away(tmp_path, data):
    store = objects(Liar(MemoryStore()), tmp_path)
    with pytest.raises(ReadBackMismatch, match="gave back"):
        put(store, data)
    assert list(store.names()) == []
    finished = tmp_path / "finished"
    finished.write_bytes(data)
    with pytest.raises(ReadBackMismatch, match="gave back"):
        store.adopt(finished, Blob(name_of(data), len(data)))
    assert list(store.names()) == []
    assert finished.read_bytes() == data


def test_E105_a_difference_that_came_up_on_the_way_back_costs_a_second_look_only(tmp_path):
    liar = Liar(MemoryStore())
    liar.times = 1
    assert put(objects(liar, tmp_path), SMALL) == Blob(name_of(SMALL), len(SMALL))


def test_a_store_that_lost_the_object_right_away_is_not_believed(tmp_path):
    class Forgetful(Wrapped):
        def put(self, *_: Any, **__: Any) -> None:
            pass

    with pytest.raises(StoreUnavailable, match="has lost blob"):
        put(objects(Forgetful(MemoryStore()), tmp_path), SMALL)


def test_damage_is_found_and_healed(tmp_path):
    inner = MemoryStore()
    store = objects(inner, tmp_path)
    put(store, SMALL)
    (key,) = (entry["path"] for batch in inner.list() for entry in batch)
    inner.put(key, b"damaged")
    with pytest.raises(ReadBackMismatch, match="is damaged"):
        store.verify(name_of(SMALL))
    put(store, SMALL)
    assert store.verify(name_of(SMALL)).size == len(SMALL)


def test_reading_goes_on_where_the_connection_broke(tmp_path):
    asked = []

    class Breaking(Wrapped):
        def get(self, path: str, *, options: Any = None) -> Any:
            asked.append(options.get("range"))
            found = self._store.get(path, options=options)
            data = found.bytes()

            def chunks() -> Any:
                yield bytes(data[:3000])
                raise OSError("connection reset")

            return Answer(found.meta, chunks())

    store = objects(MemoryStore(), tmp_path)
    put(store, SMALL)
    store._store = Breaking(store._store)
    with store.open(name_of(SMALL)) as reader:
        assert reader.read() == SMALL
    assert asked == [None, (3000, 11_000), (6000, 11_000), (9000, 11_000)]


@pytest.mark.parametrize("breaks", ["raises", "ends"])
def test_a_read_that_gets_nowhere_is_given_up(tmp_path, breaks):
    class Dead(Wrapped):
        def get(self, path: str, *, options: Any = None) -> Any:
            found = self._store.get(path, options=options)

            def chunks() -> Any:
                yield b""
                if breaks == "raises":
                    raise OSError("Connection refused (os error 111)")

            return Answer(found.meta, chunks())

    store = objects(MemoryStore(), tmp_path)
    put(store, SMALL)
    store._store = Dead(store._store)
    said = "Connection refused" if breaks == "raises" else "ended 11000 bytes early"
    with store.open(name_of(SMALL)) as reader, pytest.raises(StoreUnavailable, match=said):
        reader.read(1)


def test_a_full_store_is_named(tmp_path):
    class Full(Wrapped):
        def put(self, *_: Any, **__: Any) -> None:
            raise OSError(errno.ENOSPC, "Generic error: No space left on device (os error 28)")

    with pytest.raises(StoreFull, match="the store: "):
        put(objects(Full(MemoryStore()), tmp_path), SMALL)


def test_credentials_that_are_nowhere_are_named(tmp_path):
    class Asking(Wrapped):
        def put(self, *_: Any, **__: Any) -> None:
            raise OSError("Error performing PUT http://169.254.169.254/latest/api/token - 403 Forbidden")

    with pytest.raises(StoreUnavailable, match="the store: the environment holds no credentials"):
        objects(Asking(MemoryStore()), tmp_path).check()


def test_a_full_disk_of_this_machine_is_named_and_costs_only_what_has_to_wait_there(tmp_path, mount_tmpfs):
    store = ObjectBlobStore(MemoryStore(), mount_tmpfs("size=4m") / "spool", "memory")
    with pytest.raises(StoreFull, match="No space left"):
        put(store, LARGE)
    assert list(store.names()) == []
    put(store, LARGE, sha256=name_of(LARGE), size=len(LARGE))
    put(store, SMALL)


def test_giving_up_in_the_middle_leaves_the_file_and_nothing_visible(tmp_path):
    store = objects(MemoryStore(), tmp_path)
    finished = tmp_path / "finished"
    finished.write_bytes(LARGE)
    asked = iter([False] * 5)
    with pytest.raises(StoreUnavailable, match="the server ends"):
        store.adopt(finished, Blob(name_of(LARGE), len(LARGE)), lambda: next(asked, True))
    assert list(store.names()) == []
    assert finished.stat().st_size == len(LARGE)
    finished.write_bytes(LARGE[:-1])
    with pytest.raises(DigestMismatch):
        store.adopt(finished, Blob(name_of(LARGE), len(LARGE)))
    assert list(store.names()) == []


def test_a_blob_of_a_tebibyte_needs_no_more_parts_than_s3_takes(tmp_path):
    class Counting(Wrapped):
        def put(self, *_: Any, chunk_size: int, max_concurrency: int, **__: Any) -> None:
            self.asked = (chunk_size, max_concurrency)
            raise OSError("enough seen")

    inner = Counting(MemoryStore())
    with pytest.raises(StoreUnavailable):
        objects(inner, tmp_path).put(io.BytesIO(LARGE), sha256=ABSENT, size=1 << 40)
    chunk, at_once = inner.asked
    assert (1 << 40) / chunk < 10_000
    assert chunk * at_once <= 128 << 20
