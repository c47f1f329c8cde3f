"""Ids, selectors and image references: what can be written, and what is refused with which words."""

from __future__ import annotations

import contextlib
import re
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainshed.model.ids import JOB_ID, IdFactory, encode_ulid
from trainshed.model.selectors import image_fault, parse_selector, revision_fault

PUBLISHED_CLIENT_IDS = re.compile(r"job_[0-7][0-9A-HJKMNP-TV-Z]{25}")
COMMIT = "0123456789abcdef0123456789abcdef01234567"

# Ids


@given(st.lists(st.tuples(st.floats(0, 2**47 / 1000), st.integers(0, 2**79 - 1)), min_size=2, max_size=50))
def test_ids_of_one_factory_grow_even_when_its_clock_stands_still_or_goes_back(moments):
    times, bits = iter([t for t, _ in moments]), iter([b for _, b in moments])
    factory = IdFactory(clock=lambda: next(times), random_bits=lambda _: next(bits))
    made = [factory.ulid() for _ in moments]
    assert made == sorted(made)
    assert len(set(made)) == len(made)


@given(st.integers(0, 2**48 - 1), st.integers(0, 2**80 - 1))
def test_job_ids_have_the_form_that_old_clients_demand(milliseconds, randomness):
    assert PUBLISHED_CLIENT_IDS.fullmatch("job_" + encode_ulid(milliseconds, randomness))


@given(*[st.tuples(st.integers(0, 2**48 - 1), st.integers(0, 2**80 - 1))] * 2)
def test_ids_sort_by_time_then_by_randomness(one, other):
    assert (encode_ulid(*one) < encode_ulid(*other)) == (one < other)


def test_every_kind_of_id_says_what_it_names():
    ids = IdFactory()
    assert JOB_ID.fullmatch(ids.job())
    kinds = [ids.trial(), ids.attempt(), ids.allocation(), ids.artifact(), ids.key()]
    assert [made.rsplit("_", 1)[0] for made in kinds] == ["trial", "att", "alloc", "art", "key"]


def test_threads_never_get_the_same_id():
    ids, made, start = IdFactory(clock=lambda: 5.0), [], threading.Barrier(8)

    def work() -> None:
        start.wait(20)
        made.extend([ids.ulid() for _ in range(500)])

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(set(made)) == 4000


# Selectors (contract E b2)

PARTS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)
REVISIONS = st.from_regex(r"[a-z0-9][a-z0-9_/-]{0,20}", fullmatch=True)


@given(PARTS, PARTS, REVISIONS)
def test_a_selector_is_read_as_it_was_written(namespace, name, revision):
    found = parse_selector(f"{namespace}/{name}@{revision}")
    assert (found.namespace, found.name, found.revision) == (namespace, name, revision)
    assert str(found) == f"{namespace}/{name}@{revision}"
    assert found.full_name == f"{namespace}/{name}"


@given(st.text(max_size=40))
def test_any_text_is_either_refused_or_read_back_unchanged(text):
    with contextlib.suppress(ValueError):
        assert str(parse_selector(text)) == text


def test_namespace_and_name_have_at_most_128_characters_each():
    assert parse_selector(f"{'n' * 128}/{'x' * 128}@main").name == "x" * 128
    for text, label in ((f"{'n' * 129}/x@main", "namespace"), (f"n/{'x' * 129}@main", "name")):
        with pytest.raises(ValueError, match=f"the {label} has at most 128 characters, this one 129"):
            parse_selector(text)


@pytest.mark.parametrize("text", ["team/net@main", f"team/net@{COMMIT}", "A.b-c_d/0@feature/x-1", "t/n@v1.0"])
def test_good_selectors(text):
    assert str(parse_selector(text)) == text
    assert parse_selector(text).pinned == text.endswith(COMMIT)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "team/net",
        "team/net@",
        "net@main",
        "a/b/c@main",
        "/net@main",
        "team/@main",
        ".team/net@main",
        "team/-net@main",
        "te am/net@main",
        "team/net@HEAD",
        "team/net@FETCH_HEAD",
        "team/net@refs/remotes/origin/HEAD",
        "team/net@@",
        "team/net@-main",
        "team/net@a..b",
        "team/net@a@{1}",
        "team/net@a~1",
        "team/net@a^",
        "team/net@a:b",
        "team/net@a{b}",
        "team/net@a?",
        "team/net@a*",
        "team/net@a[b]",
        "team/net@a\\b",
        "team/net@a b",
        "team/net@a\tb",
        "team/net@a\n",
        "team/net@a\x7f",
        "team/net@\ud800",
        "team/net\n@main",
        "team/ne\u0301t@main",
        "team/net@" + "a" * 600,
    ],
)
def test_bad_selectors_are_refused(text):
    with pytest.raises(ValueError, match=r"\w"):
        parse_selector(text)


def test_a_head_like_name_inside_a_word_is_a_good_branch():
    assert revision_fault("ahead") is None
    assert revision_fault("HEADS") is None
    assert revision_fault("head") is None


# Images (contract E b2)

DIGEST = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    "text",
    [
        "ubuntu",
        "ubuntu:22.04",
        "team/train",
        "registry.example:5000/team/train:1.2",
        "localhost/train",
        "localhost:5000/train",
        f"team/train@{DIGEST}",
        f"team/train:1@{DIGEST}",
        "team/train@sha256:" + "AB" * 32,
        "a/b_c/d__e/f-g/h.i",
        "team/train:" + "t" * 128,
    ],
)
def test_good_images(text):
    assert image_fault(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ubuntu",
        "ubuntu ",
        "ubuntu\n",
        "Team/train",
        "team/Train",
        "team//train",
        "/train",
        "team/",
        "team/train:",
        "team/train:-x",
        "team/train:" + "t" * 129,
        "team/train@" + "a" * 64,
        "team/train@sha256:" + "a" * 63,
        "team/train@sha256:" + "g" * 64,
        "https://registry.example/team/train",
        "registry.example:port/train",
        "a_.b",
        "-train",
        "team/tra$in",
        "team/" + "t" * 600,
        "\u0442eam/train",
    ],
)
def test_bad_images_are_refused_with_a_sentence(text):
    assert image_fault(text)


@given(st.text(max_size=60))
def test_no_text_breaks_the_image_rule(text):
    fault = image_fault(text)
    assert fault is None or fault
    if fault is None:
        assert text.isascii()
        assert not any(c.isspace() for c in text)
