"""Who may see which training task (contract C5): one rule for every list and every read."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, and_, exists, or_, select

from trainshed.store.training_tables import task_shares, tasks


@dataclass(frozen=True, slots=True)
class Viewer:
    """Who reads: what of a project's tasks they may see (C5)."""

    project_id: str
    user: str
    """Under this name they own tasks."""
    everything: bool
    """Whether they administer the project."""


def may_see(viewer: Viewer) -> ColumnElement[bool]:
    """What a row of ``tasks`` must fulfil: public, their own, shared with them, or they administer it all."""
    if viewer.everything:
        return tasks.c.project_id == viewer.project_id
    shared = exists().where(
        and_(task_shares.c.trial_id == tasks.c.trial_id, task_shares.c.user == viewer.user)
    )
    return and_(
        tasks.c.project_id == viewer.project_id,
        or_(tasks.c.public.is_(True), tasks.c.owner == viewer.user, shared),
    )


def shown(job_id: ColumnElement[str], viewer: Viewer) -> ColumnElement[bool]:
    """What a row with the Job ``job_id`` must fulfil: it is no task's, or one that the viewer may see.

    Deleted tasks are seen by nobody (c7).
    """
    theirs = exists().where(tasks.c.job_id == job_id)
    seen = exists().where(tasks.c.job_id == job_id, tasks.c.deleted_at.is_(None), may_see(viewer))
    return or_(~theirs, seen)


def is_hidden(connection: Connection, viewer: Viewer, job_id: str) -> bool:
    """Whether a Job is a task that the viewer may not see."""
    wanted = tasks.c.job_id == job_id
    if connection.execute(select(tasks.c.job_id).where(wanted)).first() is None:
        return False
    seen = select(tasks.c.job_id).where(wanted, tasks.c.deleted_at.is_(None), may_see(viewer))
    return connection.execute(seen).first() is None
