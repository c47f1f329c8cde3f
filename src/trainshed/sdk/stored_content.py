"""What is stored: how much of it there is, collecting garbage, looking for damage. Needs ``admin``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from trainshed.sdk.answers import mapping
from trainshed.sdk.errors import ConnectionFailed, RateLimited, ServerUnavailable, api_error
from trainshed.sdk.transport import Transport, route

Document = Mapping[str, Any]
_SLOW_SECONDS = 600.0
"""What reads much of a large database may take so long."""
_STATUS = {"AUTHENTICATION_REQUIRED": 401, "PERMISSION_DENIED": 403}
"""The event that ends a stream carries no HTTP status; the others are outages."""


@dataclass(frozen=True, slots=True)
class _Event:
    """One server-sent event."""

    kind: str
    id: str
    document: Document


class StoredContent:
    """``client.content``."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def usage(self) -> Document:
        """What each project holds, by kind, and its quota; all of the store with the owner key."""
        path = route("admin", "content", "usage")
        return mapping(self._transport.call("GET", path, timeout=_SLOW_SECONDS), "a usage report")

    def garbage(self) -> Document:
        """What collecting garbage would remove now and later. Owner key only."""
        path = route("admin", "content", "garbage")
        return mapping(self._transport.call("GET", path, timeout=_SLOW_SECONDS), "a report")

    def collect_garbage(self) -> Document:
        """Ask the controller for a pass now; `passes` tells how it goes. Owner key only."""
        return mapping(self._transport.call("POST", route("admin", "content", "gc"), content=b""), "a pass")

    def passes(self) -> Document:
        """The newest pass, and the one ``asked`` for last. Owner key only."""
        return mapping(self._transport.call("GET", route("admin", "content", "gc")), "a report")

    def take_out(self, sha256: str, *, target: str | None = None) -> Document:
        """Remove a blob's stored copy if it is damaged, so that publishing sends it again. Owner key only.

        ``target`` as of `verify`: the advice is about what was asked for, not others that share its bytes.
        """
        path, query = route("admin", "content", "blobs", sha256, "take-out"), {"target": target}
        answer = self._transport.call("POST", path, query=query, content=b"", repeatable=True)
        return mapping(answer, "an answer")

    def verify(
        self, target: str | None = None, *, mb_per_second: float | None = None, cursor: str | None = None
    ) -> Iterator[Document]:
        """Read every byte again on the server and compare; what is found, as it is found.

        ``target`` is a Job's id, ``namespace/name@ref``, a content's URI or a blob's SHA-256; ``None`` is
        everything. Each document has ``type``: ``progress``, ``damage`` or, the last one, ``end``; and a
        ``cursor`` to go on from. A lost connection is taken up again where it broke.
        """
        query = {"target": target, "mb_per_second": mb_per_second}
        given = urlencode({key: value for key, value in query.items() if value is not None})
        path = f"{route('admin', 'content', 'verify')}?{given}"
        last, failures = cursor or "", 0
        while True:
            try:
                for event in self._once(path, last):
                    failures = 0
                    last = event.id or last
                    ends = {"type": "end"} if event.kind == "end" else {}
                    yield {**event.document, **ends, "cursor": last}
                    if ends:
                        return
            except (ConnectionFailed, ServerUnavailable, RateLimited):
                failures += 1
                retry = self._transport.retry
                if failures >= retry.attempts or not self._transport.sleep(retry.pause(failures)):
                    raise

    def _once(self, path: str, last: str) -> Iterator[_Event]:
        """The events of one connection, up to the last one of all; raises where they end before it."""
        headers = {"Accept": "text/event-stream", **({"Last-Event-ID": last} if last else {})}
        with self._transport.stream(path, further=headers) as answer:
            for event in _events(answer.chunks()):
                if event.kind == "error":
                    status = _STATUS.get(str(event.document.get("code")), 503)
                    raise api_error(status, event.document)
                yield event
                if event.kind == "end":
                    return
        raise ConnectionFailed("the server ended the verification before its end")


def _events(chunks: Iterable[bytes]) -> Iterator[_Event]:
    """Server-sent events of a stream of bytes; one that is cut off is left out."""
    buffer = b""
    for chunk in chunks:
        buffer += chunk
        *blocks, buffer = buffer.split(b"\n\n")
        for block in blocks:
            fields = {"event": "message", "id": "", "data": ""}
            for line in block.decode().splitlines():
                name, colon, value = line.partition(":")
                if colon and name in fields:
                    fields[name] = value.removeprefix(" ")
            if fields["data"]:
                yield _Event(fields["event"], fields["id"], json.loads(fields["data"]))
