"""Logs: pages with long polling, a stream, and the exact bytes of one Trial (contract E b5, promise P8)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence

from pydantic_core import to_json
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse

from trainshed.content.log_pages import Cursor, Page
from trainshed.content.logs import LogReader
from trainshed.jobkit.frames import STDERR, STDOUT
from trainshed.model.errors import Refusal
from trainshed.model.states import TERMINAL
from trainshed.policy.retry import Ending
from trainshed.server.cursors import CursorSeal
from trainshed.server.documents import Param
from trainshed.server.endpoints import Call, Operation, Routes
from trainshed.server.follow import Follower
from trainshed.server.keys import RECHECK_SECONDS as KEY_SECONDS
from trainshed.server.log_views import (
    DEFAULT_LIMIT,
    MAX_LIMIT,
    MAX_WAIT_SECONDS,
    SOURCES,
    JobLog,
    LogQuery,
    item_document,
    open_log_cursor,
    seal_log_cursor,
)
from trainshed.server.routes.jobs import READ
from trainshed.server.shapes.logs import LogItem, LogPage
from trainshed.server.sse import Message, event_stream
from trainshed.store import jobs as store
from trainshed.store.tasks import replicas_of

routes = Routes("logs")
trial_routes = Routes("logs")

_QUERY = ("INVALID_LOG_QUERY",)
SOURCE = Param(
    "source",
    {"type": "string", "enum": list(SOURCES), "default": "all"},
    "`system`: what the platform did; `runtime`: what the programs wrote.",
    refuses=("INVALID_LOG_SOURCE",),
)
LIMIT = Param(
    "limit",
    {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT},
    "Records a page, at most; a page also ends at about 2 MiB.",
    refuses=_QUERY,
)
TAIL = Param(
    "tail",
    {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT},
    "Begin with the last records. Excludes `cursor`.",
    refuses=_QUERY,
)
CURSOR = Param(
    "cursor",
    {"type": "string"},
    "The `next_cursor` of the page before. Excludes `tail`.",
    refuses=("LOG_CURSOR_INVALID", "LOG_CURSOR_EXPIRED"),
)
WAIT = Param(
    "wait",
    {"type": "integer", "minimum": 0, "maximum": MAX_WAIT_SECONDS, "default": 0},
    "Seconds to wait for something new, where nothing is there.",
    refuses=_QUERY,
)
TRIAL = Param(
    "trial", {"type": "string"}, "Only this Trial: its id or its name.", refuses=("TRIAL_NOT_FOUND",)
)
LAST_EVENT_ID = Param(
    "Last-Event-ID", {"type": "string"}, "Goes on behind the record with this id.", where="header"
)
STREAM = Param(
    "stream",
    {"type": "string", "enum": ["stdout", "stderr"], "default": "stdout"},
    "Which of the program's streams.",
    refuses=_QUERY,
)
_REFUSES = ("JOB_NOT_FOUND", "LOG_STORAGE_UNAVAILABLE")


@routes.get(
    "/{job_id}/logs",
    Operation(
        "Read a Job's log",
        answer=LogPage,
        any_of=READ,
        params=(SOURCE, LIMIT, TAIL, CURSOR, WAIT, TRIAL),
        refuses=_REFUSES,
    ),
)
async def read_logs(call: Call, job_id: str) -> Response:
    """Records in order of time. `next_cursor` goes on behind them; `eof` says that nothing will follow."""
    return await answer_page(call, job_id, LogQuery.parse(call.query, call.services.seal, job_id))


async def answer_page(call: Call, job_id: str, query: LogQuery) -> Response:
    """The page that ``query`` asks for, as JSON; waits for it if that is asked for as well."""
    services = call.services
    log = JobLog(services, call.viewer, job_id, query)

    def first() -> Page:
        log.refresh()
        return log.page(query.cursor)

    async with services.watch.follow(job_id) as follower:
        page = await run_in_threadpool(first)
        if query.wait and not page.items and not log.eof(page):
            page = await _wait_for_more(call, log, follower, page, query.wait)
    body = await run_in_threadpool(lambda: to_json(log.document(page)))
    return Response(body, media_type="application/json")


async def _wait_for_more(call: Call, log: JobLog, follower: Follower, page: Page, seconds: float) -> Page:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while not page.items and not log.eof(page) and not call.services.watch.stopping:
        left = deadline - loop.time()
        if left <= 0:
            break
        if not await log.changed(follower, min(left, KEY_SECONDS)):
            await call.recheck()
            continue
        page = await run_in_threadpool(log.page, page.cursor)
    return page


@routes.get(
    "/{job_id}/logs/stream",
    Operation(
        "Follow a Job's log",
        answer=LogItem,
        any_of=READ,
        params=(SOURCE, TAIL, CURSOR, TRIAL, LAST_EVENT_ID),
        refuses=_REFUSES,
        content="text/event-stream",
    ),
)
async def stream_logs(call: Call, job_id: str) -> Response:
    """Server-sent events, each with a record as in a log page; the event id is the cursor behind it.

    The last one, of type `end`, comes when the Job has ended and all was delivered; or one of type `error`, a
    refusal: the key no longer holds, say.
    """
    query = LogQuery.parse({**call.query, "limit": str(MAX_LIMIT)}, call.services.seal, job_id)
    return await answer_stream(call, job_id, query)


async def answer_stream(call: Call, job_id: str, query: LogQuery) -> Response:
    """Everything that ``query`` asks for, and what follows, as server-sent events."""
    start = query.cursor
    if last := call.request.headers.get("last-event-id"):
        start = open_log_cursor(call.services.seal, job_id, last)
    log = JobLog(call.services, call.viewer, job_id, query)
    await run_in_threadpool(log.refresh)
    return event_stream(_follow(call, job_id, log, start), call.request_id)


async def _follow(
    call: Call, job_id: str, log: JobLog, start: Cursor | None
) -> AsyncIterator[Sequence[Message]]:
    services = call.services

    def batch() -> tuple[Page, Sequence[Message]]:
        page = log.page(start)
        return page, _messages(services.seal, job_id, start or Cursor(), page)

    async with services.watch.follow(job_id) as follower:
        while not services.watch.stopping:
            await call.recheck()
            page, messages = await run_in_threadpool(batch)
            yield messages
            start = page.cursor
            if page.has_more:
                continue
            if log.eof(page):
                summary = {key: value for key, value in log.document(page).items() if key != "items"}
                yield [Message(to_json(summary), summary["next_cursor"], "end")]
                return
            while not services.watch.stopping and not await log.changed(follower, KEY_SECONDS):
                yield ()
                await call.recheck()


def _messages(seal: CursorSeal, job_id: str, at: Cursor, page: Page) -> Sequence[Message]:
    """The records of a page, each with the cursor behind it."""
    messages = []
    for item in page.items:
        at = at.after(item)
        messages.append(Message(to_json(item_document(item)), seal_log_cursor(seal, job_id, at)))
    return messages


@trial_routes.get(
    "/{trial_id}/logs/raw",
    Operation(
        "Read exactly what a Trial wrote",
        any_of=READ,
        params=(STREAM,),
        refuses=("TRIAL_NOT_FOUND", "LOG_CURSOR_EXPIRED", "LOG_STORAGE_UNAVAILABLE"),
        content="application/octet-stream",
    ),
)
def read_raw(call: Call, trial_id: str) -> Response:
    """The bytes of one stream as the program wrote them, up to now; `X-Log-Complete`: whether that is all."""
    name = call.query.get("stream", "stdout")
    kinds = {"stdout": STDOUT, "stderr": STDERR}
    if name not in kinds:
        raise Refusal.of("INVALID_LOG_QUERY", "`stream` is stdout or stderr", path="stream")
    with call.services.database.read() as connection:
        trial = store.get_trial(connection, call.project, trial_id, viewer=call.viewer)
        attempts = store.attempts_of(connection, [trial_id])[trial_id]
        units = replicas_of(connection, [attempt.id for attempt in attempts])
    if any(attempt.log_deleted_at is not None for attempt in attempts):
        raise Refusal.of("LOG_CURSOR_EXPIRED", "the Trial's output was deleted by retention")
    try:
        # Of a gang what each member wrote, one after the other.
        sources = [
            (attempt, unit)
            for attempt in attempts
            for unit in ([row.unit_id for row in units[attempt.id] if row.unit_id] or [attempt.id])
        ]
        readers = [LogReader(call.services.log_files(unit)) for _, unit in sources]
    except OSError as error:
        raise Refusal.of("LOG_STORAGE_UNAVAILABLE", f"cannot read the log: {error.strerror}") from error
    complete = trial.state in TERMINAL and all(
        reader.has_end() and attempt.ended_by != Ending.LOST
        for reader, (attempt, _) in zip(readers, sources, strict=True)
        if attempt.started_at
    )

    def pieces() -> Iterator[bytes]:
        try:
            for reader in readers:
                yield from reader.stream_bytes(kinds[name])
        finally:
            for reader in readers:
                reader.close()

    headers = {"X-Log-Complete": "true" if complete else "false", "X-Content-Type-Options": "nosniff"}
    if call.head:
        for reader in readers:
            reader.close()
        return Response(headers=headers, media_type="application/octet-stream")
    return StreamingResponse(pieces(), headers=headers, media_type="application/octet-stream")
