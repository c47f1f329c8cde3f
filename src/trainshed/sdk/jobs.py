"""Jobs: submit, read, follow, wait for, stop."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import replace
from http import HTTPStatus
from typing import Any

from trainshed.sdk.answers import LARGEST_PAGE, required
from trainshed.sdk.given import request_of
from trainshed.sdk.logs import OUTAGE_SECONDS, LogFollower
from trainshed.sdk.objects import Event, Job, Page, event, job, mapping, page
from trainshed.sdk.polling import wait_until
from trainshed.sdk.transport import Transport, route


class TrainingJobs:
    """``client.training_jobs``: submissions of type ``train``."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def submit(self, request: Mapping[str, Any], *, make_request_id: bool = True) -> Job:
        """Submit one Job and return it once it is durable (E15-E18, E24).

        ``request`` is ``{"request_id", "trials": [{"name", "spec"}]}`` or ``{"request_id", "spec"}``; it
        is not changed. A missing ``request_id`` is made before the first try, so that repeating the call
        after a lost answer finds the same Job; give your own to be safe across restarts of your program.
        ``make_request_id=False`` sends the request as it is. Raises `ApiError` with every fault at once.
        """
        body = request_of(request)
        if make_request_id and "request_id" not in body:
            body["request_id"] = str(uuid.uuid4())
        # Without a request id the server accepts nothing, so repeating is harmless in every case.
        answer = self._transport.ask("POST", route("jobs"), body=body, repeatable=True)
        # After a lost answer nobody can tell whether it was this call that made the Job.
        known = answer.status == HTTPStatus.OK and answer.tries == 1
        return replace(job(answer.document), accepted_before=known)

    def rerun(
        self,
        manifest: Mapping[str, Any],
        *,
        request_id: str | None = None,
        hidden: Mapping[str, str] | None = None,
    ) -> Job:
        """Submit again, on this server, what a manifest says (see `Jobs.manifest`), of whatever kind.

        Runners are named by commit, images and content by digest; an input of a Profile keeps its label where
        that leads to the same digest here. Compare the new Job's manifest to see that it is the same.
        ``hidden`` has the hidden values of a training task by name, which no manifest holds. Raises
        ``ValueError`` for a document that is no manifest or was changed, and where hidden values lack; the
        body of an `ApiError` has ``labels_taken``, the URIs whose label names other bytes here, if any.
        """
        from trainshed.model.provenance import check_manifest  # noqa: PLC0415 - few need it
        from trainshed.sdk.reruns import submit_again  # noqa: PLC0415 - as above

        frozen = check_manifest(manifest)
        answer = submit_again(self._transport, frozen, request_id or str(uuid.uuid4()), hidden)
        known = answer.status == HTTPStatus.OK and answer.tries == 1
        document = answer.document
        if isinstance(document, Mapping) and isinstance(document.get("job"), Mapping):
            # Of a packed project the answer tells in its own words; its Job is read as any other.
            job_id = required(document["job"], "job_id")
            document = self._transport.call("GET", route("jobs", job_id))
        return replace(job(document), accepted_before=known)


class Jobs:
    """``client.jobs``: every Job of the project."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def get(self, job_id: str) -> Job:
        """The Job as it is now, with its Trials."""
        return job(self._transport.call("GET", route("jobs", job_id)))

    def list(
        self,
        *,
        type: str | None = None,  # noqa: A002 - the contract's word
        status: str | None = None,
        cursor: str | None = None,
        limit: int = 25,
    ) -> Page[Job]:
        """One page of Jobs, newest first."""
        query = {"type": type, "status": status, "cursor": cursor, "limit": limit}
        return page(self._transport.call("GET", route("jobs"), query=query), job)

    def iter_all(self, *, status: str | None = None) -> Iterator[Job]:
        """Every Job, newest first, page by page as they are needed."""
        cursor = None
        while True:
            found = self.list(status=status, cursor=cursor, limit=LARGEST_PAGE)
            yield from found
            cursor = found.next_cursor
            if cursor is None:
                return

    def result(self, job_id: str) -> Job:
        """The Job with its Checkpoints in ``raw``; while it runs, its present state."""
        return job(self._transport.call("GET", route("jobs", job_id, "result")))

    def manifest(self, job_id: str) -> Mapping[str, Any]:
        """Everything that was frozen of the Job (``frozen``), its ``digest``, and the ``outcome`` so far."""
        return mapping(self._transport.call("GET", route("jobs", job_id, "manifest")), "a manifest")

    def stop(self, job_id: str) -> Job:
        """Stop all its Trials (E76). Repeatable; a Job that ended is returned unchanged."""
        return job(self._transport.call("POST", route("jobs", job_id, "stop"), content=b"", repeatable=True))

    def events(self, job_id: str, *, cursor: str | None = None, limit: int = 100) -> Page[Event]:
        """What happened to the Job and its Trials, one page."""
        query = {"cursor": cursor, "limit": limit}
        return page(self._transport.call("GET", route("jobs", job_id, "events"), query=query), event)

    def logs(
        self,
        job_id: str,
        *,
        source: str = "all",
        trial: str | None = None,
        tail: int | None = None,
        cursor: str | None = None,
    ) -> LogFollower:
        """The log as far as it is there now: iterate over the result (contract E b5).

        ``trial`` is a Trial's id or name, ``source`` is ``all``, ``system`` or ``runtime``.
        """
        query = {"source": source, "trial": trial, "tail": tail}
        return LogFollower(self._transport, route("jobs", job_id, "logs"), query, cursor=cursor, follow=False)

    def follow(
        self,
        job_id: str,
        *,
        source: str = "all",
        trial: str | None = None,
        tail: int | None = None,
        cursor: str | None = None,
        timeout: float | None = None,
        outage_seconds: float = OUTAGE_SECONDS,
    ) -> LogFollower:
        """The log until its end, waiting for more: every record once and in order.

        Goes on through lost connections and restarts of the server, for at most ``outage_seconds``
        without any answer. Iterating raises `WaitTimeout` after ``timeout`` seconds; the Job goes on.
        """
        query = {"source": source, "trial": trial, "tail": tail}
        path = route("jobs", job_id, "logs")
        return LogFollower(
            self._transport, path, query, cursor=cursor, timeout=timeout, outage_seconds=outage_seconds
        )

    def wait(
        self,
        job_id: str,
        *,
        timeout: float | None = None,
        released: bool = False,
        outage_seconds: float = OUTAGE_SECONDS,
    ) -> Job:
        """Wait until the Job ended and return it, however it ended.

        ``released`` waits further until every Trial's release is confirmed. Raises `WaitTimeout` after
        ``timeout`` seconds, whether or not the server answers; the Job goes on. Goes on through an outage
        of the server for at most ``outage_seconds``; a fault of the server's own (500) is raised after
        the retries of any other call.
        """

        def done(found: Job) -> bool:
            return found.ended and (not released or all(each.cleanup_confirmed for each in found.trials))

        def look(deadline: float | None) -> Job:
            return job(self._transport.call("GET", route("jobs", job_id), deadline=deadline))

        def said(found: Job) -> str:
            held = " and not known to be released" if found.ended else ""
            return f"{job_id} is {found.status}{held}"

        return wait_until(
            self._transport, look, done, said, name=job_id, timeout=timeout, outage_seconds=outage_seconds
        )
