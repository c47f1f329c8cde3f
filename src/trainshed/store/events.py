"""Events: what happened to Jobs and Trials, written with the change itself, kept for good."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, func, insert, select

from trainshed.store.records import Event
from trainshed.store.tables import events


@dataclass(frozen=True, slots=True)
class NewEvent:
    """An event about to be written."""

    job_id: str
    trial_id: str | None
    at: float
    actor: str
    code: str
    message: str
    before: str | None = None
    after: str | None = None


def record(connection: Connection, new: Iterable[NewEvent]) -> None:
    rows = [
        {
            "job_id": e.job_id,
            "trial_id": e.trial_id,
            "at": e.at,
            "actor": e.actor,
            "code": e.code,
            "message": e.message,
            "before": e.before,
            "after": e.after,
        }
        for e in new
    ]
    if rows:
        connection.execute(insert(events), rows)


def of_job(connection: Connection, job_id: str, *, after: int = 0, limit: int = 1000) -> Sequence[Event]:
    """Events of a Job in the order they happened, past the id ``after``."""
    rows = connection.execute(
        select(events)
        .where(events.c.job_id == job_id, events.c.id > after)
        .order_by(events.c.id)
        .limit(limit),
    )
    return [Event(*row) for row in rows]


def newest_of_job(
    connection: Connection, job_id: str, *, before: int | None = None, limit: int = 100
) -> Sequence[Event]:
    """Events of a Job, newest first, for pages."""
    query = select(events).where(events.c.job_id == job_id)
    if before is not None:
        query = query.where(events.c.id < before)
    return [Event(*row) for row in connection.execute(query.order_by(events.c.id.desc()).limit(limit))]


def count_of_job(connection: Connection, job_id: str) -> int:
    return int(connection.execute(select(func.count()).where(events.c.job_id == job_id)).scalar_one())
