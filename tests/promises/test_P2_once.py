"""P2: one request id names one Job, under concurrency, lost replies and restarts."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException

import pytest

from support.http import Answer, Http
from support.programs import bash, leaving_a_mark, marks
from support.proxy import Fault, FaultProxy, in_turn

_TRIES = 10


def persistently(http: Http, document: object) -> Answer:
    """Submit as a careful client does: the same request again until an answer arrives whole."""
    for _ in range(_TRIES):
        try:
            return http.post("/v1/jobs", document)
        except (OSError, ValueError, HTTPException):
            continue
    raise AssertionError("no answer at all")


FAULTS = {
    "request lost": [Fault.DROP_REQUEST],
    "reply lost": [Fault.DROP_REPLY],
    "reply cut": [Fault.CUT_REPLY],
    "request doubled": [Fault.REPEAT_REQUEST],
    "all of it": [
        Fault.DROP_REQUEST,
        Fault.DROP_REPLY,
        Fault.CUT_REPLY,
        Fault.DROP_REPLY,
        Fault.REPEAT_REQUEST,
    ],
}


@pytest.mark.parametrize("name", FAULTS)
def test_P2_whatever_the_network_loses_or_repeats_there_is_one_job(module_server, tmp_path, name):
    document = bash(leaving_a_mark(tmp_path / "starts"), f"proxy-{name}", trials=2)
    plan = in_turn(FAULTS[name], method="POST", path="/v1/jobs")
    with FaultProxy(module_server.url, plan) as proxy:
        answer = persistently(Http(proxy.url, module_server.key), document)
        posted = [seen for seen in proxy.seen if seen.method == "POST"]
    assert answer.status in {200, 201}
    assert [seen.fault for seen in posted][: len(FAULTS[name])] == FAULTS[name]
    trials = module_server.wait_for_release(answer.json["job_id"])
    assert len(trials) == 2
    assert sorted(marks(tmp_path / "starts")) == sorted(trial["trial_id"] for trial in trials)
    jobs = module_server.http().get("/v1/jobs?limit=100").json["items"]
    assert [job["job_id"] for job in jobs if job["request_id"] == f"proxy-{name}"] == [answer.json["job_id"]]


def test_P2_E24_many_at_once_get_one_job_made_by_exactly_one_of_them(module_server, tmp_path):
    document = bash(leaving_a_mark(tmp_path / "starts"), "at once", trials=3)
    http = module_server.http()
    with ThreadPoolExecutor(16) as people:
        answers = list(people.map(lambda _: http.post("/v1/jobs", document), range(32)))
    assert sorted(answer.status for answer in answers) == [200] * 31 + [201]
    [job_id] = {answer.json["job_id"] for answer in answers}
    trials = module_server.wait_for_release(job_id)
    assert len(trials) == 3
    assert sorted(marks(tmp_path / "starts")) == sorted(trial["trial_id"] for trial in trials)


def test_P2_E26_E29_of_two_inputs_at_once_one_wins_and_the_other_is_told_what_differs(module_server):
    one = bash("true", "two inputs", timeout_seconds=60)
    other = bash("false", "two inputs", timeout_seconds=61, trials=1)
    http = module_server.http()
    with ThreadPoolExecutor(16) as people:
        answers = list(people.map(lambda n: http.post("/v1/jobs", (one, other)[n % 2]), range(32)))
    assert {answer.status for answer in answers} == {200, 201, 409}
    assert [answer.status for answer in answers].count(201) == 1
    [job_id] = {answer.json["job_id"] for answer in answers if answer.status != 409}
    before = module_server.wait_for_release(job_id)
    for answer in answers:
        if answer.status == 409:
            assert answer.code == "JOB_REQUEST_CONFLICT"
            paths = {error["path"] for error in answer.json["errors"]}
            assert paths == {"trials[0].spec.command", "trials[0].spec.timeout_seconds"}
    assert module_server.job(job_id)["training"]["trials"] == before, "a conflict changes nothing (E29)"


def test_P2_a_replay_after_a_restart_is_the_same_job(new_server, tmp_path):
    server = new_server().start()
    document = bash(leaving_a_mark(tmp_path / "starts"), "r")
    job_id = server.submit(document)
    server.wait_for_release(job_id)
    server.stop()
    server.start()
    assert server.submit(document) == job_id
    assert len(marks(tmp_path / "starts")) == 1
