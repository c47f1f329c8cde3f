"""Alarms on their way to channels: made once for each subject, delivered at least once (contract C40)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Select, insert, select, update

from trainshed.model.states import State
from trainshed.store.jobs import trial_of
from trainshed.store.records import Event, Task, Trial
from trainshed.store.tables import events, trials
from trainshed.store.training_tables import deliveries, tasks

_TASK = len(tasks.c)
_PAIRS = select(tasks, trials).join(trials, trials.c.id == tasks.c.trial_id)
_SUBSCRIBED = tasks.c.spec.contains('"alarms":[{', autoescape=False)
"""In canonical JSON: whose spec names an alarm. The others cost nothing but this look."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """One alarm to one channel."""

    id: int
    trial_id: str
    subject: str
    """An event, or what a rule saw without one."""
    channel: str
    title: str
    body: str
    created_at: float
    delivered_at: float | None
    tries: int
    next_at: float
    """Not before this is it tried again (Unix seconds)."""
    last_error: str | None


def add(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> int:
    """Insert those that are new by task, subject and channel; how many were."""
    made = 0
    for row in rows:
        known = select(deliveries.c.id).where(
            deliveries.c.trial_id == row["trial_id"],
            deliveries.c.subject == row["subject"],
            deliveries.c.channel == row["channel"],
        )
        if connection.execute(known).first() is None:
            connection.execute(insert(deliveries).values(**row))
            made += 1
    return made


def due(connection: Connection, now: float, limit: int, *, without: Collection[str] = ()) -> list[Delivery]:
    """Undelivered ones whose time has come, the longest waiting first: at most ``limit`` of each channel."""
    ready = (deliveries.c.delivered_at.is_(None), deliveries.c.next_at <= now)
    found: list[Delivery] = []
    for channel in connection.scalars(select(deliveries.c.channel).where(*ready).distinct()).all():
        if channel not in without:
            query = select(deliveries).where(*ready, deliveries.c.channel == channel)
            rows = connection.execute(query.order_by(deliveries.c.next_at).limit(limit))
            found += [Delivery(*row) for row in rows]
    return found


def claim(connection: Connection, delivery: Delivery, until: float) -> bool:
    """Take one for a try that nobody else makes before ``until``; ``False`` if somebody has it."""
    taken = connection.execute(
        update(deliveries)
        .where(
            deliveries.c.id == delivery.id,
            deliveries.c.tries == delivery.tries,
            deliveries.c.delivered_at.is_(None),
        )
        .values(tries=delivery.tries + 1, next_at=until)
    )
    return bool(taken.rowcount)


def settle(connection: Connection, delivery_id: int, values: Mapping[str, Any]) -> None:
    """Record what a try came to."""
    connection.execute(update(deliveries).where(deliveries.c.id == delivery_id).values(**values))


def of_task(connection: Connection, trial_id: str, limit: int = 1000) -> list[Delivery]:
    """Those of a task, oldest first."""
    query = select(deliveries).where(deliveries.c.trial_id == trial_id).order_by(deliveries.c.id).limit(limit)
    return [Delivery(*row) for row in connection.execute(query)]


def news(connection: Connection, after: int, limit: int) -> list[tuple[Event, Task]]:
    """Events past the id ``after`` of tasks that have alarms, in order."""
    query = (
        select(*events.c, *tasks.c)
        .join(tasks, tasks.c.trial_id == events.c.trial_id)
        .where(events.c.id > after, _SUBSCRIBED)
        .order_by(events.c.id)
        .limit(limit)
    )
    width = len(events.c)
    return [(Event(*row[:width]), Task(*row[width:])) for row in connection.execute(query)]


def queued(connection: Connection) -> list[tuple[Task, Trial]]:
    """Tasks with alarms that wait."""
    return _pairs(connection, _PAIRS.where(trials.c.state == State.QUEUED, _SUBSCRIBED))


def running(connection: Connection) -> list[tuple[Task, Trial]]:
    """Tasks with alarms that run."""
    return _pairs(connection, _PAIRS.where(trials.c.state == State.RUNNING, _SUBSCRIBED))


def _pairs(connection: Connection, query: Select[Any]) -> list[tuple[Task, Trial]]:
    return [(Task(*row[:_TASK]), trial_of(row[_TASK:])) for row in connection.execute(query)]
