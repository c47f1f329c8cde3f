"""What a reader learns of declared outputs that could not be stored, through every door that shows Trials."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.runners import definition, publish, repository, trainshed
from support.waiting import wait_until

CASES = {
    "a-promised-file-is-missing": (
        ("model.bin",),
        "echo hi; exit 0",
        ("failed", 0, "failed", "OUTPUT_COLLECTION_FAILED", "OUTPUT_MISSING"),
    ),
    "one-of-two-is-a-link": (
        ("out/**",),
        "mkdir out; ln -s /etc/passwd out/p; echo a > out/q",
        ("failed", 0, "partial", "OUTPUT_COLLECTION_FAILED", "OUTPUT_IS_LINK"),
    ),
    "three-are-links": (
        ("out/**",),
        "mkdir out; ln -s /etc/passwd out/p; ln -s q out/r; ln -s r out/s; echo a > out/q",
        ("failed", 0, "partial", "OUTPUT_COLLECTION_FAILED", "OUTPUT_IS_LINK"),
    ),
    "the-program-failed-too": (
        ("model.bin",),
        "exit 3",
        ("failed", 3, "failed", "NONZERO_EXIT", "OUTPUT_MISSING"),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_E67_E70_problems_with_outputs_are_shown_wherever_the_trial_is(module_server, tmp_path, case):
    outputs, script, (status, code, output_status, error, problem) = CASES[case]
    repository(tmp_path / "r", {"runner.toml": definition(outputs=outputs), "main.sh": script + "\n"})
    published = publish(module_server, tmp_path / "r", f"problems/{case}")
    http = module_server.http()
    body = {"type": "train", "request_id": case, "spec": {"runner": published["selector"]}}
    job = http.post("/v1/jobs", body).json["job_id"]

    def released():
        trial = http.get(f"/v1/trials?job_id={job}").json["items"][0]
        return trial if trial["cleanup_confirmed"] else None

    trial = wait_until(released)
    assert (trial["status"], trial["exit_code"], trial["output_status"]) == (status, code, output_status)
    assert trial["error"]["code"] == error
    assert {found["code"] for found in trial["problems"]} == {problem}
    more = len(trial["problems"]) - 1
    assert more == (2 if case == "three-are-links" else 0)
    said = trial["error"]["message"]
    assert (f"`problems` tell {more} more" in said) is bool(more), said
    for path in (f"/v1/jobs/{job}", f"/v1/jobs/{job}/result", "/v1/jobs", f"/v1/jobs/{job}/logs"):
        assert http.get(path).status == 200
    shown = json.loads(trainshed(module_server, "trial", "get", trial["trial_id"], "--json").stdout)
    assert shown["problems"] == trial["problems"]
    assert problem in trainshed(module_server, "trial", "get", trial["trial_id"]).stdout
    _whoever_downloads_all_is_told(module_server, trial, tmp_path / "copy")


def _whoever_downloads_all_is_told(server, trial, folder: Path) -> None:
    def download(*names: str) -> subprocess.CompletedProcess[str]:
        command = ["trial", "download", trial["trial_id"], *names, "--to", str(folder), "--json"]
        return subprocess.run(
            [sys.executable, "-m", "trainshed", *command],
            env={**os.environ, **server.environment},
            capture_output=True,
            text=True,
            check=False,
        )

    ran = download()
    assert ran.returncode == 1
    document = json.loads(ran.stdout)
    assert document["problems"] == trial["problems"]
    for item in document["items"]:
        assert item["state"] == "verified"
        assert download(item["name"]).returncode == 0
