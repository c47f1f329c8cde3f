"""Training tasks as the doors see them: inserting what was accepted, finding, listing, changing."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    BindParameter,
    Connection,
    Select,
    and_,
    bindparam,
    case,
    delete,
    exists,
    func,
    insert,
    or_,
    select,
    update,
)

from trainshed.model.states import State
from trainshed.store.events import NewEvent, record
from trainshed.store.job_digits import with_digits
from trainshed.store.jobs import trial_of
from trainshed.store.records import Job, Replica, Task, Trial
from trainshed.store.tables import jobs, replicas, trials
from trainshed.store.training_tables import task_labels, task_shares, tasks
from trainshed.store.visibility import Viewer, may_see

_WANTED: BindParameter[Any] = bindparam("wanted", expanding=True)
_OF_TRIALS = select(tasks).where(tasks.c.trial_id.in_(_WANTED))
_REPLICAS = (
    select(replicas)
    .where(replicas.c.attempt_id.in_(_WANTED))
    .order_by(replicas.c.attempt_id, replicas.c.rank)
)


@dataclass(frozen=True, slots=True)
class TaskFilter:
    """What a list is narrowed to; everything given must hold."""

    labels: Mapping[str, str] | None = None
    kind: str | None = None
    states: Collection[State] | None = None
    text: str | None = None
    """A part of the name, or the whole of a task's uuid or Job's id."""
    owner: str | None = None
    """A person, or a key without one (`human:label`): either way of writing finds both."""
    label_keys: Collection[str] = ()
    """Labels that have to be there, with any value."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Queued tasks of one project with one priority in one queue."""

    pool: str
    resource_type: str
    priority: int
    tasks: int
    older: int
    """Those queued earlier than the one that is asked about."""


def insert_task(
    connection: Connection,
    job: Job,
    trial: Mapping[str, Any],
    task: Task,
    labels: Mapping[str, str],
    *,
    sentence: str,
) -> None:
    """Insert a task with its Job, its Trial (columns of ``trials``) and its first events."""
    job = with_digits(connection, job)
    connection.execute(insert(jobs), {column.name: getattr(job, column.name) for column in jobs.c})
    connection.execute(insert(trials), dict(trial))
    connection.execute(insert(tasks), {column.name: getattr(task, column.name) for column in tasks.c})
    if labels:
        rows = [{"trial_id": task.trial_id, "key": key, "value": value} for key, value in labels.items()]
        connection.execute(insert(task_labels), rows)
    submitted = NewEvent(job.id, task.trial_id, job.created_at, job.submitted_by, "SUBMITTED", sentence)
    queued = NewEvent(
        job.id,
        task.trial_id,
        job.created_at,
        job.submitted_by,
        "QUEUED",
        f"Queued {task.name} in pool {task.pool} as {task.resource_type}.",
        None,
        State.QUEUED,
    )
    record(connection, [submitted, queued])


def of_trials(connection: Connection, trial_ids: Collection[str]) -> dict[str, Task]:
    """The tasks of these Trials, by Trial id; Runner Trials have none."""
    if not trial_ids:
        return {}
    rows = connection.execute(_OF_TRIALS, {"wanted": list(trial_ids)})
    return {row.trial_id: Task(*row) for row in rows}


def find(connection: Connection, viewer: Viewer, reference: str) -> tuple[Task, Trial] | None:
    """A visible task by its name, its uuid, its Job's id or its Trial's id; ``None`` for all others."""
    named = or_(
        tasks.c.name == reference,
        tasks.c.task_uuid == reference,
        tasks.c.job_id == reference,
        tasks.c.trial_id == reference,
    )
    row = connection.execute(_visible(viewer).where(named)).first()
    return None if row is None else _pair(row)


def list_tasks(
    connection: Connection,
    viewer: Viewer,
    narrowed: TaskFilter,
    *,
    before: str | None = None,
    limit: int = 25,
) -> list[tuple[Task, Trial]]:
    """Visible tasks of a project, newest first, past the Job id ``before``."""
    query = _visible(viewer)
    for key, value in (narrowed.labels or {}).items():
        labelled = exists().where(
            task_labels.c.trial_id == tasks.c.trial_id,
            task_labels.c.key == key,
            task_labels.c.value == value,
        )
        query = query.where(labelled)
    for key in narrowed.label_keys:
        query = query.where(
            exists().where(task_labels.c.trial_id == tasks.c.trial_id, task_labels.c.key == key)
        )
    if narrowed.kind is not None:
        query = query.where(tasks.c.kind == narrowed.kind)
    if narrowed.states is not None:
        query = query.where(trials.c.state.in_([str(state) for state in narrowed.states]))
    if narrowed.owner is not None:
        query = query.where(tasks.c.owner.in_(_written(narrowed.owner)))
    if narrowed.text is not None:
        part = narrowed.text
        query = query.where(
            or_(
                tasks.c.name.contains(part, autoescape=True),
                tasks.c.task_uuid == part,
                tasks.c.job_id == part,
            )
        )
    if before is not None:
        query = query.where(tasks.c.job_id < before)
    rows = connection.execute(query.order_by(tasks.c.job_id.desc()).limit(limit))
    return [_pair(row) for row in rows]


def replicas_of(connection: Connection, attempt_ids: Collection[str]) -> dict[str, list[Replica]]:
    """The members of these Attempts by rank, by Attempt id."""
    found: dict[str, list[Replica]] = {attempt_id: [] for attempt_id in attempt_ids}
    if attempt_ids:
        for row in connection.execute(_REPLICAS, {"wanted": list(attempt_ids)}):
            found[row.attempt_id].append(Replica(*row))
    return found


def standing(
    connection: Connection, project_id: str, queued_at: float, trial_id: str = "~"
) -> list[Standing]:
    """The queued tasks of a project by pool, resource type and priority (c2), and how many are older.

    Older than one with ``queued_at`` (Unix seconds); of those with the same time the id decides.
    """
    t = tasks.c
    before = or_(t.queued_at < queued_at, and_(t.queued_at == queued_at, t.trial_id < trial_id))
    rows = connection.execute(
        select(t.pool, t.resource_type, t.priority, func.count(), func.sum(case((before, 1), else_=0)))
        .join(trials, trials.c.id == t.trial_id)
        .where(t.project_id == project_id, trials.c.state == State.QUEUED)
        .group_by(t.pool, t.resource_type, t.priority)
    )
    return [Standing(*row) for row in rows]


def _written(owner: str) -> tuple[str, str]:
    bare = owner.removeprefix("human:")
    return bare, f"human:{bare}"


def identical(connection: Connection, owner: str, spec_sha256: str, *, since: float) -> Task | None:
    """The newest task that its owner submitted with the same spec later than ``since`` (C56)."""
    row = connection.execute(
        select(tasks)
        .where(
            tasks.c.owner == owner,
            tasks.c.spec_sha256 == spec_sha256,
            tasks.c.submitted_at > since,
            tasks.c.deleted_at.is_(None),
        )
        .order_by(tasks.c.submitted_at.desc())
        .limit(1)
    ).first()
    return Task(*row) if row else None


def name_is_taken(connection: Connection, name: str) -> bool:
    return connection.execute(select(tasks.c.name).where(tasks.c.name == name)).first() is not None


def labels_of(connection: Connection, trial_ids: Collection[str]) -> dict[str, dict[str, str]]:
    """Labels of these tasks, by Trial id."""
    found: dict[str, dict[str, str]] = {trial_id: {} for trial_id in trial_ids}
    if trial_ids:
        rows = connection.execute(select(task_labels).where(task_labels.c.trial_id.in_(list(trial_ids))))
        for row in rows:
            found[row.trial_id][row.key] = row.value
    return found


def shares_of(connection: Connection, trial_id: str) -> list[str]:
    """With whom a task is shared, in order."""
    query = select(task_shares.c.user).where(task_shares.c.trial_id == trial_id).order_by(task_shares.c.user)
    return list(connection.execute(query).scalars())


def set_shares(connection: Connection, trial_id: str, users: Collection[str]) -> None:
    """Share a task with exactly these users."""
    connection.execute(delete(task_shares).where(task_shares.c.trial_id == trial_id))
    if users:
        connection.execute(
            insert(task_shares), [{"trial_id": trial_id, "user": user} for user in sorted(set(users))]
        )


def change(connection: Connection, trial_id: str, values: Mapping[str, Any]) -> bool:
    """Set columns of a task; ``False`` if there is no such task."""
    changed = connection.execute(update(tasks).where(tasks.c.trial_id == trial_id).values(**values))
    return bool(changed.rowcount)


def forget_stop(connection: Connection, job_id: str) -> None:
    """A stop of a Job that has ended does not concern what is queued anew (c7)."""
    connection.execute(update(jobs).where(jobs.c.id == job_id).values(stop_accepted_at=None))


def _visible(viewer: Viewer) -> Select[Any]:
    return (
        select(tasks, trials)
        .join(trials, trials.c.id == tasks.c.trial_id)
        .where(tasks.c.project_id == viewer.project_id, tasks.c.deleted_at.is_(None), may_see(viewer))
    )


_TASK_COLUMNS = len(tasks.c)


def _pair(row: Sequence[Any]) -> tuple[Task, Trial]:
    return Task(*row[:_TASK_COLUMNS]), trial_of(row[_TASK_COLUMNS:])
