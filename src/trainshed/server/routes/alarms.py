"""What a training task measured, and whom it told what (contract C37, C40)."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence

from trainshed.engines.contract import Sample
from trainshed.engines.local import samples_in
from trainshed.model.errors import Refusal
from trainshed.server.documents import Param
from trainshed.server.endpoints import Call, Operation, Routes
from trainshed.server.pages import bounded_number
from trainshed.server.routes.jobs import READ
from trainshed.server.routes.tasks import read
from trainshed.server.shapes import tasks as shapes
from trainshed.server.shapes.common import Page, iso, iso_or_none
from trainshed.store import deliveries, jobs, tasks
from trainshed.store.deliveries import Delivery
from trainshed.store.records import Replica, Task

routes = Routes("alarms")
job_routes = Routes("tasks")

MAX_SAMPLES = 5000
_MOST_MEMBERS = 10_000
_TIME = re.compile(r"[0-9]{1,12}(\.[0-9]{1,9})?")
TASK = Param("task", {"type": "string"}, "The task, by any of its names.", refuses=("JOB_NOT_FOUND",))
REPLICA = Param(
    "replica",
    {"type": "integer", "minimum": 0, "maximum": _MOST_MEMBERS},
    "Only this rank.",
    refuses=("INVALID_LIMIT",),
)
ATTEMPT = Param(
    "attempt",
    {"type": "integer", "minimum": 1},
    "Of this Attempt; left out, of the newest one.",
    refuses=("INVALID_LIMIT",),
)
AFTER = Param(
    "after",
    {"type": "number", "minimum": 0},
    "Later than this, in Unix seconds.",
    refuses=("INVALID_CURSOR",),
)
SERIES = Param("series", {"type": "string"}, "Only series whose name begins so.")


@routes.get(
    "",
    Operation(
        "List the alarms of a training task",
        answer=Page[shapes.AlarmDelivery],
        any_of=READ,
        params=(TASK,),
        refuses=("JOB_NOT_FOUND",),
    ),
)
def list_alarms(call: Call) -> Page[shapes.AlarmDelivery]:
    """Oldest first: what was told to which channel, how often that was tried, and what went wrong."""
    with call.services.database.read() as connection:
        task, _ = read(call, connection, call.query.get("task", ""))
        rows = deliveries.of_task(connection, task.trial_id)
    return Page(items=[_delivery(task, row) for row in rows])


def _delivery(task: Task, row: Delivery) -> shapes.AlarmDelivery:
    waits = row.delivered_at is None and math.isfinite(row.next_at)
    return shapes.AlarmDelivery(
        id=row.id,
        task=task.name,
        subject=row.subject,
        channel=row.channel,
        title=row.title,
        body=row.body,
        created_at=iso(row.created_at),
        delivered_at=iso_or_none(row.delivered_at),
        tries=row.tries,
        next_at=iso(row.next_at) if waits else None,
        last_error=row.last_error,
    )


@job_routes.get(
    "/{job_id}/resource-metrics",
    Operation(
        "Read what a training task's replicas use",
        answer=shapes.MetricSamples,
        any_of=READ,
        params=(REPLICA, ATTEMPT, AFTER, SERIES),
        refuses=("JOB_NOT_FOUND",),
    ),
)
def read_samples(call: Call, job_id: str) -> shapes.MetricSamples:
    """CPU, memory, disk and GPUs of each replica, and what its endpoints say (C37), oldest first."""
    wanted = bounded_number(call.query, "replica", 0, _MOST_MEMBERS, "INVALID_LIMIT")
    number = bounded_number(call.query, "attempt", 1, 10**8, "INVALID_LIMIT")
    text, series = call.query.get("after", "0"), call.query.get("series", "")
    if not _TIME.fullmatch(text):
        raise Refusal.of("INVALID_CURSOR", "`after` is a time in Unix seconds", path="after")
    with call.services.database.read() as connection:
        task, trial = read(call, connection, job_id)
        attempts = jobs.attempts_of(connection, [trial.id])[trial.id]
        chosen = [each for each in attempts if number in {None, each.number}][-1:]
        members = tasks.replicas_of(connection, [each.id for each in chosen])
    _refuse_what_is_not_there(task, number, wanted, members)
    found: list[tuple[float, int, int, Sample]] = []
    for attempt in chosen:
        for member in members[attempt.id]:
            if wanted in {None, member.rank}:
                files = call.services.log_files(member.unit_id or attempt.id)
                found += [
                    (each.at, member.rank, attempt.number, each) for each in samples_in(files, float(text))
                ]
    found.sort(key=lambda row: row[:2])
    kept = found[:MAX_SAMPLES]
    return shapes.MetricSamples(
        items=[
            shapes.MetricSample(
                at=iso(at), replica=rank, attempt=of, endpoint=each.endpoint, values=_values(each, series)
            )
            for at, rank, of, each in kept
        ],
        next_after=kept[-1][0] if kept else None,
    )


def _refuse_what_is_not_there(
    task: Task, number: int | None, rank: int | None, members: Mapping[str, Sequence[Replica]]
) -> None:
    hint = f"`trainshed train get {task.name}` lists its Attempts and replicas."
    if number is not None and not members:
        said = f"{task.name} has had no Attempt {number}"
        raise Refusal.of("INVALID_LIMIT", said, path="attempt", hint=hint)
    ranks = {row.rank for rows in members.values() for row in rows} or set(
        range(int(json.loads(task.totals)["replicas"]))
    )
    if rank is not None and rank not in ranks:
        said = f"{task.name} has the ranks {min(ranks)} to {max(ranks)}, not {rank}"
        raise Refusal.of("INVALID_LIMIT", said, path="replica", hint=hint)


def _values(sample: Sample, series: str) -> dict[str, float]:
    return {
        name: value
        for name, value in sample.values.items()
        if name.startswith(series) and math.isfinite(value)
    }
