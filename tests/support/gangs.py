"""A deployment that runs training tasks on the fake engine: rows are made as acceptance makes them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from support.deployment import FakeDeployment, Inline, fleet
from trainshed.control.controller import Controller
from trainshed.control.training.gangs import Training
from trainshed.control.training.operations import Change, TaskOperations
from trainshed.engines.contract import Observation
from trainshed.engines.fake import Script
from trainshed.model.resources import Node
from trainshed.model.states import OutputStatus, State
from trainshed.model.strict_json import canonical_json
from trainshed.model.training.catalog import (
    ANY,
    Catalog,
    Cluster,
    Engine,
    InstanceSpec,
    Pool,
    Quota,
    Region,
    Volume,
)
from trainshed.model.training.document import to_document
from trainshed.model.training.spec import (
    ExitNotice,
    FaultTolerance,
    Instance,
    InstanceType,
    Kind,
    ResourceType,
    TaskSpec,
)
from trainshed.store import gangs, jobs, tasks
from trainshed.store.database import Database
from trainshed.store.gangs import unit_id
from trainshed.store.records import Attempt, Job, Replica, Task, Trial
from trainshed.store.visibility import Viewer

POOL = "default"
SPECS = (
    InstanceSpec("h100x1", InstanceType.GPU, 8, 64, 1, "H100"),
    InstanceSpec("h100x2", InstanceType.GPU, 16, 128, 2, "H100"),
    InstanceSpec("h100x4", InstanceType.GPU, 32, 256, 4, "H100"),
    InstanceSpec("a100x1", InstanceType.GPU, 8, 64, 1, "A100"),
    InstanceSpec("c2", InstanceType.CPU, 2, 4),
)


def catalog(
    quotas: Sequence[Quota] | None = None, *, volumes: Sequence[Volume] = (), pools: Sequence[Pool] = ()
) -> Catalog:
    """One cluster on this machine, one pool, every spec; a hundred units of everything for everybody."""
    named = tuple(spec.name for spec in SPECS)
    made = pools or (Pool(POOL, "local", named),)
    if quotas is None:
        quotas = [Quota(ANY, kind, pool.id, ANY, 100) for kind in ResourceType for pool in made]
    return Catalog(
        regions=(Region("local"),),
        clusters=(Cluster("local", "local", Engine.LOCAL),),
        pools=tuple(made),
        instance_specs=SPECS,
        quotas=tuple(quotas),
        volumes=tuple(volumes),
        allow_host_image=(ANY,),
    )


def two_clusters() -> Catalog:
    """This machine, and a Ray cluster with a pool of its own."""
    named = tuple(spec.name for spec in SPECS)
    near = catalog(pools=[Pool(POOL, "local", named), Pool("far", "far", named)])
    far = Cluster("far", "local", Engine.RAY, "10.0.0.1:6379")
    return replace(near, clusters=(*near.clusters, far))


def task(**changes: Any) -> TaskSpec:
    """A pytorch task of one replica on one GPU; `specs`, `count` and `tries` are short for longer fields."""
    specs = changes.pop("specs", ("h100x1",))
    count = changes.pop("count", 1)
    if (tries := changes.pop("tries", None)) is not None:
        changes["fault_tolerance"] = FaultTolerance(
            enabled=True, max_resubmissions=tries, replace_node=changes.pop("replace_node", False)
        )
    if (notice := changes.pop("notice", None)) is not None:
        changes["exit_notice"] = ExitNotice(enabled=True, timeout_seconds=notice)
    values: dict[str, Any] = {
        "kind": Kind.PYTORCH,
        "name_prefix": "task",
        "image": "host",
        "cmd": "torchrun train.py",
        "resource_type": ResourceType.ONDEMAND,
        "instance": Instance(None, tuple(specs), count),
        "region": "local",
        "cluster": "local",
        "project": "default",
        "pool": POOL,
    }
    return TaskSpec(**{**values, **changes})


class GangDeployment(FakeDeployment):
    """See the module's description."""

    def __init__(
        self,
        database: Database,
        root: Path,
        *,
        nodes: Sequence[Node] = (fleet(4, name="n1"), fleet(4, name="n2")),
        default: Script | None = None,
        catalog_: Catalog | None = None,
        open_engine: Any = None,
        **options: Any,
    ) -> None:
        self.catalog = catalog_ or catalog()
        self.hidden: dict[str, dict[str, str]] = {}
        self.created: list[str] = []
        """Jobs, for whoever repeats what may have been done before a crash."""
        self.revision = 1
        self._number = itertools.count(1)
        options["training"] = Training(
            lambda _connection: (self.revision, self.catalog),
            lambda sealed: {} if sealed is None else self.hidden[sealed],
            root / "gangs",
            open_engine,
        )
        super().__init__(database, root, nodes=nodes, default=default, **options)
        self.operations = TaskOperations(database)

    def change_catalog(self, changed: Catalog) -> None:
        self.catalog, self.revision = changed, self.revision + 1

    def create(
        self,
        spec: TaskSpec | None = None,
        *,
        owner: str = "ann",
        priority: int = 500,
        secrets: Mapping[str, str] | None = None,
        image: str | None = None,
    ) -> str:
        """Accept a task; answers its Job's id."""
        spec = spec or task()
        number = next(self._number)
        job_id, trial_id, now = self.ids.job(), self.ids.trial(), self.now()
        project = spec.project or "default"
        if secrets:
            self.hidden[trial_id] = dict(secrets)
        job = Job(
            job_id,
            project,
            f"request-{number}",
            "train",
            "{}",
            "queued",
            f"human:{owner}",
            now,
            now,
            None,
            None,
        )
        trial = {
            "id": trial_id,
            "job_id": job_id,
            "project_id": project,
            "position": 0,
            "name": f"task-{number:06}",
            "state": State.QUEUED,
            **dict.fromkeys(("runner", "revision", "selector", "snapshot_sha256", "entrypoint"), ""),
            "gpu_type": "",
            **dict.fromkeys(("gpus", "cpus", "memory_mb", "storage_mb", "shm_mb"), 0),
            "timeout_seconds": spec.max_run_seconds or 10**8,
            "outputs": "[]",
            "params": "{}",
            "tags": "{}",
            "created_at": now,
            "priority": 0,
            "queue_rank": now,
            "not_before": 0.0,
            "launch_failures": 0,
            "updated_at": now,
            "user_code_started": False,
            "output_status": OutputStatus.NONE,
            "image_requested": image,
            "image_resolved": image,
            "kind": spec.kind.value,
        }
        made = Task(
            trial_id=trial_id,
            job_id=job_id,
            project_id=project,
            task_uuid=f"uuid-{number:06}",
            name=f"task-{number:06}",
            kind=spec.kind.value,
            owner=owner,
            spec=canonical_json(to_document(spec)),
            secrets=trial_id if secrets else None,
            spec_sha256="0" * 64,
            region="local",
            cluster=spec.cluster or "local",
            pool=spec.pool or POOL,
            resource_type=spec.resource_type.value,
            guarantee=bool(spec.guarantee),
            catalog_revision=self.revision,
            submitted_at=now,
            totals="{}",
            public=False,
            priority_class="normal",
            priority=priority,
            queued_at=now,
            next_cause="initial",
            resubmissions=0,
            excluded_nodes="[]",
            chosen_spec=None,
            plan=None,
            stage=None,
            retained_until=None,
            deleted_at=None,
            deleted_by=None,
        )
        self.database.write(
            lambda connection: tasks.insert_task(connection, job, trial, made, {}, sentence="Submitted.")
        )
        return job_id

    def stop(self, job_id: str, trial: Trial | None = None) -> Job:
        return super().stop(job_id, trial)

    def delete(self, job_id: str) -> None:
        self.operations.delete(self.viewer(), job_id, at=self.now(), actor="human:ann")

    def resubmit(self, job_id: str) -> None:
        self.operations.resubmit(self.viewer(), job_id, at=self.now(), actor="human:ann")

    def set_priority(self, job_id: str, priority: int) -> None:
        change = Change(priority=(str(priority), priority))
        self.operations.change(self.viewer(), job_id, change, at=self.now(), actor="human:ann")

    def boot_quietly(self) -> None:
        """Another controller on the same rows, which has not looked yet; the first one lives on."""
        self.controller = Controller(
            self.database,
            self.engine,
            self.blobs,
            self.policy,
            self.now,
            self.ids,
            content=self.content(),
            **{"executor": lambda _: Inline(), **self.options},
        )

    def viewer(self, project: str = "default") -> Viewer:
        return Viewer(project, "ann", everything=True)

    # What is there

    def trial(self, job_id: str) -> Trial:
        return self.facts(job_id).trial

    def task(self, job_id: str) -> Task:
        with self.database.read() as connection:
            return gangs.of_trials(connection, [self.trial(job_id).id])[self.trial(job_id).id][1]

    def attempts(self, job_id: str) -> list[Attempt]:
        trial = self.trial(job_id)
        with self.database.read() as connection:
            return jobs.attempts_of(connection, [trial.id])[trial.id]

    def replicas(self, job_id: str) -> list[Replica]:
        """Those of the newest Attempt."""
        attempt = self.attempts(job_id)[-1]
        with self.database.read() as connection:
            return gangs.replicas_of(connection, [attempt.id])[attempt.id]

    def units(self, job_id: str) -> list[str]:
        """The members of the newest Attempt, by rank."""
        return [unit_id(replica.attempt_id, replica.rank) for replica in self.replicas(job_id)]

    def parts(self, job_id: str) -> list[Any]:
        """What the newest Attempt holds."""
        trial = self.trial(job_id)
        held = self.facts(job_id).allocations[trial.id][-1]
        return list(json.loads(held.parts or "[]"))

    def nodes_of(self, job_id: str) -> list[str]:
        return [replica.node for replica in self.replicas(job_id)]

    def seen(self, job_id: str) -> list[Observation]:
        units = self.units(job_id)
        found = self.engine.observe(units)
        return [found[unit] for unit in units]

    def members(self, job_id: str, ranks: Sequence[int] | None = None, **changes: Any) -> None:
        """Change from now on what members of the newest Attempt do; all of them by default."""
        for rank, unit in enumerate(self.units(job_id)):
            if ranks is None or rank in ranks:
                known = self.world.attempts[unit].script
                self.engine.script(unit, replace(known, **changes))

    def until(self, job_id: str, *states: State, pause: float = 1.0) -> Trial:
        """Run until the task is in one of these states."""
        self.run_until(lambda: self.trial(job_id).state in states, pause=pause)
        return self.trial(job_id)
