"""Reading log files back: every byte, in order, whatever was written and wherever reading begins (P8)."""

from __future__ import annotations

import os
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from support.frames import end, frame, gap, write_log
from trainshed.content.logs import START, LogReader, Position, Record
from trainshed.engines.contract import LogFiles
from trainshed.jobkit import frames
from trainshed.jobkit.frames import EOF, GAP, STDERR, STDOUT
from trainshed.jobkit.logwriter import LogWriter, Stream

payloads = st.binary(min_size=1, max_size=300)
outputs = st.lists(st.tuples(st.sampled_from([STDOUT, STDERR]), payloads), max_size=20)


def read_all(files: LogFiles, start: Position = START) -> list[Record]:
    with LogReader(files) as reader:
        return list(reader.records(start))


def joined(records: list[Record], stream: int) -> bytes:
    return b"".join(record.raw() for record in records if record.stream == stream)


@given(outputs)
def test_P8_the_records_of_a_stream_joined_are_exactly_what_was_written(tmp_path_factory, written):
    files = write_log(tmp_path_factory.mktemp("log"), [frame(*entry) for entry in written] + [end()])
    records = read_all(files)
    for stream in (STDOUT, STDERR):
        expected = b"".join(data for kind, data in written if kind == stream)
        assert joined(records, stream) == expected
        with LogReader(files) as reader:
            assert b"".join(reader.stream_bytes(stream, piece_bytes=64)) == expected


@given(
    st.lists(st.tuples(st.sampled_from([STDOUT, STDERR]), st.binary(min_size=1, max_size=90_000)), max_size=4)
)
def test_P8_what_the_writer_took_from_its_pipes_is_read_back_exactly(tmp_path_factory, chunks):
    folder = tmp_path_factory.mktemp("log")
    files = LogFiles(folder / "frames", folder / "index")
    writer = LogWriter(str(files.frames), str(files.index), 1 << 30)
    pipes = {kind: os.pipe() for kind in (STDOUT, STDERR)}
    streams = {kind: Stream(read, kind) for kind, (read, _) in pipes.items()}
    for kind, data in chunks:
        left = memoryview(data)
        while left:
            left = left[os.write(pipes[kind][1], left[:60_000]) :]
            writer.read(streams[kind])
    for kind, (_, write) in pipes.items():
        os.close(write)
        while writer.read(streams[kind]):
            pass
        writer.flush_now(streams[kind])
        os.close(streams[kind].fd)
    writer.close()
    records = read_all(files)
    for kind in (STDOUT, STDERR):
        assert joined(records, kind) == b"".join(data for wrote, data in chunks if wrote == kind)
    assert all(len(record.data) <= frames.MAX_PAYLOAD for record in records)


@given(outputs, st.data())
def test_reading_may_stop_after_any_record_and_go_on_behind_it(tmp_path_factory, written, data):
    files = write_log(tmp_path_factory.mktemp("log"), [frame(*entry) for entry in written] + [end()])
    records = read_all(files)
    place = data.draw(st.integers(0, len(records)))
    start = records[place - 1].next if place else START
    assert read_all(files, start) == records[place:]


@given(outputs, st.integers(1, 30), st.integers(1, 500), st.booleans())
def test_the_tail_is_the_end_of_all_records(tmp_path_factory, written, count, most_bytes, indexed):
    parts = [frame(*entry) for entry in written] + [end()]
    files = write_log(tmp_path_factory.mktemp("log"), parts, index_every=64 if indexed else None)
    records = read_all(files)
    with LogReader(files) as reader:
        tail = reader.tail(count, most_bytes)
        assert reader.ended
        assert reader.reached == Position(sum(map(len, parts)) - frames.HEADER.size, 0)
    assert tail == records[len(records) - len(tail) :]
    assert len(tail) <= count
    size = sum(len(record.data) for record in tail)
    assert size <= most_bytes or len(tail) == 1
    if len(tail) < min(count, len(records)):
        before = records[len(records) - len(tail) - 1]
        assert size + len(before.data) > most_bytes


@given(outputs, st.data())
def test_P8_a_torn_file_reads_as_its_whole_frames_and_never_as_the_end(tmp_path_factory, written, data):
    files = write_log(tmp_path_factory.mktemp("log"), [frame(*entry) for entry in written] + [end()])
    size = files.frames.stat().st_size
    whole = read_all(files)
    cut = data.draw(st.integers(0, size - 1))
    os.truncate(files.frames, cut)
    with LogReader(files) as reader:
        records = list(reader.records())
        assert not reader.ended
        assert not reader.has_end()
        assert reader.reached.frame <= cut
    assert records == whole[: len(records)]


@given(st.binary(max_size=400))
def test_any_bytes_at_all_can_be_read_and_nothing_is_made_up(tmp_path_factory, content):
    files = write_log(tmp_path_factory.mktemp("log"), [content])
    files.index.write_bytes(content)
    with LogReader(files) as reader:
        records = list(reader.records())
        reader.tail(5, 1000)
        raw = b"".join(reader.stream_bytes(STDOUT))
    assert all(record.data in content for record in records)
    assert sum(len(record.data) for record in records) <= len(content)
    assert len(raw) <= len(content)


def test_a_growing_file_goes_on_where_the_reader_stopped(tmp_path: Path):
    files = write_log(tmp_path, [frame(STDOUT, b"one\n")])
    with LogReader(files) as reader:
        assert [record.data for record in reader.records()] == [b"one"]
        with files.frames.open("ab") as file:
            file.write(frame(STDOUT, b"two\n") + end())
        assert [record.data for record in reader.records(reader.reached)] == [b"two"]
        assert reader.ended


def test_a_file_that_is_not_there_reads_as_empty_and_not_ended(tmp_path: Path):
    with LogReader(LogFiles(tmp_path / "no" / "frames", tmp_path / "no" / "index")) as reader:
        assert not reader.exists
        assert list(reader.records()) == []
        assert reader.tail(3, 100) == []
        assert not reader.ended


def test_P8_a_gap_is_a_record_that_says_how_much_is_missing(tmp_path: Path):
    files = write_log(tmp_path, [frame(STDOUT, b"kept\n"), gap(12345), end()])
    kept, missing = read_all(files)
    assert (kept.data, missing.stream, missing.dropped) == (b"kept", GAP, 12345)


def test_an_index_that_does_not_fit_the_file_costs_only_time(tmp_path: Path):
    files = write_log(tmp_path, [frame(STDOUT, b"line %d\n" % number) for number in range(50)] + [end()])
    whole = read_all(files)
    files.index.write_bytes(frames.OFFSET.pack(7) + frames.OFFSET.pack(333))
    with LogReader(files) as reader:
        assert reader.tail(10, 1 << 20) == whole[-10:]
        assert reader.ended


@pytest.mark.parametrize("ending", [frames.header(0, EOF, 0, 1), b""])
def test_whether_a_finished_log_has_its_end_is_seen_without_reading_it(tmp_path: Path, ending: bytes):
    files = write_log(tmp_path, [frame(STDOUT, b"x" * 1000), ending])
    with LogReader(files) as reader:
        assert reader.has_end() == bool(ending)
