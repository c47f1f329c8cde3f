"""The server is killed under an agent's Job: the Job goes on, once, and no line of its log is lost."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from support.agent_jobs import GOES_ON, approve, ended, fetched, notes, submitted, words
from support.agents import Agent
from support.person import Person
from support.waiting import wait_until

COUNTS = """
import pathlib, time
import gpu
number = 0
while not pathlib.Path({gate!r}).exists():
    number += 1
    print("line", number)
    time.sleep(0.02)
print("last", number)
(pathlib.Path(gpu.output_dir()) / "number").write_text(str(number))
"""


def lines_since(agent: Agent, ref: str, since: str | None) -> tuple[list[str], str | None]:
    """What is new in a log, page by page."""
    found: list[str] = []
    while True:
        page = agent.call("gpu_logs", ref=ref, **({"since": since} if since else {"tail": 1000}))
        found += page["lines"]
        if not page["lines"]:
            return found, page["next_since"]
        since = page["next_since"]


def test_G32_k2_k4_k5_after_the_server_was_killed_it_is_the_same_job_and_every_line_is_read_once(
    server, new_project, tmp_path
):
    gate = tmp_path / "gate"
    folder = new_project({"counts.py": COUNTS.format(gate=str(gate))})
    call = {"script": "counts.py", "smoke": True, "wait_s": 0}
    with Agent(server.environment) as before:
        short, _ = submitted(before, folder, **call)
        wait_until(lambda: len(before.call("gpu_logs", ref=short)["lines"]) > 3, 60, "some lines")
        lines, since = lines_since(before, short, None)
        server.kill()
        lost = before.refused("gpu_status", ref=short)
        assert lost["code"] == "daemon_unavailable"
        uncertain = before.refused("gpu_submit", project_dir=str(folder), **call)
        assert uncertain["code"] in {"daemon_unavailable", "submit_uncertain"}
    server.start()
    with Agent(server.environment) as after:
        again = after.call("gpu_submit", project_dir=str(folder), **call)
        assert (again["submitted"], again["job"]["short_id"]) == (False, short)
        gate.touch()
        found = ended(after, short)
        assert (found["job"]["state"], len(found["attempts"])) == ("done", 1)
        assert "recovered" in notes(found)
        more, _ = lines_since(after, short, since)
        number = int(Path(fetched(after, short), "number").read_text())
    assert [*lines, *more] == [*(f"line {each}" for each in range(1, number + 1)), f"last {number}"]


def test_k6_it_dies_as_the_job_is_stored_and_the_same_call_finds_that_job(server, new_project, tmp_path):
    folder = new_project({"long.py": GOES_ON.format(gate=str(tmp_path / "gate"))})
    call = {"project_dir": str(folder), "script": "long.py", "smoke": True, "wait_s": 0}
    server.stop()
    server.start(environment={"TRAINSHED_CRASH_AT": "accept.after_commit"})
    with Agent(server.environment) as before:
        error = before.refused("gpu_submit", **call)
        assert error["code"] == "submit_uncertain"
        assert error["hint"] == "Call again with the same arguments."
        server.wait(30)
    server.start()
    with Agent(server.environment) as after:
        again = after.call("gpu_submit", **call)
        assert again["submitted"] is False
        (tmp_path / "gate").touch()
        assert ended(after, again["job"]["short_id"])["job"]["state"] == "done"


def test_k6_it_dies_as_a_yes_is_stored_and_the_job_runs_once_without_another(server, new_project, tmp_path):
    folder = new_project({"train.py": f"open({str(tmp_path / 'starts')!r}, 'a').write('x')\n"})
    server.stop()
    server.start(environment={"TRAINSHED_CRASH_AT": "script.after_approve"})
    with Agent(server.environment) as before:
        short, answer = submitted(before, folder, script="train.py", provider="local")
        assert answer["guidance"]["needs_approval"] is True
        with (
            contextlib.closing(Person(tmp_path / "person", server.url, server.key)) as person,
            pytest.raises((ValueError, OSError)),  # the person's client dies of the broken connection
        ):
            approve(person, before, short)
        server.wait(30)
    server.start()
    with Agent(server.environment) as after:
        found = ended(after, short)
        assert words(found)[-4:] == ["awaiting_approval", "provisioning", "running", "done"]
        assert len(found["attempts"]) == 1
    assert (tmp_path / "starts").read_text() == "x"
