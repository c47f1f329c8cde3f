"""ADMIT and PLACE for gangs: keeps the waiting tasks and what holds nodes, runs passes, has them stored."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from trainshed.control import metrics
from trainshed.control.crashpoints import Point, reach
from trainshed.control.training.admitting import Admitter, Decided, Made, Stale
from trainshed.control.training.frozen import waiting_of
from trainshed.control.training.guests import GuestBook, Guests, is_guest
from trainshed.control.training.holding import RELEASE_SECONDS, runner_held, running_of
from trainshed.control.training.scaling import growing_of, grows_later, scaling_of
from trainshed.control.training.sites import Sites, cordoned_nodes, places_of
from trainshed.control.training.yards import Yard
from trainshed.model.ids import IdFactory
from trainshed.model.states import AllocationState, State
from trainshed.model.training.catalog import Catalog
from trainshed.policy.cluster import Held
from trainshed.policy.effective import ServerPolicy
from trainshed.policy.gangs.cluster import GangCluster
from trainshed.policy.gangs.decide import decide
from trainshed.policy.gangs.growth import Growing
from trainshed.policy.gangs.queue import TIERS
from trainshed.policy.gangs.quota import QuotaTable
from trainshed.policy.gangs.snapshot import (
    GangDecision,
    GangRules,
    Kept,
    Plan,
    Waiting,
)
from trainshed.policy.gangs.words import sentence
from trainshed.store import gangs, queue
from trainshed.store.database import Connection, Database
from trainshed.store.gangs import Cordon, Gang
from trainshed.store.records import Allocation, Task, Trial

ReadCatalog = Callable[[Connection], tuple[int, Catalog]]
"""The catalogue that counts, with its revision."""

_PAGE = 5000
_LATE_EVENTS = 500
"""How many of the newest events are looked at again; what comes later still is found by `differs`."""


class GangPlacer:
    """The queue of tasks in memory and the passes over it. Used by the controller's one thread."""

    def __init__(
        self,
        database: Database,
        sites: Sites,
        policy: ServerPolicy,
        clock: Callable[[], float],
        ids: IdFactory,
        read_catalog: ReadCatalog,
        guests: Guests | None = None,
    ) -> None:
        self._database = database
        self._sites = sites
        self._policy = policy
        self._clock = clock
        self._ids = ids
        self._read_catalog = read_catalog
        self._revision: int | None = None
        self.catalog = Catalog()
        self._quotas = QuotaTable(())
        self.yards: dict[str, Yard] = {}
        self._newest_event: int | None = None
        self.tasks: dict[str, tuple[Trial, Task]] = {}
        """Every queued task."""
        self._of_yard: dict[str, str] = {}
        self._blocked: dict[str, Allocation] = {}
        """Trials of which an earlier Attempt is still being released."""
        self._allocations: dict[str, tuple[Gang, float]] = {}
        self._others: dict[str, tuple[Allocation, float | None]] = {}
        self.guests = GuestBook(guests, sites, self.yards, policy.stop_grace_seconds)
        self.cordons: tuple[Cordon, ...] = ()
        self.grown: set[str] = set()
        """Allocations that grew since somebody looked at this: a member is to be launched."""
        self._kept: tuple[Kept, ...] = ()
        """What Runner Trials reserve on this machine's nodes."""

    def reload(self) -> None:
        """Forget everything; the next `sync` reads all of it."""
        self._newest_event, self._revision = None, None
        self.tasks, self._of_yard, self._blocked = {}, {}, {}
        self._allocations, self._others = {}, {}
        self.yards.clear()
        self.guests.forget()

    # Following the rows

    def sync(
        self,
        connection: Connection,
        held: Sequence[Gang],
        others: Sequence[Allocation],
        *,
        everything: bool = True,
    ) -> None:
        """Take in what happened since the last look: tasks, gangs, Runner Trials.

        With ``everything`` nodes, cordons and the catalogue as well.
        """
        if everything or self._revision is None:
            self._follow_catalog(connection)
            self.cordons = tuple(gangs.standing_cordons(connection))
            self._follow_nodes()
        touched = self._follow_tasks(connection)
        touched |= self._follow_gangs(held)
        self._follow_others([a for a in others if a.engine == self._sites.home.key])
        for trial_id in touched:
            self._queue(trial_id)
        self.guests.follow(connection, [a for a in others if is_guest(a)], self.catalog)

    def differs(self, connection: Connection, *, thoroughly: bool) -> bool:
        """Whether the database knows other queued tasks than this queue: their number, or each of them."""
        if self._newest_event is None:
            return False
        for trial_id in self._follow_tasks(connection):
            self._queue(trial_id)
        if thoroughly:
            return gangs.waiting_ids(connection) != self.tasks.keys()
        return gangs.count_waiting(connection) != len(self.tasks)

    def is_quiet(self, connection: Connection) -> bool:
        """Whether no task waits or holds anything, and nothing new happened to any; costs one small query."""
        if self.tasks or self._allocations or self._newest_event is None:
            return False
        if self.guests.any(connection, self.catalog):
            return False
        late = _LATE_EVENTS if connection.dialect.name == "postgresql" else 0
        changes = gangs.changes_since(connection, self._newest_event, late)
        if any(trial.state is State.QUEUED for trial, _ in changes.tasks):
            return False
        self._newest_event = changes.newest
        return True

    def _follow_catalog(self, connection: Connection) -> None:
        revision, catalog = self._read_catalog(connection)
        if revision != self._revision or catalog != self.catalog:
            self.reload()
            self._revision, self.catalog = revision, catalog
            self._quotas = QuotaTable(catalog.quotas)
        if self._sites.refresh(catalog):
            # Tasks may have waited for a cluster that was not there.
            self.reload()
            self._revision = revision

    def _follow_nodes(self) -> None:
        for site in self._sites.all:
            places = places_of(site, self.catalog, self.cordons)
            closed = cordoned_nodes(site, self.cordons)
            yard = self.yards.get(site.key)
            if yard is None:
                yard = self.yards[site.key] = Yard(site, GangCluster(places, cordoned=closed))
            elif yard.places != places:
                yard.cluster.replace(places, closed)
                yard.stale = True
            elif yard.cluster.cordoned != closed:
                yard.cluster.cordon(closed)
                yard.stale = True
            yard.places = places

    def _follow_tasks(self, connection: Connection) -> set[str]:
        if self._newest_event is None:
            return self._read_all(connection)
        # Events of PostgreSQL may be committed in another order than they are numbered.
        late = _LATE_EVENTS if connection.dialect.name == "postgresql" else 0
        changes = gangs.changes_since(connection, self._newest_event, late)
        self._newest_event = changes.newest
        return {trial.id for trial, task in changes.tasks if self._take_in(trial, task)}

    def _read_all(self, connection: Connection) -> set[str]:
        # The event first: what is queued between the two readings is then read twice, not never.
        self._newest_event, last = queue.newest_event(connection), ""
        while page := gangs.waiting_after(connection, last, _PAGE):
            for trial, task in page:
                self._take_in(trial, task)
            last = page[-1][0].id
        return set(self.tasks)

    def _take_in(self, trial: Trial, task: Task) -> bool:
        """Whether anything is new of it."""
        known = self.tasks.get(trial.id)
        if trial.state is State.QUEUED:
            if known == (trial, task):
                return False
            self.tasks[trial.id] = (trial, task)
            return True
        if known is not None:
            del self.tasks[trial.id]
        return known is not None

    def _follow_gangs(self, held: Sequence[Gang]) -> set[str]:
        """Bring the clusters up to the rows; answers the tasks whose way became free, or not."""
        current = {gang.allocation.id: gang for gang in held}
        for gone in self._allocations.keys() - current.keys():
            for yard in self.yards.values():
                if gone in yard.cluster.running:
                    yard.cluster.release(gone)
                    yard.stale = True
            del self._allocations[gone]
        for allocation_id, gang in current.items():
            known = self._allocations.get(allocation_id)
            if known is not None and known[0] == gang:
                continue
            self._allocations[allocation_id] = (gang, self._clock())
            there = self.yards.get(gang.allocation.engine)
            if there is not None:
                there.cluster.admit(running_of(gang, self._policy.stop_grace_seconds))
                there.stale = True
        blocked = {gang.trial.id: gang.allocation for gang in held if not self.may_go_on(gang)}
        changed = blocked.keys() ^ self._blocked.keys()
        self._blocked = blocked
        return set(changed)

    def _follow_others(self, others: Sequence[Allocation]) -> None:
        """Runner Trials hold nodes of this machine."""
        yard = self.yards.get(self._sites.home.key)
        if yard is None:
            return
        grace = self._policy.stop_grace_seconds + RELEASE_SECONDS
        current: dict[str, tuple[Allocation, float | None]] = {}
        for a in others:
            leaked = a.state is AllocationState.LEAKED
            current[a.id] = (a, None if leaked else a.held_at + a.timeout_seconds + grace)
        for gone in self._others.keys() - current.keys():
            yard.cluster.release_other(gone)
        for allocation_id, (allocation, end) in current.items():
            if self._others.get(allocation_id) != (allocation, end):
                yard.cluster.hold(runner_held(allocation, end))
        self._others = current

    @staticmethod
    def may_go_on(gang: Gang) -> bool:
        """Whether a task may start anew although its former gang is not proven gone: its node broke."""
        return gang.allocation.state is AllocationState.LEAKED and gang.task.next_cause == "node_replaced"

    def _queue(self, trial_id: str) -> None:
        """Put a task into the queue of its site, or take it out."""
        before = self._of_yard.pop(trial_id, None)
        if before is not None and before in self.yards:
            self.yards[before].queue.remove(trial_id)
            self.yards[before].stale = True
        found = self.tasks.get(trial_id)
        if found is None or trial_id in self._blocked:
            return
        trial, task = found
        site = self._sites.of_cluster(task.cluster)
        if site is None or site.key not in self.yards:
            return
        yard = self.yards[site.key]
        yard.queue.add(waiting_of(trial, task, self.catalog))
        yard.stale = True
        self._of_yard[trial_id] = site.key

    # Passes

    def keep(self, kept: Sequence[Kept]) -> bool:
        """What the newest pass over Runner Trials reserves on this machine's nodes; whether gangs wait there.

        A reservation whose time moves only because the clock does is no news.
        """
        yard = self.yards.get(self._sites.home.key)
        if yard is None or _fixed(self._kept) == _fixed(kept):
            return False
        self._kept, yard.stale = tuple(kept), True
        return len(yard.queue) > 0

    def holds(self) -> Sequence[Held]:
        """What plans hold on this machine's nodes, for the pass over Runner Trials."""
        yard = self.yards.get(self._sites.home.key)
        return () if yard is None or yard.decision is None else yard.decision.holds

    def reserved(self) -> Sequence[Kept]:
        """What the first tasks in line wait for on this machine's nodes, for the same pass."""
        yard = self.yards.get(self._sites.home.key)
        if yard is None or yard.decision is None:
            return ()
        return tuple(kept for each in yard.decision.reservations for kept in each.kept)

    def next_at(self) -> float | None:
        """When time alone may change a decision (Unix seconds)."""
        times = [
            yard.decision.next_at
            for yard in self.yards.values()
            if yard.decision is not None and yard.decision.next_at is not None
        ]
        wakes = [yard.queue.next_wake for yard in self.yards.values()]
        now = self._clock()
        later = [grows_later(gang, now) for gang, _ in self._allocations.values()]
        return min((at for at in [*times, *wakes, *later] if at is not None), default=None)

    def run(self) -> tuple[list[Gang], bool]:
        """One pass where anything changed: what was placed and stored, and whether another should follow."""
        placed: list[Gang] = []
        again = False
        # Where something is stale, a pass forgets all of them; the next look makes them anew.
        for yard in list(self.yards.values()):
            if self.yards.get(yard.site.key) is not yard:
                break
            growing = self._growing(yard)
            if not self._due(yard, growing):
                continue
            begun = time.perf_counter()
            made, more = self._pass(yard, growing)
            metrics.gang_passes.observe(time.perf_counter() - begun)
            placed += made
            again |= more
        return placed, again

    def _growing(self, yard: Yard) -> list[Growing]:
        """The gangs of a site that would have a worker more, in the order of their pool (C51)."""
        now, there = self._clock(), yard.site.key
        found = [
            ((TIERS[one.key.resource_type], -one.key.priority, gang.task.queued_at, one.id), one)
            for gang, _ in self._allocations.values()
            if gang.allocation.engine == there and (one := growing_of(gang, self.catalog, now)) is not None
        ]
        return [one for _, one in sorted(found, key=lambda pair: pair[0])]

    def _due(self, yard: Yard, growing: Sequence[Growing]) -> bool:
        if not len(yard.queue) and not growing:
            yard.decision, yard.stale, yard.asked = None, False, frozenset()
            return False
        decision = yard.decision
        if {one.id for one in growing} != yard.asked:
            return True
        if yard.stale or decision is None or yard.looked_at != yard.cluster.version:
            return True
        now = self._clock()
        wake = yard.queue.next_wake
        return (decision.next_at is not None and decision.next_at <= now) or (
            wake is not None and wake <= now
        )

    def _pass(self, yard: Yard, growing: Sequence[Growing]) -> tuple[list[Gang], bool]:
        now = self._clock()
        kept = self._kept if yard.site is self._sites.home else ()
        decision = decide(
            yard.cluster,
            yard.queue,
            self._quotas,
            now=now,
            rules=self._rules(),
            kept=kept,
            growing=growing,
        )
        yard.decision, yard.stale, yard.looked_at = decision, False, yard.cluster.version
        yard.asked = frozenset(one.id for one in growing)
        decided = Decided(
            decision.admissions,
            decision.evictions,
            self._changed_plans(yard, decision),
            decision.growths,
            self._changed_waits(growing, decision),
        )
        if not decided:
            return [], decision.more
        admitter = Admitter(
            yard.site,
            self._quotas,
            [*self._allocations, *self._others, *self.guests.held],
            self._ids,
            self._clock,
            self._policy.stop_grace_seconds,
            self.guests.guests,
        )
        try:
            made: Made = self._database.write(lambda connection: admitter.store(connection, decided))
        except Stale:
            self.reload()
            return [], True
        reach(Point.GANG_PLACE_AFTER_COMMIT)
        self._apply(yard, decision, made, now)
        if made.grown:
            reach(Point.GANG_GROW_AFTER_COMMIT)
            self.grown |= made.grown
        started = len(made.placed) + len(made.guests)
        again = started < len(decision.admissions) or bool(decision.growths)
        return list(made.placed), decision.more or again

    def _changed_waits(
        self, growing: Sequence[Growing], decision: GangDecision
    ) -> Mapping[str, tuple[str, str]]:
        """Why gangs do not grow, where that is new."""
        found: dict[str, tuple[str, str]] = {}
        for one in growing:
            reason = decision.growth_reasons.get(one.id)
            known = scaling_of(self._allocations[one.id][0].task.scaling)
            if reason is not None and known.waits != reason.code.value:
                # Who comes first may be nobody's business who sees this task (C5).
                blocked, _ = sentence(one.key, replace(reason, behind=None))
                found[one.id] = (reason.code.value, blocked)
        return found

    @staticmethod
    def _changed_plans(yard: Yard, decision: GangDecision) -> Mapping[str, Plan | None]:
        admitted = {admission.id for admission in decision.admissions}
        before: Mapping[str, Waiting] = yard.queue.planned
        changed: dict[str, Plan | None] = {
            each: plan
            for each, plan in decision.plans.items()
            if each in yard.queue and yard.queue.tasks[each].plan != plan
        }
        changed |= dict.fromkeys(before.keys() - decision.plans.keys() - admitted)
        return changed

    def _apply(self, yard: Yard, decision: GangDecision, made: Made, now: float) -> None:
        """What was stored is true here as well, without reading it again."""
        for gang in made.placed:
            self.tasks.pop(gang.trial.id, None)
            self._of_yard.pop(gang.trial.id, None)
            yard.queue.remove(gang.trial.id)
            self._allocations[gang.allocation.id] = (gang, now)
            yard.cluster.admit(running_of(gang, self._policy.stop_grace_seconds))
        self.guests.admitted(yard, made.guests)
        for trial_id in self._changed_plans(yard, decision):
            waiting = yard.queue.tasks.get(trial_id)
            if waiting is not None:
                plan = decision.plans.get(trial_id)
                yard.queue.add(replace(waiting, plan=plan))
                if trial_id not in self.tasks:
                    continue  # after a restart one is planned for anew
                trial, task = self.tasks[trial_id]
                text = None if plan is None else _text(plan)
                self.tasks[trial_id] = (trial, replace(task, plan=text))
        for eviction in decision.evictions:
            running = yard.cluster.running.get(eviction.id)
            if eviction.id in made.evicted and running is not None:
                yard.cluster.admit(running.evicting(now, eviction.for_id, eviction.gone_by))
        if len(made.placed) + len(made.guests) == len(decision.admissions) and not decision.growths:
            yard.looked_at = yard.cluster.version
        else:
            yard.stale = True

    def _rules(self) -> GangRules:
        return GangRules(
            min_run_seconds=self._policy.min_run_seconds,
            overhead_seconds=self._policy.stop_grace_seconds + RELEASE_SECONDS,
        )

    def waiting_by_reason(self) -> dict[str, int]:
        """How many tasks wait for what (P10)."""
        found: dict[str, int] = {}
        for yard in self.yards.values():
            decision = yard.decision
            if decision is None:
                continue
            for waiting in yard.queue.tasks.values():
                code = decision.reason(waiting).code.value
                found[code] = found.get(code, 0) + 1
        return found


def _text(plan: Plan) -> str:
    return json.dumps(plan.as_dict())


def _fixed(kept: Sequence[Kept]) -> list[tuple[object, ...]]:
    """What of reservations decides: an overdue end is expected later with every look."""
    return [(one.id, one.node, one.model, one.left) for one in kept]
