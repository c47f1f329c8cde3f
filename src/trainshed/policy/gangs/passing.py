"""The working state of one pass over gangs: what is free, what is promised, what was decided so far."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import inf

from trainshed.model.resources import Amounts
from trainshed.model.training.spec import ResourceType
from trainshed.policy.gangs.candidates import Candidates
from trainshed.policy.gangs.cluster import GangCluster
from trainshed.policy.gangs.openings import Ends, Gain, Step, held_until, walk
from trainshed.policy.gangs.quota import CohortKey, Promise, QuotaTable
from trainshed.policy.gangs.reservations import Bounds, Earliest, Spare, spare_of
from trainshed.policy.gangs.room import mask_of, parts_of
from trainshed.policy.gangs.snapshot import (
    Admission,
    Choice,
    GangClass,
    GangReason,
    GangReservation,
    GangRules,
    GangWait,
    Group,
    Kept,
    LineKey,
    Part,
    Shape,
    SourceUnits,
    Waiting,
)
from trainshed.policy.gangs.usage import line_key


class Pass:
    """Copies of what may change, and the answers."""

    def __init__(
        self, cluster: GangCluster, quotas: QuotaTable, now: float, rules: GangRules, kept: Iterable[Kept]
    ) -> None:
        self.cluster = cluster
        self.layout = cluster.layout
        self.now = now
        self.rules = rules
        self.room = cluster.room.copy()
        self.real = cluster.ledger(quotas)
        """Units in use now, with what this pass starts."""
        self.future = self.real
        """The same once victims are gone and those who wait for them run."""
        self.admissions: list[Admission] = []
        self.reasons: dict[GangClass, GangReason] = {}
        self.reservations: list[GangReservation] = []
        self.spares: dict[int, list[Spare]] = {}
        for one in kept:
            found = spare_of(one, self.layout)
            if found is not None:
                self.spares.setdefault(found[0], []).append(found[1])
        self.started: dict[int, Ends] = {}
        """What leaves a node later and is not known to the cluster yet."""
        self.delayed: dict[int, dict[str, float]] = {}
        """Node -> id -> until when its place will really be taken: what victims leave is held."""
        self.next_at: float | None = None
        self.promises: dict[tuple[str, ...], Promise] = {}
        self.pots_promised = False
        self.promised_claims: set[int] = set()
        """Those on units of which some are promised."""
        self.reserved_kinds: set[int] = set()
        self.failed: dict[int, tuple[float, float, GangReason]] = {}
        self._candidates: dict[str, Candidates] = {}
        self._capacities: dict[tuple[str, Choice], dict[str, int]] = {}

    def split_future(self) -> None:
        """From now on what is planned counts apart from what is so."""
        if self.future is self.real:
            self.future = self.real.copy()

    def look_again(self, at: float) -> None:
        """Time alone may change the decision at ``at``."""
        if at > self.now and (self.next_at is None or at < self.next_at):
            self.next_at = at

    def end_of(self, key: GangClass) -> float:
        """Until when a gang that starts now may hold what it takes."""
        return (
            inf
            if key.max_run_seconds is None
            else self.now + key.max_run_seconds + self.rules.overhead_seconds
        )

    def bounds(self, waiting: Waiting) -> Bounds:
        numbers = self.layout.numbers
        excluded = frozenset(numbers[name] for name in waiting.key.excluded if name in numbers)
        return Bounds(self.spares, excluded, self.end_of(waiting.key), waiting.queued_at)

    def place(
        self, waiting: Waiting, number: int
    ) -> tuple[tuple[Part, ...], tuple[SourceUnits, ...]] | GangReason:
        """Take room for one choice of a task, and say out of whose units; or why it may not start."""
        key = waiting.key
        facts = self.cluster.facts(key)
        if self.cluster.most_of(key, number) is not None:
            return self.impossible(key, number)
        reason = self.no_units(key, number)
        end = self.end_of(key)
        if reason is None and self.promises:
            reason = self.promised(waiting, number, end)
        if reason is not None:
            return reason
        known = self.failed.get(facts.looks[number])
        if known is not None and known[0] <= end and known[1] <= waiting.queued_at:
            return known[2]
        choice = key.choices[number]
        bounds = self.bounds(waiting) if self.spares or key.excluded else None
        placed = self.room.place(key.pool, choice, bounds)
        if placed is None:
            reason = self._shortage(key, choice, bounds)
            self.failed[facts.looks[number]] = (end, waiting.queued_at, reason)
            return reason
        sources = self.sources(key, choice)
        if isinstance(sources, GangReason):
            self.room.undo(choice, placed)
            return sources
        return parts_of(self.layout, choice, placed), sources

    def no_units(self, key: GangClass, number: int) -> GangReason | None:
        """Why the quotas do not let a choice start; fast where they do."""
        special = key.idle_supplement or key.resource_type is ResourceType.IDLE
        if self.future is self.real and not special and self.real.has(key, number):
            return None
        found = self.sources(key, key.choices[number])
        return found if isinstance(found, GangReason) else None

    def impossible(self, key: GangClass, number: int) -> GangReason:
        """That no node or not enough nodes could ever serve a choice."""
        found = self.cluster.most_of(key, number)
        group, ever = (key.choices[number].groups[0], 0) if found is None else found
        spec = _spec(key.choices[number], group)
        return GangReason(GangWait.NO_MATCHING_SPEC, spec, group.count, largest=ever, pool=key.pool)

    def sources(self, key: GangClass, choice: Choice) -> tuple[SourceUnits, ...] | GangReason:
        """Out of whose units a choice would run, now and beside what is planned."""
        capacity = self.capacity(key, choice)
        found = self.real.check(key, choice, capacity)
        if self.future is not self.real and not isinstance(found, GangReason):
            later = self.future.check(key, choice, capacity)
            if isinstance(later, GangReason):
                return later
        return found

    def capacity(self, key: GangClass, choice: Choice) -> dict[str, int]:
        """Units of each spec that the whole pool could run at once; only idle tasks are held to them."""
        if key.resource_type is not ResourceType.IDLE and not key.idle_supplement:
            return {}
        pool = key.pool
        known = self._capacities.get((pool, choice))
        if known is None:
            known = {}
            if any(self.real.table.unlent(pool, spec) for spec, _ in choice.units):
                for need in choice.needs:
                    a = need.amounts
                    shape = (a.gpus, a.cpus, a.memory_mb, a.storage_mb, a.shm_mb)
                    kinds = self.layout.meaning(pool, need.gpu_model if a.gpus else None)
                    known[need.spec] = need.units * sum(self.cluster.ever(kind, shape) for kind in kinds)
            self._capacities[pool, choice] = known
        return known

    def start(self, waiting: Waiting, admission: Admission) -> None:
        """Account for a gang that starts now; its room is taken already."""
        key = waiting.key
        end = self.end_of(key)
        self.charge(key, admission.sources)
        for part in admission.parts:
            self.occupy(part, admission.id, end)
        for line, units in key.lines[admission.choice]:
            promise = self.promises.get(line)
            if promise is not None:
                promise.take(units, end)
        self.admissions.append(admission)

    def occupy(self, part: Part, id_: str, end: float) -> None:
        """Remember who is on a node until when."""
        node = self.layout.numbers[part.node]
        mask = mask_of(part.gpus)
        self.started.setdefault(node, []).append((end, id_, mask, part.amounts))
        for spare in self.spares.get(node, ()):
            kind = next((k for k in self.layout.node_kinds[node] if self.layout.all_gpus[k][node] & mask), -1)
            spare.take(kind, part.amounts, end)

    def charge(self, key: GangClass, sources: Iterable[SourceUnits]) -> None:
        self.real.charge(key, sources)
        if self.future is not self.real:
            self.future.charge(key, sources)

    def candidates(self, pool: str) -> Candidates:
        """Who might have to go in a pool."""
        if pool not in self._candidates:
            self._candidates[pool] = self.cluster.candidates(pool, self.now, self.rules.min_run_seconds)
        return self._candidates[pool]

    def promise(self, waiting: Waiting, reason: GangReason) -> GangReason:
        """Keep units for the first task of a quota that must wait for them."""
        key = waiting.key
        line = line_key(key, reason.spec)
        row = self.real.table.row(line)
        units = reason.requested
        if row is None or line in self.promises:
            return reason
        left = self.real.left(line, guarantee=key.guarantee)
        at = self.now
        ends = sorted(
            (
                inf if one.expected_end is None else max(one.expected_end, self.now),
                one.id,
                dict(one.units).get(reason.spec, 0),
            )
            for one in self.cluster.of_line.get(line, {}).values()
        )
        for end, _, back in ends:
            if left >= units:
                break
            at, left = end, left + back
        at = at if left >= units else inf
        promise = self._keep(line, Promise(waiting.id, at, max(0, left - units)))
        if row.cohort is not None and self.real.own_left(line) < units:
            # What it lacks is lent to others: nobody borrows more of it meanwhile.
            self.promises.setdefault((row.cohort, *line[1:], ""), Promise(waiting.id, promise.at, 0))
            self.pots_promised = True
        return _until(reason, at)

    def _keep(self, line: LineKey, promise: Promise) -> Promise:
        self.promises[line] = promise
        claim = self.real.table.claim
        self.promised_claims |= {claim(line, guarantee=True), claim(line, guarantee=False)}
        return promise

    def promised(self, waiting: Waiting, number: int, end: float) -> GangReason | None:
        """Whether the task would take what is promised to one that comes first."""
        key = waiting.key
        for line, units in key.lines[number]:
            spec = line[3]
            promise = self.promises.get(line)
            if promise is not None and promise.id != waiting.id and not promise.allows(units, end):
                return self._behind(key, promise.id, promise.at, spec, units)
            row = self.real.table.row(line) if self.pots_promised else None
            if row is not None and row.cohort is not None:
                pot: CohortKey = (row.cohort, *line[1:])
                promise = self.promises.get((*pot, ""))
                borrowed = units - max(0, self.real.own_left(line))
                if (
                    promise is not None
                    and promise.id != waiting.id
                    and borrowed > 0
                    and not promise.allows(borrowed, end)
                ):
                    return self._behind(key, promise.id, promise.at, spec, units)
        return None

    def _behind(self, key: GangClass, id_: str, at: float, spec: str, units: int) -> GangReason:
        until = None if at == inf else at
        return GangReason(GangWait.BEHIND, spec, units, behind=id_, until=until, pool=key.pool)

    def _shortage(self, key: GangClass, choice: Choice, bounds: Bounds | None) -> GangReason:
        """Why enough units of the quota were not enough: too little, in pieces, or spoken for."""
        for group in choice.groups:
            kinds = self.layout.meaning(key.pool, group.gpu_model)
            spec = _spec(choice, group)
            largest = max(self.room.fits(kind, group.shape, group.count) for kind in kinds)
            if largest >= group.count:
                continue
            if group.shape[0]:
                want, free = group.shape[0] * group.count, max(self.room.gpus[kind] for kind in kinds)
            else:
                want, free = (
                    group.shape[1] * group.count,
                    sum(
                        self.room.cpus[node]
                        for node in self.layout.kind_nodes[kinds[0]]
                        if self.room.cpus[node] > 0
                    ),
                )
            code = GangWait.FRAGMENTED if free >= want else GangWait.WAITING_FOR_RESOURCES
            return GangReason(code, spec, want, free, largest=largest, limit=group.count, pool=key.pool)
        group = choice.groups[0]
        if bounds is not None:
            behind = self._who_is_first(key, choice, bounds)
            if behind is not None:
                return self._behind(key, behind.id, behind.at, _spec(choice, group), group.count)
        want = choice.amounts.gpus or choice.amounts.cpus
        return GangReason(
            GangWait.FRAGMENTED, _spec(choice, group), want, want, limit=group.count, largest=0, pool=key.pool
        )

    def _who_is_first(self, key: GangClass, choice: Choice, bounds: Bounds) -> Spare | None:
        """The reservation that keeps a gang from nodes on which it would fit."""
        free = Bounds({}, bounds.excluded, bounds.end, bounds.queued_at)
        placed = self.room.place(key.pool, choice, free)
        if placed is None:
            return None
        self.room.undo(choice, placed)
        for group, spots in zip(choice.groups, placed, strict=True):
            for node, mask in spots:
                kind = next(
                    (k for k in self.layout.node_kinds[node] if self.layout.all_gpus[k][node] & mask), -1
                )
                for spare in self.spares.get(node, ()):
                    if (
                        bounds.queued_at >= spare.queued_at
                        and spare.fit(kind, group.shape, 1, bounds.end) < 1
                    ):
                        return spare
        return next((spare for node in sorted(self.spares) for spare in self.spares[node]), None)

    def reserve(self, waiting: Waiting, reason: GangReason, allowed: Iterable[int]) -> GangReason:
        """Keep nodes for the first task of its GPUs that must wait for room."""
        key = waiting.key
        if len(self.reservations) >= self.rules.max_reservations:
            return reason
        kinds = self._reservable(key, allowed)
        if not kinds:
            return reason
        best = None
        for number in allowed:
            choice = key.choices[number]
            if self.cluster.most_of(key, number) or isinstance(self.sources(key, choice), GangReason):
                continue
            found = self.earliest(waiting, choice)
            if found is not None and (best is None or found[0] < best[0]):
                best = (found[0], number, found[1])
        if best is None:
            return reason
        self.reserved_kinds |= kinds
        at, number, nodes = best
        # Each group alone fits now, but not all together: then these nodes empty first.
        whole = at > self.now
        # What must empty would never do so if tasks that end soon came again and again.
        soon = self._soon if whole and at == inf else None
        spares = []
        for node, (_, kind, taken) in sorted(nodes.items()):
            left = self._beside(node, kind, at, taken) if whole else Amounts()
            when = at if whole else inf
            spares.append((node, Spare(waiting.id, kind, when, left, -inf, free_until=soon)))
        for node, spare in spares:
            self.spares.setdefault(node, []).append(spare)
        names = self.layout.names
        kept = tuple(
            Kept(waiting.id, names[node], self.layout.models[s.kind] or "", s.at, s.left, waiting.queued_at)
            for node, s in spares
        )
        parts = tuple((names[node], count) for node, (count, _, _) in sorted(nodes.items()))
        self.reservations.append(GangReservation(waiting.id, key, number, parts, at if whole else inf, kept))
        self._promise_units(waiting, number, at)
        return _until(reason, at if whole else inf)

    def _promise_units(self, waiting: Waiting, number: int, at: float) -> None:
        """Keep the units of a task that has a reservation."""
        for line, units in waiting.key.lines[number]:
            if line not in self.promises and self.real.table.row(line) is not None:
                spare = self.real.left(line, guarantee=waiting.key.guarantee) - units
                self._keep(line, Promise(waiting.id, at, max(0, spare)))

    def _reservable(self, key: GangClass, allowed: Iterable[int]) -> set[int]:
        """The kinds that a task could wait for, unless another one waits for one of them already."""
        of = self.cluster.facts(key).kinds
        reserved = self.reserved_kinds
        if reserved and any(kind in reserved for number in allowed for kind in of[number]):
            return set()
        return {kind for number in allowed for kind in of[number]}

    def earliest(
        self, waiting: Waiting, choice: Choice
    ) -> tuple[float, dict[int, tuple[int, int, Amounts]]] | None:
        """When and where a choice of a task can start at the latest."""
        bounds = self.bounds(waiting)
        bounds.end = inf
        search = Earliest(
            self.layout,
            openings=self._openings,
            steps=self._steps,
            apart={*self.started, *self.delayed, *self.spares, *bounds.excluded},
            left=self.left,
            bounds=bounds,
            held=self._held,
            now=self.now,
        )
        return search.find(waiting.key.pool, choice)

    def _beside(self, node: int, kind: int, at: float, taken: Amounts) -> Amounts:
        """What a node has for others at the reserved time.

        If that is not known, what holds none of the GPUs may stay for ever, so that tasks without GPUs do not
        take, one after the other, what they were all told is left.
        """
        left = self.left(node, kind, at) - taken
        if at < inf:
            return left
        for end, _, gpus, amounts in self._ends(node):
            if end == inf and not gpus & self.layout.all_gpus[kind][node]:
                left -= replace(amounts, gpus=0)
        rest = (left.gpus, left.cpus, left.memory_mb, left.storage_mb, left.shm_mb)
        return Amounts(*(max(0, each) for each in rest))

    @property
    def _soon(self) -> float:
        """What ends by then may run before a task of which nobody can say when it starts."""
        return self.now + self.rules.unknown_start_seconds

    def _held(self, node: int, kind: int) -> int:
        """What is not free soon: what runs before the first in line does not drive it elsewhere."""
        return held_until(self.room, node, kind, self._ends(node), self._soon)[0]

    def _openings(self, kind: int, shape: Shape) -> Sequence[Gain]:
        return self.cluster.openings(kind, shape, self.now, self.rules.unknown_start_seconds)

    def _steps(self, node: int, kind: int, shape: Shape) -> list[Step]:
        """What fits on a node as this pass leaves it, from when on; nothing on a closed one."""
        if self.layout.names[node] not in self.cluster.open:
            return []
        return walk(self.room, node, kind, shape, self._ends(node), self.now)

    def _ends(self, node: int) -> Ends:
        found = self.cluster.ends(node, self.now)
        started, delayed = self.started.get(node), self.delayed.get(node)
        if started is None and delayed is None:
            return found
        if delayed is not None:
            found = [
                (max(end, delayed.get(id_, end)), id_, mask, amounts) for end, id_, mask, amounts in found
            ]
        return sorted([*found, *(started or ())], key=lambda entry: entry[:2])

    def left(self, node: int, kind: int, at: float) -> Amounts:
        """What will be free on a node by then, with GPUs of one kind counted."""
        mask = self.room.masks[node]
        free = Amounts(
            0,
            self.room.cpus[node],
            self.room.memory_mb[node],
            self.room.storage_mb[node],
            self.room.shm_mb[node],
        )
        if at > self.now:
            for end, _, gpus, amounts in self._ends(node):
                if end <= at:
                    mask |= gpus
                    free += amounts
        gpus_free = (mask & self.layout.all_gpus[kind][node]).bit_count() if kind >= 0 else 0
        return Amounts(gpus_free, free.cpus, free.memory_mb, free.storage_mb, free.shm_mb)


def _spec(choice: Choice, group: Group) -> str:
    return next((n.spec for n in choice.needs if n.amounts == group.amounts and n.count), "")


def _until(reason: GangReason, at: float) -> GangReason:
    return GangReason(
        reason.code,
        reason.spec,
        reason.requested,
        reason.available,
        reason.limit,
        reason.largest,
        reason.behind,
        None if at == inf else at,
        reason.pool,
    )
