"""Patterns of `include` (e.5; G71)."""

from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainshed.model.scripts.include_patterns import IncludePattern, include_fault


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("data/crops/*.png", "data/crops/a.png", True),
        ("data/crops/*.png", "data/crops/x/a.png", False),
        ("data/crops/*.png", "data/crops/.png", True),
        ("experiments/**/out", "experiments/out", True),
        ("experiments/**/out", "experiments/a/b/out", True),
        ("experiments/**/out", "experiments/a/b/out/x", False),
        ("**/*.json", "a.json", True),
        ("**/*.json", "a/b/c.json", True),
        ("a/**", "a/b", True),
        ("a/**", "a", False),
        ("a/?.txt", "a/b.txt", True),
        ("a/[0-9].txt", "a/7.txt", True),
        ("a/[!0-9].txt", "a/7.txt", False),
        ("a", "A", False),
        ("./a//b", "a/b", True),
    ],
)
def test_G71_a_pattern_names_paths_part_byfnmatchcase(pattern, path, matches):
    assert IncludePattern(pattern).match(path) is matches


@pytest.mark.parametrize(
    "pattern",
    [
        *("", " ", "/etc", "~/x", "~", "..", "a/../b", ".", "./", "**", "**/", "**/**"),
        *("a\nb", "a\0b", "a\u202eb", "x" * 301, "a\\b", "a**b/c"),
    ],
)
def test_what_leads_out_names_everything_or_hides_something_is_refused(pattern):
    assert include_fault(pattern)
    with pytest.raises(ValueError, match=r"^`"):
        IncludePattern(pattern)


parts = st.sampled_from(["a", "b", "ab", "a.b", ".a"])
paths = st.lists(parts, min_size=1, max_size=4).map("/".join)
pieces = st.sampled_from(["a", "b", "*", "?", "**", "a*", "[ab]", "*.b"])
patterns = st.lists(pieces, min_size=1, max_size=4).map("/".join)


@given(patterns, paths)
def test_a_pattern_matches_what_the_plainest_reading_matches(pattern, path):
    if include_fault(pattern):
        return
    assert IncludePattern(pattern).match(path) == by_hand(pattern.split("/"), path.split("/"))


@given(patterns, paths, paths)
def test_what_may_lie_below_a_folder_is_never_denied(pattern, folder, rest):
    if not include_fault(pattern) and IncludePattern(pattern).match(f"{folder}/{rest}"):
        assert IncludePattern(pattern).may_match_below(folder)


def test_a_pattern_made_to_take_long_does_not():
    pattern = IncludePattern("/".join(["**", "a*a*a*a*b"] * 12)[:300].rstrip("/*"))
    assert not pattern.match("/".join(["a" * 40] * 60))


def by_hand(pattern, path):
    """The plainest way to say it."""
    if not pattern:
        return not path
    if pattern[0] == "**":
        if len(pattern) == 1:
            return bool(path)
        return any(by_hand(pattern[1:], path[skip:]) for skip in range(len(path) + 1))
    return bool(path) and fnmatchcase(path[0], pattern[0]) and by_hand(pattern[1:], path[1:])
