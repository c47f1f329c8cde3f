"""Logs of a Job that moves to another provider, as a scripted server tells of it (contract G, a.3, i)."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator

import pytest

from support.fake_server import FakeServer, Reply, Request
from support.gpu_line import Line
from trainshed.sdk.transport import RetryPolicy

JOB = {
    "id": "abc123000000",
    "short_id": "abc123",
    "job_id": "job_1",
    "trial_id": "trial_1",
    "name": "x",
    "state": "running",
    "provider": "kaggle",
    "version": 1,
    "attempt_count": 1,
    "approval_id": None,
    "route_reason": "kaggle T4: it is free",
}
LINES = (("a", "1:1"), ("b", "1:2"), ("c", "1:3"), ("--- attempt 2 on colab ---", "2:0"), ("d", "2:1"))


def detail(job: dict) -> Reply:
    return Reply(200, {"job": job, "attempts": [], "checkpoints": [], "events": [], "route": None})


@pytest.fixture
def moving(tmp_path, monkeypatch) -> Iterator[tuple[FakeServer, Line]]:
    """Two lines, then three; the second Attempt is there once the first was read, and the Job then ends."""
    monkeypatch.setattr(RetryPolicy, "pause", lambda _self, _attempt: 0.001)
    state = dict(JOB)

    def logs(request: Request) -> Reply:
        known = int(request.query.get("offset", "0")) + (5 if request.query.get("attempt") == "2" else 0)
        order = [int(place[2:]) + (5 if place[0] == "2" else 0) for _, place in LINES]
        page = [line for line, at in zip(LINES, order, strict=True) if at > known][: 2 if known == 0 else 3]
        over = not page and known == 6
        if over:
            state["state"] = "done"
        document = {
            "attempt": 1,
            "provider": "kaggle",
            "latest_attempt": 2,
            "lines": [text for text, _ in page],
            "places": [place for _, place in page],
            "next_since": page[-1][1] if page else "2:1",
            "older_lines_not_shown": 0,
            "finished": over,
        }
        return Reply(200, document)

    events = itertools.chain(
        [{"items": [event(1, None, "queued", "submitted")]}], itertools.repeat({"items": []})
    )
    routes = {
        "GET /v1/scripts/abc123": lambda _: detail(state),
        "GET /v1/scripts/abc123/logs": logs,
        "GET /v1/scripts/abc123/events": lambda _: Reply(200, next(events)),
        "GET /v1/providers": Reply(
            200, {"items": [{"name": "kaggle", "capabilities": {"live_logs": False}}]}
        ),
    }
    with FakeServer(routes) as server:
        home = tmp_path / "home"
        yield (
            server,
            Line({"TRAINSHED_URL": server.url, "TRAINSHED_API_KEY": "k", "TRAINSHED_HOME": str(home)}),
        )


def event(number: int, before: str | None, after: str, reason: str) -> dict:
    return {
        "id": number,
        "kind": "transition",
        "from": before,
        "to": after,
        "reason": reason,
        "message": "said\nso",
        "attempt": None,
    }


def test_follow_goes_on_across_attempts_and_ends_with_the_job(moving):
    _, gpu = moving
    ran = gpu("logs", "abc123", "-f")
    assert ran.status == 0
    assert ran.out.splitlines() == [text for text, _ in LINES]
    assert "kaggle gives the log at the end of a run only" in ran.err
    assert "-- queued: said so\n" in ran.err


def test_each_line_has_the_place_to_go_on_from(moving):
    _, gpu = moving
    *lines, last = map(json.loads, gpu("logs", "abc123", "-f", "--json").out.splitlines())
    assert [(each["line"], f"{each['attempt']}:{each['offset']}") for each in lines] == list(LINES)
    assert last == {"eof": True, "state": "done"}


def test_one_attempt_ends_where_the_next_begins(moving):
    _, gpu = moving
    assert gpu("logs", "abc123", "--attempt", "1").out == "a\nb\nc\n"


def test_a_log_without_the_end_of_the_job_says_so(moving):
    server, gpu = moving
    server.routes["GET /v1/scripts/abc123/logs"] = Reply(
        200,
        {"attempt": None, "lines": [], "next_since": None, "finished": False, "older_lines_not_shown": 0},
    )
    ran = gpu("logs", "abc123", "--json")
    assert json.loads(ran.out) == {"eof": False, "state": "running"}


def test_an_outage_between_two_looks_ends_nothing(moving):
    server, gpu = moving
    server.routes["GET /v1/scripts/abc123/events"] = Reply(503, {"code": "NOT_READY", "message": "starting"})
    ran = gpu("logs", "abc123", "-f")
    assert ran.status == 0
    assert ran.out.splitlines() == [text for text, _ in LINES]
