"""Deleting Artifacts: their rows stay and say why, their bytes go when nothing else needs them.

Every function that changes something needs the Job's row locked first (`trainshed.store.moves.lock_jobs`), as
the deletion of Checkpoints does.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Connection,
    bindparam,
    case,
    exists,
    literal_column,
    not_,
    select,
    update,
)

from trainshed.model.states import TERMINAL
from trainshed.store.records import Artifact, Checkpoint
from trainshed.store.tables import artifacts, checkpoint_files, checkpoints, trials

DELETED = "deleted"
_AT_ONCE = 500
"""SQLite takes some thousand parameters."""
_LOOKED_AT = 5000
_WANTED: BindParameter[Any] = bindparam("wanted", expanding=True)
# In words of the index of those that are kept: a bound value would not find it.
_KEPT = artifacts.c.upload_state == literal_column("'uploaded'")
_NAME_OF_FILE = case(
    (checkpoints.c.folder == "", checkpoint_files.c.name),
    else_=checkpoints.c.folder + "/" + checkpoint_files.c.name,
)


def _file_of(*which: ColumnElement[bool]) -> ColumnElement[bool]:
    """Whether the Artifact is a file of such a Checkpoint of its Trial: its name and its bytes are."""
    return exists().where(
        # The digest first: it has an index, and few files share one.
        checkpoint_files.c.sha256 == artifacts.c.sha256,
        checkpoints.c.id == checkpoint_files.c.checkpoint_id,
        checkpoints.c.trial_id == artifacts.c.trial_id,
        artifacts.c.name == _NAME_OF_FILE,
        *which,
    )


_LIVE = checkpoints.c.deleted_at.is_(None)
_IN_LIVE = _file_of(_LIVE)
_OF_CHECKPOINT = select(artifacts.c.id, artifacts.c.size).where(
    artifacts.c.trial_id == bindparam("trial"),
    _KEPT,
    _file_of(checkpoints.c.id == bindparam("checkpoint")),
    not_(_file_of(_LIVE, checkpoints.c.id != bindparam("checkpoint"))),
)
_KEPT_OF = (
    select(artifacts, _IN_LIVE.label("in_checkpoint"))
    .where(artifacts.c.trial_id == bindparam("trial"), _KEPT)
    .order_by(artifacts.c.id)
)
_MARK = (
    update(artifacts)
    .where(artifacts.c.id.in_(_WANTED), _KEPT)
    .values(upload_state=DELETED, deleted_at=bindparam("at"), deletion=bindparam("why"))
)
# First the oldest, by the index: what was deleted long ago is not looked at again.
_OLDEST = (
    select(artifacts.c.trial_id)
    .where(_KEPT, artifacts.c.created_at < bindparam("before"))
    .order_by(artifacts.c.created_at)
    .limit(_LOOKED_AT)
    .subquery()
)
_OLD = (
    select(trials.c.id, trials.c.job_id)
    .where(
        trials.c.id.in_(select(_OLDEST.c.trial_id)),
        trials.c.finished_at < bindparam("before"),
        trials.c.state.in_([str(state) for state in TERMINAL]),
    )
    .limit(bindparam("count"))
)


@dataclass(frozen=True, slots=True)
class Kept:
    """An Artifact whose bytes are there."""

    artifact: Artifact
    in_checkpoint: bool
    """Whether it is also a file of a Checkpoint that is not deleted, which keeps the bytes."""


def delete_files_of(connection: Connection, row: Checkpoint, *, at: float, why: str) -> tuple[int, int]:
    """Delete the Artifacts that are the files of this Checkpoint and of no live one; their number and bytes.

    Theirs are the name below its folder and the SHA-256: what a later collection replaced is another file.
    ``why`` is a sentence without its full stop.
    """
    found = connection.execute(_OF_CHECKPOINT, {"trial": row.trial_id, "checkpoint": row.id}).all()
    delete(connection, [each.id for each in found], at=at, why=why)
    return len(found), sum(each.size for each in found)


def kept_of(connection: Connection, trial_id: str) -> list[Kept]:
    """The Artifacts of a Trial whose bytes are there, in the order they were collected."""
    rows = connection.execute(_KEPT_OF, {"trial": trial_id})
    return [Kept(Artifact(*row[:-1]), bool(row.in_checkpoint)) for row in rows]


def delete(connection: Connection, artifact_ids: Collection[str], *, at: float, why: str) -> None:
    """Delete those of the Artifacts that are there still."""
    wanted = list(artifact_ids)
    for first in range(0, len(wanted), _AT_ONCE):
        some = wanted[first : first + _AT_ONCE]
        connection.execute(_MARK, {"wanted": some, "at": at, "why": why})


def past_retention(connection: Connection, before: float, limit: int) -> list[tuple[str, str]]:
    """Some Trials that ended before then (Unix seconds) and have Artifacts: their ids and their Jobs'."""
    rows = connection.execute(_OLD, {"before": before, "count": limit})
    return [(row.id, row.job_id) for row in rows]
