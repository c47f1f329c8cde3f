"""Packed projects on a real Ray cluster, through a real server and `gpu` (contract G; engine ray)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from engines.providers.conformance import ProviderRules
from engines.providers.test_local import LocalHarness
from engines.rays import holder_of
from support.gpu_line import Line
from support.projects import project, write
from support.ray_cluster import PYTHON, RayCluster
from support.server import ServerProcess
from support.waiting import wait_until
from trainshed.engines.contract import Limits
from trainshed.engines.providers.contract import Run, Unavailable
from trainshed.engines.providers.engine_runs import Room
from trainshed.engines.providers.ray import RayProvider
from trainshed.engines.ray import open_ray_engine
from trainshed.engines.ray.units import root as root_of
from trainshed.sdk import Client

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.timeout(600)]

TRAINSHED = Path(sys.executable).with_name("trainshed")
CATALOG = """
regions: [{id: lab}]
clusters: [{id: shared, region: lab, engine: ray, address: "%s"}]
instance_specs:
  - {name: h100x1, type: gpu, cpus: 2, memory_gib: 1, gpus: 1, gpu_model: H100}
pools: [{id: packed, cluster: shared, specs: [h100x1]}]
quotas: [{resource_type: reserved, pool: packed, spec: h100x1, units: 2}]
"""
TRAIN = """
import os, pathlib, sys, time, gpu
print("attempt", os.environ["TRAINSHED_ATTEMPT"], (gpu.data_dir() / "set" / "a.csv").read_text(), flush=True)
gpu.total_steps(2)
if gpu.resume_dir() is None:
    with gpu.checkpoint(1) as place:
        (place / "state.bin").write_bytes(b"one" * 1000)
    while True:
        time.sleep(0.1)
assert next(gpu.resume_dir().rglob("state.bin")).read_bytes() == b"one" * 1000
out = gpu.output_dir()
(out / "large.bin").write_bytes(bytes(range(256)) * 4096 * 70)
(out / "tiny.txt").write_text("tiny")
(out / "link").symlink_to("/etc/passwd")
gpu.log(2, loss=0.5)
"""


class RayProviderHarness(LocalHarness):
    """Real programs on a real cluster."""

    def __init__(self, root: Path, cluster: RayCluster) -> None:
        self.cluster = cluster
        self._root = root
        self._attempts = set()
        self.engine = open_ray_engine("shared", cluster.address, root / "engine", python=str(PYTHON))
        self.reopen()

    def reopen(self) -> None:
        room = Room((), Limits(1, 500, 2000, 64), 600, 1.0, self.cluster.nodes[1])
        self.provider = RayProvider("shared", lambda: self.engine, lambda _attempt: room, self.engine.nodes)

    def written(self) -> str:
        """The engine lets go of what it was asked once it has seen the end, a moment after it says so."""
        attempts = self._root / "engine" / "attempts"
        wait_until(lambda: not list(attempts.glob("*/intent.json")), what="the end of all intents")
        return super().written()


@pytest.fixture
def harness(tmp_path: Path, ray_cluster: RayCluster) -> Iterator[RayProviderHarness]:
    made = RayProviderHarness(tmp_path, ray_cluster)
    yield made
    for attempt in made._attempts:
        made.engine.release(attempt)
    made.engine.close()


class TestRayProvider(ProviderRules):
    """See `engines.providers.conformance`."""


def test_without_a_connection_nothing_is_known_and_nothing_is_lost():
    absent = RayProvider(None, lambda: None, lambda _attempt: pytest.fail("asked for a room"), lambda: ())
    assert absent.healthcheck().ok is False
    for call in (absent.status, absent.cancel, absent.release):
        with pytest.raises(Unavailable, match="not connected"):
            call(Run("att_1"))
    assert list(absent.offers()) == []


@pytest.fixture(scope="module")
def gpu_on_ray(
    tmp_path_factory: pytest.TempPathFactory, ray_cluster: RayCluster
) -> Iterator[tuple[Line, ServerProcess]]:
    """`gpu`, and its user's server whose packed projects may run on the cluster."""
    place = tmp_path_factory.mktemp("gpu-ray")
    (place / "server.toml").write_text('[providers]\nuse = ["ray"]\nretry_seconds = 0.2\n')
    server = ServerProcess(place / "server", options=["--config", str(place / "server.toml")])
    server.start(environment={"TRAINSHED_RAY_PYTHON": str(PYTHON)})
    (place / "catalog.yaml").write_text(CATALOG % ray_cluster.address)
    applied = subprocess.run(
        [TRAINSHED, "catalog", "apply", "-f", place / "catalog.yaml", "--yes"],
        env={**os.environ, **server.environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert applied.returncode == 0, applied.stderr
    yield Line(server.environment), server
    server.stop()


def test_g9_a_folder_runs_on_a_cluster_goes_on_after_a_loss_and_brings_large_outputs_home(
    gpu_on_ray: tuple[Line, ServerProcess], tmp_path: Path
):
    gpu, server = gpu_on_ray
    folder = project(tmp_path / "proj", {"train.py": TRAIN, ".gitignore": "data/\n"})
    write(folder, {"data/a.csv": "1,2"})
    wait_until(lambda: _offers(server), 120, "the cluster to offer its GPUs")
    job = gpu.json("run", "-p", "ray", "--data", "set=data", "train.py", folder=folder)["job"]["id"]
    wait_until(lambda: _saved(gpu, job), 200, "a checkpoint that is kept here")
    os.kill(_host_of(server), signal.SIGKILL)
    seen = wait_until(lambda: _ended(gpu, job), 200, "its end")
    log = gpu("logs", job).out
    assert seen["job"]["state"] == "done", log
    assert [each["state"] for each in seen["attempts"]] == ["lost", "succeeded"]
    assert [each["resumed_from"] for each in seen["attempts"]] == [None, 1]
    assert "attempt 1 1,2" in log
    assert "attempt 2 1,2" in log
    outputs = folder / "runs" / seen["job"]["short_id"]
    assert sorted(path.name for path in outputs.iterdir()) == ["large.bin", "tiny.txt"]
    assert (outputs / "large.bin").stat().st_size == 70 << 20
    placed = [each["message"] for each in seen["events"] if each["reason"] == "placed"]
    assert all("h100x1 in pool packed" in said for said in placed), placed
    wait_until(lambda: server.wait_for_release(seen["job"]["id"]), 60, "the proof that all is released")


def _offers(server: ServerProcess) -> bool:
    with Client(server.url, server.key) as client:
        found = [each for each in client.providers.list()["items"] if each["name"] == "ray"]
    return bool(found) and found[0]["health"] == "ok" and bool(found[0]["gpus"])


def _saved(gpu: Line, job: str) -> bool:
    """Whether a checkpoint of it is kept here."""
    seen = gpu.json("status", job)
    assert not seen["job"]["finished_at"], gpu("logs", job).out
    return bool(seen["checkpoints"])


def _ended(gpu: Line, job: str) -> dict:
    seen = gpu.json("status", job)
    return seen if seen["job"]["finished_at"] and seen["job"]["outputs_fetched"] else {}


def _host_of(server: ServerProcess) -> int:
    """The process that watches over the one Attempt on its node, which is this machine."""
    mirror = server.data / "engines" / "shared"
    instance = json.loads((mirror / "instance.json").read_text())["id"]
    (unit,) = (path.name for path in (mirror / "attempts").iterdir())
    return holder_of(Path(root_of(unit, instance)) / "engine" / "notify")
