"""The one transaction in which decisions about gangs become true (promise P5).

What a pass saw is a moment old. Here everything it relied on is asked again under a lock: that nothing holds
nodes of which it did not know, that the units are there, that every part is free, that the task still waits.
What does not hold any more is left out, and the next pass decides anew.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from trainshed.control.crashpoints import Point, reach
from trainshed.control.training import scaling
from trainshed.control.training.frozen import spec_of
from trainshed.control.training.guests import Guests, guest_running, is_guest
from trainshed.control.training.holding import (
    Occupancy,
    gpu_words,
    notice_seconds,
    parts_of,
    running_of,
)
from trainshed.control.training.observing import PENDING, PULLING
from trainshed.control.training.sites import Site
from trainshed.model.ids import IdFactory
from trainshed.model.resources import Amounts, Node
from trainshed.model.states import AllocationState, State
from trainshed.model.training.spec import HOST_IMAGE, ResourceType
from trainshed.policy.gangs.cluster import LineKey, add_usage
from trainshed.policy.gangs.quota import Ledger, QuotaTable
from trainshed.policy.gangs.snapshot import Admission, Eviction, GangReason, Plan, Running, SourceUnits
from trainshed.store import events, gangs, moves, queue
from trainshed.store.database import Connection
from trainshed.store.events import NewEvent
from trainshed.store.gangs import Gang, NewGang, NewMember
from trainshed.store.moves import Move
from trainshed.store.records import Allocation, Task, Trial

ACTOR = "controller"
NO_LIMIT_SECONDS = 10 * 365 * 86_400
"""What stands for "as long as it likes" where a number is needed."""
_SHOWN = 8


class Stale(Exception):
    """Something holds nodes that the pass did not know of: look at the rows again."""


@dataclass(frozen=True, slots=True)
class Decided:
    """What is to become true at one site."""

    admissions: Sequence[Admission] = ()
    evictions: Sequence[Eviction] = ()
    plans: Mapping[str, Plan | None] = field(default_factory=dict)
    """Of tasks whose plan changed; ``None`` takes it away."""
    growths: Sequence[Admission] = ()
    """By the id of the Allocation that grows (C51)."""
    waits: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Allocations that do not grow although they would: code and sentence, where these changed."""

    def __bool__(self) -> bool:
        return bool(self.admissions or self.evictions or self.plans or self.growths or self.waits)


@dataclass(frozen=True, slots=True)
class Made:
    """What became true."""

    placed: tuple[Gang, ...]
    evicted: frozenset[str]
    """Allocations."""
    grown: frozenset[str] = frozenset()
    """Likewise."""
    guests: tuple[Allocation, ...] = ()
    """What packed projects were given."""


@dataclass(frozen=True, slots=True)
class Admitter:
    """Commits what a pass decided at one site."""

    site: Site
    quotas: QuotaTable
    known: Collection[str]
    """Allocations that the pass knew of."""
    ids: IdFactory
    clock: Callable[[], float]
    grace_seconds: float
    guests: Guests | None = None

    def store(self, connection: Connection, decided: Decided) -> Made:
        """Make it true as far as it still can be. Raises `Stale`."""
        now = self.clock()
        gangs.lock_pass(connection)
        holding = [a for a in queue.unreleased(connection) if self._counts(a)]
        if not {allocation.id for allocation in holding} <= set(self.known):
            raise Stale
        held = {gang.allocation.id: gang for gang in gangs.held(connection)}
        wanted = {admission.id for admission in decided.admissions}
        tasks = gangs.of_trials(connection, wanted)
        touched = {each.id for each in decided.evictions} | {each.id for each in decided.growths}
        touched |= decided.waits.keys()
        moves.lock_jobs(
            connection,
            {t.job_id for t, _ in tasks.values()}
            | {held[key].trial.job_id for key in touched if key in held},
        )
        # Again, now that nobody else moves them.
        tasks = gangs.of_trials(connection, wanted)
        if decided.growths or decided.waits:
            held = {gang.allocation.id: gang for gang in gangs.held(connection)}
        room = Occupancy(self.site.nodes, [a for a in holding if a.engine == self.site.key])
        asks = decided.admissions or decided.growths
        running = [running_of(g, self.grace_seconds) for g in held.values()] if asks else []
        running += [guest_running(a, self.grace_seconds) for a in holding if asks and is_guest(a)]
        ledger = self._ledger(running)
        placed = self._admit(connection, decided.admissions, tasks, room, ledger, now)
        guests = self._welcome(connection, decided.admissions, tasks, room, ledger, now)
        evicted = self._evict(connection, decided.evictions, held, now)
        grown = self._grow(connection, decided, held, room, ledger, now)
        for trial_id, plan in decided.plans.items():
            text = None if plan is None else json.dumps(plan.as_dict())
            gangs.change_task(connection, trial_id, {"plan": text})
        reach(Point.GANG_PLACE_BEFORE_COMMIT)
        return Made(tuple(placed), frozenset(evicted), frozenset(grown), tuple(guests))

    def _counts(self, allocation: Allocation) -> bool:
        """Whether it holds nodes here, or units of a quota: what runs at a provider elsewhere does not."""
        return allocation.parts is not None or is_guest(allocation) or allocation.engine == self.site.key

    def _admit(
        self,
        connection: Connection,
        admissions: Sequence[Admission],
        tasks: Mapping[str, tuple[Trial, Task]],
        room: Occupancy,
        ledger: Ledger,
        now: float,
    ) -> list[Gang]:
        if not admissions:
            return []
        told: list[NewEvent] = []
        made: list[tuple[Move, Task, NewGang]] = []
        numbers = queue.newest_attempts(connection, [admission.id for admission in admissions])
        for admission in admissions:
            trial, task = tasks.get(admission.id, (None, None))
            if trial is None or task is None or trial.state is not State.QUEUED:
                continue
            if (task.priority, task.guarantee) != (admission.key.priority, admission.key.guarantee):
                continue
            sources = ledger.check(admission.key, admission.key.choices[admission.choice], {})
            if isinstance(sources, GangReason) or not room.take(admission.parts):
                continue
            ledger.charge(admission.key, sources)
            new = self._new(trial, task, admission, sources, numbers.get(trial.id, ("", 0))[1] + 1, now)
            told += _told(trial, admission, sources, now)
            words = _placed_words(admission, simulated=new.allocation.simulated)
            made.append((Move(trial, State.QUEUED, State.PREPARING, "PLACED", words), task, new))
        events.record(connection, told)
        moves.apply(connection, [move for move, _, _ in made], at=now, actor=ACTOR)
        gangs.open_all(connection, [new for _, _, new in made])
        placed = []
        for move, task, new in made:
            spec = spec_of(task)
            chosen = _spec_words(new)
            stage = "starting" if spec.image == HOST_IMAGE else "pulling"
            values = {"chosen_spec": chosen, "plan": None, "stage": stage, "retained_until": None}
            values["scaling"] = None
            gangs.change_task(connection, task.trial_id, values)
            trial = replace(move.trial, state=State.PREPARING, updated_at=now)
            after = replace(
                task, chosen_spec=chosen, plan=None, stage=stage, retained_until=None, scaling=None
            )
            placed.append(Gang(trial, after, new.allocation))
        return placed

    def _welcome(
        self,
        connection: Connection,
        admissions: Sequence[Admission],
        tasks: Collection[str],
        room: Occupancy,
        ledger: Ledger,
        now: float,
    ) -> list[Allocation]:
        """Packed projects: the same questions as for tasks, and an Attempt of their own kind."""
        made: list[Allocation] = []
        if self.guests is None:
            return made
        for admission in admissions:
            if admission.id in tasks:
                continue
            sources = ledger.check(admission.key, admission.key.choices[admission.choice], {})
            if isinstance(sources, GangReason) or not room.take(admission.parts):
                continue
            model, simulated = gpu_words(admission.parts, self._nodes())
            held = self.guests.place(
                connection, admission, sources, self.site.key, model, simulated=simulated, now=now
            )
            if held is not None:
                ledger.charge(admission.key, sources)
                made.append(held)
        return made

    def _grow(
        self,
        connection: Connection,
        decided: Decided,
        held: Mapping[str, Gang],
        room: Occupancy,
        ledger: Ledger,
        now: float,
    ) -> list[str]:
        """One worker more for each, as far as room and units are still there."""
        made = []
        for growth in decided.growths:
            gang, key = held.get(growth.id), growth.key
            if gang is None or (gang.task.priority, gang.task.guarantee) != (key.priority, key.guarantee):
                continue
            sources = ledger.check(key, key.choices[0], {})
            if isinstance(sources, GangReason) or not room.take(growth.parts):
                continue
            if scaling.grow(connection, gang, replace(growth, sources=sources), self._nodes(), now):
                ledger.charge(key, sources)
                made.append(growth.id)
        for key_, (code, why) in decided.waits.items():
            if key_ in held:
                scaling.note_waits(connection, held[key_], code, why, now)
        if made:
            reach(Point.GANG_GROW_BEFORE_COMMIT)
        return made

    def _ledger(self, running: Sequence[Running]) -> Ledger:
        used: dict[LineKey, int] = {}
        lent: dict[tuple[str, str], int] = {}
        for each in running:
            add_usage(used, lent, each, 1)
        return Ledger(self.quotas, used, lent)

    def _new(
        self,
        trial: Trial,
        task: Task,
        admission: Admission,
        sources: Sequence[SourceUnits],
        number: int,
        now: float,
    ) -> NewGang:
        parts = admission.parts
        total = sum((part.amounts for part in parts), Amounts())
        models, simulated = gpu_words(parts, self._nodes())
        allocation = Allocation(
            id=self.ids.allocation(),
            attempt_id=self.ids.attempt(),
            trial_id=trial.id,
            project_id=trial.project_id,
            engine=self.site.key,
            node="",
            gpu_model=models,
            gpu_indices="[]",
            simulated=simulated,
            gpus=total.gpus,
            cpus=total.cpus,
            memory_mb=total.memory_mb,
            storage_mb=total.storage_mb,
            shm_mb=total.shm_mb,
            timeout_seconds=spec_of(task).max_run_seconds or NO_LIMIT_SECONDS,
            state=AllocationState.HELD,
            held_at=now,
            released_at=None,
            tries=0,
            evidence=None,
            parts=json.dumps([part.as_dict() for part in parts]),
            sources=json.dumps([[s.spec, s.own, s.borrowed, s.supplement] for s in sources]),
        )
        state = PENDING if spec_of(task).image == HOST_IMAGE else PULLING
        members = tuple(NewMember(part.rank, part.role.value, part.node, part.gpus, state) for part in parts)
        return NewGang(allocation, number, task.next_cause, members)

    def _nodes(self) -> Mapping[str, Node]:
        return {node.name: node for node in self.site.nodes}

    def _evict(
        self, connection: Connection, evictions: Sequence[Eviction], held: Mapping[str, Gang], now: float
    ) -> list[str]:
        made, told = [], []
        firsts = gangs.of_trials(connection, {each.for_id for each in evictions})
        for each in evictions:
            gang = held.get(each.id)
            if gang is None or not gang.held:
                continue
            noticed = gang.trial.state in {State.RUNNING, State.CHECKPOINTING}
            until = now + (notice_seconds(spec_of(gang.task)) if noticed else 0.0)
            _, first = firsts.get(each.for_id, (None, None))
            why = each.message.replace(each.for_id, _called(first, gang.task))
            if not gangs.evict(connection, each.id, for_id=each.for_id, reason=why, at=now, until=until):
                continue
            made.append(each.id)
            told.append(
                NewEvent(
                    gang.trial.job_id,
                    gang.trial.id,
                    now,
                    ACTOR,
                    "PREEMPTED",
                    why,
                    level="warning",
                )
            )
        events.record(connection, told)
        return made


def _called(first: Task | None, victim: Task) -> str:
    """How the task that comes first is called before those who see its victim: not all may see it (C5)."""
    if first is None or first.project_id != victim.project_id:
        return "another task"
    return first.name if first.public or first.owner == victim.owner else "another task"


def _spec_words(new: NewGang) -> str:
    """The specs of a gang, the workers' first where the head has its own."""
    names = dict.fromkeys(part.spec for part in reversed(parts_of(new.allocation)) if part.spec)
    return " + ".join(names)


def _told(trial: Trial, admission: Admission, sources: Sequence[SourceUnits], now: float) -> list[NewEvent]:
    """Why this spec (C22), and out of whose units (C23)."""

    def event(code: str, message: str) -> NewEvent:
        return NewEvent(trial.job_id, trial.id, now, ACTOR, code, message)

    found = []
    if len(admission.key.choices) > 1:
        chosen = admission.key.choices[admission.choice].units
        names = " + ".join(spec for spec, _ in chosen) or "its spec"
        passed = "; ".join(f"{spec} passed over: {why}" for spec, why in admission.passed_over)
        found.append(
            event("SPEC_CHOSEN", f"Chose {names}{': ' + passed if passed else ', the first choice'}.")
        )
    kind = admission.key.resource_type
    units = "; ".join(_source_words(each, kind) for each in sources) or "no units"
    found.append(event("ADMITTED", f"Admitted as {kind} in pool {admission.key.pool}: {units}."))
    return found


def _source_words(source: SourceUnits, kind: ResourceType) -> str:
    # Only reserved units are anybody's own: the quotas of other types are caps (c3).
    own = "own" if kind is ResourceType.RESERVED else f"of its {kind} quota"
    found = {own: source.own, "borrowed": source.borrowed, "idle": source.supplement}
    said = ", ".join(f"{units} {word}" for word, units in found.items() if units)
    total = source.own + source.borrowed + source.supplement
    return f"{total} x {source.spec} ({said or 'none'})"


def _placed_words(admission: Admission, *, simulated: bool) -> str:
    parts = admission.parts
    shown = [
        f"{part.role.value} {part.rank} on {part.node}"
        + (f" GPU {', '.join(map(str, part.gpus))}" if part.gpus else "")
        for part in parts[:_SHOWN]
    ]
    more = f"; and {len(parts) - _SHOWN} more" if len(parts) > _SHOWN else ""
    label = " (simulated GPUs)" if simulated else ""
    many = "replica" if len(parts) == 1 else "replicas"
    return f"Placed {len(parts)} {many}{label}: {'; '.join(shown)}{more}."
