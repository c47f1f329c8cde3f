"""Training tasks: list, read, change, stop, delete, resubmit, and why they wait (contract C)."""

from __future__ import annotations

from collections.abc import Collection

from trainshed.control.training.operations import MAX_SHARES, Change, require
from trainshed.model.access import Permission
from trainshed.model.states import State
from trainshed.model.training.words import Shown, states_shown_as
from trainshed.server.bodies import Body
from trainshed.server.documents import CURSOR, LIMIT, Param
from trainshed.server.endpoints import Call, Operation, Reply, Routes
from trainshed.server.pages import cut_page, open_cursor, page_limit
from trainshed.server.routes.jobs import READ
from trainshed.server.routes.scripts import source_of
from trainshed.server.services import Services
from trainshed.server.shapes import requests
from trainshed.server.shapes import tasks as shapes
from trainshed.server.shapes.common import Page
from trainshed.server.task_views import TaskViews, shown
from trainshed.store import access
from trainshed.store import tasks as store
from trainshed.store.database import Connection
from trainshed.store.records import Task, Trial
from trainshed.store.tasks import TaskFilter

routes = Routes("tasks")

RUN, STOP = (Permission.TRAINING_RUN,), (Permission.TRAINING_STOP,)
UNKNOWN = ("JOB_NOT_FOUND",)
_KINDS = ("pytorch", "ray")
_MANY_LABELS = 16
MAX_NAME = 128
"""Characters of a person's name."""
_BAD = ("INVALID_SPEC",)
KIND = Param("kind", {"type": "string", "enum": list(_KINDS)}, "Only tasks of this kind.", refuses=_BAD)
STATE = Param(
    "state",
    {"type": "string", "enum": [str(word) for word in Shown]},
    "Only tasks in this state: one of the page's words.",
    refuses=_BAD,
)
LABEL = Param(
    "label",
    {"type": "array", "items": {"type": "string"}, "maxItems": _MANY_LABELS},
    "`KEY=VALUE`, or `KEY` for any value; may be given several times, and all must hold (C6).",
    refuses=_BAD,
)
TEXT = Param(
    "q", {"type": "string"}, "A part of the name, or a whole task_uuid or Job id (C3).", refuses=_BAD
)
OWNER = Param(
    "owner", {"type": "string"}, "Only tasks of this person; `bob` and `human:bob` find both.", refuses=_BAD
)


def small(services: Services) -> int:
    """The largest body of these operations, in bytes."""
    return services.bodies.other


def task_views(call: Call, connection: Connection) -> TaskViews:
    return TaskViews(connection, call.services.outlook, call.now, call.viewer)


def read(call: Call, connection: Connection, ref: str) -> tuple[Task, Trial]:
    """The visible task that a reference names; raises `Refusal` ``JOB_NOT_FOUND``."""
    return require(connection, call.viewer, ref)


@routes.get(
    "",
    Operation(
        "List training tasks, newest first",
        answer=Page[shapes.TaskSummary],
        any_of=READ,
        params=(KIND, STATE, LABEL, TEXT, OWNER, CURSOR, LIMIT),
    ),
)
def list_tasks(call: Call) -> Page[shapes.TaskSummary]:
    """Those of the project that the caller may see: public, their own, shared with them; admins see all."""
    narrowed, word = _filter(call)
    limit = page_limit(call.query)
    before = open_cursor(call.services.seal, "tasks", call.query)
    with call.services.database.read() as connection:
        rows = _matching(call, connection, narrowed, word, before, limit + 1)
        return cut_page(
            call.services.seal,
            "tasks",
            rows,
            limit,
            key=lambda pair: pair[0].job_id,
            show=task_views(call, connection).summaries,
        )


def _matching(
    call: Call, connection: Connection, narrowed: TaskFilter, word: str | None, before: str | None, limit: int
) -> list[tuple[Task, Trial]]:
    """``limit`` tasks of a word: several states share one, and a state may be shown with several."""
    found: list[tuple[Task, Trial]] = []
    views = task_views(call, connection)
    while True:
        page = store.list_tasks(connection, call.viewer, narrowed, before=before, limit=limit)
        if word is None:
            return page
        held = views.held([trial for _, trial in page])
        found += [
            (task, trial)
            for task, trial in page
            if shown(task, trial, held.get(trial.id, ()), call.now).word == word
        ]
        if len(found) >= limit or len(page) < limit:
            return found[:limit]
        before = page[-1][0].job_id


def _filter(call: Call) -> tuple[TaskFilter, str | None]:
    body = Body({key: value for key, value in call.query.items() if key in {"kind", "state", "q", "owner"}})
    kind = body.word("kind", _KINDS)
    word = body.word("state", [str(each) for each in Shown])
    text, owner = body.text("q"), body.text("owner")
    labels: dict[str, str] = {}
    keys: set[str] = set()
    given = call.request.query_params.getlist("label")
    if len(given) > _MANY_LABELS:
        body.fault("label", f"may be given {_MANY_LABELS} times at most")
    for each in given[:_MANY_LABELS]:
        key, sign, value = each.partition("=")
        if not key or not key.isprintable() or not value.isprintable():
            body.fault("label", "must be KEY=VALUE, or KEY for any value")
        elif not sign:
            keys.add(key)
        elif labels.setdefault(key, value) != value:
            body.fault("label", f"`{key[:64]}` cannot have two values at once")
    body.finish()
    states: frozenset[State] | None = states_shown_as(Shown(word)) if word else None
    return TaskFilter(labels or None, kind, states, text, owner, keys), word


@routes.get("/{ref}", Operation("Read a training task", answer=shapes.Task, any_of=READ, refuses=UNKNOWN))
def read_task(call: Call, ref: str) -> shapes.Task:
    """Its effective spec, its Attempts with every replica, and why it waits if it does."""
    with call.services.database.read() as connection:
        return task_views(call, connection).task(*read(call, connection, ref))


@routes.patch(
    "/{ref}",
    Operation(
        "Change a training task",
        answer=shapes.Task,
        any_of=RUN,
        takes=requests.ChangeTask,
        max_body=small,
        refuses=(*UNKNOWN, "INVALID_SPEC", "RESOURCE_IN_USE"),
    ),
)
def change_task(call: Call, ref: str) -> shapes.Task:
    """Who may see it (C5) and, while it is queued, its priority (C29). For its owner and admins."""
    body = Body(call.object())
    body.known(["public", "priority", "shares"])
    body.boolean("public")
    shares = body.words("shares") if body.values.get("shares") is not None else None
    if shares is not None and len(shares) > MAX_SHARES:
        body.fault("shares", f"must hold {MAX_SHARES} names at most")
    for name in shares or ():
        if not name.strip() or not name.isprintable() or len(name) > MAX_NAME:
            body.fault("shares", f"must hold names of 1 to {MAX_NAME} printable characters")
            break
    priority = _priority(call, body)
    body.finish()
    _refuse_strangers(call, ref, body, shares or ())
    body.finish()
    wanted = Change(body.values.get("public"), shares, priority)
    job_id = call.services.task_operations.change(
        call.viewer, ref, wanted, at=call.now, actor=call.principal.actor
    )
    call.services.wake()
    return _answer(call, job_id)


def _refuse_strangers(call: Call, ref: str, body: Body, shares: Collection[str]) -> None:
    """Names that no member and no key of the project has; one that a task has already may stay."""
    if not shares:
        return
    with call.services.database.read() as connection:
        task, _ = read(call, connection, ref)
        if not call.viewer.everything and task.owner != call.viewer.user:
            return  # refused below, without a word on who is a member
        known = {member.user for member in access.list_members(connection, task.project_id)}
        known |= {
            key.user or f"{key.kind}:{key.label or key.id}"
            for key in access.list_keys(connection, task.project_id)
        }
        known |= {*store.shares_of(connection, task.trial_id), task.owner}
    for name in shares:
        if name not in known:
            body.fault("shares", f"`{name[:80]}` is no member of project {task.project_id}")


def _priority(call: Call, body: Body) -> tuple[str, int] | None:
    """C29: a class or a number within the range of the project."""
    given = body.values.get("priority")
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, (str, int)):
        body.fault("priority", "must be the name of a class or a whole number", code="PRIORITY_NOT_ALLOWED")
        return None
    with call.services.database.read() as connection:
        _, catalog = call.services.catalogs.current(connection)
    value, allowed = catalog.priority_value(given), catalog.priority_range(call.project)
    if value is None:
        names = ", ".join(row.name for row in catalog.priority_classes)
        body.fault("priority", f"there are the classes {names}", code="PRIORITY_NOT_ALLOWED")
        return None
    if not allowed.min <= value <= allowed.max:
        said = f"project {call.project} may use {allowed.min} to {allowed.max}, not {value}"
        body.fault("priority", said, code="PRIORITY_NOT_ALLOWED")
        return None
    return str(given), value


@routes.post(
    "/{ref}/stop",
    Operation("Stop a training task", answer=shapes.Task, any_of=STOP, refuses=UNKNOWN),
)
def stop_task(call: Call, ref: str) -> shapes.Task:
    """Its program is told to save first where the exit notice is on (C36). Repeatable; the logs stay."""
    who = call.principal.actor
    job_id = call.services.task_operations.stop(call.viewer, ref, at=call.now, actor=who)
    call.services.wake()
    return _answer(call, job_id)


@routes.delete(
    "/{ref}",
    Operation(
        "Delete a training task",
        answer=shapes.DeletedTask,
        any_of=STOP,
        answers={202: "Hidden from now on; what runs is being stopped."},
        refuses=UNKNOWN,
    ),
)
def delete_task(call: Call, ref: str) -> Reply:
    """Stops it first and hides it at once; its records are kept for audit (c7)."""
    who = call.principal.actor
    job_id = call.services.task_operations.delete(call.viewer, ref, at=call.now, actor=who)
    call.services.wake()
    return Reply(shapes.DeletedTask(job_id=job_id), 202)


@routes.post(
    "/{ref}/resubmit",
    Operation(
        "Resubmit a training task that has ended",
        answer=shapes.Task,
        any_of=RUN,
        refuses=(*UNKNOWN, "RESOURCE_IN_USE"),
    ),
)
def resubmit_task(call: Call, ref: str) -> shapes.Task:
    """A new Attempt with the same frozen input, at a new place in the queue; it counts for nothing (C33)."""
    who = call.principal.actor
    job_id = call.services.task_operations.resubmit(
        call.viewer, ref, at=call.now, actor=who, source=source_of(call)
    )
    call.services.wake()
    return _answer(call, job_id)


@routes.get(
    "/{ref}/why", Operation("Why a training task waits", answer=shapes.Why, any_of=READ, refuses=UNKNOWN)
)
def why(call: Call, ref: str) -> shapes.Why:
    """What blocks it, with numbers, what would unblock it, and its place (P10)."""
    with call.services.database.read() as connection:
        return task_views(call, connection).why(*read(call, connection, ref))


def _answer(call: Call, job_id: str) -> shapes.Task:
    with call.services.database.read() as connection:
        return task_views(call, connection).task(*read(call, connection, job_id))
