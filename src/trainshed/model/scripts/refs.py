"""How people name a Job: 12 random hexadecimal digits, a short prefix of them, or the full id."""

from __future__ import annotations

import re
from collections.abc import Callable

DIGITS = 12
SHORTEST = 6
REF = re.compile(r"[0-9a-fA-F]{1,12}")
"""What may be a Job's digits or a prefix of them (a.0.8)."""


_NUMBER = re.compile(r"[0-9]+(e[0-9]+)?")


def is_number(digits: str) -> bool:
    """Whether programs that guess types would take it for a number (``960185``, ``12e345``), and spoil it."""
    return _NUMBER.fullmatch(digits) is not None


def new_digits(random_bits: Callable[[int], int]) -> str:
    """Twelve random hexadecimal digits, lower case, that are no number."""
    while is_number(digits := f"{random_bits(4 * DIGITS):0{DIGITS}x}"):
        continue
    return digits


def shortest_unique(digits: str, taken: Callable[[str], bool]) -> str:
    """The shortest prefix of at least `SHORTEST` digits that is nobody's and no number.

    ``taken`` says whether a prefix is somebody's. ``digits`` are of `new_digits`.
    """
    prefixes = (digits[:length] for length in range(SHORTEST, DIGITS))
    return next((prefix for prefix in prefixes if not is_number(prefix) and not taken(prefix)), digits)
