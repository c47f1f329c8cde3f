"""``el`` 1.7.0 from the package index drives this server unchanged (contract E a, b, d)."""

from __future__ import annotations

import json
import os
import uuid
from hashlib import sha256
from pathlib import Path

import pytest

from support.registry import Registry
from support.waiting import wait_until
from support.watching import Watch

SUBMIT = ("job", "submit", "--type", "train", "--gput-type", "H100", "--gpu", "1", "--runner")
RUN = (*SUBMIT, "envloop/bash@main")
UNTIL_STOPPED = "echo ready; sleep 300"


def submit(client, *options, **kwargs):
    return client.el(*RUN, *options, **kwargs).json


def only_trial(client, job_id):
    [trial] = client.el("trail", "list", "--type", "train", "--job-id", job_id, "--json").json["items"]
    return trial


# Connection and keys


def test_the_key_is_checked_and_accepted(client):
    assert client.el("auth", "status", "--check", "--json").json["check"] == "access_confirmed"


def test_a_wrong_key_is_told_apart_from_a_missing_server(new_user):
    stranger = new_user("stranger", key="tsk_" + "x" * 43)
    ran = stranger.el("auth", "status", "--check", "--json", expect=1)
    assert ran.json["check"] == "authentication_rejected"


def test_a_key_is_saved_with_the_workspace_and_project_that_the_server_names(module_server, new_user):
    user = new_user("saver", key="")
    user.el("auth", "config", "set", "base-url", module_server.url)
    user.el("auth", "config", "set", "api-key", "--stdin", text=module_server.key + "\n")
    status = user.el("auth", "status", "--json").json
    assert status["saved"]["api_key"] != "missing"
    assert status["effective"]["workspace_id"] == "default"
    assert status["effective"]["project_id"] == "default"
    assert user.el("job", "list", "--type", "train", "--json").json["items"] is not None


# Runners


def test_E7_runners_are_listed_with_what_a_selector_needs(client, files_runner):
    table = client.el("runner", "list").lines
    assert table[0].split()[:2] == ["NAME", "REVISION"]
    items = client.el("runner", "list", "--json").json["items"]
    assert files_runner in {f"{item['name']}@{item['revision']}" for item in items}
    assert {"envloop/bash", "tests/files"} <= {item["name"] for item in items}


# Submitting


def test_E33_E82_the_whole_path_of_a_job_of_two_trials(client):
    command = "echo \"out of $TRAINSHED_TRIAL_NAME\"; echo 'err' >&2; exit 0"
    job = submit(client, "--trails", "2", "--command", command, "--timeout-sec", "60", "--wait")
    job_id = job["job_id"]
    assert job["status"] == "completed"
    assert [t["name"] for t in job["training"]["trials"]] == ["trial-1", "trial-2"]
    assert client.el("job", "get", job_id).json["status"] == "completed"
    result = client.el("job", "result", job_id).json
    assert (result["status"], result["checkpoints"]) == ("completed", [])
    trials = client.el("trail", "list", "--type", "train", "--job-id", job_id, "--json").json["items"]
    assert {t["name"] for t in trials} == {"trial-1", "trial-2"}
    for trial in trials:
        shown = client.el("trail", "get", trial["trial_id"]).json
        assert (shown["status"], shown["exit_code"], shown["command"]) == ("succeeded", 0, command)
        assert shown["timeout_seconds"] == 60
        assert client.el("trail", "result", trial["trial_id"]).json["status"] == "succeeded"
        frozen = client.el("trail", "snapshot", trial["trial_id"]).json
        assert {file["path"] for file in frozen["files"]} >= {"main.sh", "runner.toml"}


def test_E71_following_prints_every_record_by_stream_and_ends(client):
    job_id = submit(client, "--command", "echo to-stdout; echo to-stderr >&2")["job_id"]
    followed = client.el("job", "log", job_id, "--follow")
    assert ["runtime stdout" in line for line in followed.lines if line.endswith("to-stdout")] == [True]
    assert ["runtime stderr" in line for line in followed.lines if line.endswith("to-stderr")] == [True]
    assert any("system" in line for line in followed.lines)
    assert followed.err == ""
    pages = client.el("job", "log", job_id, "--follow", "--json", "--source", "runtime").lines
    records = [record for page in pages for record in json.loads(page)["items"]]
    assert sorted(record["content"] for record in records) == ["to-stderr", "to-stdout"]
    assert len({record["id"] for record in records}) == 2


def test_a_long_log_is_followed_from_its_first_record_with_a_cursor_and_by_tail_without(client):
    job_id = submit(client, "--command", "for i in $(seq 1 500); do echo line-$i; done", "--wait")["job_id"]
    tail = client.el("job", "log", job_id, "--source", "runtime", "--tail", "3").lines
    assert [line.rsplit(" ", 1)[-1] for line in tail] == ["line-498", "line-499", "line-500"]
    by_default = client.el("job", "log", job_id, "--source", "runtime", "--follow").lines
    assert len(by_default) == 200
    first = client.el("job", "log", job_id, "--source", "runtime", "--tail", "500", "--json").json
    assert len(first["items"]) == 500


def test_E15_E88_E89_E90_a_request_file_is_sent_as_it_is(client, tmp_path):
    request = {
        "request_id": str(uuid.uuid4()),
        "trials": [
            {
                "name": name,
                "spec": {
                    "runner": "envloop/bash@main",
                    "command": f"echo {name}",
                    "resources": {"gpu_type": "H100", "gpus": 1, "memory_mb": 512},
                    "timeout_sec": 60,
                    "tags": {"arm": name},
                },
            }
            for name in ("left", "right")
        ],
    }
    path = _write(tmp_path, request)
    job = client.el("job", "submit", "--type", "train", "--file", path, "--wait").json
    trials = {trial["name"]: trial for trial in job["training"]["trials"]}
    assert list(trials) == ["left", "right"]
    assert {name: trial["tags"] for name, trial in trials.items()} == {
        "left": {"arm": "left"},
        "right": {"arm": "right"},
    }
    assert job["tags"] == {"arm": "left"}
    assert {trial["timeout_seconds"] for trial in trials.values()} == {60}
    for trial in trials.values():
        assert client.el("trail", "get", trial["trial_id"]).json["tags"] == trial["tags"]
    again = client.el("job", "submit", "--type", "train", "--file", path).json
    assert again["job_id"] == job["job_id"]


def test_A4_a_request_file_without_a_request_id_is_refused_by_name(client, tmp_path):
    path = _write(tmp_path, {"spec": {"runner": "envloop/bash@main"}})
    ran = client.el("job", "submit", "--type", "train", "--file", path, expect=1)
    assert "INVALID_REQUEST_ID" in ran.err


def _write(folder: Path, document) -> str:
    path = folder / "request.json"
    path.write_text(json.dumps(document))
    return str(path)


def test_E24_E28_the_same_request_id_gives_the_same_job_and_other_input_a_conflict(client):
    request_id = str(uuid.uuid4())
    first = submit(client, "--request-id", request_id, "--command", "echo one")
    again = submit(client, "--request-id", request_id, "--command", "echo one")
    assert again["job_id"] == first["job_id"]
    ran = client.el(*RUN, "--request-id", request_id, "--command", "echo two", expect=1)
    assert "JOB_REQUEST_CONFLICT" in ran.err
    assert only_trial(client, first["job_id"])["command"] == "echo one"


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (("--runner", "envloop/none@main"), "RUNNER_NOT_FOUND"),
        (("--gput-type", "H900"), "UNSUPPORTED_HARDWARE"),
        (("--gpu", "99"), "UNSUPPORTED_HARDWARE"),
        (("--docker", "127.0.0.1:1/no/registry"), "EXECUTOR_UNAVAILABLE"),
    ],
)
def test_E4_a_refusal_is_printed_with_its_own_code(client, options, code):
    assert code in client.el(*RUN, *options, expect=1).err


def test_E41_E62_the_image_of_a_job_is_chosen_by_an_option_and_shown_by_digest(
    client, module_server, registry: Registry
):
    found = module_server.http().get("/v1/system").json["images"]
    if found["reason"] is not None:
        pytest.skip(f"no image can run on this machine: {found['reason']}")
    digest = registry.push(registry.image("python", marker="in the image"), "published/client", "1")
    name = registry.name("published/client", "1")
    job = submit(client, "--docker", name, "--command", "cat /marker", "--wait")
    [trial] = job["training"]["trials"]
    resolved = registry.name("published/client", digest=digest)
    assert trial["image"] == {"requested": name, "resolved": resolved, "digest": digest}
    assert "in the image" in client.el("job", "log", job["job_id"], "--source", "runtime").out


def test_E69_a_failing_program_makes_the_client_exit_1(client):
    ran = client.el(*RUN, "--command", "exit 7", "--wait", expect=1)
    [trial] = ran.json["training"]["trials"]
    assert (ran.json["status"], trial["status"], trial["exit_code"]) == ("failed", "failed", 7)


def test_E34_sizes_and_counts_of_the_shortcut_options_arrive_as_written(client):
    sizes = ("--cpu", "2", "--memory", "1Gi", "--disk", "2Gi", "--shm-size", "64Mi")
    job = submit(client, *sizes, "--gpu", "2", "--command", "true")
    [trial] = job["training"]["trials"]
    assert trial["resources"] == {
        "gpu_type": "H100",
        "gpus": 2,
        "cpus": 2,
        "memory_mb": 1024,
        "storage_mb": 2048,
        "shm_mb": 64,
    }


def test_E46_nothing_of_the_folder_is_read_but_the_request_file(client, tmp_path):
    folder = tmp_path / "project"
    (folder / "envloop/bash").mkdir(parents=True)
    for name in ("train.py", "runner.toml", "envloop/bash/main.sh"):
        (folder / name).write_text("only here")
    os.mkfifo(folder / "pipe")
    spec = {"runner": "envloop/bash@main", "command": "python train.py; true"}
    _write(folder, {"request_id": str(uuid.uuid4()), "spec": spec})
    with Watch(folder) as watch:
        client.el(*RUN, "--command", spec["command"], cwd=folder)
        assert watch.opened() == set()
        client.el("job", "submit", "--type", "train", "--file", "request.json", cwd=folder)
        assert watch.opened() == {"request.json"}


# Stopping


def test_E76_E78_a_running_job_is_stopped_and_everything_is_released(client):
    job_id = submit(client, "--trails", "2", "--command", UNTIL_STOPPED)["job_id"]
    wait_until(
        lambda: client.el("job", "log", job_id, "--source", "runtime").out.count("ready") == 2,
        what="both Trials to run",
    )
    assert client.el("job", "stop", job_id).json["status"] in {"stopping", "cancelled"}
    wait_until(
        lambda: client.el("job", "get", job_id).json["status"] == "cancelled", what="the Job to be cancelled"
    )

    def released():
        trials = client.el("job", "result", job_id).json["training"]["trials"]
        return all(trial["cleanup_confirmed"] for trial in trials) and trials

    assert {trial["status"] for trial in wait_until(released)} == {"cancelled"}
    assert client.el("job", "stop", job_id).json["status"] == "cancelled"


def test_A14_one_trial_is_stopped_and_its_sibling_goes_on(client):
    job_id = submit(client, "--trails", "2", "--command", UNTIL_STOPPED)["job_id"]
    trials = client.el("trail", "list", "--type", "train", "--job-id", job_id, "--json").json["items"]
    first, second = (trial["trial_id"] for trial in trials)
    client.el("trail", "stop", first)
    wait_until(lambda: client.el("trail", "get", first).json["status"] == "cancelled")
    assert client.el("trail", "get", second).json["status"] in {"queued", "preparing", "running"}
    client.el("job", "stop", job_id)
    wait_until(lambda: client.el("job", "get", job_id).json["status"] == "cancelled")


def test_pausing_is_refused_by_name(client):
    job_id = submit(client, "--command", "true")["job_id"]
    assert "JOB_ACTION_UNSUPPORTED" in client.el("job", "pause", job_id, expect=1).err


# Artifacts


def test_E73_declared_files_are_listed_downloaded_and_verified_by_the_client(client, files_runner, tmp_path):
    submitted = client.el(*SUBMIT, files_runner, "--wait").json
    trial_id = submitted["training"]["trials"][0]["trial_id"]
    listed = client.el("trail", "artifact", "list", trial_id, "--json").json["items"]
    contents = {
        "out/one.txt": b"first file",
        "out/deep/large.bin": b"x" * 300_000,
        "out/empty": b"",
    }
    assert {item["name"]: (item["size"], item["sha256"], item["upload_state"]) for item in listed} == {
        name: (len(content), sha256(content).hexdigest(), "uploaded") for name, content in contents.items()
    }
    folder = tmp_path / "downloads"
    answer = client.el("trail", "artifact", "download", trial_id, str(folder)).json
    assert answer["skipped"] == []
    assert {
        str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    } == contents


# Lists and project pages


def test_jobs_trials_and_events_are_listed_as_tables_and_as_json(client):
    job = submit(client, "--command", "true", "--wait")
    job_id = job["job_id"]
    assert any(job_id in line and "Completed" in line for line in client.el("job", "list").lines)
    page = client.el("job", "list", "--type", "train", "--limit", "1", "--json").json
    assert len(page["items"]) == 1
    assert client.el("job", "list", "--status", "completed", "--json").json["items"]
    assert any(only_trial(client, job_id)["trial_id"] in line for line in client.el("trail", "list").lines)
    events = client.el("job", "event", job_id, "--json").json["items"]
    assert {"resource_id", "status", "at", "source"} <= set(events[0])


def test_the_pages_of_the_project_answer_what_the_client_shows(client):
    dashboard = client.el("dashboard", "get").json
    assert dashboard["project"]["project_id"] == "default"
    assert client.el("limit", "get").json["project_id"] == "default"
    assert client.el("setting", "get").json["project_id"] == "default"
    for empty in (("member", "list"), ("profile", "list"), ("checkpoint", "list")):
        assert client.el(*empty, "--json").json["items"] == []
    client.el("billing", "account", "get")
    period = ("--start", "2026-01-01", "--end", "2026-02-01")
    for kind, options in (("price", ()), ("ledger", ()), ("usage", period)):
        assert client.el("billing", kind, "list", "--json", *options).json["items"] == []


def test_what_needs_a_person_is_refused_by_name(client):
    ran = client.el("member", "add", "ada", "--role", "viewer", "--expected-version", "0", expect=1)
    assert "HUMAN_SESSION_REQUIRED" in ran.err


def test_an_unknown_job_is_told_apart_from_an_unknown_path(client):
    ran = client.el("job", "get", "job_01AAAAAAAAAAAAAAAAAAAAAAAA", expect=1)
    assert "JOB_NOT_FOUND" in ran.err
