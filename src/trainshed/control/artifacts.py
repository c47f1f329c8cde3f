"""Deleting Artifacts: by people, and when they are past their time (contract E b6).

Their rows stay and say why; the bytes go when nothing else needs them. A Checkpoint that is not deleted keeps
its files itself, so deleting the Artifacts they were costs it nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from trainshed.model.errors import FaultList
from trainshed.model.globs import OutputPatterns
from trainshed.model.states import TERMINAL
from trainshed.store import artifacts as store
from trainshed.store import events, jobs, moves
from trainshed.store.artifacts import Kept
from trainshed.store.database import Connection, Database
from trainshed.store.events import NewEvent
from trainshed.store.records import Trial

_ACTOR = "controller"
_TRIALS_AT_ONCE = 20
_DAY_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True)
class Deleted:
    """What was deleted, or would be."""

    count: int = 0
    bytes: int = 0
    kept_bytes: int = 0
    """Of ``bytes``: what Checkpoints keep that are not deleted."""

    def plus(self, found: Sequence[Kept]) -> Deleted:
        return Deleted(
            self.count + len(found),
            self.bytes + sum(each.artifact.size for each in found),
            self.kept_bytes + sum(each.artifact.size for each in found if each.in_checkpoint),
        )


def would_delete(
    database: Database, job_id: str, trial_id: str | None, names: OutputPatterns | None
) -> Deleted:
    """What `delete_artifacts` would delete; raises as it does."""
    found = Deleted()
    with database.read() as connection:
        for trial in _ended(connection, job_id, trial_id):
            found = found.plus(_named(connection, trial, names))
    return found


def delete_artifacts(
    database: Database,
    job_id: str,
    trial_id: str | None,
    names: OutputPatterns | None,
    *,
    at: float,
    actor: str,
) -> Deleted:
    """Delete the Artifacts of a Job's Trials, or of one, whose names match; all without ``names``.

    Repeatable. Raises `Refusal` ``RESOURCE_IN_USE`` while one of the Trials runs or its outputs are
    collected: then nothing is deleted.
    """

    def delete(connection: Connection) -> Deleted:
        moves.lock_jobs(connection, [job_id])
        done = Deleted()
        for trial in _ended(connection, job_id, trial_id):
            found = _named(connection, trial, names)
            _delete(connection, trial.job_id, trial.id, found, at=at, actor=actor, why=f"by {actor}")
            done = done.plus(found)
        return done

    return database.write(delete)


class ArtifactRetention:
    """Deletes the Artifacts of Trials that ended long enough ago."""

    def __init__(self, database: Database, clock: Callable[[], float], days: float | None) -> None:
        """``days`` after its end; ``None`` = never."""
        self._database = database
        self._clock = clock
        self._days = days

    def run(self) -> bool:
        """Delete some that are due; whether there may be more."""
        if self._days is None:
            return False
        before = self._clock() - self._days * _DAY_SECONDS
        with self._database.read() as connection:
            due = store.past_retention(connection, before, _TRIALS_AT_ONCE)
        why = f"by artifacts.retention_days = {self._days:g}"
        for trial_id, job_id in due:
            work = partial(self._retire, job_id=job_id, trial_id=trial_id, why=why)
            self._database.write(work)
        return bool(due)

    def _retire(self, connection: Connection, *, job_id: str, trial_id: str, why: str) -> None:
        moves.lock_jobs(connection, [job_id])
        found = store.kept_of(connection, trial_id)
        _delete(connection, job_id, trial_id, found, at=self._clock(), actor=_ACTOR, why=why)


def _ended(connection: Connection, job_id: str, trial_id: str | None) -> list[Trial]:
    """The Trials that are meant; all have ended, so that no collection adds to what is deleted."""
    found = [
        trial
        for trial in jobs.trials_of(connection, [job_id])[job_id]
        if trial_id is None or trial.id == trial_id
    ]
    faults = FaultList()
    for trial in found:
        if trial.state not in TERMINAL:
            said = f"the Trial `{trial.id}` is {trial.state}; its Artifacts can be deleted once it has ended"
            faults.add("trial_id", "RESOURCE_IN_USE", said, "Wait until it has ended, or stop it.")
    faults.raise_if_any()
    return found


def _named(connection: Connection, trial: Trial, names: OutputPatterns | None) -> list[Kept]:
    found = store.kept_of(connection, trial.id)
    return found if names is None else [each for each in found if names.match(each.artifact.name)]


def _delete(
    connection: Connection,
    job_id: str,
    trial_id: str,
    found: Sequence[Kept],
    *,
    at: float,
    actor: str,
    why: str,
) -> None:
    if not found:
        return
    store.delete(connection, [each.artifact.id for each in found], at=at, why=f"deleted {why}")
    size = sum(each.artifact.size for each in found)
    number = "1 Artifact" if len(found) == 1 else f"{len(found)} Artifacts"
    said = f"Deleted {number} ({size} bytes) {why}."
    events.record(connection, [NewEvent(job_id, trial_id, at, actor, "ARTIFACTS_DELETED", said)])
