"""One log out of many: the platform's records of a Job and the output of its Trials, merged by time.

Inside each source the order is kept as it was written; between sources the times decide. A `Cursor` holds the
place in every source, so nothing is lost or repeated between two pages, whatever arrives meanwhile.
"""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from trainshed.content.logs import START, LogReader, Position, Record
from trainshed.jobkit import frames
from trainshed.model.logs import LogFiles

MAX_PAGE_BYTES = 2 << 20
"""Program bytes on one page; a page holds at least one record."""


@dataclass(frozen=True, slots=True)
class SystemRecord:
    """What the platform did, in a sentence."""

    id: int
    at_ns: int
    content: str
    level: str
    code: str
    phase: str | None
    trial_id: str | None
    trial_name: str | None

    @property
    def size(self) -> int:
        """What it counts on a page, in bytes."""
        return len(self.content)

    @property
    def is_gap(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class Output:
    """The log of one Attempt of a Trial."""

    key: str
    """Names it in record ids and cursors; unique in the Job."""
    trial_id: str
    trial_name: str
    files: LogFiles
    started: bool
    """User code was started, so there must be a file."""
    ended: bool
    """Nothing will be appended any more."""
    deleted: bool = False
    """Retention has removed it."""
    file_bytes: int | None = None
    """Size of the whole file by the exit record, where there is one: what differs was tampered with."""
    dropped_bytes: int = 0
    """How many bytes were not kept in all, where that is known already."""
    replica: int | None = None
    """Of a member of a gang: its rank."""
    role: str | None = None
    attempt: int | None = None
    """The number of that member's Attempt."""
    held: bool = False
    """That its program was started is not among the system records yet: a page with those leaves it out."""
    lost: bool = False
    """Whoever read its output vanished: what was written last may be missing, nobody knows how much."""


@dataclass(frozen=True, slots=True)
class Place:
    """A place in one output, and how many bytes are missing before it."""

    position: Position = START
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class Cursor:
    """The place in every source: the newest system record delivered, and each output's next record."""

    system: int = 0
    outputs: Mapping[str, Place] = field(default_factory=lambda: MappingProxyType({}))

    def after(self, item: Item) -> Cursor:
        """This cursor moved past ``item``."""
        if isinstance(item, SystemRecord):
            return Cursor(item.id, self.outputs)
        return Cursor(self.system, {**self.outputs, item.output.key: item.place})


class OutputRecord(NamedTuple):
    """A record of a Trial's output."""

    output: Output
    record: Record
    dropped: int
    """Bytes missing before its end."""

    @property
    def place(self) -> Place:
        """Just behind it."""
        return Place(self.record.next, self.dropped)

    @property
    def at_ns(self) -> int:
        return self.record.time_ns

    @property
    def size(self) -> int:
        """What it counts on a page, in bytes."""
        return len(self.record.data)

    @property
    def is_gap(self) -> bool:
        """It says that bytes are missing here; it is the platform's record, not the program's."""
        return self.record.stream == frames.GAP


Item = SystemRecord | OutputRecord
ReadSystem = Callable[[int, int], Sequence[SystemRecord]]
"""``(after, limit)`` -> system records past the id ``after``, in order."""


@dataclass(frozen=True, slots=True)
class SourceState:
    """What can be said of one output: how far its collection is and what is missing."""

    output: Output
    status: str
    """``collecting``, ``complete``, ``partial`` or ``unavailable``."""
    dropped_bytes: int = 0
    missing_reason: str | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """Some records, the place behind them and what is known of the sources."""

    items: Sequence[Item]
    cursor: Cursor
    has_more: bool
    """More records can be read now."""
    delivered: bool
    """All outputs have ended and every record of them is on this page or before it."""
    sources: Sequence[SourceState]

    @property
    def status(self) -> str:
        """One word for all outputs."""
        words = {source.status for source in self.sources if source.output.started}
        if "collecting" in {source.status for source in self.sources}:
            return "collecting"
        if words == {"unavailable"}:
            return "unavailable"
        return "complete" if words <= {"complete"} else "partial"

    @property
    def dropped_bytes(self) -> int:
        return sum(source.dropped_bytes for source in self.sources)

    @property
    def missing_reason(self) -> str | None:
        reasons = [
            f"{source.output.trial_name}: {source.missing_reason}"
            for source in self.sources
            if source.missing_reason
        ]
        return "; ".join(reasons) or None


class CursorExpired(Exception):
    """The cursor points into a log that retention has removed."""


_SYSTEM = -1
"""The number of the stream of system records among those of a merge: the last."""
_Readers = Sequence[tuple[Output, LogReader]]


class _Merge:
    """The records of all sources in order of time; what `take` has given out is behind ``cursor``."""

    def __init__(self, readers: _Readers, system: Iterator[SystemRecord], cursor: Cursor) -> None:
        self._begun = cursor
        self._readers = readers
        self._streams: list[Iterator[Item]] = [
            _output_items(output, reader, cursor.outputs.get(output.key, Place()))
            for output, reader in readers
        ]
        self._streams.append(system)
        self._taken: list[Item | None] = [None] * len(self._streams)
        self._heads: list[tuple[int, int, Item]] = []
        # Of one instant the platform's record comes first: that is where what a program does begins.
        for number in (_SYSTEM, *range(len(readers))):
            item = next(self._streams[number], None)
            if item is not None:
                heapq.heappush(self._heads, (item.at_ns, number, item))

    def peek(self) -> Item | None:
        """The next record, ``None`` at the end."""
        return self._heads[0][2] if self._heads else None

    def take(self) -> None:
        """Go behind the next record."""
        _, number, item = self._heads[0]
        self._taken[number] = item
        following = next(self._streams[number], None)
        if following is None:
            heapq.heappop(self._heads)
        else:
            heapq.heapreplace(self._heads, (following.at_ns, number, following))

    @property
    def cursor(self) -> Cursor:
        """The place in every source. Where nothing is left, it is where reading stopped: before the end."""
        places = dict(self._begun.outputs)
        waiting = {number for _, number, _ in self._heads}
        for number, (output, reader) in enumerate(self._readers):
            last = self._taken[number]
            if isinstance(last, OutputRecord):
                places[output.key] = last.place
            if number not in waiting:
                dropped = places.get(output.key, Place()).dropped
                places[output.key] = Place(reader.reached, dropped)
        system = self._taken[_SYSTEM]
        return Cursor(system.id if isinstance(system, SystemRecord) else self._begun.system, places)


def forward(
    outputs: Sequence[Output],
    read_system: ReadSystem | None,
    cursor: Cursor,
    *,
    limit: int,
    max_bytes: int = MAX_PAGE_BYTES,
) -> Page:
    """Up to ``limit`` records from ``cursor`` on; without ``read_system`` no system records.

    Raises `CursorExpired`.
    """
    for output in outputs:
        if output.deleted and cursor.outputs.get(output.key, Place()).position != START:
            raise CursorExpired(output.trial_name)
    items: list[Item] = []
    size = 0
    with _opened(outputs) as readers:
        system = read_system(cursor.system, limit + 1) if read_system else ()
        told = [each for each in readers if not (read_system and each[0].held)]
        merge = _Merge(told, iter(system), cursor)
        while (item := merge.peek()) is not None:
            if len(items) >= limit or (items and size + item.size > max_bytes):
                break
            merge.take()
            if read_system or not item.is_gap:
                items.append(item)
                size += item.size
        return _page(readers, outputs, items, merge.cursor, has_more=item is not None)


def tail(
    outputs: Sequence[Output],
    system: Sequence[SystemRecord] | None,
    *,
    count: int,
    max_bytes: int = MAX_PAGE_BYTES,
) -> Page:
    """The last ``count`` records; the cursor is behind all of them.

    ``system`` holds the newest system records, in order; ``None`` where they are not asked for.
    """
    places: dict[str, Place] = {}
    with _opened(outputs) as readers:
        streams: list[Sequence[Item]] = [system or ()]
        for output, reader in readers:
            if system is not None and output.held:
                continue
            records = reader.tail(count, max_bytes)
            gaps = sum(record.dropped for record in records)
            dropped = max(gaps, output.dropped_bytes)
            places[output.key] = Place(reader.reached, dropped)
            streams.append(
                [
                    OutputRecord(output, record, dropped)
                    for record in records
                    if system is not None or record.stream != frames.GAP
                ]
            )
        merged = list(heapq.merge(*streams, key=lambda item: item.at_ns))
        kept: list[Item] = []
        size = 0
        for item in reversed(merged[-count:]):
            size += item.size
            if kept and size > max_bytes:
                break
            kept.append(item)
        cursor = Cursor(system[-1].id if system else 0, places)
        return _page(readers, outputs, kept[::-1], cursor, has_more=False)


@contextlib.contextmanager
def _opened(outputs: Sequence[Output]) -> Iterator[_Readers]:
    with contextlib.ExitStack() as stack:
        yield [
            (output, stack.enter_context(LogReader(output.files))) for output in outputs if not output.deleted
        ]


def _output_items(output: Output, reader: LogReader, place: Place) -> Iterator[OutputRecord]:
    dropped = place.dropped
    for record in reader.records(place.position):
        dropped += record.dropped
        yield OutputRecord(output, record, dropped)


def _page(
    readers: _Readers, outputs: Sequence[Output], items: Sequence[Item], cursor: Cursor, *, has_more: bool
) -> Page:
    states = {
        output.key: _state(output, reader, cursor.outputs.get(output.key, Place()), has_more=has_more)
        for output, reader in readers
    }
    for output in outputs:
        if output.deleted:
            states[output.key] = SourceState(
                output, "unavailable", output.dropped_bytes, "the output was deleted by log retention"
            )
    return Page(
        items=items,
        cursor=cursor,
        has_more=has_more,
        delivered=not has_more and all(output.ended for output in outputs),
        sources=[states[output.key] for output in outputs],
    )


def _state(output: Output, reader: LogReader, place: Place, *, has_more: bool) -> SourceState:
    """What is missing of an output, as far as this page's reader can tell."""
    dropped = max(place.dropped, output.dropped_bytes)
    if not output.ended:
        return SourceState(output, "collecting", dropped)
    if not reader.exists:
        if output.started:
            return SourceState(output, "unavailable", dropped, "the file with its output is gone")
        return SourceState(output, "complete", dropped)
    ended = reader.has_end() if has_more else reader.ended
    missing = None
    if output.file_bytes is not None and _size(output.files.frames) != output.file_bytes:
        missing = "its output was changed after it was written"
    elif output.lost or not ended:
        missing = "the end of its output was lost; what is shown is the beginning"
    elif dropped:
        missing = f"{dropped} bytes of its output were not kept"
    return SourceState(output, "partial" if missing else "complete", dropped, missing)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1
