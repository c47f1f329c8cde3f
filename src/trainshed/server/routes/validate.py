"""Judging a training task without creating it (contract C16)."""

from __future__ import annotations

from typing import Any

from trainshed.control.training.accept import Judged
from trainshed.control.training.frozen import choices_of
from trainshed.model.errors import Refusal
from trainshed.model.scripts.reading import is_script
from trainshed.model.training.reading import is_training
from trainshed.policy.gangs.snapshot import GangClass, Waiting
from trainshed.server.endpoints import Call, Operation, Routes
from trainshed.server.outlook import Outlook
from trainshed.server.routes.jobs import SUBMIT_REFUSALS
from trainshed.server.routes.tasks import RUN
from trainshed.server.shapes import requests
from trainshed.server.shapes import tasks as shapes
from trainshed.server.task_views import TaskViews, place_among, reason_words, totals_view
from trainshed.store import tasks

routes = Routes("tasks")

_NEW = "~"
"""Sorts behind every id: what is not there yet is the youngest."""


@routes.post(
    "/validate",
    Operation(
        "Judge a training task without creating it",
        answer=shapes.ValidatedTask,
        any_of=RUN,
        takes=requests.ValidateTask,
        max_body=lambda services: services.bodies.submission,
        answers={200: "It could be created now."},
        refuses=SUBMIT_REFUSALS,
    ),
)
def validate(call: Call) -> shapes.ValidatedTask:
    """Its effective spec, totals, quotas with what is used, and what the next pass would do with it.

    With `smoke` the same task with few workers and a time limit is judged (C16); its effective spec can be
    submitted. Every fault is answered at once, as creation would.
    """
    document = call.json()
    if not is_training(document) and _is_of_another_kind(document):
        said = "this is no training task: `spec.kind` is `pytorch` or `ray`"
        hint = (
            "`POST /v1/scripts/route` says where a packed project would run." if is_script(document) else ""
        )
        raise Refusal.of("INVALID_SPEC", said, path="spec.kind", hint=hint)
    judged = call.services.tasks.judge(call.principal, document, smoke=True)
    effective, spec = judged.effective, judged.effective.spec
    waiting = Waiting(_NEW, class_of(judged), call.now)
    with call.services.database.read() as connection:
        outlook = call.services.outlook.read(connection, call.now)
        rows = tasks.standing(connection, effective.project, call.now, _NEW)
        views = TaskViews(connection, call.services.outlook, call.now, call.viewer)
        found = views.told(outlook.what_if(spec.cluster or "", waiting))
        when = views.estimate(found)
    place = place_among(rows, spec.pool or "", str(spec.resource_type), effective.priority_value)
    sums = totals_view(effective.totals[0].as_dict())
    assert sums is not None  # noqa: S101 - the totals of a task that was judged hold something
    return shapes.ValidatedTask(
        effective_spec=effective.document(),
        totals=sums,
        quota=_quota(judged, outlook),
        would_start=found.starts,
        reason=None if found.starts else reason_words(found),
        position=place.in_queue,
        position_in_project=place.in_project,
        ahead=place.ahead_of,
        estimated_start=when,
        warnings=[shapes.Warned(**each.as_dict()) for each in effective.warnings],
    )


def _is_of_another_kind(document: Any) -> bool:
    """Whether it is no task with a mistake in its kind, but a packed project or a Runner's request."""
    spec = document.get("spec") if isinstance(document, dict) else None
    return (
        is_script(document)
        or (isinstance(document, dict) and "trials" in document)
        or (isinstance(spec, dict) and "runner" in spec)
    )


def class_of(judged: Judged) -> GangClass:
    """In what class the task would wait."""
    spec = judged.effective.spec
    return GangClass(
        project=judged.effective.project,
        pool=spec.pool or "",
        resource_type=spec.resource_type,
        priority=judged.effective.priority_value,
        choices=choices_of(spec, judged.catalog),
        guarantee=bool(spec.guarantee),
        idle_supplement=spec.idle_supplement,
        max_run_seconds=spec.max_run_seconds,
        spec_patience_seconds=spec.spec_patience_seconds,
    )


def _quota(judged: Judged, outlook: Outlook) -> list[shapes.QuotaLine]:
    """C23: what it asks of each quota, and what that has left now; of others' usage only sums."""
    ledger, spec = outlook.ledger(), judged.effective.spec
    found = []
    for each in judged.effective.quota:
        line = (judged.effective.project, each.resource_type, each.pool, each.spec)
        free = None if each.limit is None else max(0, ledger.left(line, guarantee=bool(spec.guarantee)))
        word: Any = each.resource_type.value
        found.append(
            shapes.QuotaLine(
                spec=each.spec,
                resource_type=word,
                requested=each.requested,
                limit=each.limit,
                used=outlook.used(line),
                free=free,
            )
        )
    return found
