"""Reaching into a training task that runs or is kept for a look: a shell, and Ray's dashboard (C50)."""

from __future__ import annotations

from functools import partial
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.websockets import WebSocket

from trainshed.engines.contract import EngineError
from trainshed.engines.shell import Shell
from trainshed.model.errors import Refusal
from trainshed.server import dashboards
from trainshed.server.documents import Param
from trainshed.server.doors import Door, dashboard_address, find_door, refusal_of_engine, tell
from trainshed.server.endpoints import Call, Operation, Routes, refuse_other_origins
from trainshed.server.pages import bounded_number
from trainshed.server.routes.tasks import RUN, UNKNOWN, read
from trainshed.server.services import Services
from trainshed.server.terminals import MOST_ROWS, Terminal

routes = Routes("tasks")

_BAD = ("INVALID_REQUEST",)
_MOST_MEMBERS = 10_000
_ROWS, _COLUMNS = 24, 80
ROLE = Param(
    "role",
    {"type": "string", "enum": ["master", "worker", "head", "submitter"]},
    "Whose; the master's or the head's by default.",
    refuses=_BAD,
)
INDEX = Param(
    "index",
    {"type": "integer", "minimum": 0, "maximum": _MOST_MEMBERS, "default": 0},
    "Which replica of the role, from 0.",
    refuses=_BAD,
)
ROWS = Param(
    "rows",
    {"type": "integer", "minimum": 1, "maximum": MOST_ROWS, "default": _ROWS},
    "Height of the terminal in lines.",
    refuses=_BAD,
)
COLUMNS = Param(
    "columns",
    {"type": "integer", "minimum": 1, "maximum": MOST_ROWS, "default": _COLUMNS},
    "Width of the terminal in characters.",
    refuses=_BAD,
)
TTY = Param(
    "tty",
    {"type": "integer", "minimum": 0, "maximum": 1, "default": 1},
    "0: the shell reads and prints through pipes, without a prompt, an echo or a size.",
    refuses=_BAD,
)
SHELL = Operation(
    "Open a shell beside the program of a replica",
    any_of=RUN,
    params=(ROLE, INDEX, ROWS, COLUMNS, TTY),
    refuses=(*UNKNOWN, "SHELL_UNAVAILABLE", "ORIGIN_DENIED"),
    answers={101: "The terminal is open."},
    description="A WebSocket. Binary messages are bytes of the terminal; texts are JSON: "
    '`{"resize": {"rows": 24, "columns": 80}}` and `{"eof": true}` from the client, `{"exit_code": 0}` to it '
    "before the end. For the task's owner and admins, while it is Running or Retaining.",
)


@routes.get("/{ref}/shell", SHELL)
def shell_without_upgrade(call: Call, ref: str) -> Response:
    """What a request that asks for no WebSocket is told."""
    find_door(call, ref, "SHELL_UNAVAILABLE")
    raise Refusal.of(
        "INVALID_REQUEST",
        "a shell is a WebSocket: send `Upgrade: websocket`",
        path="Upgrade",
        hint="Use `trainshed train shell`.",
    )


@routes.socket("/{ref}/shell", SHELL)
async def open_shell(call: Call, socket: WebSocket, ref: str) -> None:
    """Open the shell, accept the WebSocket, and hand on until one of the two ends."""
    role = _role(call)
    index = bounded_number(call.query, "index", 0, _MOST_MEMBERS, "INVALID_REQUEST")
    rows = bounded_number(call.query, "rows", 1, MOST_ROWS, "INVALID_REQUEST") or _ROWS
    columns = bounded_number(call.query, "columns", 1, MOST_ROWS, "INVALID_REQUEST") or _COLUMNS
    terminal_wanted = bounded_number(call.query, "tty", 0, 1, "INVALID_REQUEST") != 0
    door = await run_in_threadpool(find_door, call, ref, "SHELL_UNAVAILABLE", role, index)
    limits = call.services.door_limits
    with call.services.doors.use("shells", door.task, limits.shells_of_task, limits.shells):
        shell = await run_in_threadpool(_open, door, rows, columns, terminal_wanted)
        try:
            who = f"{door.replica.role} {door.index} of Attempt {door.allocation.attempt_id}"
            actor = call.principal.actor
            await run_in_threadpool(tell, call, door, "SHELL_OPENED", f"{actor} opened a shell on {who}.")
            terminal = Terminal(shell, socket, call.recheck, limits.idle_seconds)
            try:
                await socket.accept()
                await terminal.run()
            finally:
                said = f"The shell of {actor} on {who} is closed: {terminal.said or 'the server ended it'}."
                await run_in_threadpool(tell, call, door, "SHELL_CLOSED", said)
        finally:
            shell.close()


def _open(door: Door, rows: int, columns: int, terminal: bool) -> Shell:  # noqa: FBT001 - as it is asked for
    try:
        return door.engine.open_shell(door.unit, rows=rows, columns=columns, terminal=terminal)
    except EngineError as error:
        raise refusal_of_engine(error, "SHELL_UNAVAILABLE") from error


def _role(call: Call) -> str | None:
    role = call.query.get("role")
    if role is not None and role not in ROLE.schema["enum"]:
        raise Refusal.of("INVALID_REQUEST", f"`role` is one of {', '.join(ROLE.schema['enum'])}", path="role")
    return role


def _largest(services: Services) -> int:
    return services.bodies.blob


def _dashboard(verb: str) -> Operation:
    return Operation(
        f"{verb} the dashboard of a ray task's head",
        any_of=RUN,
        refuses=(*UNKNOWN, "DASHBOARD_UNAVAILABLE", "ORIGIN_DENIED"),
        takes_bytes=True,
        max_body=_largest,
        content="application/octet-stream",
        answers={200: "What the dashboard answered, with its own status."},
        description="Handed on to the address that was allotted to the head before its program began, and to "
        "no other. Keys and cookies stay here; the answer cannot act as a page of this server. Also a "
        "WebSocket, where the dashboard has one. For the task's owner and admins, while it is Running or "
        "Retaining.",
    )


async def dashboard(call: Call, ref: str, path: str) -> Response:
    """One request to the dashboard of the head (C50)."""
    refuse_other_origins(call.request.headers)
    door, address = await _dashboard_door(call, ref)
    limits = call.services.door_limits
    use = call.services.doors.use("dashboard requests", door.task, limits.requests_of_task, limits.requests)
    return await dashboards.forward(call, address, _target(call, path), use, limits.answer_seconds)


for declare, verb in (
    (routes.get, "Read"),
    (routes.post, "Post to"),
    (routes.put, "Put to"),
    (routes.patch, "Patch"),
    (routes.delete, "Delete at"),
):
    declare("/{ref}/dashboard/{path:path}", _dashboard(verb))(dashboard)


@routes.socket("/{ref}/dashboard/{path:path}", _dashboard("Talk to"))
async def dashboard_socket(call: Call, socket: WebSocket, ref: str, path: str) -> None:
    """A WebSocket of the dashboard's."""
    door, address = await _dashboard_door(call, ref)
    limits = call.services.door_limits
    with call.services.doors.use("dashboard requests", door.task, limits.requests_of_task, limits.requests):
        await dashboards.talk(call, socket, address, _target(call, path), limits.idle_seconds)


async def _dashboard_door(call: Call, ref: str) -> tuple[Door, tuple[str, int]]:
    door, address = await run_in_threadpool(_find_dashboard, call, ref)
    if call.services.doors.is_first(door.allocation.attempt_id, call.principal.actor):
        said = f"{call.principal.actor} opened the dashboard of Attempt {door.allocation.attempt_id}."
        await run_in_threadpool(partial(tell, call, door, "DASHBOARD_OPENED", said))
    return door, address


def _find_dashboard(call: Call, ref: str) -> tuple[Door, tuple[str, int]]:
    with call.services.database.read() as connection:
        task, _ = read(call, connection, ref)
    if task.kind != "ray":
        raise Refusal.of(
            "DASHBOARD_UNAVAILABLE", f"{task.name} is of kind {task.kind}, which has no dashboard"
        )
    door = find_door(call, ref, "DASHBOARD_UNAVAILABLE", "head")
    return door, dashboard_address(door)


def _target(call: Call, path: str) -> str:
    """The path at the dashboard, percent-encoded as it came; no segment leads out of it."""
    del path  # decoded; what is handed on stays as it was written
    given: dict[str, Any] = call.request.scope["path_params"]
    raw = str(given["path"])
    if any(segment in {".", ".."} for segment in raw.split("/")) or "\\" in raw:
        raise Refusal.of("INVALID_REQUEST", "the path may not have segments `.` or `..`", path="path")
    query = call.request.scope["query_string"].decode("latin-1")
    return f"/{raw}" + (f"?{query}" if query else "")
