"""What people do to a training task after they submitted it: stop, delete, resubmit, change (contract C, c7).

Each is one transaction, durable when it returns, and repeatable; the controller does the rest.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from trainshed.control.costs import USER, ask_if_costly, cost_of
from trainshed.control.crashpoints import Point, reach
from trainshed.model.errors import Refusal
from trainshed.model.states import REOPENINGS, TERMINAL, WAITING, AllocationState, OutputStatus, State
from trainshed.store import jobs, moves, tasks
from trainshed.store.database import Connection, Database
from trainshed.store.events import NewEvent, record
from trainshed.store.moves import Move
from trainshed.store.records import Task, Trial
from trainshed.store.visibility import Viewer

MAX_SHARES = 100


@dataclass(frozen=True, slots=True)
class Change:
    """What of a task changes; ``None`` leaves it as it is."""

    public: bool | None = None
    shares: Collection[str] | None = None
    priority: tuple[str, int] | None = None
    """Class and value, already judged against the catalogue (C29)."""


class TaskOperations:
    """Changes tasks that a viewer may see. Thread-safe.

    Every method raises `Refusal` ``JOB_NOT_FOUND`` for what the viewer may not see (C5).
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def stop(self, viewer: Viewer, reference: str, *, at: float, actor: str) -> str:
        """Accept a stop; the notice of C36 goes out first if the task has one. Answers the Job's id."""

        def store(connection: Connection) -> str:
            task, trial = require(connection, viewer, reference)
            require_owner(viewer, task)
            if trial.state is State.COLLECTING and task.retained_until is not None:
                # It has ended and is only kept for people to look at (C50): its result stays what it is.
                tasks.change(connection, task.trial_id, {"retained_until": _ended_retention(task, at)})
                _tell(connection, task, at, actor, "RETENTION_ENDED", f"{actor} ended the retention.")
            else:
                moves.accept_stop(connection, task.job_id, trial_id=None, at=at, actor=actor)
            reach(Point.STOP_BEFORE_COMMIT)
            return task.job_id

        job_id = self._database.write(store)
        reach(Point.STOP_AFTER_COMMIT)
        return job_id

    def delete(self, viewer: Viewer, reference: str, *, at: float, actor: str) -> str:
        """Stop the task and hide it at once; its rows stay for audit. Answers the Job's id."""

        def store(connection: Connection) -> str:
            task, trial = require(connection, viewer, reference)
            require_owner(viewer, task)
            if trial.state not in TERMINAL:
                moves.accept_stop(connection, task.job_id, trial_id=None, at=at, actor=actor)
            tasks.change(
                connection,
                task.trial_id,
                {"deleted_at": at, "deleted_by": actor, "retained_until": _ended_retention(task, at)},
            )
            _tell(connection, task, at, actor, "DELETED", f"Deleted by {actor}; records are kept for audit.")
            return task.job_id

        return self._database.write(store)

    def resubmit(self, viewer: Viewer, reference: str, *, at: float, actor: str, source: str = USER) -> str:
        """Queue a task that has ended once more, with the same frozen input (c7). Answers the Job's id.

        It takes a new place in the queue and counts as no automatic resubmission (C33); a costly one asks a
        person again, by the rules for ``source``. Raises `Refusal`
        ``RESOURCE_IN_USE`` while the task has not ended or still holds something.
        """

        def store(connection: Connection) -> str:
            task, _ = require(connection, viewer, reference)
            require_owner(viewer, task)
            moves.lock_jobs(connection, [task.job_id])
            task, trial = require(connection, viewer, reference)
            if trial.state not in REOPENINGS:
                said = f"{task.name} is {trial.state}; only a task that has ended can be resubmitted"
                raise Refusal.of("RESOURCE_IN_USE", said, path="state", hint="Stop it first, or wait.")
            held = jobs.allocations_of(connection, [trial.id])[trial.id]
            if any(each.state is not AllocationState.RELEASED for each in held):
                said = f"what the last Attempt of {task.name} holds is not released yet"
                raise Refusal.of("RESOURCE_IN_USE", said, path="state", hint="Try again in a moment.")
            self._reopen(connection, task, trial, at, actor)
            job = jobs.find_job(connection, task.project_id, task.job_id)
            assert job is not None  # noqa: S101 - a task has a Job
            ask_if_costly(connection, job, cost_of(task, trial, source), at=at)
            return task.job_id

        return self._database.write(store)

    def change(self, viewer: Viewer, reference: str, wanted: Change, *, at: float, actor: str) -> str:
        """Change visibility (C5) or, while it waits, priority (C29). Answers the Job's id."""

        def store(connection: Connection) -> str:
            task, trial = require(connection, viewer, reference)
            require_owner(viewer, task)
            values: dict[str, Any] = {}
            said = []
            if wanted.public is not None and wanted.public != task.public:
                values["public"] = wanted.public
                said.append("visible to its project" if wanted.public else "visible to its owner only")
            if wanted.priority is not None and wanted.priority[1] != task.priority:
                if trial.state not in WAITING:
                    message = f"{task.name} is {trial.state}; a priority changes only while a task is queued"
                    hint = "Stop it, and create it anew with the other priority."
                    raise Refusal.of("RESOURCE_IN_USE", message, path="priority", hint=hint)
                values["priority_class"], values["priority"] = wanted.priority
                said.append(f"priority {wanted.priority[0]} ({wanted.priority[1]})")
            if values:
                tasks.change(connection, task.trial_id, values)
            if wanted.shares is not None:
                tasks.set_shares(connection, task.trial_id, wanted.shares)
                said.append(f"shared with {len(set(wanted.shares))} people")
            if said:
                _tell(connection, task, at, actor, "CHANGED", f"Changed: {', '.join(said)}.")
            return task.job_id

        return self._database.write(store)

    @staticmethod
    def _reopen(connection: Connection, task: Task, trial: Trial, at: float, actor: str) -> None:
        blank: Mapping[str, Any] = {
            "stop_accepted_at": None,
            "started_at": None,
            "finished_at": None,
            "user_code_started": False,
            "exit_code": None,
            "exit_signal": None,
            "output_status": OutputStatus.NONE,
            "error_code": None,
            "error_message": None,
            "not_before": 0.0,
            "launch_failures": 0,
        }
        tasks.forget_stop(connection, task.job_id)
        tasks.change(
            connection,
            task.trial_id,
            {
                "queued_at": at,
                "next_cause": "manual",
                "plan": None,
                "stage": None,
                "chosen_spec": None,
                "retained_until": None,
                "excluded_nodes": "[]",
            },
        )
        sentence = f"Resubmitted by {actor} with the same frozen input; it takes a new place in the queue."
        move = Move(trial, trial.state, State.QUEUED, "RESUBMITTED", sentence, blank)
        moves.apply(connection, [move], at=at, actor=actor)


def require(connection: Connection, viewer: Viewer, reference: str) -> tuple[Task, Trial]:
    """The task that a reference names. Raises `Refusal` ``JOB_NOT_FOUND``, also for what is not visible."""
    found = tasks.find(connection, viewer, reference)
    if found is None:
        said = f"there is no training task `{reference[:80]}` that you may see in this project"
        hint = "List the tasks that you may see with `trainshed train list`."
        raise Refusal.of("JOB_NOT_FOUND", said, path="job_id", hint=hint)
    return found


def require_owner(viewer: Viewer, task: Task) -> None:
    """Raises `Refusal` ``PERMISSION_DENIED`` for a viewer who may see the task and no more."""
    if not viewer.everything and task.owner != viewer.user:
        said = f"{task.name} belongs to {task.owner}; its owner or an admin of the project may change it"
        raise Refusal.of("PERMISSION_DENIED", said, hint="Ask its owner, or an admin of the project.")


def _ended_retention(task: Task, at: float) -> float | None:
    return None if task.retained_until is None else min(task.retained_until, at)


def _tell(connection: Connection, task: Task, at: float, actor: str, code: str, message: str) -> None:
    record(connection, [NewEvent(task.job_id, task.trial_id, at, actor, code, message)])
