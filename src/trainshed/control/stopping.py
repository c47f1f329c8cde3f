"""The door for stops: accepted in one transaction; the controller does the rest."""

from __future__ import annotations

from trainshed.control.crashpoints import Point, reach
from trainshed.store import moves
from trainshed.store.database import Connection, Database
from trainshed.store.records import Job


def accept_stop(database: Database, job_id: str, *, trial_id: str | None, at: float, actor: str) -> Job:
    """Accept a stop of a Job, or of one of its Trials alone (E76, A14); durable when this returns.

    Repeatable; a Job that has ended is answered unchanged.
    """

    def store(connection: Connection) -> Job:
        job = moves.accept_stop(connection, job_id, trial_id=trial_id, at=at, actor=actor)
        reach(Point.STOP_BEFORE_COMMIT)
        return job

    job = database.write(store)
    reach(Point.STOP_AFTER_COMMIT)
    return job
