"""Script Jobs on the real engine of this machine, with the real runner."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from support.cloud import LocalScripts
from support.databases import on_one_kind
from support.hub import Hub, serving
from trainshed.model.scripts.spec import DataItem
from trainshed.model.scripts.wire import hidden

pytestmark = on_one_kind

TRAIN = b"""
import json, os, sys, time
import gpu
from lib import util

start = gpu.latest_checkpoint()
first = int(open(start).read()) if start else 0
gpu.total_steps(util.STEPS)
print("arguments", json.dumps(sys.argv[1:]), os.environ["PLAIN"], os.environ.get("TOKEN_X", "none"))
folder = gpu.data_dir()
print("data", sorted(os.listdir(os.path.join(folder, "set"))), open(os.path.join(folder, "one")).read())
for step in range(first, util.STEPS):
    gpu.log(step=step + 1, loss=1.0 / (step + 1))
    with gpu.atomic_checkpoint("state.txt") as path:
        open(path, "w").write(str(step + 1))
os.makedirs(os.path.join(gpu.output_dir(), "sub"), exist_ok=True)
open(os.path.join(gpu.output_dir(), "sub", "model.txt"), "w").write(f"from {first}")
"""
PROJECT = {"train.py": TRAIN, "lib/__init__.py": b"", "lib/util.py": b"STEPS = 3\n"}


@pytest.fixture
def real(database, tmp_path):
    deployment = LocalScripts(database, tmp_path / "real")
    yield deployment
    deployment.close()


def pack(d: LocalScripts, **spec: object) -> str:
    facts: dict[str, object] = {
        "bundle": d.bundle(PROJECT),
        "args": ("a b", "", "--lr=1", "ü"),
        "env": {"PLAIN": "value"},
        "data": (
            d.dataset("set", {"x": b"1", "y": b"2"}),
            replace(d.dataset("one", {"only.txt": b"whole"}), single_file="only.txt"),
        ),
        "provider": "local",
    }
    return d.pack(**{**facts, **spec})


def test_a_packed_project_trains_on_this_machine_to_its_outputs(real):
    """G5, G45, G47, G51, G53, G54, G56: files, arguments, variables, data and secrets reach the program."""
    real.secrets["TOKEN_X"] = "very-secret-value"
    job = pack(real, secrets=("TOKEN_X",))
    tale = real.rest(job)
    assert tale.words[:4] == ["queued", "routing", "provisioning", "running"]
    assert tale.words[-1] == "done", real.log(job)
    assert tale.look.script.gpu == "H100"
    assert "H100 (simulated) with" in tale.look.script.route_reason
    assert "Started on local, H100 (simulated)." in [each.message for each in tale.events]
    assert real.delivered(job) == {"sub/model.txt": b"from 0"}
    shown = [line for line in real.log(job) if not hidden(line)]
    assert 'arguments ["a b", "", "--lr=1", "\\u00fc"] value' in "\n".join(shown)
    assert "very-secret-value" not in "\n".join(real.log(job)), "it is masked"
    assert "data ['x', 'y'] whole" in shown
    assert json.loads(tale.look.script.progress) == {"step": 3, "total": 3, "source": "helper"}
    assert json.loads(tale.look.script.metrics)["loss"] == pytest.approx(1 / 3)
    assert [each.step for each in tale.checkpoints], "its state is kept as well"


def test_G44_a_program_that_fails_says_so_with_its_own_exit_code(real):
    job = pack(real, bundle=real.bundle({"train.py": b"print('no')\nraise SystemExit(7)\n"}))
    tale = real.rest(job)
    assert tale.words[-2:] == ["running", "failed"]
    assert (tale.look.trial.exit_code, tale.look.script.failure_kind) == (7, "user_error")
    assert "no" in real.log(job)
    assert real.delivered(job) == {}, "its folder is there, and empty"


STAYS = b"""
import os, pathlib, signal, time
import gpu

start = gpu.latest_checkpoint()
if start is None:
    gpu.log(step=1, loss=0.5)
    with gpu.atomic_checkpoint("state.txt") as path:
        pathlib.Path(path).write_text("1")
    while not os.path.exists(os.environ["GATE"]):
        time.sleep(0.02)
    os.kill(os.getpid(), signal.SIGKILL)
pathlib.Path(gpu.output_dir(), "from.txt").write_text(pathlib.Path(start).read_text())
"""


def stays(real: LocalScripts, tmp_path) -> tuple[str, Path]:
    """A Job that has saved and waits for a file, and where its newest Attempt works."""
    env = {"TRAINSHED_CHECKPOINT_INTERVAL_S": "0.2", "GATE": str(tmp_path / "gate")}
    job = real.pack(bundle=real.bundle({"train.py": STAYS}), env=env, provider="local")
    real.run_until(lambda: real.tale(job).checkpoints, steps=3000, pause=0.05)
    return job, real.engine.work_directory(real.tale(job).attempts[-1].attempt_id)


def test_b_a_runner_that_somebody_kills_is_no_fault_of_the_program_which_goes_on_elsewhere(real, tmp_path):
    job, work = stays(real, tmp_path)
    os.kill(int((work / ".gpu" / "lock").read_text()), signal.SIGKILL)
    tale = real.rest(job, pause=0.2)
    assert tale.words[-1] == "done", real.log(job)
    assert [each.state for each in tale.attempts] == ["lost", "succeeded"]
    assert "session_lost" in tale.reasons
    assert "signal 9 ended the runner" in tale.attempts[0].message
    assert real.delivered(job) == {"from.txt": b"1"}, "it went on from what it had saved"


def test_b_a_program_that_dies_of_a_signal_is_told_of_by_its_runner(real, tmp_path):
    job, _ = stays(real, tmp_path)
    (tmp_path / "gate").touch()
    tale = real.rest(job, pause=0.2)
    assert (tale.words[-1], len(tale.attempts)) == ("failed", 1)
    assert (tale.look.trial.exit_code, tale.look.script.failure_kind) == (137, "user_error")


def test_G57_packed_data_and_a_dataset_of_the_hub_lie_side_by_side(real):
    show = b"""
import gpu, pathlib
top = pathlib.Path(gpu.data_dir())
read = [(top / path).read_text() for path in ("set/x", "hub/a.txt")]
print("found", sorted(path.name for path in top.iterdir()), *read)
"""
    with serving(Hub({"a.txt": b"of the hub"})) as hub:
        data = (real.dataset("set", {"x": b"packed"}), DataItem("hub", uri="hf://datasets/owner/set"))
        env = {"HF_ENDPOINT": hub.url}
        job = pack(real, bundle=real.bundle({"train.py": show}), data=data, env=env)
        tale = real.rest(job)
    assert tale.words[-1] == "done", real.log(job)
    assert "found ['hub', 'set'] packed of the hub" in real.log(job)
