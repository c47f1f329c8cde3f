"""URIs of contents: what one may be, and the two spellings of a digest in it (E104, C11)."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainshed.model.content import SHA256, VERSION, ContentKind, ContentUri, parse_content_uri, plain_ref
from trainshed.model.profile import Reference
from trainshed.model.training.reading_environment import content_reference, reference_fault
from trainshed.model.training.spec import MountType

DIGESTS = st.binary(min_size=32, max_size=32).map(bytes.hex)
NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)
LABELS = st.from_regex(VERSION, fullmatch=True)
KINDS = st.sampled_from(ContentKind)
SCHEMES = st.sampled_from(["", "envloop://{}s/"])


@given(KINDS, NAMES, NAMES, LABELS | DIGESTS)
def test_E104_a_uri_that_was_read_is_written_as_it_was(
    kind: ContentKind, namespace: str, name: str, ref: str
):
    text = f"envloop://{kind}/{namespace}/{name}@{ref}"
    uri = parse_content_uri(text)
    assert uri == ContentUri(kind, namespace, name, ref)
    assert str(uri) == text
    assert uri.pinned is (re.fullmatch("[0-9a-f]{64}", ref) is not None)


@given(KINDS, NAMES, NAMES, DIGESTS)
def test_C11_a_digest_with_its_algorithm_is_the_same_digest(
    kind: ContentKind, namespace: str, name: str, digest: str
):
    short, long = (parse_content_uri(f"envloop://{kind}/{namespace}/{name}@{ref}") for ref in _both(digest))
    assert long == short
    assert long.pinned
    assert str(long).endswith(f"@{digest}")
    assert Reference(long, digest).document() == Reference(short, digest).document()


@given(NAMES, NAMES, DIGESTS, st.sampled_from([MountType.DATASET, MountType.MODEL]), SCHEMES)
def test_C11_a_mount_takes_both_spellings_with_and_without_the_scheme(
    namespace: str, name: str, digest: str, kind: MountType, scheme: str
):
    refs = [f"{scheme.format(kind)}{namespace}/{name}@{ref}" for ref in _both(digest)]
    assert [reference_fault(kind, ref) for ref in refs] == [None, None]
    short, long = (content_reference(kind, ref) for ref in refs)
    assert short == long is not None


@given(st.text(max_size=80) | DIGESTS.map(lambda digest: f"sha256:{digest}") | LABELS)
def test_C11_only_a_whole_digest_loses_its_prefix(ref: str):
    plain = plain_ref(ref)
    assert plain == ref or (ref == f"sha256:{plain}" and SHA256.fullmatch(plain))
    assert plain_ref(plain) == plain
    assert VERSION.fullmatch(f"sha256:{plain}") is None, "no label can be mistaken for one"


@pytest.mark.parametrize(
    "ref", ["sha256:", "sha256:abc", f"sha256:{'A' * 64}", f"sha256:{'a' * 63}", f"sha256:{'a' * 65}"]
)
def test_C11_a_digest_that_is_none_is_refused_with_its_rule(ref: str):
    with pytest.raises(ValueError, match="after `sha256:` stand the 64 lower-case hex digits"):
        parse_content_uri(f"envloop://datasets/team/words@{ref}")


@pytest.mark.parametrize(
    "ref", [f"sha512:{'a' * 64}", f"sha256:sha256:{'a' * 64}", f"SHA256:{'a' * 64}", "a:b"]
)
def test_another_algorithm_is_refused(ref: str):
    with pytest.raises(ValueError, match="after"):
        parse_content_uri(f"envloop://datasets/team/words@{ref}")


def _both(digest: str) -> tuple[str, str]:
    return digest, f"sha256:{digest}"
