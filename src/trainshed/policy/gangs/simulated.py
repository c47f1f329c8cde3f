"""Made-up clusters, quotas and tasks for the simulator; all of one seed are the same."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from trainshed.model.resources import Amounts, Gpu, Node
from trainshed.model.training.catalog import ANY, Quota
from trainshed.model.training.spec import ResourceType, Role
from trainshed.policy.gangs.retry import FaultPolicy
from trainshed.policy.gangs.snapshot import Choice, GangClass, PlaceNode, ReplicaNeed

_H100, _A100 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"
_CPUS_PER_GPU = 8
_MEMORY_PER_GPU = 64 * 1024
_R = ResourceType
_RARE, _SOME, _HALF, _MOST = 0.2, 0.4, 0.5, 0.8
"""Chances."""


@dataclass(frozen=True, slots=True)
class Site:
    """Nodes and quotas."""

    nodes: tuple[PlaceNode, ...]
    quotas: tuple[Quota, ...]
    projects: tuple[str, ...]
    pools: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Task:
    """A task and what will become of it."""

    key: GangClass
    runs: float
    """Seconds of user code; at most ``max_run_seconds``."""
    fails: float
    """The chance that an Attempt fails."""
    policy: FaultPolicy
    saves: bool
    obedient: bool
    """Whether it goes when told; one that does not takes long."""


def make_site(random: Random) -> Site:
    """A small site: everything interesting happens with few nodes."""
    pools = ("main", "side")[: random.choice((1, 1, 2))]
    nodes = []
    for pool in pools:
        for number in range(random.randint(2, 5)):
            gpus = random.choice((4, 8, 8, 8))
            model = random.choice((_H100, _H100, _A100))
            nodes.append(_node(f"{pool}-{number}", gpus, model, pool, f"rack-{number % 2}"))
        if random.random() < _SOME:
            nodes.append(_node(f"{pool}-cpu", 0, _H100, pool, "rack-0", cpus=32))
    projects = ("alpha", "beta", "gamma")[: random.randint(1, 3)]
    return Site(tuple(nodes), tuple(_quotas(random, pools, projects)), projects, pools)


def _node(name: str, gpus: int, model: str, pool: str, rack: str, cpus: int = 0) -> PlaceNode:
    amounts = Amounts(
        gpus=gpus, cpus=cpus or gpus * _CPUS_PER_GPU + 2, memory_mb=(gpus or 4) * _MEMORY_PER_GPU + 4096
    )
    found = tuple(Gpu(index, model, f"GPU-{name}-{index}", 81_559) for index in range(gpus))
    return PlaceNode(Node(name, found, amounts), pool, rack)


def _quotas(random: Random, pools: tuple[str, ...], projects: tuple[str, ...]) -> list[Quota]:
    rows = []
    for pool in pools:
        cohort = random.choice((None, "all", "all"))
        for project in projects:
            lending = random.choice((None, None, 0, 4))
            borrowing = random.choice((None, None, 0, 8))
            units = random.randint(2, 16)
            rows.append(
                Quota(project, _R.RESERVED, pool, ANY, units, cohort, borrowing, lending if cohort else None)
            )
        if random.random() < _HALF:
            rows.append(Quota(projects[0], _R.RESERVED, pool, "gpux8", random.randint(1, 3), cohort))
        rows.append(Quota(ANY, _R.ONDEMAND, pool, ANY, random.randint(2, 16)))
        rows.append(Quota(ANY, _R.SPOT, pool, ANY, random.randint(2, 16)))
    return rows


def make_task(random: Random, site: Site) -> Task:
    """One task."""
    kind = random.choice((_R.RESERVED, _R.RESERVED, _R.ONDEMAND, _R.SPOT, _R.IDLE))
    runs = random.choice((30.0, 300.0, 900.0, 3000.0)) * (0.5 + random.random())
    limit = random.choice((None, None, int(runs) + 1, int(runs * 3) + 1))
    choices = tuple(dict.fromkeys(_choice(random) for _ in range(random.choice((1, 1, 1, 2)))))
    guarantee = kind in {_R.RESERVED, _R.ONDEMAND} and random.random() < _SOME
    key = GangClass(
        project=random.choice(site.projects),
        pool=random.choice(site.pools),
        resource_type=kind,
        priority=random.choice((100, 500, 500, 900)),
        choices=choices,
        guarantee=guarantee,
        idle_supplement=kind is _R.RESERVED and not guarantee and random.random() < _SOME,
        max_run_seconds=limit,
        spec_patience_seconds=random.choice((0, 0, 100)) if len(choices) > 1 else 0,
    )
    policy = FaultPolicy(
        enabled=random.random() < _MOST,
        max_resubmissions=random.randint(0, 3),
        replace_node=random.random() < _HALF,
    )
    fails = random.choice((0.0, 0.0, 0.2))
    return Task(key, runs, fails, policy, saves=random.random() < _HALF, obedient=random.random() < _MOST)


def _choice(random: Random) -> Choice:
    gpus = random.choice((1, 1, 2, 4, 8))
    replicas = random.choice((1, 1, 2, 3, 4))
    model = random.choice(("H100", "H100", "A100"))
    need = _need(Role.WORKER, replicas, gpus, model)
    if random.random() < _RARE:
        return Choice((_need(Role.HEAD, 1, 0, None), need))
    return Choice(
        (
            _need(Role.MASTER, 1, gpus, model),
            *((_need(Role.WORKER, replicas - 1, gpus, model),) * (replicas > 1)),
        )
    )


def _need(role: Role, count: int, gpus: int, model: str | None) -> ReplicaNeed:
    if not gpus:
        return ReplicaNeed(role, count, "c4", 1, Amounts(cpus=4, memory_mb=8192))
    amounts = Amounts(gpus=gpus, cpus=gpus * _CPUS_PER_GPU, memory_mb=gpus * _MEMORY_PER_GPU)
    return ReplicaNeed(role, count, f"gpux{gpus}", 1, amounts, model)
