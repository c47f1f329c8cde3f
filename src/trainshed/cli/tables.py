"""Laying out a table for the width there is: what does not fit beside its row moves below it."""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

GAP = "  "
INDENT = "    "


@dataclass(frozen=True, slots=True)
class Shape:
    """How one column gives way: columns of higher ``rank`` move below their row first, rank 0 never does."""

    label: str
    rank: int = 0
    shortest: int = 0
    """Cells may be cut down to so many characters; 0 = they are never cut."""


@dataclass(frozen=True, slots=True)
class Line:
    """One printed line: cells, each with its padding, or one text that stands below a row."""

    cells: tuple[tuple[str, str], ...] = ()
    """``(text, padding)``; the text alone is coloured."""
    below: str = ""


def lay_out(
    columns: Sequence[Shape],
    rows: Sequence[Sequence[str]],
    notes: Sequence[str],
    width: int | None,
) -> list[Line]:
    """The lines of a table, header first. ``notes[i]`` is a text that stands below row ``i``.

    ``width`` is that of the terminal; ``None`` = there is none, and nothing moves or is cut.
    """
    widths = _widths(columns, rows, width)
    left_out = [place for place in range(len(columns)) if place not in widths]
    lines = [_line([column.label for column in columns], widths)]
    for row, note in zip(rows, notes, strict=True):
        lines.append(_line(row, widths))
        moved = GAP.join(f"{columns[place].label} {row[place]}" for place in left_out)
        lines += [Line(below=text) for text in (*_folded(moved, width), *_folded(note, width))]
    return lines


def text_width(text: str) -> int:
    """How many columns of a terminal ``text`` takes."""
    return sum(
        0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        for letter in text
    )


def _widths(columns: Sequence[Shape], rows: Sequence[Sequence[str]], width: int | None) -> dict[int, int]:
    """The columns that stay beside their row, in order, each with its width."""
    natural = {
        place: max(text_width(text) for text in (column.label, *(row[place] for row in rows)))
        for place, column in enumerate(columns)
    }
    while width is not None:
        widths = dict(natural)
        excess = sum(widths.values()) + len(GAP) * (len(widths) - 1) - width
        while excess > 0 and (place := _cuttable(columns, widths)) is not None:
            widths[place] -= 1
            excess -= 1
        movable = [place for place in natural if columns[place].rank]
        if excess <= 0 or not movable:
            return widths
        del natural[max(movable, key=lambda place: columns[place].rank)]
    return natural


def _cuttable(columns: Sequence[Shape], widths: dict[int, int]) -> int | None:
    """The widest column that may become narrower still."""
    able = [
        place
        for place, width in widths.items()
        if columns[place].shortest and width > max(columns[place].shortest, len(columns[place].label))
    ]
    return max(able, key=lambda place: widths[place], default=None)


def _line(row: Sequence[str], widths: dict[int, int]) -> Line:
    cells, last = [], max(widths)
    for place, width in widths.items():
        text = _cut(row[place], width)
        padding = "" if place == last else " " * (width - text_width(text)) + GAP
        cells.append((text, padding))
    return Line(tuple(cells))


def _cut(text: str, width: int) -> str:
    if text_width(text) <= width:
        return text
    while text_width(text) >= width:
        text = text[:-1]
    return f"{text}…"


def _folded(text: str, width: int | None) -> list[str]:
    if not text:
        return []
    if width is None:
        return [INDENT + text]
    return textwrap.wrap(
        text,
        max(width, 2 * len(INDENT)),
        initial_indent=INDENT,
        subsequent_indent=INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )
