"""`gpu approve` and `gpu deny`: only a person at a terminal lets a Job run (contract G, c.7; P13)."""

from __future__ import annotations

import json
import re

import pytest

from support.gpu_line import Seat
from support.waiting import wait_until
from trainshed.sdk.source import MARKERS

CODE = re.compile(r"type this code: ([0-9A-Z]{4}-[0-9A-Z]{4})")


@pytest.fixture
def asking(gpu, new_project):
    """A Job of an agent that asks, and its folder."""
    folder = new_project()
    answer = gpu.json("run", "--as-agent", "train.py", folder=folder)
    short = answer["job"]["short_id"]
    # It may have been waiting for room when the command returned.
    wait_until(lambda: gpu.json("status", short)["job"]["state"] == "awaiting_approval", 120, "the question")
    yield short
    gpu("cancel", short)


def ended(gpu, short):
    def look():
        job = gpu.json("status", short)["job"]
        return job if job["finished_at"] else None

    return wait_until(look, 120, f"the end of {short}")


def test_G30_a_person_approves_by_the_code_that_the_terminal_shows(gpu, asking, tmp_path):
    with Seat(tmp_path / "seat", ["approve", asking, "--reason", "fine"], gpu.environment) as seat:
        seat.until("Code:")
        shown = seat.until("type this code: ")
        assert f"Trainshed asks about Job {asking}: no hours given" in shown
        code = wait_until(lambda: CODE.search(seat.shown()), 60, "the code")[1]
        seat.type(f"{code.lower()}\n")
        assert seat.status() == 0, seat.shown()
        assert f"{asking} is approved" in seat.shown()
        assert f"{asking} is approved: awaiting_approval" not in seat.shown(), "it moved on"
    job = ended(gpu, asking)
    assert (job["state"], bool(job["approved_by"])) == ("done", True)


def test_G30_a_wrong_code_is_refused_and_the_job_still_asks(gpu, asking, tmp_path):
    with Seat(tmp_path / "seat", ["approve", asking], gpu.environment) as seat:
        seat.until("Code:")
        seat.type("AAAA-AAAA\n")
        assert seat.status() == 1
        assert "the code is wrong, used or too old" in seat.shown()
    assert gpu.json("status", asking)["job"]["state"] == "awaiting_approval"


def test_ctrl_c_answers_nothing(gpu, asking, tmp_path):
    with Seat(tmp_path / "seat", ["approve", asking], gpu.environment) as seat:
        seat.until("Code:")
        seat.type("\x03")
        assert seat.status() == 130
    assert gpu.json("status", asking)["job"]["state"] == "awaiting_approval"


@pytest.mark.parametrize("command", ["approve", "deny"])
def test_G30_no_answer_where_an_agent_runs_it(gpu, asking, command):
    for name in MARKERS:
        ran = gpu(command, asking, "--json", env={name: "1"})
        assert (ran.status, ran.out, ran.error["code"]) == (1, "", "forbidden")
        assert name in ran.error["message"]
    assert gpu.json("status", asking)["job"]["state"] == "awaiting_approval"


def test_G30_no_approval_without_a_terminal(gpu, asking):
    ran = gpu("approve", asking, stdin="AAAA-AAAA\n")
    assert ran.status == 1
    assert "there is none here" in ran.err


def test_G40_a_person_denies_and_it_stays_so(gpu, asking):
    ran = gpu("deny", asking, "--reason", "too long")
    assert (ran.status, ran.out) == (0, f"{asking} is denied: denied now\n")
    document = gpu.json("status", asking)
    assert document["job"]["state"] == "denied"
    assert "denied" in [event["to"] for event in document["events"]]
    ran = gpu("deny", asking, "--json")
    assert (ran.status, ran.error["code"]) == (5, "invalid_transition")
    ran = gpu("deny", "0123456789ab", "--json")
    assert (ran.status, ran.error["code"]) == (4, "job_not_found")


def test_what_asks_comes_first_everywhere(gpu, asking):
    overview = gpu("status")
    assert overview.out.startswith(f"GPU job {asking} needs your approval: ")
    assert gpu.json("status")["active"][0]["short_id"] == asking
    assert gpu.json("jobs")["items"][0]["short_id"] == asking
    assert "asks: no hours given" in gpu("jobs").out
    assert gpu("statusline").out.startswith(f"gpu: {asking} asks")
    told = gpu.json("notify", asking)
    assert told["told"] == told["guidance"]["tell_user"]
    ran = gpu("logs", asking, "--json")
    assert json.loads(ran.out) == {"eof": False, "state": "awaiting_approval"}


def at_terminal(gpu, folder, *words):
    with Seat(folder, list(words), gpu.environment) as seat:
        assert seat.status() == 0, seat.shown()
        return seat.shown()


def test_P13_a_job_of_another_kind_is_answered_by_the_same_commands(gpu, gpu_server, tmp_path):
    at_terminal(gpu, tmp_path / "set", "policy", "set", "max_gpu_hours=0.5")
    try:
        resources = {"gpu_type": "H100", "gpus": 1}
        spec = {"runner": "envloop/bash@main", "command": "true", "resources": resources}
        first, second = (gpu_server.submit({"request_id": f"costly-{n}", "spec": spec}) for n in range(2))
        with Seat(tmp_path / "yes", ["approve", first, "--reason", "fine"], gpu.environment) as seat:
            seat.until("Code:")
            assert "up to 1 GPU-hours" in seat.until("type this code: ")
            seat.type(wait_until(lambda: CODE.search(seat.shown()), 60, "the code")[1] + "\n")
            assert seat.status() == 0, seat.shown()
            assert "is approved" in seat.shown()
        answered = gpu.json("deny", second, "--reason", "too much")
        assert (answered["answer"], answered["job_id"], answered["note"]) == ("denied", second, "too much")
        assert gpu_server.wait_for_job(first)["status"] == "completed"
        assert gpu("deny", second, "--json").error["code"] == "invalid_transition"
    finally:
        at_terminal(gpu, tmp_path / "reset", "policy", "reset")
