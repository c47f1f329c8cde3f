"""Jobs: submit, read, list, stop (contract E b1-b3)."""

from __future__ import annotations

from typing import Any

from trainshed.control.request_ids import taken
from trainshed.control.stopping import accept_stop
from trainshed.model.access import Permission
from trainshed.model.errors import Refusal
from trainshed.model.scripts.reading import is_script
from trainshed.model.states import E_JOB_STATUSES
from trainshed.model.training.reading import is_training
from trainshed.server.documents import CURSOR, LIMIT, Param
from trainshed.server.endpoints import Call, Operation, Reply, Routes
from trainshed.server.pages import cut_page, open_cursor, page_limit
from trainshed.server.routes.scripts import SOURCE, source_of, submit_script
from trainshed.server.shapes import jobs as shapes
from trainshed.server.shapes import requests
from trainshed.server.shapes import scripts as script_shapes
from trainshed.server.shapes import tasks as task_shapes
from trainshed.server.shapes.common import Page
from trainshed.server.task_views import TaskViews
from trainshed.server.views import Views, job_result
from trainshed.store import checkpoints
from trainshed.store import jobs as store
from trainshed.store.database import Connection
from trainshed.store.tasks import find

routes = Routes("jobs")

READ = (Permission.TRAINING_READ, Permission.TRAINING_RUN)
KNOWN_TYPES = ("agent", "sandbox", "train", "inference")
TYPE = Param(
    "type",
    {"type": "string", "enum": list(KNOWN_TYPES)},
    "This server holds Jobs of type `train` only.",
    refuses=("INVALID_JOB_TYPE",),
)
STATUS = Param(
    "status",
    {"type": "string", "enum": list(E_JOB_STATUSES)},
    "Only Jobs with this status.",
    refuses=("INVALID_JOB_STATUS",),
)
SUBMIT_REFUSALS = (
    "INVALID_JOB_TYPE",
    "INVALID_REQUEST_ID",
    "JOB_REQUEST_CONFLICT",
    "INVALID_TRIALS",
    "INVALID_TRAIN_JOB_SPEC",
    "UNSUPPORTED_TRAINING_BACKEND_SELECTION",
    "INVALID_RUNNER",
    "RUNNER_NOT_FOUND",
    "INVALID_RUNNER_ENVIRONMENT",
    "RUNNER_HASH_MISMATCH",
    "RUNNER_VERSION_AMBIGUOUS",
    "INVALID_COMMAND",
    "UNSUPPORTED_COMMAND",
    "INVALID_TAG",
    "INVALID_EXECUTION_CONFIG",
    "UNSUPPORTED_HARDWARE",
    "RUNNER_GPU_UNAVAILABLE",
    "TRAIN_JOB_CAPACITY_EXCEEDED",
    "INSUFFICIENT_BALANCE",
    "EXECUTOR_UNAVAILABLE",
    "INVALID_PROFILE",
    "PROFILE_RUNNER_UNSUPPORTED",
    "PROFILE_HASH_MISMATCH",
    "PROFILE_ARCHIVED",
    "ACCESS_DENIED",
    "CONTENT_DAMAGED",
    "STORAGE_FULL",
    "STORAGE_UNAVAILABLE",
    "INVALID_SPEC",
    "DUPLICATE_SUSPECTED",
    "CONTENT_NOT_FOUND",
    "PROVIDER_NOT_FOUND",
    "INVALID_CONTENT",
    "CONTENT_HASH_MISMATCH",
    "BLOB_NOT_FOUND",
    "BLOB_BEING_DELETED",
)


def views(call: Call, connection: Connection) -> Views:
    return Views(connection, call.services.queue, call.services.outlook, call.now, call.viewer)


@routes.post(
    "",
    Operation(
        "Submit a Job of 1 to 16 Trials",
        answer=shapes.Job | task_shapes.SubmittedTask | script_shapes.SubmittedScript,
        any_of=(Permission.TRAINING_RUN,),
        params=(SOURCE,),
        takes=requests.SubmitTrials | requests.SubmitOne | requests.SubmitTask | requests.SubmitScript,
        max_body=lambda services: services.bodies.submission,
        answers={201: "Accepted; durable before this answer.", 200: "This request id named the Job before."},
        refuses=SUBMIT_REFUSALS,
    ),
)
def submit_job(call: Call) -> Reply:
    """Everything that will run is frozen before the answer.

    A repeated request id with the same input answers the same Job; with other input it is a conflict that
    lists the fields that differ. A `spec` of kind `pytorch` or `ray` makes a training task: one gang, with
    a name of its own, and an answer that tells its place in the queue. A `spec` of kind `script` makes a
    Job of a packed project (contract G); without a request id, the same spec names the same Job while that
    has not ended.
    """
    document = call.json()
    if is_script(document):
        return submit_script(call, document)
    if is_training(document):
        return _submit_task(call, document)
    job_id, created = call.services.accept(call.principal, document, source=source_of(call))
    if created:
        call.services.wake()
    with call.services.database.read() as connection:
        job = store.get_job(connection, call.project, job_id, viewer=call.viewer)
        return Reply(views(call, connection).job(job), 201 if created else 200)


def _submit_task(call: Call, document: object) -> Reply:
    """C55: answered after the commit, and found from then on."""
    accepted = call.services.tasks.accept(call.principal, document, source=source_of(call))
    if accepted.created:
        call.services.wake()
    with call.services.database.read() as connection:
        found = find(connection, call.viewer, accepted.job_id)
        if found is None:
            raise taken()  # deleted since, or made private
        task, trial = found
        job = views(call, connection).job(store.get_job(connection, call.project, task.job_id))
        place, _ = TaskViews(connection, call.services.outlook, call.now, call.viewer).standing(task, trial)
    kind: Any = task.kind
    answer = task_shapes.SubmittedTask(
        **{name: getattr(job, name) for name in shapes.Job.model_fields},
        trial_id=task.trial_id,
        task_uuid=task.task_uuid,
        kind=kind,
        position=None if place is None else place.in_queue,
        warnings=[task_shapes.Warned(**each) for each in accepted.warnings],
    )
    return Reply(answer, 201 if accepted.created else 200)


@routes.get(
    "",
    Operation(
        "List Jobs, newest first",
        answer=Page[shapes.Job],
        any_of=READ,
        params=(TYPE, STATUS, CURSOR, LIMIT),
    ),
)
def list_jobs(call: Call) -> Page[shapes.Job]:
    """The project's Jobs with their Trials."""
    kind, status = call.query.get("type"), call.query.get("status")
    if kind is not None and kind not in KNOWN_TYPES:
        raise Refusal.of("INVALID_JOB_TYPE", f"`type` is one of {', '.join(KNOWN_TYPES)}", path="type")
    if status is not None and status not in E_JOB_STATUSES:
        raise Refusal.of(
            "INVALID_JOB_STATUS", f"`status` is one of {', '.join(E_JOB_STATUSES)}", path="status"
        )
    limit = page_limit(call.query)
    before = open_cursor(call.services.seal, "jobs", call.query)
    if kind not in {None, "train"}:
        return Page(items=[])
    with call.services.database.read() as connection:
        rows = store.list_jobs(
            connection, call.project, status=status, before=before, limit=limit + 1, viewer=call.viewer
        )
        show = views(call, connection).jobs
        return cut_page(call.services.seal, "jobs", rows, limit, key=lambda job: job.id, show=show)


@routes.get("/training-models", Operation("List base models", answer=shapes.TrainingModels, any_of=READ))
def list_training_models(call: Call) -> shapes.TrainingModels:
    """Runner training has no base models: always empty."""
    return shapes.TrainingModels(items=[])


@routes.get("/{job_id}", Operation("Read a Job", answer=shapes.Job, any_of=READ, refuses=("JOB_NOT_FOUND",)))
def read_job(call: Call, job_id: str) -> shapes.Job:
    """A Job with its Trials as they are now."""
    with call.services.database.read() as connection:
        return views(call, connection).job(
            store.get_job(connection, call.project, job_id, viewer=call.viewer)
        )


@routes.get(
    "/{job_id}/result",
    Operation("Read a Job's result", answer=shapes.JobResult, any_of=READ, refuses=("JOB_NOT_FOUND",)),
)
def read_job_result(call: Call, job_id: str) -> shapes.JobResult:
    """The Job and its Checkpoints; while it runs, the current state."""
    with call.services.database.read() as connection:
        job = views(call, connection).job(store.get_job(connection, call.project, job_id, viewer=call.viewer))
        return job_result(job, checkpoints.of_job(connection, job_id))


@routes.post(
    "/{job_id}/stop",
    Operation(
        "Stop a Job",
        answer=shapes.Job,
        any_of=(Permission.TRAINING_STOP,),
        refuses=("JOB_NOT_FOUND",),
    ),
)
def stop_job(call: Call, job_id: str) -> shapes.Job:
    """Cancels all its queued and running Trials; repeatable; a finished Job is answered unchanged (E76)."""
    return stop(call, job_id, None)


def stop(call: Call, job_id: str, trial_id: str | None) -> shapes.Job:
    """Accept a stop of a Job or of one of its Trials; answers the Job."""
    at, actor = call.now, call.principal.actor
    with call.services.database.read() as connection:
        store.get_job(connection, call.project, job_id, viewer=call.viewer)
        is_task = find(connection, call.viewer, job_id) is not None
    if is_task:
        call.services.task_operations.stop(call.viewer, job_id, at=at, actor=actor)
        job = None
    else:
        job = accept_stop(call.services.database, job_id, trial_id=trial_id, at=at, actor=actor)
    call.services.wake()
    with call.services.database.read() as connection:
        return views(call, connection).job(job or store.get_job(connection, call.project, job_id))


def _unsupported(action: str) -> None:
    @routes.post(
        f"/{{job_id}}/{action}",
        Operation(
            f"{action.capitalize()} a Job",
            answer=shapes.Job,
            any_of=(Permission.TRAINING_STOP,),
            refuses=("JOB_NOT_FOUND", "JOB_ACTION_UNSUPPORTED"),
            description="Not for Train Jobs.",
        ),
    )
    def act(call: Call, job_id: str) -> shapes.Job:
        with call.services.database.read() as connection:
            store.get_job(connection, call.project, job_id, viewer=call.viewer)
        raise Refusal.of("JOB_ACTION_UNSUPPORTED", f"a train Job cannot be told to {action}")


for _action in ("pause", "resume", "wake"):
    _unsupported(_action)
