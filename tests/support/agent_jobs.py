"""Jobs as an agent has them: waited for, brought home, and what a script saw where it ran."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.agents import Agent
from support.person import CODE, Person
from support.waiting import wait_until

GOES_ON = "import pathlib, time\nwhile not pathlib.Path({gate!r}).exists():\n    time.sleep(0.05)\n"
"""A script that ends once a file is there."""
SHOW = """
import json, os, pathlib, sys
import gpu

def below(top):
    found = {}
    for folder, _, names in os.walk(str(top), followlinks=True):
        for name in names:
            path = pathlib.Path(folder, name)
            found[str(path.relative_to(top))] = path.read_bytes().decode("latin-1")
    return found

code = next(p for p in pathlib.Path(__file__).resolve().parents if p.name == "code")
data = gpu.data_dir()
seen = {
    "argv": sys.argv[1:],
    "env": dict(os.environ),
    "cwd": str(pathlib.Path.cwd().relative_to(code)),
    "files": {name: text for name, text in below(code).items() if "__pycache__" not in name},
    "data": below(data) if data.is_dir() else {},
}
(pathlib.Path(gpu.output_dir()) / "seen.json").write_text(json.dumps(seen))
print("shown")
"""
"""A script that writes down everything it sees: arguments, variables, files and data."""


def ended(agent: Agent, ref: str) -> dict[str, Any]:
    """The whole answer about a Job that has ended."""

    def look() -> dict[str, Any] | None:
        found = agent.call("gpu_status", ref=ref, wait_s=10, verbose=True)
        return found if found["guidance"]["finished"] else None

    return wait_until(look, 120, f"the end of {ref}")


def fetched(agent: Agent, ref: str) -> Path:
    """Where the outputs of a Job are, once they are there."""
    ended(agent, ref)
    found = wait_until(
        lambda: (got := agent.call("gpu_fetch", ref=ref, wait_s=20))["fetched"] and got, 60, "outputs"
    )
    return Path(found["outputs_dir"])


def cancelled(agent: Agent, ref: str) -> None:
    agent.call("gpu_cancel", ref=ref)
    assert ended(agent, ref)["job"]["state"] == "cancelled"


def submitted(agent: Agent, folder: Path, **arguments: Any) -> tuple[str, dict[str, Any]]:
    """A new Job's short id, and the answer of the tool."""
    answer = agent.call("gpu_submit", project_dir=str(folder), **arguments)
    assert answer["submitted"] is True
    return answer["job"]["short_id"], answer


def seen(agent: Agent, folder: Path, **arguments: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """What `SHOW` saw as a quick test on this machine, and the answer of the tool."""
    short, answer = submitted(agent, folder, smoke=True, **arguments)
    found = ended(agent, short)
    assert found["job"]["state"] == "done", (found["job"], agent.call("gpu_logs", ref=short)["lines"])
    return json.loads((fetched(agent, short) / "seen.json").read_text()), answer


def words(found: dict[str, Any]) -> list[str]:
    """The states that a Job went through, of a verbose answer about it."""
    return [event["to"] for event in found["events"] if event["kind"] == "transition"]


def approve(person: Person, agent: Agent, ref: str) -> None:
    """Say yes to the question about a Job, with the code that the terminal shows."""
    path = _question(agent, ref)
    before = len(CODE.findall(person.shown()))
    status, answer = person.request("POST", f"{path}/challenge")
    assert status == 200, answer
    wait_until(lambda: len(CODE.findall(person.shown())) > before, 30, f"a new code, as {answer} says")
    status, answer = person.request("POST", f"{path}/answer", {"answer": "approved", "code": person.code()})
    assert status == 200, answer


def deny(person: Person, agent: Agent, ref: str) -> None:
    """Say no to the question about a Job."""
    status, answer = person.request("POST", f"{_question(agent, ref)}/answer", {"answer": "denied"})
    assert status == 200, answer


def _question(agent: Agent, ref: str) -> str:
    job = agent.call("gpu_status", ref=ref, verbose=True)["job"]
    assert job["state"] == "awaiting_approval", job
    return f"/v1/approvals/{job['approval_id']}"


def runs(agent: Agent, ref: str) -> None:
    """Wait until a Job's script runs."""
    wait_until(lambda: agent.call("gpu_status", ref=ref, wait_s=5)["job"]["state"] == "running", 60)


def notes(found: dict[str, Any]) -> list[str]:
    return [event["reason"] for event in found["events"] if event["kind"] == "note"]
