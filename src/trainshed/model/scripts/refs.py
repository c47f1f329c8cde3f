"""How people name a Job: 12 random hexadecimal digits, a short prefix of them, or the full id."""

from __future__ import annotations

import re
from collections.abc import Callable

DIGITS = 12
SHORTEST = 6
REF = re.compile(r"[0-9a-fA-F]{1,12}")
"""What may be a Job's digits or a prefix of them (a.0.8)."""


def new_digits(random_bits: Callable[[int], int]) -> str:
    """Twelve random hexadecimal digits, lower case."""
    return f"{random_bits(4 * DIGITS):0{DIGITS}x}"


def shortest_unique(digits: str, taken: Callable[[str], bool]) -> str:
    """The shortest prefix of at least `SHORTEST` digits that is nobody's: ``taken`` says if one is."""
    prefixes = (digits[:length] for length in range(SHORTEST, DIGITS))
    return next((prefix for prefix in prefixes if not taken(prefix)), digits)
