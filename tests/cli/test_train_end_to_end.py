"""Training tasks through the real program and a real server: from a file to its outcome, administration."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.server import ServerProcess
from support.torch import torch_path
from support.waiting import wait_until
from trainshed.cli.exits import Exit

EXAMPLES = Path(__file__).parents[2] / "examples" / "training"
TASK = """\
type: train
spec:
  kind: pytorch
  name_prefix: hello
  image: host
  cmd: |
    echo "rank $RANK of $WORLD_SIZE"
    test -n "$SECRET"
  env:
  - {name: SECRET, value: s3cret, hidden: true}
  resource_type: ondemand
  workers: 1
  instance: {specs: [h100x1]}
"""
Run = Callable[..., subprocess.CompletedProcess[str]]


def runner(server: ServerProcess) -> Run:
    own = {
        name: value for name, value in os.environ.items() if not name.startswith(("TRAINSHED_", "ENVLOOP_"))
    }

    def run(*arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "trainshed", *arguments],
            input=text,
            capture_output=True,
            text=True,
            env={**own, **server.environment},
            timeout=300,
            check=False,
        )

    return run


@pytest.fixture(scope="module")
def run(module_server) -> Run:
    return runner(module_server)


@pytest.fixture(scope="module")
def ok(run) -> Callable[..., dict]:
    """Run with --json; the command must succeed with one document on stdout."""

    def ok(*arguments: str, text: str | None = None) -> dict:
        done = run("train", *arguments, "--json", text=text)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return ok


def test_C55_a_task_goes_from_its_file_to_its_outcome(run, ok, module_server, tmp_path):
    file = tmp_path / "task.yaml"
    file.write_text(TASK)
    done = run("train", "create", "-f", str(file), "--follow")
    assert done.returncode == Exit.OK, done.stderr
    said = [line for line in done.stdout.splitlines() if line.startswith("[")]
    assert sorted(said) == ["[master] rank 0 of 2", "[worker-0] rank 1 of 2"]
    assert "Succeeded" in done.stdout
    (found,) = ok("list", "--q", "hello-", "--state", "Succeeded")["items"]
    name = found["name"]
    task = ok("get", name)
    assert [task[key] for key in ("job_id", "name", "task_uuid", "state")] == [
        found[key] for key in ("job_id", "name", "task_uuid", "state")
    ]
    assert {each["state"] for each in task["attempts"][0]["replicas"]} == {"Succeeded"}
    codes = [event["code"] for event in ok("events", name)["items"]]
    assert (
        codes.index("SUBMITTED") < codes.index("ADMITTED") < codes.index("STARTED") < codes.index("FINISHED")
    )
    (worker,) = ok("logs", name, "--role", "worker", "--index", "0")["items"]
    assert (worker["content"], worker["replica"]) == ("rank 1 of 2", 1)
    assert "items" in ok("metrics", name)
    # The same file again within a minute is taken for a mistake (C56).
    again = run("train", "create", "-f", str(file))
    assert again.returncode == Exit.CONFLICT
    assert f"it is {name}" in again.stderr
    made = tmp_path / "made.yaml"
    ok("edit", name, "--output", str(made))
    assert "s3cret" not in made.read_text()
    refused = run("train", "create", "-f", str(made))
    assert refused.returncode == Exit.REFUSED
    assert f"{made}:" in refused.stderr
    made.write_text(made.read_text().replace("# value: hidden; write it here", "value: other"))
    other = ok("create", "-f", str(made), "--wait")
    assert (other["state"], other["name"] != name) == ("Succeeded", True)
    module_server.wait_for_release(task["job_id"])
    assert ok("resubmit", name)["state"] not in {"Failed", "Stopped"}
    assert ok("wait", name)["attempts"][-1]["cause"] == "manual"
    ok("delete", name)
    assert run("train", "get", name).returncode == Exit.NOT_FOUND


def test_C56_a_request_id_finds_the_task_again(ok):
    first = ok("create", "-f", "-", "--request-id", "mine", "--set", "name_prefix=again", text=TASK)
    again = ok("create", "-f", "-", "--request-id", "mine", "--set", "name_prefix=again", text=TASK)
    assert first["name"] == again["name"]
    assert first["state"] == "Queuing"


def test_a_task_that_fails_is_told_with_its_last_lines_and_the_status_is_1(run):
    settings = ("--set", "cmd=echo because; exit 7", "--set", "name_prefix=bad")
    done = run("train", "create", "-f", "-", *settings, "--wait", text=TASK)
    assert done.returncode == Exit.FAILED
    assert "exit 7" in done.stdout
    assert "  because" in done.stdout


def test_every_fault_of_a_file_is_told_with_its_place(run, tmp_path):
    file = tmp_path / "task.yaml"
    file.write_text(TASK.replace("workers: 1", "workers: -1").replace("image: host", "imag: host"))
    done = run("train", "create", "-f", str(file))
    assert done.returncode == Exit.REFUSED
    for place in (f"{file}:5:3: spec.imag", f"{file}:2:1: spec.image", f"{file}:12:3: spec.workers"):
        assert place in done.stderr


@pytest.mark.parametrize("word", ["create", "validate"])
@pytest.mark.parametrize("kind", ["  kind: pytroch\n", ""])
def test_C4_a_file_whose_kind_is_misspelt_or_missing_is_judged_as_a_task(run, word, kind):
    text = TASK.replace("  kind: pytorch\n", kind).replace("instance:", "instnce:")
    done = run("train", word, "-f", "-", "--json", text=text)
    assert done.returncode == Exit.REFUSED
    found = {each["path"]: each["code"] for each in json.loads(done.stderr.splitlines()[-1])["errors"]}
    assert found == {
        "spec.kind": "KIND_UNKNOWN",
        "spec.instnce": "UNKNOWN_FIELD",
        "spec.instance.specs": "FIELD_REQUIRED",
    }


@pytest.mark.parametrize("spec", ["{runner: a/b@main}", "{kind: script}"])
def test_C4_what_is_no_task_is_not_made_by_the_command_for_tasks(run, spec):
    done = run("train", "create", "-f", "-", text=f"spec: {spec}\n")
    assert done.returncode == Exit.REFUSED
    assert "this is no training task" in done.stderr


def test_C21_C23_a_task_is_judged_without_creating_it(run, ok):
    found = ok("validate", "-f", "-", "--set", "workers=3", text=TASK)
    assert (found["totals"]["pods"], found["totals"]["gpus"]) == (4, 4)
    (quota,) = found["quota"]
    assert (quota["requested"], quota["limit"]) == (4, 8)
    assert found["would_start"] is True
    small = ok("validate", "-f", "-", "--set", "workers=3", "--smoke", "5", text=TASK)
    assert small["totals"]["pods"] == 1
    never = run("train", "validate", "-f", "-", "--set", "workers=8", text=TASK)
    assert never.returncode == Exit.REFUSED
    assert "QUOTA_EXCEEDED" in never.stderr


def test_P10_a_task_that_waits_says_what_for_and_its_priority_can_be_changed(ok, module_server):
    http = module_server.http()
    wide = ("--set", "workers=0", "--set", "instance.specs=[h100x8]", "--set", "cmd=exec sleep 600")
    holds = ok("create", "-f", "-", *wide, "--set", "name_prefix=holds", text=TASK)["name"]
    wait_until(lambda: http.get(f"/v1/tasks/{holds}").json["state"] == "Running", 60, "the first to run")
    waits = ok("create", "-f", "-", *wide, "--set", "name_prefix=waits", text=TASK)["name"]
    why = ok("why", waits)
    assert why["code"]
    assert why["message"]
    assert why["position"] == 1
    assert ok("priority", waits, "high")["priority"] == "high"
    assert ok("share", waits, "--public")["public"] is True
    assert ok("stop", waits, "--wait")["state"] == "Stopped"
    assert ok("stop", holds, "--wait")["state"] == "Stopped"


def test_C24_C25_pools_quotas_and_cordons(run):
    def ok(*arguments: str) -> dict:
        done = run(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    (pool,) = ok("pool", "list")["items"]
    specs = {each["spec"]: each for each in pool["specs"]}
    assert specs["h100x1"]["total"] == 8
    (idle,) = ok("pool", "idle", pool["id"], "--spec", "h100x2", "--units", "1")["specs"]
    assert idle["stability"] in {"high", "medium", "low"}
    assert {row["resource_type"] for row in ok("quota", "list")["items"]} == {"reserved", "ondemand", "spot"}
    cordon = ok("pool", "cordon", "add", "local", "--cluster", "local", "--gpu", "7", "--reason", "hot")
    assert [row["reason"] for row in ok("pool", "cordon", "list")["items"]] == ["hot"]
    ok("pool", "cordon", "clear", str(cordon["id"]))
    assert ok("pool", "cordon", "list")["items"] == []


def test_a_catalogue_is_compared_then_applied_and_the_same_one_changes_nothing(new_server, tmp_path):
    run = runner(new_server().start())
    file = tmp_path / "catalog.yaml"
    assert run("catalog", "show", "--output", str(file)).returncode == 0
    assert run("catalog", "apply", "-f", str(file), "--dry-run").stdout == "Nothing changes.\n"
    file.write_text(f"{file.read_text()}\nvolumes:\n- {{id: out, clusters: ['*'], path: /srv/out}}\n")
    dry = run("catalog", "apply", "-f", str(file), "--dry-run")
    assert "+ volume out" in dry.stdout
    asked = run("catalog", "apply", "-f", str(file), text="n\n")
    assert (asked.returncode, "+ volume out" in asked.stdout) == (Exit.INTERRUPTED, True)
    done = run("catalog", "apply", "-f", str(file), text="y\n")
    assert done.returncode == 0, done.stderr
    assert "Applied as revision 1." in done.stdout
    assert run("catalog", "apply", "-f", str(file)).stdout == "Nothing changes.\n"
    text = file.read_text()
    file.write_text(text.replace("engine: local", "engine: lokal"))
    wrong = run("catalog", "apply", "-f", str(file), "--yes")
    assert wrong.returncode == Exit.REFUSED
    line = 1 + text[: text.index("engine: local")].count("\n")
    assert f"{file}:{line}:3: clusters[0].engine" in wrong.stderr


@pytest.mark.starts_first
@pytest.mark.timeout(900)
def test_C36_the_example_trains_saves_when_it_is_stopped_and_goes_on(new_server, tmp_path):
    path = torch_path()
    volume = tmp_path / "volume"
    volume.mkdir()
    settings = tmp_path / "settings.toml"
    settings.write_text(f'[training]\nvolumes = ["out={volume}"]\n')
    server = new_server(options=["--config", str(settings)], environment={"PATH": path}).start()
    run = runner(server)
    program = ("--name", "examples/training", "--version", "1")
    assert run("dataset", "publish", str(EXAMPLES / "program"), *program).returncode == 0
    slow = ("--set", 'env[2]={name: STEP_SECONDS, value: "0.2"}')
    made = run("train", "create", "-f", str(EXAMPLES / "pytorch.yaml"), *slow, "-q")
    assert made.returncode == 0, made.stderr
    name = made.stdout.strip()

    def began(attempt: int) -> str:
        """What an Attempt prints first. Asked over HTTP: commands would take the time that training needs."""
        lines = server.http().get(f"/v1/tasks/{name}/logs?attempt={attempt}").json["items"]
        return next((line["content"] for line in lines if "beginning at step" in line["content"]), "")

    wait_until(lambda: began(1), 240, "the first step")
    assert "beginning at step 0 of 200" in run("train", "logs", name).stdout
    stopped = run("train", "stop", name, "--wait")
    assert "Stopped" in stopped.stdout, stopped.stderr
    assert (volume / "checkpoint.pt").exists()
    assert "EXIT_NOTICE_HEARD" in run("train", "events", name).stdout
    server.wait_for_release(server.http().get(f"/v1/tasks/{name}").json["job_id"])
    resubmitted = run("train", "resubmit", name)
    assert resubmitted.returncode == 0, resubmitted.stderr

    again = wait_until(lambda: began(2), 240, "the second beginning")
    assert again in run("train", "logs", name, "--attempt", "2").stdout
    assert "step 0 of" not in again
    assert run("train", "stop", name, "--wait").returncode == 0
