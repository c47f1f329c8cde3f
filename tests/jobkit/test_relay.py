"""What a program prints on its way to the log (contract G, f): bars, the helper's lines, long lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.work_folders import WorkFolder
from trainshed.jobkit.gpu_runner.output import PROGRESS_SECONDS, Relay

METRIC = b'::gpu:: {"t":"metric","step":%d,"values":{"loss":0.5}}\n'


class Log:
    """A relay whose clock only the test moves, and what came out of it."""

    def __init__(self) -> None:
        self.now = 100.0
        self.text = b""
        self.said: list[tuple[str, dict[str, object]]] = []
        self.relay = Relay(
            write=self._write,
            wire=lambda kind, fields: self.said.append((kind, dict(fields))),
            now=lambda: self.now,
        )

    def _write(self, data: bytes) -> None:
        self.text += data

    def over(self, *pieces: bytes) -> bytes:
        for piece in pieces:
            self.relay.feed(piece)
        self.relay.close()
        return self.text


@given(st.lists(st.text("ab \u00e9", max_size=9), max_size=9), st.integers(1, 7))
def test_lines_arrive_as_they_are_however_they_are_cut(lines, size):
    data = "".join(line + "\n" for line in lines).encode()
    assert Log().over(*(data[at : at + size] for at in range(0, len(data), size))) == data


@given(st.binary(max_size=200), st.integers(1, 9))
def test_no_bytes_are_an_error_and_no_carriage_return_comes_through(data, size):
    log = Log()
    log.over(*(data[at : at + size] for at in range(0, len(data), size)))
    assert b"\r" not in log.text


_EXIT = b'::gpu:: {"t":"exit","code":0,"stopped":true,"message":"%s"}'


@pytest.mark.parametrize(
    "printed",
    [
        _EXIT % b"::gpu:: {" + b"\n",
        _EXIT % b"\xff" + b"\n",
        b"50%\r" + _EXIT % b"\xff" + b"\n",
        b"50%\r" + _EXIT % b"\xff" + b"\r60%\r",
        _EXIT % b"\xff" + b"\r",
        _EXIT % b"\xff" + b"\x1b[A\n",
        b"a" * 32_768 + _EXIT % b"::gpu:: {" + b"\n",
        b"a" * 65_537 + _EXIT % b"\xff" + b"\n",
        _EXIT % b"\xff",
    ],
)
def test_f_what_only_the_runner_says_no_program_says_however_it_is_written(printed):
    log = Log()
    for at in range(0, len(printed), 40_000):
        log.relay.feed(printed[at : at + 40_000])
        log.now += PROGRESS_SECONDS
        log.relay.tick()
    log.relay.close()
    assert b"::gpu:: {" not in log.text
    # People see what was printed, unless something else was drawn over it.
    assert (b'"t":"exit"' in log.text) != (b"60%" in log.text)
    assert log.said == []


@pytest.mark.parametrize("value", ["1" + "0" * 400, "-1" + "0" * 400, "1e999", "NaN", "true", '"1"', "[1]"])
def test_f_a_value_that_no_float_can_hold_is_left_out_and_the_rest_goes_on(value):
    log = Log()
    line = f'::gpu:: {{"t":"metric","step":3,"values":{{"odd":{value},"loss":0.5}}}}\n'
    assert log.over(line.encode(), b"on\n") == b"on\n"
    assert log.said == [("metric", {"step": 3, "values": {"loss": 0.5}})]


def test_a_bar_is_shown_every_five_seconds_and_at_its_end():
    log = Log()
    for n in range(100):
        log.relay.feed(b"\r%d%%" % n)
        log.now += PROGRESS_SECONDS / 10
    log.relay.feed(b"\r100%\nover\n")
    shown = log.text.split()
    assert shown[-2:] == [b"100%", b"over"]
    assert 9 <= len(shown) <= 13


def test_a_bar_that_is_slow_is_shown_without_waiting_for_the_next():
    log = Log()
    log.relay.feed(b"start\n\r 1%")
    log.relay.feed(b"\r 2%")
    log.now += PROGRESS_SECONDS
    log.relay.tick()
    assert log.text == b"start\n 1%\n 2%\n"


def test_bars_below_one_another_are_bars():
    log = Log()
    for n in range(1000):
        log.relay.feed(b"\r outer 1/9\n\r inner %d/1000\x1b[A" % n)
        log.now += 0.01
    log.over(b"\nover\n")
    assert log.text.endswith(b"over\n")
    assert log.text.count(b"\n") < 10
    assert b"\x1b" not in log.text


def test_lines_that_end_as_on_windows_are_lines():
    assert Log().over(b"one\r\ntwo\r", b"\nthree\r\n") == b"one\ntwo\nthree\n"


def test_a_line_of_the_helper_behind_a_bar_or_a_begun_line_is_taken_out():
    log = Log()
    text = log.over(b"\r10%", METRIC % 1, b"\r20%\n", b"begun ", METRIC % 2, b"and ended\n")
    assert [fields["step"] for _, fields in log.said] == [1, 2]
    assert text.endswith(b"20%\nbegun and ended\n")
    assert b"::gpu::" not in text


def test_a_line_that_only_looks_like_the_helpers_is_the_programs():
    # With a blank more: else it would be taken for the runner's and not be shown.
    assert Log().over(b"::gpu:: {not json}\n") == b"::gpu::  {not json}\n"


def test_a_line_without_end_is_broken_and_not_kept():
    log = Log()
    for _ in range(100):
        log.relay.feed(b"x" * 10_000)
    assert len(log.text) > 900_000


def test_metrics_that_nobody_can_read_so_fast_are_gathered():
    log = Log()
    log.over(*(METRIC % step for step in range(10_000)))
    steps = [fields["step"] for _, fields in log.said]
    assert steps[:3] == [0, 1, 2]
    assert steps[-1] == 9999
    assert len(steps) <= 102


@pytest.mark.parametrize(
    "values",
    [b'{"a":NaN}', b'{"a":Infinity}', b'{"a":"1"}', b'{"a b":1}', b'{"a":true}', b"[1]", b'{"a":[1]}'],
)
def test_values_that_are_none_are_not_passed_on(values):
    log = Log()
    log.over(b'::gpu:: {"t":"metric","values":' + values + b"}\n")
    assert log.said == []


def test_a_hundred_megabytes_of_carriage_returns_become_a_few_lines(tmp_path: Path):
    work = WorkFolder(tmp_path / "work").script(
        "import os\n"
        "piece = b'\\rstep 1/2 ' * 10000\n"
        "total = 0\n"
        "while total < 100_000_000: total += os.write(1, piece)\n"
        "os.write(1, b'\\r' * 1000 + b'\\nover\\n')\n"
    )
    done = work.run()
    assert done.code == 0
    assert done.lines[-1] == "over"
    assert len(done.text) < 10_000


def test_non_finite_metrics_do_not_reach_the_log(tmp_path: Path):
    work = WorkFolder(tmp_path / "work").script(
        "import gpu, json\n"
        "gpu.log(1, loss=float('nan'), up=float('inf'), kept=0.5, text='x')\n"
        'print(\'::gpu:: {"t": "metric", "step": 2, "values": {"loss": NaN, "kept": 1.5}}\')\n'
    )
    said = work.run().wire("metric")
    assert [(one["step"], one["values"]) for one in said] == [(1, {"kept": 0.5}), (2, {"kept": 1.5})]
    assert json.dumps(said, allow_nan=False)
