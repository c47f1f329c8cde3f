"""P7: what ran is what was accepted, byte for byte."""

from __future__ import annotations

import hashlib
import json
import os

from support.programs import bash
from support.runners import definition, publish, repository
from support.waiting import wait_until

_REPORT = "sha256sum main.sh data/*.txt; echo done\n"


def _publish(server, folder, name, text="first\n", **changes):
    files = {
        "runner.toml": definition(params=("run_command",), **changes),
        "main.sh": _REPORT,
        "data/a.txt": text,
    }
    repository(folder, files)
    return publish(server, folder, name)


def _content(server, selector, path):
    """Where the stored bytes of a published file lie."""
    name, revision = selector.split("@")
    listed = server.http().get(f"/v1/runners/{name}/{revision}").json["files"]
    sha256 = next(file["sha256"] for file in listed if file["path"] == path)
    [place] = [p for p in (server.data / "content").rglob(f"*{sha256[4:]}*") if p.is_file()]
    assert hashlib.sha256(place.read_bytes()).hexdigest() == sha256
    return place


def _tamper(place):
    mode = place.stat().st_mode
    place.chmod(0o600)
    place.write_bytes(place.read_bytes()[:-1] + b"X")
    place.chmod(mode)


def _busy(server, request_id="hog"):
    """Hold all GPUs until it is stopped, so that what comes next waits."""
    hog = server.submit(bash("sleep 600", request_id, resources={"gpus": 8}))
    server.wait_for_job(hog, {"running"})
    wait_until(lambda: server.job(hog)["training"]["trials"][0]["status"] == "running")
    return hog


def test_P7_E8_a_tampered_file_refuses_a_submission_and_leaves_no_job(server, tmp_path):
    selector = _publish(server, tmp_path / "r", "frozen/submit")["selector"]
    _tamper(_content(server, selector, "data/a.txt"))
    answer = server.http().post(
        "/v1/jobs", {"type": "train", "request_id": "r", "spec": {"runner": selector}}
    )
    assert (answer.status, answer.code) == (409, "RUNNER_HASH_MISMATCH")
    assert "data/a.txt" in answer.json["message"]
    assert server.http().get("/v1/jobs").json["items"] == []


def test_P7_a_file_tampered_with_while_the_trial_waits_is_never_run(server, tmp_path):
    selector = _publish(server, tmp_path / "r", "frozen/launch")["selector"]
    hog = _busy(server)
    job_id = server.submit({"request_id": "r", "spec": {"runner": selector}})
    _tamper(_content(server, selector, "main.sh"))
    server.http().post(f"/v1/jobs/{hog}/stop")
    [trial] = server.wait_for_release(job_id)
    assert (trial["status"], trial["error"]["code"]) == ("failed", "RUNNER_HASH_MISMATCH")
    assert not trial["user_code_started"]
    assert trial["started_at"] is None
    assert server.log_records(job_id) == []
    server.wait_for_release(hog)


def test_P7_E25_E31_a_branch_that_moved_and_a_changed_project_do_not_change_what_runs(server, tmp_path):
    first = _publish(server, tmp_path / "r", "frozen/moves")
    hog = _busy(server)
    document = {
        "request_id": "r",
        "spec": {"runner": "frozen/moves@main", "command": "echo 1", "resources": {"gpus": 2}},
    }
    job_id = server.submit(document)
    before = server.job(job_id)["training"]["trials"][0]
    second = _publish(server, tmp_path / "r", "frozen/moves", text="second\n")
    assert second["revision"] != first["revision"]
    assert server.submit(document) == job_id, "a retry keeps the first snapshot (E25)"
    server.http().post(f"/v1/jobs/{hog}/stop")
    [trial] = server.wait_for_release(job_id)
    assert trial["runner"]["revision"] == first["revision"]
    assert trial["runner"]["source_ref"] == "main"
    for fact in ("runner", "resources", "timeout_seconds", "command", "entrypoint", "outputs", "name"):
        assert trial[fact] == before[fact]
    printed = [record["content"] for record in server.log_records(job_id)]
    assert hashlib.sha256(b"first\n").hexdigest() + "  data/a.txt" in printed
    assert hashlib.sha256(_REPORT.encode()).hexdigest() + "  main.sh" in printed
    server.wait_for_release(hog)


def test_P7_a_program_that_changes_its_files_does_not_change_the_next_one(server, tmp_path):
    repository(
        tmp_path / "r",
        {
            "runner.toml": definition(),
            "main.sh": "sha256sum main.sh; chmod u+w main.sh; echo '#' >> main.sh; sha256sum main.sh\n",
        },
    )
    selector = publish(server, tmp_path / "r", "frozen/self")["selector"]
    job_id = server.submit(
        {"request_id": "r", "trials": [{"name": n, "spec": {"runner": selector}} for n in "abc"]}
    )
    for trial in server.wait_for_release(job_id):
        assert trial["status"] == "succeeded"
    lines = [(r["trial_name"], r["content"]) for r in server.log_records(job_id)]
    firsts = {next(content for name, content in lines if name == wanted) for wanted in "abc"}
    assert len(firsts) == 1, "each began with the published bytes"
    place = _content(server, selector, "main.sh")
    assert place.stat().st_nlink == 1
    assert not os.access(place, os.W_OK) or os.geteuid() == 0


def test_P7_a_revision_cannot_be_published_again_with_other_bytes(server, tmp_path):
    """The commit names the bytes; whoever sends others under its id is refused (E8)."""
    published = _publish(server, tmp_path / "r", "frozen/again")
    again = publish(server, tmp_path / "r", "frozen/again")
    assert again["revision"] == published["revision"]
    listed = server.http().get("/v1/runners?limit=100").json["items"]
    assert len([one for one in listed if one["name"] == "frozen/again"]) == 1
    assert json.dumps(listed).count(published["revision"]) >= 1
