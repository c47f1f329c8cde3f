"""P14, P6, P9 of packed projects, through a real server that is killed while they run."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.processes import marked
from support.programs import marks
from support.projects import project
from support.waiting import wait_until
from trainshed import Client
from trainshed.sdk.packing import prepare
from trainshed.sdk.source import MARKERS

TRAIN = """
import os, time, subprocess, sys
import gpu

mark, go = os.environ["MARK"], os.environ["GO"]
with open(mark, "a") as file:
    file.write(f"{os.getpid()}\\n")
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
gpu.log(step=1, loss=0.5)
print("before")
while not os.path.exists(go):
    time.sleep(0.05)
print("after")
with open(os.path.join(gpu.output_dir(), "model.txt"), "w") as file:
    file.write("trained")
"""


@pytest.fixture
def people(monkeypatch):
    for name in MARKERS:
        monkeypatch.delenv(name, raising=False)


def test_a_packed_project_runs_on_while_the_server_is_down_and_its_outputs_come_home(
    new_server, tmp_path, people
):
    server, go, starts = new_server().start(), tmp_path / "go", tmp_path / "starts"
    home = project(tmp_path / "work" / "proj", {"train.py": TRAIN})
    with Client(server.url, server.key) as client:
        wanted = {"script": "train.py", "hours": 0.2, "provider": "local"}
        ready = prepare(client, home, {**wanted, "env": {"MARK": str(starts), "GO": str(go)}})
        ref = client.scripts.submit(ready.spec).job.short_id
        wait_until(lambda: marks(starts), 60)
    server.kill()
    go.touch()
    attempts = server.data / "local" / "attempts"
    wait_until(lambda: list(attempts.glob("*/exit.json")), 60, what="the program to end by itself")
    server.start()
    with Client(server.url, server.key) as client:
        done = client.scripts.wait(ref, timeout=120)
        assert done.state == "done", done.raw
        outputs = Path(done.outputs_dir)
        wait_until((outputs / "model.txt").exists, 60)
        assert (outputs / "model.txt").read_text() == "trained"
        assert len(marks(starts)) == 1, "it started once"
        notes = [event["reason"] for event in client.scripts.events(ref) if event["kind"] == "note"]
        assert "recovered" in notes
        lines = [line for page in client.scripts.follow(ref, timeout=60) for line in page.lines]
        assert [line for line in lines if line in {"before", "after"}] == ["before", "after"]
        [trial] = server.wait_for_release(done.job_id)
        assert trial["cleanup_confirmed"]
    assert not marked(f"MARK={starts}".encode()), "what it left behind is gone"


def test_G41_a_cancelled_project_leaves_nothing_running(new_server, tmp_path, people):
    server, starts = new_server().start(), tmp_path / "starts"
    home = project(tmp_path / "work" / "proj", {"train.py": TRAIN})
    with Client(server.url, server.key) as client:
        env = {"MARK": str(starts), "GO": str(tmp_path / "never")}
        ready = prepare(client, home, {"script": "train.py", "hours": 0.2, "provider": "local", "env": env})
        ref = client.scripts.submit(ready.spec).job.short_id
        wait_until(lambda: marks(starts), 60)
        client.scripts.cancel(ref)
        done = client.scripts.wait(ref, timeout=120)
        assert done.state == "cancelled"
        server.wait_for_release(done.job_id)
    assert not marked(f"MARK={starts}".encode())
