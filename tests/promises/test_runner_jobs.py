"""What a Runner Job does and shows, through every door, on one real server (contract E)."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.programs import bash, leaving_a_mark, marks
from support.runners import definition, publish, repository, trainshed
from support.server import ServerProcess
from support.waiting import wait_until
from trainshed.cli.exits import Exit
from trainshed.sdk import Client

Publish = Callable[..., dict[str, Any]]
SIZES = {"cpus": 1, "memory_mb": 256, "storage_mb": 512, "shm_mb": 16}
RENDEZVOUS = re.compile(
    r"MASTER_|(LOCAL_|NODE_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)$|PET_|TORCHELASTIC|NCCL_|GLOO_|RAY_|SLURM_|PMI"
    r"|OMPI_|TF_CONFIG|TRAINSHED_(.*(HOST|PEER|REPLICA|RANK|GANG|MEMBER|MASTER|HEAD|SIZE|ADDRESS))"
)


@pytest.fixture
def published(module_server: ServerProcess, tmp_path: Path) -> Publish:
    """Publish a Runner with this entry file; what the command answered."""

    def make(name: str, main: str, entrypoint: str = "main.sh", **options: Any) -> dict[str, Any]:
        repository(tmp_path / name, {"runner.toml": definition(entrypoint, **options), entrypoint: main})
        return publish(module_server, tmp_path / name, f"jobs/{name}")

    return make


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Path]:
    """A file that programs wait for; it is there at the latest when the test ends, well or not."""
    place = tmp_path / "gate"
    yield place
    place.touch()


def waiting_for(place: Path) -> str:
    return f"until [ -e {shlex.quote(str(place))} ]; do sleep 0.05; done"


def trials_of(server: ServerProcess, job_id: str) -> dict[str, dict[str, Any]]:
    """The Trials of an ended and released Job by their names."""
    return {trial["name"]: trial for trial in server.wait_for_release(job_id)}


def printed(server: ServerProcess, job_id: str) -> dict[str, list[str]]:
    """What each Trial wrote, by its name."""
    lines: dict[str, list[str]] = {}
    for record in server.log_records(job_id):
        lines.setdefault(record["trial_name"], []).append(record["content"])
    return lines


def submission(request_id: str, **specs: dict[str, Any]) -> dict[str, Any]:
    trials = [{"name": name.replace("_", "-"), "spec": spec} for name, spec in specs.items()]
    return {"type": "train", "request_id": request_id, "trials": trials}


def cli(server: ServerProcess, *arguments: str) -> Any:
    return json.loads(trainshed(server, *arguments, "--json").stdout)


def everywhere(server: ServerProcess, job_id: str, trial_id: str) -> dict[str, dict[str, Any]]:
    """One Trial as each door shows it."""
    http = server.http()

    def within(jobs: list[dict[str, Any]]) -> dict[str, Any]:
        (job,) = (each for each in jobs if each["job_id"] == job_id)
        return of(job["training"]["trials"])

    def of(trials: list[dict[str, Any]]) -> dict[str, Any]:
        return next(each for each in trials if each["trial_id"] == trial_id)

    shown = {
        path: http.get(f"/v1/trials/{trial_id}{path}").json
        for path in ("", "/detail", "/training", "/result")
    }
    with Client(server.url, server.key) as client:
        sdk = {"the SDK": dict(client.trials.get(trial_id).raw)}
    return {
        **shown,
        **sdk,
        "the list of Trials": of(http.get(f"/v1/trials?job_id={job_id}").json["items"]),
        "the Job": within([http.get(f"/v1/jobs/{job_id}").json]),
        "the Job's result": within([http.get(f"/v1/job/{job_id}/result").json]),
        "the list of Jobs": within(http.get("/v1/jobs?limit=100").json["items"]),
        "trial get": cli(server, "trial", "get", trial_id),
        "trial list": of(cli(server, "trial", "list", "--type", "train", "--job-id", job_id)["items"]),
        "job get": within([cli(server, "job", "get", job_id)]),
        "job result": within([cli(server, "job", "result", job_id)]),
    }


def test_E37_trials_of_one_job_have_nothing_by_which_they_could_meet(module_server):
    spec = {"runner": "envloop/bash@main", "command": "env", "resources": {"gpus": 2}}
    job_id = module_server.submit(submission("two", left_arm=spec, right_arm=spec))
    alone = module_server.submit(submission("alone", left_arm=spec))
    trials = trials_of(module_server, job_id)
    trials_of(module_server, alone)
    lines = printed(module_server, job_id)
    found = {name: dict(line.split("=", 1) for line in lines[name]) for name in trials}
    (single,) = printed(module_server, alone).values()
    assert found["left-arm"].keys() == found["right-arm"].keys() == {line.split("=")[0] for line in single}
    assert [name for name in found["left-arm"] if RENDEZVOUS.match(name)] == []
    for name, other in (("left-arm", "right-arm"), ("right-arm", "left-arm")):
        text = "\n".join(lines[name])
        assert trials[name]["attempts"][0]["attempt_id"] in text
        assert trials[other]["attempts"][0]["attempt_id"] not in text
        assert trials[other]["trial_id"] not in text
        assert other not in text
    own = [set(each["TRAINSHED_GPUS"].split(",")) for each in found.values()]
    assert [len(gpus) for gpus in own] == [2, 2]


TELLS = """
echo "entrypoint $0"
printf 'command %s\\n' "$(printf %s "${TRAINSHED_PARAM_RUN_COMMAND-none}" | sha256sum)"
echo "other ${TRAINSHED_PARAM_OTHER-none}"
"""


def test_E47_E48_E50_E54_a_command_fills_its_parameter_and_the_entrypoint_runs(module_server, published):
    tables = '[params.run_command]\n[params.other]\ndefault = "kept"\n'
    selector = published("tells", TELLS, tables=tables)["selector"]
    command = "exit 9 # ü 'one' \"two\" $HOME `x` \\\n\ttwo  lines \r\n"
    plain = {"runner": selector}
    job_id = module_server.submit(submission("tells", given={**plain, "command": command}, absent=plain))
    trials = trials_of(module_server, job_id)
    lines = printed(module_server, job_id)
    assert {trial["status"] for trial in trials.values()} == {"succeeded"}, "exit 9 is the Runner's to run"
    assert [trial["entrypoint"] for trial in trials.values()] == ["main.sh", "main.sh"]
    for name, text in (("given", command), ("absent", "none")):
        entry, told, other = lines[name]
        assert entry.endswith("main.sh")
        assert told == f"command {hashlib.sha256(text.encode()).hexdigest()}  -"
        assert other == "other kept"


def test_E49_a_command_for_a_runner_that_declares_none_refuses_the_whole_job(module_server, published):
    takes = published("takes", "true", params=("run_command",))["selector"]
    plain = published("plain", "true", params=("other",))["selector"]
    specs = {"first": {"runner": takes, "command": "x"}, "second": {"runner": plain, "command": "x"}}
    refused = module_server.http().post("/v1/jobs", submission("undeclared", **specs))
    assert (refused.status, refused.code) == (422, "UNSUPPORTED_COMMAND")
    assert [fault["path"] for fault in refused.json["errors"]] == ["trials[1].spec.command"]
    options = ("--runner", plain, "--request-id", "undeclared")
    done = trainshed(module_server, "job", "submit", *options, "--command", "x", check=False)
    assert (done.returncode, "UNSUPPORTED_COMMAND" in done.stderr) == (Exit.REFUSED, True)
    # The request id is still free: neither left a Job.
    job = cli(module_server, "job", "submit", *options)
    assert trials_of(module_server, job["job_id"])["trial-1"]["command"] is None


def test_E56_E75_resources_and_timeout_hold_for_each_trial_by_itself(module_server, gate):
    tell = 'echo "$TRAINSHED_GPUS"; df -k --output=size /dev/shm | tail -n 1'
    left = {"gpu_type": "H100", "gpus": 1, **SIZES}
    right = {"gpu_type": "H100", "gpus": 3, "cpus": 2, "memory_mb": 300, "storage_mb": 600, "shm_mb": 32}
    runner = {"runner": "envloop/bash@main"}
    job_id = module_server.submit(
        submission(
            "each",
            left={**runner, "resources": left, "timeout_seconds": 1, "command": f"{tell}; sleep 600"},
            right={
                **runner,
                "resources": right,
                "timeout_seconds": 600,
                "command": f"{waiting_for(gate)}; {tell}",
            },
        )
    )

    def late() -> dict[str, Any] | None:
        first = module_server.job(job_id)["training"]["trials"][0]
        return first if first["status"] == "failed" else None

    assert wait_until(late, 60, "the first Trial to end at its limit")["error"]["code"] == "TRIAL_TIMEOUT"
    assert module_server.job(job_id)["training"]["trials"][1]["status"] == "running"
    gate.touch()
    trials = trials_of(module_server, job_id)
    assert trials["right"]["status"] == "succeeded"
    assert [trials[name]["resources"] for name in ("left", "right")] == [left, right]
    assert [trials[name]["timeout_seconds"] for name in ("left", "right")] == [1, 600]
    assert [len(trials[name]["gpu"]["indices"]) for name in ("left", "right")] == [1, 3]
    lines = printed(module_server, job_id)
    for name, mebibytes in (("left", 16), ("right", 32)):
        indices, shm = lines[name]
        assert indices == ",".join(map(str, trials[name]["gpu"]["indices"]))
        if trials[name]["attempts"][0]["enforcement"]["shm"] == "mount":
            assert int(shm) == mebibytes << 10
    assert module_server.job(job_id)["status"] == "failed"


def test_E35_E36_what_does_not_fit_waits_and_runs_later(module_server, tmp_path, gate):
    started = tmp_path / "started"
    command = leaving_a_mark(started, waiting_for(gate))
    job_id = module_server.submit(bash(command, "crowd", trials=3, resources={"gpus": 4}))

    def full() -> list[dict[str, Any]]:
        trials = module_server.job(job_id)["training"]["trials"]
        waits = [trial["waiting"]["code"] for trial in trials if trial["waiting"]]
        return trials if len(marks(started)) == 2 and waits == ["GPUS_BUSY"] else []

    trials = wait_until(full, 60, "two of three to run")
    assert sorted(trial["status"] for trial in trials) == ["queued", "running", "running"]
    used = [index for trial in trials if trial["gpu"] for index in trial["gpu"]["indices"]]
    assert sorted(used) == list(range(8)), "2 x 4 of 8 GPUs, none of them twice"
    (waits,) = (trial["waiting"] for trial in trials if trial["waiting"])
    assert "0 of 8 are free" in waits["message"]
    gate.touch()
    assert {trial["status"] for trial in trials_of(module_server, job_id).values()} == {"succeeded"}
    assert len(set(marks(started))) == 3


def test_E58_without_any_gpu_request_a_job_is_refused(module_server, published):
    runner = published("no-gpus", "true", resources={"cpus": 1})["selector"]
    for number, resources in enumerate(({}, {"gpu_type": "H100"}, {"cpus": 1})):
        body = submission(f"no-gpu-{number}", only={"runner": runner, "resources": resources})
        refused = module_server.http().post("/v1/jobs", body)
        assert (refused.status, refused.code) == (422, "INVALID_EXECUTION_CONFIG"), resources
    body = submission("no-gpu-0", only={"runner": runner, "resources": {"gpu_type": "H100", "gpus": 1}})
    trials_of(module_server, module_server.submit(body))


PYTHON = """
import os, pathlib, sys
print(pathlib.Path(sys.argv[0]).name)
if os.environ.get("TRAINSHED_PARAM_RUN_COMMAND") == "die":
    os.kill(os.getpid(), 9)
sys.exit(int(os.environ.get("TRAINSHED_PARAM_RUN_COMMAND", "0")))
"""


def test_E57_E61_E63_E64_E65_E66_every_door_shows_what_was_frozen_and_how_it_ended(module_server, published):
    made = published(
        "shown", PYTHON, entrypoint="main.py", params=("run_command",), resources={"gpus": 2, "cpus": 3}
    )
    selector = f"{made['name']}@main"
    spec = {"runner": selector, "resources": {"gpu_type": "H100", "memory_mb": 333}}
    commands = {"none": None, "seven": "7", "last": "255", "says": "137", "killed": "die"}
    body = submission(
        "shown",
        **{name: spec if text is None else {**spec, "command": text} for name, text in commands.items()},
    )
    accepted = module_server.http().post("/v1/jobs", body).json
    job_id = accepted["job_id"]
    before = {trial["name"]: trial for trial in accepted["training"]["trials"]}
    trials = trials_of(module_server, job_id)
    ends = {
        "none": ("succeeded", 0, None),
        "seven": ("failed", 7, None),
        "last": ("failed", 255, None),
        "says": ("failed", 137, None),
        "killed": ("failed", 137, 9),
    }
    for name, trial in trials.items():
        runner = trial["runner"]
        assert (runner["name"], runner["revision"]) == ("jobs/shown", made["revision"])
        assert (runner["selector"], runner["source_ref"]) == (selector, "main")
        assert re.fullmatch(r"[0-9a-f]{64}", runner["snapshot_sha256"])
        # What is asked for first, then what the Runner says, then this server's own.
        sizes = trial["resources"]
        assert sizes | {"gpu_type": "H100", "gpus": 2, "cpus": 3, "memory_mb": 333} == sizes
        assert all(isinstance(sizes[key], int) for key in ("storage_mb", "shm_mb"))
        assert (trial["entrypoint"], trial["command"]) == ("main.py", commands[name])
        assert (trial["status"], trial["exit_code"], trial["exit_signal"]) == ends[name]
        for fact in ("runner", "resources", "entrypoint", "command", "timeout_seconds"):
            assert trial[fact] == before[name][fact], "nothing frozen changes"
        shown = everywhere(module_server, job_id, trial["trial_id"])
        for door, view in shown.items():
            for fact in ("runner", "image", "resources", "entrypoint", "command", "status", "exit_code"):
                assert view[fact] == trial[fact], f"{fact} of {door}"
    frozen = module_server.http().get(f"/v1/trials/{trials['none']['trial_id']}/snapshot").json
    (entry,) = (file for file in frozen["files"] if file["path"] == "main.py")
    assert entry["sha256"] == hashlib.sha256(PYTHON.encode()).hexdigest()
    assert printed(module_server, job_id) == {name: ["main.py"] for name in commands}
    table = trainshed(module_server, "trial", "get", trials["seven"]["trial_id"]).stdout
    for word in (selector, made["revision"], "main.py", "2 x H100", "333", "failed", "7"):
        assert word in table, word


def test_E80_running_again_takes_a_new_job(module_server, tmp_path):
    started = tmp_path / "started"
    request = bash(leaving_a_mark(started, "exit 3"), "once")
    first = module_server.submit(request)
    trials_of(module_server, first)
    ended = module_server.job(first)
    http = module_server.http()
    assert http.post("/v1/jobs", request).status == 200, "the same request is the same Job, ended as it is"
    for action in ("stop", "resume", "wake", "pause"):
        answer = http.post(f"/v1/jobs/{first}/{action}", None if action == "stop" else {})
        assert answer.status == (200 if action == "stop" else 409), action
    assert module_server.job(first) == ended
    assert len(marks(started)) == 1

    again = cli(module_server, "job", "rerun", first)
    assert again["job_id"] != first
    other = module_server.submit({**request, "request_id": "twice"})
    assert len({first, again["job_id"], other}) == 3
    for job_id in (again["job_id"], other):
        (trial,) = trials_of(module_server, job_id).values()
        assert (trial["status"], trial["exit_code"]) == ("failed", 3)
    assert len(set(marks(started))) == len(marks(started)) == 3
    assert module_server.job(first) == ended


def test_E11_E88_E89_E90_tags_are_shown_wherever_jobs_and_trials_are(module_server, tmp_path):
    tags = {"left": {"arm": "left", "_seed.1": "ü 7"}, "right": {"arm": "right", "empty": ""}, "bare": {}}
    plain = {"runner": "envloop/bash@main", "command": "true"}
    specs = {name: {**plain, "tags": each} if each else plain for name, each in tags.items()}
    file = tmp_path / "request.json"
    file.write_text(json.dumps(submission("tagged", **specs)))
    job = cli(module_server, "job", "submit", "--spec", str(file))
    job_id = job["job_id"]
    assert module_server.http().post("/v1/jobs", json.loads(file.read_text())).json["job_id"] == job_id
    trials = trials_of(module_server, job_id)
    assert {name: trial["tags"] for name, trial in trials.items()} == tags
    for name, trial in trials.items():
        for door, view in everywhere(module_server, job_id, trial["trial_id"]).items():
            assert view["tags"] == tags[name], door
    http = module_server.http()
    listed = next(each for each in http.get("/v1/jobs?limit=100").json["items"] if each["job_id"] == job_id)
    views = [http.get(f"/v1/jobs/{job_id}").json, http.get(f"/v1/jobs/{job_id}/result").json, listed]
    for view in (job, *views, cli(module_server, "job", "get", job_id)):
        assert view["tags"] == tags["left"], "those of its first Trial"
    assert "arm=left" in trainshed(module_server, "trial", "get", trials["left"]["trial_id"]).stdout
    # The first Trial decides, also when it has none.
    turned = module_server.submit(submission("untagged", bare=plain, left=specs["left"]))
    assert module_server.job(turned)["tags"] == {}
    trials_of(module_server, turned)
