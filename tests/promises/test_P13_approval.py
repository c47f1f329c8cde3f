"""P13: what a team's rules hold back runs only after a person said yes; nothing of an agent's can say it."""

from __future__ import annotations

import contextlib

import pytest

from support.person import Person
from support.programs import bash, leaving_a_mark, marks
from support.scripts import document, packed_over_http
from support.waiting import wait_until


@pytest.fixture
def people(module_server, tmp_path):
    """Makes people (and agents) at terminals of the server's machine."""
    with contextlib.ExitStack() as stack:
        names = iter(range(10))

        def make(**values):
            made = Person(tmp_path / f"person-{next(names)}", module_server.url, module_server.key, **values)
            stack.callback(made.close)
            return made

        yield make


@pytest.fixture
def ada(people):
    """A person whose project asks about every Job of more than half a GPU-hour."""
    person = people()
    status, answer = person.request("PUT", "/v1/approval-policy", {"max_gpu_hours": 0.5})
    assert status == 200, answer
    return person


def trials_of(server, job_id):
    return server.job(job_id)["training"]["trials"]


def question_about(person, job_id):
    _, found = person.request("GET", "/v1/approvals?open=1")
    return next(each for each in found["items"] if each["job_id"] == job_id)


def test_P13_a_costly_runner_job_waits_for_a_person_and_then_runs(module_server, people, ada, tmp_path):
    place = tmp_path / "starts"
    costly = module_server.submit(bash(leaving_a_mark(place), "costly", trials=2, timeout_seconds=3600))
    found = trials_of(module_server, costly)
    assert {(trial["status"], trial["state"]) for trial in found} == {("queued", "awaiting_approval")}
    assert found[0]["waiting"]["code"] == "AWAITING_APPROVAL"
    assert "up to 2 GPU-hours, over the limit of 0.5" in found[0]["waiting"]["message"]
    # What is cheap goes on meanwhile, and so has looked at the queue since.
    cheap = module_server.submit(bash("true", "cheap", timeout_seconds=60))
    module_server.wait_for_release(cheap)
    question = question_about(ada, costly)
    assert question["kind"] == "runner"
    path = f"/v1/approvals/{question['id']}"
    agent = people(env={"CLAUDECODE": "1"})
    for action, body in (("challenge", None), ("answer", {"answer": "approved", "code": "AAAA-AAAA"})):
        status, refused = agent.request("POST", f"{path}/{action}", body)
        assert (status, refused["code"]) == (403, "FORBIDDEN")
    assert marks(place) == []
    assert ada.request("POST", f"{path}/challenge")[0] == 200
    status, answered = ada.request("POST", f"{path}/answer", {"answer": "approved", "code": ada.code()})
    assert (status, answered["answer"]) == (200, "approved")
    done = module_server.wait_for_release(costly)
    assert [trial["status"] for trial in done] == ["succeeded", "succeeded"]
    assert sorted(marks(place)) == sorted(trial["trial_id"] for trial in done)


def test_P13_a_denied_job_never_starts(module_server, ada, tmp_path):
    place = tmp_path / "starts"
    costly = module_server.submit(bash(leaving_a_mark(place), "denied", timeout_seconds=7200))
    path = f"/v1/approvals/{question_about(ada, costly)['id']}"
    assert ada.request("POST", f"{path}/answer", {"answer": "denied"})[0] == 200
    wait_until(lambda: module_server.job(costly)["status"] == "cancelled", 20, "the denied Job's end")
    [trial] = trials_of(module_server, costly)
    assert (trial["state"], trial["error"]["code"], trial["cleanup_confirmed"]) == (
        "denied",
        "APPROVAL_DENIED",
        True,
    )
    assert marks(place) == []


def test_P13_a_question_outlives_the_server(module_server, ada, tmp_path):
    place = tmp_path / "starts"
    costly = module_server.submit(bash(leaving_a_mark(place), "outlives", timeout_seconds=3600))
    number = question_about(ada, costly)["id"]
    module_server.kill()
    module_server.start()
    person = Person(tmp_path / "again", module_server.url, module_server.key)
    try:
        assert question_about(person, costly)["id"] == number
        assert person.request("POST", f"/v1/approvals/{number}/challenge")[0] == 200
        body = {"answer": "approved", "code": person.code()}
        assert person.request("POST", f"/v1/approvals/{number}/answer", body)[0] == 200
        module_server.wait_for_release(costly)
        assert len(marks(place)) == 1
    finally:
        person.close()


def test_P13_G21_G39_an_agents_project_runs_once_a_person_approved_it(module_server, people, tmp_path):
    place = tmp_path / "starts"
    program = f"open({str(place)!r}, 'a').write('started ')\n".encode()
    http = module_server.http()
    spec = document(
        packed_over_http(http, {"train.py": program}),
        project_dir=str(tmp_path / "project"),
        provider="local",
        hours=None,
    )
    agent = {"Trainshed-Source": "agent"}
    job = http.request("POST", "/v1/jobs", {"type": "train", "spec": spec}, headers=agent).json["job"]

    def now():
        return http.get(f"/v1/scripts/{job['id']}").json["job"]

    wait_until(lambda: now()["state"] == "awaiting_approval", 60, f"a question; {now()}")
    assert "no hours given" in now()["approval_reason"]
    path = f"/v1/approvals/{now()['approval_id']}"
    refused = http.request("POST", f"{path}/answer", {"answer": "approved"}, headers=agent)
    assert (refused.status, refused.code) == (403, "FORBIDDEN")
    assert marks(place) == []
    person = people()
    assert person.request("POST", f"{path}/challenge")[0] == 200
    body = {"answer": "approved", "code": person.code()}
    assert person.request("POST", f"{path}/answer", body)[0] == 200
    wait_until(lambda: now()["state"] == "done", 120, f"its end; {now()}")
    assert marks(place) == ["started"]
    events = http.get(f"/v1/scripts/{job['id']}/events").json["items"]
    assert [each["to"] for each in events if each["kind"] == "transition"] == [
        "queued",
        "routing",
        "awaiting_approval",
        "provisioning",
        "running",
        "done",
    ]
    assert now()["approved_at"] is not None
