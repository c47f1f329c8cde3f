"""A Ray cluster of a task's own loses workers, without a server: above its least, and below (C51, c8)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from engines.conformance import SETTLED, written
from engines.machinery import LocalHarness
from engines.rayjobs import ray_launches
from support.ray_cluster import need_ray
from support.waiting import wait_until
from trainshed.control.training.ray_roles import RayScaling
from trainshed.control.training.scaling import WANTED
from trainshed.engines import EndedBy, Phase

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.timeout(600)]


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalHarness]:
    need_ray()
    harness = LocalHarness(tmp_path, simulate_gpus={"H100": 2})
    yield harness
    harness.close()


def test_C51_c8_a_cluster_goes_on_without_a_worker_and_ends_below_its_least(
    local: LocalHarness, tmp_path: Path
) -> None:
    launches = ray_launches(
        local.engine,
        tmp_path / "files",
        "echo running; sleep 600",
        ["local"] * 3,
        scaling=RayScaling(1, 3, 600.0),
    )
    head, first, second, submitter = launches
    assert local.engine.launch_many(launches) == {}

    def joined() -> list[object]:
        said = local.engine.reports(head.attempt_id, 0)
        return [each.data["joined"] for each in said if each.code == WANTED]

    log = local.engine.logs(submitter.attempt_id).frames
    wait_until(lambda: log.exists() and b"running\n" in written(log), 300, "the driver")
    wait_until(lambda: joined() == [[1, 2]], 100, "what the head says")
    local.lose(second.attempt_id)
    wait_until(lambda: joined()[-1] == [1], 100, "what the head says of the loss")
    for each in (head, first, submitter):
        assert local.observe(each.attempt_id).phase is Phase.RUNNING
    local.lose(first.attempt_id)

    def over() -> bool:
        seen = local.engine.observe([head.attempt_id, submitter.attempt_id])
        return {each.phase for each in seen.values()} <= SETTLED

    wait_until(over, 200, "the end of the gang")
    ended = local.observe(head.attempt_id).exit
    assert ended is not None
    assert ended.code == 1
    assert ended.detail.startswith("RAY_WORKERS_LOST: 0 workers are left, fewer than the 1 of the task")
    last = local.observe(submitter.attempt_id).exit
    assert last is not None
    assert last.ended_by in {EndedBy.GANG, EndedBy.EXIT}
    for launch in launches:
        assert local.engine.release(launch.attempt_id).confirmed
