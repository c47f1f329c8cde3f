"""The server is killed under an agent's Job: the Job goes on, once, and no line of its log is lost."""

from __future__ import annotations

from pathlib import Path

from support.agent_jobs import ended, fetched, notes, submitted
from support.agents import Agent
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
