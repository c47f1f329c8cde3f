"""A program runs as the same user and can write into its attempt folder: it harms itself alone."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from engines.conformance import SETTLED
from engines.machinery import WAYS, LocalHarness, each_way
from support.waiting import wait_until
from trainshed.engines import Phase
from trainshed.jobkit import folder

GOOD = {"code": 0, "signal": None, "ended_by": "exit", "finished_at": 1.0, "detail": "", "usage": {}}
FORGERIES = {
    "an unknown reason": json.dumps(GOOD | {"ended_by": "bogus"}),
    "a code that is text": json.dumps(GOOD | {"code": "0"}),
    "a huge code": json.dumps(GOOD | {"code": 10**30}),
    "a list of usage": json.dumps(GOOD | {"usage": []}),
    "no date": json.dumps(GOOD | {"finished_at": 1e300}),
    "infinity": json.dumps(GOOD | {"finished_at": float("inf")}),
    "nothing but a code": '{"code": 0}',
    "no object": "[1, 2]",
    "no JSON": "\x00",
    "deep nesting": "[" * 100_000,
}


@pytest.fixture(params=[way for way in WAYS if way != "bubblewrap"])
def local(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalHarness]:
    yield from each_way(request.param, tmp_path)


def start(local: LocalHarness) -> Path:
    """Start a program that runs until it is stopped; its attempt folder."""
    local.engine.launch(local.shell("attempt-1", "sleep 1000"))
    local.running("attempt-1")
    return local.engine.work_directory("attempt-1").parent


def kill_shim(path: Path) -> None:
    pid = folder.holder(path)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not folder.is_held(path), what="the shim to be gone")


@pytest.mark.parametrize("forgery", FORGERIES)
def test_P3_a_damaged_exit_record_is_a_lost_attempt(local: LocalHarness, forgery: str) -> None:
    path = start(local)
    (path / "exit.json").write_text(FORGERIES[forgery])
    kill_shim(path)
    assert local.observe("attempt-1").phase is Phase.LOST
    assert local.engine.release("attempt-1").confirmed


def test_an_exit_record_means_nothing_while_the_shim_lives(local: LocalHarness) -> None:
    path = start(local)
    folder.write_durably(path, "exit.json", GOOD)
    assert local.observe("attempt-1").phase is Phase.RUNNING
    local.engine.stop("attempt-1", grace_seconds=0)
    ended = local.until("attempt-1", SETTLED)
    assert ended.exit is not None
    assert ended.exit.code == 137


@pytest.mark.parametrize("name", ["exit.json", "started.json", "stop.json", "lock"])
def test_a_fifo_in_the_place_of_a_record_makes_nobody_wait(local: LocalHarness, name: str) -> None:
    path = start(local)
    for make in (os.mkfifo, os.mkdir):
        place = path / name
        if place.is_dir():
            place.rmdir()
        place.unlink(missing_ok=True)
        make(place)
        assert local.observe("attempt-1").phase in {Phase.RUNNING, Phase.LOST}
    local.engine.kill("attempt-1")
    assert local.engine.release("attempt-1").checks


def test_P6_a_shim_that_was_stopped_by_its_program_is_killed_with_it(local: LocalHarness) -> None:
    path = start(local)
    pid = folder.holder(path)
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    local.engine.stop("attempt-1", grace_seconds=0)
    local.engine.kill("attempt-1")
    assert local.observe("attempt-1").phase is Phase.LOST
    assert local.engine.release("attempt-1").confirmed
