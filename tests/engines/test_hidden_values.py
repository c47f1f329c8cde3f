"""Hidden values (C9, P9): the program has them, and nothing else shows them."""

from __future__ import annotations

import stat
import string
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.conformance import SETTLED, read_frames, written
from engines.gangs import gang
from engines.machinery import WAYS, LocalHarness, each_way
from support.waiting import wait_until
from trainshed.engines import Endpoint
from trainshed.jobkit import folder, frames, masking

CANARY = "hf_CanaryThatNobodyMaySee"
KEY = "-----BEGIN KEY-----\nAbCdEfGhIjKlMnOp\nQrStUvWxYz012345\n-----END KEY-----\n"


@pytest.fixture(params=WAYS)
def either(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalHarness]:
    yield from each_way(request.param, tmp_path)


def output(local: LocalHarness, attempt_id: str = "attempt-1", stream: int = frames.STDOUT) -> str:
    return written(local.engine.logs(attempt_id).frames, stream).decode()


def test_P9_a_hidden_value_reaches_the_program_and_no_log(either: LocalHarness) -> None:
    text = 'echo "a $TOKEN b"; echo "c$TOKEN" >&2; [ ${#TOKEN} = 25 ] && [ "$KEY" != "" ] && echo "$KEY"'
    launch = replace(either.shell("attempt-1", text), secrets={"TOKEN": CANARY, "KEY": KEY})
    either.engine.launch(launch)
    assert either.until("attempt-1", SETTLED).exit.code == 0
    assert output(either).splitlines()[0] == "a *** b"
    assert "c***\n" in output(either, stream=frames.STDERR)
    assert "AbCdEfGh" not in output(either)


def test_P9_a_value_written_in_pieces_is_masked(local: LocalHarness) -> None:
    text = 'printf "x${TOKEN:0:7}"; sleep 0.4; printf "${TOKEN:7}y\\n"'
    local.engine.launch(replace(local.shell("attempt-1", text), secrets={"TOKEN": CANARY}))
    local.until("attempt-1", SETTLED)
    assert output(local) == "x***y\n"


def test_P9_values_are_masked_in_more_output_than_is_read_at_once(local: LocalHarness) -> None:
    text = "import os\nfor n in range(40000): print(f'{n} {os.environ[\"TOKEN\"]}' + 'x' * (n % 97))"
    local.engine.launch(replace(local.python("attempt-1", text), secrets={"TOKEN": CANARY}))
    assert local.until("attempt-1", SETTLED).exit.code == 0
    said = output(local).splitlines()
    assert said == [f"{number} ***" + "x" * (number % 97) for number in range(40000)]
    assert max(len(each) for _, _, each in read_frames(local.engine.logs("attempt-1").frames)) <= 1 << 16


def test_P9_the_canary_is_nowhere_on_the_disk_once_the_program_ended(local: LocalHarness) -> None:
    text = 'echo "$TOKEN"; echo "$TOKEN" >&2; sleep 0.2; exit 3'
    launches = gang(
        local, [text, "exec sleep 100"], shared={"secrets": {"TOKEN": CANARY}, "sample_seconds": 0.05}
    )
    launches[0] = replace(launches[0], endpoints=(Endpoint(9, "/metrics"),))
    local.engine.launch_many(launches)
    held = local.folder(launches[1].attempt_id) / folder.SECRETS
    wait_until(held.exists)
    local.running(launches[1].attempt_id)
    if held.exists():
        assert stat.S_IMODE(held.stat().st_mode) == 0o600
    for each in launches:
        local.until(each.attempt_id, SETTLED)
    for place in local.root.rglob("*"):
        if place.is_file() and not place.is_symlink():
            assert CANARY.encode() not in place.read_bytes(), place


def test_P9_the_canary_is_in_no_command_line(local: LocalHarness) -> None:
    text = 'tr "\\0" " " < /proc/$$/cmdline; cat /proc/$PPID/cmdline | tr "\\0" " "'
    local.engine.launch(replace(local.shell("attempt-1", text), secrets={"TOKEN": CANARY}))
    local.until("attempt-1", SETTLED)
    said = output(local)
    assert "***" not in said
    assert CANARY not in said


def test_P9_what_was_stopped_before_its_start_leaves_no_value(local: LocalHarness) -> None:
    launch = replace(local.shell("attempt-1", "true"), secrets={"TOKEN": CANARY})
    local.engine._record_intent(local.folder("attempt-1"), launch)
    local.engine.stop("attempt-1")
    assert not (local.folder("attempt-1") / folder.SECRETS).exists()


def test_P9_a_killed_shims_values_go_with_the_release(local: LocalHarness) -> None:
    launch = replace(local.shell("attempt-1", "exec sleep 100"), secrets={"TOKEN": CANARY})
    local.engine.launch(launch)
    local.running("attempt-1")
    local.lose("attempt-1")
    assert local.engine.release("attempt-1").confirmed
    assert not (local.folder("attempt-1") / folder.SECRETS).exists()


# The masking itself, as a function of a stream


ALPHABET = st.sampled_from(b"ab\n").map(lambda number: bytes([number]))
VALUES = st.lists(st.lists(ALPHABET, min_size=1, max_size=6).map(b"".join), min_size=1, max_size=3)
STREAM = st.lists(st.sampled_from(b"ab\nc"), max_size=60).map(bytes)
CUTS = st.lists(st.integers(0, 60), max_size=8)


def masked(values: list[bytes], pieces: list[bytes]) -> bytes:
    masker = masking.Masker(sorted(set(values)))
    return b"".join([*map(masker.feed, pieces), masker.finish()])


def by_definition(values: list[bytes], data: bytes) -> bytes:
    """Every byte that belongs to a value is hidden; what overlaps is one mask."""
    spans = sorted(
        (at, at + len(value)) for value in values for at in range(len(data)) if data.startswith(value, at)
    )
    merged: list[list[int]] = []
    for begin, end in spans:
        if merged and begin < merged[-1][1]:
            merged[-1][1] = max(end, merged[-1][1])
        else:
            merged.append([begin, end])
    out, at = b"", 0
    for begin, end in merged:
        out += data[at:begin] + masking.MASK
        at = end
    return out + data[at:]


@given(VALUES, STREAM, CUTS)
def test_P9_a_stream_is_masked_alike_however_it_is_cut(
    values: list[bytes], data: bytes, cuts: list[int]
) -> None:
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [data[begin:end] for begin, end in pairwise(edges)]
    assert masked(values, pieces) == masked(values, [data]) == by_definition(values, data)


@given(VALUES, STREAM)
def test_P9_no_value_is_left_in_what_was_masked(values: list[bytes], data: bytes) -> None:
    assert not any(value in part for part in masked(values, [data]).split(b"***") for value in values)


@given(st.dictionaries(st.text(string.ascii_uppercase, min_size=1), st.text(max_size=40), max_size=4))
def test_P9_every_value_of_four_bytes_or_more_is_masked(secrets: dict[str, str]) -> None:
    values = masking.values(secrets.values())
    for value in secrets.values():
        data = value.encode()
        assert (data in values) == (len(data) >= 4) or not data.strip()
