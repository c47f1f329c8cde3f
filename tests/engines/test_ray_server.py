"""Tasks on a shared Ray cluster through a real server: its catalogue, both kinds, a restart (C1, C46)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.training.test_end_to_end import ended, submit, task_of
from support.ray_cluster import PYTHON, RayCluster
from support.server import ServerProcess
from support.waiting import wait_until

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.timeout(600)]

CATALOG = """
regions: [{id: lab}]
clusters: [{id: shared, region: lab, engine: ray, address: "%s"}]
instance_specs:
  - {name: h100x1, type: gpu, cpus: 1, memory_gib: 1, gpus: 1, gpu_model: H100}
pools: [{id: team, cluster: shared, specs: [h100x1]}]
quotas: [{resource_type: ondemand, pool: team, spec: h100x1, units: 4}]
allow_host_image: [shared]
"""
DRIVER = """
python - <<'PY'
import ray
ray.init()
print("sum", sum(ray.get([ray.remote(lambda n=n: n * n).options(num_cpus=0.1).remote() for n in range(4)])))
PY
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, ray_cluster: RayCluster) -> Iterator[ServerProcess]:
    """A server whose catalogue has the cluster and nothing else."""
    place = tmp_path_factory.mktemp("ray-server")
    made = ServerProcess(place / "server", environment={"TRAINSHED_RAY_PYTHON": str(PYTHON)})
    made.start()
    (place / "catalog.yaml").write_text(CATALOG % ray_cluster.address)
    command = [Path(sys.executable).with_name("trainshed"), "catalog", "apply", "--yes", "--json"]
    done = subprocess.run(
        [*command, "-f", place / "catalog.yaml"],
        env={"PATH": "/usr/bin:/bin", **made.environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)
    yield made
    made.stop()


def test_C1_replicas_of_a_task_run_on_nodes_of_the_cluster_and_a_restart_finds_them(server: ServerProcess):
    gate = server.data / "go"
    name = submit(server, workers=1, cmd=f'while [ ! -e {gate} ]; do sleep 0.1; done; echo "rank $RANK"')
    wait_until(lambda: task_of(server, name)["state"] == "Running", 200, "the task to run")
    server.stop()
    server.start()
    assert task_of(server, name)["state"] == "Running"
    gate.touch()
    task = ended(server, name)
    assert task["state"] == "Succeeded", task["failure"]
    (attempt,) = task["attempts"]
    nodes = {replica["node"] for replica in attempt["replicas"]}
    assert all(node.startswith("127.") for node in nodes), nodes
    for role, line in (("master", "rank 0"), ("worker", "rank 1")):
        page = server.http().get(f"/v1/tasks/{name}/logs?role={role}").json
        assert line in [item["content"] for item in page["items"]]
    server.wait_for_release(task["job_id"])


def test_C46_a_driver_runs_in_bundles_of_its_own_on_the_shared_cluster(server: ServerProcess):
    name = submit(server, kind="ray", workers=1, cmd=DRIVER)
    task = ended(server, name)
    log = server.http().get(f"/v1/tasks/{name}/logs?role=submitter").json
    said = [item["content"] for item in log["items"]]
    assert (task["state"], "sum 14" in said) == ("Succeeded", True), said
    server.wait_for_release(task["job_id"])
