"""How a command shows what it found: one interface, for people and for programs.

A command hands over the JSON document and a view of it. The view draws from the same document, so nothing
can be on the screen that ``--json`` lacks. Results go to stdout, everything else to stderr.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

Pick = str | Callable[[Mapping[str, Any]], Any]
"""What a cell shows: a key (``a.b`` goes deeper) or a function of the row."""
NOTHING = "-"
"""Stands for a value that is not there."""
_WIDE = 100_000
"""Columns are never cut where no person's terminal limits them."""


@dataclass(frozen=True, slots=True)
class Table:
    """Draws a list: the rows under ``items`` of the document, or the list that ``rows`` picks."""

    columns: Sequence[tuple[str, Pick]]
    empty: str
    """The sentence shown instead of a table without rows."""
    rows: Pick = "items"


@dataclass(frozen=True, slots=True)
class Fields:
    """Draws one object: a label and a value a line; fields without a value are left out."""

    fields: Sequence[tuple[str, Pick]]


@dataclass(frozen=True, slots=True)
class Sentence:
    """Draws a document as one sentence, or several."""

    text: Callable[[Mapping[str, Any]], str]


View = Table | Fields | Sentence


class Output(Protocol):
    """Where results go."""

    def show(self, document: Mapping[str, Any], *views: View) -> None:
        """The result of the command. Called once a command."""
        ...


class JsonOutput:
    """One JSON document on stdout."""

    def show(self, document: Mapping[str, Any], *views: View) -> None:
        del views
        sys.stdout.write(to_json(document) + "\n")
        sys.stdout.flush()


class HumanOutput:
    """Tables and fields, with colour where stdout is a terminal."""

    def show(self, document: Mapping[str, Any], *views: View) -> None:
        for place, view in enumerate(views):
            if place:
                sys.stdout.write("\n")
            match view:
                case Sentence(text):
                    if found := text(document):
                        sys.stdout.write(plain(found) + "\n")
                case Fields(fields):
                    _draw_fields(document, fields)
                case Table(columns, empty, rows):
                    _draw_table(pick(document, rows) or [], columns, empty)
        sys.stdout.flush()


def to_json(document: Any) -> str:
    """A document as text for programs and for pasting; non-ASCII stays readable where it can be encoded."""
    text = json.dumps(document, indent=2, ensure_ascii=False)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return json.dumps(document, indent=2)
    return text


def pick(row: Mapping[str, Any], what: Pick) -> Any:
    """The value of a cell."""
    if callable(what):
        return what(row)
    value: Any = row
    for key in what.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def cell(value: Any) -> str:
    """A value as people read it. Times are shown in local time to the second."""
    if value is None or value == "":
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={cell(item)}" for key, item in value.items()) or NOTHING
    if isinstance(value, list | tuple):
        return ", ".join(cell(item) for item in value) or NOTHING
    text = str(value)
    return _local_time(text) if len(text) > len("2026-01-01T") and text[10:11] == "T" else plain(text)


def plain(text: str) -> str:
    """``text`` without control characters: nothing a server stores may steer a person's terminal."""
    return "".join(letter if letter.isprintable() or letter == "\n" else "\ufffd" for letter in text)


def size(count: int) -> str:
    """A number of bytes for people."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:  # noqa: PLR2004 - the step of the units
            return f"{count} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def _local_time(text: str) -> str:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return plain(text)
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _draw_fields(document: Mapping[str, Any], fields: Sequence[tuple[str, Pick]]) -> None:
    lines = [(label, pick(document, what)) for label, what in fields]
    shown = [(label, cell(value)) for label, value in lines if value is not None and value != ""]
    width = max((len(label) for label, _ in shown), default=0)
    for label, value in shown:
        first, *rest = value.splitlines() or [""]
        sys.stdout.write(f"{label:<{width}}  {first}\n")
        for line in rest:
            sys.stdout.write(f"{'':<{width}}  {line}\n")


def _draw_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[tuple[str, Pick]], empty: str) -> None:
    if not rows:
        sys.stdout.write(empty + "\n")
        return
    from rich.console import Console  # noqa: PLC0415 - 40 ms that only a table costs
    from rich.table import Table as RichTable  # noqa: PLC0415 - as above
    from rich.text import Text  # noqa: PLC0415 - as above

    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else _WIDE, highlight=False)
    table = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for place, (label, _) in enumerate(columns):
        # The first column names the row; a name in pieces cannot be copied.
        table.add_column(label, overflow="fold", no_wrap=place == 0)
    for row in rows:
        cells = [cell(pick(row, what)).replace("\n", " ") for _, what in columns]
        table.add_row(*(Text(text, style=_STYLES.get(text, "")) for text in cells))
    if console.is_terminal:
        console.print(table)
        return
    with console.capture() as drawn:
        console.print(table)
    sys.stdout.writelines(f"{line.rstrip()}\n" for line in drawn.get().splitlines())


_STYLES = {
    "completed": "green",
    "succeeded": "green",
    "ok": "green",
    "failed": "red",
    "missing": "red",
    "cancelled": "yellow",
    "stopping": "yellow",
    "warning": "yellow",
    "running": "cyan",
}
