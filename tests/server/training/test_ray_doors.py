"""Doors into a real Ray cluster that is kept for a look, through the real client (contract C50)."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Callable
from http.cookiejar import CookieJar

import pytest

from server.training.test_end_to_end import DONE, ended, submit, task_of
from support.ray_cluster import need_ray
from support.server import ServerProcess
from support.terminals import Screen
from support.waiting import wait_until
from trainshed.cli.train_proxy import DashboardServer
from trainshed.sdk import Client
from trainshed.sdk.errors import ApiError
from trainshed.sdk.websocket import open_websocket

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.timeout(700)]


def test_C50_a_cluster_that_is_kept_is_entered_by_shell_and_dashboard_until_it_is_stopped(
    new_server: Callable[..., ServerProcess],
):
    path = f"{need_ray().parent}:/usr/local/bin:/usr/bin:/bin"
    server = new_server(environment={"PATH": path}).start()
    name = submit(
        server,
        kind="ray",
        name_prefix="doors",
        workers=1,
        instance={"specs": ["c2m4"]},
        cmd="echo from-the-driver",
        # Beside other tests a machine may take minutes to start a node.
        env=[{"name": "RAY_raylet_start_wait_time_s", "value": "300"}],
        debug={"enabled": True, "retention_seconds": 3000},
    )
    state = wait_until(lambda: _kept_or_ended(server, name), 500, f"{name} to be kept")
    log = server.http().get(f"/v1/tasks/{name}/logs?role=head").json["items"]
    assert state == "Retaining", "\n".join(each["content"] for each in log[:60])
    with Client(server.url, server.key) as client:
        _dashboard(server, client, name)
        with client.tasks.shell(name) as connection:
            screen = Screen(connection)
            screen.type("echo role=$TRAINSHED_ATTEMPT_ID; ray list nodes >/dev/null; exit 4\n")
            screen.until(b".0\r\n")
            screen.rest()
            assert screen.said == [{"exit_code": 4}]
        server.http().post(f"/v1/tasks/{name}/stop")
        assert ended(server, name)["state"] == "Succeeded"
        with pytest.raises(ApiError, match="DASHBOARD_UNAVAILABLE"):
            client.tasks.dashboard(name, "GET", "")
    codes = [each["code"] for each in server.http().get(f"/v1/tasks/{name}/events").json["items"]]
    assert [code for code in codes if code in {"SHELL_OPENED", "SHELL_CLOSED", "DASHBOARD_OPENED"}] == [
        "DASHBOARD_OPENED",
        "SHELL_OPENED",
        "SHELL_CLOSED",
    ]


def _kept_or_ended(server: ServerProcess, name: str) -> str:
    state = str(task_of(server, name)["state"])
    return state if state in {"Retaining", *DONE} else ""


def _dashboard(server: ServerProcess, client: Client, name: str) -> None:
    status, headers, body = client.tasks.dashboard(name, "GET", "api/version")
    assert (status, "ray_version" in json.loads(body)) == (200, True)
    assert headers["content-security-policy"].startswith("sandbox ")
    _, _, body = client.tasks.dashboard(name, "GET", "api/jobs/")
    (job,) = json.loads(body)
    log = open_websocket(
        server.url,
        f"/v1/tasks/{name}/dashboard/api/jobs/{job['submission_id']}/logs/tail",
        query={},
        headers={"Authorization": f"Bearer {server.key}"},
        timeout=60,
    )
    with log:
        assert "from-the-driver" in str(log.receive())
    with DashboardServer(client, name, 0) as local:
        thread = threading.Thread(target=local.serve_forever)
        thread.start()
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        with opener.open(local.url, timeout=60) as page:
            assert b"<html" in page.read().lower()
            assert page.headers["Content-Security-Policy"] is None
        local.shutdown()
        thread.join()
