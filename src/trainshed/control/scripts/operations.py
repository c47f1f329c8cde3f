"""What people and agents do to a script Job after they submitted it: cancel it, ask for its outputs.

Each is one transaction, durable when it returns, and repeatable; the controller does the rest.
"""

from __future__ import annotations

from collections.abc import Callable

from trainshed.control.crashpoints import Point, reach
from trainshed.control.scripts.callers import Caller
from trainshed.control.scripts.references import job_id_of
from trainshed.model.errors import Refusal
from trainshed.model.states import TERMINAL, State
from trainshed.store import moves, scripts
from trainshed.store.database import Connection, Database
from trainshed.store.records import Job, Trial
from trainshed.store.script_records import Script
from trainshed.store.visibility import Viewer


class ScriptOperations:
    """Changes script Jobs. Thread-safe. Every method raises `Refusal` ``JOB_NOT_FOUND``."""

    def __init__(self, database: Database, clock: Callable[[], float]) -> None:
        self._database = database
        self._clock = clock

    def cancel(self, viewer: Viewer, reference: str, caller: Caller) -> tuple[str, bool]:
        """Cancel a Job; its id, and whether this call changed anything (a.5).

        What holds nothing ends at once; the others go through ``cancelling``. A Job that has ended stays
        what it is.
        """
        now = self._clock()

        def store(connection: Connection) -> tuple[str, bool]:
            job, trial, _ = require(connection, viewer, reference)
            moves.lock_jobs(connection, [job.id])
            job, trial, _ = require(connection, viewer, job.id)
            if trial.state in TERMINAL or trial.state is State.STOPPING:
                return job.id, False
            moves.accept_stop(
                connection,
                job.id,
                trial_id=None,
                at=now,
                actor=caller.principal.actor,
                channel=caller.actor_word,
            )
            reach(Point.STOP_BEFORE_COMMIT)
            return job.id, True

        answer = self._database.write(store)
        reach(Point.STOP_AFTER_COMMIT)
        return answer

    def ask_fetch(self, viewer: Viewer, reference: str, *, again: bool) -> tuple[str, bool]:
        """Have the controller bring the outputs (a.4); the Job's id, and whether something is to be done.

        What was brought is brought ``again`` only where that is wanted. Of a Job that has no place yet there
        is nothing to bring.
        """
        now = self._clock()

        def store(connection: Connection) -> tuple[str, bool]:
            job, _, script = require(connection, viewer, reference)
            if script.provider is None or (script.outputs_fetched and not again):
                return job.id, False
            # Whoever waits for what is brought again waits for those that are brought now.
            wanted: dict[str, float | bool] = {"outputs_fetched": False} if again else {}
            if script.fetch_requested_at is None:
                wanted |= {"fetch_requested_at": now}
            if wanted:
                scripts.change(connection, script.trial_id, wanted)
            return job.id, True

        return self._database.write(store)


def require(connection: Connection, viewer: Viewer, reference: str) -> tuple[Job, Trial, Script]:
    """The script Job that a reference names. Raises `Refusal` ``JOB_NOT_FOUND``, ``AMBIGUOUS_JOB_REF``."""
    found = scripts.find(connection, viewer.project_id, job_id_of(connection, viewer, reference))
    if found is None:
        said = f"there is no script Job `{reference[:80]}` in this project"
        raise Refusal.of("JOB_NOT_FOUND", said, path="ref", hint="List them with `gpu jobs`.")
    return found
