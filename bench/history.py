"""A database with a long history, written in bulk."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Table, insert

from trainshed.model.ids import IdFactory
from trainshed.store import tables
from trainshed.store.database import Database
from trainshed.store.schema import migrate

_BATCH = 5_000
_AGE_SECONDS = 30 * 86_400
_PROJECT = "default"
Rows = dict[str, list[dict[str, Any]]]
"""Rows by table, in an order that foreign keys allow."""


def fill(file: Path, jobs: int) -> list[str]:
    """Write ``jobs`` ended Jobs of one Trial, with Attempts, Allocations and events; some of their ids."""
    database = Database(f"sqlite:///{file}")
    try:
        migrate(database.engine)
        begin = time.time() - _AGE_SECONDS
        rows = _history(begin, jobs)
        kept: list[str] = []
        _project(database, begin)
        for first in range(0, jobs, _BATCH):
            batch = [next(rows) for _ in range(min(_BATCH, jobs - first))]
            kept += [each["jobs"][0]["id"] for each in batch[:: max(1, len(batch) // 50)]]
            database.write(_writer(batch))
    finally:
        database.close()
    return kept


def _history(begin: float, jobs: int) -> Iterator[Rows]:
    """The rows of one Job after the other, oldest first; one in twenty failed."""
    at = begin
    ids = IdFactory(lambda: at)
    for number in range(jobs):
        at = begin + number * _AGE_SECONDS / jobs
        yield _job(ids, at, number, failed=number % 20 == 0)


def _job(ids: IdFactory, at: float, number: int, *, failed: bool) -> Rows:
    job, trial, attempt = ids.job(), ids.trial(), ids.attempt()
    state = "failed" if failed else "succeeded"
    whose = {"project_id": _PROJECT}
    times = {"created_at": at, "updated_at": at + 9, "finished_at": at + 9}
    ran = {"started_at": at + 1, "ended_at": at + 9}
    job_row = {
        "id": job,
        "request_id": f"history-{number}",
        "type": "train",
        "canonical": "{}",
        "status": "failed" if failed else "completed",
        "submitted_by": "human:bench",
    }
    trial_row = {
        "id": trial,
        "job_id": job,
        "state": state,
        "command": f"python3 train.py --seed {number}",
        "tags": json.dumps({"team": "vision", "run": str(number)}),
        "queue_rank": at,
        "started_at": at + 1,
        "exit_code": int(failed),
        "error_code": "EXIT_CODE" if failed else None,
        "error_message": "The program ended with exit code 1." if failed else None,
    }
    held = {
        "id": ids.allocation(),
        "attempt_id": attempt,
        "trial_id": trial,
        "held_at": at,
        "released_at": at + 9,
    }
    happened = [
        {
            "job_id": job,
            "trial_id": trial,
            "at": at,
            "actor": "controller",
            "code": after.upper(),
            "message": f"The Trial went from {before} to {after}.",
            "before": before,
            "after": after,
        }
        for before, after in pairwise(("queued", "preparing", "running", "collecting", state))
    ]
    return {
        "jobs": [job_row | whose | times],
        "trials": [trial_row | whose | times | _FROZEN | _AMOUNTS],
        "attempts": [_ATTEMPT | {"id": attempt, "trial_id": trial, "created_at": at, **ran}],
        "replicas": [_REPLICA | {"attempt_id": attempt, "exit_code": int(failed), **ran}],
        "allocations": [_ALLOCATION | held | whose | _AMOUNTS],
        "events": happened,
    }


_AMOUNTS = {
    "gpus": 1,
    "cpus": 1,
    "memory_mb": 1024,
    "storage_mb": 1024,
    "shm_mb": 64,
    "timeout_seconds": 3600,
}
_FROZEN = {
    "position": 0,
    "name": "trial-1",
    "priority": 0,
    "runner": "envloop/bash",
    "revision": "0" * 40,
    "selector": "envloop/bash@main",
    "snapshot_sha256": "0" * 64,
    "entrypoint": "main.sh",
    "gpu_type": "H100",
    "outputs": json.dumps(["outputs/**"]),
    "params": "{}",
    "user_code_started": True,
    "output_status": "complete",
}
_ATTEMPT = {"number": 1, "engine": "local", "ended_by": "exit", "usage": "{}", "enforcement": "{}"}
_REPLICA = {"rank": 0, "role": "main", "node": "local"}
_ALLOCATION = {
    "engine": "local",
    "node": "local",
    "gpu_model": "H100",
    "gpu_indices": "[0]",
    "simulated": True,
    "state": "released",
    "tries": 1,
    "evidence": "{}",
}


def _writer(batch: list[Rows]) -> Callable[[Connection], None]:
    def write(connection: Connection) -> None:
        for name in batch[0]:
            table: Table = tables.metadata.tables[name]
            connection.execute(insert(table), [row for each in batch for row in each[name]])

    return write


def _project(database: Database, at: float) -> None:
    row = {"id": _PROJECT, "name": "Default", "priority": 0, "used_gpu_seconds": 0.0, "created_at": at}
    database.write(lambda connection: connection.execute(insert(tables.projects).values(**row)))
