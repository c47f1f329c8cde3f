"""A real Ray cluster on this machine: nodes at loopback addresses of their own, with simulated GPUs."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.processes import all_pids, command_of
from support.waiting import wait_until
from trainshed.jobkit import procs, ray_wire

PYTHON = Path(__file__).resolve().parents[2] / ".venv-ray" / "bin" / "python"
_GPUS, _CPUS = 4, 8
_START_SECONDS = 150.0
_TRIES = 3
_STARTED = "Ray runtime started."
_CHILDREN: list[subprocess.Popen[bytes]] = []
"""Of this process; whoever ends the cluster need not be their parent."""


def need_ray() -> Path:
    """The interpreter that has Ray."""
    if os.environ.get("TRAINSHED_TEST_RAY") == "no":
        pytest.skip("TRAINSHED_TEST_RAY=no")
    if not PYTHON.exists():
        pytest.fail("Ray is missing: run scripts/install-ray")
    return PYTHON


@dataclass(frozen=True, slots=True)
class RayCluster:
    """One cluster; whoever has the folder can add nodes and end it."""

    folder: Path
    net: str
    gcs: int

    @property
    def address(self) -> str:
        return f"{self.net}.2:{self.gcs}"

    @property
    def nodes(self) -> list[str]:
        """Addresses of the three that are always there."""
        return [f"{self.net}.{number}" for number in (2, 3, 4)]

    def start(self) -> None:
        """The head, then one node after the other: at once they race for the names of their sockets."""
        dashboard, client = ray_wire.free_ports(2)
        self._node(
            2,
            "--head",
            f"--port={self.gcs}",
            f"--dashboard-host={self.net}.2",
            f"--dashboard-port={dashboard}",
            f"--ray-client-server-port={client}",
            "--disable-usage-stats",
        )
        for number in (3, 4):
            self.add_node(number)

    def add_node(self, number: int) -> str:
        """Another node; its address."""
        self._node(number, f"--address={self.address}")
        return f"{self.net}.{number}"

    def _node(self, number: int, *words: str) -> None:
        """Ray gives a node 30 seconds, which a machine that is busy with other tests may not keep."""
        for tried in range(_TRIES):
            if self._started(number, *words, last=tried == _TRIES - 1):
                return

    def _started(self, number: int, *words: str, last: bool) -> bool:
        place = self.folder / str(number)
        place.mkdir(exist_ok=True)
        log = self.folder / f"{number}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [
                    PYTHON.with_name("ray"),
                    "start",
                    *words,
                    f"--node-ip-address={self.net}.{number}",
                    f"--temp-dir={place}",
                    f"--num-cpus={_CPUS}",
                    f"--num-gpus={_GPUS}",
                    "--object-store-memory=80000000",
                    "--labels=trainshed-gpu-model=H100,trainshed-simulated=true",
                    "--min-worker-port=0",
                    "--max-worker-port=0",
                    f"--dashboard-agent-listen-port={ray_wire.free_ports(1)[0]}",
                    "--block",
                ],
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        _CHILDREN.append(process)
        (self.folder / f"{number}.pid").write_text(str(process.pid))

        def started() -> bool:
            return process.poll() is not None or _STARTED in log.read_text()

        wait_until(started, _START_SECONDS, f"node {number} of the Ray cluster")
        assert process.poll() is None or not last, log.read_text()
        return process.poll() is None

    def kill_node(self, number: int) -> None:
        """As a machine dies: everything of the node at once, what it was running for us included."""
        pid = int((self.folder / f"{number}.pid").read_text())
        for each in [pid, *procs.descendants(pid)]:
            procs.send(each, signal.SIGKILL)

    def stop(self) -> None:
        """End every process of it, by pid."""
        for file in self.folder.glob("*.pid"):
            procs.send(int(file.read_text()), signal.SIGTERM)

        def ended() -> bool:
            return not self._left()

        try:
            wait_until(ended, 10.0)
        except AssertionError:
            for pid in self._left():
                procs.send(pid, signal.SIGKILL)
            wait_until(ended, 20.0, "the end of the Ray cluster")
        for child in _CHILDREN:
            child.wait()
        shutil.rmtree(self.folder)

    def _left(self) -> list[int]:
        name = str(self.folder)
        with_name = [pid for pid in all_pids() if name in command_of(pid)]
        return [pid for pid in with_name if procs.start_time(pid) is not None]


def _environment() -> dict[str, str]:
    path = f"{PYTHON.parent}{os.pathsep}{os.environ['PATH']}"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    return {**kept, "PATH": path, "RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}


@contextmanager
def shared_cluster(place: Path) -> Iterator[RayCluster]:
    """One cluster for all processes of a test run that share ``place``: the last one ends it."""
    need_ray()
    place.mkdir(parents=True, exist_ok=True)
    with _state(place) as state:
        if not state:
            # Its sockets need a short path, and it outlives the worker that happened to start it.
            folder = Path(tempfile.mkdtemp(prefix="tsr", dir="/tmp"))
            net = f"127.{32 + os.getpid() % 24}.{os.getpid() % 250}"
            cluster = RayCluster(folder, net, ray_wire.free_ports(1)[0])
            try:
                cluster.start()
            except BaseException:
                cluster.stop()
                raise
            state |= {"folder": str(folder), "net": net, "gcs": cluster.gcs, "users": 0}
        state["users"] += 1
        cluster = RayCluster(Path(state["folder"]), state["net"], state["gcs"])
    try:
        yield cluster
    finally:
        with _state(place) as state:
            state["users"] -= 1
            if state["users"] == 0:
                cluster.stop()
                state.clear()


@contextmanager
def _state(place: Path) -> Iterator[dict]:
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        file = place / "state.json"
        state = json.loads(file.read_text()) if file.exists() else {}
        yield state
        file.write_text(json.dumps(state))


def run_python(code: str, *arguments: str) -> str:
    """Run a program with the Python that has Ray; what it prints."""
    done = subprocess.run(
        [PYTHON, "-c", code, *arguments], env=_environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    sys.stderr.write(done.stderr)
    return done.stdout
