"""What the scheduler sees, for readers: why tasks wait, and what a new one would get (P10, C16).

Derived from the rows of one moment with the same pure functions as the controller's passes. It decides
nothing: what a pass would start now is said to wait for the next pass.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite

from trainshed.control.scripts.clusters import waiting_guests
from trainshed.control.training.catalogs import Catalogs
from trainshed.control.training.frozen import waiting_of
from trainshed.control.training.guests import guest_running, is_guest
from trainshed.control.training.holding import RELEASE_SECONDS, runner_held, running_of
from trainshed.control.training.sites import without_gpus
from trainshed.model.resources import Node
from trainshed.model.states import AllocationState, State
from trainshed.model.training.catalog import Catalog, Cluster, Engine
from trainshed.policy.cluster import Held
from trainshed.policy.effective import ServerPolicy
from trainshed.policy.gangs.beside import beside
from trainshed.policy.gangs.cluster import GangCluster, LineKey
from trainshed.policy.gangs.decide import decide
from trainshed.policy.gangs.queue import GangQueue
from trainshed.policy.gangs.quota import Ledger, QuotaTable
from trainshed.policy.gangs.snapshot import (
    GangClass,
    GangDecision,
    GangReason,
    GangRules,
    GangWait,
    PlaceNode,
    Waiting,
)
from trainshed.store import gangs, queue
from trainshed.store.database import Connection
from trainshed.store.gangs import Cordon
from trainshed.store.records import Allocation, Task, Trial

KEPT_SECONDS = 0.5
_SHARE = 10
"""Reading everything may take at most one part in so many of a reader's time."""
_PAGE = 5000
_CROWDED = (GangWait.WAITING_FOR_RESOURCES, GangWait.FRAGMENTED, GangWait.WAITING_FOR_QUOTA)
"""Reasons that the end of others would help."""
HOME = "local"
"""What rows call the engine of the server's own machine."""


@dataclass(slots=True)
class Yard:
    """One engine: what is on it and what waits for it."""

    key: str
    every: tuple[PlaceNode, ...]
    """Its nodes in pools, as if nothing was cordoned."""
    cluster: GangCluster
    queue: GangQueue
    decision: GangDecision


@dataclass(frozen=True, slots=True)
class Answer:
    """What a pass would say of one task now."""

    starts: bool
    reason: GangReason | None
    latest_start: float | None
    """By when it should start (Unix seconds); ``None`` where nobody can say."""
    key: GangClass
    """In what class it waits."""


@dataclass(slots=True)
class Outlook:
    """Everything at one moment. Thread-safe."""

    at: float
    """Unix seconds."""
    revision: int
    catalog: Catalog
    yards: Mapping[str, Yard]
    quotas: QuotaTable
    cordons: Sequence[Cordon]
    rules: GangRules
    nodes: Mapping[str, Sequence[tuple[Node, Mapping[str, str]]]]
    """By cluster, with their labels."""
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def yard_of(self, cluster: str) -> Yard | None:
        """The engine that carries a cluster."""
        found = self.catalog.cluster(cluster)
        return None if found is None else self.yards.get(site_key(found))

    def answer(self, trial: Trial, task: Task) -> Answer:
        """Why a queued task waits."""
        waiting = waiting_of(trial, task, self.catalog)
        if trial.state is State.AWAITING_APPROVAL:
            reason = GangReason(GangWait.AWAITING_APPROVAL, pool=waiting.key.pool)
            return Answer(starts=False, reason=reason, latest_start=None, key=waiting.key)
        yard = self.yard_of(task.cluster)
        return _nowhere(waiting) if yard is None else self._explain(yard, yard.decision, waiting)

    def what_if(self, cluster: str, waiting: Waiting) -> Answer:
        """What the next pass would do with a task that is, or may be, not there yet."""
        yard = self.yard_of(cluster)
        if yard is None:
            return _nowhere(waiting)
        with self._guard:
            before = yard.queue.tasks.get(waiting.id)
            yard.queue.add(waiting)
            try:
                decision = decide(yard.cluster, yard.queue, self.quotas, now=self.at, rules=self.rules)
            finally:
                yard.queue.remove(waiting.id)
                if before is not None:
                    yard.queue.add(before)
        return self._explain(yard, decision, waiting)

    def _explain(self, yard: Yard, decision: GangDecision, waiting: Waiting) -> Answer:
        """What a pass said, with who is in the way."""
        found = _explain(decision, waiting)
        reason = found.reason
        if reason is None or reason.code not in _CROWDED:
            return found
        least = self.rules.min_run_seconds
        note = beside(yard.cluster, self.quotas, waiting.key, now=self.at, min_run_seconds=least)
        return replace(found, reason=replace(reason, note=note))

    def choices(self, trial: Trial, task: Task) -> list[tuple[str, Answer]]:
        """What a pass would say to each choice of specs by itself (C22), where there are several."""
        waiting = waiting_of(trial, task, self.catalog)
        if len(waiting.key.choices) == 1:
            return []
        found = []
        for choice in waiting.key.choices:
            alone = replace(waiting, key=replace(waiting.key, choices=(choice,)), plan=None)
            found.append((choice.needs[-1].spec, self.what_if(task.cluster, alone)))
        return found

    def used(self, line: LineKey) -> int:
        """Units of a quota that are in use."""
        return sum(yard.cluster.used.get(line, 0) for yard in self.yards.values())

    def ledger(self) -> Ledger:
        """All units in use by quota."""
        used: dict[LineKey, int] = {}
        for yard in self.yards.values():
            for line, units in yard.cluster.used.items():
                used[line] = used.get(line, 0) + units
        return Ledger(self.quotas, used, {})


def _nowhere(waiting: Waiting) -> Answer:
    """The cluster it names is gone."""
    reason = GangReason(GangWait.MISCONFIGURED, pool=waiting.key.pool)
    return Answer(starts=False, reason=reason, latest_start=None, key=waiting.key)


def _explain(decision: GangDecision, waiting: Waiting) -> Answer:
    if any(admission.id == waiting.id for admission in decision.admissions):
        return Answer(starts=True, reason=None, latest_start=decision.at, key=waiting.key)
    reason = decision.reason(waiting)
    reserved = next((each.at for each in decision.reservations if each.id == waiting.id), None)
    plan = decision.plans.get(waiting.id)
    times = (reserved, None if plan is None else plan.until, reason.until)
    latest = min((at for at in times if at is not None and isfinite(at)), default=None)
    return Answer(starts=False, reason=reason, latest_start=latest, key=waiting.key)


class OutlookReader:
    """Keeps the newest outlook for a moment. Thread-safe; one a process."""

    def __init__(
        self,
        catalogs: Catalogs,
        policy: ServerPolicy,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._catalogs = catalogs
        self._grace = policy.stop_grace_seconds
        self._rules = GangRules(
            overhead_seconds=self._grace + RELEASE_SECONDS, min_run_seconds=policy.min_run_seconds
        )
        self._clock = clock
        self._guard = threading.Lock()
        self._kept: Outlook | None = None
        self._until = float("-inf")

    def read(self, connection: Connection, now: float) -> Outlook:
        """What is so at ``now`` (Unix seconds), or was a moment before. Raises what the catalogue raises."""
        with self._guard:
            started = self._clock()
            if self._kept is None or started >= self._until:
                self._kept = self._build(connection, now)
                ended = self._clock()
                self._until = ended + max(KEPT_SECONDS, (ended - started) * _SHARE)
            return self._kept

    def forget(self) -> None:
        """Look anew next time: something was changed that readers shall see at once."""
        with self._guard:
            self._until = float("-inf")

    def _build(self, connection: Connection, now: float) -> Outlook:
        revision, catalog = self._catalogs.current(connection)
        nodes = self._catalogs.nodes(connection)
        cordons = gangs.standing_cordons(connection)
        held = gangs.held(connection)
        others = [each for each in queue.unreleased(connection) if each.parts is None]
        guests = [each for each in others if is_guest(each)]
        blocked = {gang.trial.id for gang in held}
        waiting: dict[str, list[Waiting]] = {}
        keys = {cluster.id: site_key(cluster) for cluster in catalog.clusters}
        for trial, task in self._waiting(connection):
            if task.cluster in keys and trial.id not in blocked:
                waiting.setdefault(keys[task.cluster], []).append(waiting_of(trial, task, catalog))
        for cluster_id, one in waiting_guests(connection, catalog):
            waiting.setdefault(keys[cluster_id], []).append(one)
        quotas = QuotaTable(catalog.quotas)
        rules = self._rules
        yards = {}
        for key in dict.fromkeys(keys.values()):
            mine = {cluster for cluster, site in keys.items() if site == key}
            every = _places(catalog, nodes, mine)
            closed = {each.node for each in cordons if each.gpu is None and each.cluster in mine}
            cluster = GangCluster(
                _open_places(every, [each for each in cordons if each.cluster in mine]),
                cordoned=closed,
                running=[
                    *(running_of(gang, self._grace) for gang in held if gang.allocation.engine == key),
                    *(guest_running(each, self._grace) for each in guests if each.engine == key),
                ],
                others=[_other(each, self._grace) for each in others if each.engine == key == HOME],
            )
            line = GangQueue(waiting.get(key, ()))
            decision = decide(cluster, line, quotas, now=now, rules=rules)
            yards[key] = Yard(key, every, cluster, line, decision)
        return Outlook(now, revision, catalog, yards, quotas, cordons, rules, nodes)

    @staticmethod
    def _waiting(connection: Connection) -> list[tuple[Trial, Task]]:
        found: list[tuple[Trial, Task]] = []
        while page := gangs.waiting_after(connection, found[-1][0].id if found else "", _PAGE):
            found += page
        return found


def site_key(cluster: Cluster) -> str:
    """What rows call the engine of a cluster (``allocations.engine``)."""
    if cluster.engine is Engine.LOCAL:
        return HOME
    return f"{cluster.engine}:{cluster.address or cluster.id}"


def _other(allocation: Allocation, grace: float) -> Held:
    leaked = allocation.state is AllocationState.LEAKED
    end = None if leaked else allocation.held_at + allocation.timeout_seconds + grace + RELEASE_SECONDS
    return runner_held(allocation, end)


def _places(
    catalog: Catalog,
    nodes: Mapping[str, Sequence[tuple[Node, Mapping[str, str]]]],
    clusters: set[str],
) -> tuple[PlaceNode, ...]:
    """The nodes of these clusters in the first pool that covers each."""
    found: dict[str, PlaceNode] = {}
    for pool in catalog.pools:
        for node, labels in nodes.get(pool.cluster, ()) if pool.cluster in clusters else ():
            if node.name not in found and pool.nodes.covers(node.name, labels):
                found[node.name] = PlaceNode(node, pool.id)
    return tuple(found.values())


def _open_places(every: Sequence[PlaceNode], cordons: Sequence[Cordon]) -> list[PlaceNode]:
    """The same without single GPUs that are cordoned."""
    closed: dict[str, set[int]] = {}
    for each in cordons:
        if each.gpu is not None:
            closed.setdefault(each.node, set()).add(each.gpu)
    return [
        replace(place, node=without_gpus(place.node, closed.get(place.node.name, set()))) for place in every
    ]
