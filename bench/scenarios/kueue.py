"""Kueue's three performance generators: its tasks, quotas and arrivals, our queue, quotas and database.

Arrivals and run times are on a virtual clock; passes and one durable commit for each admission (Attempt,
replicas and Allocation, SQLite with `synchronous=FULL`) take real time, and nothing else is measured. So the
rate is what our own work allows, and how long it would all take is told on the virtual clock, as if that work
took none. Kueue's published rates include an API server and a controller that watches it, and are bounded by
the run times of the tasks: they say what its users see, not what its algorithm could do.
"""

from __future__ import annotations

import heapq
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from sqlalchemy import Connection, insert

from bench.figures import Bench, Figure, Peer
from trainshed.model.resources import Amounts, Gpu, Node
from trainshed.model.states import AllocationState
from trainshed.model.training.catalog import Quota
from trainshed.model.training.spec import ResourceType, Role
from trainshed.policy.gangs import (
    Admission,
    Choice,
    GangClass,
    GangCluster,
    GangQueue,
    GangRules,
    PlaceNode,
    QuotaTable,
    ReplicaNeed,
    Running,
    Waiting,
    decide,
)
from trainshed.store import gangs, tables
from trainshed.store.database import Database
from trainshed.store.records import Allocation
from trainshed.store.schema import migrate

_SPEC = "unit"
_GPU = "NVIDIA H100 80GB HBM3"
_RULES = GangRules(max_admissions=100_000, min_run_seconds=inf, overhead_seconds=0.0)
_FULL_SIZE = 50_000
_QUICK_SHARE = 0.1
"""Of the queues in a quick run, each whole; still smaller runs have fewer tasks in each."""
_BATCH = 5_000


@dataclass(frozen=True, slots=True)
class Kind:
    """One class of tasks of one queue: how many, what they take, and when they come."""

    name: str
    count: int
    pods: int
    units: int
    """Of each pod."""
    runs: float
    every: float
    """Seconds between arrivals."""
    priority: int


@dataclass(frozen=True, slots=True)
class Generator:
    """One of the three."""

    name: str
    cohorts: int
    queues: int
    """Of each cohort."""
    kinds: tuple[Kind, ...]
    nodes: tuple[PlaceNode, ...]
    nominal: int
    borrowing: int
    published: float
    """Tasks per second that Kueue publishes."""


@dataclass(slots=True)
class Played:
    """What a run showed."""

    tasks: int
    seconds: float
    """Real."""
    processor_seconds: float = 0.0
    """The same without the waits for the disk and for other programs."""
    commit_seconds: float = 0.0
    """Of these in the database."""
    pass_seconds: float = 0.0
    """Of these in passes."""
    passes: int = 0
    virtual_seconds: float = 0.0
    waits: dict[str, list[float]] = field(default_factory=dict)
    used: float = 0.0
    """Unit-seconds."""
    together: int = 0
    """Gangs of several pods that were placed in one rack."""
    gangs: int = 0
    """Of several pods."""


def measure(bench: Bench) -> list[Figure]:
    """All three; a tenth of the queues in a quick run, less in a smaller one."""
    share = min(1.0, bench.scale.pending / _FULL_SIZE)
    figures = []
    for generator in (_baseline(), _large(), _topology()):
        bench.place.mkdir(parents=True, exist_ok=True)
        database = Database(f"sqlite:///{bench.place / generator.name}.db")
        try:
            migrate(database.engine)
            figures += _figures(generator, _Play(generator, database, share).run(), share)
        finally:
            database.close()
    return figures


def _figures(generator: Generator, played: Played, share: float) -> list[Figure]:
    capacity = generator.nominal * generator.cohorts * _queues(generator, share)
    used = played.used / (capacity * played.virtual_seconds)
    waits = ", ".join(f"{name} {sum(w) / len(w):.2f} s" for name, w in played.waits.items() if w)
    peer = Peer("Kueue, published", generator.published)
    rack = f"; {played.together:,} of {played.gangs:,} gangs in one rack" if played.gangs else ""
    work = (
        f"{played.seconds:.1f} s of our own real time ({played.processor_seconds:.1f} s of a processor):"
        f" {played.commit_seconds:.1f} s in their commits, {played.pass_seconds:.1f} s in"
        f" {played.passes:,} passes"
    )
    note = (
        f"{played.tasks:,} tasks in {work}. Mean time to admission on the virtual clock: {waits}{rack}."
        " Kueue's figure includes an API server and real run times."
    )
    return [
        Figure(
            f"Kueue's {generator.name} generator",
            played.tasks / played.seconds,
            "tasks/s",
            None,
            [peer],
            note,
        ),
        Figure(f"Kueue's {generator.name} generator, quota used", used * 100, "%"),
        Figure(
            f"Kueue's {generator.name} generator, virtual clock",
            played.tasks / played.virtual_seconds,
            "tasks/s",
            None,
            [peer],
            f"all {played.tasks:,} tasks from first arrival to last end: {played.virtual_seconds:.1f} s.",
        ),
    ]


def _baseline() -> Generator:
    kinds = (
        Kind("small", 350, 1, 1, 0.2, 0.1, 50),
        Kind("medium", 100, 1, 5, 0.5, 0.5, 100),
        Kind("large", 50, 1, 20, 1.0, 1.2, 200),
    )
    return Generator("baseline", 5, 6, kinds, _one_node(5 * 6 * 20), 20, 100, 42.7)


def _large() -> Generator:
    kinds = (
        Kind("small", 35, 1, 1, 0.15, 0.1, 50),
        Kind("medium", 11, 1, 5, 0.35, 0.5, 100),
        Kind("large", 4, 1, 20, 0.7, 1.2, 200),
    )
    return Generator("large", 10, 100, kinds, _one_node(10 * 100 * 20), 20, 100, 42.4)


def _topology() -> Generator:
    """640 nodes in 10 racks; each pod takes a node, a gang goes into one rack where one has room."""
    kinds = (
        Kind("2 pods", 10_000, 2, 1, 0.2, 0.005, 50),
        Kind("4 pods", 3_500, 4, 1, 0.5, 0.015, 100),
        Kind("8 pods", 1_500, 8, 1, 1.0, 0.035, 200),
    )
    nodes = tuple(
        PlaceNode(
            Node(f"n{n:03d}", (Gpu(0, _GPU, f"GPU-{n}", 81_559),), Amounts(gpus=1, cpus=1)),
            "pool",
            f"rack-{n // 64}",
        )
        for n in range(640)
    )
    return Generator("topology", 1, 1, kinds, nodes, 640, 0, 37.4)


def _one_node(units: int) -> tuple[PlaceNode, ...]:
    return (PlaceNode(Node("n", (), Amounts(cpus=units)), "pool"),)


def _queues(generator: Generator, share: float) -> int:
    return max(1, round(generator.queues * share)) if generator.queues > 1 else 1


class _Play:
    """One generator from the first arrival to the last end."""

    def __init__(self, generator: Generator, database: Database, share: float) -> None:
        self.generator = generator
        self.database = database
        self.cluster = GangCluster(generator.nodes)
        self.racks = {place.node.name: place.rack for place in generator.nodes}
        self.queue = GangQueue()
        self.events: list[tuple[float, int, Waiting | str, Kind | None]] = []
        self.kinds: dict[str, Kind] = {}
        rows = []
        number = 0
        for cohort in range(generator.cohorts):
            for queue in range(_queues(generator, share)):
                project = f"c{cohort}-q{queue}"
                name = f"c{cohort}" if generator.borrowing else None
                rows.append(
                    Quota(
                        project,
                        ResourceType.RESERVED,
                        "pool",
                        _SPEC,
                        generator.nominal,
                        name,
                        generator.borrowing,
                    )
                )
                for kind in generator.kinds:
                    key = _key(project, kind, gpus=bool(generator.nodes[0].node.gpus))
                    fewer = min(1.0, share / _QUICK_SHARE) if generator.queues > 1 else share
                    count = max(1, round(kind.count * fewer))
                    for index in range(count):
                        at = round((index + 1) * kind.every, 3)
                        waiting = Waiting(f"t{number:06d}", key, at)
                        self.kinds[waiting.id] = kind
                        self.events.append((at, number, waiting, kind))
                        number += 1
        self.table = QuotaTable(rows)
        self.number = number
        heapq.heapify(self.events)
        _store_tasks(database, list(self.kinds))

    def run(self) -> Played:
        played = Played(
            len(self.kinds), 0.0, virtual_seconds=0.0, waits={kind.name: [] for kind in self.generator.kinds}
        )
        now = 0.0
        began, processor = time.perf_counter(), time.process_time()
        while self.events:
            now = self.events[0][0]
            while self.events and self.events[0][0] == now:
                _, _, what, kind = heapq.heappop(self.events)
                if isinstance(what, str):
                    self.cluster.release(what)
                elif kind is not None:
                    self.queue.add(what)
            start = time.perf_counter()
            decision = decide(self.cluster, self.queue, self.table, now=now, rules=_RULES)
            played.pass_seconds += time.perf_counter() - start
            played.passes += 1
            for admission in decision.admissions:
                self._admit(admission, now, played)
        played.seconds = time.perf_counter() - began
        played.processor_seconds = time.process_time() - processor
        played.virtual_seconds = now
        return played

    def _admit(self, admission: Admission, now: float, played: Played) -> None:
        """One durable transaction, then the state in memory, as the controller does it."""
        kind = self.kinds[admission.id]
        waiting = self.queue.tasks[admission.id]
        began = time.perf_counter()
        self.database.write(lambda connection: gangs.open_all(connection, [_opened(admission, now)]))
        played.commit_seconds += time.perf_counter() - began
        self.queue.remove(admission.id)
        self.cluster.admit(Running(admission.id, admission.key, admission.parts, now, waiting.queued_at))
        self.number += 1
        heapq.heappush(self.events, (round(now + kind.runs, 3), self.number, admission.id, None))
        played.waits[kind.name].append(now - waiting.queued_at)
        if kind.pods > 1:
            played.gangs += 1
            played.together += len({self.racks[part.node] for part in admission.parts}) == 1
        played.used += kind.pods * kind.units * kind.runs


def _key(project: str, kind: Kind, *, gpus: bool) -> GangClass:
    """Units are GPUs where nodes have any, else CPU cores."""
    amounts = Amounts(gpus=kind.units if gpus else 0, cpus=kind.units)
    need = ReplicaNeed(Role.WORKER, kind.pods, _SPEC, kind.units, amounts, _GPU if gpus else None)
    return GangClass(project, "pool", ResourceType.RESERVED, kind.priority, (Choice((need,)),))


def _opened(admission: Admission, now: float) -> gangs.NewGang:
    parts = admission.parts
    allocation = Allocation(
        id=f"a-{admission.id}",
        attempt_id=f"at-{admission.id}",
        trial_id=admission.id,
        project_id="bench",
        engine="local",
        node=parts[0].node,
        gpu_model="",
        gpu_indices="[]",
        simulated=True,
        gpus=0,
        cpus=sum(part.amounts.cpus for part in parts),
        memory_mb=0,
        storage_mb=0,
        shm_mb=0,
        timeout_seconds=3600,
        state=AllocationState.HELD,
        held_at=now,
        released_at=None,
        tries=0,
        evidence=None,
        parts=json.dumps([part.as_dict() for part in parts]),
        sources=json.dumps([[s.spec, s.own, s.borrowed, s.supplement] for s in admission.sources]),
    )
    members = tuple(gangs.NewMember(part.rank, part.role.value, part.node, part.gpus) for part in parts)
    return gangs.NewGang(allocation, 1, "initial", members)


def _store_tasks(database: Database, ids: Sequence[str]) -> None:
    """The rows that admissions refer to; not measured."""

    def first(connection: Connection) -> None:
        connection.execute(insert(tables.projects), {"id": "bench", "name": "bench", "created_at": 0.0})
        connection.execute(insert(tables.jobs), _JOB)

    database.write(first)
    for batch in _batches(ids):
        rows = [_TRIAL | {"id": trial, "position": number, "name": trial} for number, trial in batch]
        database.write(lambda connection, rows=rows: connection.execute(insert(tables.trials), rows) and None)


def _batches(ids: Sequence[str]) -> Iterator[list[tuple[int, str]]]:
    numbered = list(enumerate(ids))
    return (numbered[first : first + _BATCH] for first in range(0, len(numbered), _BATCH))


_JOB: Mapping[str, object] = {
    "id": "bench",
    "project_id": "bench",
    "request_id": "bench",
    "type": "train",
    "canonical": "{}",
    "status": "queued",
    "submitted_by": "human:bench",
    "created_at": 0.0,
    "updated_at": 0.0,
}
_TRIAL: dict[str, object] = {
    "job_id": "bench",
    "project_id": "bench",
    "state": "queued",
    "runner": "envloop/bash",
    "revision": "0" * 40,
    "selector": "envloop/bash@main",
    "snapshot_sha256": "0" * 64,
    "entrypoint": "main.sh",
    "command": "true",
    "gpu_type": "",
    "gpus": 0,
    "cpus": 1,
    "memory_mb": 1,
    "storage_mb": 0,
    "shm_mb": 0,
    "timeout_seconds": 3600,
    "outputs": "[]",
    "params": "{}",
    "tags": "{}",
    "created_at": 0.0,
    "updated_at": 0.0,
    "priority": 0,
    "queue_rank": 0.0,
    "output_status": "none",
}
