"""Names of images: what each means, where it is asked for, and that what was written can be written again."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainshed.model.images import (
    ImageReference,
    Mirror,
    RegistryRules,
    is_loopback,
    parse_mirror,
)
from trainshed.model.selectors import image_fault

DIGEST = "sha256:" + "0123456789abcdef" * 4
RULES = RegistryRules()


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("ubuntu", "docker.io/library/ubuntu:latest"),
        ("ubuntu:22.04", "docker.io/library/ubuntu:22.04"),
        ("team/tool", "docker.io/team/tool:latest"),
        ("docker.io/ubuntu", "docker.io/library/ubuntu:latest"),
        ("index.docker.io/ubuntu", "docker.io/library/ubuntu:latest"),
        ("registry-1.docker.io/team/tool:1", "docker.io/team/tool:1"),
        ("localhost/tool", "localhost/tool:latest"),
        ("localhost:5000/tool", "localhost:5000/tool:latest"),
        ("localhost:5000", "docker.io/library/localhost:5000"),  # a tag: there is no path after it
        ("ghcr.example/a/b/c:x", "ghcr.example/a/b/c:x"),
        ("lab:5000/tool:5000", "lab:5000/tool:5000"),
        ("lab/tool", "docker.io/lab/tool:latest"),  # neither dot nor colon: no host
        (f"ubuntu@{DIGEST}", f"docker.io/library/ubuntu@{DIGEST}"),
        (f"ubuntu:22.04@{DIGEST}", f"docker.io/library/ubuntu@{DIGEST}"),
        (f"lab:5000/tool@{DIGEST.upper().replace('SHA', 'sha')}", f"lab:5000/tool@{DIGEST}"),
    ],
)
def test_a_name_means_what_it_means_everywhere(text: str, meaning: str):
    assert str(RULES.parse(text)) == meaning


def test_the_default_registry_is_a_setting_and_only_docker_hub_has_names_of_one_part():
    rules = RegistryRules(default_registry="hub.internal:5000")
    assert str(rules.parse("ubuntu")) == "hub.internal:5000/ubuntu:latest"
    assert str(rules.parse("docker.io/ubuntu")) == "docker.io/library/ubuntu:latest"
    with pytest.raises(ValueError, match="name the registry too"):
        RegistryRules(default_registry="").parse("ubuntu")


@pytest.mark.parametrize(
    "text",
    ["", "UPPER", "a//b", "a:b:c", "lab:99999/x", "lab:0/x", "a..b/x", "-a.b/x", "x@sha256:12", "a b", "x/",
     "/x", "x\n", "https://lab/x", "a.b-/x", "x:" + "t" * 129, "é"],
)  # fmt: skip
def test_a_name_that_is_none_is_refused_with_a_sentence(text: str):
    with pytest.raises(ValueError) as refused:
        RULES.parse(text)
    assert len(str(refused.value)) > 10


PART = st.from_regex(r"[a-z0-9]{1,8}([._-][a-z0-9]{1,4})?", fullmatch=True)
HOST = st.one_of(
    st.just("localhost"),
    st.from_regex(r"[a-z0-9]{1,6}(\.[a-z0-9]{1,6}){1,3}(:[1-9][0-9]{0,3})?", fullmatch=True),
    st.from_regex(r"[a-z0-9]{1,6}:[1-9][0-9]{0,3}", fullmatch=True),
)
TAG = st.text(string.ascii_letters + string.digits + "_", min_size=1, max_size=20)
HEX = st.text("0123456789abcdef", min_size=64, max_size=64).map("sha256:{}".format)


@given(HOST, st.lists(PART, min_size=1, max_size=4), st.none() | TAG, st.none() | HEX)
def test_every_part_of_a_full_name_is_found_again(host, parts, tag, digest):
    repository = "/".join(parts)
    text = f"{host}/{repository}" + (f":{tag}" if tag else "") + (f"@{digest}" if digest else "")
    found = RULES.parse(text)
    assert (found.host, found.repository, found.digest) == (host, repository, digest)
    assert found.tag == (tag or (None if digest else "latest"))


@given(st.text(max_size=80) | st.text("abz09.:/@-_", max_size=40))
def test_any_text_is_a_name_or_a_sentence_and_a_name_means_itself(text):
    try:
        found = RULES.parse(text)
    except ValueError:
        return
    assert image_fault(text) is None
    again = RULES.parse(str(found))
    assert (str(again), again.host, again.repository) == (str(found), found.host, found.repository)
    source = RULES.sources(found)[-1]
    assert source.url.startswith(("http://", "https://"))
    assert "@" not in source.url


def test_mirrors_are_asked_in_their_order_and_the_registry_last():
    rules = RegistryRules(
        mirrors=(
            parse_mirror("docker.io=cache.internal:8000/hub", "docker.io"),
            parse_mirror("other.example=cache.internal:9000", "docker.io"),
            parse_mirror("localhost:5000", "docker.io"),
        ),
        insecure=frozenset({"cache.internal:8000"}),
    )
    assert [(s.url, s.repository, s.mirror) for s in rules.sources(rules.parse("ubuntu"))] == [
        ("http://cache.internal:8000", "hub/library/ubuntu", True),
        ("http://localhost:5000", "library/ubuntu", True),
        ("https://registry-1.docker.io", "library/ubuntu", False),
    ]
    assert [s.url for s in rules.sources(rules.parse("other.example/x"))] == [
        "https://cache.internal:9000",
        "https://other.example",
    ]


def test_a_mirror_without_a_registry_mirrors_the_default_one():
    assert parse_mirror("cache.internal", "hub.internal") == Mirror("hub.internal", "cache.internal")
    assert parse_mirror("index.docker.io=cache.internal", "x.y").registry == "docker.io"
    for wrong in ("", "=", "a.b=", "=a.b", "a.b=C.d", "a.b=c.d/", "a.b=https://c.d"):
        with pytest.raises(ValueError, match="write REGISTRY=HOST"):
            parse_mirror(wrong, "docker.io")


@pytest.mark.parametrize(
    ("allowed", "name", "said"),
    [
        ((), "anything.example/x", True),
        (("docker.io",), "ubuntu", True),
        (("docker.io/library",), "team/tool", False),
        (("hub.internal:5000/team",), "hub.internal:5000/team/x/y", True),
        (("hub.internal:5000/team",), "hub.internal:5000/team", True),
        (("hub.internal:5000/team",), "hub.internal:5000/teams/x", False),
        (("hub.internal",), "hub.internal:5000/x", False),
        (("hub.internal",), "hub.internal.evil.example/x", False),
    ],
)
def test_only_allowed_places_are_allowed(allowed: tuple[str, ...], name: str, *, said: bool):
    rules = RegistryRules(allowed=allowed)
    assert rules.allows(rules.parse(name)) is said


def test_only_loopback_and_what_is_configured_is_asked_without_tls():
    rules = RegistryRules(insecure=frozenset({"lab:5000"}))
    plain = ["localhost", "localhost:5000", "127.0.0.1:1", "127.9.9.9", "lab:5000"]
    secure = ["lab", "lab:5001", "10.0.0.1", "localhost.example", "127.example", "0.0.0.0:80", "128.0.0.1"]
    assert [rules.plain_http(host) for host in plain + secure] == [True] * 5 + [False] * 7
    assert not is_loopback("")


def test_the_name_that_runs_is_whole():
    found = RULES.parse("ubuntu:22.04")
    assert isinstance(found, ImageReference)
    assert found.at(DIGEST) == f"docker.io/library/ubuntu@{DIGEST}"
