"""The way to a registry: what is sent, tokens that everybody gets, redirects, mirrors, proxies, TLS (E44)."""

from __future__ import annotations

import base64
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.fake_server import DROP, FakeServer, Handler, Reply, Request
from support.scripted_registry import (
    AMD64,
    BLOBS,
    CONFIG,
    DIGEST,
    MANIFESTS,
    OTHER,
    REPOSITORY,
    host_of,
    lying,
    name_at,
    resolve,
    serving,
    sha256,
)
from trainshed.content.registry import OCI_MANIFEST, ImageRefused, RegistryClient, RegistryUnavailable
from trainshed.content.registry_access import Access, Challenge, parse_challenge
from trainshed.content.registry_wire import Answer, Unanswered, Wire
from trainshed.model.images import RegistryRules, Source, parse_mirror


def test_all_four_types_are_accepted_and_nothing_is_encoded(client: RegistryClient, scripted: FakeServer):
    assert resolve(client, scripted) == DIGEST
    for request in scripted.seen[:2]:
        assert len(request.headers["accept"].split(",")) == 4
        assert request.headers["accept-encoding"] == "identity"
        assert "authorization" not in request.headers
        assert "cookie" not in request.headers
    assert [f"{r.method} {r.path}" for r in scripted.seen] == [
        f"HEAD {MANIFESTS}/1",
        f"GET {MANIFESTS}/{DIGEST}",
        f"GET {BLOBS}/{sha256(CONFIG)}",
    ]


@pytest.mark.parametrize(
    "head", [Reply(405), Reply(404), Reply(200, b"", {"Content-Type": OCI_MANIFEST}), Reply(200, b"<html>")]
)
def test_a_registry_whose_head_says_nothing_is_asked_for_the_bytes(
    client: RegistryClient, scripted: FakeServer, head: Reply
):
    scripted.routes[f"HEAD {MANIFESTS}/1"] = head
    assert resolve(client, scripted) == DIGEST
    assert scripted.asked(f"GET {MANIFESTS}/1")


def test_a_registry_that_is_not_allowed_is_not_asked(new_client, scripted: FakeServer):
    client = new_client(RegistryRules(allowed=("hub.internal/team", "docker.io")))
    with pytest.raises(
        ImageRefused, match=r"takes no images from; it takes those of hub.internal/team, docker.io"
    ):
        resolve(client, scripted)
    assert scripted.seen == []


def wants_token(good: Callable[[], str], then: Reply | Handler, realm: str) -> Handler:
    """Answers ``then`` to the bearer of the good token, else a challenge."""
    challenge = f'Bearer realm="{realm}",service="hub, \\"inc\\"",scope="repository:{REPOSITORY}:pull"'

    def handler(request: Request) -> Reply:
        if request.headers.get("authorization") == f"Bearer {good()}":
            return then if isinstance(then, Reply) else then(request)
        return Reply(401, {"errors": [{"code": "UNAUTHORIZED"}]}, {"WWW-Authenticate": challenge})

    return handler


@contextmanager
def registry_with_tokens(
    token: Reply | Handler, good: Callable[[], str] = lambda: "t0ken"
) -> Iterator[tuple[FakeServer, FakeServer]]:
    with FakeServer({"GET /token": token}) as tokens:
        routes = {
            route: wants_token(good, reply, f"{tokens.url}/token?account=none")
            for route, reply in serving().items()
        }
        with FakeServer(routes) as server:
            yield server, tokens


def test_the_token_that_everybody_gets_is_asked_for_once(client: RegistryClient):
    with registry_with_tokens(Reply(200, {"token": "t0ken", "expires_in": 300})) as (server, tokens):
        assert resolve(client, server) == DIGEST
        assert resolve(client, server) == DIGEST
        (asked,) = tokens.seen
    assert asked.query == {
        "account": "none",
        "service": 'hub, "inc"',
        "scope": f"repository:{REPOSITORY}:pull",
    }
    assert "authorization" not in asked.headers


def test_a_token_is_not_kept_longer_than_it_holds(client: RegistryClient):
    with registry_with_tokens(Reply(200, {"access_token": "t0ken", "expires_in": 5})) as (server, tokens):
        resolve(client, server)
        once = len(tokens.seen)
        resolve(client, server)
        assert len(tokens.seen) > once


def test_a_token_that_no_longer_holds_is_replaced(client: RegistryClient):
    current = ["first"]

    def token(_: Request) -> Reply:
        return Reply(200, {"token": current[0], "expires_in": 3600})

    with registry_with_tokens(token, lambda: current[0]) as (server, tokens):
        resolve(client, server)
        current[0] = "second"
        assert resolve(client, server) == DIGEST
        assert len(tokens.seen) == 2


@pytest.mark.parametrize("status", [401, 403])
def test_E44_what_the_token_of_everybody_does_not_open_needs_credentials(client: RegistryClient, status: int):
    with registry_with_tokens(Reply(200, {"token": "worthless"})) as (server, _):
        if status == 403:
            server.routes[f"HEAD {MANIFESTS}/1"] = Reply(403, {"errors": [{"code": "DENIED"}]})
        with pytest.raises(ImageRefused, match=f"needs credentials.*answers {status} to those who do not"):
            resolve(client, server)


@pytest.mark.parametrize("status", [400, 401, 403, 404])
def test_E44_a_token_service_that_wants_a_login_means_credentials(client: RegistryClient, status: int):
    with (
        registry_with_tokens(Reply(status, {"details": "no"})) as (server, _),
        pytest.raises(ImageRefused, match=f"needs credentials.*token service answers {status}"),
    ):
        resolve(client, server)


@pytest.mark.parametrize("header", [{}, {"WWW-Authenticate": 'Basic realm="bearer of realm=x"'}])
def test_E44_a_registry_that_only_takes_passwords_means_credentials(
    client: RegistryClient, scripted: FakeServer, header: Mapping[str, str]
):
    scripted.routes[f"HEAD {MANIFESTS}/1"] = Reply(401, b"", header)
    with pytest.raises(ImageRefused, match=r"needs credentials.*wants a name and a password"):
        resolve(client, scripted)


@pytest.mark.parametrize(
    ("token", "said"),
    [
        (Reply(200, b"<html>sign in</html>"), "something else than a token"),
        (Reply(200, {"token": 5}), "something else than a token"),
        (Reply(200, ["token"]), "something else than a token"),
        (Reply(200, {"token": "two words\r\nX-Evil: 1"}), "something else than a token"),
        (Reply(200, {"token": "x" * 40_000}), "something else than a token"),
        (Reply(200, b"[" * 100_000), "something else than a token"),
        (Reply(200, b" " * (1 << 20)), "larger than the 262144 bytes"),
        (Reply(503), "it answers 503"),
        (Reply(418), "token service answers 418"),
        (DROP, "does not speak HTTP|the connection broke"),
    ],
)
def test_a_token_service_that_fails_makes_the_registry_unavailable(
    client: RegistryClient, token: Reply, said: str
):
    with registry_with_tokens(token) as (server, _), pytest.raises(RegistryUnavailable, match=said):
        resolve(client, server)


@pytest.mark.parametrize(
    "realm",
    ["http://192.0.2.1/token", "file:///etc/passwd", "https://user:pw@192.0.2.1/", "http://[::bad/"],
)
def test_a_token_service_that_is_neither_https_nor_loopback_is_not_asked(
    client: RegistryClient, scripted: FakeServer, realm: str
):
    challenge = {"WWW-Authenticate": f'Bearer realm="{realm}"'}
    scripted.routes[f"HEAD {MANIFESTS}/1"] = Reply(401, b"", challenge)
    with pytest.raises(RegistryUnavailable, match=r"leads to|an address that is none"):
        resolve(client, scripted)


@pytest.mark.parametrize(
    ("header", "found"),
    [
        ('Bearer realm="https://a/t",service="s",scope="x,y"', Challenge("https://a/t", "s", "x,y")),
        ("bearer Realm=https://a/t , SERVICE = s", Challenge("https://a/t", "s", None)),
        ('Basic realm="x", Bearer realm="https://a/t"', Challenge("https://a/t", None, None)),
        ("Bearer", None),
        ('Bearer service="s"', None),
        ('Basic realm="Bearer realm=x"', None),
        ("", None),
    ],
)
def test_challenges_are_read(header: str, found: Challenge | None):
    assert parse_challenge(header) == found


@given(st.text(st.characters(codec="latin-1"), max_size=200))
def test_any_challenge_is_read_or_none(text: str):
    for header in (text, f"Bearer realm={text}", f'Bearer realm="{text}"'):
        found = parse_challenge(header)
        assert found is None or found.realm


def test_a_blob_may_lie_elsewhere_and_the_token_stays_here(client: RegistryClient):
    with FakeServer({"GET /bucket/config": Reply(200, CONFIG)}) as storage:
        place = Reply(307, None, {"Location": f"{storage.url}/bucket/config?signature=x"})
        with registry_with_tokens(Reply(200, {"token": "t0ken"})) as (server, tokens):
            realm = f"{tokens.url}/token"
            server.routes[f"GET {BLOBS}/{sha256(CONFIG)}"] = wants_token(lambda: "t0ken", place, realm)
            assert resolve(client, server) == DIGEST
        (asked,) = storage.seen
    assert "authorization" not in asked.headers


@pytest.mark.parametrize(
    ("place", "said"),
    [
        (f"{MANIFESTS}/1", "redirects more than 5 times"),
        ("http://192.0.2.1/x", "leads to `http://192.0.2.1/x`; only https"),
        ("ftp://192.0.2.1/x", "only https"),
        ("", "redirects more than 5 times"),
        ("http://[", "address that is none"),
        ("http://127.0.0.1:99999/", "address that is none"),
    ],
)
def test_redirects_that_lead_nowhere_good_are_not_followed(
    client: RegistryClient, scripted: FakeServer, place: str, said: str
):
    scripted.routes[f"HEAD {MANIFESTS}/1"] = Reply(302, None, {"Location": place})
    with pytest.raises(RegistryUnavailable, match=said):
        resolve(client, scripted)
    assert len(scripted.seen) <= 6


class Script(Wire):
    """Answers by address, without any connection."""

    def __init__(self, answers: Mapping[str, Answer]) -> None:
        super().__init__()
        self.answers = answers

    def ask(self, _method: str, url: str, *_: Any, **_bounds: Any) -> Answer:
        return self.answers[url]


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1:8443", "localhost", "a.localhost", "127.9.9.9", "0.0.0.0", "[::1]", "[::ffff:127.0.0.1]"],
)
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_no_registry_leads_into_this_machine(scheme: str, host: str):
    place = f"{scheme}://{host}/x"
    url = "https://hub.example/v2/a/b/manifests/1"
    for reply in (
        Answer(307, {"location": place}, b""),
        Answer(401, {"www-authenticate": f'Bearer realm="{place}"'}, b""),
    ):
        access = Access(RegistryRules(), Script({url: reply}))
        source = Source("https://hub.example", "hub.example", "a/b", mirror=False)
        with pytest.raises(Unanswered, match="leads to"):
            access.ask(source, "GET", "manifests/1", {}, most_bytes=1, deadline=time.monotonic() + 5)


@pytest.fixture
def mirrors() -> Iterator[tuple[FakeServer, FakeServer]]:
    with FakeServer(serving()) as first, FakeServer(serving()) as second:
        yield first, second


def mirrored(scripted: FakeServer, *mirrors: FakeServer) -> RegistryRules:
    named = (parse_mirror(f"{host_of(scripted)}={host_of(mirror)}", "") for mirror in mirrors)
    return RegistryRules(mirrors=tuple(named))


def test_the_first_mirror_that_answers_is_enough(new_client, scripted: FakeServer, mirrors):
    client = new_client(mirrored(scripted, *mirrors))
    found = client.resolve(name_at(scripted), AMD64)
    assert found.resolved == f"{host_of(scripted)}/{REPOSITORY}@{DIGEST}"
    assert (bool(mirrors[0].seen), mirrors[1].seen, scripted.seen) == (True, [], [])


@pytest.mark.parametrize(
    "reply", [Reply(404), Reply(401), Reply(403), Reply(500), DROP, Reply(429), lying(b"{}", digest=OTHER)]
)
def test_what_a_mirror_does_not_have_or_say_right_the_next_one_is_asked(
    new_client, scripted: FakeServer, mirrors, reply: Reply
):
    for route in mirrors[0].routes:
        mirrors[0].routes[route] = reply
    mirrors[1].routes.clear()
    client = new_client(mirrored(scripted, *mirrors))
    assert resolve(client, scripted) == DIGEST
    assert all(server.seen for server in (*mirrors, scripted))


def test_a_mirror_that_does_not_answer_is_left_alone_for_a_while(new_client, scripted: FakeServer, mirrors):
    mirrors[0].routes[f"HEAD {MANIFESTS}/1"] = Reply(503)
    client = new_client(mirrored(scripted, mirrors[0]))
    resolve(client, scripted)
    asked = len(mirrors[0].seen)
    resolve(client, scripted)
    assert len(mirrors[0].seen) == asked


def test_a_mirror_that_hangs_leaves_time_for_the_registry(new_client, scripted: FakeServer, mirrors):
    over = threading.Event()

    def silent(_: Request) -> Reply:
        over.wait(60)
        return DROP

    mirrors[0].routes[f"HEAD {MANIFESTS}/1"] = silent
    client = new_client(mirrored(scripted, mirrors[0]), timeout_seconds=2.0)
    try:
        assert resolve(client, scripted) == DIGEST
    finally:
        over.set()


def test_every_place_that_failed_is_told_with_its_cause(new_client, scripted: FakeServer, mirrors):
    mirrors[0].routes[f"HEAD {MANIFESTS}/1"] = Reply(503)
    scripted.routes[f"HEAD {MANIFESTS}/1"] = Reply(504)
    with pytest.raises(RegistryUnavailable) as refused:
        resolve(new_client(mirrored(scripted, mirrors[0])), scripted)
    said = str(refused.value)
    assert f"{host_of(mirrors[0])}: it answers 503; {host_of(scripted)}: it answers 504" in said


def test_the_proxy_of_the_environment_is_used_and_never_for_loopback(
    new_client, scripted: FakeServer, monkeypatch: pytest.MonkeyPatch
):
    with FakeServer(serving()) as proxy:
        secret = proxy.url.replace("http://", "http://me:p%40ss@")
        for name in ("http_proxy", "HTTP_PROXY"):
            monkeypatch.setenv(name, secret)
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        client = new_client(RegistryRules(insecure=frozenset({"lab.test:5000"})))
        assert client.resolve(f"lab.test:5000/{REPOSITORY}:1", AMD64).digest == DIGEST
        asked = proxy.seen[0]
        assert asked.target == f"http://lab.test:5000{MANIFESTS}/1"
        password = base64.b64encode(b"me:p@ss").decode()
        assert asked.headers["proxy-authorization"] == f"Basic {password}"
        before = len(proxy.seen)
        assert resolve(client, scripted) == DIGEST
        assert len(proxy.seen) == before


def test_a_certificate_that_nobody_vouches_for_is_not_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    made = tmp_path / "certificate.pem", tmp_path / "key.pem"
    places = ["-out", str(made[0]), "-keyout", str(made[1])]
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject, *places],
        check=True,
        capture_output=True,
    )
    trust = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trust.load_cert_chain(*made)
    with FakeServer({"GET /x": Reply(200, b"ok")}) as server:
        server._server.socket = trust.wrap_socket(server._server.socket, server_side=True)
        url = server.url.replace("http://", "https://") + "/x"
        wire = Wire()
        with pytest.raises(Unanswered, match="certificate verify failed"):
            wire.ask("GET", url, most_bytes=10, deadline=time.monotonic() + 10)
        wire.close()
        monkeypatch.setenv("SSL_CERT_FILE", str(made[0]))
        trusting = Wire()
        assert trusting.ask("GET", url, most_bytes=10, deadline=time.monotonic() + 10).body == b"ok"
        trusting.close()
