"""How many examples a property is tried with: the number beside it, in the measure of the chosen profile."""

from __future__ import annotations

from hypothesis import settings

_USUAL = 100


def examples(usual: int) -> int:
    """``usual`` where a property without a number of its own has a hundred; more to soak, fewer in CI."""
    return max(3, usual * settings.default.max_examples // _USUAL)
