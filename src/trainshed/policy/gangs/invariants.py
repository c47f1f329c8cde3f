"""What must hold after every pass, checked by arithmetic of its own: P4, P5, P10, and no double booking.

Written against the rules, not against the code that decides: it adds up what runs, from nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from trainshed.model.resources import Amounts
from trainshed.model.training.catalog import ANY, Quota
from trainshed.model.training.spec import ResourceType
from trainshed.policy.cluster import Held
from trainshed.policy.gangs.cluster import GangCluster, LineKey
from trainshed.policy.gangs.queue import GangQueue
from trainshed.policy.gangs.quota import QuotaTable
from trainshed.policy.gangs.snapshot import (
    Admission,
    GangDecision,
    GangWait,
    Part,
    PlaceNode,
    Running,
    Waiting,
)
from trainshed.policy.gangs.words import sentence
from trainshed.policy.gpus import matching_models

_TINY = 1e-6


class BrokenPromise(AssertionError):
    """A promise of the design does not hold; the message says which, and where."""


def require(condition: object, promise: str, *facts: object) -> None:
    """Raise `BrokenPromise` unless the condition holds."""
    if not condition:
        raise BrokenPromise(f"{promise}: {', '.join(map(str, facts))}")


def check_booking(nodes: Iterable[PlaceNode], running: Iterable[Running], others: Iterable[Held]) -> None:
    """Nothing is handed out twice, and no node gives more than it has."""
    places = {place.node.name: place.node for place in nodes}
    owners: dict[tuple[str, int], str] = {}
    sums: dict[str, Amounts] = {}
    holders = [(one.id, part.node, part.gpus, part.amounts) for one in running for part in one.parts]
    holders += [(held.id, held.node, held.gpus, held.amounts) for held in others]
    for holder, node, gpus, amounts in holders:
        if node not in places:
            continue
        for gpu in gpus:
            require((node, gpu) not in owners, "booked twice", node, gpu, owners.get((node, gpu)), holder)
            owners[node, gpu] = holder
        sums[node] = sums.get(node, Amounts()) + amounts
    for node, total in sums.items():
        require(total.fits_in(places[node].amounts), "more than the node has", node, total)


def check_gang(admission: Admission, nodes: Mapping[str, PlaceNode], cordoned: frozenset[str]) -> None:
    """P4: a gang is admitted whole, on open nodes of its pool, with GPUs of one model."""
    key = admission.key
    needs = [need for need in key.choices[admission.choice].needs for _ in range(need.count)]
    require(len(needs) == len(admission.parts), "P4", admission.id, "not whole")
    models: dict[object, set[str]] = {}
    for rank, (need, part) in enumerate(zip(needs, admission.parts, strict=True)):
        place = nodes.get(part.node)
        require(place is not None, "P4", admission.id, "unknown node", part.node)
        if place is None:
            continue
        require(place.pool == key.pool, "P4", admission.id, "another pool", part.node)
        require(
            part.node not in cordoned and part.node not in key.excluded,
            "P4",
            admission.id,
            "closed",
            part.node,
        )
        require((part.rank, part.role, part.spec) == (rank, need.role, need.spec), "P4", admission.id, part)
        require(len(part.gpus) == need.amounts.gpus, "P4", admission.id, "GPUs", part)
        have = {gpu.index: gpu.model for gpu in place.node.gpus}
        models.setdefault((need.gpu_model, need.amounts), set()).update(have[index] for index in part.gpus)
    for (asked, _), found in (
        (key_of, found) for key_of, found in models.items() if isinstance(key_of, tuple)
    ):
        require(len(found) <= 1, "P4", admission.id, "mixed models", found)
        if found and asked:
            require(matching_models(asked, found), "P4", admission.id, "another model", found)


def check_quotas(table: QuotaTable, running: Iterable[Running]) -> None:
    """P5: every quota and every cohort, at this instant."""
    used: Counter[LineKey] = Counter()
    firm: Counter[LineKey] = Counter()
    for one in running:
        if one.key.resource_type is ResourceType.IDLE:
            continue
        supplement = dict(one.supplement)
        for spec, units in one.all_units:
            line: LineKey = (one.key.project, one.key.resource_type, one.key.pool, spec)
            used[line] += units - supplement.get(spec, 0)
            if one.key.guarantee:
                firm[line] += units
    pots: dict[tuple[str, ResourceType, str, str], list[tuple[Quota, int]]] = {}
    for line, units in used.items():
        row = table.row(line)
        require(row is not None or not units, "P5", "no quota", line)
        if row is None:
            continue
        require(firm[line] <= row.units, "P5", "guaranteed beyond own units", line, firm[line])
        if row.cohort is None:
            require(units <= row.units, "P5", line, units, row.units)
            continue
        if row.borrowing_limit is not None:
            require(units <= row.units + row.borrowing_limit, "P5", "borrowed too much", line, units)
        pots.setdefault((row.cohort, *line[1:]), []).append((row, units))
    for pot, rows in pots.items():
        lends = sum(
            row.lendable
            for project in table.members(pot)
            if (row := table.row((project, *pot[1:]))) is not None
        )
        taken = sum(
            max(0, units - (row.units - (0 if row.project == ANY else row.lendable))) for row, units in rows
        )
        require(taken <= lends, "P5", "cohort", pot, taken, lends)


def check_reasons(decision: GangDecision, queue: GangQueue) -> None:
    """P10: every waiting task has a code and a sentence with numbers."""
    for waiting in queue.tasks.values():
        reason = decision.reason(waiting)
        blocked, unblock = sentence(waiting.key, reason)
        require(blocked and unblock, "P10", waiting.id)
        known = reason.code is not GangWait.PENDING_EVALUATION or decision.more
        require(known, "P10", waiting.id, "nobody looked at it")


def check_places(queue: GangQueue) -> None:
    """Positions are those of the order in which passes try the tasks."""
    seen: Counter[tuple[str, ResourceType, str]] = Counter()
    projects: Counter[str] = Counter()
    for waiting in queue.in_order():
        key = waiting.key
        line = (key.pool, key.resource_type, key.project)
        seen[line] += 1
        projects[key.project] += 1
        place = queue.place(waiting.id)
        found = (place.in_queue, place.in_project)
        require(found == (seen[line], projects[key.project]), "c2", waiting.id, found, seen[line])


def check_plans(decision: GangDecision, cluster: GangCluster, tasks: Mapping[str, Waiting]) -> None:
    """What is planned is nobody else's: plans are disjoint, and on what victims leave or what is free."""
    owners: dict[tuple[str, int], str] = {}
    for waiting_id, plan in decision.plans.items():
        require(waiting_id in tasks, "plan for nobody", waiting_id)
        for place in _gpus(plan.parts):
            require(place not in owners, "planned twice", place, owners.get(place), waiting_id)
            owners[place] = waiting_id
    for one in cluster.running.values():
        for place in _gpus(one.parts):
            planned = owners.get(place)
            if planned is not None:
                require(one.id in decision.plans[planned].victims, "planned on what stays", planned, one.id)


def check_evictions(
    decision: GangDecision, before: Mapping[str, Running], tasks: Mapping[str, Waiting], min_run: float
) -> None:
    """c4: only gangs of lower rank without a guarantee, after their minimum run, and for a plan."""
    order = {kind: number for number, kind in enumerate(reversed(ResourceType))}
    for eviction in decision.evictions:
        victim, task = before[eviction.id], tasks[eviction.for_id]
        require(eviction.id in decision.plans[eviction.for_id].victims, "c4", "evicted for nothing", eviction)
        require(not victim.key.guarantee, "c4", "guaranteed victim", eviction)
        require(victim.evicted_at is None, "c4", "evicted twice", eviction)
        require(decision.at + _TINY >= victim.admitted_at + min_run, "c4", "too young", eviction)
        rank = order[ResourceType.IDLE] if victim.supplement else order[victim.key.resource_type]
        mine = order[task.key.resource_type]
        require(mine >= rank and task.key.resource_type is not ResourceType.IDLE, "c4", "rank", eviction)
        if mine == rank and victim.key.resource_type is not ResourceType.RESERVED:
            require(task.key.priority > victim.key.priority, "c4", "priority", eviction)
        if mine == rank and victim.key.project == task.key.project:
            require(task.key.priority > victim.key.priority, "c4", "priority", eviction)
        if victim.key.resource_type is ResourceType.ONDEMAND:
            require(task.key.resource_type is ResourceType.ONDEMAND, "c3", "rank", eviction)


def check_same(cluster: GangCluster) -> None:
    """Kept up to date is the same as built anew."""
    anew = GangCluster(
        cluster.layout.nodes,
        cordoned=cluster.cordoned,
        running=cluster.running.values(),
        others=cluster.others.values(),
    )
    require(anew.room.masks == cluster.room.masks, "incremental", "GPUs")
    require(anew.room.cpus == cluster.room.cpus, "incremental", "CPUs")
    require(anew.room.memory_mb == cluster.room.memory_mb, "incremental", "memory")
    require(_sums(anew) == _sums(cluster), "incremental", "sums")
    require(_counts(anew) == _counts(cluster), "incremental", "units")


def _sums(cluster: GangCluster) -> object:
    """Free GPUs by pool and model; the numbers of kinds depend on what was there before."""
    return {
        of: cluster.room.gpus[kind] for of, kind in cluster.layout.kinds.items() if cluster.room.gpus[kind]
    }


def _counts(cluster: GangCluster) -> object:
    used = {line: units for line, units in cluster.used.items() if units}
    return used, {line: units for line, units in cluster.lent.items() if units}


def _gpus(parts: Iterable[Part]) -> Iterable[tuple[str, int]]:
    return ((part.node, gpu) for part in parts for gpu in part.gpus)
