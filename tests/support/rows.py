"""Rows for tests of the store: a project, a Job with Trials, what a Trial holds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection

from trainshed.model.ids import IdFactory
from trainshed.model.states import AllocationState, OutputStatus, State
from trainshed.store import access, jobs
from trainshed.store.database import Database
from trainshed.store.records import Allocation, Job, Project, Trial
from trainshed.store.tables import attempts, checkpoint_files, checkpoints

IDS = IdFactory()


def project(project_id: str = "p", **values: Any) -> Project:
    facts = {
        "name": project_id,
        "priority": 0,
        "max_gpus": None,
        "budget_gpu_seconds": None,
        "used_gpu_seconds": 0.0,
        "created_at": 1.0,
    }
    return Project(id=project_id, **{**facts, **values})


def add_project(database: Database, project_id: str = "p", **values: Any) -> Project:
    made = project(project_id, **values)
    database.write(lambda c: access.create_project(c, made))
    return made


def new_job(request_id: str, project_id: str = "p", **values: Any) -> Job:
    facts: dict[str, Any] = {
        "id": IDS.job(),
        "type": "train",
        "canonical": "{}",
        "status": "queued",
        "submitted_by": "human:test",
        "created_at": 10.0,
        "updated_at": 10.0,
        "finished_at": None,
        "stop_accepted_at": None,
    }
    return Job(**{**facts, "request_id": request_id, "project_id": project_id, **values})


def trial_row(job: Job, position: int = 0, **values: Any) -> dict[str, Any]:
    """The columns of ``trials`` that an acceptance writes."""
    facts: dict[str, Any] = {
        "id": IDS.trial(),
        "job_id": job.id,
        "project_id": job.project_id,
        "position": position,
        "name": f"trial-{position + 1}",
        "state": State.QUEUED,
        "runner": "team/echo",
        "revision": "a" * 40,
        "selector": "team/echo@main",
        "source_ref": "main",
        "snapshot_sha256": "b" * 64,
        "entrypoint": "main.sh",
        "command": None,
        "gpu_type": "H100",
        "gpus": 1,
        "cpus": 2,
        "memory_mb": 1024,
        "storage_mb": 2048,
        "shm_mb": 64,
        "timeout_seconds": 60,
        "outputs": json.dumps(["out/**"]),
        "params": "{}",
        "tags": json.dumps({"k": "v"}),
        "created_at": job.created_at,
        "priority": 0,
        "queue_rank": job.created_at,
        "updated_at": job.created_at,
        "output_status": OutputStatus.PENDING,
    }
    return {**facts, **values}


def add_job(
    database: Database, request_id: str = "r", trials: int = 1, *, project_id: str = "p", **values: Any
) -> tuple[Job, list[Trial]]:
    """Store a Job with Trials as an acceptance does; the rows as they were read back."""
    job = new_job(request_id, project_id, **values)
    rows = [trial_row(job, place) for place in range(trials)]
    database.write(lambda c: jobs.insert_job(c, job, rows))
    return job, trials_of(database, job)


def trials_of(database: Database, job: Job) -> list[Trial]:
    with database.read() as connection:
        return jobs.trials_of(connection, [job.id])[job.id]


def job_of(database: Database, job: Job) -> Job:
    with database.read() as connection:
        return jobs.get_job(connection, job.project_id, job.id)


def allocation(trial: Trial, attempt_id: str | None = None, **values: Any) -> Allocation:
    facts: dict[str, Any] = {
        "id": IDS.allocation(),
        "attempt_id": attempt_id or IDS.attempt(),
        "trial_id": trial.id,
        "project_id": trial.project_id,
        "engine": "local",
        "node": "here",
        "gpu_model": "H100",
        "gpu_indices": json.dumps(list(range(trial.gpus))),
        "simulated": True,
        "gpus": trial.gpus,
        "cpus": trial.cpus,
        "memory_mb": trial.memory_mb,
        "storage_mb": trial.storage_mb,
        "shm_mb": trial.shm_mb,
        "timeout_seconds": trial.timeout_seconds,
        "state": AllocationState.HELD,
        "held_at": 20.0,
        "released_at": None,
        "tries": 0,
        "evidence": None,
    }
    return Allocation(**{**facts, **values})


def add_checkpoint(connection: Connection, trial: Trial, files: Sequence[str], **values: Any) -> str:
    """A LoRA Checkpoint of a new Attempt of the Trial, made of these blobs of 10 bytes; its id."""
    attempt, checkpoint = IDS.attempt(), f"ckpt-{trial.id}"
    opened = {"id": attempt, "trial_id": trial.id, "number": 1, "engine": "local", "created_at": 10.0}
    connection.execute(attempts.insert().values(**opened))
    facts: dict[str, Any] = {
        "id": checkpoint,
        "project_id": trial.project_id,
        "job_id": trial.job_id,
        "trial_id": trial.id,
        "attempt_id": attempt,
        "folder": "",
        "checkpoint_type": "lora",
        "base_model": "base",
        "created_at": 10.0,
    }
    connection.execute(checkpoints.insert().values(**{**facts, **values}))
    rows = [
        {"checkpoint_id": checkpoint, "name": f"file-{number}", "size": 10, "sha256": sha256}
        for number, sha256 in enumerate(files)
    ]
    connection.execute(checkpoint_files.insert(), rows)
    return checkpoint


def as_row(connection: Connection, table: Any, **where: Any) -> Mapping[str, Any]:
    """One row of a table by equality, as a mapping."""
    query = table.select()
    for column, value in where.items():
        query = query.where(table.c[column] == value)
    return connection.execute(query).mappings().one()
