"""Gangs on a real Ray cluster: where members run, how they end together, what is left of them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from engines.conformance import SETTLED, written
from engines.rays import RayHarness
from support.processes import command_of
from support.ray_cluster import RayCluster
from support.waiting import wait_until
from trainshed.engines import EndedBy, EngineError, Launch, Observation, Phase
from trainshed.engines.ray import open_ray_engine
from trainshed.jobkit import procs

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.timeout(600)]


@pytest.fixture
def harness(tmp_path: Path, ray_cluster: RayCluster) -> Iterator[RayHarness]:
    harness = RayHarness(tmp_path, ray_cluster)
    yield harness
    harness.close()


def settled(harness: RayHarness, launches: list[Launch]) -> list[Observation]:
    def look() -> list[Observation] | None:
        found = harness.engine.observe([each.attempt_id for each in launches])
        harness.pass_time()
        return list(found.values()) if {each.phase for each in found.values()} <= SETTLED else None

    return wait_until(look, 120, f"the end of {[each.attempt_id for each in launches]}")


def said(harness: RayHarness, attempt_id: str, text: bytes) -> None:
    """Wait until the mirrored log has it."""
    log = harness.engine.logs(attempt_id).frames
    wait_until(lambda: log.exists() and text in written(log), 90, f"{text!r} of {attempt_id}")


def node_of(harness: RayHarness, attempt_id: str) -> str:
    """The address of the node on which a replica's host runs, by the command of its raylet."""
    pid = harness.host_pid(attempt_id)
    raylet = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    words = command_of(raylet).split()
    return next(word.partition("=")[2] for word in words if word.startswith("--node_ip_address="))


def test_X8_each_member_runs_where_it_was_placed_and_all_is_mirrored(
    harness: RayHarness, tmp_path: Path
) -> None:
    together = tmp_path / "together"
    together.mkdir()
    text = (
        f"echo > {together}/$RANK; until [ $(ls {together} | wc -l) = 3 ]; do sleep 0.1; done; "
        f'echo "rank $RANK of gpu $CUDA_VISIBLE_DEVICES says $TOKEN"; until [ -e {tmp_path}/go ]; '
        "do sleep 0.1; done; echo bye"
    )
    nodes = harness.cluster.nodes
    launches = [
        replace(each, secrets={"TOKEN": "correct-horse-battery"}, sample_seconds=0.5)
        for each in harness.gang([text] * 3, nodes=[nodes[2], nodes[0], nodes[1]])
    ]
    assert harness.engine.launch_many(launches) == {}
    for rank, launch in enumerate(launches):
        said(harness, launch.attempt_id, b"rank %d of gpu" % rank)
    assert [node_of(harness, each.attempt_id) for each in launches] == [nodes[2], nodes[0], nodes[1]]
    wait_until(lambda: harness.engine.samples("gang-1.1", 0), 30, "a sample")
    (tmp_path / "go").touch()
    ends = settled(harness, launches)
    assert [each.exit.code for each in ends if each.exit] == [0, 0, 0]
    for launch in launches:
        log = written(harness.engine.logs(launch.attempt_id).frames)
        assert log.endswith(b"bye\n")
        assert b"correct-horse" not in log
        assert "READY" in [report.code for report in harness.engine.reports(launch.attempt_id, 0)]
        assert b"correct-horse" not in b"".join(
            file.read_bytes()
            for file in harness.engine.logs(launch.attempt_id).frames.parent.iterdir()
            if file.is_file()
        )
        assert harness.engine.release(launch.attempt_id).confirmed
    assert harness.left() == []


def test_c8_one_that_fails_ends_the_others_on_their_nodes(harness: RayHarness) -> None:
    launches = harness.gang(["sleep 1; exit 3", "exec sleep 1000", "exec sleep 1000"])
    harness.engine.launch_many(launches)
    failed, *others = settled(harness, launches)
    assert failed.exit is not None
    assert (failed.exit.code, failed.exit.ended_by) == (3, EndedBy.EXIT)
    for other in others:
        assert other.exit is not None
        assert other.exit.ended_by is EndedBy.GANG
        # Which one and how is told where its record came in time; the loss of it may be known before.
        assert "rank 0" in other.exit.detail or "Another member of its gang" in other.exit.detail


def test_C27_a_gang_that_does_not_fit_never_starts_and_holds_nothing(harness: RayHarness) -> None:
    launches = harness.gang(["echo started", "echo started"])
    gpus = launches[0].gpus * 5
    launches = [
        replace(each, gpus=gpus, gang=replace(each.gang, start_seconds=5.0))  # type: ignore[type-var]
        for each in launches
    ]
    harness.engine.launch_many(launches)
    for seen in settled(harness, launches):
        assert seen.exit is not None
        assert (seen.exit.code, seen.exit.ended_by) == (None, EndedBy.NOT_STARTED)
        assert "no room" in seen.exit.detail
    for launch in launches:
        assert harness.engine.release(launch.attempt_id).confirmed
    assert harness.left() == []


def test_P14_a_gang_goes_on_without_server_and_helper_and_is_found_again(
    harness: RayHarness, tmp_path: Path
) -> None:
    text = f"echo one; until [ -e {tmp_path}/go ]; do sleep 0.1; done; echo two"
    launches = harness.gang([text, text])
    harness.engine.launch_many(launches)
    for launch in launches:
        said(harness, launch.attempt_id, b"one\n")
    helper = harness.engine.helper_pid
    assert helper is not None
    os.kill(helper, signal.SIGKILL)
    assert harness.engine.nodes()  # another one was started
    harness.engine.close()
    (tmp_path / "go").touch()
    harness.reopen()
    for seen, launch in zip(settled(harness, launches), launches, strict=True):
        assert seen.exit is not None
        assert seen.exit.code == 0
        assert written(harness.engine.logs(launch.attempt_id).frames) == b"one\ntwo\n"
    assert harness.engine.launch_many(launches) == {}
    assert {each.phase for each in settled(harness, launches)} == {Phase.EXITED}


def test_C34_a_node_that_dies_loses_the_whole_gang_with_evidence(harness: RayHarness) -> None:
    address = harness.cluster.add_node(9)
    assert address in [node.name for node in harness.engine.nodes()]
    launches = harness.gang(["exec sleep 1000"] * 2, nodes=[harness.cluster.nodes[1], address])
    harness.engine.launch_many(launches)
    for launch in launches:
        harness.until(launch.attempt_id, {Phase.RUNNING})
    harness.cluster.kill_node(9)
    other, lost = settled(harness, launches)
    assert lost.phase is Phase.LOST
    assert other.exit is not None
    assert other.exit.ended_by is EndedBy.GANG
    faults = wait_until(harness.engine.faults, 60, "the fault of the node")
    assert list(faults) == [address]
    assert "dead" in faults[address]
    for launch in launches:
        assert harness.engine.release(launch.attempt_id).confirmed
    wait_until(lambda: not harness.left(), 60, "the end of what the node ran")
    marked = procs.marked(harness.engine.instance)
    assert not {unit for unit in marked.values() if unit.startswith("gang-1")}


def test_C1_a_cluster_that_is_not_there_is_refused_with_its_address(
    tmp_path: Path, harness: RayHarness
) -> None:
    python = harness.engine._channel._python
    with pytest.raises(EngineError, match=r"127\.0\.0\.9:1") as refusal:
        open_ray_engine("gone", "127.0.0.9:1", tmp_path / "gone", python=python)
    assert refusal.value.code == "ENGINE_UNREACHABLE"
    assert refusal.value.retryable
