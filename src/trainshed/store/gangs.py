"""Gangs as the controller sees them: which tasks wait, which hold nodes, what each member does."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BindParameter, Connection, bindparam, exists, func, insert, or_, select, text, update

from trainshed.model.states import AllocationState, State
from trainshed.store.jobs import allocation_of, trial_of
from trainshed.store.moves import RUNNER
from trainshed.store.queue import newest_event
from trainshed.store.records import Allocation, Replica, Task, Trial
from trainshed.store.scripts import SCRIPT
from trainshed.store.tables import allocations, attempts, events, replicas, trials
from trainshed.store.training_tables import cordons, idle_samples, tasks

_WANTED: BindParameter[Any] = bindparam("wanted", expanding=True)
_ONE_PASS = 7_146_201_337
"""The name of the lock that commits of placements wait for, on PostgreSQL."""

# Statements are built once: building one costs several times what running it does.
_PAIRS = select(tasks, trials).join(trials, trials.c.id == tasks.c.trial_id)
_QUEUED = (trials.c.state == State.QUEUED, trials.c.kind.not_in((RUNNER, SCRIPT)))
_WAITING_AFTER = (
    _PAIRS.where(*_QUEUED, trials.c.id > bindparam("last")).order_by(trials.c.id).limit(bindparam("most"))
)
_CHANGED = _PAIRS.where(
    tasks.c.trial_id.in_(
        select(events.c.trial_id).where(
            events.c.id > bindparam("past"),
            events.c.id <= bindparam("newest"),
            events.c.trial_id.is_not(None),
        )
    )
)
_OF_TRIALS = _PAIRS.where(tasks.c.trial_id.in_(_WANTED))
_WAITING_IDS = select(trials.c.id).where(*_QUEUED)
_COUNT_WAITING = select(func.count()).select_from(trials).where(*_QUEUED)
# Named one by one: an index finds these states, but not "any but released".
_HOLDING = tuple(str(state) for state in AllocationState if state is not AllocationState.RELEASED)
_HELD = (
    select(allocations, tasks, trials)
    .join(tasks, tasks.c.trial_id == allocations.c.trial_id)
    .join(trials, trials.c.id == allocations.c.trial_id)
    .where(allocations.c.state.in_(_HOLDING), allocations.c.parts.is_not(None))
    .order_by(allocations.c.id)
)
_ADRIFT = _PAIRS.where(
    trials.c.state.in_((State.MIGRATING, State.STOPPING)),
    ~exists().where(allocations.c.trial_id == trials.c.id, allocations.c.state == AllocationState.HELD),
)
_REPLICAS = (
    select(replicas)
    .where(replicas.c.attempt_id.in_(_WANTED))
    .order_by(replicas.c.attempt_id, replicas.c.rank)
)
_END_ATTEMPT = (
    update(attempts)
    .where(attempts.c.id == bindparam("attempt"), attempts.c.ended_at.is_(None))
    .values(
        ended_at=bindparam("end"),
        ended_by=bindparam("how"),
        detail=bindparam("more"),
        usage=bindparam("used"),
        exit_class=bindparam("kind"),
        failed_rank=bindparam("failed"),
        log_tail=bindparam("tail"),
    )
)
_EVICT = (
    update(allocations)
    .where(
        allocations.c.id == bindparam("allocation"),
        allocations.c.state == AllocationState.HELD,
        allocations.c.evicted_at.is_(None),
    )
    .values(
        evicted_for=bindparam("for_id"),
        evict_reason=bindparam("reason"),
        evicted_at=bindparam("at"),
        notice_until=bindparam("until"),
    )
)
_COLUMNS = tuple(column.name for column in allocations.c)
_TASK, _ALLOCATION = len(tasks.c), len(allocations.c)


@dataclass(frozen=True, slots=True)
class Gang:
    """A task and what it holds now, until the release of that is confirmed."""

    trial: Trial
    task: Task
    allocation: Allocation

    @property
    def attempt_id(self) -> str:
        return self.allocation.attempt_id

    @property
    def held(self) -> bool:
        """Whether its members may run; else they are being released."""
        return self.allocation.state is AllocationState.HELD


@dataclass(frozen=True, slots=True)
class Adrift:
    """A task that holds nothing now and is not queued."""

    trial: Trial
    task: Task


@dataclass(frozen=True, slots=True)
class NewMember:
    """One replica about to be opened."""

    rank: int
    role: str
    node: str
    gpus: tuple[int, ...]
    state: str = "Pending"


@dataclass(frozen=True, slots=True)
class NewGang:
    """The intent to run an Attempt of a task, before any side effect."""

    allocation: Allocation
    number: int
    cause: str
    members: tuple[NewMember, ...]


@dataclass(frozen=True, slots=True)
class GangEnd:
    """An Attempt ended, or certainly never started."""

    attempt_id: str
    at: float
    """Unix seconds."""
    ended_by: str
    exit_class: str | None
    """As in contract C35; ``None`` for one that succeeded or was stopped."""
    detail: str = ""
    usage: Mapping[str, float] | None = None
    failed_rank: int | None = None
    log_tail: str | None = None


@dataclass(frozen=True, slots=True)
class Cordon:
    """A node, or one GPU of it, on which nothing may start until a person clears it."""

    id: int
    cluster: str
    node: str
    gpu: int | None
    reason: str
    trial_id: str | None
    at: float
    by: str


@dataclass(frozen=True, slots=True)
class Changes:
    """Tasks of which something happened after an event, as they are now."""

    tasks: list[tuple[Trial, Task]]
    newest: int
    """The newest event looked at."""


def unit_id(attempt_id: str, rank: int) -> str:
    """Under which id the engine knows a member."""
    return f"{attempt_id}.{rank}"


def lock_pass(connection: Connection) -> None:
    """Make commits of placements wait for each other (P5). SQLite has one writer and needs no lock."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:name)"), {"name": _ONE_PASS})


def waiting_after(connection: Connection, trial_id: str, limit: int) -> list[tuple[Trial, Task]]:
    """Queued tasks with an id greater than ``trial_id``, by id."""
    rows = connection.execute(_WAITING_AFTER, {"last": trial_id, "most": limit})
    return [_pair(row) for row in rows]


def changes_since(connection: Connection, event_id: int, late: int = 0) -> Changes:
    """Tasks with events after ``event_id``, and with the ``late`` events before it once more."""
    newest = newest_event(connection)
    if newest <= event_id:
        return Changes([], event_id)
    rows = connection.execute(_CHANGED, {"past": event_id - late, "newest": newest})
    return Changes([_pair(row) for row in rows], newest)


def of_trials(connection: Connection, trial_ids: Collection[str]) -> dict[str, tuple[Trial, Task]]:
    """These tasks as they are now, by Trial id."""
    if not trial_ids:
        return {}
    rows = connection.execute(_OF_TRIALS, {"wanted": list(trial_ids)})
    return {trial.id: (trial, task) for trial, task in map(_pair, rows)}


def waiting_ids(connection: Connection) -> set[str]:
    """Every queued task."""
    return set(connection.execute(_WAITING_IDS).scalars())


def count_waiting(connection: Connection) -> int:
    return int(connection.execute(_COUNT_WAITING).scalar_one())


def held(connection: Connection) -> list[Gang]:
    """Every gang whose release is not confirmed yet, oldest first."""
    found = []
    for row in connection.execute(_HELD):
        values = list(row)
        trial, task = _pair(values[_ALLOCATION:])
        found.append(Gang(trial, task, allocation_of(values[:_ALLOCATION])))
    return found


def adrift(connection: Connection) -> list[Adrift]:
    """Tasks between two Attempts: on their way, or being stopped, and no Allocation of theirs is held."""
    return [Adrift(*_pair(row)) for row in connection.execute(_ADRIFT)]


def exit_codes(connection: Connection, attempt_ids: Collection[str]) -> dict[str, int | None]:
    """With what the member ended whose failure ended its Attempt, by Attempt id."""
    query = (
        select(attempts.c.id, replicas.c.exit_code)
        .join(replicas, replicas.c.attempt_id == attempts.c.id)
        .where(attempts.c.id.in_(list(attempt_ids)), replicas.c.rank == attempts.c.failed_rank)
    )
    return {row.id: row.exit_code for row in connection.execute(query)}


def replicas_of(connection: Connection, attempt_ids: Collection[str]) -> dict[str, list[Replica]]:
    """The members of these Attempts by rank, by Attempt id."""
    found: dict[str, list[Replica]] = {attempt_id: [] for attempt_id in attempt_ids}
    if attempt_ids:
        for row in connection.execute(_REPLICAS, {"wanted": list(attempt_ids)}):
            found[row.attempt_id].append(Replica(*row))
    return found


def units_of(connection: Connection, attempt_ids: Collection[str]) -> dict[str, list[str]]:
    """Under which ids the engine knows each of these Attempts: its members', or its own."""
    found: dict[str, list[str]] = {attempt_id: [] for attempt_id in attempt_ids}
    if attempt_ids:
        for row in connection.execute(_REPLICAS, {"wanted": list(attempt_ids)}):
            found[row.attempt_id].append(row.unit_id or row.attempt_id)
    return found


def open_all(connection: Connection, opened: Sequence[NewGang]) -> None:
    """Record the intent to run Attempts, their members and what they hold; before any side effect."""
    if not opened:
        return
    connection.execute(
        insert(attempts),
        [
            {
                "id": new.allocation.attempt_id,
                "trial_id": new.allocation.trial_id,
                "number": new.number,
                "engine": new.allocation.engine,
                "created_at": new.allocation.held_at,
                "cause": new.cause,
            }
            for new in opened
        ],
    )
    connection.execute(
        insert(replicas),
        [
            {
                "attempt_id": new.allocation.attempt_id,
                "rank": member.rank,
                "role": member.role,
                "node": member.node,
                "unit_id": unit_id(new.allocation.attempt_id, member.rank),
                "state": member.state,
                "gpu_indices": json.dumps(list(member.gpus)),
            }
            for new in opened
            for member in new.members
        ],
    )
    connection.execute(
        insert(allocations),
        [{name: getattr(new.allocation, name) for name in _COLUMNS} for new in opened],
    )


def start_attempt(connection: Connection, attempt_id: str, at: float, enforcement: Mapping[str, str]) -> None:
    """Record when the first member's user code was started, and how limits are enforced."""
    connection.execute(
        update(attempts)
        .where(attempts.c.id == attempt_id, attempts.c.started_at.is_(None))
        .values(started_at=at, enforcement=json.dumps(dict(enforcement)))
    )


def end_all(connection: Connection, ends: Sequence[GangEnd]) -> None:
    """Record how Attempts ended; the first record stays."""
    if ends:
        connection.execute(
            _END_ATTEMPT,
            [
                {
                    "attempt": end.attempt_id,
                    "end": end.at,
                    "how": end.ended_by,
                    "more": end.detail,
                    "used": json.dumps(dict(end.usage or {})),
                    "kind": end.exit_class,
                    "failed": end.failed_rank,
                    "tail": end.log_tail,
                }
                for end in ends
            ],
        )


def change_replica(connection: Connection, attempt_id: str, rank: int, values: Mapping[str, Any]) -> None:
    """Set columns of one member."""
    connection.execute(
        update(replicas).where(replicas.c.attempt_id == attempt_id, replicas.c.rank == rank).values(**values)
    )


def change_replicas(connection: Connection, attempt_id: str, *, before: str, after: str) -> None:
    """Let the members that are in the state ``before`` be in ``after``."""
    connection.execute(
        update(replicas)
        .where(replicas.c.attempt_id == attempt_id, replicas.c.state == before)
        .values(state=after)
    )


def take_reports(connection: Connection, attempt_id: str, rank: int, *, after: int, upto: int) -> bool:
    """Count reports ``after + 1`` to ``upto`` of a member as told; ``False`` if somebody did already."""
    changed = connection.execute(
        update(replicas)
        .where(replicas.c.attempt_id == attempt_id, replicas.c.rank == rank, replicas.c.reports == after)
        .values(reports=upto)
    )
    return bool(changed.rowcount)


def change_allocation(connection: Connection, allocation_id: str, values: Mapping[str, Any]) -> bool:
    """Set columns of what is held; ``False``, and nothing changed, if its release is confirmed."""
    changed = connection.execute(
        update(allocations)
        .where(allocations.c.id == allocation_id, allocations.c.state != AllocationState.RELEASED)
        .values(**values)
    )
    return bool(changed.rowcount)


def evict(
    connection: Connection, allocation_id: str, *, for_id: str, reason: str, at: float, until: float
) -> bool:
    """Choose a gang as a victim; ``False`` if it ended, or was chosen before. Times are Unix seconds."""
    changed = connection.execute(
        _EVICT,
        {"allocation": allocation_id, "for_id": for_id, "reason": reason, "at": at, "until": until},
    )
    return bool(changed.rowcount)


def change_task(connection: Connection, trial_id: str, values: Mapping[str, Any]) -> None:
    """Set columns of a task."""
    connection.execute(update(tasks).where(tasks.c.trial_id == trial_id).values(**values))


def standing_cordons(connection: Connection) -> list[Cordon]:
    """Every cordon that nobody cleared, oldest first."""
    c = cordons.c
    columns = (c.id, c.cluster, c.node, c.gpu, c.reason, c.trial_id, c.at, c.by)
    query = select(*columns).where(c.cleared_at.is_(None)).order_by(c.id)
    return [Cordon(*row) for row in connection.execute(query)]


def cordon(
    connection: Connection,
    *,
    cluster: str,
    node: str,
    gpu: int | None,
    reason: str,
    trial_id: str | None,
    at: float,
    by: str,
) -> bool:
    """Close a node, or one GPU of it; ``False`` if it is closed already."""
    c = cordons.c
    whole = or_(c.gpu.is_(None), c.gpu == gpu) if gpu is not None else c.gpu.is_(None)
    standing = select(c.id).where(c.cluster == cluster, c.node == node, c.cleared_at.is_(None), whole)
    if connection.execute(standing).first() is not None:
        return False
    row = {"cluster": cluster, "node": node, "gpu": gpu, "reason": reason, "trial_id": trial_id}
    connection.execute(insert(cordons).values(**row, at=at, by=by))
    return True


def was_cleared(connection: Connection, *, cluster: str, node: str, gpu: int | None, since: float) -> bool:
    """Whether a person opened just this at ``since`` (Unix seconds) or later, and nobody closed it again."""
    c = cordons.c
    here = (c.cluster == cluster, c.node == node, c.gpu.is_(None) if gpu is None else c.gpu == gpu)
    standing = select(c.id).where(*here, c.cleared_at.is_(None)).limit(1)
    if connection.execute(standing).first() is not None:
        return False
    return connection.execute(select(c.id).where(*here, c.cleared_at >= since).limit(1)).first() is not None


def clear_cordon(connection: Connection, cordon_id: int, *, at: float, by: str) -> bool:
    """Open what a cordon closed; ``False`` if there is no such cordon, or it is cleared."""
    changed = connection.execute(
        update(cordons)
        .where(cordons.c.id == cordon_id, cordons.c.cleared_at.is_(None))
        .values(cleared_at=at, cleared_by=by)
    )
    return bool(changed.rowcount)


def idle_samples_of(connection: Connection, pool: str, *, since: float) -> dict[str, list[tuple[float, int]]]:
    """Free units of a pool's specs from ``since`` (Unix seconds) on: ``(when, units)``, oldest first."""
    s = idle_samples.c
    query = select(s.spec, s.at, s.units).where(s.pool == pool, s.at >= since).order_by(s.at)
    found: dict[str, list[tuple[float, int]]] = {}
    for spec, at, units in connection.execute(query):
        found.setdefault(spec, []).append((at, units))
    return found


def put_idle_samples(connection: Connection, at: float, units: Mapping[tuple[str, str], int]) -> None:
    """Record how many units of each pool's specs are free at ``at`` (Unix seconds)."""
    if units:
        connection.execute(
            insert(idle_samples),
            [{"pool": pool, "spec": spec, "at": at, "units": n} for (pool, spec), n in units.items()],
        )


def forget_idle_samples(connection: Connection, before: float) -> None:
    """Delete samples that are older than ``before`` (Unix seconds)."""
    connection.execute(idle_samples.delete().where(idle_samples.c.at < before))


def newest_idle_sample(connection: Connection) -> float | None:
    """When free units were counted last (Unix seconds)."""
    at = connection.execute(select(func.max(idle_samples.c.at))).scalar_one_or_none()
    return None if at is None else float(at)


def count_events(connection: Connection, trial_id: str, code: str, *, since: float) -> int:
    """How often something happened to a task from ``since`` (Unix seconds) on."""
    query = select(func.count()).where(
        events.c.trial_id == trial_id, events.c.code == code, events.c.at >= since
    )
    return int(connection.execute(query).scalar_one())


def _pair(row: Sequence[Any]) -> tuple[Trial, Task]:
    return trial_of(row[_TASK:]), Task(*row[:_TASK])
