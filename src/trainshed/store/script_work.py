"""What the controller asks about script Jobs: who wants something, since when, what ran where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, bindparam, exists, func, select, text

from trainshed.model.scripts.states import Note, Word
from trainshed.model.states import State
from trainshed.store.jobs import trial_of
from trainshed.store.records import Trial
from trainshed.store.script_attempts import LIVE
from trainshed.store.script_records import Script, ScriptAttempt, ScriptEvent
from trainshed.store.script_tables import script_attempts, script_events, scripts
from trainshed.store.scripts import SCRIPT
from trainshed.store.tables import trials

_ONE_CHOICE = 0x7363_7269_7074
"""The name of the lock that choices of providers take, which nothing else uses."""
_ROUTED = (
    select(scripts.c.trial_id)
    .join(trials, trials.c.id == scripts.c.trial_id)
    .where(trials.c.kind == SCRIPT, trials.c.state == State.QUEUED, scripts.c.provider.is_not(None))
)
"""Trials that wait for a place on this server's own machines, or on a cluster of the catalogue."""
_ROUTED_TO = (
    select(trials, scripts)
    .join(scripts, scripts.c.trial_id == trials.c.id)
    .where(trials.c.kind == SCRIPT, trials.c.state == State.QUEUED, scripts.c.provider == bindparam("name"))
    .order_by(trials.c.created_at, trials.c.id)
)
_TRIAL_COLUMNS = len(trials.c)
_NOTE = (
    select(script_events)
    .where(
        script_events.c.trial_id == bindparam("trial"),
        script_events.c.kind == "note",
        script_events.c.reason == bindparam("what"),
        script_events.c.attempt == bindparam("number"),
    )
    .order_by(script_events.c.id.desc())
    .limit(1)
)
_ENTERED = (
    select(script_events)
    .where(
        script_events.c.trial_id == bindparam("trial"),
        script_events.c.kind == "transition",
        script_events.c.after == bindparam("word"),
    )
    .order_by(script_events.c.id.desc())
    .limit(1)
)
_LIVE_AT = (
    select(script_attempts.c.provider, func.count())
    .where(script_attempts.c.state.in_(LIVE))
    .group_by(script_attempts.c.provider)
)
_WAITING_AT = (
    select(scripts.c.provider, func.count())
    .where(scripts.c.trial_id.in_(_ROUTED))
    .group_by(scripts.c.provider)
)


@dataclass(frozen=True, slots=True)
class Span:
    """When an Attempt held a provider; ``None``: it does still."""

    started_at: float
    ended_at: float | None


def lock_routing(connection: Connection) -> None:
    """Make choices of providers wait for each other. SQLite has one writer and needs no lock."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:name)"), {"name": _ONE_CHOICE})


def note_of(connection: Connection, trial_id: str, what: Note, attempt: int) -> ScriptEvent | None:
    """The newest note of that kind about an Attempt."""
    asked = {"trial": trial_id, "what": str(what), "number": attempt}
    row = connection.execute(_NOTE, asked).first()
    return None if row is None else ScriptEvent(*row)


def entered(connection: Connection, trial_id: str, word: Word) -> ScriptEvent | None:
    """The newest transition that led to ``word``."""
    row = connection.execute(_ENTERED, {"trial": trial_id, "word": str(word)}).first()
    return None if row is None else ScriptEvent(*row)


def busy(connection: Connection, *, but: str | None = None) -> Counter[str]:
    """How many Attempts each provider runs or is about to; one Trial may be left out."""
    found: Counter[str] = Counter()
    for query in (_LIVE_AT, _WAITING_AT):
        found.update({provider: int(number) for provider, number in connection.execute(query)})
    if but is not None:
        own: Any = connection.execute(
            select(script_attempts.c.provider).where(
                script_attempts.c.trial_id == but, script_attempts.c.state.in_(LIVE)
            )
        ).scalars()
        found.subtract(own)
        waiting: Any = connection.execute(
            select(scripts.c.provider).where(scripts.c.trial_id == but, scripts.c.trial_id.in_(_ROUTED))
        ).scalars()
        found.subtract(waiting)
    return +found


def spans_at(connection: Connection, provider: str, *, since: float) -> list[Span]:
    """When a provider worked for us: Attempts that ended after ``since``, or have not."""
    rows = connection.execute(
        select(script_attempts.c.started_at, script_attempts.c.ended_at).where(
            script_attempts.c.provider == provider,
            script_attempts.c.started_at.is_not(None),
            (script_attempts.c.ended_at.is_(None)) | (script_attempts.c.ended_at > since),
        )
    )
    return [Span(started_at, ended_at) for started_at, ended_at in rows]


def undelivered(connection: Connection, host: str, *, since: float) -> list[str]:
    """Trials that ended after ``since`` with outputs for a folder on ``host`` that are not there yet."""
    rows = connection.execute(
        select(scripts.c.trial_id)
        .join(trials, trials.c.id == scripts.c.trial_id)
        .where(
            scripts.c.host == host,
            scripts.c.outputs_fetched.is_(False),
            scripts.c.outputs_count.is_not(None),
            trials.c.finished_at > since,
            # Of one that never ran there is nothing (i.1).
            exists().where(
                script_attempts.c.trial_id == scripts.c.trial_id, script_attempts.c.started_at.is_not(None)
            ),
        )
    )
    return list(rows.scalars())


def fetch_requested(connection: Connection) -> list[str]:
    """Trials whose outputs somebody asked for (a.4)."""
    rows = connection.execute(select(scripts.c.trial_id).where(scripts.c.fetch_requested_at.is_not(None)))
    return list(rows.scalars())


def routed_to(connection: Connection, provider: str) -> list[tuple[Trial, Script]]:
    """Trials that wait for a place at a provider, oldest first."""
    rows = connection.execute(_ROUTED_TO, {"name": provider})
    return [(trial_of(row[:_TRIAL_COLUMNS]), Script(*row[_TRIAL_COLUMNS:])) for row in rows]


def attempts_by_id(connection: Connection, attempt_ids: Sequence[str]) -> dict[str, ScriptAttempt]:
    """These Attempts, by id."""
    if not attempt_ids:
        return {}
    rows = connection.execute(
        select(script_attempts).where(script_attempts.c.attempt_id.in_(list(attempt_ids)))
    )
    return {row.attempt_id: ScriptAttempt(*row) for row in rows}
