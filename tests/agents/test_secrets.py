"""A person's secrets: asked about, given to the script, and seen nowhere else (contract G, h)."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.agent_jobs import approve, ended, fetched, submitted, words
from support.processes import all_pids, command_of
from support.projects import write
from support.waiting import wait_until

VALUE = "canary-7c1e5a90fd secret/value+"
LEAK = """
import os, pathlib, sys, time, gpu
value = os.environ["MY_API"]
assert value == pathlib.Path({wanted!r}).read_text()
print("it is", value)
print("and again", value, file=sys.stderr)
gpu.log(1, loss=0.5)
pathlib.Path({there!r}).touch()
while not pathlib.Path({gate!r}).exists():
    time.sleep(0.05)
raise RuntimeError("told " + value)
"""


class Everything:
    """What is looked through: each answer of each tool, and every command line while the Job runs."""

    def __init__(self) -> None:
        self.answers: list[str] = []
        self.commands: set[str] = set()

    @contextmanager
    def watching(self) -> Iterator[None]:
        over = threading.Event()

        def watch() -> None:
            while not over.wait(0.02):
                self.commands.update(command_of(pid) for pid in all_pids())

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


@pytest.fixture
def leaky(new_project, tmp_path):
    (tmp_path / "wanted").write_text(VALUE)
    places = {name: str(tmp_path / name) for name in ("wanted", "there", "gate")}
    folder = new_project({"leak.py": LEAK.format(**places), "gpu.yaml": "secrets: [MY_API]\n"})
    return folder, places


def test_G24_G51_G27_a_secret_reaches_the_script_after_a_yes_and_is_seen_nowhere_else(
    agent, server, person, leaky
):
    folder, places = leaky
    assert person.request("PUT", "/v1/secrets/MY_API", {"value": VALUE})[0] == 200
    seen = Everything()
    with seen.watching():
        short, answer = submitted(agent, folder, script="leak.py", provider="local", hours=0.2)
        assert answer["job"]["state"] == "awaiting_approval"
        assert "MY_API" in answer["guidance"]["why"]
        assert answer["guidance"]["needs_approval"] is True
        waiting = agent.call("gpu_status", ref=short, verbose=True)
        assert waiting["attempts"] == [], "nothing was started, so nothing was read"
        approve(person, agent, short)
        wait_until(Path(places["there"]).exists, 60, "the script to have its secret")
        seen.answers.append(json.dumps(agent.call("gpu_logs", ref=short)))
        Path(places["gate"]).touch()
        found = ended(agent, short)
    assert words(found)[1:] == ["routing", "awaiting_approval", "provisioning", "running", "failed"]
    assert found["job"]["exit_code"] == 1
    log = agent.call("gpu_logs", ref=short)
    assert [line for line in log["lines"] if line.startswith("it is")] == ["it is ***"]
    assert log["lines"][-1] == "RuntimeError: told ***"
    outputs = fetched(agent, short)
    seen.answers += [json.dumps(each) for each in (waiting, found, log)]
    for call in (
        ("gpu_status", {}), ("gpu_status", {"ref": short}), ("gpu_fetch", {"ref": short}),
        ("gpu_cancel", {"ref": short}), ("gpu_quota", {}),
        ("gpu_route", {"project_dir": str(folder), "script": "leak.py"}),
        ("trainshed_jobs", {}), ("trainshed_why", {"job": short}), ("trainshed_events", {"job": short}),
        ("trainshed_search_logs", {"job": short, "text": "told"}),
        ("trainshed_compare", {"a": short, "b": short}),
    ):  # fmt: skip
        seen.answers.append(json.dumps(agent.call(call[0], **call[1])))
    assert VALUE[:17] not in "".join([*seen.answers, *seen.commands])
    assert any("gpu_runner" in command for command in seen.commands)
    canary = VALUE[:17].encode()
    for top in (server.data, outputs):
        kept = [path for path in top.rglob("*") if path.is_file() and not path.is_symlink()]
        assert kept or top is outputs
        assert [path for path in kept if canary in path.read_bytes()] == []
    assert canary not in server.log.read_bytes()


def test_h4_a_secret_that_is_missing_ends_the_job_with_how_to_set_it(agent, new_project, person):
    folder = new_project({"gpu.yaml": "secrets: [NOT_THERE]\n"})
    short, _ = submitted(agent, folder, script="train.py", smoke=True)
    approve(person, agent, short)
    job = ended(agent, short)["job"]
    assert (job["state"], job["failure_kind"]) == ("failed", "user_error")
    assert "gpu secrets set NOT_THERE" in job["message"]


def test_canaries_in_files_and_refused_calls_are_in_no_answer_and_nowhere_kept(agent, server, new_project):
    canary = "hf_cAnArY8s7d6f5g4h3j2k1"
    folder = new_project({"train.py": f"TOKEN = '{canary}'\n"})
    write(folder, {".env": canary, "kaggle.json": canary})
    route = agent.call("gpu_route", project_dir=str(folder), script="train.py", smoke=True)
    assert "train.py:1" in str(route["bundle"]["warnings"])
    refused = [
        agent.refused("gpu_submit", project_dir=str(folder), script="train.py", env={"X": canary}),
        agent.refused("gpu_submit", project_dir=str(folder), script="train.py", hours=canary),
        agent.refused("gpu_submit", project_dir=str(folder), script="train.py", **{canary: 1}),
        agent.refused("gpu_logs", ref=canary),
    ]
    assert canary not in str([route, refused[0]])
    assert canary not in server.log.read_text()
    for path in server.data.rglob("*"):
        if path.is_file() and not path.is_symlink():
            assert canary.encode() not in path.read_bytes()
