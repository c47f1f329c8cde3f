"""Every command that takes a Job takes a prefix of its digits, whatever the Job is (contract G, a.0.8)."""

from __future__ import annotations

import pytest

from support.http import Http
from support.programs import bash
from support.scripts import document, packed_over_http
from trainshed.cli.exits import Exit
from trainshed.store import jobs as store
from trainshed.store.database import Database


@pytest.fixture
def jobs(module_server, monkeypatch, quiet):
    """A script Job and a Runner Job that have ended, on a server that the environment names."""
    for name, value in module_server.environment.items():
        monkeypatch.setenv(name, value)
    http: Http = module_server.http()
    runner = module_server.submit(bash("echo hello", "short", timeout_seconds=60))
    module_server.wait_for_release(runner)
    bundle = packed_over_http(http, {"train.py": b"print('from the script', flush=True)\n"})
    answer = http.post("/v1/jobs", {"type": "train", "spec": document(bundle, provider="local", hours=0.1)})
    assert answer.status in {200, 201}, answer.body
    script = answer.json["job"]
    found = http.get("/v1/approvals").json  # asks nobody: a user's short Job
    assert found["items"] == []
    module_server.wait_for_release(script["job_id"])
    return http.get(f"/v1/scripts/{script['id']}").json["job"], runner


def digits_of(module_server, job_id):
    """The digits of a Job that is no script Job: those under which it is found."""
    database = Database(f"sqlite:///{module_server.data / 'trainshed.sqlite'}")
    try:
        with database.read() as connection:
            return store.find_job(connection, None, job_id).short_id
    finally:
        database.close()


@pytest.mark.parametrize("program", ["trainshed", "el"])
def test_a0_commands_of_Jobs_take_a_prefix(run, jobs, module_server, program):
    script, runner = jobs
    for job_id, short in (
        (script["job_id"], script["short_id"]),
        (runner, digits_of(module_server, runner)),
    ):
        got = run("job", "get", short, "--json", program=program)
        assert (got.status, got.json["job_id"]) == (0, job_id), got.err
        listed = run("trial", "list", "--job-id", short, "--json", program=program)
        assert [each["job_id"] for each in listed.json["items"]] == [job_id], listed.err
        assert run("job", "events", short, program=program).status == 0
        assert run("job", "stop", short, program=program).status == 0
    logs = run("job", "log", script["short_id"], program=program)
    assert "from the script" in logs.out, logs.err
    assert run("job", "list", program=program).status == 0
    assert run("job", "wait", script["short_id"], program=program).status == 0


def test_a_reference_of_nothing_is_told_so(run, jobs):
    assert jobs
    missing = run("job", "get", "0123456789ab")
    assert missing.status == Exit.NOT_FOUND
    assert "JOB_NOT_FOUND" in missing.err
