"""What the fake engine adds to the contract: scripts, faults, virtual time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from engines.conformance import LIMITS, written
from support.waiting import wait_until
from trainshed.engines import ENGINES, EngineError, Launch, Phase, load
from trainshed.engines.fake import FakeEngine, ImageScript, Script
from trainshed.engines.local import LocalEngine


def launch(attempt_id: str = "a1", timeout: int = 60) -> Launch:
    return Launch(attempt_id, ("program",), {}, (), (), LIMITS, timeout)


@pytest.fixture
def engine(tmp_path: Path) -> FakeEngine:
    return FakeEngine(tmp_path)


def phase(engine: FakeEngine, attempt_id: str = "a1") -> Phase:
    return engine.observe([attempt_id])[attempt_id].phase


def test_nothing_happens_until_time_passes(engine: FakeEngine) -> None:
    engine.script("a1", Script(start_after=5, run_seconds=10))
    engine.launch(launch())
    phases = []
    for _ in range(4):
        phases.append(phase(engine))
        engine.advance(5)
    assert phases == [Phase.PREPARING, Phase.RUNNING, Phase.RUNNING, Phase.EXITED]


def test_a_launch_can_be_refused_a_number_of_times(engine: FakeEngine) -> None:
    engine.script("a1", Script(refusals=(EngineError("BUSY", "try later", retryable=True),)))
    with pytest.raises(EngineError, match="try later"):
        engine.launch(launch())
    assert phase(engine) is Phase.ABSENT
    assert engine.launch_many([launch()]) == {}
    assert phase(engine) is Phase.EXITED


def test_a_release_can_leak_a_number_of_times(engine: FakeEngine) -> None:
    engine.script("a1", Script(leaks=2))
    engine.launch(launch())
    assert [engine.release("a1").confirmed for _ in range(4)] == [False, False, True, True]
    assert engine.live() == set()


def test_an_end_can_be_reported_late(engine: FakeEngine) -> None:
    engine.script("a1", Script(run_seconds=1, reported_after=30))
    engine.launch(launch())
    engine.advance(29)
    assert phase(engine) is Phase.RUNNING
    engine.advance(2)
    assert engine.observe(["a1"])["a1"].exit.finished_at == engine.now - 30


def test_an_attempt_can_be_lost_by_script(engine: FakeEngine) -> None:
    engine.script("a1", Script(run_seconds=None, lost_after=3))
    engine.launch(launch())
    engine.advance(2)
    assert phase(engine) is Phase.RUNNING
    engine.advance(2)
    assert phase(engine) is Phase.LOST


def test_advance_rings_for_what_changed_only(engine: FakeEngine) -> None:
    engine.script("a1", Script(run_seconds=1))
    engine.script("a2", Script(run_seconds=100))
    engine.launch_many([launch("a1"), launch("a2")])
    engine.advance(0)
    engine.changed(0)
    engine.advance(2)
    assert engine.changed(0) == {"a1"}


def test_the_same_calls_see_the_same_log(engine: FakeEngine) -> None:
    engine.script("a1", Script(output=b"one\ntwo"))
    engine.launch(launch())
    first = engine.logs("a1").frames.read_bytes()
    engine.advance(10)
    assert engine.logs("a1").frames.read_bytes() == first
    assert written(engine.logs("a1").frames) == b"one\ntwo"


def test_an_image_takes_virtual_time_fails_by_script_and_can_vanish(engine: FakeEngine) -> None:
    fault = EngineError("IMAGE_PULL_FAILED", "no route", retryable=True)
    engine.script_image("i@sha256:1", ImageScript(10.0, ("begun", "half"), (fault,)))
    said: list[str] = []
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(engine.prepare, "i@sha256:1", said.append, lambda: False)
        wait_until(lambda: said == ["begun"])
        engine.advance(5)
        wait_until(lambda: said == ["begun", "half"])
        assert not first.done()
        engine.advance(5)
        with pytest.raises(EngineError, match="no route"):
            first.result(20)
        with pytest.raises(EngineError, match="nobody") as cancelled:
            engine.prepare("i@sha256:1", said.append, lambda: True)
        assert cancelled.value.code == "PREPARE_CANCELLED"
    with pytest.raises(EngineError, match="not here"):
        engine.launch(replace(launch(), image="i@sha256:1"))
    engine.script_image("i@sha256:1", ImageScript())
    engine.prepare("i@sha256:1", said.append, lambda: False)
    engine.evict("i@sha256:1")
    with pytest.raises(EngineError, match="not here") as gone:
        engine.launch(replace(launch(), image="i@sha256:1"))
    assert gone.value.retryable
    engine.prepare("i@sha256:1", said.append, lambda: False)
    engine.launch(replace(launch(), image="i@sha256:1"))
    assert phase(engine) is Phase.EXITED
    assert engine.world.prepared["i@sha256:1"] == 4


def test_engines_are_loaded_by_name() -> None:
    assert {"fake", "local"} <= set(ENGINES)
    assert (load("fake"), load("local")) == (FakeEngine, LocalEngine)
    with pytest.raises(KeyError):
        load("nowhere")
