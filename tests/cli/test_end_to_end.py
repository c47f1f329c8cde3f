"""The command line against a real server: the whole path, administration, and every refusal it can meet."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from support.leftovers import processes_of
from support.runners import definition, repository
from support.waiting import wait_until
from trainshed.cli.exits import Exit

MAIN = """
mkdir -p out
echo "$TRAINSHED_PARAM_RUN_COMMAND" > out/command.txt
echo to-stdout; echo to-stderr >&2
exit ${TRAINSHED_PARAM_STATUS:-0}
"""
RESOURCES = {"gpu_type": "H100", "gpus": 1}
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def run(module_server) -> Run:
    own = {
        name: value for name, value in os.environ.items() if not name.startswith(("TRAINSHED_", "ENVLOOP_"))
    }

    def run(*arguments: str, text: str | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "trainshed", *arguments],
            input=text,
            capture_output=True,
            text=True,
            env={**own, **module_server.environment, **environment},
            timeout=120,
            check=False,
        )

    return run


@pytest.fixture(scope="module")
def ok(run) -> Callable[..., dict]:
    """Run with --json; the command must succeed with one document on stdout."""

    def ok(*arguments: str, **options: str) -> dict:
        done = run(*arguments, "--json", **options)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return ok


@pytest.fixture(scope="module")
def runner(ok, tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("work") / "runner"
    text = definition(outputs=("out/**",), params=("run_command",)) + '[params.status]\ndefault = "0"\n'
    repository(folder, {"runner.toml": text, "main.sh": MAIN})
    return ok("runner", "publish", str(folder), "--name", "cli/echo")["selector"]


def submit_options(runner: str, *more: str) -> list[str]:
    return ["job", "submit", "--type", "train", "--runner", runner, "--gpu-type", "H100", "--gpu", "1", *more]


def test_E23_E50_E82_the_whole_path_by_its_published_spelling(run, ok, runner, tmp_path):
    command = "line one\n'two' \"three\" é $HOME \\"
    receipt = ok(*submit_options(runner, "--trials", "2", "--command", command))
    job = receipt["job_id"]
    log = run("job", "log", job, "--follow")
    assert log.returncode == 0
    assert sorted(log.stdout.splitlines()) == ["[trial-1] to-stdout", "[trial-2] to-stdout"]
    assert "[trial-1] to-stderr" in log.stderr
    assert ok("job", "wait", job, "--released")["status"] == "completed"
    assert ok("job", "get", job)["job_id"] == job
    assert ok("job", "result", job)["checkpoints"] == []
    trials = ok("trial", "list", "--type", "train", "--job-id", job)["items"]
    assert [trial["cleanup_confirmed"] for trial in trials] == [True, True]
    assert [trial["job_id"] for trial in trials] == [job, job]
    ended = ok("job", "get", job)
    assert ok("job", "stop", job) == ended == ok("job", "get", job)
    for trial in trials:
        folder = tmp_path / trial["name"]
        fetched = ok("trial", "download", trial["trial_id"], "--to", str(folder))
        assert [(item["name"], item["state"]) for item in fetched["items"]] == [
            ("out/command.txt", "verified")
        ]
        content = (folder / "out/command.txt").read_bytes()
        assert content == command.encode() + b"\n"
        (listed,) = ok("trial", "artifacts", trial["trial_id"])["items"]
        assert listed["sha256"] == hashlib.sha256(content).hexdigest()
        assert ok("trial", "get", trial["trial_id"])["command"] == command
    assert run("trial", "log", trials[0]["trial_id"], "--raw", "--stream", "stderr").stdout == "to-stderr\n"
    assert ok("job", "events", job)["items"]
    assert job in run("job", "list").stdout
    assert run("job", "list", "--quiet", "--limit", "1").stdout.strip() == job


def test_people_see_tables_with_everything_that_was_frozen(run, runner):
    done = run(*submit_options(runner, "--wait"))
    assert done.returncode == 0, done.stderr
    assert "simulated" in done.stdout
    assert "succeeded" in done.stdout
    trial = run("trial", "list", "--quiet", "--limit", "1").stdout.strip()
    shown = run("trial", "get", trial).stdout
    for word in (runner, "main.sh", "exit code", "H100", "complete", "released"):
        assert word in shown, word
    for name in ("runner list", "runner get cli/echo", f"runner get {runner}", f"runner files {runner}"):
        assert "main.sh" in run(*name.split()).stdout, name
    assert run("runner", "files", runner, "main.sh").stdout == MAIN
    for word in ("peak memory", "CPU seconds", "1 on local", "node", "revision", "limits"):
        assert word in shown, word
    assert "\nstate " not in shown, "it would say again what the status says"


def test_publishing_the_same_commit_again_says_so(run, tmp_path):
    repository(tmp_path / "runner", {"runner.toml": definition(), "main.sh": "true"})
    first = run("runner", "publish", str(tmp_path / "runner"), "--name", "cli/twice")
    again = run("runner", "publish", str(tmp_path / "runner"), "--name", "cli/twice")
    assert "Published." in first.stderr
    assert "was published before; nothing had to be sent" in again.stderr
    quiet = run("runner", "publish", str(tmp_path / "runner"), "--name", "cli/twice", "--quiet")
    assert (quiet.stdout.startswith("cli/twice@"), quiet.stderr) == (True, "")
    assert "cli/twice@" in run("runner", "list", "--quiet").stdout


def test_following_a_submission_ends_with_the_proof_of_release(run):
    done = run(*submit_options("envloop/bash@main", "--command", "true", "--follow"))
    assert "-- Released 1 x H100" in done.stderr
    assert re.search(r"trial-1 .* yes ", done.stdout), done.stdout


def test_E69_waiting_for_a_job_that_fails_exits_1(run, runner, tmp_path):
    folder = tmp_path / "runner"
    repository(folder, {"runner.toml": definition(), "main.sh": "exit 9"})
    assert run("runner", "publish", str(folder), "--name", "cli/fails").returncode == 0
    done = run(*submit_options("cli/fails@main", "--wait", "--json"))
    assert done.returncode == Exit.FAILED
    assert json.loads(done.stdout)["training"]["trials"][0]["exit_code"] == 9


def test_E26_a_conflict_exits_6_and_names_what_differs(run, ok, runner):
    first = ok(*submit_options(runner, "--request-id", "cli-conflict"))
    assert ok(*submit_options(runner, "--request-id", "cli-conflict"))["job_id"] == first["job_id"]
    done = run(*submit_options(runner, "--request-id", "cli-conflict", "--trials", "2"))
    assert done.returncode == Exit.CONFLICT
    assert "JOB_REQUEST_CONFLICT" in done.stderr
    assert "trials" in done.stderr


def test_E76_stopping_ends_a_job_that_would_never_end(run, ok):
    job = ok(*submit_options("envloop/bash@main", "--command", "sleep 600"))["job_id"]
    trial = ok("trial", "list", "--job-id", job)["items"][0]["trial_id"]
    stopped = ok("job", "stop", job, "--wait")
    assert stopped["status"] == "cancelled"
    assert ok("job", "stop", job)["status"] == "cancelled"
    assert ok("trial", "stop", trial)["status"] == "cancelled"
    assert run("job", "wait", job).returncode == Exit.FAILED


REFUSED = {
    "INVALID_REQUEST_ID": {"spec": {"runner": "envloop/bash@main", "resources": RESOURCES}},
    "INVALID_JOB_TYPE": {"type": "agent"},
    "INVALID_TRIALS": {"trials": []},
    "INVALID_TRAIN_JOB_SPEC": {"spec": {"env": {"A": "b"}}},
    "UNSUPPORTED_TRAINING_BACKEND_SELECTION": {"spec": {"provider": "p"}},
    "INVALID_RUNNER": {"spec": {"runner": "envloop/bash"}},
    "RUNNER_NOT_FOUND": {"spec": {"runner": "envloop/nothing@main"}},
    "INVALID_COMMAND": {"spec": {"command": "a\0b"}},
    "UNSUPPORTED_COMMAND": {"spec": {"runner": "cli/plain@main", "command": "x"}},
    "INVALID_TAG": {"spec": {"tags": {"-": "x"}}},
    "INVALID_EXECUTION_CONFIG": {"spec": {"timeout_seconds": 0}},
    "UNSUPPORTED_HARDWARE": {"spec": {"resources": {"gpu_type": "NOSUCH", "gpus": 1}}},
    "EXECUTOR_UNAVAILABLE": {"spec": {"image": "127.0.0.1:1/no/registry"}},
    "PROFILE_RUNNER_UNSUPPORTED": {
        "spec": {"profile": {"schema": "envloop.job-profile/v1", "inputs": {}, "recipe": {}, "plugins": []}}
    },
}


@pytest.fixture(scope="module")
def _plain_runner(run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("work") / "plain"
    repository(folder, {"runner.toml": definition(), "main.sh": "true"})
    assert run("runner", "publish", str(folder), "--name", "cli/plain").returncode == 0


@pytest.mark.usefixtures("_plain_runner")
@pytest.mark.parametrize("code", REFUSED)
def test_every_refusal_of_a_submission_reaches_the_person_with_its_code(run, code):
    changed = REFUSED[code]
    request = {"request_id": f"refused-{code}", **changed}
    if code == "INVALID_REQUEST_ID":
        del request["request_id"]
    if "trials" not in changed:
        spec = {"runner": "envloop/bash@main", "resources": RESOURCES}
        request["spec"] = {**spec, **changed.get("spec", {})}
    done = run("job", "submit", "--spec", "-", text=json.dumps(request))
    assert done.returncode in {Exit.REFUSED, Exit.NOT_FOUND, Exit.UNAVAILABLE}
    assert f"error: {code} (" in done.stderr
    assert "hint: " in done.stderr
    assert done.stdout == ""


@pytest.mark.usefixtures("_plain_runner")
def test_administration_from_project_to_revocation(run, ok, module_server, tmp_path):
    ok("project", "create", "cli-team", "--max-gpus", "1", "--gpu-hours", "2.5")
    assert (
        ok("project", "set", "cli-team", "--gpu-hours", "none", "--priority", "2")["budget_gpu_hours"] is None
    )
    assert ok("project", "get", "cli-team")["priority"] == 2
    shown = run("project", "set", "cli-team", "--max-gpus", "unlimited").stdout
    assert shown.count("unlimited") == 3
    assert ok("project", "set", "cli-team", "--max-content", "500Gi")["max_content_bytes"] == 500 << 30
    assert re.search(r"content quota +500\.0 GiB", run("project", "get", "cli-team").stdout)
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "a.txt").write_bytes(b"x" * 3000)
    ok("dataset", "publish", str(tmp_path / "words"), "--name", "cli-used/words", "--version", "1")
    used = re.compile(r"content used +(.+)")
    for change in (("set", "default", "--priority", "0"), ("get", "default")):
        assert used.findall(run("project", *change).stdout) == ["3.2 KiB"], change  # its manifest, too
    assert used.findall(run("project", "set", "cli-team", "--priority", "2").stdout) == ["0 B"]
    assert ok("project", "set", "cli-team", "--max-content", "unlimited")["max_content_bytes"] is None
    assert re.search(r"GPU-hours used +0\.00", shown)
    ok("project", "set", "cli-team", "--max-gpus", "1")
    assert "cli-team" in run("project", "list").stdout
    team = ("--project", "cli-team")
    ok(*team, "member", "set", "ada", "developer")
    assert [member["user"] for member in ok(*team, "member", "list")["items"]] == ["ada"]
    made = run(*team, "key", "create", "laptop", "--user", "ada")
    key = made.stdout.strip()
    home = str(tmp_path / "home")
    nothing_set = {"TRAINSHED_HOME": home, "TRAINSHED_URL": "", "TRAINSHED_API_KEY": ""}
    assert run("login", module_server.url, text=f"{key}\n", **nothing_set).returncode == 0
    assert json.loads(run("whoami", "--json", **nothing_set).stdout)["project_id"] == "cli-team"
    assert json.loads(run("status", "--json", **nothing_set).stdout)["answers"] is True
    assert run("key", "list", **nothing_set).returncode == Exit.ACCESS
    listed = ok(*team, "key", "list")["items"]
    assert key not in json.dumps(listed)
    (key_id,) = [item["key_id"] for item in listed if item["label"] == "laptop"]
    ok(*team, "key", "revoke", key_id)
    assert run("whoami", **nothing_set).returncode == Exit.ACCESS
    assert run("logout", **nothing_set).returncode == 0
    assert run("whoami", **nothing_set).returncode == Exit.USAGE
    ok(*team, "member", "remove", "ada")
    assert ok("runner", "visibility", "cli/plain", "projects", "--to", "cli-team")["projects"] == ["cli-team"]


def test_a_wrong_key_is_not_saved(run, module_server, tmp_path):
    home = {"TRAINSHED_HOME": str(tmp_path / "home"), "TRAINSHED_URL": ""}
    assert run("login", module_server.url, text="tsk_wrong\n", **home).returncode == Exit.ACCESS
    assert run("login", module_server.url, text="no key\n", **home).returncode == Exit.USAGE
    assert not (tmp_path / "home").exists()


def test_doctor_says_what_is_here_and_what_the_server_offers(run, ok, module_server):
    found = ok("doctor")
    assert {check["name"] for check in found["checks"]} >= {
        "python",
        "git",
        "gpus",
        "database",
        "disk",
        "limit: memory",
    }
    assert all(
        check["state"] in {"ok", "warning", "missing"} and check["needed_for"] for check in found["checks"]
    )
    assert found["server"]["url"] == module_server.url
    assert found["server"]["simulated"] is True
    shown = run("doctor").stdout
    assert "8xH100 simulated" in shown
    assert "(incl. simulated)" in shown
    # What is done already is no advice.
    assert "export TRAINSHED_SIMULATE_GPUS" not in shown


def test_the_demo_runs_the_whole_path_and_leaves_nothing(run, tmp_path):
    done = run("demo", "--json", "--keep", str(tmp_path / "kept"), TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["status"] == "completed"
    assert len(found["trials"]) == 2
    for trial in found["trials"]:
        assert (trial["state"], trial["exit_code"], trial["output_status"]) == ("succeeded", 0, "complete")
        assert trial["cleanup_confirmed"]
        assert float(trial["accuracy"].rstrip("%")) > 90
        content = (tmp_path / "kept" / trial["name"] / "outputs/metrics.json").read_bytes()
        digests = [item["sha256"] for item in found["artifacts"] if item["trial"] == trial["name"]]
        assert hashlib.sha256(content).hexdigest() in digests
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    wait_until(lambda: not processes_of(tmp_path), 60, "every process of the demo to be gone")


@pytest.mark.parametrize(
    ("interrupted_after", "by"),
    [
        ("Starting", [signal.SIGINT]),
        ("Publishing", [signal.SIGINT, signal.SIGINT]),
        ("epoch", [signal.SIGHUP]),
        ("epoch", [signal.SIGTERM, signal.SIGINT]),
    ],
)
def test_an_interrupted_demo_leaves_nothing_either(module_server, tmp_path, interrupted_after, by):
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "trainshed", "demo"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )
    with process:
        guard = threading.Timer(100, process.kill)
        guard.start()
        for line in process.stdout:
            if interrupted_after in line:
                for number in by:
                    process.send_signal(number)
                break
        rest = process.stdout.read()
        guard.cancel()
    assert process.returncode == Exit.INTERRUPTED, rest
    assert list(tmp_path.iterdir()) == []
    wait_until(lambda: not processes_of(tmp_path), 60, "every process of the demo to be gone")


def test_commands_answer_quickly(run, ok, runner):
    """A coarse guard; `make bench` has the figures. Each run is a fresh process."""
    job = ok(*submit_options(runner, "--wait"))["job_id"]
    times = []
    for arguments in (("--help",), ("job", "get", job)):
        best = 60.0
        for _ in range(3):
            start = time.perf_counter()
            assert run(*arguments).returncode == 0
            best = min(best, time.perf_counter() - start)
        times.append(best)
    assert times[0] < 3
    assert times[1] < 6
