"""What runs where a task finds no room, and who of that may have to go for it later (c4). Numbers only.

For readers: no decision depends on it, and nobody is named, whoever the others belong to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from math import inf

from trainshed.model.training.spec import ResourceType
from trainshed.policy.gangs.candidates import Candidates
from trainshed.policy.gangs.cluster import GangCluster
from trainshed.policy.gangs.quota import Ledger, QuotaTable
from trainshed.policy.gangs.snapshot import GangClass, Running
from trainshed.policy.words import iso

SETTING = "training.min_run_seconds"


def beside(
    cluster: GangCluster, quotas: QuotaTable, key: GangClass, *, now: float, min_run_seconds: float
) -> str:
    """In words: what holds the pool, and from when on gangs of lower rank are no longer protected.

    ``now`` is in Unix seconds. Empty where nothing runs there.
    """
    running = list(cluster.of_pool.get(key.pool, {}).values())
    said = [_holders(cluster, key, running)]
    below = _below(cluster, quotas, key, running)
    young = [one.admitted_at + min_run_seconds for one in below if one.admitted_at + min_run_seconds > now]
    if young:
        many, verb = ("1 of them ranks", "is") if len(young) == 1 else (f"{len(young)} of them rank", "are")
        said.append(
            f"{many} lower but {verb} in the first {min_run_seconds:g} s of a run, which are protected"
            f" ({SETTING}): the first may have to make room from {iso(min(young))} on"
        )
    elif running and not below:
        said.append("none of them may be ended for it")
    return "; ".join(each for each in said if each)


def _holders(cluster: GangCluster, key: GangClass, running: Iterable[Running]) -> str:
    kinds = Counter(one.key.resource_type for one in running)
    parts = [f"{kinds[kind]} {kind.value}" for kind in ResourceType if kinds[kind]]
    pools = {place.node.name: place.pool for place in cluster.layout.nodes}
    trials = sum(pools.get(held.node) == key.pool for held in cluster.others.values())
    tasks = "task" if kinds.total() == 1 else "tasks"
    found = [f"{kinds.total()} {tasks} ({', '.join(parts)})"] if parts else []
    if trials:
        found.append(f"{trials} Runner Trial{'' if trials == 1 else 's'}")
    verb = "runs" if kinds.total() + trials == 1 else "run"
    return f"{' and '.join(found)} {verb} in the pool" if found else ""


def _below(
    cluster: GangCluster, quotas: QuotaTable, key: GangClass, running: Iterable[Running]
) -> list[Running]:
    """Those that may have to go for it sooner or later, however short they have run."""
    ledger = Ledger(quotas, cluster.used.copy(), cluster.lent.copy())
    reclaims = any(all(ledger.own_left(line) >= units for line, units in lines) for lines in key.lines)
    return Candidates(running, inf, 0.0).below(key, ledger, reclaims=reclaims)
