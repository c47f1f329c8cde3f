"""Changing what Trials are: every move with its event and its Job's status, in one transaction."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, bindparam, insert, select, update

from trainshed.model.states import (
    TERMINAL,
    WAITING,
    AllocationState,
    OutputStatus,
    State,
    check_move,
    job_status,
)
from trainshed.store.events import NewEvent, record
from trainshed.store.jobs import find_job, trial_of
from trainshed.store.records import Allocation, Job, Trial
from trainshed.store.tables import allocations, artifacts, attempts, jobs, replicas, trials


@dataclass(frozen=True, slots=True)
class Move:
    """One move of one Trial, made only if the Trial is still in ``before``."""

    trial: Trial
    before: State
    after: State
    code: str
    message: str
    values: Mapping[str, Any] = field(default_factory=dict)
    """Further columns of ``trials`` to set."""
    happened_at: float | None = None
    """When it happened (Unix seconds), where that is known better than by when it was noticed."""


def lock_jobs(connection: Connection, job_ids: Collection[str]) -> None:
    """Make moves of these Jobs wait for each other, so that their events are committed in order.

    SQLite has one writer and needs no lock.
    """
    if connection.dialect.name == "postgresql" and job_ids:
        connection.execute(
            select(jobs.c.id).where(jobs.c.id.in_(sorted(job_ids))).order_by(jobs.c.id).with_for_update(),
        )


def apply(connection: Connection, moves: Sequence[Move], *, at: float, actor: str) -> list[Move]:
    """Make the moves that are still possible, in order; answers those that were made.

    A Trial that someone else moved meanwhile is left alone: its move is missing from the answer.
    """
    lock_jobs(connection, {move.trial.job_id for move in moves})
    made = []
    for move in moves:
        check_move(move.before, move.after)
        values = {"state": move.after, "updated_at": at, **move.values}
        if move.after in TERMINAL:
            values.setdefault("finished_at", at)
        changed = connection.execute(
            update(trials)
            .where(trials.c.id == move.trial.id, trials.c.state == move.before)
            .values(**values),
        )
        if changed.rowcount:
            made.append(move)
    record(
        connection,
        [
            NewEvent(
                m.trial.job_id, m.trial.id, m.happened_at or at, actor, m.code, m.message, m.before, m.after
            )
            for m in made
        ],
    )
    refresh_jobs(connection, {move.trial.job_id for move in made}, at=at)
    return made


def refresh_jobs(connection: Connection, job_ids: Iterable[str], *, at: float) -> None:
    """Derive the status of Jobs from their Trials (contract E b12)."""
    wanted = list(job_ids)
    if not wanted:
        return
    states: dict[str, set[State]] = {}
    for job_id, state in connection.execute(
        select(trials.c.job_id, trials.c.state).where(trials.c.job_id.in_(wanted)).distinct(),
    ):
        states.setdefault(job_id, set()).add(State(state))
    accepted = select(jobs.c.id, jobs.c.stop_accepted_at).where(jobs.c.id.in_(wanted))
    stops = {row.id: row.stop_accepted_at for row in connection.execute(accepted)}
    rows = []
    for job_id in wanted:
        ended = states[job_id] <= TERMINAL
        status = job_status(states[job_id], stop_accepted=stops[job_id] is not None)
        rows.append({"b_id": job_id, "b_status": status, "b_at": at, "b_finished": at if ended else None})
    connection.execute(
        update(jobs)
        .where(jobs.c.id == bindparam("b_id"))
        .values(
            status=bindparam("b_status"), updated_at=bindparam("b_at"), finished_at=bindparam("b_finished")
        ),
        rows,
    )


def accept_stop(
    connection: Connection,
    job_id: str,
    *,
    trial_id: str | None,
    at: float,
    actor: str,
) -> Job:
    """Accept a stop of a Job, or of one of its Trials; repeatable (E76, A14).

    Trials that hold nothing end at once; the others go to ``stopping`` and the controller ends them. Where
    every Trial has ended already, the Job is answered unchanged.
    """
    lock_jobs(connection, [job_id])
    query = select(trials).where(trials.c.job_id == job_id).order_by(trials.c.position)
    if trial_id is not None:
        query = query.where(trials.c.id == trial_id)
    live = [trial for trial in map(trial_of, connection.execute(query)) if trial.state not in TERMINAL]
    if live and trial_id is None:
        connection.execute(
            update(jobs)
            .where(jobs.c.id == job_id, jobs.c.stop_accepted_at.is_(None))
            .values(stop_accepted_at=at),
        )
    fresh = [trial for trial in live if trial.state is not State.STOPPING]
    apply(
        connection,
        [
            Move(
                trial,
                trial.state,
                State.STOPPING,
                "STOP_ACCEPTED",
                _stop_sentence(trial),
                {"stop_accepted_at": at},
            )
            for trial in fresh
        ],
        at=at,
        actor=actor,
    )
    never_held = [trial for trial in fresh if trial.state in WAITING]
    apply(
        connection,
        [
            Move(
                trial,
                State.STOPPING,
                State.CANCELLED,
                "CANCELLED",
                "Cancelled while waiting: nothing was started and nothing is held.",
                {"output_status": OutputStatus.NONE},
            )
            for trial in never_held
        ],
        at=at,
        actor=actor,
    )
    if live:
        refresh_jobs(connection, [job_id], at=at)
    job = find_job(connection, None, job_id)
    assert job is not None  # noqa: S101 - the caller read it before; Jobs are never deleted
    return job


def _stop_sentence(trial: Trial) -> str:
    if trial.state in WAITING:
        return "Stop accepted while the Trial was waiting."
    return "Stop accepted: the program is asked to end, outputs are collected, everything is released."


def open_attempt(
    connection: Connection,
    allocation: Allocation,
    *,
    number: int,
) -> None:
    """Record the intent to run an Attempt and what it will hold; before any side effect."""
    connection.execute(
        insert(attempts).values(
            id=allocation.attempt_id,
            trial_id=allocation.trial_id,
            number=number,
            engine=allocation.engine,
            created_at=allocation.held_at,
        ),
    )
    connection.execute(
        insert(replicas).values(attempt_id=allocation.attempt_id, rank=0, role="main", node=allocation.node),
    )
    connection.execute(
        insert(allocations).values(**{c.name: getattr(allocation, c.name) for c in allocations.c}),
    )


def start_attempt(connection: Connection, attempt_id: str, at: float, enforcement: Mapping[str, str]) -> None:
    """Record that user code was started at ``at``, and how its limits are enforced."""
    connection.execute(
        update(attempts)
        .where(attempts.c.id == attempt_id)
        .values(started_at=at, enforcement=json.dumps(dict(enforcement))),
    )
    connection.execute(update(replicas).where(replicas.c.attempt_id == attempt_id).values(started_at=at))


def end_attempt(
    connection: Connection,
    attempt_id: str,
    *,
    at: float,
    ended_by: str,
    detail: str,
    exit_code: int | None,
    usage: str,
) -> None:
    """Record how an Attempt ended; the first report stays (late ones are evidence elsewhere)."""
    connection.execute(
        update(attempts)
        .where(attempts.c.id == attempt_id, attempts.c.ended_at.is_(None))
        .values(ended_at=at, ended_by=ended_by, detail=detail, usage=usage),
    )
    connection.execute(
        update(replicas)
        .where(replicas.c.attempt_id == attempt_id, replicas.c.ended_at.is_(None))
        .values(ended_at=at, exit_code=exit_code),
    )


def set_allocation(
    connection: Connection,
    allocation_id: str,
    state: AllocationState,
    values: Mapping[str, Any] | None = None,
) -> bool:
    """Change an Allocation; ``False``, and nothing changed, if it was released already."""
    changed = connection.execute(
        update(allocations)
        .where(allocations.c.id == allocation_id, allocations.c.state != AllocationState.RELEASED)
        .values(state=state, **(values or {})),
    )
    return bool(changed.rowcount)


def put_artifacts(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert Artifacts; a second collection of the same Trial replaces what the first one wrote."""
    for row in rows:
        there = connection.execute(
            select(artifacts.c.id).where(
                artifacts.c.trial_id == row["trial_id"], artifacts.c.name == row["name"]
            ),
        ).scalar_one_or_none()
        if there is None:
            connection.execute(insert(artifacts).values(**row))
        else:
            changed = {key: value for key, value in row.items() if key not in {"id", "trial_id", "name"}}
            connection.execute(update(artifacts).where(artifacts.c.id == there).values(**changed))
