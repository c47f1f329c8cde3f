"""Following a log to its end: every record once, in order, across lost connections and restarts."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trainshed.sdk.errors import (
    ConnectionFailed,
    InvalidAnswer,
    RateLimited,
    ServerUnavailable,
    WaitTimeout,
)
from trainshed.sdk.objects import LogRecord, log_record, mapping, page, text
from trainshed.sdk.transport import RetryPolicy, Transport

LONG_POLL_SECONDS = 20
"""How long the server may hold a request open while there is nothing new."""
OUTAGE_SECONDS = 600.0
"""How long a follower goes on trying without any answer."""
PAGE_RECORDS = 1000
_IDLE = RetryPolicy(first=0.2, longest=2.0)
_QUICK_ANSWER_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class LogPage:
    """One page of a log, and what the server says about the log as a whole."""

    records: tuple[LogRecord, ...]
    next_cursor: str | None
    has_more: bool
    eof: bool
    """The Job ended and collection ended: no record will follow this page's ``has_more``."""
    collection_status: str
    truncated: bool
    dropped_bytes: int
    missing_reason: str
    raw: Mapping[str, Any]


def read_page(raw: Any) -> LogPage:
    """Read a log page; raises `InvalidAnswer` where following could not go on."""
    document = mapping(raw, "a log page")
    dropped = document.get("dropped_bytes")
    found = LogPage(
        records=page(document, log_record).items,
        next_cursor=text(document, "next_cursor") or None,
        has_more=document.get("has_more") is True,
        eof=document.get("eof") is True,
        collection_status=text(document, "collection_status"),
        truncated=document.get("truncated") is True,
        dropped_bytes=dropped if isinstance(dropped, int) else 0,
        missing_reason=text(document, "missing_reason"),
        raw=document,
    )
    if found.next_cursor is None and (found.has_more or not found.eof):
        raise InvalidAnswer("the log page is not the last one and has no `next_cursor`")
    return found


class LogFollower:
    """Iterates over the records of a log, from the start or a cursor until its end.

    A page is asked for again under the same cursor until it has arrived whole, and the cursor moves only
    after its records were handed out: nothing is lost and nothing comes twice. ``cursor`` may be kept and
    given to a later follower. After the iteration, ``last`` says whether the log is complete.
    """

    def __init__(
        self,
        transport: Transport,
        path: str,
        query: Mapping[str, Any],
        *,
        cursor: str | None = None,
        follow: bool = True,
        timeout: float | None = None,
        outage_seconds: float = OUTAGE_SECONDS,
    ) -> None:
        self.cursor = cursor
        self.last: LogPage | None = None
        """The newest page; ``eof``, ``truncated`` and the like are read from it."""
        self._transport = transport
        self._path = path
        self._query = query
        self._follow = follow
        self._timeout = timeout
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._outage_seconds = outage_seconds

    def __iter__(self) -> Iterator[LogRecord]:
        idle = 0
        while True:
            asked = time.monotonic()
            if self._deadline is not None and self.last is not None and asked >= self._deadline:
                raise WaitTimeout(f"the log had not ended after {self._timeout:g} s")
            found = self._next_page()
            yield from found.records
            if found.has_more and found.next_cursor == self.cursor:
                raise InvalidAnswer("the log's cursor does not move although there is more")
            self.last = found
            self.cursor = found.next_cursor or self.cursor
            if found.has_more:
                continue
            if found.eof or not self._follow:
                return
            # A server that does not hold the request open must not be asked in a tight loop.
            quick = not found.records and time.monotonic() - asked < _QUICK_ANSWER_SECONDS
            idle = idle + 1 if quick else 0
            if idle and not self._transport.sleep(min(_IDLE.pause(idle), self._left())):
                return

    def _next_page(self) -> LogPage:
        query = {**self._query, "limit": PAGE_RECORDS}
        if self.cursor is not None:
            query.pop("tail", None)
            query["cursor"] = self.cursor
        wait = min(LONG_POLL_SECONDS, int(self._left())) if self._follow else 0
        if self._follow:
            query["wait"] = wait

        def once() -> LogPage:
            timeout = self._transport.timeout + wait
            answer = self._transport.call(
                "GET", self._path, query=query, timeout=timeout, deadline=self._deadline
            )
            return read_page(answer)

        if not self._follow:
            return once()
        try:
            return self._transport.patiently(
                once, outage_seconds=self._outage_seconds, deadline=self._deadline
            )
        except (ConnectionFailed, ServerUnavailable, RateLimited) as error:
            if self._deadline is None or time.monotonic() < self._deadline:
                raise
            raise WaitTimeout(f"no answer about the log after {self._timeout:g} s: {error}") from error

    def _left(self) -> float:
        """Seconds until the deadline."""
        return LONG_POLL_SECONDS if self._deadline is None else max(0.0, self._deadline - time.monotonic())
