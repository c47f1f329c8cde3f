"""Driving a Ray engine on a real cluster."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from engines.conformance import LIMITS, Behaviour, Harness
from engines.machinery import _SHELL, _STARTED
from support.processes import all_pids
from support.ray_cluster import PYTHON, RayCluster
from support.waiting import wait_until
from trainshed.engines import Gang, Launch, Role
from trainshed.engines.ray import RayEngine, open_ray_engine
from trainshed.engines.ray.units import root as root_of


class RayHarness(Harness):
    engine: RayEngine

    def __init__(self, path: Path, cluster: RayCluster) -> None:
        self.path = path
        self.cluster = cluster
        self._starts = path / "starts"
        self._starts.mkdir()
        self.engine = self._open()

    def _open(self) -> RayEngine:
        return open_ray_engine("shared", self.cluster.address, self.path / "engine", python=str(PYTHON))

    def launch(
        self, attempt_id: str, behaviour: Behaviour, *, timeout: int = 60, grace: float = 30.0
    ) -> Launch:
        argv = ("no-such-program",)
        if behaviour is not Behaviour.CANNOT_BE_EXECUTED:
            text = _SHELL[behaviour]
            argv = ("bash", "-c", text if _STARTED in text else f"{_STARTED}; {text}")
        env = {"STARTS": str(self._starts / attempt_id)}
        return Launch(attempt_id, argv, env, (), (), LIMITS, timeout, grace)

    def gang(
        self,
        texts: Sequence[str],
        *,
        nodes: Sequence[str] | None = None,
        gang_id: str = "gang-1",
        env: Mapping[str, str] | None = None,
    ) -> list[Launch]:
        """Launches of a gang with one member, of one GPU, on each node."""
        nodes = nodes or self.cluster.nodes[: len(texts)]
        meeting = self.engine.meet(gang_id, nodes, [1] * len(texts))
        gpu = self.engine.nodes()[0].gpus[0]
        return [
            Launch(
                f"{gang_id}.{rank}",
                ("bash", "-c", text),
                {"RANK": str(rank), **(env or {})},
                (),
                (gpu,),
                LIMITS,
                600,
                5.0,
                gang=Gang(
                    gang_id,
                    rank,
                    len(texts),
                    Role.WORKER if rank else Role.MASTER,
                    nodes[rank],
                    meeting,
                    120.0,
                ),
            )
            for rank, text in enumerate(texts)
        ]

    def pass_time(self) -> None:
        self.engine.changed(0.2)

    def reopen(self) -> None:
        self.engine.close()
        self.engine = self._open()

    def lose(self, attempt_id: str) -> None:
        """Kill the actor: nobody on its node watches the program any more but our own tether."""
        os.kill(self.host_pid(attempt_id), signal.SIGKILL)

    def node_folder(self, attempt_id: str) -> Path:
        """Where the replica lies on its node, which is this machine."""
        return Path(root_of(attempt_id, self.engine.instance))

    def host_pid(self, attempt_id: str) -> int:
        """The process of the actor: the one that listens to the replica's shim."""
        return holder_of(self.node_folder(attempt_id) / "engine" / "notify")

    def starts(self, attempt_id: str) -> int:
        marks = self._starts / attempt_id
        return len(marks.read_text().splitlines()) if marks.exists() else 0

    def left(self) -> list[str]:
        """What of ours is on the cluster, and in its nodes' folders."""
        mine = self.engine._channel.call("mine")
        place = self.node_folder("x").parent
        folders = [path.name for path in place.iterdir()] if place.exists() else []
        return [*mine["units"], *mine["groups"], *folders]

    def close(self) -> None:
        self.engine.sweep(())
        left = wait_until(lambda: not self.left(), what="the end of all of ours on the cluster")
        assert left
        self.engine.close()


def holder_of(place: Path) -> int:
    """The process that has ``place`` open."""

    def find() -> int | None:
        for pid in all_pids():
            with contextlib.suppress(OSError):
                opened = [entry.readlink() for entry in Path(f"/proc/{pid}/fd").iterdir()]
                if any(str(each) == str(place) for each in opened):
                    return pid
        return None

    return wait_until(find, what=f"whoever has {place} open")
