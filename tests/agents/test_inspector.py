"""Each tool by the MCP Inspector's command line: a client that is not of our making (contract G, a)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from support.agent_jobs import ended
from support.agents import GPU
from trainshed.mcp.schemas import BY_NAME

PROGRAMS = Path(__file__).parents[2] / ".venv-inspector" / "node_modules" / ".bin"
INSPECTOR = PROGRAMS / "mcp-inspector"
# Where there is npm, as in CI, the tests install it themselves, and fail without it.
pytestmark = pytest.mark.skipif(
    not INSPECTOR.exists() and shutil.which("npm") is None,
    reason="the MCP Inspector is not installed: scripts/install-inspector needs npm",
)


@pytest.fixture
def inspect(server, tmp_path):
    """Runs the Inspector; its exit status, and what it printed on both outputs."""
    if not INSPECTOR.exists():
        pytest.fail("the MCP Inspector is missing: run scripts/install-inspector")
    given = [word for name, value in server.environment.items() for word in ("-e", f"{name}={value}")]
    env = {"PATH": f"{PROGRAMS}:{os.environ['PATH']}", "HOME": str(tmp_path)}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        argv = [str(PROGRAMS / "mcp-inspector"), "--cli", *given, str(GPU), "mcp", *words]
        return subprocess.run(
            argv, check=False, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=120
        )

    return run


@pytest.fixture
def tool(inspect):
    """Calls a tool; its answer."""

    def call(name: str, **arguments: Any) -> dict[str, Any]:
        pairs = [
            f"{key}={value if isinstance(value, str) else json.dumps(value)}"
            for key, value in arguments.items()
        ]
        more = ["--tool-arg", *pairs] if pairs else []
        done = inspect("--method", "tools/call", "--tool-name", name, *more)
        assert done.returncode == 0, done.stderr
        result = json.loads(done.stdout)
        assert not result.get("isError"), result
        assert json.loads(result["content"][0]["text"]) == result["structuredContent"]
        return dict(result["structuredContent"])

    return call


def test_a_every_tool_answers_the_inspector(agent, tool, new_project):
    folder = str(new_project())
    answer = tool("gpu_submit", project_dir=folder, script="train.py", smoke=True, args=["a", "b c"])
    short = answer["job"]["short_id"]
    assert answer["submitted"] is True
    found = ended(agent, short)
    assert (found["job"]["state"], found["job"]["spec"]["args"]) == ("done", ["a", "b c"])
    calls = {
        "gpu_status": {"ref": short},
        "gpu_logs": {"ref": short, "tail": 5},
        "gpu_fetch": {"ref": short},
        "gpu_cancel": {"ref": short},
        "gpu_quota": {},
        "gpu_route": {"project_dir": folder, "script": "train.py", "smoke": True},
        "trainshed_jobs": {"limit": 3},
        "trainshed_why": {"job": short},
        "trainshed_events": {"job": short},
        "trainshed_search_logs": {"job": short, "text": "trained"},
        "trainshed_compare": {"a": short, "b": short},
    }
    assert {"gpu_submit", *calls} == set(BY_NAME), "every tool has its call"
    with ThreadPoolExecutor(3) as pool:
        answers = dict(
            zip(calls, pool.map(lambda item: tool(item[0], **item[1]), calls.items()), strict=True)
        )
    assert answers["gpu_logs"]["lines"] == ["trained"]
    assert answers["gpu_status"]["job"]["state"] == "done"
    assert answers["gpu_route"]["route"]["chosen"] == "local"
    assert answers["trainshed_compare"]["differences"] == []


def test_a05_the_inspector_finds_no_fault_with_the_schemas(inspect):
    done = inspect("--method", "tools/list", "--strict")
    assert done.returncode == 0, done.stderr
    assert {each["name"] for each in json.loads(done.stdout)["tools"]} == set(BY_NAME)
