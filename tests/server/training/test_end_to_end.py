"""A task from its submission to its release, through a real server and its controller (contract C55-C59)."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from support.server import ServerProcess
from support.waiting import wait_until

DONE = {"Succeeded", "Failed", "Stopped"}


@pytest.fixture
def heard() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A web hook: its URL, and what was posted to it."""
    found: list[dict[str, Any]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            found.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the base class
            """Say nothing."""

    hook = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=hook.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{hook.server_address[1]}/", found
    hook.shutdown()
    thread.join()
    hook.server_close()


def task_of(server: ServerProcess, name: str) -> dict[str, Any]:
    return dict(server.http().get(f"/v1/tasks/{name}").json)


def events_of(server: ServerProcess, name: str) -> list[str]:
    return [event["code"] for event in server.http().get(f"/v1/tasks/{name}/events").json["items"]]


def submit(server: ServerProcess, **spec: Any) -> str:
    document = {
        "type": "train",
        "spec": {
            "kind": "pytorch",
            "name_prefix": "e2e",
            "image": "host",
            "cmd": 'echo "rank $RANK of $WORLD_SIZE"',
            "resource_type": "ondemand",
            "instance": {"specs": ["h100x1"]},
            **spec,
        },
    }
    answer = server.http().post("/v1/jobs", document)
    assert answer.status == 201, answer.body
    return str(answer.json["name"])


def ended(server: ServerProcess, name: str) -> dict[str, Any]:
    def there() -> dict[str, Any] | None:
        task = task_of(server, name)
        return task if task["state"] in DONE else None

    return wait_until(there, 90, f"{name} to end")


def test_C57_a_task_of_two_replicas_runs_tells_its_life_and_is_announced(
    server: ServerProcess, heard: tuple[str, list[dict[str, Any]]]
):
    url, posts = heard
    document = server.http().get("/v1/catalog").json["document"]
    document["alarm_channels"] = [{"id": "ops", "type": "webhook", "url": url}]
    assert server.http().request("PUT", "/v1/catalog", {"document": document}).status == 200
    alarms = [{"events": ["started", "succeeded"], "channels": ["ops"]}]
    name = submit(server, workers=1, alarms=alarms)
    task = ended(server, name)
    assert task["state"] == "Succeeded", task["failure"]
    (attempt,) = task["attempts"]
    assert [replica["state"] for replica in attempt["replicas"]] == ["Succeeded", "Succeeded"]
    for role, line in (("master", "rank 0 of 2"), ("worker", "rank 1 of 2")):
        page = server.http().get(f"/v1/tasks/{name}/logs?role={role}").json
        assert line in [item["content"] for item in page["items"]]
    codes = events_of(server, name)
    wanted = ["SUBMITTED", "QUEUED", "ADMITTED", "PLACED", "STARTED", "FINISHED"]
    assert [code for code in codes if code in wanted] == wanted
    wait_until(lambda: len(posts) == 2, 30, "both alarms to arrive")
    assert sorted(post["title"] for post in posts) == [f"{name}: started", f"{name}: succeeded"]
    server.wait_for_release(task["job_id"])


def test_C28_C58_a_task_without_room_waits_with_a_reason_and_starts_when_there_is_some(server: ServerProcess):
    first = submit(
        server, instance={"specs": ["h100x8"]}, cmd="read -r line < /dev/zero", name_prefix="first"
    )
    wait_until(lambda: task_of(server, first)["state"] == "Running", 60, "the first task to run")
    second = submit(server, name_prefix="second")

    def waits() -> dict[str, Any] | None:
        why = server.http().get(f"/v1/tasks/{second}/why").json
        return dict(why) if why["code"] in {"WaitingForResources", "WaitingForQuota"} else None

    why = wait_until(waits, 30, "the second task to say why it waits")
    assert (why["position"], bool(why["unblock"])) == (1, True)
    assert "0 are free" in why["message"]
    facts = why["blocked_by"]
    assert (facts["requested"], facts["available"]) == (1, 0)
    assert events_of(server, second) == ["SUBMITTED", "QUEUED"]
    assert server.http().post(f"/v1/tasks/{first}/stop", {}).status == 200
    assert ended(server, first)["state"] == "Stopped"
    assert ended(server, second)["state"] == "Succeeded"
    assert events_of(server, second)[:4] == ["SUBMITTED", "QUEUED", "ADMITTED", "PLACED"]
