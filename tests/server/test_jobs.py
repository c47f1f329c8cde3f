"""Jobs and Trials over HTTP: objects, lists, stopping, why they wait (contract E b1-b4, P10, P12)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sqlalchemy import event

from support.site import Site, finish, start, submission, trials
from support.waiting import wait_until
from trainshed.model.ids import JOB_ID
from trainshed.store import settings

TRIAL_KEYS = {
    "trial_id", "job_id", "type", "name", "status", "state", "tags", "runner", "image", "resources",
    "timeout_seconds", "entrypoint", "command", "profile", "profile_sha256", "exit_code", "exit_signal",
    "output_status", "outputs", "problems", "cleanup_confirmed", "user_code_started", "gpu", "waiting",
    "attempts", "created_at", "updated_at", "started_at", "finished_at", "error", "resume_from",
}  # fmt: skip


def test_E17_a_submission_is_answered_with_the_job_and_all_that_was_frozen(site: Site):
    answer = site.post("/v1/jobs", submission("r", command="echo", tags={"k": "v"}, timeout_seconds=60))
    assert answer.status_code == 201
    job = answer.json()
    assert JOB_ID.fullmatch(job["job_id"])
    assert (job["type"], job["request_id"], job["status"], job["tags"]) == (
        "train",
        "r",
        "queued",
        {"k": "v"},
    )
    (trial,) = job["training"]["trials"]
    assert trial.keys() == TRIAL_KEYS
    assert trial["runner"]["selector"] == "envloop/bash@main"
    assert trial["runner"]["source_ref"] == "main"
    assert trial["resources"].keys() == {"gpu_type", "gpus", "cpus", "memory_mb", "storage_mb", "shm_mb"}
    assert (trial["image"], trial["command"], trial["timeout_seconds"]) == (None, "echo", 60)
    assert (trial["cleanup_confirmed"], trial["user_code_started"], trial["exit_code"]) == (
        False,
        False,
        None,
    )
    assert job["training"]["counts"] == {"queued": 1}
    assert not job.keys() & {"operation_id", "skipped"}
    assert site.woken


def test_E24_the_same_request_id_with_the_same_input_answers_200_and_the_same_job(site: Site):
    first = site.post("/v1/jobs", submission("r", timeout_seconds=60))
    document = submission("r")
    document["spec"]["timeout_sec"] = 60
    again = site.post("/v1/job", {key: document[key] for key in reversed(document)})
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json() == first.json()


def test_E28_other_input_is_a_conflict_that_names_what_differs(site: Site):
    site.submit("r", command="a")
    answer = site.post("/v1/jobs", submission("r", command="b", tags={"k": "v"}))
    assert (answer.status_code, answer.json()["code"]) == (409, "JOB_REQUEST_CONFLICT")
    paths = [fault["path"] for fault in answer.json()["errors"]]
    assert [path.rpartition("spec.")[2] for path in paths] == ["command", "tags"]


@pytest.mark.parametrize("resources", [{"gpus": 2}, {"gpu_type": "H200"}, {"cpus": 5}, {"memory_mb": 2048}])
def test_E27_other_resources_are_a_conflict_and_change_nothing(sqlite_site: Site, resources: dict[str, Any]):
    site = sqlite_site
    job = site.submit("r", resources={"gpu_type": "H100", "gpus": 1, "memory_mb": 1024})
    (name,) = resources
    changed = {"gpu_type": "H100", "gpus": 1, "memory_mb": 1024, **resources}
    answer = site.post("/v1/jobs", submission("r", resources=changed))
    assert (answer.status_code, answer.json()["code"]) == (409, "JOB_REQUEST_CONFLICT")
    assert [fault["path"].rpartition("spec.")[2] for fault in answer.json()["errors"]] == [
        f"resources.{name}"
    ]
    assert site.get("/v1/jobs").json()["items"] == [job]


def test_E59_a_projects_limits_are_looked_at_before_a_job_is_made(sqlite_site: Site):
    site = sqlite_site
    for name, limits, status, code in (
        ("narrow", {"max_gpus": 1}, 409, "TRAIN_JOB_CAPACITY_EXCEEDED"),
        ("poor", {"budget_gpu_hours": 0.5}, 402, "INSUFFICIENT_BALANCE"),
    ):
        assert site.post("/v1/admin/projects", {"project_id": name, **limits}).status_code == 201
        key = site.add_key(name)
        large = {"resources": {"gpu_type": "H100", "gpus": 2}, "timeout_seconds": 3600}
        answer = site.post("/v1/jobs", submission("r", **large), key=key)
        assert (answer.status_code, answer.json()["code"]) == (status, code)
        assert site.get("/v1/jobs", key=key).json()["items"] == []
        small = {"resources": {"gpu_type": "H100", "gpus": 1}, "timeout_seconds": 60}
        assert site.post("/v1/jobs", submission("r", **small), key=key).status_code == 201


def test_a_job_reads_the_same_under_both_families(site: Site):
    job = site.submit()
    path = job["job_id"]
    assert site.get(f"/v1/job/{path}").json() == site.get(f"/api/v1/jobs/{path}").json() == job
    assert site.get(f"/v1/job/{path}/result").json() == {**job, "checkpoints": []}


def test_ids_are_percent_decoded_exactly_once(site: Site):
    job = site.submit()
    encoded = "".join(f"%{byte:02X}" for byte in job["job_id"].encode())
    assert site.get(f"/v1/job/{encoded}").json()["job_id"] == job["job_id"]
    twice = encoded.replace("%", "%25")
    assert site.get(f"/v1/job/{twice}").status_code == 404


def test_the_five_reads_of_a_trial_answer_objects(site: Site):
    trial = site.submit()["training"]["trials"][0]
    for suffix in ("", "/detail", "/training", "/result"):
        assert site.get(f"/v1/trials/{trial['trial_id']}{suffix}").json() == trial
    for suffix in ("/metrics", "/checkpoints"):
        assert site.get(f"/v1/trials/{trial['trial_id']}{suffix}?limit=5").json()["items"] == []
    frozen = site.get(f"/v1/trials/{trial['trial_id']}/snapshot").json()
    assert {file["path"] for file in frozen["files"]} >= {"main.sh", "runner.toml"}
    assert frozen["runner"] == trial["runner"]


def test_E76_stopping_a_queued_job_cancels_it_and_can_be_repeated(site: Site):
    job = site.submit()
    stopped = site.post(f"/v1/job/{job['job_id']}/stop")
    assert stopped.status_code == 200
    assert stopped.json()["status"] == "cancelled"
    trial = stopped.json()["training"]["trials"][0]
    assert (trial["status"], trial["cleanup_confirmed"], trial["error"]) == ("cancelled", True, None)
    assert site.post(f"/v1/jobs/{job['job_id']}/stop").json() == stopped.json()


def test_A14_stopping_a_trial_leaves_its_siblings_alone(site: Site):
    spec = {"spec": submission()["spec"]}
    body = {"type": "train", "request_id": "r", "trials": [spec, spec]}
    first, second = site.post("/v1/jobs", body).json()["training"]["trials"]
    assert site.post(f"/v1/trials/{first['trial_id']}/stop").json()["status"] == "cancelled"
    assert site.get(f"/v1/trials/{second['trial_id']}").json()["status"] == "queued"
    assert site.get(f"/v1/jobs/{first['job_id']}").json()["training"]["counts"] == {
        "cancelled": 1,
        "queued": 1,
    }


def test_E68_cleanup_is_confirmed_only_when_the_release_was_observed(site: Site):
    job = site.submit()
    (trial,) = trials(site, job["job_id"])
    attempt = start(site, trial)
    running = site.get(f"/v1/trials/{trial.id}").json()
    assert (running["status"], running["cleanup_confirmed"], running["user_code_started"]) == (
        "running",
        False,
        True,
    )
    assert running["gpu"] == {"model": "H100", "indices": [0], "simulated": True, "node": "n1"}
    assert running["waiting"] is None
    finish(site, trial, attempt, exit_code=3)
    ended = site.get(f"/v1/jobs/{job['job_id']}").json()
    (view,) = ended["training"]["trials"]
    assert (ended["status"], view["status"], view["exit_code"]) == ("failed", "failed", 3)
    assert view["cleanup_confirmed"] is True
    assert ended["error"]["code"] == view["error"]["code"] == "EXIT_CODE"
    assert view["attempts"][0]["ended_by"] == "exit"


def test_lists_are_pages_newest_first_that_give_every_job_once(site: Site):
    made = [site.submit(f"r{number}")["job_id"] for number in range(7)]
    found, cursor, cursors = [], None, set()
    while True:
        page = site.get("/v1/jobs?limit=3" + (f"&cursor={cursor}" if cursor else "")).json()
        found += [job["job_id"] for job in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
        assert cursor not in cursors
        cursors.add(cursor)
    assert found == made[::-1]
    assert [t["job_id"] for t in site.get("/v1/trials?limit=100").json()["items"]] == made[::-1]


def test_lists_are_filtered(site: Site):
    one, two = site.submit("r1"), site.submit("r2")
    site.post(f"/v1/jobs/{one['job_id']}/stop")
    assert [j["job_id"] for j in site.get("/v1/job?status=cancelled").json()["items"]] == [one["job_id"]]
    assert [j["job_id"] for j in site.get("/v1/job?type=train&status=queued").json()["items"]] == [
        two["job_id"]
    ]
    assert site.get("/v1/job?type=agent&limit=25").json() == {"items": [], "next_cursor": None}
    trial = site.get(f"/v1/trials?type=train&job_id={two['job_id']}").json()["items"]
    assert [t["job_id"] for t in trial] == [two["job_id"]]
    assert site.get("/v1/trials?status=running").json()["items"] == []
    assert site.get("/v1/jobs?unknown=1").status_code == 200


@pytest.mark.parametrize("use", ["trials", "runners"])
def test_a_cursor_of_another_list_is_refused(site: Site, use: str):
    for number in range(2):
        site.submit(f"r{number}")
    cursor = site.get("/v1/jobs?limit=1").json()["next_cursor"]
    answer = site.get(f"/v1/{use}?cursor={cursor}")
    assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_CURSOR")
    # Not the last letter: some of its bits are no part of the bytes.
    broken = cursor[:-4] + ("A" if cursor[-4] != "A" else "B") + cursor[-3:]
    assert site.get(f"/v1/jobs?cursor={broken}").status_code == 400


@pytest.mark.parametrize("action", ["pause", "resume", "wake"])
def test_train_jobs_are_not_paused(site: Site, action: str):
    job = site.submit()
    answer = site.post(f"/v1/job/{job['job_id']}/{action}", {})
    assert (answer.status_code, answer.json()["code"]) == (409, "JOB_ACTION_UNSUPPORTED")


def test_static_paths_win_over_ids(site: Site):
    assert site.get("/v1/job/training-models").json() == {"items": []}
    assert site.get("/v1/job/checkpoints").json() == {"items": [], "next_cursor": None}


def test_P10_a_waiting_trial_says_why_and_where_it_stands(site: Site):
    jobs = [site.submit(f"r{number}") for number in range(3)]
    waits = [site.get(f"/v1/jobs/{job['job_id']}").json()["training"]["trials"][0]["waiting"] for job in jobs]
    assert [wait["position"] for wait in waits] == [1, 2, 3]
    assert {wait["code"] for wait in waits} == {"NEXT_TURN"}
    listed = site.get("/v1/jobs").json()["items"]
    assert [job["training"]["trials"][0]["waiting"]["position"] for job in listed] == [3, 2, 1]


def test_P10_the_controllers_reasons_reach_the_reader(sqlite_site: Site):
    site = sqlite_site
    (trial,) = trials(site, site.submit()["job_id"])
    board = {
        "version": 1, "at": site.clock(), "waiting": 1,
        "classes": {}, "rest": ["GPUS_BUSY", 0, None, None, False, False],
        "pools": {"H100": [8, 0, 0]}, "starts": {trial.id: [1, site.clock() + 60]},
        "backlogs": {}, "busy": {}, "priorities": [],
    }  # fmt: skip
    site.services.database.write(lambda c: settings.put(c, settings.PLACEMENT, json.dumps(board)))

    def reason() -> dict[str, Any] | None:
        found = site.get(f"/v1/trials/{trial.id}").json()["waiting"]
        return found if found["code"] == "GPUS_BUSY" else None

    wait = wait_until(reason, 60, "the reader to look at the new reasons")
    assert "0 of 8 are free" in wait["message"]
    assert wait["estimated_start_at"].startswith("2027-01-15T08:01:00")


def test_P12_a_page_costs_the_same_queries_whatever_its_length(site: Site):
    for number in range(30):
        job = site.submit(f"r{number}")
        if number % 3 == 0:
            (trial,) = trials(site, job["job_id"])
            start(site, trial)
    counted: list[str] = []
    engine = site.services.database.engine

    @event.listens_for(engine, "before_cursor_execute")
    def count(_connection, _cursor, statement, *_rest):
        counted.append(statement)

    def queries(limit: int, resource: str) -> int:
        counted.clear()
        assert len(site.get(f"/v1/{resource}?limit={limit}").json()["items"]) == limit
        return len(counted)

    for resource in ("jobs", "trials"):
        queries(30, resource)
        many = queries(30, resource)
        assert many <= 8, counted


def test_head_answers_the_headers_alone(site: Site):
    job = site.submit()
    full = site.get(f"/v1/jobs/{job['job_id']}")
    head = site.request("HEAD", f"/v1/jobs/{job['job_id']}")
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == full.headers["content-length"]
    assert site.request("HEAD", f"/v1/jobs/{job['job_id']}/events/stream").status_code == 405
