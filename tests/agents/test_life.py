"""Jobs that are interrupted: by their own declaration, by a person, by the loss of what they ran on."""

from __future__ import annotations

import os
import signal

import pytest

from support.agent_jobs import approve, deny, ended, fetched, notes, submitted, words
from support.waiting import wait_until

STEPS = """
import json, pathlib, time
import gpu
gpu.total_steps(1000)
last = gpu.latest_checkpoint()
begun = json.loads((last / "step.json").read_text())["step"] if last else 0
step = begun
(pathlib.Path(gpu.output_dir()) / ("from-%d" % begun)).touch()
while not (begun and pathlib.Path({gate!r}).exists()):
    step += 1
    gpu.log(step, loss=1 / step)
    if step == begun + 3 or gpu.checkpoint_requested():
        with gpu.checkpoint(step) as folder:
            (folder / "step.json").write_text(json.dumps({{"step": step}}))
    time.sleep(0.05)
"""
"""Counts steps, and ends when it went on from a checkpoint and is let go."""
SECOND = 1 / 3600


@pytest.fixture
def impatient(person):
    """A team that has whoever runs longer than declared stopped at once."""
    rules = {"overrun_factor": 1.0, "overrun_grace_hours": 0.0}
    status, answer = person.request("PUT", "/v1/approval-policy", rules)
    assert status == 200, answer


def end_session(server) -> None:
    """Kill what watches over the one run there is; its program ends with it, nobody knows how."""
    [lock] = (server.data / "local" / "attempts").glob("*/lock")
    os.kill(int(lock.read_text()), signal.SIGKILL)


def asks(agent, ref: str) -> dict:
    """The answer about a Job once it waits for a person."""

    def look() -> dict | None:
        found = agent.call("gpu_status", ref=ref, wait_s=5, verbose=True)
        return found if found["guidance"]["needs_approval"] else None

    return wait_until(look, 120, "the question")


def steps_of(found: dict) -> list[int]:
    """The steps of its checkpoints, oldest first."""
    return [each["step"] for each in found["checkpoints"]]


def test_G26_G27_G39_G42_G43_G46_stopped_or_lost_it_goes_on_from_its_checkpoint(
    agent, server, person, impatient, new_project, tmp_path
):
    # A lost one is tried again after half a minute. The other story is told meanwhile.
    gates = [tmp_path / "gate-a", tmp_path / "gate-b"]
    folders = [new_project({"steps.py": STEPS.format(gate=str(gate))}) for gate in gates]
    lost, _ = submitted(agent, folders[0], script="steps.py", provider="local", hours=1.0)
    wait_until(lambda: agent.call("gpu_status", ref=lost)["checkpoints"], 60, "a checkpoint")
    end_session(server)
    waiting = wait_until(
        lambda: (
            (found := agent.call("gpu_status", ref=lost, wait_s=5, verbose=True))
            and "retry_scheduled" in notes(found)
            and found
        ),
        60,
    )
    guidance = waiting["guidance"]
    assert (guidance["state"], guidance["follow"]) == ("migrating", "report_and_stop")

    slow, _ = submitted(agent, folders[1], script="steps.py", provider="local", hours=3 * SECOND)
    waiting = asks(agent, slow)
    assert waiting["guidance"]["needs_approval"] is True
    assert "it ran" in waiting["guidance"]["tell_user"]
    assert words(waiting)[-2:] == ["migrating", "awaiting_approval"]
    gates[1].touch()
    approve(person, agent, slow)
    found = ended(agent, slow)
    assert (found["job"]["state"], len(found["attempts"])) == ("done", 2), "there is no second stop"
    assert after(words(found), "awaiting_approval") == ["provisioning", "running", "done"]
    went_on(agent, slow, found)

    gates[0].touch()
    found = ended(agent, lost)
    assert (found["job"]["state"], len(found["attempts"])) == ("done", 2)
    told = words(found)
    assert told[:6] == ["queued", "routing", "provisioning", "running", "checkpointing", "running"]
    assert after(told, "migrating") == ["provisioning", "running", "done"]
    assert "session_lost" in [event["reason"] for event in found["events"]]
    went_on(agent, lost, found)


def after(told: list[str], word: str) -> list[str]:
    """The states after one, without saves of checkpoints."""
    rest = told[told.index(word) + 1 :]
    saves = {number for number, each in enumerate(rest) if each == "checkpointing"}
    return [each for number, each in enumerate(rest) if number not in saves and number - 1 not in saves]


def went_on(agent, ref, found) -> None:
    """It began again at a step that it had saved."""
    names = {path.name for path in fetched(agent, ref).iterdir()}
    [begun] = {int(name.removeprefix("from-")) for name in names if name.startswith("from-")} - {0}
    assert begun in steps_of(found)
    assert found["job"]["progress"]["step"] >= begun


def test_G26_G40_denied_it_ends_so_and_what_it_saved_is_kept(agent, person, impatient, new_project, tmp_path):
    folder = new_project({"steps.py": STEPS.format(gate=str(tmp_path / "never"))})
    slow, _ = submitted(agent, folder, script="steps.py", provider="local", hours=SECOND)
    asks(agent, slow)
    deny(person, agent, slow)
    found = ended(agent, slow)
    assert (found["job"]["state"], len(found["attempts"])) == ("denied", 1)
    assert "Do not submit it again" in found["guidance"]["next"]
    assert found["checkpoints"]
