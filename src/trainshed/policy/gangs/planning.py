"""Plans within one pass: gangs that wait for their victims, and what is held for them meanwhile (c4)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import inf

from trainshed.model.resources import Amounts
from trainshed.policy.cluster import Held
from trainshed.policy.gangs.passing import Pass
from trainshed.policy.gangs.preemption import Simulation, lost, on_the_way_out
from trainshed.policy.gangs.queue import GangQueue
from trainshed.policy.gangs.quota import supplements
from trainshed.policy.gangs.room import gpus_of, mask_of
from trainshed.policy.gangs.snapshot import (
    Admission,
    Eviction,
    GangClass,
    GangReason,
    GangWait,
    Part,
    Plan,
    Running,
    Waiting,
)
from trainshed.policy.gangs.usage import line_key

_Hold = tuple[int, int, Amounts]
"""A node, the GPUs held there now as a mask, and the rest of what is held."""
_NOT_YET: tuple[float, int, float | None] = (-inf, -1, None)


class Plans:
    """Old plans that still hold, and those that a pass makes."""

    def __init__(self, state: Pass, queue: GangQueue, planned: Iterable[Waiting]) -> None:
        self.state = state
        self.queue = queue
        self.active: dict[str, tuple[Waiting, Plan]] = {}
        self.settled: set[str] = set()
        """Tasks that need no ordinary try: they started, or wait for their victims."""
        self.evictions: list[Eviction] = []
        self.next_at: float | None = None
        self._held: dict[str, list[_Hold]] = {}
        self._simulations = 0
        for waiting in planned:
            if waiting.plan is not None and self._holds(waiting, waiting.plan):
                self._activate(waiting, waiting.plan)

    def ready(self) -> Iterator[Waiting]:
        """Start every task whose victims are gone on what they left; yields those that must go on waiting."""
        for waiting, plan in list(self.active.values()):
            if self._victims(plan) or not self._start(waiting, plan):
                yield waiting

    def _start(self, waiting: Waiting, plan: Plan) -> bool:
        """Start on the plan if its quota and every part are there; else forget the plan."""
        key, state = waiting.key, self.state
        choice = key.choices[plan.choice]
        sources = state.real.check(key, choice, state.capacity(key, choice))
        self.let_go(waiting.id)
        if isinstance(sources, GangReason) or not self._all_free(plan):
            self._forget(waiting.id)
            return True
        for part in plan.parts:
            node = state.layout.numbers[part.node]
            state.room.set_mask(node, state.room.masks[node] & ~mask_of(part.gpus))
            state.room.add(node, part.amounts, -1)
        self._forget(waiting.id)
        self.settled.add(waiting.id)
        state.start(waiting, Admission(waiting.id, key, plan.choice, plan.parts, sources, planned=True))
        return True

    def _all_free(self, plan: Plan) -> bool:
        room, numbers = self.state.room, self.state.layout.numbers
        need: dict[int, tuple[int, Amounts]] = {}
        for part in plan.parts:
            mask, amounts = need.get(numbers[part.node], (0, Amounts()))
            need[numbers[part.node]] = (mask | mask_of(part.gpus), amounts + part.amounts)
        return all(
            room.masks[node] & mask == mask
            and a.cpus <= room.cpus[node]
            and a.memory_mb <= room.memory_mb[node]
            and a.storage_mb <= room.storage_mb[node]
            and a.shm_mb <= room.shm_mb[node]
            for node, (mask, a) in need.items()
        )

    def possible(self, key: GangClass) -> bool:
        """Whether anybody could make room for a class at all."""
        pool = self.state.candidates(key.pool)
        if pool.next_at is not None:
            self.state.look_again(pool.next_at)
        return bool(self.state.cluster.evicting) or pool.has_below(key)

    def make(self, waiting: Waiting, number: int) -> bool:
        """Plan a start on what gangs of lower rank leave, if that works node by node."""
        key, state = waiting.key, self.state
        choice = key.choices[number]
        pool = state.candidates(key.pool)
        since, version, ripe = self.queue.simulated.get(key, {}).get(number, _NOT_YET)
        same = version == state.cluster.version and (ripe is None or state.now < ripe)
        if same or not self._may_evict(waiting, number):
            return False
        reclaims = all(state.future.own_left(line) >= units for line, units in key.lines[number])
        claimed = {victim for _, plan in self.active.values() for victim in plan.victims}
        below = pool.below(key, state.future, reclaims=reclaims)
        candidates = [one for one in below if one.id not in claimed]
        going = list(on_the_way_out(state.cluster.evicting.values(), claimed, state.now))
        if not candidates and not going:
            return False
        if not self._worth_a_try(since):
            return False
        self._simulations += 1
        state.split_future()
        simulation = Simulation(
            room=state.room.copy(),
            ledger=state.future.copy(),
            nodes=state.cluster.open,
            key=key,
            choice=choice,
            bounds=state.bounds(waiting),
            capacity=state.capacity(key, choice),
            now=state.now,
        )
        found = simulation.search(candidates, going)
        if found is None:
            vain = self.queue.simulated.setdefault(key, {})
            vain[number] = (state.now, state.cluster.version, pool.next_at)
            return False
        nodes = {part.node for part in found.parts}
        awaited = [one for one in going if any(part.node in nodes for part in one.parts)]
        self._plan(waiting, number, found.parts, found.victims, awaited)
        return True

    def _worth_a_try(self, since: float) -> bool:
        """Not all the time on a cluster that changes, and not too often in a pass."""
        state = self.state
        again = since + state.rules.simulate_again_seconds
        if state.now < again:
            state.look_again(again)
            return False
        if self._simulations >= state.rules.max_simulations:
            state.look_again(state.now + 1)
            return False
        return True

    def _plan(
        self,
        waiting: Waiting,
        number: int,
        parts: tuple[Part, ...],
        victims: tuple[Running, ...],
        awaited: Iterable[Running],
    ) -> None:
        state = self.state
        gone_by = state.now + state.rules.notice_seconds
        until = max([gone_by, *(one.gone_by or gone_by for one in awaited)])
        ids = (*(one.id for one in victims), *(one.id for one in awaited))
        self.evictions += [
            Eviction(one.id, waiting.id, _message(one, waiting, state.now), gone_by) for one in victims
        ]
        self._activate(waiting, Plan(number, parts, ids, state.now, until))

    def _may_evict(self, waiting: Waiting, number: int) -> bool:
        key = waiting.key
        if waiting.id in self.active or self.state.cluster.most_of(key, number) is not None:
            return False
        # What runs as idle evicts nobody, so a gang that would be supplemented waits for free units.
        return not supplements(key) or all(
            self.state.future.own_left(line) >= units for line, units in key.lines[number]
        )

    def _holds(self, waiting: Waiting, plan: Plan) -> bool:
        """Whether an old plan can still come true."""
        key, state = waiting.key, self.state
        nodes = {part.node for part in plan.parts}
        return (
            plan.choice < len(key.choices)
            and key.held is None
            and all(name in state.cluster.open and name not in key.excluded for name in nodes)
            and (state.now <= plan.until or not self._victims(plan))
        )

    def _victims(self, plan: Plan) -> list[Running]:
        """Victims that are still there."""
        running = self.state.cluster.running
        return [running[victim] for victim in plan.victims if victim in running]

    def _activate(self, waiting: Waiting, plan: Plan) -> None:
        state = self.state
        self.active[waiting.id] = (waiting, plan)
        self.settled.add(waiting.id)
        if state.now < plan.until and (self.next_at is None or plan.until < self.next_at):
            self.next_at = plan.until
        state.split_future()
        self._charge_victims(plan, -1)
        end = plan.until + (state.end_of(waiting.key) - state.now)
        for part in plan.parts:
            node = state.layout.numbers[part.node]
            delayed = state.delayed.setdefault(node, {})
            for victim in plan.victims:
                delayed[victim] = max(delayed.get(victim, 0.0), end)
        self.hold_again(waiting.id)

    def _charge_victims(self, plan: Plan, sign: int) -> None:
        for one in self._victims(plan):
            for spec, units in one.units:
                self.state.future.add(line_key(one.key, spec), sign * units)
            for spec, units in one.supplement:
                self.state.future.add_lent(one.key.pool, spec, sign * units)

    def hold_again(self, waiting_id: str) -> None:
        """Hold what is free of a plan's parts now, and its units."""
        state = self.state
        waiting, plan = self.active[waiting_id]
        self._charge_own(waiting, plan, 1)
        coming: dict[str, Amounts] = {}
        for one in self._victims(plan):
            for part in one.parts:
                coming[part.node] = coming.get(part.node, Amounts()) + part.amounts
        held: list[_Hold] = []
        for part in plan.parts:
            node = state.layout.numbers[part.node]
            mask = mask_of(part.gpus) & state.room.masks[node]
            cover = coming.get(part.node, Amounts())
            rest = Amounts(
                0,
                max(0, part.amounts.cpus - cover.cpus),
                max(0, part.amounts.memory_mb - cover.memory_mb),
                max(0, part.amounts.storage_mb - cover.storage_mb),
                max(0, part.amounts.shm_mb - cover.shm_mb),
            )
            coming[part.node] = Amounts(
                0,
                max(0, cover.cpus - part.amounts.cpus),
                max(0, cover.memory_mb - part.amounts.memory_mb),
                max(0, cover.storage_mb - part.amounts.storage_mb),
                max(0, cover.shm_mb - part.amounts.shm_mb),
            )
            state.room.set_mask(node, state.room.masks[node] & ~mask)
            state.room.add(node, rest, -1)
            held.append((node, mask, rest))
        self._held[waiting.id] = held

    def let_go(self, waiting_id: str) -> None:
        """Free what is held, to try the task elsewhere."""
        self._charge_own(*self.active[waiting_id], -1)
        for node, mask, rest in self._held.pop(waiting_id, ()):
            self.state.room.give(node, mask, rest)

    def done(self, waiting_id: str) -> None:
        """The task started elsewhere; its victims go all the same."""
        self._forget(waiting_id)
        self.settled.add(waiting_id)

    def _forget(self, waiting_id: str) -> None:
        """Drop a plan; the task is tried as any other."""
        _, plan = self.active.pop(waiting_id)
        self.settled.discard(waiting_id)
        self._charge_victims(plan, 1)

    def _charge_own(self, waiting: Waiting, plan: Plan, sign: int) -> None:
        for line, units in waiting.key.lines[plan.choice]:
            self.state.future.add(line, sign * units)

    def reasons(self) -> Iterator[tuple[str, GangReason]]:
        """Why the tasks with plans wait: for one reason, as long as their victims take."""
        for waiting, plan in self.active.values():
            left = len(self._victims(plan))
            yield (
                waiting.id,
                GangReason(
                    GangWait.WAITING_FOR_PREEMPTED,
                    spec=waiting.key.choices[plan.choice].needs[0].spec,
                    requested=len(plan.victims),
                    available=len(plan.victims) - left,
                    until=None if plan.until == inf else plan.until,
                    pool=waiting.key.pool,
                ),
            )

    def holds(self) -> Iterator[Held]:
        """What is held now, for the pass over Runner Trials."""
        for waiting_id, holds in self._held.items():
            waiting, _ = self.active[waiting_id]
            for number, (node, mask, rest) in enumerate(holds):
                gpus = gpus_of(mask)
                amounts = Amounts(len(gpus), rest.cpus, rest.memory_mb, rest.storage_mb, rest.shm_mb)
                yield Held(
                    f"plan:{waiting_id}:{number}",
                    waiting_id,
                    waiting.key.project,
                    self.state.layout.names[node],
                    gpus,
                    amounts,
                    None,
                )


def _message(victim: Running, waiting: Waiting, now: float) -> str:
    """Why a gang must go, with numbers."""
    key, other = victim.key, waiting.key
    kind = (
        "idle supplement"
        if victim.supplement and key.resource_type.value == "reserved"
        else key.resource_type.value
    )
    return (
        f"makes room for {waiting.id} ({other.resource_type.value}, priority {other.priority}, project"
        f" {other.project}): ran as {kind} at priority {key.priority} for"
        f" {round(now - victim.admitted_at)} s, {round(lost(victim, now))} GPU-seconds since it last saved"
    )
