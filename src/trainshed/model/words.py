"""Words of sentences for people."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """``1 file``, ``2 files``: a noun that takes an s."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def bytes_text(size: int) -> str:
    """``2.0 MiB (2097152 bytes)``: as tables say it, and exactly."""
    amount, unit = float(size), ""
    for unit in ("", "KiB", "MiB", "GiB", "TiB"):
        if amount < 1024 or unit == "TiB":  # noqa: PLR2004 - the step of the units
            break
        amount /= 1024
    exact = counted(size, "byte")
    return f"{amount:.1f} {unit} ({exact})" if unit else exact
