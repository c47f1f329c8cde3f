"""How the metrics of a script Job went, read from its log: the row of a Job has their newest values alone.

What the helper said counts; what was guessed from the output only where it said nothing (contract G, f).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from trainshed.content.logs import LogReader, Record
from trainshed.jobkit import frames
from trainshed.model.scripts.wire import Metric, Progress, follow, hidden, parse
from trainshed.server.script_logs import Output
from trainshed.server.shapes import scripts as shapes

MAX_POINTS = 200
"""Of each series; where there are more, every so many are shown, and the newest."""
_RECORDS, _BYTES = 20_000, 8 << 20
"""So much of a log is read at most, from its end."""
Point = tuple[float | None, float]


def read(tries: Sequence[Output]) -> shapes.ScriptMetrics:
    """The series of all Attempts, one after the other, as far as the ends of their logs tell."""
    said: dict[str, list[Point]] = {}
    guessed: dict[str, list[Point]] = {}
    left = _RECORDS
    found: list[list[Record]] = []
    for output in reversed(tries):
        if left <= 0:
            break
        with LogReader(output.files) as reader:
            records = reader.tail(left, _BYTES)
        left -= len(records)
        found.append(records)
    for records in reversed(found):
        _read(records, said, guessed)
    source: Any = "helper" if said else "guess" if guessed else None
    return shapes.ScriptMetrics(
        source=source, series=[_series(name, points) for name, points in (said or guessed).items()]
    )


def _read(records: Iterable[Record], said: dict[str, list[Point]], guessed: dict[str, list[Point]]) -> None:
    step: int | None = None
    for line, of_stdout in _lines(records):
        if not hidden(line):
            for name, value in follow(Progress(), line).metrics.items():
                guessed.setdefault(name, []).append((None, float(value)))
        elif of_stdout and isinstance(message := parse(line), Metric):
            step = step if message.step is None else message.step
            for name, value in message.values.items():
                said.setdefault(name, []).append((step, float(value)))


def _lines(records: Iterable[Record]) -> Iterator[tuple[str, bool]]:
    """Whole lines, and whether each is of standard output: the helper speaks there alone."""
    held: list[bytes] = []
    stream = frames.STDOUT
    for record in records:
        if record.stream == frames.GAP or (held and record.stream != stream):
            held = []
        if record.stream == frames.GAP:
            continue
        held.append(record.data)
        stream = record.stream
        if not record.partial:
            yield b"".join(held).decode("utf-8", "replace"), stream == frames.STDOUT
            held = []


def _series(name: str, points: Sequence[Point]) -> shapes.ScriptSeries:
    every = -(-len(points) // MAX_POINTS)
    # Counted from the end, so that the newest point is always there.
    kept = points[::-1][::every][::-1]
    return shapes.ScriptSeries(
        name=name, steps=[step for step, _ in kept], values=[value for _, value in kept]
    )
