"""From rows to a Job's manifest: what was frozen, which never changes, and what came of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from trainshed.model.provenance import job_manifest
from trainshed.model.states import E_TRIAL_WORDS
from trainshed.server.shapes.common import iso, iso_or_none
from trainshed.store import checkpoints, jobs, runners, script_attempts, scripts, tasks
from trainshed.store.database import Connection
from trainshed.store.moves import RUNNER
from trainshed.store.records import (
    Allocation,
    Artifact,
    Attempt,
    Checkpoint,
    CheckpointFile,
    Job,
    Revision,
    Task,
    Trial,
    TrialContent,
    decoded,
)
from trainshed.store.script_records import Script, ScriptCheckpoint

MAX_LINEAGE = 1000
_ARTIFACTS_AT_ONCE = 1000


def manifest_of(connection: Connection, job: Job) -> dict[str, Any]:
    """The manifest of a Job.

    ``frozen`` is made of columns that nothing updates and of rows that nothing deletes, so its digest is the
    same before, during and after the run, and for good.
    """
    trials = jobs.trials_of(connection, [job.id])[job.id]
    revisions = {
        (trial.runner, trial.revision): _revision(connection, trial)
        for trial in trials
        if trial.kind == RUNNER
    }
    gangs = tasks.of_trials(connection, [trial.id for trial in trials if trial.kind != RUNNER])
    packed = scripts.of_trials(connection, [trial.id for trial in trials if trial.kind == scripts.SCRIPT])
    contents = jobs.contents_of(connection, [trial.id for trial in trials])
    frozen = {
        "job": _job(job),
        "request": json.loads(job.canonical),
        "runner_files": {
            revision.snapshot_sha256: json.loads(revision.manifest)["files"]
            for revision in revisions.values()
        },
        "trials": [
            _trial(
                trial,
                revisions.get((trial.runner, trial.revision)),
                contents.get(trial.id, []),
                _resumed(connection, trial.resume_from),
                gangs.get(trial.id),
                packed.get(trial.id),
            )
            for trial in trials
        ],
    }
    return job_manifest(frozen, _outcome(connection, job, trials))


def _revision(connection: Connection, trial: Trial) -> Revision:
    found = runners.find_revision(connection, trial.runner, trial.revision)
    if found is None:
        raise RuntimeError(
            f"the Revision {trial.runner}@{trial.revision} is gone; Revisions are never deleted"
        )
    return found


def _job(job: Job) -> dict[str, Any]:
    return {
        "job_id": job.id,
        "project_id": job.project_id,
        "request_id": job.request_id,
        "type": job.type,
        "submitted_by": job.submitted_by,
        "created_at": iso(job.created_at),
        "platform_version": job.platform_version,
    }


def _trial(
    trial: Trial,
    revision: Revision | None,
    contents: Sequence[TrialContent],
    resumed: Mapping[str, Any] | None,
    task: Task | None,
    script: Script | None,
) -> dict[str, Any]:
    image = trial.image_requested is not None and {
        "requested": trial.image_requested,
        "resolved": trial.image_resolved,
        "digest": trial.image_digest,
    }
    profile = trial.profile is not None and {
        "sha256": trial.profile_sha256,
        "document": decoded(trial.profile),
    }
    return {
        "trial_id": trial.id,
        "name": trial.name,
        "runner": {
            "name": trial.runner,
            "revision": trial.revision,
            "tree_id": "" if revision is None else revision.tree_id,
            "selector": trial.selector,
            "source_ref": trial.source_ref,
            "snapshot_sha256": trial.snapshot_sha256,
        },
        "entrypoint": trial.entrypoint,
        "command": trial.command,
        "params": json.loads(trial.params),
        "outputs": trial.output_patterns,
        "tags": trial.tag_map,
        "image": image or None,
        "profile": profile or None,
        "contents": [
            {
                "role": use.role,
                "kind": use.kind,
                "name": use.name,
                "version": use.version,
                "manifest_sha256": use.manifest_sha256,
            }
            for use in contents
        ],
        "resources": {
            "gpu_type": trial.gpu_type,
            "gpus": trial.gpus,
            "cpus": trial.cpus,
            "memory_mb": trial.memory_mb,
            "storage_mb": trial.storage_mb,
            "shm_mb": trial.shm_mb,
        },
        "timeout_seconds": trial.timeout_seconds,
        "resume_from": resumed,
        **({} if task is None else {"task": _task(task)}),
        **({} if script is None else {"script": _script(script)}),
    }


def _script(script: Script) -> dict[str, Any]:
    """What is frozen of a packed project (contract G): secrets by name, content by digest."""
    return {
        "spec": script.document,
        "spec_hash": script.spec_hash,
        "owner": script.owner,
        "source": script.source,
    }


def _task(task: Task) -> dict[str, Any]:
    """What is frozen of a training task (contract C); hidden values are `null`."""
    return {
        "task_uuid": task.task_uuid,
        "name": task.name,
        "kind": task.kind,
        "owner": task.owner,
        "spec": json.loads(task.spec),
        "catalog_revision": task.catalog_revision,
        "totals": json.loads(task.totals),
    }


def _resumed(connection: Connection, checkpoint_id: str | None) -> dict[str, Any] | None:
    """The Checkpoint that a Trial goes on from, its files, and the Checkpoints that it came from in turn."""
    if checkpoint_id is None:
        return None
    line: list[Checkpoint] = []
    wanted: str | None = checkpoint_id
    while wanted is not None and len(line) < MAX_LINEAGE:
        found = checkpoints.by_ids(connection, [wanted]).get(wanted)
        if found is None:
            break
        line.append(found)
        wanted = found.parent_id
    return {
        "checkpoint_id": checkpoint_id,
        "files": [_file(file) for file in checkpoints.files_of(connection, checkpoint_id)],
        "lineage": [
            {
                "checkpoint_id": each.id,
                "job_id": each.job_id,
                "trial_id": each.trial_id,
                "attempt_id": each.attempt_id,
                "checkpoint_type": each.checkpoint_type,
                "base_model": each.base_model,
                "step": each.step,
                "parent_id": each.parent_id,
            }
            for each in line
        ],
    }


def _file(file: CheckpointFile) -> dict[str, Any]:
    return {"name": file.name, "size": file.size, "sha256": file.sha256}


def _outcome(connection: Connection, job: Job, trials: Sequence[Trial]) -> dict[str, Any]:
    ids = [trial.id for trial in trials]
    attempts = jobs.attempts_of(connection, ids)
    held = jobs.allocations_of(connection, ids)
    made: dict[str, list[Checkpoint]] = {}
    for each in checkpoints.of_job(connection, job.id):
        made.setdefault(each.trial_id, []).append(each)
    files = checkpoints.files_of_all(connection, [each.id for found in made.values() for each in found])
    more = _of_scripts(connection, trials) | _of_tasks(connection, trials, attempts)
    return {
        "status": job.status,
        "finished_at": iso_or_none(job.finished_at),
        "trials": [
            {
                "trial_id": trial.id,
                "status": E_TRIAL_WORDS[trial.state],
                "user_code_started": trial.user_code_started,
                "started_at": iso_or_none(trial.started_at),
                "finished_at": iso_or_none(trial.finished_at),
                "exit_code": trial.exit_code,
                "exit_signal": trial.exit_signal,
                "error_code": trial.error_code,
                "output_status": trial.output_status.value,
                "outputs": [_artifact(row) for row in _artifacts(connection, trial.id)],
                "checkpoints": [
                    {"checkpoint_id": each.id, "files": [_file(file) for file in files[each.id]]}
                    for each in made.get(trial.id, [])
                ],
                **more.get(trial.id, {}),
                "attempts": [
                    {**_attempt(row, held[trial.id]), **more.get(row.id, {})} for row in attempts[trial.id]
                ],
            }
            for trial in trials
        ],
    }


def _of_scripts(connection: Connection, trials: Sequence[Trial]) -> dict[str, dict[str, Any]]:
    """What is told of packed projects besides, by the id of the Trial or of the Attempt."""
    found: dict[str, dict[str, Any]] = {}
    ids = [trial.id for trial in trials if trial.kind == scripts.SCRIPT]
    tries = script_attempts.attempts_of(connection, ids)
    for trial_id in ids:
        saved = script_attempts.checkpoints_of(connection, trial_id, with_gone=True)
        digests = {each.number: each.manifest_sha256 for each in saved}
        found[trial_id] = {"checkpoints": [_script_checkpoint(each) for each in reversed(saved)]}
        for row in tries[trial_id]:
            found[row.attempt_id] = {
                "provider": row.provider,
                "state": row.state,
                "gpu_promised": row.gpu_promised,
                "gpu_real": row.gpu_real,
                "resumed_from": None
                if row.resumed_from is None
                else {"number": row.resumed_from, "manifest_sha256": digests.get(row.resumed_from)},
                "started_at": iso_or_none(row.started_at),
                "ended_at": iso_or_none(row.ended_at),
                "exit_code": row.exit_code,
            }
    return found


def _script_checkpoint(row: ScriptCheckpoint) -> dict[str, Any]:
    return {
        "number": row.number,
        "attempt": row.attempt,
        "step": row.step,
        "manifest_sha256": row.manifest_sha256,
        "files": row.files,
        "bytes": row.bytes,
        "kept": row.gone_at is None,
    }


def _of_tasks(
    connection: Connection, trials: Sequence[Trial], attempts: Mapping[str, Sequence[Attempt]]
) -> dict[str, dict[str, Any]]:
    """What is told of a task's Attempts besides, by their ids."""
    ids = {trial.id for trial in trials if trial.kind not in {RUNNER, scripts.SCRIPT}}
    rows = [row for trial_id in ids for row in attempts[trial_id]]
    members = tasks.replicas_of(connection, [row.id for row in rows])
    return {
        row.id: {
            "cause": row.cause,
            "exit_class": row.exit_class,
            "started_at": iso_or_none(row.started_at),
            "ended_at": iso_or_none(row.ended_at),
            "replicas": [
                {
                    "rank": each.rank,
                    "role": each.role,
                    "node": each.node,
                    "gpus": decoded(each.gpu_indices),
                    "exit_code": each.exit_code,
                }
                for each in members[row.id]
            ],
        }
        for row in rows
    }


def _artifacts(connection: Connection, trial_id: str) -> list[Artifact]:
    found: list[Artifact] = []
    while True:
        after = found[-1].id if found else None
        some = jobs.list_artifacts(connection, trial_id, after=after, limit=_ARTIFACTS_AT_ONCE)
        found += some
        if len(some) < _ARTIFACTS_AT_ONCE:
            return sorted(found, key=lambda row: row.name)


def _artifact(row: Artifact) -> dict[str, Any]:
    return {"name": row.name, "size": row.size, "sha256": row.sha256, "upload_state": row.upload_state}


def _attempt(row: Attempt, held: Sequence[Allocation]) -> dict[str, Any]:
    mine = next((each for each in held if each.attempt_id == row.id), None)
    return {
        "attempt_id": row.id,
        "number": row.number,
        "engine": row.engine,
        "node": mine.node if mine else None,
        "gpu_model": mine.gpu_model if mine else None,
        "gpus": list(mine.indices) if mine else [],
        "simulated": bool(mine.simulated) if mine else None,
        "enforcement": decoded(row.enforcement),
        "ended_by": row.ended_by,
    }
