"""One call: what is sent, what is repeated, which error comes out."""

from __future__ import annotations

import threading
import time

import pytest

from support import documents
from support.fake_server import DROP, FakeServer, Reply, in_turn, refusal
from trainshed import Client
from trainshed.sdk import (
    Conflict,
    ConnectionFailed,
    InvalidAnswer,
    NotAuthenticated,
    NotFound,
    PermissionRefused,
    RateLimited,
    RequestRefused,
    RetryPolicy,
    ServerUnavailable,
    TrainshedError,
    WaitTimeout,
)

QUICK = RetryPolicy(attempts=4, first=0.001, longest=0.002)
SUBMIT = "POST /v1/jobs"
JOB = f"GET /v1/jobs/{documents.JOB_ID}"
STOP = f"POST /v1/jobs/{documents.JOB_ID}/stop"
REQUEST = {"spec": {"runner": "a/b@main"}}


def test_a_call_carries_the_key_the_project_and_percent_encoded_ids(serve):
    server, client = serve({"GET /v1/jobs/p%3A1%2F..": Reply(body=documents.job())}, project="team-a")
    client.jobs.get("p:1/..")
    sent = server.seen[0].headers
    assert sent["authorization"] == "Bearer key-1"
    assert sent["x-project-id"] == "team-a"
    assert server.seen[0].target == "/v1/jobs/p%3A1%2F.."


def test_what_is_no_request_and_no_id_is_told_in_words_of_this_api(serve):
    server, client = serve({})
    for call in (client.training_jobs.submit, client.tasks.create, client.tasks.validate):
        with pytest.raises(TypeError, match=r"a request is a mapping such as .*, not list"):
            call([])
    for look in (client.jobs.get, client.trials.get, client.tasks.get):
        with pytest.raises(TypeError, match="an id or a name is a str, not NoneType"):
            look(None)
        with pytest.raises(ValueError, match="an id or a name is empty"):
            look("")
    assert server.seen == []


def test_administration_names_its_project_in_the_path_only(serve):
    server, client = serve(
        {"GET /v1/admin/projects/other/keys": Reply(body=documents.page())}, project="mine"
    )
    client.keys.list("other")
    assert "x-project-id" not in server.seen[0].headers


def test_E18_the_sdk_submits_the_request_dictionary_as_it_is(serve):
    server, client = serve({SUBMIT: Reply(201, documents.job("queued"))})
    request = {"request_id": "r-9", "trials": [{"name": "a", "spec": {"runner": "a/b@main"}}]}
    kept = dict(request)
    job = client.training_jobs.submit(request)
    assert server.seen[0].json == {"type": "train", **kept}
    assert request == kept
    assert job.job_id == documents.JOB_ID
    assert job.trials[0].gpus.simulated


def test_E24_a_request_id_is_made_before_the_first_try_and_kept_in_every_repetition(serve):
    server, client = serve(
        {SUBMIT: in_turn(DROP, refusal(503, "DATABASE_UNAVAILABLE"), Reply(201, documents.job()))}
    )
    client.training_jobs.submit(REQUEST)
    ids = {request.json["request_id"] for request in server.asked(SUBMIT)}
    assert len(server.asked(SUBMIT)) == 3
    assert len(ids) == 1
    assert ids.pop()


def test_a_submission_without_request_id_can_be_sent_as_it_is(serve):
    server, client = serve({SUBMIT: refusal(422, "INVALID_REQUEST_ID")})
    with pytest.raises(RequestRefused):
        client.training_jobs.submit(REQUEST, make_request_id=False)
    assert "request_id" not in server.seen[0].json


@pytest.mark.parametrize(
    "fault",
    [
        DROP,
        Reply(200, documents.job(), cut_after=20),
        refusal(429, "RATE_LIMITED", headers={"Retry-After": "0"}),
        refusal(500, "INTERNAL_ERROR"),
        refusal(503, "DATABASE_UNAVAILABLE"),
        Reply(502, b"<html>bad gateway</html>"),
    ],
    ids=["dropped", "cut", "429", "500", "503", "502 from a proxy"],
)
@pytest.mark.parametrize("route", [JOB, STOP])
def test_reads_and_stops_are_repeated_after_a_passing_fault(serve, route, fault):
    server, client = serve({route: in_turn(fault, fault, Reply(body=documents.job()))})
    (client.jobs.get if route == JOB else client.jobs.stop)(documents.JOB_ID)
    assert len(server.asked(route)) == 3


def test_a_write_that_names_nothing_is_not_repeated_after_a_lost_answer(serve):
    route = "POST /v1/admin/projects/p/keys"
    server, client = serve({route: DROP})
    with pytest.raises(ConnectionFailed):
        client.keys.create("p", label="ci")
    assert len(server.asked(route)) == 1


def test_retry_after_is_obeyed(serve):
    limited = refusal(429, "RATE_LIMITED", headers={"Retry-After": "0"})
    server, client = serve({JOB: in_turn(limited, Reply(body=documents.job()))})
    client.jobs.get(documents.JOB_ID)
    assert len(server.seen) == 2


def test_an_outage_is_told_once_when_it_begins_and_once_when_it_ends(serve):
    told = []
    answers = in_turn(*[DROP] * 6, Reply(body=documents.job("running")), DROP, Reply(body=documents.job()))
    _, client = serve({JOB: answers}, on_retry=told.append)
    client.jobs.wait(documents.JOB_ID, timeout=30)
    assert [text.partition(" (")[0] for text in told] == ["lost the server", "the server answers again"] * 2


@pytest.mark.parametrize("reply", [Reply(201, documents.job("queued")), Reply(200, documents.job("queued"))])
def test_E24_a_submission_says_whether_the_job_was_there_before(serve, reply):
    _, client = serve({SUBMIT: reply})
    assert client.training_jobs.submit(REQUEST).accepted_before == (reply.status == 200)


def test_E24_after_a_lost_answer_nobody_claims_that_the_job_was_there_before(serve):
    _, client = serve({SUBMIT: in_turn(DROP, Reply(200, documents.job("queued")))})
    assert not client.training_jobs.submit(REQUEST).accepted_before


@pytest.mark.parametrize(
    ("status", "code", "kind", "again", "tries"),
    [
        (401, "AUTHENTICATION_REQUIRED", NotAuthenticated, False, 1),
        (403, "PERMISSION_DENIED", PermissionRefused, False, 1),
        (404, "JOB_NOT_FOUND", NotFound, False, 1),
        (410, "LOG_CURSOR_EXPIRED", NotFound, False, 1),
        (409, "JOB_REQUEST_CONFLICT", Conflict, False, 1),
        (422, "INVALID_TRIALS", RequestRefused, False, 1),
        (429, "RATE_LIMITED", RateLimited, True, 4),
        (500, "INTERNAL_ERROR", ServerUnavailable, True, 4),
        (503, "EXECUTOR_UNAVAILABLE", ServerUnavailable, True, 1),
        (507, "STORAGE_FULL", ServerUnavailable, True, 1),
    ],
)
def test_E4_a_refusal_becomes_one_kind_of_error_with_its_code(serve, status, code, kind, again, tries):
    server, client = serve({JOB: refusal(status, code, "because")})
    with pytest.raises(kind) as caught:
        client.jobs.get(documents.JOB_ID)
    error = caught.value
    assert type(error) is kind
    assert (error.code, error.status, error.message, error.again) == (code, status, "because", again)
    assert error.faults[0].code == code
    assert error.hint == "Do better."
    assert isinstance(error, TrainshedError)
    assert len(server.seen) == tries


@pytest.mark.parametrize(
    "body",
    [b"not json", {"job_id": "x"}, [], {"status": "queued"}, {**documents.job(), "created_at": "soon"}],
)
def test_an_answer_that_is_no_job_is_named_as_such(serve, body):
    _, client = serve({JOB: Reply(body=body)})
    with pytest.raises(InvalidAnswer):
        client.jobs.get(documents.JOB_ID)


def test_no_server_at_all_is_a_connection_failure_that_can_pass():
    with FakeServer({}) as server:
        url = server.url
    with Client(url, "k", retry=QUICK) as client, pytest.raises(ConnectionFailed) as caught:
        client.me()
    assert caught.value.again
    assert url in caught.value.message


def test_wait_asks_until_the_end_through_an_outage(serve):
    answers = in_turn(
        Reply(body=documents.job("queued")),
        *[DROP] * 6,
        Reply(body=documents.job("running")),
        Reply(body=documents.job("failed")),
    )
    _, client = serve({JOB: answers})
    job = client.jobs.wait(documents.JOB_ID, timeout=30)
    assert job.ended
    assert not job.succeeded


def test_wait_for_release_goes_on_after_the_end(serve):
    held = documents.job("completed", [documents.trial(cleanup_confirmed=False)])
    server, client = serve({JOB: in_turn(Reply(body=held), Reply(body=documents.job()))})
    assert client.jobs.wait(documents.JOB_ID, released=True).trials[0].cleanup_confirmed
    assert len(server.seen) == 2


def test_wait_gives_up_after_the_time_given(serve):
    _, client = serve({JOB: Reply(body=documents.job("running"))})
    with pytest.raises(WaitTimeout, match="running"):
        client.jobs.wait(documents.JOB_ID, timeout=0.2)


@pytest.mark.parametrize(
    "fault",
    [DROP, refusal(503, "DATABASE_UNAVAILABLE"), refusal(500, "INTERNAL_ERROR"), Reply(502, b"<html>")],
    ids=["no connection", "503", "500", "502 from a proxy"],
)
def test_wait_gives_up_after_the_time_given_also_while_the_server_fails(serve, fault):
    _, client = serve({JOB: fault}, retry=RetryPolicy(attempts=1000, first=0.01, longest=0.02))
    start = time.monotonic()
    with pytest.raises(WaitTimeout, match="no answer"):
        client.jobs.wait(documents.JOB_ID, timeout=0.3)
    assert time.monotonic() - start < 5


def test_wait_does_not_hang_on_a_server_that_takes_the_request_and_says_nothing(serve):
    silent = threading.Event()

    def never(_):
        silent.wait(30)
        return DROP

    _, client = serve({JOB: never})
    start = time.monotonic()
    with pytest.raises(WaitTimeout):
        client.jobs.wait(documents.JOB_ID, timeout=0.1)
    assert time.monotonic() - start < 10
    silent.set()


def test_a_fault_of_the_server_that_stays_ends_a_wait_as_it_ends_any_call(serve):
    server, client = serve({JOB: refusal(500, "INTERNAL_ERROR")})
    with pytest.raises(ServerUnavailable):
        client.jobs.wait(documents.JOB_ID)
    assert len(server.seen) == QUICK.attempts


def test_lists_walk_all_pages(serve):
    def pages(request):
        last = request.query.get("cursor") == "c2"
        return Reply(body=documents.page(documents.job(), cursor=None if last else "c2"))

    server, client = serve({"GET /v1/jobs": pages})
    assert len(list(client.jobs.iter_all(status="failed"))) == 2
    assert [request.query["status"] for request in server.seen] == ["failed", "failed"]


@pytest.mark.parametrize("ranges", [True, False], ids=["with ranges", "without ranges"])
def test_raw_bytes_continue_where_a_connection_broke(serve, ranges):
    content = bytes(range(256)) * 1000
    cuts = [100_000, 0, 150_000, None]
    route = f"GET /v1/trials/{documents.TRIAL_ID}/logs/raw"

    def answer(request):
        start = int(request.headers.get("range", "bytes=0-")[6:-1]) if ranges else 0
        return Reply(206 if start else 200, content[start:], cut_after=cuts.pop(0))

    _, client = serve({route: answer})
    assert b"".join(client.trials.raw_log(documents.TRIAL_ID)) == content


def test_raw_bytes_that_broke_off_at_their_end_are_complete(serve):
    route = f"GET /v1/trials/{documents.TRIAL_ID}/logs/raw"
    _, client = serve({route: in_turn(Reply(200, b"all....", cut_after=3), refusal(416, "INVALID_REQUEST"))})
    assert b"".join(client.trials.raw_log(documents.TRIAL_ID)) == b"all"
