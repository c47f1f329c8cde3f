"""Small fleets, tasks and quotas for the tests of this folder."""

from trainshed.model.resources import Amounts, Gpu, Node
from trainshed.model.training.catalog import Quota
from trainshed.model.training.spec import ResourceType, Role
from trainshed.policy.gangs import (
    Choice,
    GangClass,
    GangCluster,
    GangQueue,
    GangRules,
    Part,
    PlaceNode,
    QuotaTable,
    ReplicaNeed,
    Running,
    Waiting,
    decide,
)

H100 = "NVIDIA H100 80GB HBM3"
A100 = "NVIDIA A100-SXM4-80GB"
RESERVED, ONDEMAND, SPOT, IDLE = ResourceType
LONG_AGO = -10_000.0


def node(name, gpus=8, model=H100, pool="pool", rack="", **room):
    amounts = {"cpus": 128, "memory_mb": 1 << 20, "storage_mb": 1 << 20, "shm_mb": 1 << 18, **room}
    found = tuple(Gpu(index, model, f"GPU-{name}-{index}", 80_000) for index in range(gpus))
    return PlaceNode(Node(name, found, Amounts(gpus=gpus, **amounts)), pool, rack)


def nodes(count, gpus=8, **rest):
    return tuple(node(f"n{number:03d}", gpus, **rest) for number in range(count))


def need(count=1, gpus=8, spec=None, role=Role.WORKER, units=1, model="H100", **amounts):
    found = {"cpus": gpus, "memory_mb": 1024 * gpus, **amounts}
    return ReplicaNeed(role, count, spec or f"h100x{gpus}", units, Amounts(gpus=gpus, **found), model)


def gang(replicas=1, gpus=8, **rest):
    """A class of gangs of equal replicas; ``choices`` overrides them."""
    spec = rest.pop("spec", None)
    facts = {
        "project": "p",
        "pool": "pool",
        "resource_type": RESERVED,
        "priority": 500,
        "choices": (Choice((need(replicas, gpus, spec),)),),
        **rest,
    }
    return GangClass(**facts)


def quota(units=10_000, project="*", kind=None, spec="*", pool="pool", **rest):
    kinds = (RESERVED, ONDEMAND, SPOT) if kind is None else (kind,)
    return tuple(Quota(project, one, pool, spec, units, **rest) for one in kinds)


class World:
    """The state a controller keeps, made true after every pass."""

    def __init__(self, places, *, quotas=None, rules=None, others=(), now=0.0):
        self.cluster = GangCluster(places, others=others)
        self.queue = GangQueue()
        self.table = QuotaTable(quota() if quotas is None else quotas)
        self.rules = rules or GangRules(overhead_seconds=0.0)
        self.now = now
        self.sources = {}

    def add(self, name, key, queued_at=None, **rest):
        self.queue.add(Waiting(name, key, self.now if queued_at is None else queued_at, **rest))

    def run(self, name, key, where, admitted_at=LONG_AGO, **rest):
        """Something runs: ``where`` has ``(node, GPUs)`` of each replica."""
        needs = [one for one in key.choices[0].needs for _ in range(one.count)]
        parts = tuple(
            Part(rank, one.role, at, tuple(gpus), one.spec, one.units, one.amounts)
            for rank, (one, (at, gpus)) in enumerate(zip(needs, where, strict=True))
        )
        self.cluster.admit(Running(name, key, parts, admitted_at, admitted_at, **rest))

    def step(self, now=None, kept=()):
        """One pass, made true."""
        self.now = self.now if now is None else now
        self.decision = decide(
            self.cluster, self.queue, self.table, now=self.now, rules=self.rules, kept=kept
        )
        for one in self.decision.admissions:
            waiting = self.queue.tasks[one.id]
            self.queue.remove(one.id)
            limit = one.key.max_run_seconds
            end = None if limit is None else self.now + limit
            self.sources[one.id] = one.sources
            self.cluster.admit(
                Running(
                    one.id,
                    one.key,
                    one.parts,
                    self.now,
                    waiting.queued_at,
                    choice=one.choice,
                    expected_end=end,
                    supplement=one.supplement,
                )
            )
        for one in self.decision.evictions:
            self.cluster.admit(self.cluster.running[one.id].evicting(self.now, one.for_id, one.gone_by))
        for waiting in list(self.queue.tasks.values()):
            plan = self.decision.plans.get(waiting.id)
            if plan != waiting.plan:
                self.queue.add(Waiting(waiting.id, waiting.key, waiting.queued_at, waiting.since, None, plan))
        return [one.id for one in self.decision.admissions]

    def end(self, name):
        self.cluster.release(name)

    def reason(self, name):
        return self.decision.reason(self.queue.tasks[name])

    def evicted(self):
        return sorted(one.id for one in self.decision.evictions)
