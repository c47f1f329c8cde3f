"""The first call of an agent starts this user's server, which outlives the agent (contract G, a.0)."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.agent_jobs import GOES_ON, approve, ended, fetched, runs, submitted
from support.agents import GPU, Agent
from support.person import Person
from support.processes import all_pids, command_of, environment_of
from trainshed.sdk import embedded
from trainshed.sdk.home import Home, find_home


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    """A user without a server; whatever was started is stopped."""
    monkeypatch.setenv("TRAINSHED_HOME", str(tmp_path / "home"))
    found = find_home()
    yield found
    embedded.stop(found)


def kill_mcp_servers(environment: dict[str, str]) -> int:
    """Kill every `gpu mcp` of this home, as a client does that crashes; how many there were."""
    mark = f"TRAINSHED_HOME={environment['TRAINSHED_HOME']}".encode()
    found = [pid for pid in all_pids() if f"{GPU} mcp" in command_of(pid) and mark in environment_of(pid)]
    for pid in found:
        os.killpg(os.getpgid(pid), signal.SIGKILL)
    return len(found)


def test_G14_G24_G82_a_killed_agent_leaves_server_and_job_and_a_person_answers_there(
    home, new_project, tmp_path
):
    environment = {"TRAINSHED_HOME": str(tmp_path / "home"), "TRAINSHED_SIMULATE_GPUS": "H100:1"}
    gate = tmp_path / "gate"
    folder = new_project({"long.py": GOES_ON.format(gate=str(gate)), "asks.py": "print('allowed')\n"})
    first = Agent(environment).__enter__()
    short, _ = submitted(first, folder, script="long.py", smoke=True)
    runs(first, short)
    assert kill_mcp_servers(environment) == 1
    with contextlib.suppress(Exception):  # the other end of its connection is gone
        first.__exit__(None, None, None)
    server = embedded.find(home)
    assert server is not None
    gate.touch()
    with Agent(environment) as second:
        assert ended(second, short)["job"]["state"] == "done"
        assert fetched(second, short).is_dir(), "also an empty output has its folder"
        asking, answer = submitted(second, folder, script="asks.py", provider="local")
        assert answer["guidance"]["follow"] == "end_turn"
        key = (home.server_data / "owner.key").read_text().strip()
        with contextlib.closing(Person(tmp_path / "person", server.url, key)) as person:
            approve(person, second, asking)
        assert ended(second, asking)["job"]["state"] == "done"
    assert embedded.find(home).pid == server.pid
