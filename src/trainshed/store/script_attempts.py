"""Attempts and checkpoints of script Jobs (contract G, sections b, g.9)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import BindParameter, Connection, bindparam, func, insert, select, update

from trainshed.model.scripts.states import LIVE_ATTEMPTS
from trainshed.store import manifests
from trainshed.store.script_records import ScriptAttempt, ScriptCheckpoint
from trainshed.store.script_tables import script_attempts, script_checkpoints

LIVE = tuple(str(state) for state in LIVE_ATTEMPTS)
_WANTED: BindParameter[Any] = bindparam("wanted", expanding=True)
_OF_TRIALS = (
    select(script_attempts).where(script_attempts.c.trial_id.in_(_WANTED)).order_by(script_attempts.c.number)
)
_SAVED = (
    select(
        script_checkpoints.c.trial_id,
        func.count(),
        func.max(script_checkpoints.c.saved_at),
    )
    .where(script_checkpoints.c.trial_id.in_(_WANTED), script_checkpoints.c.gone_at.is_(None))
    .group_by(script_checkpoints.c.trial_id)
)


def insert_attempt(connection: Connection, attempt: ScriptAttempt) -> None:
    """Insert an Attempt, whose row of ``attempts`` is there; a second live one breaks a constraint."""
    values = {column.name: getattr(attempt, column.name) for column in script_attempts.c}
    connection.execute(insert(script_attempts), values)


def change_attempt(connection: Connection, attempt_id: str, values: Mapping[str, Any]) -> bool:
    """Set columns of an Attempt; ``False`` if there is no such Attempt."""
    query = update(script_attempts).where(script_attempts.c.attempt_id == attempt_id)
    return bool(connection.execute(query.values(**values)).rowcount)


def attempts_of(connection: Connection, trial_ids: Collection[str]) -> dict[str, list[ScriptAttempt]]:
    """Attempts of these Trials, oldest first, by Trial id."""
    found: dict[str, list[ScriptAttempt]] = {trial_id: [] for trial_id in trial_ids}
    if trial_ids:
        for row in connection.execute(_OF_TRIALS, {"wanted": list(trial_ids)}):
            found[row.trial_id].append(ScriptAttempt(*row))
    return found


def live_attempt(connection: Connection, trial_id: str) -> ScriptAttempt | None:
    """The Attempt that may still run; the database allows one."""
    row = connection.execute(
        select(script_attempts).where(
            script_attempts.c.trial_id == trial_id, script_attempts.c.state.in_(LIVE)
        )
    ).first()
    return None if row is None else ScriptAttempt(*row)


def live_at(connection: Connection, provider: str | None = None) -> list[ScriptAttempt]:
    """Every Attempt that may still run, of one provider or of all."""
    query = select(script_attempts).where(script_attempts.c.state.in_(LIVE))
    if provider is not None:
        query = query.where(script_attempts.c.provider == provider)
    return [ScriptAttempt(*row) for row in connection.execute(query.order_by(script_attempts.c.attempt_id))]


def insert_checkpoint(connection: Connection, checkpoint: ScriptCheckpoint) -> None:
    """Insert a checkpoint and keep its bytes from being collected; its manifest was put before."""
    manifests.hold(connection, [checkpoint.manifest_sha256])
    values = {column.name: getattr(checkpoint, column.name) for column in script_checkpoints.c}
    connection.execute(insert(script_checkpoints), values)


def checkpoints_of(
    connection: Connection, trial_id: str, *, with_gone: bool = False
) -> list[ScriptCheckpoint]:
    """Checkpoints of a Trial, newest first; those whose bytes were let go only ``with_gone``."""
    query = select(script_checkpoints).where(script_checkpoints.c.trial_id == trial_id)
    if not with_gone:
        query = query.where(script_checkpoints.c.gone_at.is_(None))
    rows = connection.execute(query.order_by(script_checkpoints.c.number.desc()))
    return [ScriptCheckpoint(*row) for row in rows]


def drop_checkpoint(connection: Connection, trial_id: str, number: int, *, at: float) -> bool:
    """Note that a checkpoint's bytes are broken or were let go; ``False`` where that was known."""
    query = update(script_checkpoints).where(
        script_checkpoints.c.trial_id == trial_id,
        script_checkpoints.c.number == number,
        script_checkpoints.c.gone_at.is_(None),
    )
    return bool(connection.execute(query.values(gone_at=at)).rowcount)


def saved(connection: Connection, trial_ids: Collection[str]) -> dict[str, tuple[int, float]]:
    """How many checkpoints these Trials have and when the newest was saved; Trials without are missing."""
    if not trial_ids:
        return {}
    rows = connection.execute(_SAVED, {"wanted": list(trial_ids)})
    return {trial_id: (int(number), float(newest)) for trial_id, number, newest in rows}
