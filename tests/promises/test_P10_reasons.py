"""P10: every waiting Trial says why in a code and a sentence with numbers, its place, an estimated start."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest

from support.programs import bash, new_project
from support.waiting import wait_until


def _waiting(server, job_id: str, code: str, position: int | None = None) -> dict:
    """The first Trial's answer once it is the expected one."""

    def told() -> dict | None:
        found = server.job(job_id)["training"]["trials"][0]["waiting"]
        right = found and found["code"] == code and position in {None, found["position"]}
        return found if right else None

    return wait_until(told, 20, f"{job_id} to wait for {code}; {server.job(job_id)['training']['trials'][0]}")


def _start(answer: dict) -> datetime:
    return datetime.fromisoformat(answer["estimated_start_at"])


@pytest.fixture
def busy(server):
    """All eight GPUs held for at most 1,000 seconds."""
    hog = server.submit(bash("sleep 600", "hog", resources={"gpus": 8}, timeout_seconds=1000))
    wait_until(lambda: server.job(hog)["training"]["trials"][0]["status"] == "running")
    yield server
    for job in server.http().get("/v1/jobs?limit=100").json["items"]:
        server.http().post(f"/v1/jobs/{job['job_id']}/stop")
    for job in server.http().get("/v1/jobs?limit=100").json["items"]:
        server.wait_for_release(job["job_id"])


def test_P10_busy_gpus_are_counted_and_the_start_is_estimated(busy):
    first = busy.submit(bash("true", "first", resources={"gpus": 2}, timeout_seconds=100))
    second = busy.submit(bash("true", "second", resources={"gpus": 8}, timeout_seconds=100))
    answer = _waiting(busy, first, "GPUS_BUSY", 1)
    assert "2 H100 GPUs" in answer["message"]
    assert "0 of 8 are free" in answer["message"]
    latest = datetime.now(UTC) + timedelta(seconds=1000 + 120)
    assert datetime.now(UTC) < _start(answer) < latest
    behind = _waiting(busy, second, "GPUS_BUSY", 2)
    assert re.search(r"\d", behind["message"])
    assert _start(behind) >= _start(answer)


def test_P10_every_waiting_trial_answers_however_many_there_are(busy):
    jobs = [
        busy.submit(bash("true", f"many-{n}", trials=16, resources={"gpus": 1 + n % 8})) for n in range(5)
    ]
    places = []
    _waiting(busy, jobs[-1], "GPUS_BUSY")
    for job in jobs:
        for trial in busy.job(job)["training"]["trials"]:
            answer = trial["waiting"]
            assert answer["code"]
            assert re.search(r"\d", answer["message"]), answer
            assert answer["estimated_start_at"] is not None
            places.append(answer["position"])
    assert sorted(places) == list(range(1, 81))


def test_P10_the_single_trial_and_its_place_in_lists_say_the_same(busy):
    job = busy.submit(bash("true", "single"))
    answer = _waiting(busy, job, "GPUS_BUSY", 1)
    trial_id = busy.job(job)["training"]["trials"][0]["trial_id"]
    read = busy.http().get(f"/v1/trials/{trial_id}").json["waiting"]
    assert {k: read[k] for k in ("code", "position")} == {k: answer[k] for k in ("code", "position")}
    listed = busy.http().get("/v1/trials?limit=100").json["items"]
    assert next(t for t in listed if t["trial_id"] == trial_id)["waiting"]["code"] == "GPUS_BUSY"


def test_P10_a_projects_limits_are_named_with_their_numbers(server):
    http = new_project(server, "small", max_gpus=2, budget_gpu_hours=1)

    def submit(name: str, **spec) -> str:
        answer = http.post("/v1/jobs", bash("sleep 600", name, **spec))
        assert answer.status == 201, answer.body
        return answer.json["job_id"]

    def told(job_id: str, code: str) -> dict:
        def there() -> dict | None:
            found = http.get(f"/v1/jobs/{job_id}").json["training"]["trials"][0]["waiting"]
            return found if found and found["code"] == code else None

        return wait_until(there, 20, code)

    running = submit("running", resources={"gpus": 1}, timeout_seconds=2000)
    wait_until(lambda: http.get(f"/v1/jobs/{running}").json["training"]["trials"][0]["status"] == "running")
    wide = submit("wide", resources={"gpus": 2}, timeout_seconds=600)
    answer = told(wide, "PROJECT_GPU_LIMIT")
    assert "2 GPUs" in answer["message"]
    assert "1 more" in answer["message"]
    http.post(f"/v1/jobs/{wide}/stop")
    long = submit("long", resources={"gpus": 1}, timeout_seconds=3000)
    answer = told(long, "PROJECT_BUDGET")
    assert "0.83 GPU-hours" in answer["message"]
    assert "GPU-hours left" in answer["message"]
    for job_id in (running, long):
        http.post(f"/v1/jobs/{job_id}/stop")

    def released(job_id: str) -> bool:
        job = http.get(f"/v1/jobs/{job_id}").json
        return all(trial["cleanup_confirmed"] for trial in job["training"]["trials"])

    wait_until(lambda: all(released(job_id) for job_id in (running, wide, long)))
