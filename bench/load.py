"""An open-loop load: requests are sent when they are due, whatever became of those before them.

Latency counts from the moment a request was due, so that a server that stalls cannot hide it. The client is
kept small on purpose: it shares the processors with what it measures.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import uvloop

_OK = (200, 201)
_TIMEOUT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Request:
    """One request, sent ``due`` seconds after the load began; ``kind`` groups latencies."""

    due: float
    kind: str
    method: str
    path: str
    body: bytes = b""


@dataclass(slots=True)
class Outcome:
    """Latencies in milliseconds by kind, and how many requests failed."""

    latencies: dict[str, list[float]] = field(default_factory=dict)
    failures: int = 0
    first_failure: str = ""


def run_load(url: str, headers: dict[str, str], requests: Sequence[Request]) -> Outcome:
    """Send all requests when they are due and wait for every answer."""
    return uvloop.run(_run(url, headers, requests))


async def _run(url: str, headers: dict[str, str], requests: Sequence[Request]) -> Outcome:
    client = _Client(url, headers)
    outcome = Outcome()
    began = time.perf_counter() + 0.05

    async def one(request: Request) -> None:
        await asyncio.sleep(max(0.0, began + request.due - time.perf_counter()))
        try:
            status, answer = await asyncio.wait_for(client.send(request), _TIMEOUT_SECONDS)
        except (OSError, TimeoutError, EOFError) as error:
            status, answer = 0, repr(error).encode()
        if status in _OK:
            took = time.perf_counter() - began - request.due
            outcome.latencies.setdefault(request.kind, []).append(took * 1000)
        else:
            outcome.failures += 1
            outcome.first_failure = outcome.first_failure or f"{status} {answer[:200]!r}"

    async with asyncio.TaskGroup() as group:
        for request in requests:
            group.create_task(one(request))
    client.close()
    return outcome


class _Client:
    """HTTP/1.1 over kept connections, as many as there are requests under way."""

    def __init__(self, url: str, headers: dict[str, str]) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def send(self, request: Request) -> tuple[int, bytes]:
        reader, writer = (
            self._idle.pop() if self._idle else await asyncio.open_connection(self._host, self._port)
        )
        head = f"{request.method} {request.path} HTTP/1.1\r\nHost: {self._host}\r\n{self._head}"
        writer.write(f"{head}Content-Length: {len(request.body)}\r\n\r\n".encode() + request.body)
        answer = await reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line[15:]) for line in answer.lower().split(b"\r\n") if line.startswith(b"content-length:")
        )
        body = await reader.readexactly(length)
        self._idle.append((reader, writer))
        return int(answer[9:12]), body

    def close(self) -> None:
        for _, writer in self._idle:
            writer.close()
