"""What every store of blobs does, wherever the bytes lie; and what object stores do when they misbehave."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from obstore.store import LocalStore, MemoryStore

from support.s3 import BUCKET, REGION, SECRET_KEY, S3Server
from trainshed.content.addresses import StoreAddress, open_impatiently, open_store
from trainshed.content.blobs import (
    Blob,
    BlobNotFound,
    BlobStore,
    BlobTooLarge,
    DigestMismatch,
    FolderBlobStore,
    ReadBackMismatch,
    StoreFull,
    StoreUnavailable,
)
from trainshed.content.objects import PART_BYTES, ObjectBlobStore

SMALL = b"some bytes\n" * 1000
LARGE = os.urandom(1 << 20) * 9 + b"and an odd end"
ABSENT = "0" * 64


def name_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def address_of(server: S3Server, **changes: Any) -> StoreAddress:
    facts = {
        "url": f"s3://{BUCKET}/{uuid.uuid4().hex}/prefix",
        "endpoint": server.endpoint,
        "region": REGION,
        "allow_http": True,
        "timeout_seconds": 10.0,
        "retry_seconds": 2.0,
    }
    return StoreAddress(**(facts | changes))


@pytest.fixture
def credentials(monkeypatch):
    for name, value in (("ACCESS_KEY_ID", "AKIATRAINSHEDTESTS"), ("SECRET_ACCESS_KEY", SECRET_KEY)):
        monkeypatch.setenv(f"AWS_{name}", value)


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


def put(store: BlobStore, data: bytes, **promised: Any) -> Blob:
    return store.put(io.BytesIO(data), **promised)


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


class Torn(io.RawIOBase):
    """A sender that goes away after so many bytes."""

    def __init__(self, after: int, error: BaseException) -> None:
        super().__init__()
        self._left = after
        self._error = error

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:
        if self._left <= 0:
            raise self._error
        self._left -= len(buffer)
        return len(buffer)


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
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
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


# Object stores alone, over stores that do what real ones do on a bad day.


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


# Real S3 servers.


@pytest.fixture
def s3(moto, tmp_path, credentials):
    """A store on moto, and its bucket as AWS's own client sees it."""
    address = address_of(moto)
    opened = open_store(address, tmp_path / "content")
    yield opened, moto.client(), address.url.partition(f"{BUCKET}/")[2]
    opened.close()


def objects_below(client: Any, prefix: str) -> list[str]:
    return [
        entry["Key"] for entry in client.list_objects_v2(Bucket=BUCKET, Prefix=prefix).get("Contents", ())
    ]


def test_an_aborted_upload_leaves_no_parts_behind_that_somebody_pays_for(s3):
    store, client, prefix = s3
    with pytest.raises(DigestMismatch):
        put(store, LARGE, sha256=ABSENT, size=len(LARGE))
    with pytest.raises(ConnectionResetError):
        store.put(Torn(9 << 20, ConnectionResetError()), sha256=ABSENT, size=len(LARGE))
    assert not client.list_multipart_uploads(Bucket=BUCKET).get("Uploads")
    assert not objects_below(client, prefix)


def test_objects_lie_below_the_prefix_by_their_digest_and_others_are_left_alone(s3):
    store, client, prefix = s3
    put(store, SMALL)
    client.put_object(Bucket=BUCKET, Key=f"{prefix}/sha256/00/stray", Body=b"somebody's")
    client.put_object(Bucket=BUCKET, Key=f"{prefix}-2/sha256/00/{ABSENT}", Body=b"another deployment's")
    name = name_of(SMALL)
    assert f"{prefix}/sha256/{name[:2]}/{name}" in objects_below(client, prefix)
    assert list(store.names()) == [Blob(name, len(SMALL))]


def test_checking_a_store_leaves_nothing_there(s3):
    store, client, prefix = s3
    store.check()
    assert not objects_below(client, prefix)


def test_a_bucket_that_is_not_there_is_named(moto, tmp_path, credentials):
    store = open_impatiently(address_of(moto, url="s3://no-such-bucket/x"), tmp_path)
    with pytest.raises(StoreUnavailable, match=r"s3://no-such-bucket/x at http://.* no such bucket"):
        store.check()
    with pytest.raises(StoreUnavailable, match="no such bucket"):
        put(store, SMALL)


def test_P9_refused_credentials_are_named_and_not_shown(seaweedfs, tmp_path, credentials, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another-canary")
    store = open_impatiently(address_of(seaweedfs), tmp_path)
    with pytest.raises(
        StoreUnavailable, match=r"refuses its credentials \(it answers 403 Forbidden"
    ) as refused:
        store.check()
    for secret in ("another-canary", "AKIATRAINSHEDTESTS", "Signature="):
        assert secret not in str(refused.value)
    assert refused.value.__cause__ is None


class Silent:
    """A server that takes connections and says nothing."""

    def __enter__(self) -> str:
        import socket  # noqa: PLC0415 - only here

        self._listener = socket.create_server(("127.0.0.1", 0))
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __exit__(self, *_: object) -> None:
        self._listener.close()


def test_a_store_that_does_not_answer_is_given_up(tmp_path, credentials):
    with Silent() as endpoint:
        address = StoreAddress(
            "s3://bucket", endpoint, REGION, allow_http=True, timeout_seconds=0.2, retry_seconds=0.1
        )
        store = open_store(address, tmp_path)
        with pytest.raises(StoreUnavailable, match="it does not answer: timed out"):
            put(store, SMALL)
        with pytest.raises(StoreUnavailable, match="it does not answer: timed out"):
            store.exists(ABSENT)
    with pytest.raises(StoreUnavailable, match="it does not answer"):
        store.missing([ABSENT])


@pytest.mark.parametrize(
    ("url", "environment"),
    [
        ("gs://bucket/prefix", {"GOOGLE_BEARER_TOKEN": "Y2FuYXJ5LW9mLWdvb2dsZQ"}),
        (
            "az://container/prefix",
            {"AZURE_STORAGE_ACCOUNT_NAME": "name", "AZURE_STORAGE_ACCOUNT_KEY": "Y2FuYXJ5LW9mLWF6dXJl"},
        ),
    ],
    ids=["gs", "az"],
)
def test_P9_other_providers_are_asked_where_the_settings_say(tmp_path, monkeypatch, url, environment):
    """There is no server of theirs here; what can be proved is whom they ask, and that nothing leaks."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    asked = []

    class Refusing(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            asked.append((self.path, self.headers.get("Authorization", "")))
            self.send_error(403)

        do_POST = do_PUT  # noqa: N815 - the base class's name

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Refusing) as listening:
        serving = threading.Thread(target=listening.serve_forever, args=(0.01,))
        serving.start()
        endpoint = f"http://127.0.0.1:{listening.server_port}"
        address = StoreAddress(url, endpoint, allow_http=True, timeout_seconds=5, retry_seconds=0.1)
        assert list(address.faults()) == []
        try:
            with pytest.raises(StoreUnavailable, match=f"{url} at {endpoint} .*403 Forbidden") as refused:
                put(open_impatiently(address, tmp_path), SMALL)
        finally:
            listening.shutdown()
            serving.join()
    key = f"{url.partition('//')[2]}/sha256/{name_of(SMALL)[:2]}/{name_of(SMALL)}"
    assert key in asked[0][0].replace("%2F", "/")
    assert "Y2FuYXJ5" not in str(refused.value)


def test_an_azure_account_that_is_not_named_is_told_without_its_key(tmp_path, monkeypatch):
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "Y2FuYXJ5LW9mLWF6dXJl")
    with pytest.raises(StoreUnavailable, match="az://container: the store cannot be opened") as refused:
        open_store(StoreAddress("az://container"), tmp_path)
    assert "Y2FuYXJ5" not in str(refused.value)


def test_a_store_that_dies_in_the_middle_is_named_and_a_retry_works(tmp_path, credentials):
    server = S3Server("moto")
    try:
        store = open_store(address_of(server, retry_seconds=0.5), tmp_path / "content")

        class Killing(io.BytesIO):
            def readinto(self, buffer: Any) -> int:
                if self.tell() >= 8 << 20 and server.running:
                    server.kill()
                return super().readinto(buffer)

        with pytest.raises(StoreUnavailable, match="it does not answer"):
            store.put(Killing(LARGE), sha256=name_of(LARGE), size=len(LARGE))
        server.start()
        server.make_bucket(BUCKET)
        assert not store.exists(name_of(LARGE))
        put(store, LARGE, sha256=name_of(LARGE), size=len(LARGE))
        assert store.verify(name_of(LARGE)).size == len(LARGE)
    finally:
        server.stop()


def test_other_threads_go_on_while_a_blob_is_stored(s3):
    """The bindings let go of the interpreter: a server answers meanwhile."""
    store, _, _ = s3
    turns, done = 0, threading.Event()

    def count() -> None:
        nonlocal turns
        while not done.wait(0.001):
            turns += 1

    with ThreadPoolExecutor(1) as pool:
        counting = pool.submit(count)
        put(store, LARGE, sha256=name_of(LARGE), size=len(LARGE))
        done.set()
        counting.result()
    assert turns > 10
