"""A made-up fleet and queue of gangs of a given size, and how long a pass over them takes.

For ``make bench``; the only module of this package that looks at a clock.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from trainshed.model.resources import Amounts, Gpu, Node
from trainshed.model.training.catalog import ANY, Quota
from trainshed.model.training.spec import ResourceType, Role
from trainshed.policy.gangs.cluster import GangCluster
from trainshed.policy.gangs.decide import decide
from trainshed.policy.gangs.queue import GangQueue
from trainshed.policy.gangs.quota import QuotaTable
from trainshed.policy.gangs.snapshot import (
    Choice,
    GangClass,
    GangDecision,
    GangRules,
    PlaceNode,
    ReplicaNeed,
    Running,
    Waiting,
)

_NOW = 1_000_000.0
_GPUS = 8
_ROOM = Amounts(_GPUS, 128, 1 << 20, 8 << 20, 1 << 19)
_OFTEN = 1_000_000
_SHAPES = ((1, 1), (1, 2), (1, 4), (1, 8), (2, 8), (4, 8), (8, 1), (16, 8))
"""Replicas and GPUs of each."""
_TYPES = (ResourceType.RESERVED, ResourceType.RESERVED, ResourceType.ONDEMAND, ResourceType.SPOT)


@dataclass(slots=True)
class GangLoad:
    """What a pass works on."""

    cluster: GangCluster
    queue: GangQueue
    quotas: QuotaTable
    now: float = _NOW


@dataclass(frozen=True, slots=True)
class GangTimes:
    """Seconds, and what came of it."""

    build: float
    """Making everything from rows, as after a restart."""
    full: float
    """A pass over the whole queue on an idle fleet."""
    placed: int
    classes: int
    release: float
    """The next pass, after one gang has ended: the median of several."""
    arrival: float
    """The next pass, after one task has come: the median of several."""
    node: float
    """After one node has gone, come back, been closed or opened: that it is taken in and the next pass, the
    median of several."""
    processor: float
    """What an end or an arrival costs of a processor: that of all of these, their median."""


def gang_load(*, nodes: int, pending: int, classes: int, projects: int = 20) -> GangLoad:
    """``pending`` tasks in ``classes`` classes for ``nodes`` nodes of 8 GPUs, of two models."""
    models = ("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB")
    fleet = [
        PlaceNode(
            Node(
                f"node-{number:05d}",
                tuple(Gpu(i, models[number % 2], f"GPU-{number}-{i}", 81_559) for i in range(_GPUS)),
                _ROOM,
            ),
            "pool",
        )
        for number in range(nodes)
    ]
    keys = [gang_class(which, projects) for which in range(classes)]
    queue = GangQueue(
        Waiting(f"task-{number:07d}", keys[number % classes], _NOW - pending + number)
        for number in range(pending)
    )
    kinds = (ResourceType.RESERVED, ResourceType.ONDEMAND, ResourceType.SPOT)
    rows = [
        Quota(f"project-{n}", kind, "pool", ANY, nodes * 2, "all", None)
        for n in range(projects)
        for kind in kinds
    ]
    return GangLoad(GangCluster(fleet), queue, QuotaTable(rows))


def gang_class(which: int, projects: int) -> GangClass:
    """One of many different classes."""
    replicas, gpus = _SHAPES[which % len(_SHAPES)]
    amounts = Amounts(gpus, gpus * (1 + which % 16), gpus * 4096)
    kind = _TYPES[which // 3 % len(_TYPES)]
    model = ("H100", "A100")[which // len(_SHAPES) % 2]
    need = ReplicaNeed(Role.WORKER, replicas, f"{model.lower()}x{gpus}", 1, amounts, model)
    return GangClass(
        project=f"project-{which % projects}",
        pool="pool",
        resource_type=kind,
        priority=(100, 500, 900)[which % 3],
        choices=(Choice((need,)),),
        guarantee=kind is ResourceType.RESERVED and which % 2 == 0,
        max_run_seconds=None if which % 5 == 0 else 600 + which,
    )


def accept_gangs(load: GangLoad, decision: GangDecision) -> list[str]:
    """Make a decision true in memory, as the controller does after storing it; returns the ids."""
    for one in decision.admissions:
        waiting = load.queue.tasks[one.id]
        load.queue.remove(one.id)
        limit = one.key.max_run_seconds
        end = None if limit is None else decision.at + limit
        running = Running(
            one.id, one.key, one.parts, decision.at, waiting.queued_at, choice=one.choice, expected_end=end
        )
        load.cluster.admit(running)
    return [one.id for one in decision.admissions]


def time_gang_passes(
    *, nodes: int = 1000, pending: int = 50_000, classes: int = 400, repeat: int = 15
) -> GangTimes:
    """Measure a pass over everything, and passes after one change."""
    began = time.perf_counter()
    load = gang_load(nodes=nodes, pending=pending, classes=classes)
    built = time.perf_counter()
    decision = decide(
        load.cluster, load.queue, load.quotas, now=load.now, rules=GangRules(max_admissions=_OFTEN)
    )
    full = time.perf_counter() - built
    running = accept_gangs(load, decision)
    accept_gangs(load, decide(load.cluster, load.queue, load.quotas, now=load.now))
    releases: list[float] = []
    arrivals: list[float] = []
    processor: list[float] = []
    for number in range(repeat):
        now = load.now + 1 + number
        load.cluster.release(running[number * len(running) // repeat])
        took, following = _timed(load, now, processor)
        releases.append(took)
        accept_gangs(load, following)
        load.queue.add(Waiting(f"new-{number:07d}", gang_class(number * 7, 20), now))
        took, following = _timed(load, now + 0.5, processor)
        arrivals.append(took)
        accept_gangs(load, following)
    return GangTimes(
        build=built - began,
        full=full,
        placed=len(running),
        classes=classes,
        release=sorted(releases)[repeat // 2],
        arrival=sorted(arrivals)[repeat // 2],
        node=_time_node_changes(load, load.now + repeat + 1, repeat),
        processor=sorted(processor)[len(processor) // 2],
    )


def _timed(load: GangLoad, now: float, processor: list[float]) -> tuple[float, GangDecision]:
    start, used = time.perf_counter(), time.thread_time()
    following = decide(load.cluster, load.queue, load.quotas, now=now)
    processor.append(time.thread_time() - used)
    return time.perf_counter() - start, following


def _time_node_changes(load: GangLoad, now: float, repeat: int) -> float:
    """Nodes go and come back, close and open, one at a time."""
    every = load.cluster.layout.nodes
    took = []
    for number in range(repeat):
        which = every[number * len(every) // repeat]
        without = [place for place in every if place is not which]
        for nodes, closed in ((without, ()), (every, ()), (every, (which.node.name,)), (every, ())):
            now += 1
            start = time.perf_counter()
            if len(nodes) != len(load.cluster.layout.nodes):
                load.cluster.replace(nodes, closed)
            else:
                load.cluster.cordon(closed)
            following = decide(load.cluster, load.queue, load.quotas, now=now)
            took.append(time.perf_counter() - start)
            accept_gangs(load, following)
    return sorted(took)[len(took) // 2]
