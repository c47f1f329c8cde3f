"""Cursors: sealed for one use, safe to hand to any program."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainshed.server.cursors import CursorFault, CursorSeal

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 53), 1 << 53) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)


@given(st.text(max_size=20), st.text(max_size=8), values)
def test_b0_what_was_sealed_opens_again_and_is_never_taken_for_an_option(secret, use, value):
    """A program that is told `--cursor -Cmi…` takes that for an option of its own."""
    cursor = CursorSeal(secret).seal(use, value)
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", cursor)
    assert CursorSeal(secret).open(use, cursor) == value


@given(values, st.data())
def test_b0_any_other_character_and_any_other_use_are_refused(value, data):
    seal = CursorSeal("secret")
    cursor = seal.seal("jobs", value)
    place = data.draw(st.integers(0, len(cursor) - 2), label="place")
    other = "A" if cursor[place] != "A" else "B"
    for changed in (cursor[:place] + other + cursor[place + 1 :], cursor[:place], f"-{cursor}", "é", ""):
        with pytest.raises(CursorFault):
            seal.open("jobs", changed)
    with pytest.raises(CursorFault):
        seal.open("runners", cursor)
    with pytest.raises(CursorFault):
        CursorSeal("another").open("jobs", cursor)
