"""The door to a dashboard that nobody trusts: where it leads, and what comes back (contract C50)."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect
from websockets.sync.server import Server, ServerConnection, serve

from engines.conformance import LIMITS
from support.site import Site, trials
from support.tasks import place
from trainshed.engines import Launch
from trainshed.engines.fake import FakeEngine, Script
from trainshed.model.access import Permission
from trainshed.model.states import State
from trainshed.server.app import create_app
from trainshed.server.doors import DoorLimits
from trainshed.store import gangs, jobs, moves, tasks
from trainshed.store.moves import Move

Submit = Callable[..., dict[str, Any]]
Answer = tuple[int, dict[str, str], bytes]


@dataclass
class Dashboard:
    """What listens where a head's dashboard should: it answers as it is told and remembers what it heard."""

    port: int = 0
    answer: Answer = (200, {"Content-Type": "text/html"}, b"<h1>page</h1>")
    heard: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)


@pytest.fixture
def dashboard() -> Iterator[Dashboard]:
    found = Dashboard()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            headers = {name.lower(): value for name, value in self.headers.items()}
            found.heard.append((self.command, self.path, headers, body))
            status, answered, content = found.answer
            self.send_response(status)
            for name, value in answered.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = serve  # noqa: N815 - the library's names

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the base class
            """Say nothing."""

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.port = listening.server_address[1]
    thread = threading.Thread(target=listening.serve_forever)
    thread.start()
    yield found
    listening.shutdown()
    thread.join()
    listening.server_close()


@dataclass
class Door:
    """A ray task that runs, with an engine that says so, and a client of the whole application."""

    site: Site
    client: TestClient
    task: dict[str, Any]
    engine: FakeEngine
    units: list[str]

    @property
    def path(self) -> str:
        return f"/v1/tasks/{self.task['name']}/dashboard"

    def get(self, path: str = "/", method: str = "GET", key: str = "", **headers: str) -> Any:
        shown = {"Authorization": f"Bearer {key or self.site.owner_key}", **headers}
        return self.client.request(method, self.path + path, headers=shown, follow_redirects=False)

    def allot(self, port: int, **more: Any) -> None:
        """What the controller stored when the gang met."""
        meeting = {"hosts": [["head", "127.0.0.1", 1]], "port": 1, "dashboard_port": port, **more}

        def change(connection: Any) -> None:
            [held] = jobs.allocations_of(connection, [self.task["trial_id"]])[self.task["trial_id"]]
            gangs.change_allocation(connection, held.id, {"meeting": json.dumps(meeting)})

        self.site.services.database.write(change)


@pytest.fixture
def door(site: Site, submit: Submit, dashboard: Dashboard, tmp_path: Path) -> Iterator[Door]:
    task = submit(kind="ray", workers=1, cmd="python main.py", instance={"specs": ["h100x1"]})
    units = place(site, task)
    engine = FakeEngine(tmp_path / "engine", default=Script(run_seconds=None))
    engine.name = "local"
    for unit in units:
        engine.launch(Launch(unit, ("true",), {}, (), (), LIMITS, 60))
    engine.advance(1)
    services = replace(site.services, engine=engine)
    with TestClient(create_app(services)) as client:
        made = Door(site, client, task, engine, units)
        made.allot(dashboard.port)
        yield made


def test_C50_a_request_goes_to_the_port_that_was_allotted_without_keys_and_cookies(
    door: Door, dashboard: Dashboard
):
    answer = door.client.post(
        f"{door.path}/api/jobs?a=1&b=%2F",
        content=b'{"x": 1}',
        headers={
            "Authorization": f"Bearer {door.site.owner_key}",
            "Cookie": "session=secret",
            "X-Project-Id": "default",
            "X-Forwarded-For": "10.0.0.1",
            "Referer": "http://testserver/v1/jobs",
            "Content-Type": "application/json",
            "Accept": "text/html",
        },
    )
    assert (answer.status_code, answer.content) == (200, b"<h1>page</h1>")
    ((method, path, headers, body),) = dashboard.heard
    assert (method, path, body) == ("POST", "/api/jobs?a=1&b=%2F", b'{"x": 1}')
    assert headers["host"] == f"127.0.0.1:{dashboard.port}"
    assert (headers["content-type"], headers["accept"]) == ("application/json", "text/html")
    assert not {"authorization", "cookie", "x-project-id", "x-forwarded-for", "referer"} & set(headers)
    assert "secret" not in str(headers)
    assert door.site.owner_key not in str(headers)
    events = door.site.get(f"/v1/tasks/{door.task['name']}/events").json()["items"]
    opened = [each for each in events if each["code"] == "DASHBOARD_OPENED"]
    assert [(each["actor"], each["replica"]) for each in opened] == [("human:owner", 0)]
    door.get("/again")
    events = door.site.get(f"/v1/tasks/{door.task['name']}/events").json()["items"]
    assert [each["code"] for each in events].count("DASHBOARD_OPENED") == 1


def test_a_page_cannot_act_as_one_of_ours(door: Door, dashboard: Dashboard):
    hostile = {
        "Content-Type": "text/html",
        "Set-Cookie": "session=stolen; Path=/",
        "Access-Control-Allow-Origin": "*",
        "Access-Control-Allow-Credentials": "true",
        "Content-Security-Policy": "default-src *",
        "Service-Worker-Allowed": "/",
        "Clear-Site-Data": '"*"',
        "WWW-Authenticate": "Basic realm=key",
        "Strict-Transport-Security": "max-age=1",
        "Cache-Control": "public, max-age=31536000",
        "Refresh": "0; url=http://evil.example",
        "X-Request-Id": "forged",
        "ETag": '"1"',
    }
    dashboard.answer = (401, hostile, b"<script>fetch('/v1/jobs')</script>")
    answer = door.get()
    assert answer.status_code == 401
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("sandbox ")
    assert "allow-same-origin" not in policy
    assert "allow-top-navigation" not in policy
    assert (answer.headers["x-content-type-options"], answer.headers["cache-control"]) == (
        "nosniff",
        "no-store",
    )
    assert answer.headers["etag"] == '"1"'
    assert answer.headers["x-request-id"] != "forged"
    gone = {name.lower() for name in hostile} - {
        "content-type", "content-security-policy", "cache-control", "etag", "x-request-id",
    }  # fmt: skip
    assert not gone & set(answer.headers)
    worker = door.get("/sw.js", **{"Service-Worker": "script"})
    assert (worker.status_code, worker.json()["code"]) == (400, "INVALID_REQUEST")


@pytest.mark.parametrize(
    ("path", "location", "found"),
    [
        ("/", "/login", "./login"),
        ("/a/b", "/login?x=1", "../login?x=1"),
        ("/a/b", "c", "../a/c"),
        ("/a", "http://127.0.0.1:{port}/login", "./login"),
    ],
)
def test_a_redirect_of_the_dashboards_stays_inside(
    door: Door, dashboard: Dashboard, path: str, location: str, found: str
):
    dashboard.answer = (302, {"Location": location.format(port=dashboard.port)}, b"")
    answer = door.get(path)
    assert (answer.status_code, answer.headers["location"]) == (302, found)
    assert len(dashboard.heard) == 1  # it is for the client to follow


@pytest.mark.parametrize(
    "location",
    [
        "http://evil.example/",
        "//evil.example/",
        "http://127.0.0.1:1/",
        "https://127.0.0.1/",
        "/../../../v1/jobs",
        "javascript:alert(1)",
        "http://[::1",
        "\\\\evil.example",
    ],
)
def test_a_redirect_to_anywhere_else_is_not_handed_on(door: Door, dashboard: Dashboard, location: str):
    dashboard.answer = (302, {"Location": location}, b"")
    answer = door.get()
    assert (answer.status_code, answer.json()["code"]) == (409, "DASHBOARD_UNAVAILABLE")
    assert "location" not in answer.headers


def test_a_path_leads_out_of_the_dashboard_in_no_spelling(door: Door, dashboard: Dashboard):
    for path in ("/%2e%2e/x", "/a/%2E%2e/%2e/b", "/..%5c..%5cx"):
        answer = door.get(path)
        assert answer.status_code in {200, 400}
        assert all(".." not in heard.split("/") for _, heard, _, _ in dashboard.heard)
    assert door.get("/a%2Fb").status_code == 200
    assert dashboard.heard[-1][1] == "/a%2Fb"


def test_C50_an_address_that_a_program_reports_is_not_followed(door: Door, dashboard: Dashboard):
    """The head's report has a URL; what listens there is not asked, and without a port of ours nobody is."""
    door.allot(0, url=f"http://127.0.0.1:{dashboard.port}")
    answer = door.get()
    assert (answer.status_code, answer.json()["code"]) == (409, "DASHBOARD_UNAVAILABLE")
    door.allot(1)  # nobody listens there
    answer = door.get()
    assert (answer.status_code, answer.json()["code"]) == (409, "DASHBOARD_UNAVAILABLE")
    assert dashboard.heard == []


def test_C50_the_door_is_for_those_who_may_write_and_shut_once_the_head_is_gone(
    door: Door, dashboard: Dashboard, person: Callable[..., str], submit: Submit
):
    door.site.request("PATCH", f"/v1/tasks/{door.task['name']}", {"public": True})
    for key in (person("ann"), person("eve", Permission.TRAINING_READ)):
        assert door.get(key=key).json()["code"] == "PERMISSION_DENIED"
    door.site.request("PATCH", f"/v1/tasks/{door.task['name']}", {"public": False})
    assert door.get(key=person("ann")).json()["code"] == "JOB_NOT_FOUND"
    refused = door.get(Origin="http://evil.example")
    assert (refused.status_code, refused.json()["code"]) == (403, "ORIGIN_DENIED")
    assert door.get(Origin="http://testserver").status_code == 200
    other = submit(name_prefix="torch")
    answer = door.site.get(f"/v1/tasks/{other['name']}/dashboard/")
    assert (answer.status_code, answer.json()["code"]) == (409, "DASHBOARD_UNAVAILABLE")
    heard = len(dashboard.heard)
    door.engine.stop(door.units[0], grace_seconds=0)
    door.engine.advance(1)
    assert door.get().json()["code"] == "DASHBOARD_UNAVAILABLE"
    assert len(dashboard.heard) == heard


def test_C50_a_process_without_an_engine_and_a_shared_cluster_say_so(door: Door):
    answer = door.site.get(f"{door.path}/")
    assert (answer.status_code, answer.json()["code"]) == (409, "DASHBOARD_UNAVAILABLE")
    assert "controller" in answer.json()["message"]
    door.engine.name = "another"
    answer = door.get()
    assert [fault["code"] for fault in answer.json()["errors"]] == [
        "DASHBOARD_UNAVAILABLE",
        "NOT_SUPPORTED_BY_ENGINE",
    ]
    shell = door.client.get(
        f"/v1/tasks/{door.task['name']}/shell", headers={"Authorization": f"Bearer {door.site.owner_key}"}
    )
    assert [fault["code"] for fault in shell.json()["errors"]] == [
        "SHELL_UNAVAILABLE",
        "NOT_SUPPORTED_BY_ENGINE",
    ]


def test_C50_both_doors_are_open_while_a_cluster_is_retained_and_shut_after_it(
    door: Door, dashboard: Dashboard
):
    (trial,) = trials(door.site, door.task["job_id"])
    at = door.site.clock()

    def end(connection: Any) -> None:
        ended = Move(trial, State.RUNNING, State.COLLECTING, "ENDED", "The driver ended.")
        moves.apply(connection, [ended], at=at, actor="controller")

    door.site.services.database.write(end)
    assert door.get().json()["code"] == "DASHBOARD_UNAVAILABLE"
    assert "Finishing" in door.get().json()["message"]
    kept = {"retained_until": at + 600}
    door.site.services.database.write(lambda c: tasks.change(c, door.task["trial_id"], kept))
    assert door.get().status_code == 200
    headers = {"Authorization": f"Bearer {door.site.owner_key}"}
    with door.client.websocket_connect(f"/v1/tasks/{door.task['name']}/shell", headers=headers) as shell:
        shell.send_bytes(b"exit 2\n")
        while "text" not in (message := shell.receive()):
            assert message["type"] == "websocket.send"
        assert json.loads(message["text"]) == {"exit_code": 2}


def test_C50_a_shell_that_nobody_uses_is_closed(door: Door):
    limits = DoorLimits(idle_seconds=0.5)
    services = replace(door.site.services, engine=door.engine, door_limits=limits)
    headers = {"Authorization": f"Bearer {door.site.owner_key}"}
    path = f"/v1/tasks/{door.task['name']}/shell"
    with (
        TestClient(create_app(services)) as client,
        client.websocket_connect(path, headers=headers) as shell,
    ):
        while (message := shell.receive())["type"] == "websocket.send":
            pass
        assert (message["code"], message["reason"]) == (1001, "idle for 0.5 s")
    events = door.site.get(f"/v1/tasks/{door.task['name']}/events").json()["items"]
    assert events[-1]["code"] == "SHELL_CLOSED"
    assert "idle" in events[-1]["message"]


@pytest.fixture
def echo() -> Iterator[Server]:
    """A WebSocket server that sends back what it gets, and first the headers that it got."""

    def talk(connection: ServerConnection) -> None:
        assert connection.request is not None
        connection.send(
            json.dumps({name.lower(): value for name, value in connection.request.headers.items()})
        )
        for message in connection:
            connection.send(message)

    with serve(talk, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_C50_a_websocket_of_the_dashboards_is_handed_on_both_ways(door: Door, echo: Server):
    door.allot(echo.socket.getsockname()[1])
    headers = {"Authorization": f"Bearer {door.site.owner_key}", "Cookie": "a=secret"}
    with door.client.websocket_connect(f"{door.path}/api/tail?x=1", headers=headers) as socket:
        seen = json.loads(socket.receive_text())
        assert not {"authorization", "cookie", "origin"} & set(seen)
        socket.send_text("one")
        assert socket.receive_text() == "one"
        socket.send_bytes(b"\0two")
        assert socket.receive_bytes() == b"\0two"


def test_C50_a_websocket_is_refused_as_a_request_is(door: Door, dashboard: Dashboard):
    dashboard.answer = (302, {"Location": "ws://127.0.0.1:1/"}, b"")
    for key, status in (("tsk_none", 401), (door.site.owner_key, 409)):
        with (
            pytest.raises(WebSocketDisconnect) as caught,
            door.client.websocket_connect(f"{door.path}/x", headers={"Authorization": f"Bearer {key}"}),
        ):
            pass
        assert getattr(caught.value, "status_code", None) == status
