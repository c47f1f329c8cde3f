"""How Jobs are named in short: digits that nobody takes for a number."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from trainshed.model.scripts.refs import DIGITS, SHORTEST, new_digits, shortest_unique

bits = st.integers(0, 16**DIGITS - 1)


def _guessed(text: str) -> object:
    """What a program makes of a text whose type it guesses."""
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text


@given(st.lists(bits, min_size=1), st.sets(st.text("0123456789abcdef", min_size=SHORTEST, max_size=DIGITS)))
def test_short_ids_are_prefixes_that_are_nobodys_and_no_numbers(numbers, taken):
    fresh = iter([*numbers, 0xABCDEFABCDEF])
    digits = new_digits(lambda _: next(fresh))
    short = shortest_unique(digits, taken.__contains__)
    assert len(digits) == DIGITS
    assert len(short) >= SHORTEST
    assert digits.startswith(short)
    assert _guessed(digits) == digits
    assert _guessed(short) == short
    assert short == digits or short not in taken


def test_what_reads_as_a_number_is_made_longer_or_made_anew():
    assert shortest_unique("960185a00000", lambda _: False) == "960185a"
    assert shortest_unique("12e345a00000", lambda _: False) == "12e345a"
    assert shortest_unique("96018e000000", lambda _: False) == "96018e"
    given_bits = iter([0x000000000012, 0x0000000E0012, 0x12AB])
    assert new_digits(lambda _: next(given_bits)) == "0000000012ab"
