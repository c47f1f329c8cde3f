"""Training on the fake engine: gangs, nodes, checks, notices and faults in virtual time, by script."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from engines.conformance import LIMITS
from trainshed.engines import (
    EndedBy,
    ExitNotice,
    Gang,
    Launch,
    Phase,
    Precheck,
    Report,
    Role,
)
from trainshed.engines.fake import FakeEngine, Script
from trainshed.model.resources import Amounts, Node

NODES = tuple(Node(f"n{number}", (), Amounts(cpus=64, memory_mb=1 << 20)) for number in range(3))


@pytest.fixture
def engine(tmp_path: Path) -> FakeEngine:
    return FakeEngine(tmp_path, nodes=NODES)


def gang(
    engine: FakeEngine, scripts: Sequence[Script], *, gang_id: str = "g", start_seconds: float = 600, **fields
) -> list[str]:
    """Launch a gang with a member on each of the first nodes; their ids by rank."""
    nodes = [NODES[rank % 3].name for rank in range(len(scripts))]
    meeting = engine.meet(gang_id, nodes, [8] * len(scripts))
    launches = []
    for rank, script in enumerate(scripts):
        role = Role.WORKER if rank else Role.MASTER
        place = Gang(gang_id, rank, len(scripts), role, nodes[rank], meeting, start_seconds)
        engine.script(f"{gang_id}.{rank}", script)
        launch = Launch(f"{gang_id}.{rank}", ("program",), {}, (), (), LIMITS, 10_000, gang=place)
        launches.append(replace(launch, **fields))
    assert engine.launch_many(launches) == {}
    return [each.attempt_id for each in launches]


def phases(engine: FakeEngine, ids: Sequence[str]) -> list[Phase]:
    return [each.phase for each in engine.observe(ids).values()]


def endings(engine: FakeEngine, ids: Sequence[str]) -> list[tuple[int | None, EndedBy]]:
    return [(each.exit.code, each.exit.ended_by) for each in engine.observe(ids).values()]


def codes(engine: FakeEngine, attempt_id: str) -> list[str]:
    return [each.code for each in engine.reports(attempt_id, 0)]


LONG = Script(run_seconds=None)


def test_C27_the_slowest_member_decides_when_all_start(engine: FakeEngine) -> None:
    ids = gang(engine, [Script(run_seconds=None, start_after=after) for after in (1, 30, 5)])
    engine.advance(10)
    assert [each.stage for each in engine.observe(ids).values()] == ["ready", "starting", "ready"]
    engine.advance(20)
    assert {each.started_at for each in engine.observe(ids).values()} == {engine.now}


def test_C27_none_starts_when_one_takes_too_long(engine: FakeEngine) -> None:
    ids = gang(engine, [Script(), Script(start_after=100)], start_seconds=60)
    engine.advance(59)
    assert phases(engine, ids) == [Phase.PREPARING] * 2
    engine.advance(1)
    assert endings(engine, ids) == [(None, EndedBy.GANG)] * 2


def test_C27_what_cannot_be_started_keeps_all_from_starting(engine: FakeEngine) -> None:
    ids = gang(engine, [Script(), Script(not_started="SSH_UNAVAILABLE: no sshd", start_after=1)])
    engine.advance(2)
    assert endings(engine, ids) == [(None, EndedBy.GANG), (None, EndedBy.NOT_STARTED)]


def test_C34_a_lost_node_takes_its_members_along_and_is_a_fault(engine: FakeEngine) -> None:
    ids = gang(engine, [LONG] * 3)
    engine.advance(10)
    engine.lose_node("n1", "It burns.")
    engine.advance(1)
    assert phases(engine, ids) == [Phase.EXITED, Phase.LOST, Phase.EXITED]
    assert engine.observe(ids)["g.0"].exit.ended_by is EndedBy.GANG
    assert engine.faults() == {"n1": "It burns."}
    assert [each.name for each in engine.nodes()] == ["n0", "n2"]
    with pytest.raises(AssertionError, match="n1 is not there"):
        gang(engine, [LONG] * 2, gang_id="h")
    engine.repair("n1")
    assert engine.faults() == {}
    assert len(engine.nodes()) == 3


def test_C34_a_broken_gpu_is_a_fault_and_what_runs_goes_on(engine: FakeEngine) -> None:
    ids = gang(engine, [LONG] * 2)
    engine.break_down("n0/gpu:3", "XID 79")
    engine.advance(1)
    assert engine.faults() == {"n0/gpu:3": "XID 79"}
    assert phases(engine, ids) == [Phase.RUNNING] * 2


def test_C31_a_failed_check_names_what_failed_and_nobody_starts(engine: FakeEngine) -> None:
    scripts = [
        Script(precheck_seconds=20),
        Script(precheck_seconds=30, precheck_failure="replica 1, GPU 4, GEMM: 3 TFLOP/s"),
    ]
    ids = gang(engine, scripts, precheck=Precheck({}))
    engine.advance(10)
    assert {each.stage for each in engine.observe(ids).values()} == {"prechecking"}
    engine.advance(20)
    assert endings(engine, ids) == [(None, EndedBy.GANG), (None, EndedBy.PRECHECK)]
    assert engine.observe(ids)["g.1"].detail == "PRECHECK_FAILED: replica 1, GPU 4, GEMM: 3 TFLOP/s"
    assert codes(engine, "g.0") == ["READY", "PRECHECK_PASSED"]
    assert codes(engine, "g.1") == ["READY", "PRECHECK_FAILED"]


def test_C31_all_start_when_the_last_check_passed(engine: FakeEngine) -> None:
    begun = engine.now
    ids = gang(engine, [Script(precheck_seconds=each) for each in (20, 50)], precheck=Precheck({}))
    engine.advance(60)
    assert {each.started_at for each in engine.observe(ids).values()} == {begun + 50}
    assert endings(engine, ids) == [(0, EndedBy.EXIT)] * 2


def test_C36_all_save_in_their_own_time(engine: FakeEngine) -> None:
    ids = gang(
        engine,
        [Script(run_seconds=None, saves_for=each, notice_code=3) for each in (5, 300)],
        notice=ExitNotice(600),
    )
    engine.advance(10)
    for each in ids:
        engine.notify(each, reason="preemption", deadline=engine.now + 600)
    engine.advance(100)
    assert [each.noticed for each in engine.observe(ids).values()] == [False, True]
    engine.advance(200)
    assert endings(engine, ids) == [(3, EndedBy.STOP)] * 2


@pytest.mark.parametrize(
    ("saves_for", "ends_after"), [(None, 15), (1000, 600)], ids=["nobody hears it", "it hangs"]
)
def test_C36_whoever_does_not_go_is_stopped(
    engine: FakeEngine, saves_for: float | None, ends_after: float
) -> None:
    script = Script(run_seconds=None, saves_for=saves_for, heeds_sigterm=False)
    ids = gang(engine, [script], notice=ExitNotice(600))
    engine.advance(10)
    engine.notify("g.0", reason="stop", deadline=engine.now + 600)
    engine.advance(ends_after + 9)
    assert phases(engine, ids) == [Phase.RUNNING]
    engine.advance(1)
    assert endings(engine, ids) == [(137, EndedBy.STOP)]
    assert codes(engine, "g.0") == ["READY", "EXIT_NOTICE_SENT", "EXIT_NOTICE_UNHEARD"]


def test_c8_one_that_stopped_alone_takes_the_others_along_after_a_while(engine: FakeEngine) -> None:
    ids = gang(engine, [LONG] * 2)
    engine.advance(10)
    engine.stop("g.0")
    engine.advance(4)
    assert phases(engine, ids) == [Phase.EXITED, Phase.RUNNING]
    engine.advance(2)
    assert endings(engine, ids) == [(143, EndedBy.STOP), (143, EndedBy.GANG)]


def test_c2_scripted_reports_come_at_their_time_among_the_engines_own(engine: FakeEngine) -> None:
    said = (Report(0, 5, "METRICS_PORT_TAKEN", "Port 9400.", "warning", {"port": 9400}),)
    gang(engine, [Script(run_seconds=None, reports=said)])
    engine.advance(1)
    assert codes(engine, "g.0") == ["READY"]
    engine.advance(5)
    second = engine.reports("g.0", 1)[0]
    assert (second.number, second.code, second.data) == (2, "METRICS_PORT_TAKEN", {"port": 9400})
    assert engine.observe(["g.0"])["g.0"].reports == 2


def test_C37_scripted_measurements_are_taken_while_it_runs(engine: FakeEngine) -> None:
    script = Script(run_seconds=60, measures={"gpu0_utilization_percent": 97.0})
    gang(engine, [script], sample_seconds=15.0)
    engine.advance(40)
    assert len(engine.samples("g.0", 0)) == 2
    engine.advance(1000)
    taken = engine.samples("g.0", 0)
    assert [each.values for each in taken] == [{"gpu0_utilization_percent": 97.0}] * 4


def test_C41_what_a_released_gang_met_at_is_free_again(engine: FakeEngine) -> None:
    ids = gang(engine, [Script()] * 2)
    first = engine.meet("g", ["n0", "n1"], [8, 8])
    engine.advance(1)
    assert engine.meet("other", ["n0"], [1]).port != first.port
    for each in ids:
        engine.release(each)
    assert engine.meet("third", ["n0"], [1]).port == first.port


def test_P14_the_world_outlives_the_server(engine: FakeEngine, tmp_path: Path) -> None:
    ids = gang(engine, [Script(run_seconds=None, saves_for=30)] * 2, notice=ExitNotice(600))
    engine.advance(10)
    engine.notify("g.0", reason="stop", deadline=engine.now + 600)
    engine.break_down("n0/gpu:1", "XID 48")
    again = FakeEngine(tmp_path, nodes=NODES, world=engine.world)
    assert again.observe(ids)["g.0"].noticed
    assert again.faults() == {"n0/gpu:1": "XID 48"}
    again.notify("g.1", reason="stop", deadline=again.now + 600)
    again.advance(30)
    assert endings(again, ids) == [(0, EndedBy.STOP)] * 2
