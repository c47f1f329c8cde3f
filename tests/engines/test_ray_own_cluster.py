"""Ray tasks with a cluster of their own on this machine: head, workers, submitter as one gang (C46-C54)."""

from __future__ import annotations

import sys
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from engines.conformance import SETTLED, written
from engines.gangs import report
from engines.machinery import LocalHarness
from engines.rayjobs import ENVIRONMENT, ray_launches
from support.ray_cluster import need_ray
from support.waiting import wait_until
from trainshed.control.training.ray_roles import clean_shared_folder, make_shared_folder
from trainshed.engines import EndedBy, Launch, Observation, Phase
from trainshed.jobkit import frames

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.timeout(600)]

_DRIVER = """
python - <<'EOF'
import os, ray
ray.init()

@ray.remote(num_gpus=1)
def work(number):
    print(f"line {number} of a worker", os.environ["TASK_UUID"])
    return ray.get_runtime_context().get_node_id()

nodes = ray.get([work.remote(number) for number in range(2)])
gpus = ray.cluster_resources()["GPU"]
print(f"nodes {len(set(nodes))} gpus {gpus} {os.environ['A']}")  # one piece: nothing comes in between
EOF
ls /tmp/ray > /dev/null && echo mine > /tmp/ray/mine
sleep 2  # what workers print takes a moment to come
echo '$(HOME) $$ "quoted" ü' >&2
exit 3
"""


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalHarness]:
    need_ray()
    harness = LocalHarness(tmp_path, simulate_gpus={"H100": 2})
    yield harness
    harness.close()


def settled(local: LocalHarness, launches: list[Launch]) -> list[Observation]:
    ids = [each.attempt_id for each in launches]

    def look() -> list[Observation] | None:
        found = list(local.engine.observe(ids).values())
        local.pass_time()
        return found if {each.phase for each in found} <= SETTLED else None

    return wait_until(look, 400, "the end of the Ray task")


def log_of(local: LocalHarness, launch: Launch, stream: int = frames.STDOUT) -> str:
    return written(local.engine.logs(launch.attempt_id).frames, stream).decode()


def codes(observations: list[Observation]) -> list[int | None]:
    return [each.exit and each.exit.code for each in observations]


def test_T10_each_line_of_two_nodes_appears_once_and_cleanup_spares_other_tasks(
    local: LocalHarness, tmp_path: Path
) -> None:
    volume = tmp_path / "volume"
    other = make_shared_folder(volume, "task-2") / "kept"
    other.write_text("theirs")
    shared = make_shared_folder(volume, "task-1")
    launches = ray_launches(
        local.engine,
        tmp_path / "files",
        _DRIVER,
        ["local"] * 3,
        gpus=local.engine.nodes()[0].gpus,
        shared_storage=shared,
        runtime_env={"env_vars": {"A": "from the runtime env"}},
    )
    assert local.engine.launch_many(launches) == {}
    ends = settled(local, launches)
    head, first, second, submitter = launches
    log = log_of(local, submitter)
    assert codes(ends) == [0, 0, 0, 3], log + log_of(local, submitter, frames.STDERR)
    for number in range(2):
        assert log.count(f"line {number} of a worker task-1") == 1
    assert "nodes 2 gpus 2.0 from the runtime env" in log
    assert '$(HOME) $$ "quoted" ü\n' in log_of(local, submitter, frames.STDERR)
    assert "==> gcs_server.out <==" in log_of(local, head)
    for worker in (first, second):
        assert "==> raylet.out <==" in log_of(local, worker)
        assert "of a worker" not in log_of(local, worker)
    assert report(local, head.attempt_id, "DRIVER_ENDED").data == {"exit_code": 3}
    assert "DASHBOARD_READY" in [each.code for each in local.engine.reports(head.attempt_id, 0)]
    for launch in launches:
        assert local.engine.release(launch.attempt_id).confirmed
        assert not local.processes(launch.attempt_id)
    assert (shared / "mine").read_text() == "mine\n"
    assert (shared / "n").is_dir()
    clean_shared_folder(volume, "task-1")
    assert not shared.exists()
    assert other.read_text() == "theirs"


def test_C50_the_cluster_is_kept_until_it_is_stopped_and_the_drivers_code_stands(
    local: LocalHarness, tmp_path: Path
) -> None:
    launches = ray_launches(
        local.engine, tmp_path / "files", "echo done; exit 4", ["local"], retention_seconds=3000
    )
    local.engine.launch_many(launches)
    head, submitter = launches

    def kept() -> dict[str, object] | None:
        found = [each for each in local.engine.reports(head.attempt_id, 0) if each.code == "RETAINING"]
        return dict(found[0].data) if found else None

    said = wait_until(kept, 300, "the retention")
    assert said["exit_code"] == 4
    with urllib.request.urlopen(f"{said['url']}/api/version") as answer:
        assert answer.status == 200
    assert local.observe(submitter.attempt_id).phase is Phase.RUNNING
    local.engine.stop(submitter.attempt_id)
    head_end, submitter_end = settled(local, launches)
    assert codes([head_end, submitter_end]) == [0, 4]
    assert submitter_end.exit is not None
    assert submitter_end.exit.ended_by is EndedBy.STOP


@pytest.fixture
def bare_python(tmp_path: Path) -> Callable[[], str]:
    """A PATH with a Python that has no Ray."""

    def make() -> str:
        place = tmp_path / "bin"
        place.mkdir()
        (place / "python").symlink_to(sys.executable)
        return f"{place}:/usr/bin:/bin"

    return make


def test_C7_an_image_without_ray_fails_before_user_code(
    local: LocalHarness, tmp_path: Path, bare_python: Callable[[], str]
) -> None:
    env = {**ENVIRONMENT, "PATH": bare_python()}
    launches = ray_launches(local.engine, tmp_path / "files", "echo ran", ["local"] * 2, env=env)
    # The others look for a head that will not come, and are killed after their grace.
    launches = [replace(each, stop_grace_seconds=2.0) for each in launches]
    local.engine.launch_many(launches)
    head, worker, submitter = settled(local, launches)
    assert head.exit is not None
    assert head.exit.code == 78
    assert head.exit.detail.startswith("IMAGE_LACKS_RAY: there is no `ray` on the PATH")
    for other in (worker, submitter):
        assert other.exit is not None
        assert other.exit.ended_by is EndedBy.GANG
    assert "ran" not in log_of(local, launches[-1])
