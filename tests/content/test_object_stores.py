"""Object stores on real S3 servers, and how other providers are asked."""

from __future__ import annotations

import io
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from support.blob_stores import ABSENT, LARGE, SMALL, Torn, address_of, name_of, put
from support.s3 import BUCKET, REGION, S3Server
from trainshed.content.addresses import StoreAddress, open_impatiently, open_store
from trainshed.content.blobs import (
    Blob,
    DigestMismatch,
    StoreUnavailable,
)


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
