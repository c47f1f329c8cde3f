"""Words of sentences for people."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """``1 file``, ``2 files``: a noun that takes an s."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
