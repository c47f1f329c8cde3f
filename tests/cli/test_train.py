"""``trainshed train`` against a scripted server: what it sends, what it prints, how it ends."""

from __future__ import annotations

import http.client
import json
import re
import threading
from urllib.parse import urlsplit

import pytest

from support.fake_server import DROP, Reply, in_turn, refusal
from support.tasks import task_document
from support.waiting import wait_until
from trainshed.cli.exits import Exit
from trainshed.cli.train_proxy import DashboardServer
from trainshed.cli.train_watch import sparkline
from trainshed.sdk import Client

TASK = {
    "job_id": "job_1",
    "trial_id": "trial_1",
    "task_uuid": "11111111-2222-3333-4444-555555555555",
    "name": "sft-7k2m9q",
    "kind": "pytorch",
    "task_type": "PyTorchJob",
    "state": "Queuing",
    "resource_type": "ondemand",
    "replicas": 2,
    "gpus": 2,
    "priority": "normal",
    "shares": ["bob"],
    "public": False,
    "warnings": [{"code": "NO_WRITABLE_VOLUME", "path": "spec.mounts", "message": "nothing stays"}],
}
DONE = {
    **TASK,
    "state": "Failed",
    "failure": {
        "code": "EXIT_CODE",
        "class": "user",
        "replica": 1,
        "exit_code": 3,
        "message": "worker 0 exited with 3",
        "last_lines": ["Traceback", "ValueError"],
    },
    "attempts": [
        {
            "number": 1,
            "cause": "initial",
            "state": "Failed",
            "exit_class": "user",
            "replicas": [
                {"rank": 0, "role": "master", "state": "Terminating", "gpu_indices": [0]},
                {"rank": 1, "role": "worker", "state": "Failed", "gpu_indices": [1], "exit_code": 3},
            ],
        }
    ],
}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "task.yaml"
    document = task_document()
    del document["request_id"]
    path.write_text(json.dumps(document))
    return str(path)


def test_C56_a_file_without_a_request_id_gets_one_that_is_told_before_it_is_sent(run, fake, file):
    fake.routes = {"POST /v1/jobs": Reply(201, TASK)}
    ran = run("train", "create", "-f", file)
    assert ran.status == Exit.OK
    (sent,) = [request.json for request in fake.seen]
    assert sent["allow_duplicate"] is False
    assert f"request id {sent['request_id']}" in ran.err
    assert "warning: nothing stays (NO_WRITABLE_VOLUME)" in ran.err
    assert "sft-7k2m9q" in ran.out
    again = run("train", "create", "-f", file, "--json")
    assert [again.json[key] for key in ("job_id", "name", "task_uuid", "state")] == [
        TASK[key] for key in ("job_id", "name", "task_uuid", "state")
    ]
    assert fake.seen[1].json["request_id"] == again.json["request_id"] != sent["request_id"]


def test_C56_a_request_id_that_is_given_is_sent_and_tells_by_itself(run, fake, file):
    fake.routes = {"POST /v1/jobs": Reply(200, TASK)}
    assert run("train", "create", "-f", file, "--request-id", "mine", "-q").out == "sft-7k2m9q\n"
    assert run("train", "create", "-f", file, "--allow-duplicate").status == Exit.OK
    first, second = (request.json for request in fake.seen)
    assert (first["request_id"], "allow_duplicate" in first) == ("mine", False)
    assert second["allow_duplicate"] is True


def test_C56_after_a_lost_answer_it_is_told_how_to_ask_again(run, fake, file):
    fake.routes = {"POST /v1/jobs": DROP}
    ran = run("train", "create", "-f", file)
    assert ran.status == Exit.UNAVAILABLE
    sent = {request.json["request_id"] for request in fake.seen}
    assert len(sent) == 1
    assert f"--request-id {sent.pop()}" in ran.err


def test_every_fault_is_told_with_its_place_and_programs_keep_the_paths(run, fake, tmp_path):
    file = tmp_path / "task.yaml"
    file.write_text("type: train\nspec:\n  kind: pytorch\n  env:\n  - name: 1A\n    value: x\n")
    faults = [
        {"path": "spec.env[0].name", "code": "ENV_NAME_INVALID", "message": "no name"},
        {"path": "spec.workers", "code": "WORKERS_INVALID", "message": "too few"},
    ]
    body = {"code": "INVALID_SPEC", "message": "2 faults", "hint": "", "errors": faults}
    fake.routes = {"POST /v1/jobs": Reply(422, body)}
    ran = run("train", "create", "-f", str(file), "--set", "workers=-1")
    assert ran.status == Exit.REFUSED
    assert f"{file}:5:5: spec.env[0].name: no name" in ran.err
    assert "--set workers=-1: spec.workers: too few" in ran.err
    told = json.loads(run("train", "create", "-f", str(file), "--json").err.splitlines()[-1])
    assert [fault["path"] for fault in told["errors"]] == ["spec.env[0].name", "spec.workers"]
    assert told["places"][0] == {"path": "spec.env[0].name", "file": str(file), "line": 5, "column": 5}


def test_waiting_ends_with_the_outcome_of_the_task(run, fake, file):
    fake.routes = {
        "POST /v1/jobs": Reply(201, TASK),
        "GET /v1/tasks/sft-7k2m9q": in_turn(Reply(200, TASK), Reply(200, DONE)),
        "GET /v1/jobs/job_1": Reply(200, {"job_id": "job_1", "status": "failed"}),
    }
    ran = run("train", "create", "-f", file, "--wait")
    assert ran.status == Exit.FAILED
    assert "EXIT_CODE (class user, replica 1, exit 3): worker 0 exited with 3" in ran.out
    assert re.search(r"1\s+worker\s+Failed .*\[1\]\s+3", ran.out)
    assert "  ValueError" in ran.out
    fake.routes["GET /v1/tasks/sft-7k2m9q"] = Reply(200, {**TASK, "state": "Succeeded"})
    assert run("train", "wait", "sft-7k2m9q").status == Exit.OK
    fake.routes["GET /v1/tasks/sft-7k2m9q"] = Reply(200, TASK)
    late = run("train", "create", "-f", file, "--wait", "--wait-timeout", "0")
    assert late.status == Exit.TIMEOUT
    assert "sft-7k2m9q goes on; `trainshed train logs sft-7k2m9q --follow` follows it" in late.err


def test_C6_a_list_is_narrowed_by_every_label(run, fake):
    fake.routes = {
        "GET /v1/tasks": Reply(200, {"items": [{**TASK, "detail": "Preempted"}], "next_cursor": "n"})
    }
    ran = run("train", "list", "--label", "a=b", "--label", "c=d=e", "--state", "Queuing", "--kind", "ray")
    assert fake.seen[0].target.endswith("?kind=ray&state=Queuing&label=a%3Db&label=c%3Dd%3De&limit=25")
    assert "sft-7k2m9q" in ran.out
    assert "    Preempted\n" in ran.out
    assert "--cursor n" in ran.out
    assert run("train", "list", "-q").out == "sft-7k2m9q\n"
    run("train", "list", "--label", "a", "--state", "queuing")
    assert fake.seen[-1].target.endswith("?state=Queuing&label=a&limit=25")
    assert run("train", "list", "--label", "=a").status == Exit.USAGE


def test_P10_why_shows_reason_numbers_who_is_ahead_and_what_would_help(run, fake):
    answer = {
        "code": "WaitingForQuota",
        "message": "8 units are asked for, 2 are free",
        "position": 3,
        "position_in_project": 2,
        "queue_length": 5,
        "ahead": [{"priority": 500, "tasks": 2}],
        "blocked_by": {
            "spec": "h100x1",
            "requested": 8,
            "available": 2,
            "limit": 9,
            "largest": 0,
            "until": None,
        },
        "unblock": ["6 more units of h100x1"],
        "estimated_start": {"earliest": "2026-01-02T03:04:05+00:00", "latest": "2026-01-02T04:04:05+00:00"},
        "passed_over": [{"spec": "h200x8", "why": "no node has it"}],
    }
    fake.routes = {"GET /v1/tasks/x/why": Reply(200, answer)}
    out = run("train", "why", "x").out
    for words in (
        "WaitingForQuota: 8 units are asked for, 2 are free",
        "3 in its queue, 2 in its project, 5 tasks wait there",
        "2 of priority 500",
        "spec: h100x1",
        "units asked for: 8",
        "units left now: 2",
        "most units ever: 9",
        "  - 6 more units of h100x1",
        "no node has it",
    ):
        assert words in out
    assert "T03" not in out
    assert "largest" not in out
    assert run("train", "why", "x", "--json").json == answer


def test_C52_a_merged_log_names_the_replica_of_each_line(run, fake):
    def record(number, text, **more):
        return {"id": str(number), "source": "runtime", "stream": "stdout", "content": text, **more}

    items = [
        record(1, "one", replica=0, role="master", attempt=1),
        record(2, "two", replica=2, role="worker", attempt=1),
        record(3, "three", replica=2, role="worker", attempt=2),
        record(4, "four", replica=4, role="submitter", attempt=1),
    ]
    page = {"items": items, "next_cursor": "c", "has_more": False, "eof": True}
    fake.routes = {"GET /v1/tasks/x/logs": Reply(200, page)}
    lines = run("train", "logs", "x").out.splitlines()
    assert lines == ["[master] one", "[worker-1] two", "[worker-1 #2] three", "four"]
    assert run("train", "logs", "x", "--role", "all").out.splitlines()[3] == "[submitter] four"
    one = run("train", "logs", "x", "--role", "worker", "--index", "1", "--attempt", "2", "--tail", "5")
    assert one.out.splitlines()[1] == "two"
    query = fake.seen[-1].query
    assert [query[key] for key in ("role", "index", "attempt", "tail")] == ["worker", "1", "2", "5"]
    assert run("train", "logs", "x", "--json").json["items"] == items
    assert run("train", "logs", "x", "--index", "1").status == Exit.USAGE


def test_c2_events_are_followed_until_the_task_has_ended(run, fake):
    def event(number):
        return {"id": number, "at": None, "level": "info", "code": f"E{number}", "message": f"said {number}"}

    pages = {
        "0": {"items": [event(1)], "next_after": 1},
        "1": {"items": [event(2)], "next_after": None},
        "2": {"items": [], "next_after": None},
    }
    fake.routes = {
        "GET /v1/tasks/x": Reply(200, {**TASK, "state": "Succeeded"}),
        "GET /v1/tasks/x/events": lambda request: Reply(200, pages[request.query["after"]]),
    }
    ran = run("train", "events", "x", "--follow", "--json")
    assert [json.loads(line)["code"] for line in ran.out.splitlines()] == ["E1", "E2"]
    first = run("train", "events", "x")
    assert "said 1" in first.out
    assert "--after 1" in first.out


def test_C5_sharing_adds_and_takes_away(run, fake):
    fake.routes = {"GET /v1/tasks/x": Reply(200, TASK), "PATCH /v1/tasks/x": Reply(200, TASK)}
    ran = run("train", "share", "x", "--public", "--with", "eve", "--without", "bob")
    assert fake.seen[-1].json == {"public": True, "shares": ["eve"]}
    assert "visible to its owner and bob" in ran.out
    count = len(fake.seen)
    run("train", "share", "x")
    assert [request.method for request in fake.seen[count:]] == ["GET"]


@pytest.mark.parametrize(("word", "sent"), [("high", "high"), ("7", 7), ("-7", -7)])
def test_C29_a_priority_is_a_class_or_a_number(run, fake, word, sent):
    fake.routes = {"PATCH /v1/tasks/x": Reply(200, TASK)}
    assert run("train", "priority", "x", "--", word).status == Exit.OK
    assert fake.seen[-1].json == {"priority": sent}


def test_c7_deleting_asks_first(run, fake, monkeypatch):
    fake.routes = {"GET /v1/tasks/x": Reply(200, TASK), "DELETE /v1/tasks/x": Reply(202, {"job_id": "job_1"})}
    monkeypatch.setattr("click.confirm", lambda *_, **__: pytest.fail("a person is asked"))
    assert run("train", "delete", "x", "--yes").out == "sft-7k2m9q is deleted.\n"
    assert run("train", "delete", "x", "--json").json == {"name": "sft-7k2m9q", "deleted": True}
    monkeypatch.undo()


def test_c7_a_file_to_edit_is_written_or_opened_and_created(run, fake, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    spec = task_document()["spec"]
    fake.routes = {"GET /v1/tasks/x": Reply(200, {**TASK, "spec": spec}), "POST /v1/jobs": Reply(201, TASK)}
    assert run("train", "edit", "x", "--output", "new.yaml").status == Exit.OK
    assert run("train", "create", "-f", "new.yaml").status == Exit.OK
    assert fake.seen[-1].json["spec"] == spec
    monkeypatch.setenv("VISUAL", "sed -i s/sft/other/")
    assert run("train", "edit", "x", "--open").status == Exit.OK
    assert fake.seen[-1].json["spec"]["name_prefix"] == "other"
    assert (tmp_path / "sft-7k2m9q.yaml").exists()


def test_C37_metrics_show_the_newest_value_and_the_course_of_each(run, fake):
    def sample(replica, gpu):
        return {
            "at": None,
            "replica": replica,
            "attempt": 1,
            "endpoint": "",
            "values": {"gpu_utilization": gpu, "memory_bytes": gpu << 20},
        }

    page = {"items": [sample(0, 10), sample(1, 50), sample(0, 90)], "next_after": 5.5}
    fake.routes = {
        "GET /v1/tasks/x": Reply(200, DONE),
        "GET /v1/tasks/job_1": Reply(200, DONE),
        "GET /v1/jobs/job_1/resource-metrics": Reply(200, page),
    }
    out = run("train", "metrics", "x", "--watch").out
    assert re.search(r"0\s+gpu_utilization\s+90\s+10\s+90\s+▁█", out)
    assert re.search(r"1\s+gpu_utilization\s+50\s+50\s+50\s+▁", out)
    assert re.search(r"0\s+memory_bytes\s+90.0 MiB\s+10.0 MiB\s+90.0 MiB", out)
    assert run("train", "metrics", "x", "--json").json == page


def test_a_course_is_drawn_between_its_least_and_its_most():
    assert sparkline([0, 1, 2, 3], "abcd") == "abcd"
    assert sparkline([5.0], "abcd") == "a"


@pytest.mark.parametrize(
    ("arguments", "route"),
    [
        (("get", "x"), "GET /v1/tasks/x"),
        (("stop", "x"), "POST /v1/tasks/x/stop"),
        (("why", "x"), "GET /v1/tasks/x/why"),
        (("edit", "x"), "GET /v1/tasks/x"),
        (("events", "x"), "GET /v1/tasks/x/events"),
        (("logs", "x"), "GET /v1/tasks/x/logs"),
        (("dashboard", "x"), "GET /v1/tasks/x/dashboard/"),
    ],
)
def test_C5_what_may_not_be_seen_is_not_found(run, fake, arguments, route):
    fake.routes = {route: refusal(404, "JOB_NOT_FOUND")}
    assert run("train", *arguments).status == Exit.NOT_FOUND


def test_explaining_a_field_needs_no_server(run):
    assert "instance.specs: list" in run("train", "explain", "instance.specs").out
    assert run("train", "explain", "env.name", "--json").json["field"] == "env[].name"
    assert len(run("train", "explain", "--json").json["items"]) > 20
    wrong = run("train", "explain", "instanc.specs")
    assert wrong.status == Exit.USAGE
    assert "instance.specs" in wrong.err


def asked(server, path, *, cookie=None, host=None, method="GET", body=None):
    connection = http.client.HTTPConnection(*server.server_address, timeout=10)
    headers = {"Host": host or server.origin, **({"Cookie": cookie} if cookie else {})}
    connection.request(method, path, body=body, headers=headers)
    answer = connection.getresponse()
    found = answer.status, dict(answer.headers), answer.read()
    connection.close()
    return found


def test_C50_the_dashboard_is_forwarded_with_the_key_to_whoever_has_the_address(fake):
    def page(request):
        assert request.headers["authorization"] == "Bearer key-1"
        assert "cookie" not in request.headers
        return Reply(200, f"{request.method} {request.target}".encode(), {"Content-Type": "text/plain"})

    fake.routes = {
        "GET /v1/tasks/x/dashboard/api/jobs": page,
        "POST /v1/tasks/x/dashboard/api/jobs": page,
    }
    with Client(fake.url, "key-1") as client, DashboardServer(client, "x", 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            assert asked(server, "/api/jobs")[0] == 403
            assert asked(server, "/?token=wrong")[0] == 403
            begin = urlsplit(server.url)
            status, headers, _ = asked(server, f"{begin.path}?{begin.query}")
            assert status == 303
            cookie = headers["Set-Cookie"].partition(";")[0]
            assert asked(server, "/api/jobs", cookie=cookie, host="evil.example")[0] == 403
            status, headers, body = asked(server, "/api/jobs?a=1", cookie=cookie)
            assert (status, body) == (200, b"GET /v1/tasks/x/dashboard/api/jobs?a=1")
            assert headers["content-type"] == "text/plain"
            assert asked(server, "/api/jobs", cookie=cookie, method="POST", body=b"{}")[2].startswith(
                b"POST "
            )
            assert asked(server, "/gone", cookie=cookie)[0] == 404
            assert asked(server, "/..%2F/%2e%2E/jobs", cookie=cookie)[0] == 400
        finally:
            server.shutdown()
            thread.join()
    wait_until(lambda: not thread.is_alive(), what="the end of the forwarder")
