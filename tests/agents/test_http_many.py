"""Many agents at once over HTTP: what their calls wait for is never kept from being answered by them."""

from __future__ import annotations

from typing import Any

import anyio
import httpx2
from anyio.from_thread import start_blocking_portal
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client

from support.http import Http

MANY = 60
"""More than the threads that answer requests of the server."""
SECONDS = 90.0


def test_as_many_calls_as_there_are_threads_do_not_stop_the_server(server):
    answers: list[Any] = []

    async def call() -> None:
        headers = {"Authorization": f"Bearer {server.key}"}
        async with httpx2.AsyncClient(headers=headers, timeout=SECONDS) as http:
            transport = streamable_http_client(f"{server.url}/mcp", http_client=http)
            async with Client(transport) as client:
                answers.append(await client.call_tool("gpu_status", {}))

    async def all_at_once() -> None:
        with anyio.fail_after(SECONDS):
            async with anyio.create_task_group() as tasks:
                for _ in range(MANY):
                    tasks.start_soon(call)

    with start_blocking_portal() as portal:
        portal.call(all_at_once)
    assert [answer.is_error for answer in answers] == [False] * MANY
    assert Http(server.url, server.key).get("/v1/me").status == 200
