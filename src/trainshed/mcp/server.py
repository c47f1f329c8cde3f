"""The MCP server: lists the tools, checks what they are called with, runs them, tells what went wrong.

Built on the protocol's own SDK, so that both generations of the protocol are served: the one with a
handshake and the one without. Listing tools needs no server of ours, no login and no network (a.0.1).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server

from trainshed import __version__
from trainshed.mcp.arguments import checked
from trainshed.mcp.calls import Ask, Calls
from trainshed.mcp.errors import ToolError, told
from trainshed.mcp.schemas import BY_NAME, TOOLS, ToolSpec

NAME = "trainshed"
INSTRUCTIONS = (
    "Runs project folders on GPUs (gpu_* tools) and reads jobs of every kind (trainshed_* tools). "
    "When an answer has guidance.needs_approval, relay guidance.tell_user to your user word for word and end "
    "your turn: only a person can approve, in their own terminal."
)
MOST_AT_ONCE = 200
"""Calls that are answered at once; further ones wait for their turn."""
OpenCalls = Callable[[ServerRequestContext[Any, Any]], Calls]


def build(open_calls: OpenCalls) -> Server[Any]:
    """A server whose tools go through what ``open_calls`` answers for the request's caller."""
    # Not the threads that answer requests: over HTTP each call waits for some of this same server.
    threads = anyio.CapacityLimiter(MOST_AT_ONCE)

    async def list_tools(
        _context: ServerRequestContext[Any, Any], _params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[described(tool) for tool in TOOLS])

    async def call_tool(
        context: ServerRequestContext[Any, Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        try:
            return _result(await _run(context, params, open_calls, threads))
        except ToolError as error:
            return _result(error.as_dict(), failed=True)

    return Server(
        NAME,
        version=__version__,
        title="Trainshed",
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        get_tool_input_schema=lambda name: BY_NAME[name].input_schema() if name in BY_NAME else None,
    )


def described(tool: ToolSpec) -> types.Tool:
    """A tool as the protocol describes it."""
    access = tool.access
    return types.Tool(
        name=tool.name,
        title=tool.title,
        description=tool.description,
        input_schema=tool.input_schema(),
        output_schema=tool.output,
        annotations=types.ToolAnnotations(
            title=tool.title,
            read_only_hint=access.reads_only,
            destructive_hint=access.destructive,
            idempotent_hint=access.idempotent,
            open_world_hint=access.open_world,
        ),
    )


async def _run(
    context: ServerRequestContext[Any, Any],
    params: types.CallToolRequestParams,
    open_calls: OpenCalls,
    threads: anyio.CapacityLimiter,
) -> dict[str, Any]:
    tool = BY_NAME.get(params.name)
    if tool is None:
        said = f"there is no tool {params.name[:80]!r}"
        raise ToolError("invalid_request", said, hint=f"Tools: {', '.join(BY_NAME)}.")
    arguments = checked(tool, params.arguments)

    def progress(done: float, total: float, message: str) -> None:
        anyio.from_thread.run(context.session.report_progress, done, total, message)

    ask = Ask(tool.name, arguments, progress)
    try:
        return await anyio.to_thread.run_sync(
            partial(_work, open_calls, context, ask), abandon_on_cancel=True, limiter=threads
        )
    except ToolError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets the one error shape
        failure = told(error, submitting=tool.name == "gpu_submit")
        if failure.code == "internal":
            print(f"{tool.name} failed: {type(error).__name__}", file=sys.stderr)  # noqa: T201 - stdout is the protocol's
        raise failure from None


def _work(open_calls: OpenCalls, context: ServerRequestContext[Any, Any], ask: Ask) -> dict[str, Any]:
    return open_calls(context).answer(ask)


def _result(answer: Mapping[str, Any], *, failed: bool = False) -> types.CallToolResult:
    """The same object twice: as data, and as the JSON text that older clients read (a.0.5)."""
    text = json.dumps(answer, ensure_ascii=False)
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=text)],
        structured_content=json.loads(text),
        is_error=failed,
    )
