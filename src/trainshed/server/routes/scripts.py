"""Script Jobs: list, read and wait, route without submitting, cancel, logs, outputs (contract G, a)."""

from __future__ import annotations

import re
import time

from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool

from trainshed.control.scripts.callers import Caller, caller_of
from trainshed.control.scripts.operations import require
from trainshed.control.scripts.peers import Peer, peer_of
from trainshed.model.access import Permission
from trainshed.model.errors import FaultList, Refusal
from trainshed.model.scripts.document import to_document
from trainshed.policy import approval
from trainshed.server import script_logs, script_metrics
from trainshed.server.bodies import Body
from trainshed.server.documents import CURSOR, LIMIT, Param
from trainshed.server.endpoints import Call, Operation, Reply, Routes
from trainshed.server.keys import RECHECK_SECONDS as KEY_SECONDS
from trainshed.server.pages import bounded_number, cut_page, open_cursor, page_limit
from trainshed.server.script_views import ScriptViews, Triple, event_view
from trainshed.server.services import Services
from trainshed.server.shapes import requests
from trainshed.server.shapes import scripts as shapes
from trainshed.store import jobs as job_store
from trainshed.store import policies
from trainshed.store import scripts as store
from trainshed.store.database import Connection

routes = Routes("scripts")

READ = (Permission.TRAINING_READ, Permission.TRAINING_RUN)
RUN, STOP = (Permission.TRAINING_RUN,), (Permission.TRAINING_STOP,)
UNKNOWN = ("JOB_NOT_FOUND",)
MAX_WAIT_SECONDS = 50
MAX_EVENTS = 1000
_BAD = ("INVALID_REQUEST",)
SOURCE = Param(
    "Trainshed-Source",
    {"type": "string", "enum": ["agent", "cli", "shell", "api"]},
    "Who calls: `agent` has the rules for agents applied (c.6). Left out: `api`.",
    where="header",
)
_ACTIVE = Param(
    "active",
    {"type": "string", "enum": ["1", "0"]},
    "Only Jobs that have not ended, or only those that have.",
    refuses=_BAD,
)
_FOLDER = Param("project_dir", {"type": "string"}, "Only Jobs of this folder.", refuses=_BAD)
_SINCE = Param(
    "since", {"type": "number"}, "Of Jobs that ended, only those since then (Unix seconds).", refuses=_BAD
)
_WAIT = Param(
    "wait_s",
    {"type": "number", "minimum": 0, "maximum": MAX_WAIT_SECONDS, "default": 0},
    "Wait so long for something to happen to the Job.",
    refuses=_BAD,
)
_VERSION = Param(
    "version",
    {"type": "integer", "minimum": 0},
    "The version that the caller knows: answered at once where the Job has another one.",
    refuses=_BAD,
)
_AFTER = Param(
    "after", {"type": "integer", "minimum": 0}, "Only events past this id.", refuses=_BAD, example=0
)
_MANY = Param(
    "limit",
    {"type": "integer", "minimum": 1, "maximum": MAX_EVENTS, "default": 100},
    "At most so many.",
    refuses=_BAD,
)
_ATTEMPT = Param("attempt", {"type": "integer", "minimum": 1}, "Of this Attempt; else of all.", refuses=_BAD)
_OFFSET = Param(
    "offset",
    {"type": "integer", "minimum": 0},
    "Where to go on in `attempt`: from `next_since`.",
    refuses=_BAD,
)
_TAIL = Param(
    "tail",
    {"type": "integer", "minimum": 1, "maximum": script_logs.MAX_LINES},
    "The last so many lines.",
    refuses=_BAD,
)
_PLACES = Param(
    "places",
    {"type": "string", "enum": ["1"]},
    "Tell with each line the place behind it.",
)
_NO_TIME = 0.001
_LONG_NUMBER = re.compile(r"[0-9]{10,19}")


def small(services: Services) -> int:
    """The largest body of these operations, in bytes."""
    return services.bodies.other


def caller(call: Call) -> Caller:
    return caller_of(call.principal, call.request.headers)


def peer(call: Call) -> Peer:
    """Which process of this machine is at the other end of the connection."""
    client, server = call.request.scope.get("client"), call.request.scope.get("server")
    return peer_of(
        None if client is None else (client[0], client[1]),
        None if server is None or server[1] is None else (server[0], server[1]),
    )


def judged(call: Call) -> Caller:
    """The caller by whose rules a Job is judged: what an agent runs is its, whatever it says of itself."""
    return call.services.scripts.approving.source_of(caller(call), lambda: peer(call))


def source_of(call: Call) -> str:
    """By whose rules a Job of another kind is judged; processes are looked at where a rule is about that."""
    with call.services.database.read() as connection:
        document = policies.document(connection, call.project)
    rules = approval.read(document, FaultList())
    return (judged(call) if rules.ask_agents else caller(call)).source


def read(call: Call, connection: Connection, ref: str) -> Triple:
    """The script Job that a reference names; raises `Refusal`."""
    return require(connection, call.viewer, ref)


def shown(call: Call, job_id: str) -> shapes.ScriptJob:
    with call.services.database.read() as connection:
        return ScriptViews(connection).job(read(call, connection, job_id))


def submit_script(call: Call, document: object) -> Reply:
    """`POST /v1/jobs` with a spec of kind `script`; answered after the commit."""
    accepted = call.services.scripts.accept.accept(judged(call), document)
    if accepted.submitted:
        call.services.wake()
    with call.services.database.read() as connection:
        job = ScriptViews(connection).job(read(call, connection, accepted.job_id))
    answer = shapes.SubmittedScript(
        job=job,
        submitted=accepted.submitted,
        duplicate_of=None if accepted.submitted else job.short_id,
        message=accepted.message,
        bundle=shapes.BundleSummary(**accepted.bundle),
    )
    return Reply(answer, 201 if accepted.submitted else 200)


@routes.get(
    "",
    Operation(
        "List script Jobs, newest first",
        answer=shapes.ScriptPage,
        any_of=READ,
        params=(_ACTIVE, _FOLDER, _SINCE, CURSOR, LIMIT),
    ),
)
def list_scripts(call: Call) -> shapes.ScriptPage:
    """Those of the project, and how many of all of them stand at each state.

    What is said of each bundle is cut to 20 lines of a kind; the Job itself has them all.
    """
    body = Body(dict(call.query), code="INVALID_REQUEST")
    active = {"1": True, "0": False}.get(body.word("active", ["1", "0"]) or "")
    folder = body.text("project_dir", most=4096)
    since = _seconds(body, call.query.get("since"))
    body.finish()
    limit = page_limit(call.query)
    before = open_cursor(call.services.seal, "scripts", call.query)
    with call.services.database.read() as connection:
        rows = store.list_scripts(
            connection,
            call.project,
            active=active,
            project_dir=folder,
            since=since,
            before=before,
            limit=limit + 1,
        )
        page = cut_page(
            call.services.seal,
            "scripts",
            rows,
            limit,
            key=lambda row: row[0].id,
            show=ScriptViews(connection).page,
        )
        counts = store.counts(connection, call.project)
    return shapes.ScriptPage(items=page.items, next_cursor=page.next_cursor, counts=counts)


def _seconds(body: Body, text: str | None) -> float | None:
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e12:  # noqa: PLR2004 - no time is that late; nan is none either
        body.fault("since", "must be a time in Unix seconds")
        return None
    return value


@routes.post(
    "/route",
    Operation(
        "Where a script Job would run",
        answer=shapes.Routed,
        any_of=RUN,
        params=(SOURCE,),
        takes=requests.RouteScript,
        max_body=lambda services: services.bodies.submission,
        refuses=("INVALID_SPEC", "INVALID_REQUEST", "PROVIDER_NOT_FOUND"),
    ),
)
def route_script(call: Call) -> shapes.Routed:
    """What a submission of the same spec would come to, and whether a person would be asked (a.7)."""
    body = Body(call.object())
    body.known(["spec"])
    body.finish()
    who = judged(call)
    spec = call.services.scripts.accept.judge(who, body.values.get("spec"))
    with call.services.database.read() as connection:
        plan = call.services.scripts.planner.plan(
            connection, spec, who.source, call.now, project_id=call.project
        )
    return shapes.Routed(
        spec=to_document(spec), route=plan.decision.as_dict(), approval=plan.approval_document()
    )


@routes.get(
    "/{ref}",
    Operation(
        "Read a script Job, or wait for it",
        answer=shapes.ScriptDetail,
        any_of=READ,
        params=(_WAIT, _VERSION),
        refuses=UNKNOWN,
    ),
)
async def read_script(call: Call, ref: str) -> BaseModel:
    """The Job with its Attempts, checkpoints, events and its last route.

    With `wait_s` the answer comes as soon as something happens to the Job, at the latest after that time;
    reaching it is no error.
    """
    known = _number(call, "version", 0, 2**31)
    return await _waited(call, ref, _wait_seconds(call), known)


def _wait_seconds(call: Call) -> float:
    text = call.query.get("wait_s", "0")
    try:
        wait = float(text)
    except ValueError:
        wait = -1.0
    if not 0 <= wait <= MAX_WAIT_SECONDS:
        said = f"`wait_s` must be a number from 0 to {MAX_WAIT_SECONDS}, not `{text[:40]}`"
        raise Refusal.of("INVALID_REQUEST", said, path="wait_s")
    return wait


async def _waited(call: Call, ref: str, wait: float, known: int | None) -> shapes.ScriptDetail:
    def look() -> shapes.ScriptDetail:
        with call.services.database.read() as connection:
            return ScriptViews(connection).detail(read(call, connection, ref))

    found = await run_in_threadpool(look)
    if not wait or (known is not None and found.job.version != known):
        return found
    known, deadline, watch = found.job.version, time.monotonic() + wait, call.services.watch
    async with watch.follow(found.job.job_id) as follower:
        while not watch.stopping:
            found = await run_in_threadpool(look)
            left = deadline - time.monotonic()
            if found.job.version != known or found.job.finished_at is not None or left < _NO_TIME:
                return found
            await follower.wait(min(left, watch.recheck_seconds, KEY_SECONDS))
            await call.recheck()
    return found


@routes.get(
    "/{ref}/events",
    Operation(
        "List a script Job's events, oldest first",
        answer=shapes.ScriptEvents,
        any_of=READ,
        params=(_AFTER, _MANY),
        refuses=UNKNOWN,
    ),
)
def list_events(call: Call, ref: str) -> shapes.ScriptEvents:
    """Transitions and notes (section b)."""
    after = _number(call, "after", 0, 2**62) or 0
    limit = _number(call, "limit", 1, MAX_EVENTS) or 100
    with call.services.database.read() as connection:
        _, trial, _ = read(call, connection, ref)
        rows = store.events_of(connection, trial.id, after=after, limit=limit + 1)
    more = len(rows) > limit
    return shapes.ScriptEvents(
        items=[event_view(row) for row in rows[:limit]], next_after=rows[limit - 1].id if more else None
    )


@routes.get(
    "/{ref}/logs",
    Operation(
        "Read a script Job's log",
        answer=shapes.ScriptLog,
        any_of=READ,
        params=(_ATTEMPT, _OFFSET, _TAIL, _MANY, _PLACES),
        refuses=UNKNOWN,
    ),
)
def read_logs(call: Call, ref: str) -> shapes.ScriptLog:
    """Lines of the program, without those of the helper module (a.3).

    Without `tail` and `offset`, from the begin of `attempt` or of the first one; `next_since` is
    `ATTEMPT:OFFSET`, and reading on from it yields each line once, across Attempts.
    """
    wanted = script_logs.Wanted(
        attempt=_number(call, "attempt", 1, 2**31),
        offset=_number(call, "offset", 0, 2**62),
        tail=_number(call, "tail", 1, script_logs.MAX_LINES),
        limit=_number(call, "limit", 1, script_logs.MAX_LINES) or script_logs.MAX_LINES,
        places=call.query.get("places") == "1",
    )
    if wanted.offset is not None and wanted.tail is not None:
        raise Refusal.of("INVALID_REQUEST", "give `offset` or `tail`, not both", path="tail")
    with call.services.database.read() as connection:
        row = read(call, connection, ref)
        tries = script_logs.outputs_of(connection, row, call.services.log_files)
    return script_logs.read(row, tries, wanted)


@routes.get(
    "/{ref}/metrics",
    Operation(
        "Read how a script Job's metrics went", answer=shapes.ScriptMetrics, any_of=READ, refuses=UNKNOWN
    ),
)
def read_metrics(call: Call, ref: str) -> shapes.ScriptMetrics:
    """By the ends of its Attempts' logs; at most 200 points of each."""
    with call.services.database.read() as connection:
        row = read(call, connection, ref)
        tries = script_logs.outputs_of(connection, row, call.services.log_files)
    return script_metrics.read(tries)


@routes.post(
    "/{ref}/cancel",
    Operation(
        "Cancel a script Job",
        answer=shapes.CancelledScript,
        any_of=STOP,
        params=(SOURCE,),
        refuses=UNKNOWN,
    ),
)
def cancel_script(call: Call, ref: str) -> shapes.CancelledScript:
    """Repeatable; a Job that has ended stays what it is. Saved outputs and checkpoints are kept (a.5)."""
    job_id, changed = call.services.scripts.operations.cancel(call.viewer, ref, caller(call))
    call.services.wake()
    return shapes.CancelledScript(job=shown(call, job_id), changed=changed)


@routes.get(
    "/{ref}/outputs",
    Operation("List what a script Job wrote", answer=shapes.ScriptOutputs, any_of=READ, refuses=UNKNOWN),
)
def list_outputs(call: Call, ref: str) -> shapes.ScriptOutputs:
    """By path; the bytes are those of the Trial's Artifacts."""
    found = []
    with call.services.database.read() as connection:
        _, trial, _ = read(call, connection, ref)
        after = None
        while page := job_store.list_artifacts(connection, trial.id, after=after, limit=1000):
            found += page
            after = page[-1].id
    return shapes.ScriptOutputs(
        trial_id=trial.id,
        items=[
            shapes.ScriptOutput(
                path=each.name.removeprefix("outputs/"),
                bytes=each.size,
                sha256=each.sha256,
                artifact_id=each.id,
                upload_state=each.upload_state,
            )
            for each in sorted(found, key=lambda each: each.name)
        ],
    )


@routes.post(
    "/{ref}/fetch",
    Operation(
        "Have a script Job's outputs brought",
        answer=shapes.FetchAsked,
        any_of=RUN,
        takes=requests.FetchScript,
        max_body=small,
        refuses=(*UNKNOWN, "INVALID_SPEC"),
    ),
)
def fetch_script(call: Call, ref: str) -> shapes.FetchAsked:
    """Asks the server to bring them from the provider (again); what is there already is not asked for."""
    body = Body(call.object())
    body.known(["refetch"])
    again = body.boolean("refetch")
    body.finish()
    job_id, asked = call.services.scripts.operations.ask_fetch(call.viewer, ref, again=again)
    call.services.wake()
    return shapes.FetchAsked(job=shown(call, job_id), asked=asked)


def _number(call: Call, name: str, least: int, most: int) -> int | None:
    text = call.query.get(name)
    if text is not None and _LONG_NUMBER.fullmatch(text) and least <= int(text) <= most:
        return int(text)  # `bounded_number` reads nine digits
    return bounded_number(call.query, name, least, most, "INVALID_REQUEST")
