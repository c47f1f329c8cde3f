"""From rows to the shapes of the API.

Rows are loaded in batches: a page costs the same few queries whatever its length.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from trainshed.model.checkpoints import checkpoint_uri
from trainshed.model.states import E_TRIAL_WORDS, TERMINAL, WAITING, AllocationState, State
from trainshed.server.outlook import OutlookReader
from trainshed.server.shapes import jobs as shapes
from trainshed.server.shapes.common import Reason, iso, iso_or_none
from trainshed.server.task_views import TaskViews, reason_words, shown
from trainshed.server.waiting import QueueReader
from trainshed.store import approvals, scripts, tasks
from trainshed.store import jobs as store
from trainshed.store.database import Connection
from trainshed.store.moves import RUNNER
from trainshed.store.records import Allocation, Artifact, Attempt, Checkpoint, Event, Job, Trial, decoded
from trainshed.store.scripts import SCRIPT
from trainshed.store.visibility import Viewer

_PLAIN = frozenset({RUNNER, SCRIPT})
"""Kinds of Trials that are no training tasks."""


class Views:
    """Builds Jobs and Trials as callers see them, on one connection at one time."""

    def __init__(
        self,
        connection: Connection,
        queue: QueueReader,
        outlook: OutlookReader,
        now: float,
        viewer: Viewer | None = None,
    ) -> None:
        """Without a ``viewer`` no other task is named (C5)."""
        self._connection = connection
        self._queue = queue
        self._outlook = outlook
        self._now = now
        self._viewer = viewer

    def jobs(self, rows: Sequence[Job]) -> list[shapes.Job]:
        """Jobs with all their Trials."""
        by_job = store.trials_of(self._connection, [row.id for row in rows])
        every = [trial for trials in by_job.values() for trial in trials]
        views = {view.trial_id: view for view in self.trials(every)}
        tasks_of = {trial.id for trial in every if trial.kind not in _PLAIN}
        named = tasks_of | {trial.id for trial in every if trial.kind == SCRIPT}
        return [
            _job(
                row,
                by_job[row.id],
                [views[trial.id] for trial in by_job[row.id]],
                task=any(trial.id in tasks_of for trial in by_job[row.id]),
                named=any(trial.id in named for trial in by_job[row.id]),
            )
            for row in rows
        ]

    def job(self, row: Job) -> shapes.Job:
        return self.jobs([row])[0]

    def trials(self, rows: Sequence[Trial]) -> list[shapes.Trial]:
        """Trials with their Attempts, allocations and reasons for waiting."""
        held_or_held_once = [row.id for row in rows if row.state is not State.QUEUED or row.launch_failures]
        attempts = store.attempts_of(self._connection, held_or_held_once)
        held = store.allocations_of(self._connection, held_or_held_once)
        of_runners = [row for row in rows if row.kind == RUNNER and row.state in WAITING]
        waiting = self._queue.answers(self._connection, of_runners, now=self._now)
        words = self._tasks([row for row in rows if row.kind not in _PLAIN], held, waiting)
        self._scripts([row for row in rows if row.kind == SCRIPT and row.state in WAITING], waiting)
        self._questions([row for row in rows if row.state is State.AWAITING_APPROVAL], waiting)
        return [
            _trial(
                row,
                attempts.get(row.id, []),
                held.get(row.id, []),
                waiting.get(row.id),
                words.get(row.id, str(row.state)),
            )
            for row in rows
        ]

    def _tasks(
        self,
        rows: Sequence[Trial],
        held: Mapping[str, Sequence[Allocation]],
        waiting: dict[str, shapes.Waiting],
    ) -> dict[str, str]:
        """The page's words for training tasks; why they wait goes into ``waiting``."""
        found = tasks.of_trials(self._connection, [row.id for row in rows])
        views = TaskViews(self._connection, self._outlook, self._now, self._viewer)
        for row in rows:
            place, why = views.standing(found[row.id], row)
            if place is None or why is None:
                continue
            reason, when = reason_words(why), views.estimate(why)
            waiting[row.id] = shapes.Waiting(
                code=reason.code,
                message=reason.message,
                position=place.in_queue,
                estimated_start_at=None if when is None else when.latest,
            )
        return {row.id: shown(found[row.id], row, held.get(row.id, ()), self._now).word for row in rows}

    def _scripts(self, rows: Sequence[Trial], waiting: dict[str, shapes.Waiting]) -> None:
        """Why script Jobs wait: for what of this machine, or what routing found last."""
        for trial_id, script in scripts.of_trials(self._connection, [row.id for row in rows]).items():
            waiting[trial_id] = shapes.Waiting(
                code=script.word.upper(),
                message=script.message or script.route_reason or "No provider was chosen yet.",
                position=None,
                estimated_start_at=iso_or_none(script.not_before),
            )

    def _questions(self, rows: Sequence[Trial], waiting: dict[str, shapes.Waiting]) -> None:
        """What a person is asked about those that wait for an answer, of any kind."""
        asked = approvals.of_jobs(self._connection, [row.job_id for row in rows])
        for row in rows:
            question = next((each for each in asked.get(row.job_id, ()) if each.answer is None), None)
            said = (
                "A person must approve it first."
                if question is None
                else f"A person is asked: {question.reason}."
            )
            waiting[row.id] = shapes.Waiting(
                code="AWAITING_APPROVAL", message=said, position=None, estimated_start_at=None
            )

    def trial(self, row: Trial) -> shapes.Trial:
        return self.trials([row])[0]


def _job(
    row: Job, rows: Sequence[Trial], trials: list[shapes.Trial], *, task: bool, named: bool
) -> shapes.Job:
    failed = next((trial.error for trial in trials if trial.status == "failed" and trial.error), None)
    words: Any = row.status
    state: Any = trials[0].state if task else row.status
    return shapes.Job(
        job_id=row.id,
        request_id=row.request_id,
        name=rows[0].name if named else None,
        status=words,
        state=state,
        tags=rows[0].tag_map if rows else {},
        error=failed if row.status == "failed" else None,
        created_at=iso(row.created_at),
        updated_at=iso(row.updated_at),
        finished_at=iso_or_none(row.finished_at),
        training=shapes.Training(trials=trials, counts=Counter(trial.status for trial in trials)),
    )


def job_result(job: shapes.Job, checkpoints: Sequence[Checkpoint]) -> shapes.JobResult:
    """A Job with its Checkpoints (E109); outputs that are none stay Artifacts (E74, E108)."""
    found = [
        shapes.CheckpointRef(
            checkpoint_id=row.id,
            trial_id=row.trial_id,
            uri=checkpoint_uri(row.job_id, row.id),
            durable=True,
            folder=row.folder,
            step=row.step,
            metric=row.metric,
            metric_value=row.metric_value,
            pinned=row.pinned,
            superseded=row.superseded,
        )
        for row in checkpoints
    ]
    return shapes.JobResult(
        **{name: getattr(job, name) for name in shapes.Job.model_fields}, checkpoints=found
    )


def _trial(
    row: Trial,
    attempts: Sequence[Attempt],
    held: Sequence[Allocation],
    waiting: shapes.Waiting | None,
    word: str,
) -> shapes.Trial:
    status: Any = E_TRIAL_WORDS[row.state]
    entrypoint: Any = row.entrypoint or None
    state: Any = word
    error = None
    if row.error_code is not None and row.state in TERMINAL:
        error = Reason(code=row.error_code, message=row.error_message or row.error_code)
    return shapes.Trial(
        trial_id=row.id,
        job_id=row.job_id,
        name=row.name,
        status=status,
        state=state,
        tags=row.tag_map,
        runner=runner_ref(row),
        image=image(row),
        resources=resources(row),
        timeout_seconds=row.timeout_seconds,
        entrypoint=entrypoint,
        command=row.command,
        profile=decoded(row.profile),
        profile_sha256=row.profile_sha256,
        resume_from=row.resume_from,
        exit_code=row.exit_code,
        exit_signal=row.exit_signal,
        output_status=row.output_status.value,
        outputs=row.output_patterns,
        problems=[shapes.OutputProblem(**problem) for problem in decoded(row.output_problems) or ()],
        cleanup_confirmed=_released(row, held),
        user_code_started=row.user_code_started,
        gpu=_gpu(held[-1]) if held else None,
        waiting=waiting,
        attempts=[_attempt(attempt) for attempt in attempts],
        created_at=iso(row.created_at),
        updated_at=iso(row.updated_at),
        started_at=iso_or_none(row.started_at),
        finished_at=iso_or_none(row.finished_at),
        error=error,
    )


def _released(row: Trial, held: Sequence[Allocation]) -> bool:
    """Whether the release of all it ever held was observed, and it can hold nothing any more (E68)."""
    return row.state in TERMINAL and all(each.state == AllocationState.RELEASED for each in held)


def runner_ref(row: Trial) -> shapes.RunnerRef | None:
    """The Runner's snapshot; a training task has none."""
    if row.kind != RUNNER:
        return None
    return shapes.RunnerRef(
        name=row.runner,
        revision=row.revision,
        selector=row.selector,
        source_ref=row.source_ref,
        snapshot_sha256=row.snapshot_sha256,
    )


def image(row: Trial) -> shapes.Image | None:
    if row.image_requested is None or row.image_resolved is None or row.image_digest is None:
        return None
    return shapes.Image(requested=row.image_requested, resolved=row.image_resolved, digest=row.image_digest)


def resources(row: Trial) -> shapes.Resources:
    return shapes.Resources(
        gpu_type=row.gpu_type,
        gpus=row.gpus,
        cpus=row.cpus,
        memory_mb=row.memory_mb,
        storage_mb=row.storage_mb,
        shm_mb=row.shm_mb,
    )


def _gpu(held: Allocation) -> shapes.Gpu:
    return shapes.Gpu(
        model=held.gpu_model, indices=list(held.indices), simulated=bool(held.simulated), node=held.node
    )


def _attempt(row: Attempt) -> shapes.Attempt:
    return shapes.Attempt(
        attempt_id=row.id,
        number=row.number,
        engine=row.engine,
        started_at=iso_or_none(row.started_at),
        ended_at=iso_or_none(row.ended_at),
        ended_by=row.ended_by,
        usage=decoded(row.usage),
        enforcement=decoded(row.enforcement),
    )


def snapshot(row: Trial, files: Sequence[Mapping[str, Any]]) -> shapes.TrialSnapshot:
    """The frozen inputs of a Trial (promise P7); ``files`` are those of its Runner's manifest."""
    return shapes.TrialSnapshot(
        trial_id=row.id,
        job_id=row.job_id,
        name=row.name,
        runner=runner_ref(row),
        image=image(row),
        resources=resources(row),
        timeout_seconds=row.timeout_seconds,
        entrypoint=row.entrypoint,
        command=row.command,
        params=json.loads(row.params),
        outputs=row.output_patterns,
        tags=row.tag_map,
        profile=decoded(row.profile),
        profile_sha256=row.profile_sha256,
        resume_from=row.resume_from,
        files=[shapes.TreeFile(**file) for file in files],
    )


def event_view(row: Event) -> shapes.Event:
    status: Any = E_TRIAL_WORDS[State(row.after)] if row.after else None
    return shapes.Event(
        event_id=str(row.id),
        resource_id=row.trial_id or row.job_id,
        status=status,
        at=iso(row.at),
        source=row.actor.partition(":")[0],
        code=row.code,
        message=row.message,
        actor=row.actor,
        trial_id=row.trial_id,
    )


def artifact_view(row: Artifact) -> shapes.Artifact:
    state: Any = row.upload_state
    return shapes.Artifact(
        artifact_id=row.id,
        trial_id=row.trial_id,
        name=row.name,
        size=row.size,
        sha256=row.sha256,
        upload_state=state,
        state=state,
        created_at=iso(row.created_at),
        deleted_at=iso_or_none(row.deleted_at),
        deletion=row.deletion,
    )
