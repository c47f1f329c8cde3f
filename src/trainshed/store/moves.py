"""Changing what Trials are: every move with its event and its Job's status, in one transaction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from sqlalchemy import Connection, Update, bindparam, insert, select, update

from trainshed.model.states import (
    TERMINAL,
    WAITING,
    OutputStatus,
    State,
    check_move,
    job_status,
)
from trainshed.store import approvals
from trainshed.store.events import NewEvent, record
from trainshed.store.jobs import find_job, trial_of
from trainshed.store.records import Job, Trial
from trainshed.store.scripts import SCRIPT, record_moves
from trainshed.store.tables import artifacts, jobs, trials

RUNNER = "runner"
"""The kind of Trials that never get a second Attempt once they started (promise P3)."""
_UNANSWERED = frozenset({State.STOPPING, State.FAILED})
"""How a Trial leaves a question without an answer."""
_STAYS_ENDED = frozenset({RUNNER, SCRIPT})
"""Kinds of Trials that nobody queues again after their end."""

# Statements are built once: building one costs several times what running it does.
_STATES = select(trials.c.id, trials.c.state).where(trials.c.id.in_(bindparam("wanted", expanding=True)))
_JOB_STATES = (
    select(jobs.c.id, trials.c.state, jobs.c.stop_accepted_at)
    .join(trials, trials.c.job_id == jobs.c.id)
    .where(jobs.c.id.in_(bindparam("wanted", expanding=True)))
    .distinct()
)
_KNOWN_ARTIFACTS = select(artifacts.c.id, artifacts.c.name).where(
    artifacts.c.trial_id == bindparam("trial"),
    artifacts.c.name.in_(bindparam("wanted", expanding=True)),
)
_REFRESH_JOB = (
    update(jobs)
    .where(jobs.c.id == bindparam("job"))
    .values(status=bindparam("new_status"), updated_at=bindparam("at"), finished_at=bindparam("end"))
)


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
    level: str = "info"
    """Of its event: ``info``, ``warning`` or ``error``."""


def lock_jobs(connection: Connection, job_ids: Collection[str]) -> None:
    """Make moves of these Jobs wait for each other, so that their events are committed in order.

    SQLite has one writer and needs no lock.
    """
    if connection.dialect.name == "postgresql" and job_ids:
        connection.execute(
            select(jobs.c.id).where(jobs.c.id.in_(sorted(job_ids))).order_by(jobs.c.id).with_for_update(),
        )


def apply(
    connection: Connection, moves: Sequence[Move], *, at: float, actor: str, channel: str | None = None
) -> list[Move]:
    """Make the moves that are still possible, in order; answers those that were made.

    A Trial that someone else moved meanwhile is left alone: its move is missing from the answer. ``channel``
    is how contract G names the actor (``user:cli`` …), where that is known.
    """
    if not moves:
        return []
    job_of = {move.trial.id: move.trial.job_id for move in moves}
    lock_jobs(connection, set(job_of.values()))
    # Nobody else moves these Trials now: SQLite has one writer, on PostgreSQL their Jobs are locked.
    now = {row.id: row.state for row in connection.execute(_STATES, {"wanted": list(job_of)})}
    made: list[Move] = []
    steps: Counter[str] = Counter()
    rows: dict[tuple[int, tuple[str, ...]], list[dict[str, Any]]] = {}
    for move in moves:
        check_move(move.before, move.after, task=move.trial.kind not in _STAYS_ENDED)
        if now.get(move.trial.id) != move.before:
            continue
        now[move.trial.id] = move.after
        values = {"updated_at": at, **move.values, "state": move.after}
        if move.after in TERMINAL:
            values.setdefault("finished_at", at)
        # A Trial's second move comes in a later statement than its first; equal moves share one.
        step = steps[move.trial.id] = steps[move.trial.id] + 1
        row = {f"to_{name}": value for name, value in values.items()}
        rows.setdefault((step, tuple(sorted(values))), []).append(
            row | {"moved": move.trial.id, "before": move.before}
        )
        made.append(move)
    for (_, columns), group in sorted(rows.items()):
        if connection.execute(_moving(columns), group).rowcount != len(group):
            raise RuntimeError("a Trial was moved by somebody who did not lock its Job")
    record(
        connection,
        [
            NewEvent(
                m.trial.job_id,
                m.trial.id,
                m.happened_at or at,
                actor,
                m.code,
                m.message,
                m.before,
                m.after,
                m.level,
            )
            for m in made
        ],
    )
    record_moves(connection, made, at=at, actor=actor, channel=channel)
    unasked = {m.trial.job_id for m in made if m.before is State.AWAITING_APPROVAL and m.after in _UNANSWERED}
    if unasked:
        approvals.withdraw(connection, unasked, at=at, by=actor)
    refresh_jobs(connection, {move.trial.job_id for move in made}, at=at)
    return made


@cache
def _moving(columns: tuple[str, ...]) -> Update:
    """The statement that makes moves which set these columns."""
    return (
        update(trials)
        .where(trials.c.id == bindparam("moved"), trials.c.state == bindparam("before"))
        .values({name: bindparam(f"to_{name}") for name in columns})
    )


def refresh_jobs(connection: Connection, job_ids: Collection[str], *, at: float) -> None:
    """Derive the status of Jobs from their Trials (contract E b12)."""
    if not job_ids:
        return
    states: dict[str, set[State]] = {}
    stops: dict[str, bool] = {}
    for job_id, state, stop_accepted_at in connection.execute(_JOB_STATES, {"wanted": list(job_ids)}):
        states.setdefault(job_id, set()).add(State(state))
        stops[job_id] = stop_accepted_at is not None
    connection.execute(
        _REFRESH_JOB,
        [
            {
                "job": job_id,
                "new_status": job_status(found, stop_accepted=stops[job_id]),
                "at": at,
                "end": at if found <= TERMINAL else None,
            }
            for job_id, found in states.items()
        ],
    )


def accept_stop(
    connection: Connection,
    job_id: str,
    *,
    trial_id: str | None,
    at: float,
    actor: str,
    channel: str | None = None,
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
        channel=channel,
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
        channel=channel,
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


def put_artifacts(connection: Connection, trial_id: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert a Trial's Artifacts; a second collection replaces what the first one wrote, under its ids."""
    names = {"trial": trial_id, "wanted": [row["name"] for row in rows]}
    there = {row.name: row.id for row in connection.execute(_KNOWN_ARTIFACTS, names)}
    new = [row for row in rows if row["name"] not in there]
    if new:
        connection.execute(insert(artifacts), new)
    for row in rows:
        if row["name"] in there:
            changed = {key: value for key, value in row.items() if key not in {"id", "trial_id", "name"}}
            changed |= {"deleted_at": None, "deletion": None}
            connection.execute(
                update(artifacts).where(artifacts.c.id == there[row["name"]]).values(**changed)
            )
