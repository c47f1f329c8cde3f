"""One pass over the training tasks: which gangs start now, who must go, and why the others wait.

1.  Whole gangs only, on real nodes (C27), within every quota at every instant (C23, P5).
2.  Tasks with a plan first: what their victims left is held for them until they start. A victim that will not
    go blocks nobody: after its time a plan is made anew without it.
3.  Then class by class in the order of the queue (`trainshed.policy.gangs.queue`), each on the first of its
    choices that fits (C22). A task that cannot start does not block those behind it (best-effort FIFO).
4.  A task that finds no room may evict gangs of lower rank (`trainshed.policy.gangs.preemption`). Else the
    first that finds none gets a reservation, and the first of each quota that finds no units left a promise.
    Later tasks may only take what delays neither (EASY backfill), so the first never starts later because of
    them (P11).
5.  Gangs that run and would grow come last, a replica each (C51): they get what nobody who waits can use or
    has reserved, and end nobody.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from math import inf

from trainshed.policy.gangs.cluster import GangCluster
from trainshed.policy.gangs.growth import Growing
from trainshed.policy.gangs.passing import Pass
from trainshed.policy.gangs.planning import Plans
from trainshed.policy.gangs.queue import GangLine, GangQueue, Rank, rank
from trainshed.policy.gangs.quota import QuotaTable
from trainshed.policy.gangs.snapshot import (
    Admission,
    GangDecision,
    GangReason,
    GangRules,
    GangWait,
    Kept,
    Snapshot,
    Waiting,
)
from trainshed.policy.gangs.standing import FULL, Standing

_STARTS = GangReason(GangWait.PENDING_EVALUATION)
_SEVERITY = {code: number for number, code in enumerate(GangWait)}


def decide(
    cluster: GangCluster,
    queue: GangQueue,
    quotas: QuotaTable,
    *,
    now: float,
    rules: GangRules | None = None,
    kept: Sequence[Kept] = (),
    growing: Iterable[Growing] = (),
) -> GangDecision:
    """Decide at ``now``; ``kept`` are the reservations of Runner Trials on the same nodes.

    ``growing`` are gangs that run and would have a replica more, in the order in which they are served.

    Changes nothing but what `GangQueue` remembers between passes: who is awake, and what was simulated in
    vain.
    """
    return _Decider(cluster, queue, quotas, now, rules or GangRules(), kept).run(growing)


def decide_snapshot(snapshot: Snapshot) -> GangDecision:
    """The same for a snapshot of everything."""
    cluster = GangCluster(
        snapshot.nodes, cordoned=snapshot.cordoned, running=snapshot.running, others=snapshot.others
    )
    queue = GangQueue(snapshot.waiting)
    table = QuotaTable(snapshot.quotas)
    return decide(cluster, queue, table, now=snapshot.now, rules=snapshot.rules, kept=snapshot.kept)


class _Decider:
    """The order of a pass."""

    def __init__(
        self,
        cluster: GangCluster,
        queue: GangQueue,
        quotas: QuotaTable,
        now: float,
        rules: GangRules,
        kept: Iterable[Kept],
    ) -> None:
        queue.wake(now)
        self.queue = queue
        self.now = now
        self.rules = rules
        planned = sorted(queue.planned.values(), key=rank)
        self.state = Pass(cluster, quotas, now, rules, kept)
        self.plans = Plans(self.state, queue, planned)
        self.standing = Standing(self.state, self.plans)
        self.returned: list[tuple[Rank, GangLine, int]] = []
        self.own_reasons: dict[str, GangReason] = {}

    def run(self, growing: Iterable[Growing]) -> GangDecision:
        state = self.state
        more, rest = False, None
        for waiting in self.plans.ready():
            self._served(waiting)
        for waiting, line, number in self._in_order():
            if len(state.admissions) >= self.rules.max_admissions:
                more = True
                break
            if len(state.reasons) >= self.rules.explained and not any(state.room.gpus):
                rest = GangReason(GangWait.WAITING_FOR_RESOURCES, pool=waiting.key.pool)
                break
            reason = self.standing.reason(line, waiting) or self._try(waiting)
            if reason is None or waiting.id in self.plans.active:
                if number + 1 < len(line.entries):
                    self._again(line, number + 1)
            else:
                state.reasons[line.key] = reason
        for waiting in self.queue.sleeping.values():
            until = waiting.not_before
            self.own_reasons[waiting.id] = GangReason(GangWait.HELD, until=until, pool=waiting.key.pool)
        for waiting_id, reason in self.plans.reasons():
            self.own_reasons[waiting_id] = reason
        admissions = tuple(state.admissions)
        # Who was not even looked at may need what they would take.
        reasons = {} if more else self._grow(growing)
        return GangDecision(
            at=self.now,
            admissions=admissions,
            evictions=tuple(self.plans.evictions),
            plans={waiting_id: plan for waiting_id, (_, plan) in self.plans.active.items()},
            reasons=state.reasons,
            own_reasons=self.own_reasons,
            rest=rest,
            reservations=tuple(state.reservations),
            holds=tuple(self.plans.holds()),
            more=more,
            next_at=self._next_at(),
            growths=tuple(state.admissions[len(admissions) :]),
            growth_reasons=reasons,
        )

    def _grow(self, growing: Iterable[Growing]) -> dict[str, GangReason]:
        """Give each gang one replica more where that takes nothing from anybody; why not, for the others."""
        reasons: dict[str, GangReason] = {}
        for one in growing:
            waiting = one.as_last()
            if one.key.held is not None:
                reasons[one.id] = GangReason(one.key.held, pool=one.key.pool)
                continue
            found = self.state.place(waiting, 0)
            if isinstance(found, GangReason):
                reasons[one.id] = found
            else:
                self.state.start(waiting, Admission(one.id, one.key, 0, *found))
        return reasons

    def _served(self, waiting: Waiting) -> None:
        """A task with a plan that cannot start on it yet starts elsewhere if it fits there now."""
        if waiting.id not in self.plans.active:
            return
        self.plans.let_go(waiting.id)
        admission, _ = self._place(waiting)
        if admission is None:
            self.plans.hold_again(waiting.id)
        else:
            self.state.start(waiting, admission)
            self.plans.done(waiting.id)

    def _try(self, waiting: Waiting) -> GangReason | None:
        """Start a task, or say why not, having done for it what can be done."""
        key, state = waiting.key, self.state
        if key.held is not None:
            return GangReason(key.held, pool=key.pool)
        admission, reason = self._place(waiting)
        if admission is not None:
            state.start(waiting, admission)
            return None
        may = reason.code in FULL or reason.code is GangWait.WAITING_FOR_QUOTA
        if may and self.plans.possible(key):
            for number in self._allowed(waiting):
                if self.plans.make(waiting, number):
                    return None
        if reason.code is GangWait.WAITING_FOR_QUOTA:
            return state.promise(waiting, reason)
        if reason.code in FULL:
            return state.reserve(waiting, reason, self._allowed(waiting))
        return reason

    def _place(self, waiting: Waiting) -> tuple[Admission | None, GangReason]:
        """The first choice that fits; otherwise the reason that is nearest to a start."""
        if len(waiting.key.choices) == 1:
            only = self.state.place(waiting, 0)
            if isinstance(only, GangReason):
                return None, only
            return Admission(waiting.id, waiting.key, 0, only[0], only[1]), _STARTS
        passed: list[tuple[str, str]] = []
        best = GangReason(GangWait.MISCONFIGURED, pool=waiting.key.pool)
        for number in self._allowed(waiting):
            found = self.state.place(waiting, number)
            if isinstance(found, GangReason):
                passed.append((waiting.key.choices[number].needs[-1].spec, found.code.value))
                if not passed[1:] or _SEVERITY[found.code] > _SEVERITY[best.code]:
                    best = found
                continue
            return Admission(waiting.id, waiting.key, number, found[0], found[1], tuple(passed)), best
        return None, best

    def _allowed(self, waiting: Waiting) -> range:
        """The choices that a task may use by now (C22)."""
        key = waiting.key
        if not key.spec_patience_seconds:
            return range(len(key.choices))
        since = waiting.queued_at if waiting.since is None else waiting.since
        number = int(max(0.0, self.now - since) // key.spec_patience_seconds) + 1
        if number < len(key.choices):
            self.state.look_again(since + number * key.spec_patience_seconds)
        return range(min(number, len(key.choices)))

    def _in_order(self) -> Iterator[tuple[Waiting, GangLine, int]]:
        """The first task of every class; a class comes again with its next task once one was placed."""
        for place, line in self.queue.heads:
            while self.returned and self.returned[0][0] < place:
                yield from self._next(*heapq.heappop(self.returned))
            if place[3] in self.plans.settled:
                yield from self._next(place, line, 0)
            else:
                yield self.queue.tasks[place[3]], line, 0
        while self.returned:
            yield from self._next(*heapq.heappop(self.returned))

    def _next(self, place: Rank, line: GangLine, number: int) -> Iterator[tuple[Waiting, GangLine, int]]:
        waiting_id = place[3]
        if waiting_id in self.plans.settled:
            if number + 1 < len(line.entries):
                self._again(line, number + 1)
            return
        yield self.queue.tasks[waiting_id], line, number

    def _again(self, line: GangLine, number: int) -> None:
        heapq.heappush(self.returned, ((*line.place, *line.entries[number]), line, number))

    def _next_at(self) -> float | None:
        times = [self.state.next_at, self.plans.next_at, self.queue.next_wake]
        found = [at for at in times if at is not None and self.now < at < inf]
        return min(found, default=None)
