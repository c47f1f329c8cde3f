"""What happened to a training task and what its replicas wrote: pages and streams (contract C52, C57, c2)."""

from __future__ import annotations

import re
from dataclasses import replace

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from trainshed.control.training.frozen import spec_of
from trainshed.model.errors import Refusal
from trainshed.server.documents import Param
from trainshed.server.endpoints import Call, Operation, Routes
from trainshed.server.log_views import MAX_LIMIT, LogQuery, MemberFilter
from trainshed.server.pages import bounded_number
from trainshed.server.routes.job_events import LAST_EVENT_ID, follow_events
from trainshed.server.routes.jobs import READ
from trainshed.server.routes.logs import CURSOR, LIMIT, SOURCE, TAIL, WAIT, answer_page, answer_stream
from trainshed.server.routes.logs import LAST_EVENT_ID as LAST_RECORD
from trainshed.server.routes.tasks import UNKNOWN, read
from trainshed.server.shapes import tasks as shapes
from trainshed.server.shapes.logs import LogItem, LogPage
from trainshed.server.sse import event_stream
from trainshed.server.task_views import task_event
from trainshed.store import events, jobs, tasks
from trainshed.store.records import Task

routes = Routes("tasks")

ROLES = {"pytorch": ("master", "worker"), "ray": ("submitter", "head", "worker")}
_ALL = "all"
_MOST_MEMBERS = 10_000
_BAD = ("INVALID_LOG_QUERY",)
ROLE = Param(
    "role",
    {"type": "string", "enum": ["master", "worker", "head", "submitter", _ALL]},
    "Only replicas of this role. Left out: of kind ray the submitter, whose log has the program's output; of "
    "kind pytorch all, merged by time.",
    refuses=_BAD,
)
INDEX = Param(
    "index",
    {"type": "integer", "minimum": 0, "maximum": _MOST_MEMBERS},
    "Only this replica of the role, counted from 0.",
    refuses=_BAD,
)
ATTEMPT = Param("attempt", {"type": "integer", "minimum": 1}, "Only this Attempt.", refuses=_BAD)
AFTER = Param(
    "after", {"type": "integer", "minimum": 0}, "Only events past this id.", refuses=("INVALID_CURSOR",)
)
EVENTS = Param(
    "limit",
    {"type": "integer", "minimum": 1, "maximum": 1000, "default": 1000},
    "Events a page.",
    refuses=("INVALID_LIMIT",),
)
_LOG_REFUSES = (*UNKNOWN, "LOG_STORAGE_UNAVAILABLE")
_MOST_EVENTS = 1000
_EVENT_ID = re.compile(r"[0-9]{1,18}")


@routes.get(
    "/{ref}/logs",
    Operation(
        "Read a training task's log",
        answer=LogPage,
        any_of=READ,
        params=(ROLE, INDEX, ATTEMPT, SOURCE, LIMIT, TAIL, CURSOR, WAIT),
        refuses=_LOG_REFUSES,
    ),
)
async def read_logs(call: Call, ref: str) -> Response:
    """Records in order of time, each with its replica, role and Attempt. `source` is `runtime` by default."""
    task = await run_in_threadpool(_task, call, ref)
    return await answer_page(call, task.job_id, _query(call, task, dict(call.query)))


@routes.get(
    "/{ref}/logs/stream",
    Operation(
        "Follow a training task's log",
        answer=LogItem,
        any_of=READ,
        params=(ROLE, INDEX, ATTEMPT, SOURCE, TAIL, CURSOR, LAST_RECORD),
        refuses=_LOG_REFUSES,
        content="text/event-stream",
    ),
)
async def stream_logs(call: Call, ref: str) -> Response:
    """Server-sent events with records as in a page; the last one, of type `end`, when the task has ended."""
    task = await run_in_threadpool(_task, call, ref)
    query = _query(call, task, {**call.query, "limit": str(MAX_LIMIT)})
    return await answer_stream(call, task.job_id, query)


def _task(call: Call, ref: str) -> Task:
    with call.services.database.read() as connection:
        return read(call, connection, ref)[0]


def _query(call: Call, task: Task, given: dict[str, str]) -> LogQuery:
    role, known = given.get("role"), ROLES[task.kind]
    if role is not None and role not in {*known, _ALL}:
        said = f"a task of kind {task.kind} has the roles {', '.join(known)}; `{_ALL}` reads them all"
        raise Refusal.of("INVALID_LOG_QUERY", said, path="role")
    index = bounded_number(given, "index", 0, _MOST_MEMBERS, "INVALID_LOG_QUERY")
    attempt = bounded_number(given, "attempt", 1, 10**8, "INVALID_LOG_QUERY")
    if index is not None and role in {None, _ALL}:
        raise Refusal.of("INVALID_LOG_QUERY", "`index` counts within a `role`: give that too", path="index")
    if index is not None and role is not None and index >= (there := _members(call, task, role)):
        only = "index 0" if there == 1 else f"index 0 to {there - 1}"
        raise Refusal.of(
            "INVALID_LOG_QUERY",
            f"{task.name} has {only} of role {role}, not {index}",
            path="index",
            hint=f"`trainshed train get {task.name}` lists its replicas.",
        )
    if role is None and task.kind == "ray":
        role = "submitter"
    given.setdefault("source", "runtime")
    query = LogQuery.parse(given, call.services.seal, task.job_id)
    return replace(query, trial=None, members=MemberFilter(None if role == _ALL else role, index, attempt))


def _members(call: Call, task: Task, role: str) -> int:
    """The most replicas of a role that the task can have, or has had."""
    spec = spec_of(task)
    most = 1
    if role == "worker":
        most = max(spec.workers, spec.autoscaling.max if spec.autoscaling else 0)
    with call.services.database.read() as connection:
        attempts = jobs.attempts_of(connection, [task.trial_id])[task.trial_id]
        found = tasks.replicas_of(connection, [each.id for each in attempts])
    return max(most, *(sum(row.role == role for row in rows) for rows in found.values()), 0)


@routes.get(
    "/{ref}/events",
    Operation(
        "Read a training task's events, oldest first",
        answer=shapes.TaskEvents,
        any_of=READ,
        params=(AFTER, EVENTS),
        refuses=UNKNOWN,
    ),
)
def list_events(call: Call, ref: str) -> shapes.TaskEvents:
    """What happened, with numbers, and to which replica; kept with the task for good (c2)."""
    limit = bounded_number(call.query, "limit", 1, _MOST_EVENTS, "INVALID_LIMIT") or _MOST_EVENTS
    after = _after(call)
    with call.services.database.read() as connection:
        task, _ = read(call, connection, ref)
        rows = events.of_job(connection, task.job_id, after=after, limit=limit + 1)
    kept = rows[:limit]
    more = kept[-1].id if len(rows) > limit else None
    return shapes.TaskEvents(items=[task_event(row) for row in kept], next_after=more)


def _after(call: Call) -> int:
    text = call.query.get("after", "0")
    if not _EVENT_ID.fullmatch(text):
        raise Refusal.of("INVALID_CURSOR", "`after` is the id of an event", path="after")
    return int(text)


@routes.get(
    "/{ref}/events/stream",
    Operation(
        "Follow a training task's events",
        answer=shapes.TaskEvent,
        any_of=READ,
        params=(AFTER, LAST_EVENT_ID),
        refuses=UNKNOWN,
        content="text/event-stream",
    ),
)
def stream_events(call: Call, ref: str) -> Response:
    """Server-sent events, oldest first, each with an event as JSON; the last one is of type `end`."""
    task = _task(call, ref)
    last = call.request.headers.get("last-event-id", "")
    after = int(last) if _EVENT_ID.fullmatch(last) else _after(call)
    end = {"job_id": task.job_id, "name": task.name}
    return event_stream(follow_events(call, task.job_id, after, task_event, end), call.request_id)
