"""Trials: read, list, stop (contract E b4)."""

from __future__ import annotations

from trainshed.control.scripts.references import job_id_of
from trainshed.control.snapshots import manifest_files
from trainshed.model.access import Permission
from trainshed.model.errors import Refusal
from trainshed.model.states import E_TRIAL_STATUSES
from trainshed.server.documents import CURSOR, LIMIT, Param
from trainshed.server.endpoints import Call, Operation, Routes
from trainshed.server.pages import cut_page, open_cursor, page_limit
from trainshed.server.routes.jobs import KNOWN_TYPES, READ, TYPE, stop, views
from trainshed.server.shapes import jobs as shapes
from trainshed.server.shapes.common import Page
from trainshed.server.views import snapshot
from trainshed.store import jobs as store
from trainshed.store import runners

routes = Routes("trials")

_NOT_FOUND = ("TRIAL_NOT_FOUND",)
JOB = Param(
    "job_id", {"type": "string"}, "Only Trials of this Job.", refuses=("JOB_NOT_FOUND", "AMBIGUOUS_JOB_REF")
)
STATUS = Param(
    "status",
    {"type": "string", "enum": list(E_TRIAL_STATUSES)},
    "Only Trials with this status.",
    refuses=("INVALID_TRIAL_STATUS",),
)


@routes.get(
    "",
    Operation(
        "List Trials, newest first",
        answer=Page[shapes.Trial],
        any_of=READ,
        params=(TYPE, JOB, STATUS, CURSOR, LIMIT),
        refuses=("JOB_NOT_FOUND",),
    ),
)
def list_trials(call: Call) -> Page[shapes.Trial]:
    """The project's Trials, or those of one Job."""
    kind, job_id, status = (call.query.get(name) for name in ("type", "job_id", "status"))
    if kind is not None and kind not in KNOWN_TYPES:
        raise Refusal.of("INVALID_JOB_TYPE", f"`type` is one of {', '.join(KNOWN_TYPES)}", path="type")
    if status is not None and status not in E_TRIAL_STATUSES:
        raise Refusal.of(
            "INVALID_TRIAL_STATUS", f"`status` is one of {', '.join(E_TRIAL_STATUSES)}", path="status"
        )
    limit = page_limit(call.query)
    before = open_cursor(call.services.seal, "trials", call.query)
    with call.services.database.read() as connection:
        if job_id is not None:
            job_id = job_id_of(connection, call.viewer, job_id)
            store.get_job(connection, call.project, job_id, viewer=call.viewer)
        if kind not in {None, "train"}:
            return Page(items=[])
        rows = store.list_trials(
            connection,
            call.project,
            job_id=job_id,
            status=status,
            before=before,
            limit=limit + 1,
            viewer=call.viewer,
        )
        show = views(call, connection).trials
        return cut_page(call.services.seal, "trials", rows, limit, key=lambda trial: trial.id, show=show)


def read_trial(call: Call, trial_id: str) -> shapes.Trial:
    """A Trial as it is now."""
    with call.services.database.read() as connection:
        return views(call, connection).trial(
            store.get_trial(connection, call.project, trial_id, viewer=call.viewer)
        )


for _path, _summary in (
    ("/{trial_id}", "Read a Trial"),
    ("/{trial_id}/detail", "Read a Trial's details"),
    ("/{trial_id}/training", "Read a Trial's training"),
    ("/{trial_id}/result", "Read a Trial's result"),
):
    routes.get(_path, Operation(_summary, answer=shapes.Trial, any_of=READ, refuses=_NOT_FOUND))(read_trial)


@routes.get(
    "/{trial_id}/snapshot",
    Operation("Read a Trial's frozen inputs", answer=shapes.TrialSnapshot, any_of=READ, refuses=_NOT_FOUND),
)
def read_snapshot(call: Call, trial_id: str) -> shapes.TrialSnapshot:
    """Exactly what runs: Runner files with digests, resources, command, parameters (promise P7)."""
    with call.services.database.read() as connection:
        trial = store.get_trial(connection, call.project, trial_id, viewer=call.viewer)
        revision = runners.find_revision(connection, trial.runner, trial.revision)
    files = manifest_files(revision.manifest) if revision else []
    return snapshot(
        trial,
        [{"path": file.path, "mode": file.mode, "size": file.size, "sha256": file.sha256} for file in files],
    )


@routes.get(
    "/{trial_id}/metrics",
    Operation(
        "List a Trial's declared metrics",
        answer=Page[shapes.Metric],
        any_of=READ,
        params=(CURSOR, LIMIT),
        refuses=_NOT_FOUND,
    ),
)
def list_metrics(call: Call, trial_id: str) -> Page[shapes.Metric]:
    """Runner programs declare no metrics, and program text never becomes one (E72): always empty."""
    _check_page(call, trial_id)
    return Page(items=[])


@routes.post(
    "/{trial_id}/stop",
    Operation("Stop a Trial", answer=shapes.Trial, any_of=(Permission.TRAINING_STOP,), refuses=_NOT_FOUND),
)
def stop_trial(call: Call, trial_id: str) -> shapes.Trial:
    """Stops this Trial and none of its siblings; repeatable (A14)."""
    with call.services.database.read() as connection:
        trial = store.get_trial(connection, call.project, trial_id, viewer=call.viewer)
    job = stop(call, trial.job_id, trial_id)
    return next(view for view in job.training.trials if view.trial_id == trial_id)


def _check_page(call: Call, trial_id: str) -> None:
    page_limit(call.query)
    open_cursor(call.services.seal, "nothing", call.query)
    with call.services.database.read() as connection:
        store.get_trial(connection, call.project, trial_id, viewer=call.viewer)
