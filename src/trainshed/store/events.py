"""Events: what happened to Jobs and Trials, written with the change itself, kept for good."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Select, func, insert, or_, select

from trainshed.store.records import Event
from trainshed.store.tables import events

_RECORD = insert(events)


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
    level: str = "info"
    replica: int | None = None


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
            "level": e.level,
            "replica": e.replica,
        }
        for e in new
    ]
    if rows:
        connection.execute(_RECORD, rows)


def of_job(
    connection: Connection, job_id: str, *, after: int = 0, limit: int = 1000, trial_id: str | None = None
) -> Sequence[Event]:
    """Events of a Job in the order they happened, past the id ``after``.

    With ``trial_id``, only those of that Trial and of the Job itself.
    """
    query = _of(job_id, trial_id).where(events.c.id > after)
    return [Event(*row) for row in connection.execute(query.order_by(events.c.id).limit(limit))]


def newest_of_job(
    connection: Connection,
    job_id: str,
    *,
    before: int | None = None,
    limit: int = 100,
    trial_id: str | None = None,
) -> Sequence[Event]:
    """Events of a Job, newest first, for pages; ``trial_id`` as in `of_job`."""
    query = _of(job_id, trial_id)
    if before is not None:
        query = query.where(events.c.id < before)
    return [Event(*row) for row in connection.execute(query.order_by(events.c.id.desc()).limit(limit))]


def was_told(connection: Connection, trial_id: str, code: str, message: str, *, since: float) -> bool:
    """Whether an event of a Trial says just this already, at ``since`` (Unix seconds) or later."""
    c = events.c
    query = select(c.id).where(c.trial_id == trial_id, c.code == code, c.message == message, c.at >= since)
    return connection.execute(query.limit(1)).first() is not None


def count_of_job(connection: Connection, job_id: str) -> int:
    return int(connection.execute(select(func.count()).where(events.c.job_id == job_id)).scalar_one())


def _of(job_id: str, trial_id: str | None) -> Select[Any]:
    query = select(events).where(events.c.job_id == job_id)
    if trial_id is not None:
        query = query.where(or_(events.c.trial_id == trial_id, events.c.trial_id.is_(None)))
    return query


def newest_id(connection: Connection) -> int:
    """The id of the newest event of all, 0 if there is none."""
    return int(connection.execute(select(func.max(events.c.id))).scalar_one() or 0)


def since(connection: Connection, event_id: int, limit: int) -> list[tuple[int, str]]:
    """Ids and Jobs of events past an id, oldest first."""
    rows = connection.execute(
        select(events.c.id, events.c.job_id).where(events.c.id > event_id).order_by(events.c.id).limit(limit)
    )
    return [(int(row.id), str(row.job_id)) for row in rows]
