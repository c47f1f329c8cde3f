"""Training tasks: create, validate, read, watch, change (contract "Create Training")."""

from __future__ import annotations

import functools
import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeVar

from trainshed.sdk.answers import LARGEST_PAGE, Page, Raw, mapping, page
from trainshed.sdk.errors import ApiError, WaitTimeout, api_error
from trainshed.sdk.given import request_of
from trainshed.sdk.logs import OUTAGE_SECONDS, LogFollower
from trainshed.sdk.polling import wait_until
from trainshed.sdk.task_objects import (
    SubmittedTask,
    Task,
    TaskAlarm,
    TaskEvent,
    TaskSample,
    Validation,
    Why,
    submitted_task,
    task,
    task_alarm,
    task_event,
    task_sample,
    validation,
    why,
)
from trainshed.sdk.transport import Transport, route

if TYPE_CHECKING:
    from trainshed.sdk.websocket import WebSocket

EVENTS_POLL_SECONDS = 1.0
"""How often new events are asked for while there are none."""
MOST_EVENTS = 1000
"""As many come at once."""
_JOB_PREFIX = "job_"
_KINDS = ("pytorch", "ray")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EventPage:
    """Some events of a task, oldest first. Iterating yields them."""

    items: tuple[TaskEvent, ...]
    next_after: int
    """Asking on ``after`` this finds what came later."""
    more: bool
    """Whether there is more already."""
    raw: Raw = field(repr=False)

    def __iter__(self) -> Iterator[TaskEvent]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)


class Tasks:
    """``client.tasks``: training tasks of kind `pytorch` and `ray`.

    A task is named by its final name, its ``task_uuid``, its Job's id or its Trial's id. What does not
    exist, or may not be seen, raises `NotFound` ``JOB_NOT_FOUND`` (C5).
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def create(
        self,
        request: Mapping[str, Any],
        *,
        allow_duplicate: bool | None = None,
        make_request_id: bool = True,
    ) -> SubmittedTask:
        """Submit one task and return it once it is durable (C55, C56).

        ``request`` is ``{"request_id", "spec"}``; it is not changed. A missing ``request_id`` is made before
        the first try, so that repeating the call after a lost answer finds the same task; give your own to be
        safe across restarts of your program. With ``allow_duplicate=False`` an identical task of the same
        user within 60 s is taken for a mistake and raises `Conflict` ``DUPLICATE_SUSPECTED``; so it is by
        default where there is no request id. Raises `ApiError` with every fault at once, those of a task also
        where ``kind`` is missing or misspelt.
        """
        body = request_of(request)
        if not _names_its_kind(body):
            # The door for submissions takes what names no kind for a Runner's request; this one does not.
            self.validate(body)
        if make_request_id and "request_id" not in body:
            body["request_id"] = str(uuid.uuid4())
        if allow_duplicate is not None:
            body["allow_duplicate"] = allow_duplicate
        # Without a request id the call must not be repeated: a second one would be told of a duplicate.
        named = "request_id" in body
        answer = self._transport.ask("POST", route("jobs"), body=body, repeatable=named)
        # After a lost answer nobody can tell whether it was this call that made the task.
        known = answer.status == HTTPStatus.OK and answer.tries == 1
        request_id = str(body.get("request_id", ""))
        return submitted_task(answer.document, request_id=request_id, accepted_before=known)

    def validate(self, request: Mapping[str, Any], *, smoke: Mapping[str, int] | None = None) -> Validation:
        """What ``request`` would come to: everything but create (C16). Raises `ApiError` as `create`.

        ``smoke`` is ``{"minutes", "workers"}``: judge the same task with one replica (plus ``workers``) and
        a time limit.
        """
        body = request_of(request)
        if smoke is not None:
            body["smoke"] = dict(smoke)
        return validation(self._transport.call("POST", route("jobs", "validate"), body=body, repeatable=True))

    def get(self, reference: str) -> Task:
        """The task as it is now, with its Attempts and their replicas (C53, C57)."""
        return task(self._transport.call("GET", route("tasks", reference)))

    def list(
        self,
        *,
        kind: str | None = None,
        state: str | None = None,
        labels: Mapping[str, str | None] | None = None,
        q: str | None = None,
        owner: str | None = None,
        cursor: str | None = None,
        limit: int = 25,
    ) -> Page[Task]:
        """One page of tasks, newest first (C59).

        ``state`` is a word of the page (`Running`), ``labels`` have all to be there (C6), with any
        value where it is ``None``, ``q`` is part of a name or uuid.
        """
        query = {
            "kind": kind,
            "state": state,
            "label": [key if value is None else f"{key}={value}" for key, value in labels.items()]
            if labels
            else None,
            "q": q,
            "owner": owner,
            "cursor": cursor,
            "limit": limit,
        }
        return page(self._transport.call("GET", route("tasks"), query=query), task)

    def iter_all(
        self, *, state: str | None = None, labels: Mapping[str, str | None] | None = None
    ) -> Iterator[Task]:
        """Every task, newest first, page by page as they are needed."""
        cursor = None
        while True:
            found = self.list(state=state, labels=labels, cursor=cursor, limit=LARGEST_PAGE)
            yield from found
            cursor = found.next_cursor
            if cursor is None:
                return

    def stop(self, reference: str) -> Task:
        """Stop the task; a notice to save goes out first where it asked for one (C36). Repeatable."""
        return task(self._post(reference, "stop", repeatable=True))

    def delete(self, reference: str) -> None:
        """Stop the task and hide it at once; its records stay for audit (c7)."""
        self._transport.call("DELETE", route("tasks", reference))

    def resubmit(self, reference: str) -> Task:
        """Queue a task that has ended once more, with the same frozen input (c7).

        It takes a new place in the queue and costs no automatic resubmission (C33). Raises `Conflict` while
        it has not ended or still holds something.
        """
        return task(self._post(reference, "resubmit", repeatable=False))

    def change(
        self,
        reference: str,
        *,
        public: bool | None = None,
        priority: str | int | None = None,
        shares: Sequence[str] | None = None,
    ) -> Task:
        """Change who sees it (C5), or while it waits its priority (C29); ``None`` leaves what is there.

        ``shares`` are the users who may see it although it is not public; the list replaces the old one.
        """
        given = {"public": public, "priority": priority, "shares": None if shares is None else list(shares)}
        body = {key: value for key, value in given.items() if value is not None}
        return task(self._transport.call("PATCH", route("tasks", reference), body=body, repeatable=True))

    def why(self, reference: str) -> Why:
        """What blocks a waiting task, with numbers, who is ahead, and what would let it start (P10)."""
        return why(self._transport.call("GET", route("tasks", reference, "why")))

    def events(self, reference: str, *, after: int = 0, limit: int = MOST_EVENTS) -> EventPage:
        """Events of the task behind the one with the id ``after``, oldest first (c2)."""
        query = {"after": after, "limit": limit}
        document = mapping(
            self._transport.call("GET", route("tasks", reference, "events"), query=query), "a page"
        )
        items = page(document, task_event).items
        following = document.get("next_after")
        last = items[-1].id if items else after
        more = isinstance(following, int)
        return EventPage(items, following if isinstance(following, int) else last, more, document)

    def follow_events(
        self,
        reference: str,
        *,
        after: int = 0,
        timeout: float | None = None,
        outage_seconds: float = OUTAGE_SECONDS,
    ) -> Iterator[TaskEvent]:
        """Every event until the task has ended, waiting for more.

        Goes on through an outage of the server for at most ``outage_seconds``. Raises `WaitTimeout` after
        ``timeout`` seconds; the task goes on.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            # Asked first: an event of the end cannot slip in between.
            ended = self._patiently(lambda: self.get(reference), outage_seconds, deadline).ended
            while True:
                ask = functools.partial(self.events, reference, after=after)
                found = self._patiently(ask, outage_seconds, deadline)
                after = found.next_after
                yield from found
                if not found.more:
                    break
            if ended:
                return
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise WaitTimeout(f"{reference} had not ended after {timeout:g} s")
            self._transport.sleep(EVENTS_POLL_SECONDS if left is None else min(EVENTS_POLL_SECONDS, left))

    def logs(
        self,
        reference: str,
        *,
        role: str | None = None,
        index: int | None = None,
        attempt: int | None = None,
        tail: int | None = None,
        cursor: str | None = None,
    ) -> LogFollower:
        """The log as far as it is there now: iterate over the result (C52).

        ``role`` is master, worker, head, submitter or `all`, ``index`` counts within it from 0; several
        replicas come merged by time. Without a role: all of a pytorch task, the submitter of a ray task.
        ``attempt`` is the number of one Attempt, all by default; ``tail`` begins so many records from the
        end. ``record.raw`` says in ``replica`` (rank), ``role`` and ``attempt`` whose a record is.
        """
        query = {"role": role, "index": index, "attempt": attempt, "tail": tail}
        path = route("tasks", reference, "logs")
        return LogFollower(self._transport, path, query, cursor=cursor, follow=False)

    def follow(
        self,
        reference: str,
        *,
        role: str | None = None,
        index: int | None = None,
        attempt: int | None = None,
        tail: int | None = None,
        cursor: str | None = None,
        timeout: float | None = None,
        outage_seconds: float = OUTAGE_SECONDS,
    ) -> LogFollower:
        """The log until its end, waiting for more: every record once and in order, as `Jobs.follow`."""
        query = {"role": role, "index": index, "attempt": attempt, "tail": tail}
        path = route("tasks", reference, "logs")
        return LogFollower(
            self._transport, path, query, cursor=cursor, timeout=timeout, outage_seconds=outage_seconds
        )

    def metrics(
        self,
        reference: str,
        *,
        replica: int | None = None,
        attempt: int | None = None,
        after: float | None = None,
        series: str | None = None,
    ) -> Page[TaskSample]:
        """Measurements of its replicas, oldest first (C37).

        Of the newest Attempt, or the one with a number. ``after`` is a time (Unix seconds) or the
        ``next_after`` in ``raw`` of the page before; names of values have to begin with ``series``.
        """
        job_id = reference if reference.startswith(_JOB_PREFIX) else self.get(reference).job_id
        query = {"replica": replica, "attempt": attempt, "after": after, "series": series}
        found = self._transport.call("GET", route("jobs", job_id, "resource-metrics"), query=query)
        return page(found, task_sample)

    def alarms(self, reference: str) -> Page[TaskAlarm]:
        """What was told to which channel, how often it was tried, what went wrong (C40); oldest first."""
        return page(self._transport.call("GET", route("alarms"), query={"task": reference}), task_alarm)

    def dashboard(
        self,
        reference: str,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        content: bytes | None = None,
    ) -> tuple[int, Mapping[str, str], bytes]:
        """One request to the dashboard of a ray task's head (C50): status, headers and body of its answer.

        ``path`` is relative and may have a query. Raises `ApiError` where this server refuses: no ray task,
        or its head is not there.
        """
        target = f"{route('tasks', reference, 'dashboard')}/{path}"
        status, found, body = self._transport.forward(method, target, headers or {}, content)
        if status >= HTTPStatus.BAD_REQUEST:
            refusal = _refusal(status, body)
            if refusal is not None:
                raise refusal
        return status, found, body

    def shell(
        self,
        reference: str,
        *,
        role: str | None = None,
        index: int | None = None,
        rows: int | None = None,
        columns: int | None = None,
        tty: bool = True,
    ) -> WebSocket:
        """A terminal beside the program of a replica (C50); close it, or use it in ``with``.

        Bytes are what is typed and printed. Texts are JSON: ``{"resize": {"rows", "columns"}}`` and
        ``{"eof": true}`` there, ``{"exit_code"}`` here before the end. Without ``tty`` the shell has
        pipes: no prompt and no echo. Raises `ApiError` where the task has no such replica now.
        """
        from trainshed.sdk.websocket import open_websocket  # noqa: PLC0415 - only a terminal needs it

        path = route("tasks", reference, "shell")
        return open_websocket(
            self._transport.connection.url,
            path,
            query={"role": role, "index": index, "rows": rows, "columns": columns, "tty": None if tty else 0},
            headers=self._transport.identity(path),
            timeout=self._transport.timeout,
        )

    def wait(
        self,
        reference: str,
        *,
        timeout: float | None = None,
        outage_seconds: float = OUTAGE_SECONDS,
    ) -> Task:
        """Wait until the task ended and return it, however it ended.

        Raises `WaitTimeout` after ``timeout`` seconds, whether or not the server answers; the task goes on.
        Goes on through an outage of the server for at most ``outage_seconds``.
        """

        def look(deadline: float | None) -> Task:
            return task(self._transport.call("GET", route("tasks", reference), deadline=deadline))

        return wait_until(
            self._transport,
            look,
            lambda found: found.ended,
            lambda found: f"{found.name} is {found.state}",
            name=reference,
            timeout=timeout,
            outage_seconds=outage_seconds,
        )

    def _post(self, reference: str, action: str, *, repeatable: bool) -> Any:
        path = route("tasks", reference, action)
        return self._transport.call("POST", path, content=b"", repeatable=repeatable)

    def _patiently(self, once: Callable[[], T], outage_seconds: float, deadline: float | None) -> T:
        return self._transport.patiently(once, outage_seconds=outage_seconds, deadline=deadline)


def _names_its_kind(body: Mapping[str, Any]) -> bool:
    spec = body.get("spec")
    return isinstance(spec, Mapping) and (spec.get("kind") in _KINDS or "task_type" in spec)


def _refusal(status: int, body: bytes) -> ApiError | None:
    """This server's own refusal; ``None`` for what the program behind it answered."""
    try:
        document = json.loads(body)
    except ValueError:
        return None
    ours = isinstance(document, dict) and {"code", "message", "errors"} <= document.keys()
    return api_error(status, document) if ours else None
