"""A deployment in memory whose packed projects run on a Ray cluster of the catalogue, beside tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from support.cloud import WithScripts
from support.deployment import fleet
from support.gangs import SPECS, GangDeployment, task, two_clusters
from trainshed.engines.contract import EngineError
from trainshed.engines.fake import FakeRemoteEngine, Script
from trainshed.engines.fake.scripts import World
from trainshed.engines.providers.fake import RemoteWorld
from trainshed.model.states import State
from trainshed.model.training.catalog import ANY, Catalog, Quota
from trainshed.model.training.spec import ResourceType
from trainshed.store.database import Database
from trainshed.store.records import Allocation

FIRST = "10.0.0.1:6379"
KEY = f"ray:{FIRST}"


def far_catalog(reserved: int = 2, **quotas: int) -> Catalog:
    """A Ray cluster with a pool of its own, ``reserved`` units of each spec for everybody; others by type."""
    units = {"reserved": reserved, "idle": 0, **quotas}
    rows = [
        Quota(ANY, ResourceType(kind), "far", spec.name, many)
        for kind, many in units.items()
        for spec in SPECS
        if many
    ]
    known = two_clusters()
    near = [row for row in known.quotas if row.pool != "far"]
    return replace(known, quotas=(*near, *rows))


class ClusterDeployment(WithScripts, GangDeployment):
    """See the module's description; ``far`` is the cluster's engine."""

    has_local = False

    def __init__(self, database: Database, root: Path, **options: Any) -> None:
        self.clouds: dict[str, RemoteWorld] = dict(options.pop("clouds", {}))
        self.gpus = options.pop("gpus", 2)
        self.course = options.pop("course", Script(run_seconds=60.0, files={"outputs/model.bin": b"weights"}))
        self.connected = self.provider = True
        self.fars: dict[str, FakeRemoteEngine] = {}
        """The engine of every cluster that was opened, by its address."""
        options.setdefault("catalog_", far_catalog())
        options["nodes"] = (fleet(1, name="n1"),)
        super().__init__(database, root, open_engine=self._open, **options)

    def boot(self) -> None:
        self.script_options = {
            "ray": self.provider,
            "read_catalog": lambda _connection: (self.revision, self.catalog),
        }
        super().boot()

    def _open(self, cluster: Any) -> FakeRemoteEngine:
        if not self.connected:
            raise EngineError("ENGINE_UNREACHABLE", "no route", retryable=True)
        address = cluster.address
        before = self.fars.get(address)
        place = self.root / ("far" if address == FIRST else f"far-{address.partition(':')[0]}")
        name = "far1" if address == FIRST else "other1"
        made = FakeRemoteEngine(place, nodes=[fleet(self.gpus, name=name)], default=self.course)
        if address == FIRST:
            made.world = self.world
        else:
            made.world = before.world if before is not None else World(now=self.now())
        if before is not None:  # what lies on the nodes outlives a server
            made.launched, made.asked = before.launched, before.asked
        self.fars[address] = made
        if address == FIRST:
            self.far = made
        return made

    def pass_time(self, seconds: float) -> None:
        super().pass_time(seconds)
        for engine in self.fars.values():
            if engine.world is not self.world:
                engine.advance(seconds)

    def held_there(self) -> Sequence[Allocation]:
        """What holds nodes of the cluster."""
        return [a for a in self.unreleased() if a.engine == KEY]

    def until_running(self, job_id: str) -> None:
        """Let time pass until the task runs."""
        GangDeployment.until(self, job_id, State.RUNNING)

    def far_task(self, **changes: Any) -> str:
        """Submit a training task to the cluster; answers its Job."""
        priority = changes.pop("priority", 500)
        return self.create(task(cluster="far", pool="far", **changes), priority=priority)
