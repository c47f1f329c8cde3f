"""The log of a script Job as contract G shows it: Attempt after Attempt, without the helper's lines (a.3)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from trainshed.content.logs import START, LogReader, Position
from trainshed.engines.providers.framelog import MARK
from trainshed.jobkit import frames
from trainshed.model.errors import Refusal
from trainshed.model.logs import LogFiles
from trainshed.model.scripts.states import LIVE_ATTEMPTS
from trainshed.model.states import TERMINAL
from trainshed.server.script_views import Triple
from trainshed.server.shapes import scripts as shapes
from trainshed.store import script_attempts
from trainshed.store.database import Connection
from trainshed.store.script_records import ScriptAttempt

MAX_LINES = 1000
MAX_LINE_CHARS = 2000
MAX_CHARS = 60_000
_TAIL_BYTES = 8 << 20
_INSIDE_BITS = frames.MAX_PAYLOAD.bit_length()
"""Enough for every place in one frame."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which lines are asked for."""

    attempt: int | None = None
    offset: int | None = None
    tail: int | None = None
    limit: int = MAX_LINES
    places: bool = False
    """Whether each line is told with the place behind it."""


@dataclass(frozen=True, slots=True)
class Output:
    """Where the lines of one Attempt lie."""

    row: ScriptAttempt
    files: LogFiles
    ended: bool


def outputs_of(connection: Connection, row: Triple, files: Callable[[str], LogFiles]) -> list[Output]:
    """The Attempts of a Job with their logs, oldest first."""
    _, trial, _ = row
    tries = script_attempts.attempts_of(connection, [trial.id])[trial.id]
    return [
        Output(each, files(each.attempt_id), trial.state in TERMINAL or each.state not in LIVE_ATTEMPTS)
        for each in tries
    ]


def read(row: Triple, tries: Sequence[Output], wanted: Wanted) -> shapes.ScriptLog:
    """The lines; raises `Refusal` ``INVALID_REQUEST`` for an Attempt that is none."""
    _, trial, _ = row
    over = trial.state in TERMINAL
    if not tries:
        said = "It never started." if over else "Nothing has started yet."
        return _log(None, [], None, 0, tries, finished=over, note=said)
    numbers = [each.row.number for each in tries]
    if wanted.attempt is not None and wanted.attempt not in numbers:
        said = f"there is no Attempt {wanted.attempt}; the newest is {numbers[-1]}"
        raise Refusal.of("INVALID_REQUEST", said, path="attempt")
    if wanted.tail is not None:
        return _tail(tries, wanted, over=over)
    start = (
        numbers[-1] if wanted.attempt is None and wanted.offset is not None else wanted.attempt or numbers[0]
    )
    return _forward(tries, start, wanted, over=over)


def _forward(tries: Sequence[Output], number: int, wanted: Wanted, *, over: bool) -> shapes.ScriptLog:
    """Lines from a place on; a line of ours marks each Attempt after the first.

    ``over``: the Job has ended. Until then another Attempt may follow the newest one.
    """
    lines: list[str] = []
    places: list[str] | None = [] if wanted.places else None
    place = wanted.offset or 0
    # What was asked by number is read alone; reading on from a place goes on with the next Attempt.
    alone = wanted.attempt is not None and wanted.offset is None
    size = 0
    while True:
        output = next(each for each in tries if each.row.number == number)
        # Said with the first line: whoever reads on from the begin of an Attempt was not told yet.
        begins = place == 0 and number > tries[0].row.number
        with LogReader(output.files) as reader:
            for line in _lines(reader, _position(place), ended=output.ended):
                if line.text is not None:
                    if len(lines) >= wanted.limit or (lines and size + len(line.text) > MAX_CHARS):
                        return _log(output, lines, place, 0, tries, finished=False, places=places)
                    if begins:
                        lines.append(f"--- attempt {output.row.number} on {output.row.provider} ---")
                        _add(places, number, 0)
                    begins = False
                    lines.append(line.text)
                    _add(places, number, _offset(line.next))
                    size += len(line.text)
                if not begins:
                    place = _offset(line.next)
            done = reader.ended or output.ended
        following = next((each.row.number for each in tries if each.row.number > number), None)
        if not done or alone or following is None:
            finished = done and following is None and over
            return _log(output, lines, place, 0, tries, finished=finished, places=places)
        number, place = following, 0


def _add(places: list[str] | None, number: int, offset: int) -> None:
    if places is not None:
        places.append(f"{number}:{offset}")


def _tail(tries: Sequence[Output], wanted: Wanted, *, over: bool) -> shapes.ScriptLog:
    """The last lines of an Attempt, by default of the newest one."""
    number = wanted.attempt or tries[-1].row.number
    output = next(each for each in tries if each.row.number == number)
    count = wanted.tail or 1
    records = 2 * count
    with LogReader(output.files) as reader:
        while True:
            # Lines of the helper are among them, so that more have to be read than are shown.
            found = reader.tail(records, _TAIL_BYTES)
            start = found[0].position if found else START
            lines = list(_lines(reader, start, ended=output.ended))
            shown = [line for line in lines if line.text is not None]
            visible = [line.text or "" for line in shown]
            if start == START or len(visible) >= count or len(found) < records:
                break
            records *= 4
        done = reader.ended or output.ended
    place = _offset(lines[-1].next) if lines else _offset(start)
    kept: deque[str] = deque()
    size = 0
    for text in reversed(visible[-count:]):
        size += len(text)
        if kept and size > MAX_CHARS:
            break
        kept.appendleft(text)
    older = len(visible) - len(kept)
    if start != START:
        older = max(older, output.row.lines - len(kept), 1)
    last = number == tries[-1].row.number
    places = [f"{number}:{_offset(line.next)}" for line in shown[len(shown) - len(kept) :]]
    return _log(
        output,
        list(kept),
        place,
        older,
        tries,
        finished=done and last and over,
        places=places if wanted.places else None,
    )


@dataclass(frozen=True, slots=True)
class _Line:
    text: str | None
    """``None``: a line of the helper, which is not shown."""
    next: Position


def _lines(reader: LogReader, start: Position, *, ended: bool) -> Iterator[_Line]:
    """Whole lines from a place on. The last one without its end is one where nobody writes any more."""
    held: list[bytes] = []
    stream, after = frames.STDOUT, start
    for record in reader.records(start):
        if held and record.stream != stream:
            yield _Line(_text(held, stream), after)
            held = []
        after = record.next
        if record.stream == frames.GAP:
            yield _Line(f"--- {record.dropped} bytes are missing here ---", after)
            continue
        held.append(record.data)
        stream = record.stream
        if not record.partial:
            yield _Line(_text(held, stream), after)
            held = []
    if held and (ended or reader.ended):
        yield _Line(_text(held, stream), after)


def _text(held: Sequence[bytes], stream: int) -> str | None:
    text = b"".join(held).decode("utf-8", "replace").removesuffix("\r")
    if stream == frames.STDOUT and text.startswith(MARK):
        return None
    return text if len(text) <= MAX_LINE_CHARS else text[: MAX_LINE_CHARS - 1] + "…"


def _position(place: int) -> Position:
    return Position(place >> _INSIDE_BITS, place & ((1 << _INSIDE_BITS) - 1))


def _offset(position: Position) -> int:
    """A place as one number: where its frame begins, and where it lies in it."""
    return (position.frame << _INSIDE_BITS) | position.inside


def _log(
    output: Output | None,
    lines: list[str],
    offset: int | None,
    older: int,
    tries: Sequence[Output],
    *,
    finished: bool,
    note: str | None = None,
    places: list[str] | None = None,
) -> shapes.ScriptLog:
    number = output.row.number if output else None
    return shapes.ScriptLog(
        attempt=number,
        provider=output.row.provider if output else None,
        latest_attempt=tries[-1].row.number if tries else None,
        lines=lines,
        next_since=None if number is None else f"{number}:{offset or 0}",
        older_lines_not_shown=older,
        finished=finished,
        note=note,
        places=places,
    )
