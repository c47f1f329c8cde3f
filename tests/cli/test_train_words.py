"""What ``trainshed train`` and its neighbours say to a person, against a scripted server."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from support.fake_server import Reply
from support.tasks import task_document
from trainshed.cli.exits import Exit
from trainshed.cli.session import Session

NAME = "sft-7k2m9q"
TASK = {
    "job_id": "job_1",
    "task_uuid": "11111111-2222-3333-4444-555555555555",
    "name": NAME,
    "kind": "pytorch",
    "task_type": "PyTorchJob",
    "state": "Queuing",
    "position": 1,
    "shares": ["bob"],
    "public": True,
    "spec": {"cmd": "python train.py\nprintf done\n"},
    "attempts": [
        {
            "number": 1,
            "state": "Preempted",
            "ended_at": "2026-01-02T03:04:05+00:00",
            "replicas": [{"rank": 0, "role": "master", "state": "Terminating", "node": "n-gone"}],
        }
    ],
}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "task.yaml"
    path.write_text(json.dumps(task_document()))
    return str(path)


def refused(*faults: tuple[str, str, str]) -> Reply:
    listed = [dict(zip(("path", "code", "message"), fault, strict=True)) for fault in faults]
    return Reply(422, {"code": "INVALID_SPEC", "message": faults[0][2], "hint": "", "errors": listed})


def test_the_code_of_a_single_fault_is_told_where_the_refusals_own_says_less(run, fake, file):
    fake.routes = {"POST /v1/jobs": refused(("spec.workers", "QUOTA_EXCEEDED", "5 units are too many"))}
    assert "5 units are too many [QUOTA_EXCEEDED]" in run("train", "create", "-f", file).err
    fake.routes = {"POST /v1/jobs": refused(("spec", "INVALID_SPEC", "it is no map"))}
    assert "[INVALID_SPEC]" not in run("train", "create", "-f", file).err


def test_c1_a_task_that_waits_again_shows_no_replicas_of_an_attempt_that_is_over(run, fake):
    fake.routes = {"GET /v1/tasks/x": Reply(200, TASK)}
    out = run("train", "get", "x").out
    assert "No replicas now." in out
    assert "n-gone" not in out
    fake.routes = {"GET /v1/tasks/x": Reply(200, {**TASK, "state": "Failed"})}
    assert "n-gone" in run("train", "get", "x").out


def test_a_task_is_shown_with_the_kind_of_its_file_and_the_first_line_of_its_command(run, fake):
    fake.routes = {"GET /v1/tasks/x": Reply(200, TASK)}
    out = run("train", "get", "x").out
    assert "PyTorchJob" not in out
    assert "python train.py \u2026 (1 more line)" in out
    assert "printf" not in out


def test_the_age_of_a_task_goes_on_after_its_end(run, fake):
    then = datetime.now(UTC) - timedelta(hours=5)
    ended = {
        "submitted_at": then.isoformat(),
        "started_at": (then + timedelta(seconds=60)).isoformat(),
        "finished_at": (then + timedelta(seconds=70)).isoformat(),
    }
    fake.routes = {"GET /v1/tasks": Reply(200, {"items": [{**TASK, **ended, "state": "Succeeded"}]})}
    out = run("train", "list").out
    assert "5 h 0 min" in out
    assert "10.0 s" in out


def test_a_new_task_is_told_no_place_which_it_may_have_left_already(run, fake, file):
    fake.routes = {"POST /v1/jobs": Reply(201, {**TASK, "warnings": []})}
    assert "in its queue" not in run("train", "create", "-f", file).out


def test_C5_a_public_task_says_with_whom_it_is_shared_besides(run, fake):
    fake.routes = {"GET /v1/tasks/x": Reply(200, TASK)}
    assert "visible to its project; without that, to bob" in run("train", "share", "x").out


def test_delete_without_a_terminal_asks_for_yes(run, fake):
    fake.routes = {"GET /v1/tasks/x": Reply(200, TASK), "DELETE /v1/tasks/x": Reply(202, {})}
    ran = run("train", "delete", "x")
    assert (ran.status, "--yes" in ran.err) == (Exit.USAGE, True)
    assert {request.method for request in fake.seen} == {"GET"}
    assert run("train", "delete", "x", "--yes").status == Exit.OK


def test_a_tab_in_a_file_is_called_a_tab(run, fake, tmp_path):
    path = tmp_path / "task.yaml"
    path.write_text("spec:\n\tkind: pytorch\n")
    ran = run("train", "create", "-f", str(path))
    assert ran.status == Exit.USAGE
    assert f"{path}:2:1: a tab stands where YAML allows spaces only" in ran.err


def test_C40_alarms_are_listed_with_what_went_wrong(run, fake):
    alarm = {"subject": "failed", "channel": "ops", "tries": 2, "created_at": "2026-01-02T03:04:05+00:00"}
    gone = {**alarm, "delivered_at": None, "next_at": None, "last_error": "it answered 404"}
    fake.routes = {"GET /v1/alarms": Reply(200, {"items": [gone], "next_cursor": None})}
    ran = run("train", "alarms", "x")
    assert fake.seen[0].query == {"task": "x"}
    assert "it answered 404" in ran.out
    assert run("train", "alarms", "x", "--json").json["items"] == [gone]


def test_C23_quotas_are_narrowed_by_pool_type_spec_and_use(run, fake):
    def row(pool, kind, spec, used):
        return {"pool": pool, "resource_type": kind, "spec": spec, "used": used, "limit": 9}

    rows = [row("a", "spot", "s1", 0), row("a", "idle", "s1", 1), row("b", "spot", "s2", 2)]
    fake.routes = {"GET /v1/quotas": Reply(200, {"items": rows, "next_cursor": None})}

    def found(*options):
        return run("quota", "list", "--json", *options).json["items"]

    assert found() == rows
    assert found("--pool", "a", "--used") == [rows[1]]
    assert found("--type", "spot", "--spec", "s2") == [rows[2]]
    assert run("quota", "list", "--pool", "c").out == "No such quota.\n"


def test_C25_idle_figures_say_for_what_replicas_they_are(run, fake):
    fake.routes = {"GET /v1/pools/a/idle": Reply(200, {"pool": "a", "specs": []})}
    assert "for replicas of 1 unit of each spec" in run("pool", "idle", "a").out
    assert "for replicas of 2 units of each spec" in run("pool", "idle", "a", "--units", "2").out


def test_the_start_of_a_server_is_announced_on_stderr_and_not_to_programs(monkeypatch, capsys):
    class Started:
        """Takes what the command gives, and starts."""

        connection = type("Found", (), {"source": "login"})

        def __init__(self, *_args, on_start, **_more):
            on_start()

        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

    monkeypatch.setattr("trainshed.sdk.client.Client", Started)
    with Session().client():
        pass
    assert capsys.readouterr().err.startswith("starting a server of your own")
    with Session(json=True).client():
        pass
    assert capsys.readouterr().err == ""


def test_doctor_gives_no_advice_that_was_taken_already(run, monkeypatch):
    monkeypatch.setattr("trainshed.engines.local.inventory", tuple)
    monkeypatch.setenv("TRAINSHED_SIMULATE_GPUS", "H100:8")
    gpus = next(check for check in run("doctor", "--json").json["checks"] if check["name"] == "gpus")
    assert "a server of your own will simulate H100:8" in gpus["found"]
    assert "export" not in gpus["remedy"]
