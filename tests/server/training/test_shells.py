"""Shells beside the programs of a training task, through the real client (contract C50)."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import socket
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from server.training.test_end_to_end import ended, submit, task_of
from support.server import ServerProcess
from support.terminals import Screen
from support.waiting import wait_until
from trainshed.jobkit import folder, procs
from trainshed.sdk import Client
from trainshed.sdk.errors import ApiError, RateLimited
from trainshed.sdk.websocket import WebSocket, open_websocket

SECRET = "s3cret-of-the-program"
READY = "echo ready; exec sleep 1000"

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def client(module_server: ServerProcess) -> Iterator[Client]:
    with Client(module_server.url, module_server.key) as opened:
        yield opened


@pytest.fixture(scope="module")
def running(module_server: ServerProcess) -> Iterator[str]:
    """A task of two replicas that run until the end of the module."""
    name = start(
        module_server, workers=1, env=[{"name": "SECRET", "value": SECRET, "hidden": True}], public=True
    )
    yield name
    stop(module_server, name)


def start(server: ServerProcess, **spec: Any) -> str:
    name = submit(server, **{"cmd": READY, "name_prefix": "shell", **spec})
    wait_until(lambda: len(lines(server, name)) == spec.get("workers", 0) + 1, 120, f"{name} to run")
    # What a program says can be read a moment before it is seen that it runs.
    wait_until(lambda: task_of(server, name)["state"] == "Running", 30, f"{name} to be seen running")
    return name


def lines(server: ServerProcess, name: str) -> list[str]:
    return [each["content"] for each in server.http().get(f"/v1/tasks/{name}/logs").json["items"]]


def stop(server: ServerProcess, name: str) -> None:
    server.http().post(f"/v1/tasks/{name}/stop")
    ended(server, name)


@contextlib.contextmanager
def shell(client: Client, name: str, **options: Any) -> Iterator[Screen]:
    with client.tasks.shell(name, **options) as connection:
        yield Screen(connection)


def events(server: ServerProcess, name: str, code: str) -> list[dict[str, Any]]:
    found = server.http().get(f"/v1/tasks/{name}/events").json["items"]
    return [each for each in found if each["code"] == code]


def refused(call: Callable[[], WebSocket]) -> tuple[int, str]:
    with pytest.raises(ApiError) as caught:
        call()
    return caught.value.status, caught.value.code


def key_of(server: ServerProcess, user: str, *permissions: str) -> dict[str, Any]:
    place = "/v1/admin/projects/default"
    server.http().request("PUT", f"{place}/members/{user}", {"role": "developer"})
    body = {"kind": "human", "user": user, "label": user, "permissions": list(permissions)}
    answer = server.http().post(f"{place}/keys", body)
    assert answer.status == 201, answer.body
    return dict(answer.json)


def test_C50_a_shell_has_the_variables_folder_and_mark_of_the_replica_it_is_beside(
    module_server: ServerProcess, client: Client, running: str
):
    with shell(client, running, role="worker", index=0, rows=31, columns=97) as screen:
        screen.type("echo =$SECRET=$RANK=$TRAINSHED_ATTEMPT_ID= $PWD; stty size\n")
        printed = screen.until(b"31 97").decode()
        unit = f"={SECRET}=1="
        assert unit in printed
        attempt = printed.partition(unit)[2].partition("=")[0]
        assert attempt.endswith(".1")
        assert f"/{attempt}/work" in printed
        screen.connection.send('{"resize": {"rows": 40, "columns": 120}}')
        screen.type("stty size\n")
        screen.until(b"40 120")
        screen.type("exit 7\n")
        screen.rest()
    assert screen.said == [{"exit_code": 7}]
    opened = wait_until(lambda: events(module_server, running, "SHELL_CLOSED"), 30)[-1]
    assert (opened["actor"], opened["replica"]) == ("human:owner", 1), opened
    assert "exit code 7" in opened["message"]
    assert events(module_server, running, "SHELL_OPENED")[-1]["actor"] == "human:owner"


def test_C50_ctrl_c_interrupts_what_runs_in_the_foreground_and_nothing_else(client: Client, running: str):
    with shell(client, running) as screen:
        screen.type("PS1='<>'; echo go$((1+1))\n")
        screen.until(b"go2")
        # It has the terminal once it says so; before that, the shell itself would be interrupted.
        screen.type("sh -c 'echo here$((1+2)); exec sleep 1000'\n")
        screen.until(b"here3")
        screen.type("\x03")
        screen.until(b"^C")
        screen.until(b"<>")  # what is typed before the prompt may lose its first letter
        screen.type("echo status=$?; exit 0\n")
        screen.until(b"status=130")
        screen.rest()
    assert screen.said == [{"exit_code": 0}]


def test_C50_all_that_was_printed_comes_before_the_end_however_slowly_it_is_read(
    client: Client, running: str
):
    with shell(client, running) as screen:
        screen.type("seq -f 'line %06g' 200000; exit 3\n")
        text = screen.rest()
    assert text.count(b"line ") >= 200_000
    assert b"line 200000" in text
    assert screen.said == [{"exit_code": 3}]


def test_C50_what_is_piped_into_the_command_runs_there_and_its_end_ends_it(
    module_server: ServerProcess, running: str
):
    done = subprocess.run(
        [sys.executable, "-m", "trainshed", "train", "shell", running],
        input=b"cat\nof the pipe\n",
        capture_output=True,
        env=own_environment(module_server),
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == b"of the pipe\n"  # printed by `cat`, which met the end before the shell did


def test_C50_a_shell_at_a_pipe_prints_no_prompt_or_echo_and_hands_its_status_on(
    module_server: ServerProcess, running: str
):
    done = subprocess.run(
        [sys.executable, "-m", "trainshed", "train", "shell", running],
        input=b"test -t 1 || echo no terminal >/dev/stdout; pwd >/dev/stderr; exit 3\n",
        capture_output=True,
        env=own_environment(module_server),
        timeout=120,
        check=False,
    )
    assert done.returncode == 3, done.stderr
    first, second = done.stdout.splitlines()
    assert (first, second.startswith(b"/"), second.endswith(b"/work")) == (b"no terminal", True, True)


def test_C50_the_command_at_a_real_terminal_passes_keys_sizes_and_the_exit_code_on(
    module_server: ServerProcess, running: str
):
    master, inner = pty.openpty()
    termios.tcsetwinsize(inner, (33, 88))
    with subprocess.Popen(
        [sys.executable, "-m", "trainshed", "train", "shell", running],
        stdin=inner,
        stdout=inner,
        stderr=inner,
        env=own_environment(module_server),
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - one thread
    ) as command:
        os.close(inner)
        read_until(master, b"/work")  # the prompt: what is typed before is not for the shell
        # It says itself that it is in front: a key that comes between two commands interrupts neither.
        os.write(master, b"stty size; sh -c 'echo rea\"\"dy; exec sleep 1000'\n")
        read_until(master, b"33 88", b"ready")
        os.write(master, b"\x03")
        termios.tcsetwinsize(master, (44, 99))
        # The prompt again: what is typed before may be thrown away with what the key interrupted.
        read_until(master, b"^C", b"/work")
        os.write(master, b"stty size; exit 5\n")
        read_until(master, b"44 99")
        assert command.wait(60) == 5
    os.close(master)


def read_until(fd: int, *texts: bytes) -> None:
    """Read until these came, one after the other."""
    found = b""
    for text in texts:
        while text not in found:
            assert select.select([fd], [], [], 60)[0], found
            found += os.read(fd, 65536)
        found = found.partition(text)[2]


def own_environment(server: ServerProcess) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TRAINSHED_")}
    return {**kept, **server.environment}


def test_P6_a_shell_and_what_it_left_behind_end_with_the_task_and_are_released_with_it(
    module_server: ServerProcess, client: Client
):
    name = start(module_server)
    with shell(client, name) as screen:
        screen.type("setsid sleep 1000 & trap '' HUP TERM; sleep 1000 & echo both$((1+1))\n")
        screen.until(b"both2")
        assert len(sleeping(module_server, name)) >= 4
        stop(module_server, name)
        screen.rest()
    assert screen.said == []  # nobody can say how it would have ended
    wait_until(lambda: not sleeping(module_server, name), 60)
    released = task_of(module_server, name)["attempts"][0]
    assert released["replicas"][0]["exit_code"] != 0
    assert refused(lambda: client.tasks.shell(name)) == (409, "SHELL_UNAVAILABLE")


def sleeping(server: ServerProcess, name: str) -> list[int]:
    """Processes of the task."""
    attempts = [each["attempt_id"] for each in task_of(server, name)["attempts"]]
    found = procs.marked(instance(server))
    return [pid for pid, unit in found.items() if unit.rpartition(".")[0] in attempts]


def instance(server: ServerProcess) -> str:
    return str((folder.read(server.data / "local", "instance.json") or {})["id"])


def test_C50_a_killed_server_leaves_no_shell_and_the_task_goes_on(server: ServerProcess):
    name = start(server)
    before = set(sleeping(server, name))
    with Client(server.url, server.key) as client, client.tasks.shell(name) as connection:
        screen = Screen(connection)
        screen.type("trap '' HUP TERM; sleep 1000 & echo go$((1+1)); sleep 1000\n")
        screen.until(b"go2")
        assert set(sleeping(server, name)) > before
        units = set(sleeping(server, name))
        server.kill()
        wait_until(lambda: not (set(procs.marked(instance(server))) & units) - before, 60, "the shell to end")
    server.start()
    assert set(sleeping(server, name)) == before
    stop(server, name)


def test_C5_a_shell_is_for_the_owner_and_admins_and_its_existence_for_those_who_see_the_task(
    module_server: ServerProcess, client: Client, running: str
):
    url = module_server.url
    reader = str(key_of(module_server, "reader", "training.read")["key"])
    other = str(key_of(module_server, "other", "training.read", "training.run")["key"])
    for key, answer in ((reader, (403, "PERMISSION_DENIED")), (other, (403, "PERMISSION_DENIED"))):
        with Client(url, key) as somebody:
            assert refused(lambda somebody=somebody: somebody.tasks.shell(running)) == answer
    module_server.http().request("PATCH", f"/v1/tasks/{running}", {"public": False})
    with Client(url, other) as somebody:
        assert refused(lambda: somebody.tasks.shell(running)) == (404, "JOB_NOT_FOUND")
    with Client(url, "tsk_" + "0" * 26) as nobody:
        assert refused(lambda: nobody.tasks.shell(running)) == (401, "AUTHENTICATION_REQUIRED")
    assert refused(lambda: client.tasks.shell("no-such-task")) == (404, "JOB_NOT_FOUND")


def test_C50_what_cannot_be_opened_is_refused_before_the_upgrade_in_the_one_shape(
    module_server: ServerProcess, client: Client, running: str
):
    bad = (400, "INVALID_REQUEST")
    assert refused(lambda: client.tasks.shell(running, role="worker", index=1)) == bad
    assert refused(lambda: client.tasks.shell(running, role="head")) == bad
    assert refused(lambda: client.tasks.shell(running, role="clown")) == bad
    assert refused(lambda: client.tasks.shell(running, rows=0)) == bad
    plain = module_server.http().get(f"/v1/tasks/{running}/shell")
    assert (plain.status, plain.json["code"]) == bad
    headers = {"Authorization": f"Bearer {module_server.key}"}

    def elsewhere(path: str, **more: str) -> WebSocket:
        return open_websocket(module_server.url, path, query={}, headers={**headers, **more}, timeout=30)

    path = f"/v1/tasks/{running}/shell"
    assert refused(lambda: elsewhere(path, Origin="http://evil.example")) == (403, "ORIGIN_DENIED")
    assert refused(lambda: elsewhere(path, Origin="null")) == (403, "ORIGIN_DENIED")
    assert refused(lambda: elsewhere("/v1/tasks")) == (404, "NOT_FOUND")
    with elsewhere(f"/api{path}", Origin=module_server.url) as connection:
        Screen(connection).until(b"/work $ ")


def test_C50_there_are_so_many_shells_of_a_task_and_a_key_that_is_revoked_has_none(
    module_server: ServerProcess, running: str
):
    admin = key_of(module_server, "ada", "admin", "training.run")
    with Client(module_server.url, str(admin["key"])) as client, contextlib.ExitStack() as stack:
        # What an earlier test closed may count for a moment more.
        opened = [stack.enter_context(_opened(client, running)) for _ in range(8)]
        assert refused(lambda: client.tasks.shell(running)) == (429, "RATE_LIMITED")
        module_server.http().request("DELETE", f"/v1/admin/projects/default/keys/{admin['key_id']}")
        for connection in opened:
            screen = Screen(connection)
            screen.rest()
            assert screen.said == []


def _opened(client: Client, name: str) -> WebSocket:
    def once() -> WebSocket | None:
        with contextlib.suppress(RateLimited):
            return client.tasks.shell(name)
        return None

    return wait_until(once, 60, "a shell")


def test_C50_a_message_that_is_none_ends_the_shell(client: Client, running: str):
    with shell(client, running) as screen:
        screen.connection.send('{"resize": {"rows": -1, "columns": 2}}')
        screen.rest()
        assert screen.said == []


def test_a_client_that_vanishes_leaves_no_shell(module_server: ServerProcess, client: Client, running: str):
    with shell(client, running) as screen:
        screen.type("echo p''id=$$=\n")
        screen.until(b"pid=")
        pid = int(screen.until(b"=").rstrip(b"="))
        assert procs.start_time(pid)
        screen.connection._connection.shutdown(socket.SHUT_RDWR)
        wait_until(lambda: procs.start_time(pid) is None, 60)
    assert (
        "the connection ended"
        in wait_until(
            lambda: [
                each["message"]
                for each in events(module_server, running, "SHELL_CLOSED")
                if "connection ended" in each["message"]
            ],
            30,
        )[-1]
    )
