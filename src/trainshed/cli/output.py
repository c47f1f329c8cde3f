"""How a command shows what it found: one interface, for people and for programs.

A command hands over the JSON document and a view of it. The view draws from the same document, so nothing
can be on the screen that ``--json`` lacks. Results go to stdout, everything else to stderr.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Pick = str | Callable[[Mapping[str, Any]], Any]
"""What a cell shows: a key (``a.b`` goes deeper) or a function of the row."""
_MINUTE = 60
NOTHING = "-"
"""Stands for a value that is not there."""
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)")


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table, and how it gives way on a narrow terminal (`trainshed.cli.tables.Shape`)."""

    label: str
    value: Pick
    rank: int = 0
    shortest: int = 0
    moments: bool = False
    """Times whose order counts: the header says their zone, and cells tell apart what one second holds."""
    whole: Pick | None = None
    """What cells show in a pipe, where ``value`` is an abridgement for terminals."""


@dataclass(frozen=True, slots=True)
class Table:
    """Draws a list: the rows under ``items`` of the document, or the list that ``rows`` picks."""

    columns: Sequence[Column]
    empty: str
    """The sentence shown instead of a table without rows."""
    rows: Pick = "items"
    below: Pick | None = None
    """A text that stands on a line of its own below its row."""
    heading: str = ""
    """Stands above it where a document has several tables."""


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
                case Table():
                    _draw_table(pick(document, view.rows) or [], view)
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
    text = plain(str(value))
    return local_time(text) if _TIME.fullmatch(text) else text


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


def count(number: int, noun: str) -> str:
    """``1 Trial``, ``2 Trials``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def sent_again(uploaded: int) -> str:
    """What publishing did of what was published before: whether the stored bytes are right it cannot say."""
    return (
        f"{count(uploaded, 'file')} that the server lacked sent again"
        if uploaded
        else "nothing had to be sent"
    )


def duration(seconds: float) -> str:
    """A span of time for people."""
    if seconds < _MINUTE:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), _MINUTE)
    if minutes < _MINUTE:
        return f"{minutes} min {rest} s"
    return f"{minutes // _MINUTE} h {minutes % _MINUTE} min"


def sentence(text: str) -> str:
    """A sentence of the server with its times in local time, as everywhere else."""
    return _TIME.sub(lambda match: local_time(match[0]), text)


def local_time(text: str) -> str:
    """An ISO time as people here read it, to the second; anything else as it is."""
    from datetime import datetime  # noqa: PLC0415 - as above

    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return text
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def short_time(text: str) -> str:
    """An ISO time for a narrow column: to the minute, and to the day where it is of another year."""
    from datetime import datetime  # noqa: PLC0415 - as above

    whole = local_time(text)
    return whole[5:16] if whole.startswith(f"{datetime.now().astimezone().year}-") else whole[:10]


def _draw_fields(document: Mapping[str, Any], fields: Sequence[tuple[str, Pick]]) -> None:
    lines = [(label, pick(document, what)) for label, what in fields]
    shown = [(label, cell(value)) for label, value in lines if value is not None and value != ""]
    width = max((len(label) for label, _ in shown), default=0)
    for label, value in shown:
        first, *rest = value.splitlines() or [""]
        sys.stdout.write(f"{label:<{width}}  {first}\n")
        for line in rest:
            sys.stdout.write(f"{'':<{width}}  {line}\n")


def _draw_table(rows: Sequence[Mapping[str, Any]], table: Table) -> None:
    import shutil  # noqa: PLC0415 - most commands draw none

    from trainshed.cli.tables import Shape, lay_out  # noqa: PLC0415 - as above

    if table.heading:
        sys.stdout.write(table.heading + "\n")
    if not rows:
        sys.stdout.write(table.empty + "\n")
        return
    terminal = sys.stdout.isatty()
    picks = [each.value if terminal or each.whole is None else each.whole for each in table.columns]
    columns = [
        _column([pick(row, what) for row in rows], each)
        for what, each in zip(picks, table.columns, strict=True)
    ]
    cells = [list(row) for row in zip(*(shown for _, shown in columns), strict=True)]
    found = ["" if table.below is None else pick(row, table.below) for row in rows]
    notes = ["" if note in {None, ""} else cell(note).replace("\n", " ") for note in found]
    width = shutil.get_terminal_size().columns if terminal else None
    shapes = [
        Shape(label, each.rank, each.shortest)
        for (label, _), each in zip(columns, table.columns, strict=True)
    ]
    colours = terminal and not os.environ.get("NO_COLOR")
    for number, line in enumerate(lay_out(shapes, cells, notes, width)):
        text = line.below or "".join(
            (_coloured(text, _BOLD if number == 0 else _STYLES.get(text)) if colours else text) + padding
            for text, padding in line.cells
        )
        sys.stdout.write(text.rstrip() + "\n")


def _column(values: Sequence[Any], column: Column) -> tuple[str, list[str]]:
    """The label of a column and its cells."""
    if not column.moments:
        return column.label, [cell(value).replace("\n", " ") for value in values]
    from collections import Counter  # noqa: PLC0415 - most tables have no such column
    from datetime import datetime  # noqa: PLC0415 - as above

    at = {
        value: datetime.fromisoformat(value).astimezone()
        for value in values
        if isinstance(value, str) and _TIME.fullmatch(value)
    }
    seconds = Counter(at[value].replace(microsecond=0) for value in values if value in at)
    unit = "milliseconds" if max(seconds.values(), default=0) > 1 else "seconds"
    zones = {moment.isoformat()[-6:] for moment in at.values()}
    shown = [
        at[value].replace(tzinfo=None).isoformat(sep=" ", timespec=unit) if value in at else cell(value)
        for value in values
    ]
    if len(zones) > 1:  # the clock was changed between the first and the last of them
        shown = [
            f"{text}{at[value].isoformat()[-6:]}" if value in at else text
            for text, value in zip(shown, values, strict=True)
        ]
    zone = f" (UTC{zones.pop()})".replace("+00:00", "") if len(zones) == 1 else ""
    return f"{column.label}{zone}", shown


def _coloured(text: str, style: str | None) -> str:
    return f"\x1b[{style}m{text}\x1b[0m" if style else text


_BOLD, _RED, _GREEN, _YELLOW, _CYAN = "1", "31", "32", "33", "36"
_STYLES = {
    "completed": _GREEN,
    "succeeded": _GREEN,
    "done": _GREEN,
    "awaiting_approval": _YELLOW,
    "migrating": _YELLOW,
    "denied": _YELLOW,
    "ok": _GREEN,
    "failed": _RED,
    "missing": _RED,
    "cancelled": _YELLOW,
    "stopping": _YELLOW,
    "warning": _YELLOW,
    "running": _CYAN,
    "Running": _CYAN,
    "Succeeded": _GREEN,
    "Failed": _RED,
    "Lost": _RED,
    "Stopped": _YELLOW,
    "Stopping": _YELLOW,
    "SavingCheckpoint": _YELLOW,
    "Replacing": _YELLOW,
    "error": _RED,
}
