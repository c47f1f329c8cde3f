"""What content takes, collecting garbage and looking for damage.

All of it needs `admin`. A project's own administrator sees what the project holds and verifies what it may
read; what concerns the blobs of all projects together - the whole store, single blobs, garbage - is for the
owner key.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict
from typing import Any

from pydantic_core import to_json
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from trainshed.control.garbage import request_of
from trainshed.control.verification import Pace, Place, Step, Verification, take_out
from trainshed.model.access import Permission
from trainshed.model.content import ContentKind, parse_content_uri, plain_ref
from trainshed.model.errors import Refusal
from trainshed.server.cursors import CursorFault
from trainshed.server.documents import Param
from trainshed.server.endpoints import Call, Operation, Reply, Routes
from trainshed.server.shapes import content_admin as shapes
from trainshed.server.shapes.common import iso
from trainshed.server.sse import Message, event_stream
from trainshed.store import access, contents, garbage, holders, jobs, runners, settings, usage
from trainshed.store.database import Connection
from trainshed.store.holders import Scope

routes = Routes("admin")

ADMIN = (Permission.ADMIN,)
DEFAULT_MB_PER_SECOND = 200.0
_SHA256 = re.compile(r"[0-9a-f]{64}")
_WINDOW = 20_000
_STEP_SECONDS = 1.0
_LONGEST_WAIT = 0.5
_TARGET = Param(
    "target",
    {"type": "string"},
    "A Job's id, `namespace/name@ref`, a content's URI, a blob's or manifest's SHA-256; else everything.",
    example="envloop://datasets/team/words@1",
    refuses=("INVALID_SPEC", "JOB_NOT_FOUND", "CONTENT_NOT_FOUND", "BLOB_NOT_FOUND"),
)
_RATE = Param(
    "mb_per_second",
    {"type": "number", "exclusiveMinimum": 0, "default": DEFAULT_MB_PER_SECOND},
    "How many megabytes are read a second at most.",
    refuses=("INVALID_SPEC",),
)
_CURSOR = Param(
    "Last-Event-ID",
    {"type": "string"},
    "The id of the last event received; it goes on behind it.",
    where="header",
    refuses=("INVALID_CURSOR",),
)


@routes.get("/usage", Operation("What content takes", answer=shapes.ContentUsage, any_of=ADMIN))
def read_usage(call: Call) -> shapes.ContentUsage:
    """By project and kind, with quotas; with the owner key all projects, the store, and what could be freed.

    Reads much of the database; on a large store it takes seconds.
    """
    owner = call.principal.owner
    with call.services.database.read() as connection:
        rows = access.list_projects(connection) if owner else [access.get_project(connection, call.project)]
        held = usage.usage(connection, None if owner else call.project)
        projects = [
            shapes.ProjectUsage(
                project_id=row.id,
                max_content_bytes=row.max_content_bytes,
                content_bytes=usage.counted_bytes(connection, row.id),
                kinds=[
                    shapes.KindUsage.model_validate(
                        {key: value for key, value in asdict(each).items() if key != "project_id"}
                    )
                    for each in held
                    if each.project_id == row.id
                ],
            )
            for row in rows
        ]
        count, size = holders.total_of(connection, Scope()) if owner else (None, None)
    return shapes.ContentUsage(
        projects=projects,
        stored_blobs=count,
        stored_bytes=size,
        garbage=_freeable(call) if owner else None,
    )


@routes.get("/garbage", Operation("What could be freed", answer=shapes.Freeable, any_of=ADMIN))
def read_garbage(call: Call) -> shapes.Freeable:
    """What a pass of the garbage collector would remove now and later; changes nothing. Owner key only."""
    _owner_only(call, "the blobs of all projects")
    return _freeable(call)


@routes.get("/gc", Operation("How the newest pass went", answer=shapes.GarbageState, any_of=ADMIN))
def read_passes(call: Call) -> shapes.GarbageState:
    """The newest pass of the garbage collector, and the one asked for. Owner key only."""
    _owner_only(call, "collecting garbage")
    with call.services.database.read() as connection:
        report = request_of(settings.get(connection, settings.GARBAGE_REPORT))
        request = request_of(settings.get(connection, settings.GARBAGE_REQUEST))
    newest = _run(report) if report else None
    if request and request.get("request_id") == report.get("request_id"):
        return shapes.GarbageState(newest=newest, asked=newest)
    return shapes.GarbageState(newest=newest, asked=_run({**request, "state": "asked"}) if request else None)


@routes.post(
    "/gc",
    Operation(
        "Collect garbage",
        answer=shapes.GarbageRun,
        any_of=ADMIN,
        answers={202: "The controller begins within seconds; read how it goes."},
    ),
)
def collect_garbage(call: Call) -> Reply:
    """Removes what nothing needs and nobody used during the time of grace; looks through the store as well.

    Uploads that nobody went on with for as long are given up before this answers. Owner key only. A further
    request replaces one that was not begun.
    """
    _owner_only(call, "collecting garbage")
    request = {"request_id": f"gc_{call.services.ids.ulid()}", "by": call.principal.actor}
    text = json.dumps(request)
    call.services.database.write(lambda c: settings.put(c, settings.GARBAGE_REQUEST, text))
    call.services.wake()
    call.services.uploads.sweep(call.services.gc_grace_seconds)
    return Reply(_run({**request, "state": "asked"}), 202)


@routes.get(
    "/verify",
    Operation(
        "Look for damage",
        answer=shapes.VerifyEvent,
        any_of=ADMIN,
        params=(_TARGET, _RATE, _CURSOR),
        content="text/event-stream",
    ),
)
def verify(call: Call) -> Response:
    """Reads every byte again and compares it with its digest and with the manifests, as a stream of events.

    The id of each event goes on behind it, after a lost connection or on another day. The last event, of type
    `end`, counts what was checked and what is damaged. What lies among the blobs and is none is told by its
    `place`, where everything is looked at. Everything, and single blobs, with the owner key only.
    """
    rate = _rate(call.query.get("mb_per_second"))
    scope = _scope(call, call.query.get("target"))
    use = f"verify {json.dumps(asdict(scope))}"
    place = _place(call, use, call.request.headers.get("last-event-id"))
    return event_stream(_events(call, scope, place, use, rate), call.request_id)


@routes.post(
    "/blobs/{sha256}/take-out",
    Operation(
        "Take a damaged copy out",
        answer=shapes.TakenOut,
        any_of=ADMIN,
        params=(_TARGET,),
        refuses=("BLOB_NOT_FOUND", "BLOB_BEING_DELETED", "RESOURCE_IN_USE", "STORAGE_UNAVAILABLE"),
    ),
)
def take_blob_out(call: Call, sha256: str) -> shapes.TakenOut:
    """So that publishing again sends its bytes. An intact copy stays, and one that nobody could send again.

    What is intact corrects a record that says another size. Of several contents that hold the bytes the
    advice names the `target`. Owner key only.
    """
    _owner_only(call, "the blobs of all projects")
    services = call.services
    if not _SHA256.fullmatch(sha256):
        raise Refusal.of("BLOB_NOT_FOUND", "a blob is named by 64 lower-case hex digits", path="sha256")
    target = call.query.get("target")
    asked = _scope(call, target).asked if target is not None else ""
    done = take_out(services.database, services.blobs, sha256, services.clock, asked=asked)
    return shapes.TakenOut(sha256=sha256, damaged=done.damaged, corrected=done.corrected, advice=done.advice)


def _owner_only(call: Call, what: str) -> None:
    if not call.principal.owner:
        raise Refusal.of("PERMISSION_DENIED", f"{what}: for the owner key only")


def _freeable(call: Call) -> shapes.Freeable:
    grace = call.services.gc_grace_seconds
    now = [0, 0]
    ever = [0, 0]
    with call.services.database.read() as connection:
        after = ""
        while (last := garbage.blob_window(connection, after, _WINDOW)) is not None:
            for found, cutoff in ((now, call.now - grace), (ever, float("inf"))):
                count, size = garbage.freeable(connection, after, last, cutoff=cutoff)
                found[0] += count
                found[1] += size
            after = last
    return shapes.Freeable(
        blobs=now[0],
        bytes=now[1],
        waiting_blobs=ever[0] - now[0],
        waiting_bytes=ever[1] - now[1],
        grace_hours=grace / 3600,
    )


def _run(report: dict[str, Any]) -> shapes.GarbageRun:
    times = {key: iso(report[key]) if key in report else None for key in ("started_at", "updated_at")}
    counts = {key: report.get(key, 0) for key in ("manifests", "blobs", "bytes", "adopted")}
    return shapes.GarbageRun.model_validate(
        {
            "request_id": report.get("request_id"),
            "state": report["state"],
            "reason": report.get("reason"),
            **times,
            **counts,
        }
    )


def _rate(text: str | None) -> float:
    """Bytes a second."""
    if text is None:
        return DEFAULT_MB_PER_SECOND * 1e6
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0 < rate < float("inf"):
        raise Refusal.of("INVALID_SPEC", "`mb_per_second` must be a number above 0", path="mb_per_second")
    return rate * 1e6


def _scope(call: Call, target: str | None) -> Scope:
    """What a target means, if this key may look at it."""
    if target is None:
        _owner_only(call, "verifying everything")
        return Scope()
    if _SHA256.fullmatch(target):
        _owner_only(call, "verifying single blobs")
        with call.services.database.read() as connection:
            if holders.manifests_after(connection, Scope(sha256=target), "", 1):
                return Scope(manifests=(target,))
            known = holders.still_recorded(connection, target)
            if not known and not holders.holders_of(connection, target).any:
                raise Refusal.of("BLOB_NOT_FOUND", f"there is no blob {target}", path="target")
        return Scope(sha256=target)
    if target.startswith("job_"):
        with call.services.database.read() as connection:
            job = jobs.find_job(connection, None if call.principal.owner else call.project, target)
        if job is None:
            raise Refusal.of("JOB_NOT_FOUND", f"there is no Job `{target[:80]}`", path="target")
        return Scope(job_id=job.id)
    return _named(call, target)


def _named(call: Call, target: str) -> Scope:
    kind: str | None = None
    if target.startswith("envloop://"):
        try:
            uri = parse_content_uri(target)
        except ValueError as error:
            raise Refusal.of("INVALID_SPEC", f"`target`: {error}", path="target") from None
        kind, name, ref = uri.kind, uri.full_name, uri.ref
    else:
        name, at, ref = target.partition("@")
        if not at or "/" not in name:
            said = "is a Job's id, namespace/name@ref, a content's URI, or 64 hex digits"
            raise Refusal.of("INVALID_SPEC", f"`target` {said}", path="target")
        ref = plain_ref(ref)
    with call.services.database.read() as connection:
        found = [
            digest
            for digest in holders.manifests_named(connection, kind, name, ref)
            if call.principal.owner or _may_read(call, connection, name, digest)
        ]
    if not found:
        raise Refusal.of("CONTENT_NOT_FOUND", f"there is no readable `{target[:200]}`", path="target")
    return Scope(manifests=tuple(found), asked=f"{name}@{ref}")


def _may_read(call: Call, connection: Connection, name: str, digest: str) -> bool:
    """Whether the project may read the content or Runner of that name and manifest."""
    readable = any(
        contents.still_readable(connection, call.project, kind, name, digest) for kind in ContentKind
    )
    return readable or runners.reads_snapshot(connection, call.project, name, digest)


def _place(call: Call, use: str, cursor: str | None) -> Place:
    if not cursor:
        return Place()
    try:
        return Place(**call.services.seal.open(use, cursor))
    except (CursorFault, TypeError) as error:
        said = f"the last event's id is none of this verification: {error}"
        raise Refusal.of("INVALID_CURSOR", said, path="Last-Event-ID") from None


async def _events(
    call: Call, scope: Scope, place: Place, use: str, rate: float
) -> AsyncIterator[Sequence[Message]]:
    services = call.services
    pace = Pace(rate, lambda seconds: _wait(seconds, lambda: services.watch.stopping))
    look = Verification(services.database, services.blobs, scope, pace)
    blobs, size = await run_in_threadpool(look.total)
    total = {"total_blobs": blobs, "total_bytes": size}
    with closing(look.run(place)) as steps:
        while not services.watch.stopping:
            await call.recheck()
            some = await run_in_threadpool(_some, steps)
            if some is None:
                ended = {**_counts(place, 0), **total}
                yield [Message(to_json(ended), event="end")]
                return
            yield [_message(services.seal.seal(use, asdict(step.place)), step, total) for step in some]
            place = some[-1].place


def _some(steps: Iterator[Step]) -> list[Step] | None:
    """Steps of a moment, at least one; ``None`` at the end."""
    found: list[Step] = []
    until = time.monotonic() + _STEP_SECONDS
    for step in steps:
        found.append(step)
        if time.monotonic() >= until:
            break
    return found or None


def _wait(seconds: float, stopping: Callable[[], bool]) -> None:
    """Wait in small pieces, so that a server that ends does not wait for a slow pace."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0 and not stopping():
        time.sleep(min(left, _LONGEST_WAIT))


def _counts(place: Place, reading: int) -> dict[str, int]:
    return {"checked": place.checked, "bytes": place.bytes + reading, "damaged": place.damaged}


def _message(cursor: str, step: Step, total: dict[str, int]) -> Message:
    document: dict[str, Any] = {**_counts(step.place, step.reading), **total, "type": "progress"}
    if step.damage is not None:
        damage = asdict(step.damage)
        document |= {**damage, "type": "damage"}
    elif step.stranger is not None:
        document |= {"place": step.stranger, "type": "stranger"}
    event = shapes.VerifyEvent.model_validate(document)
    return Message(event.model_dump_json(exclude_none=True).encode(), cursor)
