"""Gangs of Ray tasks that grow and shrink while they run (C51): rows, and what follows from them.

The head of such a task says how many workers its load wants, and who joined. A pass gives it one worker more
where room and units are left (`trainshed.policy.gangs.growth`); here that becomes true in the transaction of
the pass. A worker that left is released like a whole gang is, with proof, and then held no longer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import structlog

from trainshed.control.crashpoints import Point, reach
from trainshed.control.training.ending import gpu_seconds
from trainshed.control.training.frozen import choices_of, spec_of
from trainshed.control.training.holding import gpu_words, parts_of, sources_of
from trainshed.control.training.missing import missing_of
from trainshed.control.training.observing import PENDING, View
from trainshed.control.training.releasing import report_event
from trainshed.control.training.suspecting import event_of
from trainshed.engines.contract import Engine, Release, Report
from trainshed.model.resources import Amounts, Node
from trainshed.model.states import State
from trainshed.model.training.catalog import Catalog
from trainshed.model.training.spec import AutoscalingMode, ResourceType, Role, TaskSpec
from trainshed.policy.gangs.growth import Bounds, Growing, Scaling, with_units, without_units
from trainshed.policy.gangs.snapshot import Admission, Choice, GangClass, GangWait, Part
from trainshed.store import events, gangs, growing, moves, queue
from trainshed.store.database import Connection, Database
from trainshed.store.gangs import Gang, NewMember, unit_id
from trainshed.store.records import Allocation

WANTED = "WORKERS_WANTED"
"""Report of a head: ``data`` has ``wanted`` (workers) and ``joined`` (ranks)."""
LEFT_UNSAID_SECONDS = 60.0
"""After its end a worker counts as gone although its head does not say so, unless the whole task ended."""
_MOST_RANKS = 100_000
_SOON_SECONDS = 60.0
"""A worker that fails sooner after its start may be one of many: the next one waits a while."""

log = structlog.get_logger(__name__)


def bounds_of(spec: TaskSpec) -> Bounds | None:
    """Between what the workers of a task may go up and down; ``None`` if they stay."""
    own = spec.autoscaling
    if own is None or not own.enabled:
        return None
    return Bounds(own.min, own.max, own.mode is AutoscalingMode.CONSERVATIVE)


def scaling_of(text: str | None) -> Scaling:
    """What is known of a task's size; raises nothing."""
    return Scaling() if text is None else Scaling.of(json.loads(text))


def workers_of(parts: Sequence[Part]) -> frozenset[int]:
    """Ranks of the workers among what a gang holds."""
    return frozenset(part.rank for part in parts if part.role is Role.WORKER)


def view_of(gang: Gang, seen: Mapping[str, Any]) -> View:
    """The members of a gang as its engine sees them, by unit id; who may leave once it runs (C51)."""
    spec, parts = spec_of(gang.task), parts_of(gang.allocation)
    # The submitter last: workers that joined have higher ranks.
    ordered = sorted(parts, key=lambda part: (part.role is Role.SUBMITTER, part.rank))
    found = tuple(seen[unit_id(gang.attempt_id, part.rank)] for part in ordered)
    numbers = tuple(part.rank for part in ordered)
    bounds = bounds_of(spec)
    if bounds is None or gang.trial.state is State.PREPARING:
        return View(spec.kind, found, numbers=numbers)
    return View(spec.kind, found, numbers=numbers, optional=workers_of(parts), least=bounds.least)


def asked_of(gang: Gang, reports: Sequence[Report]) -> str | None:
    """What the newest of a head's reports asks for, as the column of its task; ``None``: nothing new.

    User code can write such reports. What is malformed is nothing; whatever is asked stays within the range.
    """
    bounds = bounds_of(spec_of(gang.task))
    said = [report.data for report in reports if report.code == WANTED]
    if bounds is None or not said:
        return None
    wanted, joined = said[-1].get("wanted"), said[-1].get("joined")
    if not _is_count(wanted) or not isinstance(joined, list) or not all(map(_is_count, joined)):
        return None
    known = scaling_of(gang.task.scaling)
    asked = known.asked(int(str(wanted)), joined[: bounds.most], bounds)
    return None if asked == known else json.dumps(asked.as_dict())


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST_RANKS


def growing_of(gang: Gang, catalog: Catalog, now: float) -> Growing | None:
    """The gang as one that would grow now; ``None`` if it would not, or must not."""
    if gang.task.scaling is None or not _goes_on(gang):
        return None
    spec, parts = spec_of(gang.task), parts_of(gang.allocation)
    bounds, known = bounds_of(spec), scaling_of(gang.task.scaling)
    if bounds is None or now < known.not_before or not known.wants_more(workers_of(parts), bounds):
        return None
    one = _one_more(spec, catalog, parts, gang.allocation)
    missing = missing_of(spec, gang.task, catalog)
    key = GangClass(
        project=gang.task.project_id,
        pool=gang.task.pool,
        resource_type=ResourceType(gang.task.resource_type),
        priority=gang.task.priority,
        choices=(one or Choice(()),),
        guarantee=gang.task.guarantee,
        idle_supplement=spec.idle_supplement,
        max_run_seconds=spec.max_run_seconds,
        excluded=frozenset(json.loads(gang.task.excluded_nodes)),
        held=None if one is not None and not missing else GangWait.MISCONFIGURED,
        missing=missing,
    )
    return Growing(gang.allocation.id, key)


def grows_later(gang: Gang, now: float) -> float | None:
    """When a pause after workers that failed ends (Unix seconds)."""
    known = scaling_of(gang.task.scaling)
    return known.not_before if gang.task.scaling is not None and known.not_before > now else None


def _goes_on(gang: Gang) -> bool:
    return gang.held and gang.trial.state is State.RUNNING and gang.allocation.evicted_at is None


def _one_more(spec: TaskSpec, catalog: Catalog, parts: Sequence[Part], held: Allocation) -> Choice | None:
    """One worker of the specs that the gang runs on; ``None`` if they are offered no more."""
    asked = replace(spec, workers=1)
    there = {part.spec for part in parts if part.role is Role.WORKER}
    heads = {part.spec for part in parts if part.role is Role.HEAD}
    for choice in choices_of(asked, catalog):
        need = next(need for need in choice.needs if need.role is Role.WORKER)
        head = next(need for need in choice.needs if need.role is Role.HEAD)
        if {head.spec} != heads or (there and {need.spec} != there):
            continue
        one = held.gpu_model
        # Replicas of one gang never mix GPU models.
        model = one if need.amounts.gpus and one and ", " not in one else need.gpu_model
        return Choice((replace(need, count=1, gpu_model=model),))
    return None


# Growing, in the transaction of a pass


def grow(
    connection: Connection, gang: Gang, growth: Admission, nodes: Mapping[str, Node], now: float
) -> bool:
    """Have a gang hold one worker more, and say so; whether it still could."""
    held, known = gang.allocation, scaling_of(gang.task.scaling)
    parts = parts_of(held)
    bounds = bounds_of(spec_of(gang.task))
    if bounds is None or not _goes_on(gang) or not known.wants_more(workers_of(parts), bounds):
        return False
    rank = growing.next_rank(connection, gang.attempt_id)
    fresh = replace(growth.parts[0], rank=rank)
    values = _sums((*parts, fresh)) | _sources(with_units(sources_of(held), growth.sources))
    values["gpu_model"], values["simulated"] = gpu_words((*parts, fresh), nodes)
    member = NewMember(rank, fresh.role.value, fresh.node, fresh.gpus, PENDING)
    if not growing.grow(connection, held.id, held.parts or "[]", values, member):
        return False
    gangs.change_task(connection, gang.trial.id, {"scaling": json.dumps(known.waiting().as_dict())})
    many = len(workers_of(parts)) + 1
    gpus = f" GPU {', '.join(map(str, fresh.gpus))}" if fresh.gpus else ""
    units = f", {fresh.units} x {fresh.spec}" if fresh.units else ""
    words = (
        f"Worker {rank} on {fresh.node}{gpus}{units}: the load wants {known.wanted} workers;"
        f" with it there are {many} of at most {bounds.most}."
    )
    events.record(connection, [event_of(gang, now, "SCALED_UP", words)])
    return True


def note_waits(connection: Connection, gang: Gang, code: str, why: str, now: float) -> None:
    """Keep why a gang does not grow; a new reason is an event."""
    known = scaling_of(gang.task.scaling)
    if (known.waits, known.why) == (code, why):
        return
    text = json.dumps(known.waiting(code, why).as_dict())
    gangs.change_task(connection, gang.trial.id, {"scaling": text})
    if known.waits != code:
        words = f"The load wants {known.wanted} workers; one more has to wait: {why}."
        events.record(connection, [event_of(gang, now, "SCALE_UP_WAITS", words)])


def _sums(parts: Sequence[Part]) -> dict[str, Any]:
    total = sum((part.amounts for part in parts), Amounts())
    return {
        "parts": json.dumps([part.as_dict() for part in parts]),
        "gpus": total.gpus,
        "cpus": total.cpus,
        "memory_mb": total.memory_mb,
        "storage_mb": total.storage_mb,
        "shm_mb": total.shm_mb,
    }


def _sources(sources: Sequence[Any]) -> dict[str, Any]:
    return {"sources": json.dumps([[s.spec, s.own, s.borrowed, s.supplement] for s in sources])}


# Shrinking


def gone_from(gang: Gang, view: View, now: float) -> tuple[int, ...]:
    """Ranks of workers that ended while their gang goes on, and are to be released now.

    Not those whose end is that of the task: then its head says no more who is there.
    """
    known, bounds = scaling_of(gang.task.scaling), bounds_of(spec_of(gang.task))
    if bounds is None or not _goes_on(gang) or view.culprits:
        return ()
    ended = [rank for rank in view.ranks if rank in view.optional and rank not in view.alive]
    found = []
    for rank in ended:
        done = view.of(rank).exit
        said = gang.task.scaling is not None and rank not in known.joined
        if said or now > (gang.trial.updated_at if done is None else done.finished_at) + LEFT_UNSAID_SECONDS:
            found.append(rank)
    # A head lets nobody go below the least, and ends where fewer are left: what else says so is made up.
    return tuple(found[: max(0, len(view.optional) - bounds.least)])


@dataclass(frozen=True, slots=True)
class Departure:
    """One try to release a worker that left its gang."""

    gang: Gang
    rank: int
    view: View
    release: Release
    late: Sequence[Report] = ()


class Departures:
    """Releases workers in an executor; `store` records it in the controller's thread."""

    def __init__(self, database: Database, clock: Callable[[], float]) -> None:
        self._database = database
        self._clock = clock

    def release(self, gang: Gang, rank: int, view: View, engine: Engine) -> Departure:
        """Try once. Repeatable."""
        unit = unit_id(gang.attempt_id, rank)
        done = engine.release(unit)
        with self._database.read() as connection:
            rows = gangs.replicas_of(connection, [gang.attempt_id])[gang.attempt_id]
        told = next((row.reports for row in rows if row.rank == rank), 0)
        late = engine.reports(unit, told)
        reach(Point.GANG_LEAVE_AFTER_ENGINE)
        return Departure(gang, rank, view, done, late)

    def store(self, group: Sequence[Departure]) -> None:
        """Record those that are proven gone: what they held is free."""
        now = self._clock()
        sure = [each for each in group if each.release.confirmed]
        for each in group:
            if not each.release.confirmed:
                log.warning("a worker is not released", unit=unit_id(each.gang.attempt_id, each.rank))
        if not sure:
            return

        def store(connection: Connection) -> None:
            moves.lock_jobs(connection, {each.gang.trial.job_id for each in sure})
            for each in sure:
                held = {gang.allocation.id: gang for gang in gangs.held(connection)}
                gang = held.get(each.gang.allocation.id)
                if gang is not None:
                    _shrink(connection, gang, each, now)
            reach(Point.GANG_LEAVE_BEFORE_COMMIT)

        self._database.write(store)
        reach(Point.GANG_LEAVE_AFTER_COMMIT)


def _shrink(connection: Connection, gang: Gang, departure: Departure, now: float) -> None:
    rank, held = departure.rank, gang.allocation
    parts = parts_of(held)
    mine = next((part for part in parts if part.rank == rank), None)
    if mine is None:
        return
    rest = [part for part in parts if part.rank != rank]
    evidence = json.loads(held.evidence or "{}")
    evidence |= {f"replica {rank}: {name}": saw for name, saw in departure.release.checks.items()}
    values = _sums(rest) | _sources(without_units(sources_of(held), mine.spec, mine.units))
    if not growing.shrink(
        connection, held.id, held.parts or "[]", values | {"evidence": json.dumps(evidence)}
    ):
        return
    seen = departure.view.of(rank)
    end = seen.exit.finished_at if seen.exit is not None else now
    if seconds := gpu_seconds(len(mine.gpus), departure.view, rank, end):
        queue.charge(connection, gang.trial.project_id, seconds)
    detail = seen.detail or (seen.exit.detail if seen.exit is not None else "")
    gangs.change_replica(connection, gang.attempt_id, rank, {"detail": detail or None})
    told = []
    if departure.late:
        first, last = departure.late[0].number - 1, departure.late[-1].number
        if gangs.take_reports(connection, gang.attempt_id, rank, after=first, upto=last):
            told = [report_event(gang, rank, report) for report in departure.late]
    well = seen.exit is not None and seen.exit.code == 0
    left = len(workers_of(rest))
    code, level = ("SCALED_DOWN", "info") if well else ("WORKER_LOST", "warning")
    how = "left, without load" if well else f"is gone ({detail or 'it ended'})"
    words = f"Worker {rank} on {mine.node} {how}; what it held is released. {left} workers are left."
    events.record(connection, [*told, event_of(gang, now, code, words, level)])
    soon = seen.started_at is None or end - seen.started_at < _SOON_SECONDS
    if not well and soon and gang.task.scaling is not None:
        later = scaling_of(gang.task.scaling).failed(now)
        gangs.change_task(connection, gang.trial.id, {"scaling": json.dumps(later.as_dict())})
