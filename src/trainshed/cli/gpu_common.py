"""What commands of ``gpu`` share: how Jobs are named, who asks, and following one to its end."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from trainshed.cli.gpu_events import Counted
from trainshed.cli.session import Session

if TYPE_CHECKING:
    from trainshed.sdk import Client
    from trainshed.sdk.script_objects import ScriptLog

T = TypeVar("T")
AGENT, CLI = "agent", "cli"
ASKS = "awaiting_approval"
ENDED = frozenset({"done", "failed", "cancelled", "denied"})
SETTLE_SECONDS = 10.0
"""How long a command that does not wait for the end gives a Job to be placed, or to ask (a.1)."""
_POLL_SECONDS = 2.0
_DIGITS = frozenset("0123456789abcdefABCDEF")
_MOST_DIGITS = 12


class JobRef(click.ParamType[str]):
    """What names a Job: its digits, the first of them, or its id at the other commands (a.0.8)."""

    name = "id"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value).strip()
        digits = bool(text) and len(text) <= _MOST_DIGITS and set(text) <= _DIGITS
        if not digits and not text.startswith(("job_", "trial_")):
            self.fail(f"{text[:40]!r} names no Job: give 1 to 12 hexadecimal digits", param, ctx)
        return text.lower() if digits else text


JOB = JobRef()


def source_of(*, as_agent: bool = False) -> str:
    """Whose rules count: those for agents where one runs this, whatever was given (c.6)."""
    from trainshed.sdk.source import marker  # noqa: PLC0415 - not for `--help`

    return AGENT if as_agent or marker() else CLI


def told(job: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """The document about one Job: what it is, what to do next, and what else is known."""
    from trainshed.mcp.documents import with_guidance  # noqa: PLC0415 - not for `--help`

    return with_guidance(job, verbose=True, **more)


def settled(job: Mapping[str, Any]) -> bool:
    """Whether it is placed, asks, waits for a time, or has ended (a.1)."""
    return job["state"] not in {"queued", "routing"} or (
        job["state"] == "queued" and job.get("not_before") is not None
    )


def wait_until_settled(client: Client, job: Mapping[str, Any], seconds: float) -> Mapping[str, Any]:
    """The Job once it is `settled`, or as it is after ``seconds``."""
    import time  # noqa: PLC0415 - not for `--help`

    until = time.monotonic() + seconds
    while not settled(job) and (left := until - time.monotonic()) > 0:
        found = client.scripts.get(job["short_id"], wait_s=min(left, _POLL_SECONDS), version=job["version"])
        job = found.job.raw
    return job


class Follower:
    """Prints the log of a Job as it comes, and on stderr what happens to it."""

    def __init__(self, session: Session, client: Client, ref: str, *, since: str | None = None) -> None:
        self._session = session
        self._client = client
        self._ref = ref
        self._since = since
        self._told = 0
        """The newest event that was told."""
        self._counted = Counted()
        self._asked = False

    def until_the_end(self, *, stop_at_question: bool = False, events: bool = True) -> Mapping[str, Any]:
        """Print everything; the Job as it was then.

        ``stop_at_question``: return when a person is asked, as the user of an agent has to be told.
        """
        for page in self._client.scripts.follow(self._ref, since=self._since, all_pages=True, places=True):
            if events:
                self._patiently(self._tell_events)
            print_lines(self._session, page)
            if page.lines:
                continue
            job = self._patiently(lambda: self._client.scripts.get(self._ref).job.raw)
            if job is None:
                continue
            if job["state"] != ASKS:
                self._asked = False
            elif stop_at_question:
                return job
            else:
                self._ask(job)
        if events:
            self._patiently(lambda: self._tell_events(ended=True))
        return self._client.scripts.get(self._ref).job.raw

    def _tell_events(self, *, ended: bool = False) -> None:
        """Say what happened since this was asked last; how it ended only behind the last line of its log."""
        for event in self._counted.so_far(self._new_events(ended=ended)):
            self._session.note(f"-- {event_line(event)}")
            if event["reason"] == "placed":
                why = self._client.scripts.get(self._ref).job.raw["route_reason"]
                self._session.note(f"-- why: {why}")

    def _new_events(self, *, ended: bool) -> Iterator[Mapping[str, Any]]:
        while found := self._client.scripts.events(self._ref, after=self._told).items:
            for event in found:
                if event["to"] in ENDED and not ended:
                    return
                self._told = int(event["id"])
                yield event

    @staticmethod
    def _patiently(look: Callable[[], T]) -> T | None:
        """What a look finds; nothing during an outage, which reading the log waits out."""
        from trainshed.sdk.errors import ConnectionFailed, ServerUnavailable  # noqa: PLC0415 - as above

        try:
            return look()
        except (ConnectionFailed, ServerUnavailable):
            return None

    def _ask(self, job: Mapping[str, Any]) -> None:
        """Say once that a person has to answer, and how."""
        if self._asked:
            return
        self._asked = True
        from trainshed.model.scripts.guidance import tell_user  # noqa: PLC0415 - not for `--help`

        self._session.note(f"-- {tell_user(job)}")


def event_line(event: Mapping[str, Any]) -> str:
    """One event as people read it."""
    said = " ".join(str(event["message"]).split())
    if event["kind"] == "transition" and event["from"]:
        return f"{event['from']} → {event['to']}: {said}"
    return f"{event['to'] or event['reason']}: {said}"


def print_lines(session: Session, page: ScriptLog) -> None:
    """The lines of a page on stdout: as they are, or a document each (j)."""
    if not page.lines:
        return
    from trainshed.cli.logs import safe_for_terminal  # noqa: PLC0415 - not for `--help`

    terminal = sys.stdout.isatty()
    for line, (attempt, offset) in zip(page.lines, page.places, strict=True):
        if session.json:
            text = json.dumps({"attempt": attempt, "offset": offset, "line": line}) + "\n"
            sys.stdout.write(text)
        else:
            data = line.encode("utf-8", "replace")
            sys.stdout.buffer.write((safe_for_terminal(data) if terminal else data) + b"\n")
    sys.stdout.flush()


def everything(client: Client, **wanted: Any) -> Iterator[Mapping[str, Any]]:
    """Jobs of all pages, newest first."""
    cursor = None
    while True:
        page = client.scripts.list(cursor=cursor, limit=100, **wanted)
        yield from (job.raw for job in page)
        cursor = page.next_cursor
        if cursor is None:
            return
