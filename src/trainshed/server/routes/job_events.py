"""Events of a Job: pages, and a resumable stream (SSE)."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass

from pydantic import BaseModel
from pydantic_core import to_json
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from trainshed.model.states import TERMINAL, AllocationState
from trainshed.server.documents import CURSOR, LIMIT, Param
from trainshed.server.endpoints import Call, Operation, Routes
from trainshed.server.follow import RECHECK_SECONDS
from trainshed.server.keys import RECHECK_SECONDS as KEY_SECONDS
from trainshed.server.pages import MAX_PAGE, cut_page, open_cursor, page_limit
from trainshed.server.routes.jobs import READ
from trainshed.server.services import Services
from trainshed.server.shapes import jobs as shapes
from trainshed.server.shapes.common import Page
from trainshed.server.sse import Message, event_stream
from trainshed.server.views import event_view
from trainshed.store import events
from trainshed.store import jobs as store
from trainshed.store.records import Event

routes = Routes("events")

LAST_EVENT_ID = Param(
    "Last-Event-ID",
    {"type": "string"},
    "The id of the last event received; the stream goes on behind it.",
    where="header",
)
_USE = "events"
_EVENT_ID = re.compile(r"[0-9]{1,18}")


@routes.get(
    "/{job_id}/events",
    Operation(
        "List a Job's events, newest first",
        answer=Page[shapes.Event],
        any_of=READ,
        params=(CURSOR, LIMIT),
        refuses=("JOB_NOT_FOUND",),
    ),
)
def list_events(call: Call, job_id: str) -> Page[shapes.Event]:
    """What happened to the Job and its Trials."""
    limit = page_limit(call.query, MAX_PAGE)
    before = open_cursor(call.services.seal, _USE, call.query)
    with call.services.database.read() as connection:
        store.get_job(connection, call.project, job_id, viewer=call.viewer)
        rows = events.newest_of_job(connection, job_id, before=before, limit=limit + 1)
    return cut_page(
        call.services.seal,
        _USE,
        rows,
        limit,
        key=lambda event: event.id,
        show=lambda kept: [event_view(event) for event in kept],
    )


@routes.get(
    "/{job_id}/events/stream",
    Operation(
        "Follow a Job's events",
        answer=shapes.Event,
        any_of=READ,
        params=(LAST_EVENT_ID,),
        refuses=("JOB_NOT_FOUND",),
        content="text/event-stream",
    ),
)
def stream_events(call: Call, job_id: str) -> Response:
    """Server-sent events, oldest first, each with an `Event` as JSON.

    The last one, of type `end`, comes when the Job has ended and everything it held is released; or one of
    type `error`, a refusal: the key no longer holds, say.
    """
    with call.services.database.read() as connection:
        store.get_job(connection, call.project, job_id, viewer=call.viewer)
    last = call.request.headers.get("last-event-id", "")
    after = int(last) if _EVENT_ID.fullmatch(last) else 0
    end = {"job_id": job_id}
    return event_stream(follow_events(call, job_id, after, event_view, end), call.request_id)


async def follow_events(
    call: Call, job_id: str, after: int, show: Callable[[Event], BaseModel], end: Mapping[str, str]
) -> AsyncIterator[Sequence[Message]]:
    """Events of a Job past the id ``after`` as ``show`` shows them, and ``end`` once no more can come."""
    services = call.services
    async with services.watch.follow(job_id) as follower:
        while not services.watch.stopping:
            await call.recheck()
            new = await run_in_threadpool(_read, services, job_id, after)
            if new.events:
                after = new.events[-1].id
                yield [Message(show(row).model_dump_json().encode(), str(row.id)) for row in new.events]
                continue
            if new.released:
                yield [Message(to_json(end), event="end")]
                return
            # Releases have no event, so nobody announces them.
            left = RECHECK_SECONDS if new.finished else services.watch.recheck_seconds
            while left > 0 and not await follower.wait(min(left, KEY_SECONDS)):
                left -= KEY_SECONDS
                yield ()
                await call.recheck()


@dataclass(frozen=True, slots=True)
class _New:
    events: Sequence[Event]
    finished: bool
    """All Trials are at their ends."""
    released: bool
    """And everything that they held is released: no more events can come."""


def _read(services: Services, job_id: str, after: int) -> _New:
    """New events, and whether more can come: the end is read first, so no event can slip in between."""
    with services.database.read() as connection:
        trials = store.trials_of(connection, [job_id])[job_id]
        finished = released = all(trial.state in TERMINAL for trial in trials)
        if finished:
            held = store.allocations_of(connection, [trial.id for trial in trials])
            states = [each.state for allocations in held.values() for each in allocations]
            released = all(state == AllocationState.RELEASED for state in states)
        return _New(list(events.of_job(connection, job_id, after=after)), finished, released)
