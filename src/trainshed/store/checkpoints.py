"""Checkpoints: what Trials produced that can be resumed from or served, and what keeps one from deletion.

A Checkpoint is used by a Trial that resumes from it until that Trial has ended. Accepting such a Trial and
deleting the Checkpoint each lock its row first, so of two that race one sees what the other did.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import BindParameter, Connection, Select, bindparam, exists, func, insert, select, update

from trainshed.model.errors import Refusal
from trainshed.model.states import TERMINAL, State
from trainshed.store.operation_tables import operations
from trainshed.store.records import Checkpoint, CheckpointFile, Operation
from trainshed.store.tables import checkpoint_files, checkpoints, trials

_LIVE = checkpoints.c.deleted_at.is_(None)
_NOT_ENDED = tuple(str(state) for state in State if state not in TERMINAL)
_WANTED: BindParameter[Any] = bindparam("wanted", expanding=True)

# Statements are built once: building one costs several times what running it does.
_OF_JOBS = select(checkpoints).where(_LIVE, checkpoints.c.job_id.in_(_WANTED)).order_by(checkpoints.c.id)
_FILES_OF = (
    select(checkpoint_files)
    .where(checkpoint_files.c.checkpoint_id.in_(_WANTED))
    .order_by(checkpoint_files.c.checkpoint_id, checkpoint_files.c.name)
)
_COUNTS = (
    select(checkpoint_files.c.checkpoint_id, func.count())
    .where(checkpoint_files.c.checkpoint_id.in_(_WANTED))
    .group_by(checkpoint_files.c.checkpoint_id)
)
_ANY = select(checkpoints).where(
    checkpoints.c.id == bindparam("checkpoint"), checkpoints.c.project_id == bindparam("project")
)
_BY_IDS = select(checkpoints).where(checkpoints.c.id.in_(_WANTED)).order_by(checkpoints.c.id)
_USERS = (
    select(trials.c.id)
    .where(trials.c.resume_from == bindparam("checkpoint"), trials.c.state.in_(_NOT_ENDED))
    .order_by(trials.c.id)
)
_USED = exists().where(trials.c.resume_from == checkpoints.c.id, trials.c.state.in_(_NOT_ENDED))
_SUPERSEDED = (
    select(checkpoints)
    .where(checkpoints.c.superseded.is_not(None), _LIVE, ~checkpoints.c.pinned, ~_USED)
    .order_by(checkpoints.c.id)
    .limit(bindparam("count"))
)


def insert_checkpoints(
    connection: Connection, rows: Sequence[Mapping[str, Any]], files: Sequence[Mapping[str, Any]]
) -> None:
    """Insert Checkpoints with their files (columns of both tables)."""
    if rows:
        connection.execute(insert(checkpoints), list(rows))
        connection.execute(insert(checkpoint_files), list(files))


def find_checkpoint(connection: Connection, project_id: str, checkpoint_id: str) -> Checkpoint | None:
    """A Checkpoint of a project that is not deleted."""
    found = find_any(connection, project_id, checkpoint_id)
    return found if found is not None and found.deleted_at is None else None


def get_checkpoint(connection: Connection, project_id: str, checkpoint_id: str) -> Checkpoint:
    """The Checkpoint; raises `Refusal` ``CHECKPOINT_NOT_FOUND``, for deleted and other projects' ones too."""
    found = find_checkpoint(connection, project_id, checkpoint_id)
    if found is None:
        raise not_found(checkpoint_id)
    return found


def not_found(checkpoint_id: str, *, path: str = "checkpoint_id") -> Refusal:
    """The one refusal for what is unknown, another project's or deleted."""
    said = f"there is no Checkpoint `{checkpoint_id[:80]}` in this project; it may have been deleted"
    return Refusal.of("CHECKPOINT_NOT_FOUND", said, path=path)


def list_checkpoints(
    connection: Connection,
    project_id: str,
    *,
    job_id: str | None = None,
    trial_id: str | None = None,
    before: str | None = None,
    limit: int = 25,
) -> list[Checkpoint]:
    """Checkpoints of a project that are not deleted, newest first, past the id ``before``."""
    query: Select[Any] = select(checkpoints).where(checkpoints.c.project_id == project_id, _LIVE)
    if job_id is not None:
        query = query.where(checkpoints.c.job_id == job_id)
    if trial_id is not None:
        query = query.where(checkpoints.c.trial_id == trial_id)
    if before is not None:
        query = query.where(checkpoints.c.id < before)
    query = query.order_by(checkpoints.c.id.desc()).limit(limit)
    return [Checkpoint(*row) for row in connection.execute(query)]


def of_job(connection: Connection, job_id: str) -> list[Checkpoint]:
    """The Checkpoints of a Job that are not deleted, in the order they were registered (E109)."""
    return [Checkpoint(*row) for row in connection.execute(_OF_JOBS, {"wanted": [job_id]})]


def by_ids(connection: Connection, checkpoint_ids: Collection[str]) -> dict[str, Checkpoint]:
    """These Checkpoints by id, deleted ones too: where something came from stays known."""
    rows = connection.execute(_BY_IDS, {"wanted": sorted(checkpoint_ids)})
    return {row.id: Checkpoint(*row) for row in rows}


def files_of(connection: Connection, checkpoint_id: str) -> list[CheckpointFile]:
    """The files of a Checkpoint by name, also of a deleted one."""
    return files_of_all(connection, [checkpoint_id])[checkpoint_id]


def files_of_all(connection: Connection, checkpoint_ids: Collection[str]) -> dict[str, list[CheckpointFile]]:
    """The files of these Checkpoints by name, by Checkpoint id."""
    found: dict[str, list[CheckpointFile]] = {checkpoint_id: [] for checkpoint_id in checkpoint_ids}
    if checkpoint_ids:
        for row in connection.execute(_FILES_OF, {"wanted": list(checkpoint_ids)}):
            found[row.checkpoint_id].append(CheckpointFile(*row))
    return found


def count_files(connection: Connection, checkpoint_ids: Collection[str]) -> dict[str, int]:
    """How many files each of these Checkpoints has."""
    rows = connection.execute(_COUNTS, {"wanted": list(checkpoint_ids)}) if checkpoint_ids else ()
    return {row[0]: row[1] for row in rows}


def find_file(connection: Connection, checkpoint_id: str, name: str) -> CheckpointFile | None:
    """One file of a Checkpoint that is not deleted."""
    row = connection.execute(
        select(checkpoint_files)
        .join(checkpoints, checkpoints.c.id == checkpoint_files.c.checkpoint_id)
        .where(checkpoints.c.id == checkpoint_id, _LIVE, checkpoint_files.c.name == name)
    ).first()
    return CheckpointFile(*row) if row else None


def hold(connection: Connection, checkpoint_ids: Collection[str]) -> set[str]:
    """Keep these Checkpoints from deletion until this transaction ends; answers those that still exist.

    For a transaction that inserts Trials which resume from them.
    """
    query = _BY_IDS
    if connection.dialect.name == "postgresql":
        query = query.with_for_update(read=True)
    rows = connection.execute(query, {"wanted": sorted(checkpoint_ids)})
    return {row.id for row in rows if row.deleted_at is None}


def users_of(connection: Connection, checkpoint_id: str) -> list[str]:
    """Trials that resume from a Checkpoint and have not ended."""
    return list(connection.execute(_USERS, {"checkpoint": checkpoint_id}).scalars())


def find_any(connection: Connection, project_id: str, checkpoint_id: str) -> Checkpoint | None:
    """A Checkpoint of a project, also a deleted one."""
    row = connection.execute(_ANY, {"checkpoint": checkpoint_id, "project": project_id}).first()
    return Checkpoint(*row) if row else None


def locked(connection: Connection, project_id: str, checkpoint_id: str) -> Checkpoint | None:
    """As `find_any`; until this transaction ends nobody else changes it or newly resumes from it."""
    query = _ANY.with_for_update() if connection.dialect.name == "postgresql" else _ANY
    row = connection.execute(query, {"checkpoint": checkpoint_id, "project": project_id}).first()
    return Checkpoint(*row) if row else None


def mark_deleted(connection: Connection, checkpoint_id: str, *, at: float, by: str) -> None:
    """Delete a Checkpoint that `locked` answered; its bytes go when nothing else needs them."""
    connection.execute(
        update(checkpoints)
        .where(checkpoints.c.id == checkpoint_id, _LIVE)
        .values(deleted_at=at, deleted_by=by)
    )


def set_pinned(connection: Connection, checkpoint_id: str, *, pinned: bool) -> None:
    """Let a Checkpoint that `locked` answered be pinned, or not."""
    connection.execute(update(checkpoints).where(checkpoints.c.id == checkpoint_id).values(pinned=pinned))


def due_for_deletion(connection: Connection, limit: int) -> list[Checkpoint]:
    """Checkpoints that their Runners' rules do not keep and nothing else does; the oldest first."""
    return [Checkpoint(*row) for row in connection.execute(_SUPERSEDED, {"count": limit})]


def insert_operation(connection: Connection, operation: Operation) -> None:
    """Record the receipt of something that was asked for."""
    values = {column.name: getattr(operation, column.name) for column in operations.c}
    connection.execute(insert(operations).values(**values))


def find_operation(connection: Connection, project_id: str, operation_id: str) -> Operation | None:
    """A receipt of a project."""
    row = connection.execute(
        select(operations).where(operations.c.id == operation_id, operations.c.project_id == project_id)
    ).first()
    return Operation(*row) if row else None


def newest_operation(connection: Connection, kind: str, resource_id: str) -> Operation | None:
    """The newest receipt for a resource."""
    row = connection.execute(
        select(operations)
        .where(operations.c.kind == kind, operations.c.resource_id == resource_id)
        .order_by(operations.c.id.desc())
        .limit(1)
    ).first()
    return Operation(*row) if row else None
