"""Gangs that change while they run (contract C51): what they hold grows and shrinks by parts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sqlalchemy import func, insert, select, update

from trainshed.model.states import AllocationState
from trainshed.store.database import Connection
from trainshed.store.gangs import NewMember, unit_id
from trainshed.store.tables import allocations, replicas


def next_rank(connection: Connection, attempt_id: str) -> int:
    """The rank of the next member: none is ever given twice in an Attempt."""
    newest = select(func.max(replicas.c.rank)).where(replicas.c.attempt_id == attempt_id)
    return int(connection.execute(newest).scalar_one()) + 1


def grow(
    connection: Connection, allocation_id: str, before: str, values: Mapping[str, Any], member: NewMember
) -> bool:
    """Have a gang hold more, and open the member that it is for.

    ``False``, and nothing changed, unless it is held, nobody's victim, and its parts are still ``before``.
    """
    a = allocations.c
    changed = connection.execute(
        update(allocations)
        .where(
            a.id == allocation_id,
            a.state == AllocationState.HELD,
            a.evicted_at.is_(None),
            a.parts == before,
        )
        .values(**values)
        .returning(a.attempt_id)
    )
    attempt_id = changed.scalar_one_or_none()
    if attempt_id is None:
        return False
    connection.execute(
        insert(replicas),
        [
            {
                "attempt_id": attempt_id,
                "rank": member.rank,
                "role": member.role,
                "node": member.node,
                "unit_id": unit_id(attempt_id, member.rank),
                "state": member.state,
                "gpu_indices": json.dumps(list(member.gpus)),
            }
        ],
    )
    return True


def shrink(connection: Connection, allocation_id: str, before: str, values: Mapping[str, Any]) -> bool:
    """Have a gang hold less; ``False`` if its release is confirmed, or its parts are no longer ``before``."""
    a = allocations.c
    changed = connection.execute(
        update(allocations)
        .where(a.id == allocation_id, a.state != AllocationState.RELEASED, a.parts == before)
        .values(**values)
    )
    return bool(changed.rowcount)
