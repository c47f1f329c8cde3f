"""What would become of a task, and when: for `validate`, `why` and estimated starts (c2, C16).

An estimate plays the rules forward: what runs ends, what waits starts, victims go. It does so twice, once
with every run as long as it may be and once with runs as short as they often are. What has no
`max_run_seconds` never ends in it, so a start that depends on such an end is unknown.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

from trainshed.policy.gangs.cluster import GangCluster
from trainshed.policy.gangs.decide import decide
from trainshed.policy.gangs.queue import GangQueue, QueuePlace
from trainshed.policy.gangs.quota import QuotaTable
from trainshed.policy.gangs.snapshot import (
    GangDecision,
    GangReason,
    GangRules,
    Kept,
    Running,
    Snapshot,
    SourceUnits,
    Waiting,
)
from trainshed.policy.gangs.words import Words, sentence

PLAYED_TASKS = 200
"""So many tasks at the head of the order take part."""
_MAX_PASSES = 100
USUAL_SHARE = 0.25
"""Of their limit that short runs take, where no history says better."""


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimated start, Unix seconds: with short runs, and with runs as long as they may be."""

    earliest: float
    latest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What the next pass would do with a task."""

    starts_now: bool
    choice: int | None
    """The choice of specs it would start on."""
    sources: tuple[SourceUnits, ...]
    reason: GangReason | None
    """Why it would wait; names no other task."""
    words: Words | None
    """The same as what blocks it and what would unblock it."""
    place: QueuePlace
    evicts: int
    """Gangs of lower rank that would have to go for it."""
    start: Interval | None
    """``None``: unknown."""


def evaluate(snapshot: Snapshot, waiting: Waiting) -> Evaluation:
    """Ask about a task that need not exist; changes nothing."""
    cluster = GangCluster(
        snapshot.nodes, cordoned=snapshot.cordoned, running=snapshot.running, others=snapshot.others
    )
    queue = GangQueue(snapshot.waiting)
    table = QuotaTable(snapshot.quotas)
    return evaluate_in(
        cluster, queue, table, waiting, now=snapshot.now, rules=snapshot.rules, kept=snapshot.kept
    )


def evaluate_in(
    cluster: GangCluster,
    queue: GangQueue,
    quotas: QuotaTable,
    waiting: Waiting,
    *,
    now: float,
    rules: GangRules | None = None,
    kept: Sequence[Kept] = (),
) -> Evaluation:
    """The same on a state that is kept up to date; the queue is as before afterwards."""
    before = queue.tasks.get(waiting.id)
    queue.add(waiting)
    try:
        decision = decide(cluster, queue, quotas, now=now, rules=rules, kept=kept)
        place = queue.place(waiting.id)
        started = next((one for one in decision.admissions if one.id == waiting.id), None)
        if started is not None:
            return Evaluation(
                starts_now=True,
                choice=started.choice,
                sources=started.sources,
                reason=None,
                words=None,
                place=place,
                evicts=0,
                start=Interval(now, now),
            )
        reason = replace(decision.reason(waiting), behind=None)
        return Evaluation(
            starts_now=False,
            choice=None,
            sources=(),
            reason=reason,
            words=sentence(waiting.key, reason),
            place=place,
            evicts=sum(one.for_id == waiting.id for one in decision.evictions),
            start=estimate(cluster, queue, quotas, [waiting.id], now=now, rules=rules).get(waiting.id),
        )
    finally:
        queue.remove(waiting.id)
        if before is not None:
            queue.add(before)


def estimate(
    cluster: GangCluster,
    queue: GangQueue,
    quotas: QuotaTable,
    wanted: Sequence[str],
    *,
    now: float,
    rules: GangRules | None = None,
    usual_share: float = USUAL_SHARE,
) -> dict[str, Interval]:
    """Estimated starts of waiting tasks; those that are unknown are left out.

    ``usual_share`` is the part of their limits that runs of the past usually took, from 0 to 1.
    """
    first = [one for one in islice(queue.in_order(), PLAYED_TASKS) if one.id not in set(wanted)]
    tasks = first + [queue.tasks[waiting_id] for waiting_id in wanted if waiting_id in queue.tasks]
    found = []
    for share in (usual_share, 1.0):
        play = _Play(cluster, tasks, quotas, now, rules or GangRules(), share)
        found.append(play.run(set(wanted)))
    short, long = found
    return {
        waiting_id: Interval(min(short.get(waiting_id, at), at), at)
        for waiting_id, at in long.items()
        if waiting_id in wanted
    }


class _Play:
    """The rules on a virtual clock."""

    def __init__(
        self,
        cluster: GangCluster,
        tasks: Sequence[Waiting],
        quotas: QuotaTable,
        now: float,
        rules: GangRules,
        share: float,
    ) -> None:
        self.cluster = GangCluster(
            cluster.layout.nodes,
            cordoned=cluster.cordoned,
            running=cluster.running.values(),
            others=cluster.others.values(),
        )
        self.queue = GangQueue(tasks)
        self.quotas = quotas
        self.now = now
        self.rules = rules
        self.share = share
        self.ends: list[tuple[float, str]] = []
        for one in cluster.running.values():
            going = one.evicted_at is not None and one.gone_by is not None
            self._ends(one.id, one.gone_by if going else one.expected_end)
        for held in cluster.others.values():
            self._ends(held.id, held.expected_end)

    def _ends(self, id_: str, end: float | None) -> None:
        if end is not None:
            heapq.heappush(self.ends, (self.now + max(0.0, end - self.now) * self.share, id_))

    def run(self, wanted: set[str]) -> dict[str, float]:
        """Starts, until all that are wanted have started or nobody can say more."""
        starts: dict[str, float] = {}
        for _ in range(_MAX_PASSES):
            decision = decide(self.cluster, self.queue, self.quotas, now=self.now, rules=self.rules)
            for waiting_id in self._make_true(decision):
                starts[waiting_id] = self.now
            if wanted <= starts.keys() or not self._next(decision):
                break
        return starts

    def _make_true(self, decision: GangDecision) -> list[str]:
        for one in decision.admissions:
            queued_at = self.queue.tasks[one.id].queued_at
            self.queue.remove(one.id)
            limit = one.key.max_run_seconds
            end = None if limit is None else self.now + limit + self.rules.overhead_seconds
            running = Running(
                one.id,
                one.key,
                one.parts,
                self.now,
                queued_at,
                choice=one.choice,
                expected_end=end,
                supplement=one.supplement,
            )
            self.cluster.admit(running)
            self._ends(one.id, end)
        for eviction in decision.evictions:
            victim = self.cluster.running[eviction.id]
            self.cluster.admit(victim.evicting(self.now, eviction.for_id, eviction.gone_by))
            self._ends(victim.id, eviction.gone_by)
        for waiting in list(self.queue.tasks.values()):
            plan = decision.plans.get(waiting.id)
            if plan != waiting.plan:
                self.queue.add(replace(waiting, plan=plan))
        return [one.id for one in decision.admissions]

    def _next(self, decision: GangDecision) -> bool:
        """Go on to the next end, or to when time alone changes something."""
        if decision.more:
            return True
        times = [self.ends[0][0]] if self.ends else []
        if decision.next_at is not None:
            times.append(decision.next_at)
        if not times:
            return False
        self.now = max(self.now, min(times))
        while self.ends and self.ends[0][0] <= self.now:
            _, id_ = heapq.heappop(self.ends)
            self.cluster.release(id_)
            self.cluster.release_other(id_)
        return True
