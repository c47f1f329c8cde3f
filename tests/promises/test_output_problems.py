"""What a reader learns of declared outputs that could not be stored, through every door that shows Trials."""

from __future__ import annotations

import json

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
    assert [found["code"] for found in trial["problems"]] == [problem]
    for path in (f"/v1/jobs/{job}", f"/v1/jobs/{job}/result", "/v1/jobs", f"/v1/jobs/{job}/logs"):
        assert http.get(path).status == 200
    shown = json.loads(trainshed(module_server, "trial", "get", trial["trial_id"], "--json").stdout)
    assert shown["problems"] == trial["problems"]
    assert problem in trainshed(module_server, "trial", "get", trial["trial_id"]).stdout
