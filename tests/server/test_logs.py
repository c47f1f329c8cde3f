"""Logs over HTTP: pages, tails, following, exact bytes, retention (contract E b5, P8, E71)."""

from __future__ import annotations

import base64
import json
import threading

import pytest
from sqlalchemy.event import listen

from support.site import Site, finish, once_followed, place, put_output, start, started, submission, trials
from trainshed.jobkit.frames import EOF, GAP, OFFSET, STDERR, STDOUT, header
from trainshed.store import queue


def running(site: Site, request_id: str = "r", count: int = 1):
    spec = {"spec": submission()["spec"]}
    body = {"type": "train", "request_id": request_id, "trials": [spec] * count}
    job_id = site.post("/v1/jobs", body).json()["job_id"]
    return job_id, [(trial, start(site, trial)) for trial in trials(site, job_id)]


def walk(site: Site, job_id: str, query: str = "") -> list[dict]:
    items, cursor = [], ""
    for _ in range(1000):
        page = site.get(f"/v1/job/{job_id}/logs?limit=2{query}{cursor}").json()
        items += page["items"]
        if not page["has_more"]:
            return items
        cursor = f"&cursor={page['next_cursor']}"
    raise AssertionError("the pages do not end")


def test_E71_stdout_and_stderr_are_told_apart_and_the_end_is_stated(site: Site):
    job_id, [(trial, attempt)] = running(site)
    put_output(site, attempt, [(STDOUT, b"out 1\nout 2\n"), (STDERR, b"err\n")], end=False)
    page = site.get(f"/v1/job/{job_id}/logs?source=runtime&limit=200").json()
    assert [(i["stream"], i["content"]) for i in page["items"]] == [
        ("stdout", "out 1"),
        ("stdout", "out 2"),
        ("stderr", "err"),
    ]
    assert (page["eof"], page["has_more"], page["collection_status"]) == (False, False, "collecting")
    assert page["next_cursor"]
    put_output(site, attempt, [(STDOUT, b"out 1\nout 2\n"), (STDERR, b"err\n")])
    finish(site, trial, attempt)
    page = site.get(f"/v1/job/{job_id}/logs?source=runtime&cursor={page['next_cursor']}").json()
    assert (page["items"], page["eof"], page["collection_status"]) == ([], True, "complete")
    ids = [item["id"] for item in walk(site, job_id)]
    assert len(set(ids)) == len(ids)


def test_pages_give_system_and_runtime_records_of_all_trials_once(site: Site):
    job_id, pairs = running(site, count=3)
    for number, (trial, attempt) in enumerate(pairs):
        put_output(site, attempt, [(STDOUT, b"t%d line %d\n" % (number, line)) for line in range(5)])
        finish(site, trial, attempt)
    items = walk(site, job_id)
    runtime = [item for item in items if item["source"] == "runtime"]
    for number, (trial, _) in enumerate(pairs):
        mine = [item["content"] for item in runtime if item["trial_id"] == trial.id]
        assert mine == [f"t{number} line {line}" for line in range(5)]
    system = [item for item in items if item["source"] == "system"]
    assert {item["code"] for item in system} >= {"ACCEPTED", "QUEUED", "PLACED", "STARTED", "SUCCEEDED"}
    assert all(item["content"].endswith(".") for item in system)
    one = walk(site, job_id, f"&trial={pairs[1][0].name}")
    assert {item["trial_id"] for item in one if item["source"] == "runtime"} == {pairs[1][0].id}
    assert site.get(f"/v1/job/{job_id}/logs?trial=nix").json()["code"] == "TRIAL_NOT_FOUND"


def test_what_a_program_writes_is_told_after_its_start_also_where_that_is_seen_later(site: Site):
    body = {"type": "train", "request_id": "r", "trials": [{"spec": submission()["spec"]}]}
    job_id = site.post("/v1/jobs", body).json()["job_id"]
    [trial] = trials(site, job_id)
    attempt, begun = place(site, trial), site.clock()
    put_output(site, attempt, [(STDOUT, b"first\n")], end=False)
    path = f"/v1/job/{job_id}/logs"
    before = site.get(path).json()
    assert [item["source"] for item in before["items"]] == ["system"] * len(before["items"])
    assert {item["source"] for item in site.get(f"{path}?tail=10").json()["items"]} == {"system"}
    # Who asks for the program alone gets what there is.
    assert [item["content"] for item in site.get(f"{path}?source=runtime").json()["items"]] == ["first"]
    with once_followed(site, job_id, lambda: started(site, trial, attempt, begun)):
        begun = site.get(f"{path}?wait=20&cursor={before['next_cursor']}")
    found = [item.get("code", item["content"]) for item in begun.json()["items"]]
    assert found == ["STARTED", "first"]


def test_bytes_that_are_not_utf8_are_kept_exactly(site: Site):
    job_id, [(trial, attempt)] = running(site)
    put_output(site, attempt, [(STDOUT, b"a\xff\x00b\nfine\n"), (STDOUT, b"no end")])
    finish(site, trial, attempt)
    first, second, third = site.get(f"/v1/job/{job_id}/logs?source=runtime").json()["items"]
    assert first["content"] == "a\ufffd\x00b"
    assert base64.b64decode(first["content_base64"]) == b"a\xff\x00b"
    assert "content_base64" not in second
    assert (third["content"], third["partial"]) == ("no end", True)
    assert "partial" not in second
    raw = site.get(f"/v1/trials/{trial.id}/logs/raw?stream=stdout")
    assert raw.content == b"a\xff\x00b\nfine\nno end"
    assert raw.headers["X-Log-Complete"] == "true"
    assert site.get(f"/v1/trials/{trial.id}/logs/raw?stream=stderr").content == b""


def test_the_tail_goes_on_with_what_comes_later(site: Site):
    job_id, [(trial, attempt)] = running(site)
    lines = [(STDOUT, b"line %d\n" % number) for number in range(50)]
    put_output(site, attempt, lines, end=False)
    page = site.get(f"/v1/job/{job_id}/logs?source=runtime&tail=3").json()
    assert [item["content"] for item in page["items"]] == ["line 47", "line 48", "line 49"]
    put_output(site, attempt, [*lines, (STDOUT, b"line 50\n")])
    finish(site, trial, attempt)
    later = site.get(f"/v1/job/{job_id}/logs?source=runtime&cursor={page['next_cursor']}").json()
    assert [item["content"] for item in later["items"]] == ["line 50"]
    assert later["eof"] is True


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("source=nix", 422, "INVALID_LOG_SOURCE"),
        ("limit=0", 422, "INVALID_LOG_QUERY"),
        ("limit=1001", 422, "INVALID_LOG_QUERY"),
        ("tail=0", 422, "INVALID_LOG_QUERY"),
        ("tail=x", 422, "INVALID_LOG_QUERY"),
        ("wait=31", 422, "INVALID_LOG_QUERY"),
        ("tail=5&cursor=x", 422, "INVALID_LOG_QUERY"),
        ("cursor=x", 400, "LOG_CURSOR_INVALID"),
        ("cursor=", 400, "LOG_CURSOR_INVALID"),
    ],
)
def test_a_bad_query_is_refused(sqlite_site: Site, query: str, status: int, code: str):
    job_id = sqlite_site.submit()["job_id"]
    for suffix in ("logs", "logs/stream"):
        if suffix.endswith("stream") and query.startswith(("limit", "wait")):
            continue
        answer = sqlite_site.get(f"/v1/job/{job_id}/{suffix}?{query}")
        assert (answer.status_code, answer.json()["code"]) == (status, code)


def test_a_cursor_of_another_job_is_refused(site: Site):
    one, two = site.submit("a")["job_id"], site.submit("b")["job_id"]
    cursor = site.get(f"/v1/job/{one}/logs").json()["next_cursor"]
    answer = site.get(f"/v1/job/{two}/logs?cursor={cursor}")
    assert (answer.status_code, answer.json()["code"]) == (400, "LOG_CURSOR_INVALID")


def test_P8_what_could_not_be_kept_is_said(site: Site):
    job_id, [(trial, attempt)] = running(site)
    put_output(site, attempt, [(STDOUT, b"kept\n"), (GAP, OFFSET.pack(700))])
    finish(site, trial, attempt, usage={"dropped_log_bytes": 700})
    page = site.get(f"/v1/job/{job_id}/logs").json()
    assert (page["truncated"], page["dropped_bytes"], page["collection_status"]) == (True, 700, "partial")
    assert any(item.get("code") == "OUTPUT_DROPPED" for item in page["items"])
    assert page["sources"][0]["missing_reason"]
    runtime = site.get(f"/v1/job/{job_id}/logs?source=runtime").json()
    assert [item["content"] for item in runtime["items"]] == ["kept"]
    assert (runtime["truncated"], runtime["eof"]) == (True, True)


def test_P8_a_log_without_its_end_is_delivered_and_flagged(site: Site):
    job_id, [(trial, attempt)] = running(site)
    put_output(site, attempt, [(STDOUT, b"kept\n")], end=False)
    finish(site, trial, attempt)
    page = site.get(f"/v1/job/{job_id}/logs?source=runtime").json()
    assert (page["eof"], page["collection_status"]) == (True, "partial")
    assert "lost" in page["missing_reason"]
    assert site.get(f"/v1/trials/{trial.id}/logs/raw").headers["X-Log-Complete"] == "false"


def test_retention_is_said_and_a_cursor_into_a_deleted_log_is_expired(site: Site):
    job_id, [(trial, attempt)] = running(site)
    put_output(site, attempt, [(STDOUT, b"a\nb\n")])
    finish(site, trial, attempt)
    cursor = site.get(f"/v1/job/{job_id}/logs?source=runtime&limit=1").json()["next_cursor"]
    site.services.log_files(attempt).frames.unlink()
    site.services.database.write(lambda c: queue.mark_log_deleted(c, attempt, at=site.clock()))
    expired = site.get(f"/v1/job/{job_id}/logs?source=runtime&cursor={cursor}")
    assert (expired.status_code, expired.json()["code"]) == (410, "LOG_CURSOR_EXPIRED")
    page = site.get(f"/v1/job/{job_id}/logs").json()
    assert (page["eof"], page["collection_status"]) == (True, "unavailable")
    assert "retention" in page["missing_reason"]
    assert {item["source"] for item in page["items"]} == {"system"}
    assert site.get(f"/v1/trials/{trial.id}/logs/raw").status_code == 410


def test_waiting_answers_as_soon_as_something_is_written(site: Site):
    job_id, [(_, attempt)] = running(site)
    put_output(site, attempt, [(STDOUT, b"one\n")], end=False)
    cursor = site.get(f"/v1/job/{job_id}/logs").json()["next_cursor"]

    def write() -> None:
        files = site.services.log_files(attempt)
        with files.frames.open("ab") as file:
            file.write(header(4, STDOUT, 0, 1) + b"two\n")

    with once_followed(site, job_id, write):
        page = site.get(f"/v1/job/{job_id}/logs?wait=20&cursor={cursor}").json()
    assert [item["content"] for item in page["items"]] == ["two"]
    with once_followed(site, job_id, lambda: site.post(f"/v1/job/{job_id}/stop")):
        page = site.get(f"/v1/job/{job_id}/logs?wait=20&cursor={page['next_cursor']}").json()
    assert [item["code"] for item in page["items"]] == ["STOP_ACCEPTED"]


def events_of(text: str) -> list[dict]:
    found = []
    for block in text.split("\n\n"):
        lines = [line.partition(": ") for line in block.splitlines() if not line.startswith(":")]
        if lines:
            found.append({key: value for key, _, value in lines})
    return found


def test_the_stream_of_a_log_gives_every_record_and_can_be_resumed_behind_any(site: Site):
    job_id, [(trial, attempt)] = running(site)
    put_output(site, attempt, [(STDOUT, b"a\nb\n"), (STDERR, b"c\n")])
    finish(site, trial, attempt)
    found = events_of(site.get(f"/v1/jobs/{job_id}/logs/stream").text)
    assert found[-1]["event"] == "end"
    assert json.loads(found[-1]["data"])["eof"] is True
    records = [json.loads(entry["data"]) for entry in found[:-1]]
    assert records == walk(site, job_id)
    for number, entry in enumerate(found[:-1]):
        again = site.get(f"/v1/jobs/{job_id}/logs/stream", headers={"Last-Event-ID": entry["id"]}).text
        assert events_of(again)[:-1] == found[number + 1 : -1]


def test_the_stream_of_events_ends_when_everything_is_released(site: Site):
    job_id, [(trial, attempt)] = running(site)
    finish(site, trial, attempt)
    found = events_of(site.get(f"/v1/job/{job_id}/events/stream").text)
    assert found[-1]["event"] == "end"
    codes = [json.loads(entry["data"])["code"] for entry in found[:-1]]
    assert codes == ["ACCEPTED", "QUEUED", "PLACED", "STARTED", "ENDED", "SUCCEEDED"]
    resumed = site.get(f"/v1/job/{job_id}/events/stream", headers={"Last-Event-ID": found[2]["id"]}).text
    assert events_of(resumed) == found[3:]
    page = site.get(f"/v1/job/{job_id}/events?limit=2").json()
    assert [item["code"] for item in page["items"]] == ["SUCCEEDED", "ENDED"]
    assert page["items"][0].keys() >= {"resource_id", "status", "at", "source"}
    older = site.get(f"/v1/job/{job_id}/events?limit=100&cursor={page['next_cursor']}").json()
    assert [item["code"] for item in older["items"]] == codes[:-2][::-1]


def test_a_stream_follows_what_happens_while_it_is_open(site: Site):
    job_id, [(trial, attempt)] = running(site)
    put_output(site, attempt, [(STDOUT, b"one\n")], end=False)

    def go_on() -> None:
        files = site.services.log_files(attempt)
        with files.frames.open("ab") as file:
            file.write(header(4, STDOUT, 0, 1) + b"two\n" + header(0, EOF, 0, 2))
        finish(site, trial, attempt)

    with once_followed(site, job_id, go_on):
        found = events_of(site.get(f"/v1/jobs/{job_id}/logs/stream?source=runtime").text)
    assert [json.loads(entry["data"])["content"] for entry in found[:-1]] == ["one", "two"]
    assert found[-1]["event"] == "end"


def test_following_asks_the_database_no_more_often_the_more_is_written(sqlite_site: Site):
    site = sqlite_site
    job_id, [(trial, attempt)] = running(site)
    put_output(site, attempt, [], end=False)
    statements: list[str] = []
    listen(site.services.database.engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    lines = 400

    def write() -> None:
        files = site.services.log_files(attempt)
        pause = threading.Event()
        with files.frames.open("ab", buffering=0) as file:
            for number in range(lines):
                payload = b"line %d\n" % number
                file.write(header(len(payload), STDOUT, 0, number) + payload)
                pause.wait(0.002)
            file.write(header(0, EOF, 0, lines))
        statements.append("WRITTEN")
        finish(site, trial, attempt)

    with once_followed(site, job_id, write):
        found = events_of(site.get(f"/v1/jobs/{job_id}/logs/stream?source=runtime").text)
    assert len(found) == lines + 1
    asked = statements[: statements.index("WRITTEN")]
    assert len(asked) < lines / 4, len(asked)
