"""A coding agent as the tests play it: the protocol's own client, talking to a real `gpu mcp` over stdio."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import mcp_types as types
from anyio.from_thread import BlockingPortal, start_blocking_portal
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

GPU = Path(sys.executable).with_name("gpu")
_KEPT = ("PATH", "HOME", "LANG", "PYTHONDONTWRITEBYTECODE")


class Agent:
    """One connection. ``mode`` is that of the protocol's client: ``auto``, a version, or ``legacy``."""

    def __init__(self, environment: Mapping[str, str], *, mode: str = "auto") -> None:
        kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
        self._parameters = StdioServerParameters(command=str(GPU), args=["mcp"], env={**kept, **environment})
        self._mode = mode
        self._portal_context: AbstractContextManager[BlockingPortal] | None = None
        self._portal: BlockingPortal
        self._client_context: AbstractContextManager[Client]
        self._client: Client
        self.progress: list[tuple[float, float | None, str | None]] = []
        """What the last call told while it waited."""

    def __enter__(self) -> Self:
        self._portal_context = start_blocking_portal()
        self._portal = self._portal_context.__enter__()
        client = Client(stdio_client(self._parameters), mode=self._mode)
        self._client_context = self._portal.wrap_async_context_manager(client)
        self._client = self._client_context.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._client_context.__exit__(kind, error, traceback)
        assert self._portal_context is not None
        self._portal_context.__exit__(kind, error, traceback)

    @property
    def protocol_version(self) -> str | None:
        return self._client.protocol_version

    def tools(self) -> dict[str, types.Tool]:
        """The tools by name."""
        return {tool.name: tool for tool in self._portal.call(self._client.list_tools).tools}

    def result(self, tool: str, arguments: Mapping[str, Any]) -> types.CallToolResult:
        """The whole result of a call."""
        self.progress = []

        async def told(progress: float, total: float | None, message: str | None) -> None:
            self.progress.append((progress, total, message))

        async def call() -> types.CallToolResult:
            return await self._client.call_tool(tool, dict(arguments), progress_callback=told)

        return self._portal.call(call)

    def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """The answer of a call that has to work."""
        result = self.result(tool, arguments)
        assert not result.is_error, result.structured_content
        return dict(result.structured_content)

    def refused(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """The error of a call that has to fail: code, message, hint, detail."""
        result = self.result(tool, arguments)
        assert result.is_error, result.structured_content
        return dict(result.structured_content["error"])
