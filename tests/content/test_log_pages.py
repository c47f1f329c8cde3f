"""One log out of many: nothing lost or repeated between pages, what is missing is said (b5, P8)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from support.frames import end, frame, gap, write_log
from trainshed.content.log_pages import (
    Cursor,
    CursorExpired,
    Item,
    Output,
    OutputRecord,
    Page,
    SystemRecord,
    forward,
    tail,
)
from trainshed.jobkit.frames import STDERR, STDOUT

SECOND = 1_000_000_000


def output(folder: Path, key: str, parts: Sequence[bytes], **values) -> Output:
    place = folder / key
    place.mkdir()
    facts = {"started": True, "ended": True, **values}
    return Output(key, f"trial_{key}", f"t{key}", write_log(place, parts, index_every=64), **facts)


def event(number: int, at_ns: int) -> SystemRecord:
    return SystemRecord(number, at_ns, f"event {number}", "info", "CODE", None, None, None)


def reader_of(events: Sequence[SystemRecord]):
    return lambda after, limit: [each for each in events if each.id > after][:limit]


def walk(outputs, read_system, *, limit: int, max_bytes: int = 1 << 20) -> tuple[list[Item], Page]:
    """All items by walking the pages, and the last page."""
    items: list[Item] = []
    cursor = Cursor()
    while True:
        page = forward(outputs, read_system, cursor, limit=limit, max_bytes=max_bytes)
        assert len(page.items) <= limit
        items += page.items
        cursor = page.cursor
        if not page.has_more:
            return items, page


def label(item: Item) -> object:
    if isinstance(item, SystemRecord):
        return item.id
    return (item.output.key, item.record.position)


times = st.integers(0, 30)
logs = st.lists(st.lists(st.tuples(times, st.binary(min_size=1, max_size=40)), max_size=8), max_size=4)


@given(logs, st.lists(times, max_size=8), st.integers(1, 7), st.integers(1, 200))
def test_pages_of_any_size_give_every_record_once_with_each_sources_order_kept(
    tmp_path_factory, written, events, limit, max_bytes
):
    folder = tmp_path_factory.mktemp("logs")
    outputs = [
        output(folder, str(key), [frame(STDOUT, data, at_ns=at) for at, data in entries] + [end()])
        for key, entries in enumerate(written)
    ]
    system = reader_of([event(number, at) for number, at in enumerate(events, start=1)])
    items, page = walk(outputs, system, limit=limit, max_bytes=max_bytes)
    assert [item.id for item in items if isinstance(item, SystemRecord)] == list(range(1, len(events) + 1))
    for key, entries in enumerate(written):
        mine = [item for item in items if isinstance(item, OutputRecord) and item.output.key == str(key)]
        assert b"".join(item.record.raw() for item in mine) == b"".join(data for _, data in entries)
    assert page.delivered
    assert page.status == "complete"
    assert len({label(item) for item in items}) == len(items)


@given(logs, st.lists(times, max_size=8), st.integers(1, 40))
def test_the_tail_continues_with_exactly_what_comes_later(tmp_path_factory, written, events, count):
    folder = tmp_path_factory.mktemp("logs")
    parts = {
        str(key): [frame(STDERR, data, at_ns=at) for at, data in sorted(entries)]
        for key, entries in enumerate(written)
    }
    outputs = [output(folder, key, found, ended=False) for key, found in parts.items()]
    records = [event(number, at) for number, at in enumerate(sorted(events), start=1)]
    everything, _ = walk(outputs, reader_of(records), limit=1000)
    page = tail(outputs, records[-count:], count=count)
    assert len(page.items) == min(count, len(everything))
    assert sorted(item.at_ns for item in page.items) == sorted(
        item.at_ns for item in sorted(everything, key=lambda item: item.at_ns)[-count:]
    )
    assert not forward(outputs, reader_of(records), page.cursor, limit=10).items
    records.append(event(99, 31 * SECOND))
    for each in outputs:
        with each.files.frames.open("ab") as file:
            file.write(frame(STDOUT, b"later\n", at_ns=32))
    later = forward(outputs, reader_of(records), page.cursor, limit=100).items
    assert len(later) == len(outputs) + 1


def test_records_of_several_sources_are_merged_by_time(tmp_path: Path):
    a = output(tmp_path, "0", [frame(STDOUT, b"a1\na2\n", at_ns=10), frame(STDOUT, b"a3\n", at_ns=30), end()])
    b = output(tmp_path, "1", [frame(STDOUT, b"b1\n", at_ns=20), end()])
    items, _ = walk([a, b], reader_of([event(1, 5), event(2, 25)]), limit=100)
    assert [label(item) for item in items] == [
        1,
        ("0", (0, 0)),
        ("0", (0, 3)),
        ("1", (0, 0)),
        2,
        ("0", (22, 0)),
    ]


def test_a_page_holds_one_record_that_is_larger_than_the_page(tmp_path: Path):
    a = output(tmp_path, "0", [frame(STDOUT, b"x" * 60_000), frame(STDOUT, b"y\n"), end()])
    page = forward([a], None, Cursor(), limit=10, max_bytes=1000)
    assert len(page.items) == 1
    assert page.has_more


def test_runtime_pages_leave_system_records_for_later(tmp_path: Path):
    a = output(tmp_path, "0", [frame(STDOUT, b"a\n"), end()])
    page = forward([a], None, Cursor(system=3), limit=10)
    assert page.cursor.system == 3
    assert [type(item) for item in page.items] == [OutputRecord]


def test_P8_dropped_bytes_are_counted_and_shown_where_they_are_missing(tmp_path: Path):
    a = output(tmp_path, "0", [frame(STDOUT, b"a\n"), gap(500), end()])
    items, page = walk([a], reader_of([]), limit=1)
    assert isinstance(items[1], OutputRecord)
    assert items[1].is_gap
    assert (page.dropped_bytes, page.status) == (500, "partial")
    assert "500 bytes" in (page.missing_reason or "")
    runtime, page = walk([a], None, limit=1)
    assert len(runtime) == 1
    assert page.dropped_bytes == 500


def test_P8_the_end_of_an_output_that_was_lost_is_said_and_not_taken_for_the_end(tmp_path: Path):
    a = output(tmp_path, "0", [frame(STDOUT, b"a\n"), frame(STDOUT, b"torn\n")[:-2]])
    items, page = walk([a], None, limit=10)
    assert len(items) == 1
    assert page.status == "partial"
    assert "lost" in (page.missing_reason or "")


def test_P8_a_file_of_another_size_than_was_written_is_said_to_be_changed(tmp_path: Path):
    parts = [frame(STDOUT, b"one\n", at_ns=1), end()]
    whole = output(tmp_path, "0", parts, file_bytes=sum(map(len, parts)))
    assert walk([whole], reader_of([]), limit=10)[1].status == "complete"
    whole.files.frames.write_bytes(parts[1])
    _, page = walk([whole], reader_of([]), limit=10)
    assert (page.status, page.missing_reason) == (
        "partial",
        "t0: its output was changed after it was written",
    )


def test_a_running_output_is_collecting_and_not_delivered(tmp_path: Path):
    a = output(tmp_path, "0", [frame(STDOUT, b"a\n")], ended=False)
    page = forward([a], None, Cursor(), limit=10)
    assert (page.status, page.delivered, page.has_more) == ("collecting", False, False)


def test_a_started_trial_without_a_file_is_unavailable_and_one_that_never_started_is_complete(tmp_path: Path):
    lost = output(tmp_path, "0", [])
    lost.files.frames.unlink()
    page = forward([lost], None, Cursor(), limit=10)
    assert (page.status, page.delivered) == ("unavailable", True)
    never = output(tmp_path, "1", [], started=False)
    never.files.frames.unlink()
    assert forward([never], None, Cursor(), limit=10).status == "complete"


def test_a_log_that_retention_removed_is_said_and_a_cursor_into_it_is_expired(tmp_path: Path):
    a = output(tmp_path, "0", [frame(STDOUT, b"a\nb\n"), end()])
    cursor = forward([a], None, Cursor(), limit=1).cursor
    a.files.frames.unlink()
    gone = Output(**{**{f: getattr(a, f) for f in a.__dataclass_fields__}, "deleted": True})
    with pytest.raises(CursorExpired):
        forward([gone], None, cursor, limit=10)
    page = forward([gone], None, Cursor(), limit=10)
    assert (page.items, page.status, page.delivered) == ([], "unavailable", True)
    assert "retention" in (page.missing_reason or "")
