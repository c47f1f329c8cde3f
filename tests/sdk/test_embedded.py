"""This user's own server: started once, found again, stopped; and clients that live through it."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from support.waiting import wait_until
from trainshed import Client
from trainshed.sdk import ConfigurationError, ServerStartFailed, embedded
from trainshed.sdk.home import Home, find_home, private_folder, write_file

SLOW = {"spec": {"runner": "envloop/bash@main", "resources": {"gpu_type": "H100", "gpus": 1}}}


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A user with simulated GPUs and no server yet; whatever was started is stopped."""
    for name in ("TRAINSHED_URL", "TRAINSHED_API_KEY", "TRAINSHED_NO_AUTOSTART", "ENVLOOP_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TRAINSHED_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TRAINSHED_SIMULATE_GPUS", "H100:2")
    found = find_home()
    yield found
    embedded.stop(found)


def program(command: str, timeout_seconds: int = 60) -> dict:
    spec = {**SLOW["spec"], "command": command, "timeout_seconds": timeout_seconds}
    return {"spec": spec}


@pytest.mark.parametrize("moment", ["before it is known", "while it starts"])
def test_an_interrupted_start_leaves_no_server(home: Home, monkeypatch, moment):
    """A Ctrl-C inside ``Popen`` would leave a process that nobody knows."""
    made = []
    real = subprocess.Popen

    def make(*arguments, **options):
        process = real(*arguments, **options)
        made.append(process)
        if moment == "before it is known":
            signal.raise_signal(signal.SIGINT)
        return process

    def await_answer(_folder, _process):
        signal.raise_signal(signal.SIGINT)

    handler = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(subprocess, "Popen", make)
    if moment == "while it starts":
        monkeypatch.setattr(embedded, "_await_answer", await_answer)
    with pytest.raises(KeyboardInterrupt):
        embedded.launch(home.server_data, home.server_log)
    assert [process.returncode is None for process in made] == [False]
    assert signal.getsignal(signal.SIGINT) is handler


def test_the_first_client_starts_a_server_and_later_ones_use_it(home: Home):
    told: list[str] = []
    with Client(on_start=lambda: told.append("starts")) as client:
        assert client.me()["owner"]
        assert client.connection.source == "embedded"
        assert client.system()["simulated"]
    server = embedded.find(home)
    with Client(on_start=lambda: told.append("starts")) as client:
        assert told == ["starts"]
        assert client.connection.url == server.url
    assert os.getsid(server.pid) == server.pid, "it has a session of its own, so Ctrl-C does not reach it"
    for path in (home.server_data / "server.json", home.server_data / "owner.key", home.server_log):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(home.data.stat().st_mode) == 0o700
    assert embedded.stop(home)
    assert not psutil.pid_exists(server.pid) or psutil.Process(server.pid).status() == psutil.STATUS_ZOMBIE
    assert not (home.server_data / "server.json").exists()
    assert not embedded.stop(home)


def test_folders_that_are_made_on_the_way_to_a_private_one_are_private_too(home: Home):
    private_folder(home.data / "packed")  # by packing, before there is a server
    assert stat.S_IMODE(home.data.stat().st_mode) == 0o700
    assert private_folder(home.data) == home.data


def test_a_home_that_is_named_by_a_link_is_the_folder_behind_it(home: Home, tmp_path, monkeypatch):
    private_folder(home.data)
    (tmp_path / "link").symlink_to(home.data)
    monkeypatch.setenv("TRAINSHED_HOME", str(tmp_path / "link"))
    assert find_home() == home
    (tmp_path / "round").symlink_to("round")
    monkeypatch.setenv("TRAINSHED_HOME", str(tmp_path / "round"))
    with pytest.raises(ConfigurationError, match="round"):
        private_folder(find_home().data)


def test_variables_that_came_too_late_for_the_running_server_are_named(home: Home):
    with Client():
        server = embedded.find(home)
    assert embedded.ignored_variables(server, os.environ) == {}
    late = {"TRAINSHED_SIMULATE_GPUS": "A100:1", "TRAINSHED_CONFIG": "/x", "TRAINSHED_URL": "http://[::1]"}
    assert embedded.ignored_variables(server, late) == {
        "TRAINSHED_SIMULATE_GPUS": "H100:2",
        "TRAINSHED_CONFIG": None,
    }


def test_clients_that_start_at_once_get_one_server(home: Home):
    ask = "from trainshed import Client; print(Client().connection.url)"

    def one(_: int) -> str:
        return subprocess.check_output([sys.executable, "-c", ask], text=True, timeout=90).strip()

    with ThreadPoolExecutor(4) as pool:
        urls = set(pool.map(one, range(4)))
    assert urls == {embedded.find(home).url}


def test_no_server_is_started_where_that_is_forbidden(home: Home, monkeypatch):
    monkeypatch.setenv("TRAINSHED_NO_AUTOSTART", "1")
    with pytest.raises(ConfigurationError):
        Client()
    assert not home.data.exists()


def test_a_server_that_cannot_start_shows_the_end_of_its_log(home: Home, monkeypatch):
    monkeypatch.setenv("TRAINSHED_SIMULATE_GPUS", "H100:none")
    with pytest.raises(ServerStartFailed) as caught:
        Client()
    assert "H100:none" in caught.value.message
    assert str(home.server_log) in caught.value.hint
    assert not caught.value.again


def test_the_number_of_another_program_is_not_taken_for_the_server(home: Home):
    private_folder(private_folder(home.data) / "server")
    with subprocess.Popen(["sleep", "60"]) as stranger:
        announced = {"url": "http://127.0.0.1:1", "pid": stranger.pid, "started_at": 1.0}
        write_file(home.server_data / "server.json", announced)
        try:
            assert embedded.find(home) is None
            assert not embedded.stop(home)
            assert stranger.poll() is None
        finally:
            stranger.kill()


@pytest.mark.parametrize("text", ["{}", '{"url": "x", "pid": "y", "started_at": 1}', '{"url": "x"}'])
def test_an_announcement_that_is_none_means_no_server(home: Home, text):
    private_folder(private_folder(home.data) / "server")
    path = home.server_data / "server.json"
    path.write_text(text)
    path.chmod(0o600)
    assert embedded.find(home) is None


def test_a_killed_server_is_replaced_by_the_next_client(home: Home):
    with Client() as client:
        client.me()
    first = embedded.find(home)
    os.kill(first.pid, signal.SIGKILL)
    wait_until(lambda: not first.alive(), 60)
    with Client() as client:
        assert client.me()["owner"]
    assert embedded.find(home).pid != first.pid


def test_P14_a_job_goes_on_without_the_server_and_its_follower_misses_nothing(home: Home, tmp_path: Path):
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    lines = [f"line {number}" for number in range(1, 41)]
    count = "for n in $(seq {} {}); do echo line $n; done"
    script = f"{count.format(1, 20)}; read _ < {gate}; {count.format(21, 40)}"
    with Client() as client:
        job = client.training_jobs.submit(program(script))
        seen: list[str] = []
        halfway = threading.Event()

        def follow() -> None:
            for record in client.jobs.follow(job.job_id, source="runtime"):
                seen.append(record.text)
                if len(seen) == 20:
                    halfway.set()

        with ThreadPoolExecutor(1) as pool:
            following = pool.submit(follow)
            assert halfway.wait(60)
            assert embedded.stop(home)
            gate.write_text("go on\n")
            embedded.ensure(home)
            following.result(timeout=90)
        assert seen == lines
        ended = client.jobs.wait(job.job_id, timeout=60, released=True)
        assert ended.succeeded
        assert ended.trials[0].exit_code == 0
