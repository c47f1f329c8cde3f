"""``el checkpoint`` 1.7.0: list, select, download with a refresh, delete and wait (contract E b7)."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from support import lora
from support.runners import definition, publish, repository
from support.server import ServerProcess

FILES = 5
"""That `support.lora.PROGRAM` writes into each Checkpoint."""


@pytest.fixture(scope="module")
def trained(module_server: ServerProcess, module_client, tmp_path_factory: pytest.TempPathFactory) -> dict:
    """A finished Job with two Checkpoints, as the published client shows its result."""
    folder = tmp_path_factory.mktemp("lora-runner")
    text = definition("main.py", outputs=("out/**",), params=("run_command",))
    repository(folder, {"runner.toml": text, "main.py": lora.PROGRAM})
    selector = publish(module_server, folder, "tests/lora")["selector"]
    options = ("--gput-type", "H100", "--gpu", "1", "--runner", selector, "--command", "1 2", "--wait")
    job = module_client.el("job", "submit", "--type", "train", *options).json
    return module_client.el("job", "result", job["job_id"]).json


def listed(client, *options: str) -> list[dict]:
    return client.el("checkpoint", "list", "--json", *options).json["items"]


def downloaded(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_E109_the_result_lists_the_checkpoints(client, trained):
    first, second = trained["checkpoints"]
    assert first.keys() >= {"checkpoint_id", "trial_id", "uri", "durable"}
    items = listed(client, "--job-id", trained["job_id"])
    assert [item["checkpoint_id"] for item in items] == [second["checkpoint_id"], first["checkpoint_id"]]
    assert listed(client, "--train-job-id", trained["job_id"], "--run-id", first["trial_id"]) == items


def test_checkpoints_are_shown_as_a_table(client, trained):
    header, *rows = client.el("checkpoint", "list").lines
    assert header.split()[:3] == ["CHECKPOINT", "ID", "TYPE"]
    ref = trained["checkpoints"][0]
    (row,) = [row for row in rows if ref["checkpoint_id"] in row]
    assert ref["uri"] in row
    assert "lora" in row
    assert "Qwen/Qwen3-0.6B" in row


@pytest.mark.parametrize("key", ["checkpoint_id", "uri"])
def test_a_checkpoint_is_selected_by_id_or_path_and_downloaded_whole(client, trained, tmp_path, key):
    ref = trained["checkpoints"][1]
    (item,) = [each for each in listed(client) if each["checkpoint_id"] == ref["checkpoint_id"]]
    answer = client.el("checkpoint", "download", ref[key], str(tmp_path / "got")).json
    assert len(answer["downloaded"]) == FILES
    assert downloaded(tmp_path / "got") == {file["name"]: file["sha256"] for file in item["files"]}
    again = client.el("checkpoint", "download", ref[key], str(tmp_path / "got")).json
    assert all(file["reused"] for file in again["downloaded"])


def test_an_unknown_checkpoint_is_told_by_its_code(client, trained, tmp_path):
    for name in ("ckpt_unknown", f"envloop://{trained['job_id']}/ckpt_unknown"):
        ran = client.el("checkpoint", "download", name, str(tmp_path / "got"), expect=1)
        assert "CHECKPOINT_NOT_FOUND" in ran.err


def test_urls_that_expire_under_way_are_refreshed_once(client, trained, tmp_path):
    """The SDK's own downloader, with every URL of the first batch spoiled as time would."""
    program = """
from envloop.http import RemoteError
signings, refused, transport = [], [], client.checkpoints.transport
request, opened = transport.request, transport.open_download

def spoiling(method, path, *rest, **more):
    answer = request(method, path, *rest, **more)
    if '/checkpoints/download' in path:
        signings.append(path)
        if len(signings) == 1:
            answer['urls'] = {n: u.replace('expires=', 'expires=1') for n, u in answer['urls'].items()}
    return answer

def counting(url):
    try:
        return opened(url)
    except RemoteError as error:
        refused.append(error.status_code)
        raise

transport.request, transport.open_download = spoiling, counting
found = client.checkpoints.download(path, folder)
answer = [len(signings), refused, len(found['downloaded'])]
"""
    ref = trained["checkpoints"][0]
    signings, refused, count = client.sdk(program, path=ref["uri"], folder=str(tmp_path / "got"))
    assert (signings, refused, count) == (2, [403], FILES)


def test_a_checkpoint_in_use_or_pinned_is_not_deleted(client, trained, module_server):
    ref = trained["checkpoints"][0]
    pin = f"/v1/jobs/checkpoints/{ref['checkpoint_id']}"
    http = module_server.http()
    assert http.request("POST", f"{pin}/pin").json["pinned"] is True
    ran = client.el("checkpoint", "delete", ref["checkpoint_id"], "--wait", expect=1)
    assert "RESOURCE_IN_USE" in ran.err
    assert http.request("POST", f"{pin}/unpin").json["pinned"] is False


def test_deleting_waits_for_the_receipt_and_the_checkpoint_is_gone(client, trained, tmp_path):
    gone, kept = trained["checkpoints"]
    receipt = client.el("checkpoint", "delete", gone["checkpoint_id"], "--wait").json
    assert receipt["status"] == "SUCCEEDED"
    assert client.el("setting", "operation", "get", receipt["operation_id"]).json["status"] == "SUCCEEDED"
    assert client.el("setting", "operation", "retry", receipt["operation_id"]).json["status"] == "SUCCEEDED"
    items = listed(client, "--job-id", trained["job_id"])
    assert [item["checkpoint_id"] for item in items] == [kept["checkpoint_id"]]
    result = client.el("job", "result", trained["job_id"]).json
    assert json.dumps(result["checkpoints"]) == json.dumps([kept])
    # E73: its Artifacts are gone with it, and are skipped as all that is not uploaded.
    folder = tmp_path / "got"
    ran = client.el("trail", "artifact", "download", gone["trial_id"], str(folder), expect=1)
    skipped = {file["name"] for file in ran.json["skipped"]}
    assert len(skipped) == FILES
    assert len({name.split("/")[1] for name in skipped}) == 1
    got = {file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()}
    assert len(got) == FILES
    assert not skipped & got


def test_checkpoints_of_a_trial_come_in_pages(client, trained):
    trial_id = trained["checkpoints"][1]["trial_id"]
    page = client.sdk("answer = client.trials.checkpoints(trial_id, limit=1)", trial_id=trial_id)
    assert [item["trial_id"] for item in page["items"]] == [trial_id]
