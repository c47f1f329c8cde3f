"""Questions to people, of Jobs of every kind, and the one-time codes of their answers (promise P13)."""

from __future__ import annotations

import hmac
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BindParameter, Connection, bindparam, insert, select, update

from trainshed.model.strict_json import canonical_json
from trainshed.store.replacing import replace_row
from trainshed.store.script_records import Approval, Confirmation
from trainshed.store.script_tables import approvals, confirmations

MAX_TRIES = 5
"""So many wrong codes spoil a code."""
_WANTED: BindParameter[Any] = bindparam("wanted", expanding=True)
_OF_JOBS = select(approvals).where(approvals.c.job_id.in_(_WANTED)).order_by(approvals.c.id)


@dataclass(frozen=True, slots=True)
class NewApproval:
    """A question that is about to be asked, and what its answer binds to."""

    job_id: str
    project_id: str
    spec_hash: str
    rules: Sequence[str]
    reason: str
    provider: str | None = None


def ask(connection: Connection, new: NewApproval, *, at: float, expires_at: float) -> int:
    """The id of the open question of a Job: a new one, or the one that is open already.

    The caller holds the lock of the Job (`store.moves.lock_jobs`), so that it never has two.
    """
    if (there := open_of(connection, new.job_id)) is not None:
        return there.id
    made = connection.execute(
        insert(approvals).values(
            job_id=new.job_id,
            project_id=new.project_id,
            spec_hash=new.spec_hash,
            rules=canonical_json([str(rule) for rule in new.rules]),
            provider=new.provider,
            reason=new.reason,
            asked_at=at,
            expires_at=expires_at,
        )
    )
    [key] = made.inserted_primary_key or (0,)
    return int(key)


def find(connection: Connection, project_id: str, approval_id: int) -> Approval | None:
    """A question of a project."""
    row = connection.execute(
        select(approvals).where(approvals.c.id == approval_id, approvals.c.project_id == project_id)
    ).first()
    return None if row is None else Approval(*row)


def open_of(connection: Connection, job_id: str) -> Approval | None:
    """The question of a Job that waits for its answer."""
    row = connection.execute(
        select(approvals)
        .where(approvals.c.job_id == job_id, approvals.c.answer.is_(None))
        .order_by(approvals.c.id.desc())
        .limit(1)
    ).first()
    return None if row is None else Approval(*row)


def of_jobs(connection: Connection, job_ids: Collection[str]) -> dict[str, list[Approval]]:
    """Every question that was asked about these Jobs, oldest first, by Job id; Jobs without are missing."""
    found: dict[str, list[Approval]] = {}
    if job_ids:
        for row in connection.execute(_OF_JOBS, {"wanted": list(job_ids)}):
            found.setdefault(row.job_id, []).append(Approval(*row))
    return found


def list_approvals(
    connection: Connection,
    project_id: str,
    *,
    only_open: bool,
    job_id: str | None = None,
    before: int | None = None,
    limit: int = 25,
) -> list[Approval]:
    """Questions of a project, or of one of its Jobs, newest first, past the id ``before``."""
    query = select(approvals).where(approvals.c.project_id == project_id)
    if job_id is not None:
        query = query.where(approvals.c.job_id == job_id)
    if only_open:
        query = query.where(approvals.c.answer.is_(None))
    if before is not None:
        query = query.where(approvals.c.id < before)
    return [Approval(*row) for row in connection.execute(query.order_by(approvals.c.id.desc()).limit(limit))]


def expired(connection: Connection, at: float, *, limit: int = 100) -> list[Approval]:
    """Open questions that nobody answered in time (c.5)."""
    rows = connection.execute(
        select(approvals)
        .where(approvals.c.answer.is_(None), approvals.c.expires_at <= at)
        .order_by(approvals.c.expires_at)
        .limit(limit)
    )
    return [Approval(*row) for row in rows]


def close(
    connection: Connection, approval_id: int, answer: str, *, by: str, at: float, note: str | None = None
) -> bool:
    """Answer a question; ``False``, and nothing is changed, where it has an answer already."""
    closed = connection.execute(
        update(approvals)
        .where(approvals.c.id == approval_id, approvals.c.answer.is_(None))
        .values(answer=answer, answered_at=at, answered_by=by, note=note)
    )
    return bool(closed.rowcount)


def withdraw(connection: Connection, job_ids: Collection[str], *, at: float, by: str) -> None:
    """Close the open questions of Jobs that end without an answer."""
    connection.execute(
        update(approvals)
        .where(approvals.c.job_id.in_(list(job_ids)), approvals.c.answer.is_(None))
        .values(answer="withdrawn", answered_at=at, answered_by=by)
    )


def put_code(connection: Connection, approval_id: int, digest: str, *, at: float, expires_at: float) -> None:
    """Keep the digest of a new one-time code; the one before is worth nothing any more."""
    values = {
        "approval_id": approval_id,
        "digest": digest,
        "made_at": at,
        "expires_at": expires_at,
        "tries": 0,
        "used_at": None,
    }
    replace_row(connection, confirmations, values, ("approval_id",))


def find_code(connection: Connection, approval_id: int) -> Confirmation | None:
    row = connection.execute(select(confirmations).where(confirmations.c.approval_id == approval_id)).first()
    return None if row is None else Confirmation(*row)


def try_code(connection: Connection, approval_id: int, digest: str, *, at: float) -> bool:
    """Whether this is the digest of the code that was shown last; a right one is used up by asking.

    Each wrong one counts, and after `MAX_TRIES` none is right any more.
    """
    mine = confirmations.c.approval_id == approval_id
    row = connection.execute(
        update(confirmations)
        .where(
            mine,
            confirmations.c.used_at.is_(None),
            confirmations.c.expires_at > at,
            confirmations.c.tries < MAX_TRIES,
        )
        .values(tries=confirmations.c.tries + 1)
        .returning(confirmations.c.digest)
    ).first()
    if row is None or not hmac.compare_digest(row.digest, digest):
        return False
    connection.execute(update(confirmations).where(mine).values(used_at=at))
    return True
