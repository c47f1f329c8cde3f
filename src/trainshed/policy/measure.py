"""A made-up fleet and queue of a given size, and how long a placement pass over them takes.

For ``make bench`` and the speed test (design section 10); the only module of this room that looks at a
clock.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from trainshed.model.resources import Amounts, Gpu, Node
from trainshed.policy.budget import Account, ProjectLimits
from trainshed.policy.cluster import Cluster, Held
from trainshed.policy.estimate import forecast
from trainshed.policy.placement import Decision, PassRules, Project, place
from trainshed.policy.reasons import make_board
from trainshed.policy.waiting import Queue, TrialClass

_NOW = 1_000_000.0
_GPUS_PER_NODE = 8
_ROOM = Amounts(_GPUS_PER_NODE, 128, 1 << 20, 8 << 20, 1 << 19)
_OFTEN = 1_000_000


@dataclass(frozen=True, slots=True)
class Load:
    """What a pass works on."""

    cluster: Cluster
    queue: Queue
    projects: dict[str, Project]
    now: float


@dataclass(frozen=True, slots=True)
class PassTimes:
    """Seconds, and what came of it."""

    build: float
    """Making `Cluster` and `Queue` from rows, as after a restart."""
    full: float
    """A pass over the whole queue on an idle fleet."""
    placed: int
    incremental: float
    """The next pass, after one Trial has ended: the median of several."""
    forecast: float
    """Estimates and the document for readers."""


def synthetic(*, nodes: int, pending: int, classes: int, projects: int = 20) -> Load:
    """``pending`` Trials in ``classes`` classes for ``nodes`` nodes of 8 GPUs, of two models."""
    models = ("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB")
    fleet = [
        Node(
            f"node-{number:05d}",
            tuple(Gpu(i, models[number % 2], f"GPU-{number}-{i}", 81_559) for i in range(_GPUS_PER_NODE)),
            _ROOM,
        )
        for number in range(nodes)
    ]
    queue = Queue()
    for number in range(pending):
        which = number % classes
        gpus = (1, 2, 4, 8)[which % 4]
        key = TrialClass(
            project=f"project-{which % projects}",
            priority=which % 3,
            gpu_type=("H100", "A100")[which // 4 % 2],
            amounts=Amounts(gpus, gpus * (1 + which % 16), gpus * 4096, gpus * 1024, 64),
            timeout_seconds=600 + which,
        )
        queue.add(f"trial-{number:07d}", key, _NOW - pending + number)
    limits = ProjectLimits(max_gpus=nodes * 2, budget_gpu_seconds=_OFTEN**2)
    funds = Account(budget=_OFTEN**2, used=0, spent=0, reserved=0)
    return Load(
        Cluster(fleet), queue, {f"project-{n}": Project(limits, funds) for n in range(projects)}, _NOW
    )


def accept(load: Load, decision: Decision) -> list[str]:
    """Make a decision true in memory, as the controller does after storing it; returns allocation ids."""
    overhead = PassRules().overhead_seconds
    for placed in decision.placements:
        load.queue.remove(placed.trial_id)
        end = decision.at + placed.key.timeout_seconds + overhead
        held = Held(
            placed.trial_id,
            placed.trial_id,
            placed.key.project,
            placed.node,
            placed.gpus,
            placed.key.amounts,
            end,
        )
        load.cluster.hold(held)
    return [placed.trial_id for placed in decision.placements]


def time_passes(
    *, nodes: int = 1000, pending: int = 50_000, classes: int = 200, repeat: int = 9
) -> PassTimes:
    """Measure the passes of design section 10 once."""
    began = time.perf_counter()
    load = synthetic(nodes=nodes, pending=pending, classes=classes)
    built = time.perf_counter()
    decision = place(
        load.cluster, load.queue, load.projects, now=load.now, rules=PassRules(max_placements=_OFTEN)
    )
    full = time.perf_counter() - built
    running = accept(load, decision)
    steps = []
    for number in range(min(repeat, len(running))):
        load.cluster.release(running[number * len(running) // repeat])
        start = time.perf_counter()
        following = place(load.cluster, load.queue, load.projects, now=load.now + 1 + number)
        steps.append(time.perf_counter() - start)
        accept(load, following)
    start = time.perf_counter()
    last = place(load.cluster, load.queue, load.projects, now=load.now + 60)
    after = time.perf_counter()
    make_board(last, forecast(load.cluster, load.queue, load.projects, now=load.now + 60), load.queue)
    return PassTimes(
        build=built - began,
        full=full,
        placed=len(running),
        incremental=sorted(steps)[len(steps) // 2],
        forecast=time.perf_counter() - after,
    )
