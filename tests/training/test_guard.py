"""What must not leak, be lost, be doubled or be left: P6, P9, P14, C5, C9, C40, C56, through the door."""

from __future__ import annotations

import http.server
import json
import secrets
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from support.http import Http
from support.processes import all_pids, command_of, environment_of, strangers_of
from support.waiting import wait_until
from training.live import MOUNT, Live, causes, document, in_order

GO = f"while [ ! -e {MOUNT}/$CASE-go ]; do sleep 0.05; done"


def case(name: str) -> list[dict[str, Any]]:
    return [{"name": "CASE", "value": name}]


def holding(folder: Path, secret: bytes) -> list[str]:
    """Files below a folder that hold a secret, by their bytes: the database with its journal too."""
    found = []
    for path in sorted(folder.rglob("*")):
        try:
            if path.is_file() and secret in path.read_bytes():
                found.append(str(path.relative_to(folder)))
        except FileNotFoundError:
            continue
    return found


def test_P9_C9_a_hidden_value_reaches_the_programs_and_nothing_else(live: Live) -> None:
    canary = f"canary{secrets.token_hex(12)}"
    job = live.create(
        f'printf %s "$TOKEN" | sha256sum > {MOUNT}/token-$RANK; echo "it is $TOKEN"; echo "$TOKEN" >&2; '
        f'{GO}; echo "again $TOKEN"; exit 3',
        workers=1,
        env=[*case("hidden"), {"name": "TOKEN", "value": canary, "hidden": True}],
        exit_notice={"enabled": True, "timeout_seconds": 30},
    )
    for rank in (0, 1):
        live.file(f"token-{rank}")
    live.until(job, "Running")
    secret = canary.encode()
    assert not [command for command in map(command_of, all_pids()) if canary in command], "no argument"
    who = {command_of(pid) for pid in all_pids() if any(secret in entry for entry in environment_of(pid))}
    assert {command.split(" ")[0] for command in who} <= {"bash", "sleep"}, "the programs alone have it"
    kept = [place for place in holding(live.server.data, secret) if "sqlite" in place or "logs" in place]
    assert kept == []
    (live.volume / "hidden-go").touch()
    task = live.ended(job)
    assert task["state"] == "Failed"
    assert task["failure"]["last_lines"][-1] == "again ***"
    assert holding(live.server.data, secret) == []
    assert canary not in live.server.tail(1 << 22)
    name, trial = task["name"], task["trial_id"]
    paths = [
        *(f"/v1/tasks/{name}{part}" for part in ("", "/why", "/events", "/logs")),
        *(f"/v1/jobs/{job}{part}" for part in ("", "/result", "/events", "/manifest", "/resource-metrics")),
        *(f"/v1/trials/{trial}{part}" for part in ("", "/snapshot", "/logs/raw")),
        *("/v1/tasks", "/v1/jobs", "/v1/trials", "/metrics", "/v1/catalog"),
    ]
    for path in paths:
        assert canary not in live.http.get(path).body.decode(), path
    said = live.http.get(f"/v1/tasks/{name}/logs").json["items"]
    # Bash tells of its `sleep` where the other one's end ended it.
    heard = {line["content"].strip() for line in said} - {"Terminated"}
    assert heard == {"it is ***", "***", "again ***"}
    assert {line["replica"] for line in said} == {0, 1}
    env = {row["name"]: row for row in live.task(job)["spec"]["env"]}
    assert env["TOKEN"]["value"] is None
    again = live.http.post(f"/v1/tasks/{job}/resubmit")
    assert again.status == 200
    live.ended(job)
    first, second = (live.volume / f"token-{rank}" for rank in (0, 1))
    assert first.read_text() == second.read_text(), "the next Attempt has it still"
    assert holding(live.server.data, secret) == []


def test_P14_P6_a_gang_goes_on_without_the_server_and_leaves_nothing(own: Live) -> None:
    job = own.create(
        f'echo "began" > {MOUNT}/began-$RANK; {GO}; echo "rank $RANK" >> {MOUNT}/began-$RANK',
        workers=1,
        env=case("kill"),
        exit_notice={"enabled": True, "timeout_seconds": 30},
    )
    ends_alone = own.create(f"{GO}; exit 4", env=case("kill"))
    for rank in (0, 1):
        own.file(f"began-{rank}")
    own.until(ends_alone, "Running")
    data = own.server.data
    own.server.kill()
    (own.volume / "kill-go").touch()
    wait_until(lambda: "rank" in (own.volume / "began-1").read_text(), what="the program's end")
    own.server.start()
    task = own.succeeded(job)
    assert causes(task) == ["initial"], "the same Attempt, found again"
    for rank in (0, 1):
        assert (own.volume / f"began-{rank}").read_text() == f"began\nrank {rank}\n", "once"
    failed = own.ended(ends_alone)
    assert (failed["state"], failed["failure"]["exit_code"]) == ("Failed", 4)
    wait_until(lambda: not _of_attempts(data), what=f"the end of {_of_attempts(data)}")
    assert str(data) not in Path("/proc/self/mountinfo").read_text()
    assert not [pid for pid in all_pids() if "sshd" in command_of(pid) and str(data) in command_of(pid)]
    assert list((data / "gangs").glob("*")) == [], "keys and files of Attempts"
    free = own.http.get("/v1/pools").json
    assert json.dumps(free).count('"in_use": 0') == json.dumps(free).count('"in_use"') > 0


SAVING = f"""
import os, signal, sys, time
def save(*_):
    open("{MOUNT}/saving-told", "w").write("x")
    while not os.path.exists("{MOUNT}/saving-go"): time.sleep(0.05)
    open("{MOUNT}/saving-saved", "a").write("saved\\n"); sys.exit(0)
signal.signal(signal.SIGUSR1, save)
if os.path.exists("{MOUNT}/saving-saved"): sys.exit(0)
open("{MOUNT}/saving-up", "w").write("x")
while True: time.sleep(0.1)
"""


def test_P14_C36_a_server_killed_while_a_preempted_program_saves_loses_nothing(live: Live) -> None:
    (live.volume / "saving.py").write_text(SAVING)
    whole = {"specs": ["h100x8"]}
    low = live.create(
        f"exec python3 {MOUNT}/saving.py",
        instance=whole,
        priority="low",
        exit_notice={"enabled": True, "timeout_seconds": 60},
        fault_tolerance={"enabled": True, "max_resubmissions": 1},
    )
    live.file("saving-up")
    place = live.task(low)["queued_at"]
    high = live.create("true", instance=whole, priority="high")
    live.file("saving-told")
    wait_until(lambda: reason(live, high) == "WaitingForPreempted", 60, "the reason it waits for")
    live.server.kill()
    (live.volume / "saving-go").touch()
    live.server.start()
    live.succeeded(high)
    task = live.succeeded(low)
    assert (live.volume / "saving-saved").read_text() == "saved\n", "once"
    assert causes(task) == ["initial", "preempted"]
    assert (task["resubmissions"], task["queued_at"]) == (0, place)
    order = ["PREEMPTED", "EXIT_NOTICE_SENT", "EXIT_NOTICE_HEARD", "PREEMPTED_QUEUED", "STARTED", "FINISHED"]
    assert in_order(live.codes(low), order)


def reason(live: Live, ref: str) -> str:
    """The code of what a task waits for; none while nobody has looked at it."""
    said = live.task(ref)["reason"]
    return str(said["code"]) if said else ""


def test_what_a_test_that_failed_left_is_ended_at_once(own: Live) -> None:
    """The cleaning after each module: a program that saves for ten minutes does not hold it up."""
    notice = {"enabled": True, "timeout_seconds": 600}
    job = own.create(f"trap : USR1; touch {MOUNT}/left; while :; do sleep 0.1; done", exit_notice=notice)
    wait_until((own.volume / "left").exists, 60, "its program")
    own.end_everything()
    assert own.task(job)["state"] == "Stopped"
    assert not _of_attempts(own.server.data)


def _of_attempts(data: Path) -> list[str]:
    """Processes in the folder of an Attempt, or with its mark."""
    return [
        each.command for each in strangers_of(data) if "/attempts/" in each.mark or "bash" in each.command
    ]


def person(live: Live, user: str) -> str:
    """A key of a member of the project."""
    put = live.http.request("PUT", f"/v1/admin/projects/default/members/{user}", {"role": "developer"})
    assert put.status in {200, 201}, put.body
    body = {"label": user, "kind": "human", "user": user, "role": "developer"}
    made = live.http.post("/v1/admin/projects/default/keys", body)
    assert made.status == 201, made.body
    return str(made.json["key"])


def test_C5_what_is_not_public_is_its_owners_alone(live: Live) -> None:
    ann, bob = person(live, "ann"), person(live, "bob")
    job = live.create(f"echo private; {GO}", key=ann, env=case("private"))
    hers, his = live.server.http(ann), live.server.http(bob)
    paths = [f"/v1/tasks/{job}", f"/v1/tasks/{job}/logs", f"/v1/tasks/{job}/events", f"/v1/jobs/{job}/logs"]
    assert [hers.get(path).status for path in paths] == [200] * len(paths)
    assert [his.get(path).status for path in paths] == [404] * len(paths)
    assert his.post(f"/v1/tasks/{job}/stop").status == 404
    assert hers.request("PATCH", f"/v1/tasks/{job}", {"shares": ["bob"]}).status == 200
    assert [his.get(path).status for path in paths] == [200] * len(paths), "shared"
    assert hers.request("PATCH", f"/v1/tasks/{job}", {"shares": []}).status == 200
    assert his.get(paths[0]).status == 404
    assert hers.request("PATCH", f"/v1/tasks/{job}", {"public": True}).status == 200
    assert job in {item["job_id"] for item in his.get("/v1/tasks").json["items"]}
    assert his.request("PATCH", f"/v1/tasks/{job}", {"public": False}).status in {403, 404}
    (live.volume / "private-go").touch()
    assert "ann" in live.succeeded(job)["owner"]


def test_T12_C56_twenty_equal_submits_at_once_are_one_task(live: Live) -> None:
    same = document(f"echo x >> {MOUNT}/once", name_prefix="once")
    with ThreadPoolExecutor(20) as many:
        answers = list(many.map(lambda _: live.http.post("/v1/jobs", same), range(20)))
    assert {answer.status for answer in answers} == {200, 201}
    assert [answer.status for answer in answers].count(201) == 1
    [job] = {answer.json["job_id"] for answer in answers}
    live.succeeded(job)
    assert (live.volume / "once").read_text() == "x\n"
    other = {**same, "spec": {**same["spec"], "cmd": "false"}}
    refused = live.http.post("/v1/jobs", other)
    assert (refused.status, refused.code) == (409, "JOB_REQUEST_CONFLICT")
    nameless = {key: value for key, value in same.items() if key != "request_id"}
    twin = live.http.post("/v1/jobs", nameless)
    assert (twin.status, twin.code) == (409, "DUPLICATE_SUSPECTED")
    assert job in twin.body.decode() or live.task(job)["name"] in twin.body.decode()
    meant = live.http.post("/v1/jobs", {**nameless, "allow_duplicate": True})
    assert meant.status == 201
    live.succeeded(meant.json["job_id"])


@pytest.fixture
def hook() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A web server that keeps what it is told; its URL holds a secret."""
    heard: list[dict[str, Any]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            heard.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the base class
            """Say nothing."""

    served = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=served.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{served.server_address[1]}/T0K3N-of-the-hook", heard
    served.shutdown()
    thread.join()
    served.server_close()


def test_C40_an_alarm_reaches_its_channel(own: Live, hook: tuple[str, list[dict[str, Any]]]) -> None:
    url, heard = hook
    with_channel(own.http, url)
    job = own.create("exit 3", alarms=[{"events": ["started", "failed"], "channels": ["ops"]}])
    quiet = own.create("true", alarms=[{"events": ["failed"], "channels": ["ops"]}])
    name = own.ended(job)["name"]
    own.succeeded(quiet)
    wait_until(lambda: len(heard) >= 2, 60, "both alarms")
    said = json.dumps(heard)
    assert name in said
    assert own.task(quiet)["name"] not in said
    told = own.http.get(f"/v1/alarms?task={job}").json["items"]
    wait_until(
        lambda: all(each["delivered_at"] for each in own.http.get(f"/v1/alarms?task={job}").json["items"])
    )
    assert len(told) == len(heard) == 2
    assert holding(own.server.data, b"T0K3N-of-the-hook") == []
    unknown = own.ask("true", alarms=[{"events": ["failed"], "channels": ["nobody"]}])
    assert [error["code"] for error in unknown.json["errors"]] == ["ALARM_CHANNEL_UNKNOWN"]


def with_channel(owner: Http, url: str) -> None:
    """Apply the machine's own catalogue with a channel for alarms."""
    there = owner.get("/v1/catalog").json["document"]
    channels = [{"id": "ops", "type": "webhook", "url": url}]
    applied = owner.request("PUT", "/v1/catalog", {"document": {**there, "alarm_channels": channels}})
    assert applied.status == 200, applied.body
