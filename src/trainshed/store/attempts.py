"""What Attempts did and what they hold. Everything takes many at once: the controller works in batches."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BindParameter, Connection, bindparam, insert, select, update

from trainshed.model.states import AllocationState
from trainshed.store.records import Allocation
from trainshed.store.tables import allocations, attempts, replicas

# Statements are built once: building one costs several times what running it does.
_OPEN_ATTEMPT = insert(attempts)
_OPEN_REPLICA = insert(replicas)
_HOLD = insert(allocations)
_START_ATTEMPT = (
    update(attempts)
    .where(attempts.c.id == bindparam("attempt"))
    .values(started_at=bindparam("start"), enforcement=bindparam("limits"))
)
_START_REPLICA = (
    update(replicas)
    .where(replicas.c.attempt_id == bindparam("attempt"))
    .values(started_at=bindparam("start"))
)
_END_ATTEMPT = (
    update(attempts)
    .where(attempts.c.id == bindparam("attempt"), attempts.c.ended_at.is_(None))
    .values(
        ended_at=bindparam("end"),
        ended_by=bindparam("how"),
        detail=bindparam("more"),
        usage=bindparam("used"),
    )
)
_END_REPLICA = (
    update(replicas)
    .where(replicas.c.attempt_id == bindparam("attempt"), replicas.c.ended_at.is_(None))
    .values(ended_at=bindparam("end"), exit_code=bindparam("code"))
)
_LET_GO = (
    update(allocations)
    .where(allocations.c.id == bindparam("allocation"), allocations.c.state != AllocationState.RELEASED)
    .values(state=AllocationState.RELEASING)
)
_WANTED: BindParameter[Any] = bindparam("wanted", expanding=True)
_ENDS = (
    select(attempts.c.trial_id, attempts.c.ended_by)
    .where(attempts.c.trial_id.in_(_WANTED), attempts.c.ended_by.is_not(None))
    .order_by(attempts.c.number.desc())
)
_COLUMNS = tuple(column.name for column in allocations.c)


@dataclass(frozen=True, slots=True)
class Start:
    """User code of an Attempt was started."""

    attempt_id: str
    at: float
    """Unix seconds."""
    enforcement: Mapping[str, str]
    """How its limits are enforced."""


@dataclass(frozen=True, slots=True)
class End:
    """An Attempt ended, or certainly never started."""

    attempt_id: str
    at: float
    """Unix seconds."""
    ended_by: str
    detail: str = ""
    exit_code: int | None = None
    usage: Mapping[str, float] | None = None


def open_all(connection: Connection, opened: Sequence[tuple[Allocation, int]]) -> None:
    """Record the intent to run Attempts, with their numbers, and what they hold; before any side effect."""
    if not opened:
        return
    connection.execute(
        _OPEN_ATTEMPT,
        [
            {
                "id": held.attempt_id,
                "trial_id": held.trial_id,
                "number": number,
                "engine": held.engine,
                "created_at": held.held_at,
            }
            for held, number in opened
        ],
    )
    connection.execute(
        _OPEN_REPLICA,
        [{"attempt_id": held.attempt_id, "rank": 0, "role": "main", "node": held.node} for held, _ in opened],
    )
    connection.execute(_HOLD, [{name: getattr(held, name) for name in _COLUMNS} for held, _ in opened])


def start_all(connection: Connection, starts: Sequence[Start]) -> None:
    """Record when user code was started, and how its limits are enforced."""
    if not starts:
        return
    rows = [
        {"attempt": start.attempt_id, "start": start.at, "limits": json.dumps(dict(start.enforcement))}
        for start in starts
    ]
    connection.execute(_START_ATTEMPT, rows)
    connection.execute(_START_REPLICA, [{"attempt": row["attempt"], "start": row["start"]} for row in rows])


def end_all(connection: Connection, ends: Sequence[End]) -> None:
    """Record how Attempts ended; the first report stays (late ones are evidence elsewhere)."""
    if not ends:
        return
    connection.execute(
        _END_ATTEMPT,
        [
            {
                "attempt": end.attempt_id,
                "end": end.at,
                "how": end.ended_by,
                "more": end.detail,
                "used": json.dumps(dict(end.usage or {})),
            }
            for end in ends
        ],
    )
    connection.execute(
        _END_REPLICA,
        [{"attempt": end.attempt_id, "end": end.at, "code": end.exit_code} for end in ends],
    )


def ends_of(connection: Connection, trial_ids: Collection[str]) -> dict[str, list[str]]:
    """How the ended Attempts of these Trials ended, the newest first, by Trial id."""
    found: dict[str, list[str]] = {trial_id: [] for trial_id in trial_ids}
    for row in connection.execute(_ENDS, {"wanted": list(trial_ids)}):
        found[row.trial_id].append(row.ended_by)
    return found


def let_go(connection: Connection, allocation_ids: Collection[str]) -> None:
    """Make Allocations due for release; released ones stay released."""
    if allocation_ids:
        connection.execute(_LET_GO, [{"allocation": allocation_id} for allocation_id in allocation_ids])


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
