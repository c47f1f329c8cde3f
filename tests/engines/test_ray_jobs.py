"""Ray tasks on a shared cluster: the driver is a Ray Job inside a placement group of ours (X8)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from engines.conformance import SETTLED, written
from engines.rayjobs import ENVIRONMENT, ray_launches
from engines.rays import RayHarness
from support.ray_cluster import RayCluster
from support.waiting import wait_until
from trainshed.engines import EndedBy, Launch, Observation
from trainshed.jobkit import frames

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.timeout(600)]

_DRIVER = """
python - <<'EOF'
import os, ray
ray.init()

@ray.remote(num_cpus=0, num_gpus=1)
def inner():
    return ray.util.get_current_placement_group().id.hex()

@ray.remote(num_cpus=1)
def outer():
    print("a worker says", os.environ["TASK_UUID"], os.environ["A"], os.environ.get("TOKEN"))
    return ray.util.get_current_placement_group().id.hex(), ray.get(inner.remote())

own = ray.util.get_current_placement_group()
mine, child = ray.get(outer.remote())
held = own.id.hex() == mine == child
print(f"captured {held} {len(own.bundle_specs)} secret {len(os.environ['TOKEN'])}")
EOF
sleep 2
exit 5
"""


@pytest.fixture
def harness(tmp_path: Path, ray_cluster: RayCluster) -> Iterator[RayHarness]:
    harness = RayHarness(tmp_path, ray_cluster)
    yield harness
    harness.close()


def settled(harness: RayHarness, launches: list[Launch]) -> list[Observation]:
    def look() -> list[Observation] | None:
        found = list(harness.engine.observe([each.attempt_id for each in launches]).values())
        harness.pass_time()
        return found if {each.phase for each in found} <= SETTLED else None

    return wait_until(look, 200, "the end of the Ray task")


def log_of(harness: RayHarness, launch: Launch, stream: int = frames.STDOUT) -> str:
    return written(harness.engine.logs(launch.attempt_id).frames, stream).decode()


def test_X8_what_the_driver_starts_stays_in_the_bundles_of_its_task(
    harness: RayHarness, tmp_path: Path
) -> None:
    launches = ray_launches(
        harness.engine,
        tmp_path / "files",
        _DRIVER,
        harness.cluster.nodes[:2],
        gpus=harness.engine.nodes()[0].gpus,
        env=ENVIRONMENT,
        secrets={"TOKEN": "correct-horse-battery"},
        runtime_env={"env_vars": {"A": "from the runtime env"}},
        metadata={"project": "default"},
    )
    assert harness.engine.launch_many(launches) == {}
    ends = settled(harness, launches)
    log = log_of(harness, launches[-1])
    codes = [each.exit and each.exit.code for each in ends]
    assert codes == [0, 0, 5], log + log_of(harness, launches[-1], frames.STDERR)
    assert log.count("a worker says task-1 from the runtime env None") == 1
    assert "captured True 2 secret 21" in log
    assert "python-core-worker-" in log_of(harness, launches[0]) + log_of(harness, launches[1])
    for launch in launches:
        assert harness.engine.release(launch.attempt_id).confirmed
    assert harness.left() == []


def test_C54_a_stop_of_the_submitter_stops_the_job_and_ends_the_task(
    harness: RayHarness, tmp_path: Path
) -> None:
    cmd = "trap 'echo trapped; exit 7' TERM; echo running; while :; do sleep 0.1; done"
    # Ray refuses a submission id that was ever used on the cluster: this is another task.
    nodes = harness.cluster.nodes[:1]
    launches = ray_launches(harness.engine, tmp_path / "files", cmd, nodes, gang_id="ray-2")
    harness.engine.launch_many(launches)
    head, submitter = launches
    log = harness.engine.logs(submitter.attempt_id).frames
    wait_until(lambda: log.exists() and b"running\n" in written(log), 120, "the driver")
    harness.engine.stop(submitter.attempt_id)
    head_end, end = settled(harness, launches)
    assert log_of(harness, submitter) == "running\ntrapped\n"
    assert end.exit is not None
    assert (end.exit.code, end.exit.ended_by) == (7, EndedBy.STOP)
    assert head_end.exit is not None
    assert head_end.exit.code == 0
    assert head.attempt_id.endswith(".0")
