"""The tools over HTTP: with the caller's own key, and nothing of the caller's folders."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest
from anyio.from_thread import start_blocking_portal
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client

from support.http import Http

READER = {"label": "reader", "permissions": ["training.read"]}
Call = Callable[[str, dict[str, Any]], Any]


@pytest.fixture(params=["2026-07-28", "legacy"])
def over_http(server, request) -> Iterator[Callable[[str], Call]]:
    with start_blocking_portal() as portal:

        def with_key(key: str) -> Call:
            async def call(tool: str, arguments: dict[str, Any]) -> Any:
                headers = {"Authorization": f"Bearer {key}"}
                async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
                    transport = streamable_http_client(f"{server.url}/mcp", http_client=http)
                    async with Client(transport, mode=request.param) as client:
                        if tool == "list":
                            return await client.list_tools()
                        return await client.call_tool(tool, arguments)

            return lambda tool, arguments: portal.call(call, tool, arguments)

        yield with_key


def test_the_tools_are_served_over_http_with_the_callers_key(server, over_http):
    call = over_http(server.key)
    assert "gpu_status" in {tool.name for tool in call("list", {}).tools}
    status = call("gpu_status", {})
    assert not status.is_error
    assert status.structured_content["providers"][0]["name"] == "local"


def test_what_the_key_may_not_do_the_tools_do_not(server, over_http):
    made = server.http().post("/v1/admin/projects/default/keys", READER)
    assert made.status == 201, made.body
    call = over_http(made.json["key"])
    assert not call("gpu_status", {}).is_error
    refused = call("gpu_cancel", {"ref": "0" * 12})
    assert refused.structured_content["error"]["code"] == "forbidden"
    stranger = over_http("ts_" + "0" * 40)("gpu_status", {})
    assert stranger.structured_content["error"]["code"] == "unauthorized"


def test_folders_of_the_caller_cannot_be_read_from_the_server(server, over_http, new_project):
    answer = over_http(server.key)("gpu_submit", {"project_dir": str(new_project()), "script": "train.py"})
    error = answer.structured_content["error"]
    assert error["code"] == "invalid_request"
    assert "gpu mcp" in error["hint"]


def test_without_a_key_or_from_a_page_of_another_origin_nobody_is_let_in(server):
    with httpx2.Client(base_url=server.url) as http:
        nobody = http.post("/mcp", json={})
        page = http.post(
            "/mcp",
            json={},
            headers={"Authorization": f"Bearer {server.key}", "Origin": "http://evil.example"},
        )
    assert (nobody.status_code, nobody.json()["code"]) == (401, "AUTHENTICATION_REQUIRED")
    assert (page.status_code, page.json()["code"]) == (403, "ORIGIN_DENIED")
    assert Http(server.url, server.key).get("/v1/me").status == 200, "the other doors are as they were"
