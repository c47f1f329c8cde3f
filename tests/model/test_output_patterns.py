"""Output patterns against a naive model that tries every possibility."""

from __future__ import annotations

import time
from functools import cache

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from support.examples import examples
from trainshed.model.globs import OutputPatterns, pattern_fault


def naive_match(pattern: str, path: str) -> bool:
    """The language as its documentation says it, by exhaustive recursion."""
    want, have = pattern.split("/"), path.split("/")

    @cache
    def parts(i: int, j: int) -> bool:
        if i == len(want):
            return j == len(have)
        if want[i] == "**":
            if i == len(want) - 1:
                return j < len(have)
            return any(parts(i + 1, k) for k in range(j, len(have) + 1))
        return j < len(have) and chars(want[i], have[j]) and parts(i + 1, j + 1)

    return parts(0, 0)


def chars(pattern: str, text: str) -> bool:
    if not pattern:
        return not text
    if pattern[0] == "*":
        return any(chars(pattern[1:], text[k:]) for k in range(len(text) + 1))
    if not text:
        return False
    if pattern[0] == "?":
        return chars(pattern[1:], text[1:])
    if pattern[0] == "[":
        end = pattern.index("]", 3 if pattern[1] == "!" else 2)
        body = pattern[1:end]
        negated = body[0] == "!"
        body = body[1:] if negated else body
        is_range = len(body) == 3 and body[1] == "-"
        inside = body[0] <= text[0] <= body[2] if is_range else text[0] in body
        return inside != negated and chars(pattern[end + 1 :], text[1:])
    return pattern[0] == text[0] and chars(pattern[1:], text[1:])


piece = st.sampled_from(["a", "b", ".", "ab", "*", "?", "[ab]", "[!a]", "[a-b]", "[]a]", "[*]"])
part = st.lists(piece, min_size=1, max_size=4).map("".join)
patterns = (
    st.lists(st.one_of(st.just("**"), part), min_size=1, max_size=5)
    .map("/".join)
    .filter(lambda p: pattern_fault(p) is None)
)
names = st.text("ab.*]\n\u00e9", min_size=1, max_size=5).filter(lambda n: n not in {".", ".."})
paths = st.lists(names, min_size=1, max_size=6).map("/".join)


@given(patterns, paths)
@example("**/a/**/b", "a/b")
@example("a/**/b/*", "a/b/b/c")
@example("**/b/**/b/b", "b/b/b")
@example("**", "a")
@settings(max_examples=examples(600))
def test_E73_a_pattern_matches_exactly_what_the_naive_model_matches(pattern, path):
    assert OutputPatterns([pattern]).match(path) == naive_match(pattern, path)


@given(st.lists(patterns, max_size=4), paths)
def test_a_set_of_patterns_matches_what_any_of_them_matches(several, path):
    assert OutputPatterns(several).match(path) == any(naive_match(p, path) for p in several)


@given(patterns, paths)
@settings(max_examples=examples(400))
def test_no_directory_above_a_match_is_ever_pruned(pattern, path):
    compiled = OutputPatterns([pattern])
    if compiled.match(path):
        above = path.split("/")[:-1]
        assert all(compiled.may_match_below("/".join(above[:n])) for n in range(1, len(above) + 1))


def test_directories_that_no_pattern_reaches_are_pruned():
    compiled = OutputPatterns(["outputs/**", "logs/*.txt"])
    assert not compiled.may_match_below("venv")
    assert not compiled.may_match_below("logs/old")
    assert compiled.may_match_below("outputs/a/b/c")
    assert compiled.names_directory("outputs")
    assert not compiled.names_directory("outputs/a")


def test_literals_are_the_patterns_without_any_magic():
    assert OutputPatterns(["a/model.bin", "b/*.bin", "c/**"]).literals == {"a/model.bin"}


def test_no_patterns_match_nothing():
    compiled = OutputPatterns([])
    assert not compiled.match("a")
    assert not compiled.may_match_below("a")


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("*a" * 30 + "b", "a" * 4000),
        ("**/" + "*a*a*a/**/" * 8 + "b", "/".join(["aaaaaaaaaa"] * 300)),
        ("/".join(["*a*a*a"] * 60), "/".join(["a" * 60] * 60) + "x"),
        ("**/" + "a/" * 50 + "b", "a/" * 1500 + "c"),
    ],
)
def test_no_pattern_takes_exponential_time(pattern, path):
    compiled = OutputPatterns([pattern])
    start = time.process_time()
    assert not compiled.match(path)
    assert time.process_time() - start < 1.0


@pytest.mark.parametrize(
    ("pattern", "word"),
    [
        ("", "empty"),
        ("/etc/passwd", "relative"),
        ("../up", "`..`"),
        ("a/../b", "`..`"),
        ("a\\b", "backslash"),
        ("a\nb", "printable"),
        ("a\x00", "printable"),
        ("\udcff", "printable"),
        ("outputs/", "`outputs/**`"),
        ("a//b", "empty"),
        ("./a", "`.` part"),
        ("outputs/**.json", "`**/*.json`"),
        ("[abc", "no `]`"),
        ("[z-a]", "backwards"),
        ("x" * 513, "at most 512"),
    ],
)
def test_a_bad_pattern_is_refused_with_the_rule_it_breaks(pattern, word):
    assert word in pattern_fault(pattern)
    with pytest.raises(ValueError):
        OutputPatterns([pattern])
