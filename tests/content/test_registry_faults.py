"""Registries that lie, are slow, limit requests or are no registries at all."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.fake_server import DROP, FakeServer, Reply, Request, in_turn
from support.scripted_registry import (
    AMD64,
    CONFIG,
    CONFIG_TYPE,
    DIGEST,
    MANIFEST,
    MANIFESTS,
    OTHER,
    REPOSITORY,
    Routes,
    answer,
    host_of,
    image,
    index_of,
    lying,
    name_at,
    resolve,
    serving,
    serving_index,
    sha256,
)
from support.waiting import wait_until
from trainshed.content.registry import (
    INDEX_TYPES,
    MANIFEST_TYPES,
    MAX_MANIFEST_BYTES,
    OCI_INDEX,
    OCI_MANIFEST,
    ImageRefused,
    RegistryClient,
    RegistryUnavailable,
)
from trainshed.content.registry_access import Access, retry_after
from trainshed.content.registry_wire import Answer, Wire
from trainshed.model.images import RegistryRules

WORDS = ["mediaType", "config", "digest", "manifests", "platform", "os", "architecture", "variant", "size"]

NESTED = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": []}


@pytest.mark.parametrize(
    ("routes", "said"),
    [
        (serving(get=lying(b"{}")), "sent bytes with the digest .* as those of"),
        (serving(get=lying(digest=OTHER)), f"as those of {OTHER}"),
        (serving(head=lying(digest=OTHER)), f"names the digest {OTHER} and then does not have it"),
        (serving(head=Reply(405), tag=lying(digest=OTHER)), f"as those of {OTHER}"),
        (serving(blob=Reply(200, b"{}")), "sent bytes with the digest"),
        (serving(head=Reply(405), tag=Reply(200, b"<html>", {"Content-Type": "text/html"})), "`text/html`"),
        (serving(head=Reply(405), tag=Reply(200, b"", {"Content-Type": ""})), "`nothing`"),
        (serving(b"not json"), "not a manifest"),
        (serving(b"[" * 100_000), "not a manifest"),
        (serving(b"[]"), "not a manifest"),
        (serving(b"\xff"), "not a manifest"),
        (serving(json.dumps(NESTED).encode()), "says otherwise of itself"),
        (serving(json.dumps({**NESTED, "mediaType": OCI_MANIFEST}).encode()), "says otherwise of itself"),
        (serving(b" " * (MAX_MANIFEST_BYTES + 1)), f"larger than the {MAX_MANIFEST_BYTES} bytes"),
        (serving(blob=Reply(200, b" " * (9 << 20))), "larger than the 8388608 bytes"),
        (
            serving(get=Reply(200, MANIFEST, {"Content-Type": OCI_MANIFEST}, cut_after=10)),
            "does not speak HTTP",
        ),
        (serving(get=DROP), "does not speak HTTP|the connection broke"),
        (serving(get=Reply(500)), "it answers 500"),
    ],
)
def test_an_answer_that_cannot_be_believed_makes_the_registry_unavailable(
    client: RegistryClient, scripted: FakeServer, routes: Routes, said: str
):
    scripted.routes = routes
    with pytest.raises(RegistryUnavailable, match=said) as refused:
        resolve(client, scripted)
    assert str(refused.value).startswith(
        f"the image `{name_at(scripted)}` could not be asked for: {host_of(scripted)}"
    )


def manifest_with(**changes: Any) -> bytes:
    document = {**json.loads(MANIFEST), **changes}
    return json.dumps({key: value for key, value in document.items() if value is not None}).encode()


HELM = {"mediaType": "application/vnd.cncf.helm.config.v1+json", "digest": sha256(CONFIG)}
SCHEMA_1 = "application/vnd.docker.distribution.manifest.v1+prettyjws"


@pytest.mark.parametrize(
    ("routes", "said"),
    [
        (serving(head=Reply(404), tag=Reply(404, b"<html>")), "does not have the tag `1`"),
        (
            serving(head=Reply(404), tag=Reply(404, {"errors": [{"code": "NAME_UNKNOWN"}]})),
            "repository `team/tool`",
        ),
        (serving(head=Reply(404), tag=Reply(404, {"errors": "?"})), "does not have the tag `1`"),
        (
            serving(head=Reply(400), tag=Reply(400, {"errors": [{"code": "NAME_INVALID"}]})),
            "400, NAME_INVALID",
        ),
        (
            serving(head=Reply(400), tag=Reply(400, {"errors": [{"code": "<script>"}]})),
            "answers 400 to this name",
        ),
        (serving(head=lying(kind=SCHEMA_1), tag=lying(kind=SCHEMA_1)), "old format"),
        (serving(manifest_with(config=None)), "no config"),
        (serving(manifest_with(config=HELM)), "not an image of a container: .*helm"),
        (serving(manifest_with(config={"mediaType": CONFIG_TYPE, "digest": "md5:1"})), "without a SHA-256"),
        (serving(blob=Reply(404)), "config .* cannot be read: the registry answers 404"),
        (serving(*image("s390x")), "it is for linux/s390x; here it has to be for linux/amd64"),
        (serving(*image("amd64", "windows")), "it is for windows/amd64"),
    ],
)
def test_what_no_repetition_makes_better_is_refused_after_one_try(
    new_client, scripted: FakeServer, routes: Routes, said: str
):
    scripted.routes = routes
    with pytest.raises(ImageRefused, match=said):
        resolve(new_client(attempts=5), scripted)
    assert len(scripted.seen) <= 3


def test_of_several_variants_the_plain_one_runs_and_attestations_are_no_platform(
    client, scripted: FakeServer
):
    entries = [
        ("unknown", "unknown", None, OTHER),
        ("linux", "amd64", "v3", OTHER),
        ("linux", "amd64", None, DIGEST),
        ("linux", "arm64", "v8", OTHER),
    ]
    body = index_of(*entries)
    scripted.routes = serving_index(body)
    found = client.resolve(name_at(scripted), AMD64)
    assert (found.digest, found.platform_digest) == (sha256(body), DIGEST)
    with pytest.raises(
        ImageRefused, match=r"no linux/riscv64; its platforms: linux/amd64/v3, linux/amd64, linux/arm64/v8$"
    ):
        client.resolve(name_at(scripted), "riscv64")


@pytest.mark.parametrize(
    "manifests",
    [None, {}, [], [5], [{"platform": 5}], [{"digest": OTHER}], [{"platform": {}, "digest": "x"}]],
)
def test_an_index_without_platforms_is_refused(client, scripted: FakeServer, manifests: Any):
    scripted.routes = serving_index(json.dumps({**NESTED, "manifests": manifests}).encode())
    with pytest.raises(ImageRefused, match="no linux/amd64; its platforms: none"):
        resolve(client, scripted)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=5)
    | st.sampled_from([OTHER, "linux", AMD64]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=4),
    max_leaves=8,
)


class Canned(Wire):
    """Answers every manifest with one document and every blob with another."""

    def __init__(self, manifest: bytes, config: bytes, kind: str) -> None:
        super().__init__()
        self._bytes = {"manifests": manifest, "blobs": config}
        self._headers = {"content-type": kind}

    def ask(self, _method: str, url: str, *_: Any, **_bounds: Any) -> Answer:
        return Answer(200, self._headers, self._bytes[url.split("/")[-2]])


@given(
    st.dictionaries(st.sampled_from(WORDS), JSON, max_size=5) | JSON,
    JSON,
    st.sampled_from(sorted(MANIFEST_TYPES | INDEX_TYPES)),
)
def test_whatever_a_registry_says_the_answer_is_one_of_three(manifest: Any, config: Any, kind: str):
    body = json.dumps(config).encode()
    if isinstance(manifest, dict) and isinstance(manifest.get("config"), dict):
        manifest["config"]["digest"] = sha256(body)
    client = RegistryClient(RegistryRules(), attempts=1)
    client._access = Access(RegistryRules(), Canned(json.dumps(manifest).encode(), body, kind))
    with contextlib.suppress(ImageRefused, RegistryUnavailable):
        assert client.resolve("hub.example/a/b:1", AMD64).digest
    client.close()


def test_an_index_in_an_index_is_refused(client, scripted: FakeServer):
    inner = index_of()
    scripted.routes = serving_index(index_of(("linux", "amd64", None, sha256(inner))))
    scripted.routes[f"GET {MANIFESTS}/{sha256(inner)}"] = answer(inner, OCI_INDEX)
    with pytest.raises(ImageRefused, match="names another index"):
        resolve(client, scripted)


@pytest.mark.parametrize(
    "trouble",
    [
        Reply(500),
        Reply(503),
        DROP,
        Reply(429, None, {"Retry-After": "0"}),
        Reply(200, b"", {"Content-Length": "x"}),
    ],
)
def test_trouble_that_passes_is_waited_out(new_client, scripted: FakeServer, trouble: Reply):
    scripted.routes[f"HEAD {MANIFESTS}/1"] = in_turn(trouble, trouble, answer(MANIFEST))
    scripted.routes[f"GET {MANIFESTS}/1"] = Reply(503)
    assert resolve(new_client(attempts=3), scripted) == DIGEST


def test_trouble_that_stays_is_told_with_its_cause_after_the_last_try(new_client, scripted: FakeServer):
    scripted.routes[f"HEAD {MANIFESTS}/1"] = Reply(502)
    with pytest.raises(RegistryUnavailable, match="it answers 502") as refused:
        resolve(new_client(attempts=3), scripted)
    assert len(scripted.seen) == 3
    assert refused.value.retry_after is None


def test_a_registry_that_limits_requests_is_not_asked_again_in_vain(new_client, scripted: FakeServer):
    scripted.routes[f"HEAD {MANIFESTS}/1"] = Reply(429, None, {"Retry-After": "3600"})
    with pytest.raises(RegistryUnavailable, match=r"takes no more requests .* 3600 s") as refused:
        resolve(new_client(attempts=5), scripted)
    assert refused.value.retry_after == 3600.0
    assert len(scripted.seen) == 1


@pytest.mark.parametrize(
    ("text", "least", "most"),
    [
        ("7", 7, 7),
        ("", 1, 1),
        ("soon", 1, 1),
        ("-5", 1, 1),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0, 0),
        ("Wed, 01 Jan 2200 00:00:00 GMT", 1e6, 1e12),
    ],
)
def test_retry_after_is_seconds_or_a_date(text: str, least: float, most: float):
    assert least <= retry_after(text) <= most


def test_a_registry_that_never_answers_is_given_up_at_the_deadline(new_client, scripted: FakeServer):
    over = threading.Event()

    def silent(_: Request) -> Reply:
        over.wait(60)
        return DROP

    scripted.routes[f"HEAD {MANIFESTS}/1"] = silent
    try:
        with pytest.raises(RegistryUnavailable, match="it did not answer in time"):
            resolve(new_client(timeout_seconds=0.3, attempts=3), scripted)
    finally:
        over.set()
    assert len(scripted.seen) == 1


@pytest.mark.parametrize(
    "start", [b"HTTP/1.1 200 OK\r\nX-Slow: ", b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n"]
)
def test_a_registry_that_drips_is_given_up_at_the_deadline(new_client, start: bytes):
    """Each single byte comes in time; only all of them together do not."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drip() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(start)
                while not over.wait(0.02):
                    try:
                        connection.sendall(b"x")
                    except OSError:
                        return

        thread = threading.Thread(target=drip)
        thread.start()
        client = new_client(timeout_seconds=0.5)
        port = listener.getsockname()[1]
        try:
            with pytest.raises(RegistryUnavailable, match="it did not answer in time"):
                client.resolve(f"127.0.0.1:{port}/{REPOSITORY}@{DIGEST}", AMD64)
        finally:
            over.set()
            thread.join()


def test_a_port_where_something_else_speaks_is_no_registry(client: RegistryClient):
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
                connection.recv(65536)

        thread = threading.Thread(target=greet)
        thread.start()
        with pytest.raises(RegistryUnavailable, match=r"does not speak HTTP|the connection broke"):
            client.resolve(f"127.0.0.1:{listener.getsockname()[1]}/{REPOSITORY}", AMD64)
        thread.join()


def test_a_client_that_is_closed_waits_for_nothing(new_client, scripted: FakeServer):
    client = new_client(attempts=20, timeout_seconds=600)
    scripted.routes[f"HEAD {MANIFESTS}/1"] = Reply(429, None, {"Retry-After": "60"})
    refusals: list[Exception] = []

    def ask() -> None:
        with pytest.raises(RegistryUnavailable) as refused:
            resolve(client, scripted)
        refusals.append(refused.value)

    thread = threading.Thread(target=ask)
    thread.start()
    wait_until(lambda: scripted.seen, what="the first request")
    client.close()
    thread.join(30)
    assert len(refusals) == 1


def test_where_nothing_listens_it_is_said_in_words():
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(RegistryUnavailable, match="connection refused") as error:
        RegistryClient(RegistryRules(), attempts=1).resolve(f"127.0.0.1:{port}/a/b:1", AMD64)
    assert "Errno" not in str(error.value)
