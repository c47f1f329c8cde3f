"""P12: readers never wait for the controller: what must be possible without one (times: ``make bench``)."""

from __future__ import annotations

import os
import signal
import subprocess
import threading

import pytest

from support.http import Http
from support.programs import bash
from support.waiting import wait_until


@pytest.fixture
def new_server(new_server, tmp_path):
    """All servers of a test share one data folder."""
    return lambda **options: new_server("shared", **options)


def _reads(http: Http, job_id: str) -> list[int]:
    trial_id = http.get(f"/v1/jobs/{job_id}").json["training"]["trials"][0]["trial_id"]
    paths = [
        "/v1/jobs",
        f"/v1/jobs/{job_id}",
        f"/v1/jobs/{job_id}/result",
        f"/v1/jobs/{job_id}/events",
        f"/v1/jobs/{job_id}/logs?source=all",
        f"/v1/trials?job_id={job_id}",
        f"/v1/trials/{trial_id}",
        f"/v1/trials/{trial_id}/artifacts",
        "/v1/runners",
        "/v1/me",
    ]
    return [http.get(path).status for path in paths]


def test_P12_without_any_controller_submissions_and_reads_are_answered(new_server):
    """A process of role ``api`` alone: Jobs are accepted and wait; every read works."""
    first = new_server().start()  # it leaves the nodes in the database
    first.stop()
    alone = new_server(options=["--role", "api"], gpus="").start()
    job_id = alone.submit(bash("true", "r", trials=2))
    assert set(_reads(alone.http(), job_id)) == {200}
    job = alone.job(job_id)
    assert job["status"] == "queued"
    assert [trial["waiting"]["position"] for trial in job["training"]["trials"]] == [1, 2]
    stopped = alone.http().post(f"/v1/jobs/{job_id}/stop")
    assert stopped.json["status"] == "cancelled", "what holds nothing ends at once, without a controller"
    alone.stop()


@pytest.fixture
def controller(new_server):
    """A process of role ``controller``; clients are not told where it is."""
    command = new_server(options=["--role", "controller"]).command()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("Trainshed serves ")
    yield process
    process.terminate()
    assert process.wait(30) == 0
    process.stdout.close()


def test_P12_a_frozen_controller_process_delays_no_reader(new_server, controller):
    """The controller's process is stopped in its tracks; the API process answers all the same."""
    api = new_server(options=["--role", "api"], gpus="").start()
    job_id = api.submit(bash("sleep 600", "r"))
    wait_until(lambda: api.job(job_id)["training"]["trials"][0]["status"] == "running")
    os.kill(controller.pid, signal.SIGSTOP)
    try:
        assert set(_reads(api.http(), job_id)) == {200}
        waiting = api.submit(bash("true", "second"))
        assert set(_reads(api.http(), waiting)) == {200}
        assert api.http().post(f"/v1/jobs/{job_id}/stop").json["status"] == "stopping"
    finally:
        os.kill(controller.pid, signal.SIGCONT)
    for each in (job_id, waiting):
        api.wait_for_release(each)
    assert controller.poll() is None


def test_P12_reads_succeed_while_submissions_arrive(server):
    http, enough = server.http(), threading.Event()
    submitted: list[str] = []

    def submit(number: int) -> None:
        for turn in range(60):
            answer = http.post("/v1/jobs", bash("true", f"{number}-{turn}", resources={"gpus": 8}))
            assert answer.status == 201
            submitted.append(answer.json["job_id"])
            enough.set()

    people = [threading.Thread(target=submit, args=[number]) for number in range(3)]
    for each in people:
        each.start()
    assert enough.wait(30)
    rounds = 0
    while any(each.is_alive() for each in people):
        assert set(_reads(http, submitted[rounds % len(submitted)])) == {200}
        rounds += 1
    assert rounds
    for job_id in submitted:
        http.post(f"/v1/jobs/{job_id}/stop")
    for job_id in submitted:
        server.wait_for_release(job_id)
