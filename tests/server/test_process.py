"""The server process: starting, what keeps it from starting, stopping, splitting by role."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from support.server import ServerProcess
from support.waiting import wait_until
from trainshed.server.run import (
    EXIT_DATABASE,
    EXIT_FOLDER,
    EXIT_IN_USE,
    EXIT_PORT,
    EXIT_SETTINGS,
)


def serve(data: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``trainshed serve`` that is expected to end by itself."""
    command = [sys.executable, "-m", "trainshed", "serve", "--port", "0", "--data-dir", str(data), *options]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env={**os.environ, **environment}
    )


def assert_one_line(done: subprocess.CompletedProcess[str], status: int, *words: str) -> None:
    """It ended with ``status`` and one sentence that holds ``words``; no traceback."""
    lines = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    assert done.returncode == status, done.stderr
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("trainshed: ")
    for word in words:
        assert word in lines[0]
    assert done.stdout == ""


@pytest.fixture
def running(tmp_path: Path):
    server = ServerProcess(tmp_path / "data")
    server.start()
    yield server
    if server.running:
        assert server.stop() == 0


def test_a_first_start_makes_a_private_owner_key_and_publishes_the_shipped_runner(running: ServerProcess):
    key = running.data / "owner.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert stat.S_IMODE((running.data / "server.json").stat().st_mode) == 0o600
    http = running.http()
    me = http.get("/v1/me").json
    assert (me["owner"], me["project_id"]) == (True, "default")
    (item,) = http.get("/v1/runners").json["items"]
    assert (item["name"], item["visibility"]) == ("envloop/bash", "public")


def test_the_metrics_of_a_running_server_hold_queue_starts_ends_and_leaks(running: ServerProcess):
    http = running.http()
    job = http.post("/v1/jobs", submission("true")).json
    wait_until(lambda: released(running, job["job_id"]), 30)
    text = http.get("/metrics").body.decode()
    assert "trainshed_trial_starts_total 1.0" in text
    assert 'trainshed_trial_ends_total{code="SUCCEEDED",status="succeeded"} 1.0' in text
    assert "trainshed_allocations_leaked 0.0" in text
    for name in ("trainshed_queue_length", "trainshed_trial_start_latency_seconds_count 1.0"):
        assert name in text


def test_a_second_start_keeps_the_owner_key_and_the_revision(tmp_path: Path):
    server = ServerProcess(tmp_path / "data")
    server.start()
    key, runners = server.key, server.http().get("/v1/runners").json
    assert server.stop() == 0
    assert not (server.data / "server.json").exists()
    server.start()
    assert (server.key, server.http().get("/v1/runners").json) == (key, runners)
    assert server.stop() == 0


def test_a_second_server_on_the_same_data_folder_is_refused(running: ServerProcess):
    assert_one_line(serve(running.data), EXIT_IN_USE, "another server", str(running.pid), str(running.data))
    assert_one_line(serve(running.data, "--role", "api"), EXIT_IN_USE, "another server")
    assert running.http().get("/v1/me").status == 200


def test_a_port_in_use_is_told_in_a_sentence(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert_one_line(serve(tmp_path / "d", "--port", port), EXIT_PORT, port, "in use")


def test_a_host_that_does_not_exist_is_told_in_a_sentence(tmp_path: Path):
    assert_one_line(serve(tmp_path / "d", "--host", "nowhere.invalid"), EXIT_PORT, "nowhere.invalid")


def test_a_data_folder_that_cannot_be_used_is_told_in_a_sentence(tmp_path: Path):
    file = tmp_path / "file"
    file.write_text("")
    assert_one_line(serve(file / "x"), EXIT_FOLDER, "is not a folder")
    assert_one_line(serve(Path("/proc/trainshed")), EXIT_FOLDER, "/proc/trainshed")


def test_damaged_keys_of_hidden_values_are_told_in_a_sentence(tmp_path: Path):
    data = tmp_path / "d"
    data.mkdir(mode=0o700)
    for damaged in ("abc\n", "\u00e9\n"):
        (data / "secrets.key").write_text(damaged)
        assert_one_line(serve(data), EXIT_FOLDER, "secrets.key", "cannot be used")


def test_a_first_start_is_none_the_worse_for_a_parent_that_ignores_its_children(tmp_path: Path):
    ignoring = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN)"
    code = f"{ignoring}; os.execv(sys.argv[1], sys.argv[1:])"
    command = [sys.executable, "-m", "trainshed", "serve", "--port", "0", "--data-dir", str(tmp_path / "d")]
    with subprocess.Popen(
        [sys.executable, "-c", code, *command], stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        assert server.stdout.readline().startswith("Trainshed serves http://")
        server.terminate()
        assert server.wait(30) == 0


def test_a_database_from_a_newer_program_is_refused_and_left_alone(tmp_path: Path):
    server = ServerProcess(tmp_path / "data")
    server.start()
    assert server.stop() == 0
    engine = create_engine(f"sqlite:///{server.data / 'trainshed.sqlite'}")
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    assert_one_line(serve(server.data), EXIT_DATABASE, "9999", "newer")
    with engine.begin() as connection:
        assert connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one() == "9999"
    engine.dispose()


def test_a_database_that_does_not_answer_is_told_in_a_sentence(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    url = f"postgresql://nobody@127.0.0.1:{port}/none"
    assert_one_line(serve(tmp_path / "d", "--database-url", url), EXIT_DATABASE, "does not answer")


@pytest.mark.parametrize("url", ["nonsense", "mysql://u@h/d", "postgresql://u@h:port/d"])
def test_a_database_url_that_cannot_be_used_is_told_in_a_sentence(tmp_path: Path, url: str):
    assert_one_line(serve(tmp_path / "d", "--database-url", url), EXIT_SETTINGS, "database")


def test_bad_settings_are_all_told(tmp_path: Path):
    config = tmp_path / "c.toml"
    config.write_text("[rates]\nread = 1\nwrites = 0\n")
    done = serve(tmp_path / "d", "--config", str(config))
    assert done.returncode == EXIT_SETTINGS
    assert "did you mean `rates.reads`?" in done.stderr
    assert "rates.writes" in done.stderr
    assert not (tmp_path / "d").exists()


def test_bad_simulated_gpus_are_told_in_a_sentence(tmp_path: Path):
    assert_one_line(serve(tmp_path / "d", "--simulate-gpus", "H100:x"), EXIT_SETTINGS, "MODEL:COUNT")


def test_one_line_is_printed_when_it_answers_and_the_log_is_json(running: ServerProcess):
    wait_until(lambda: '"event": "ready"' in running.tail(), 60)
    lines = running.tail().splitlines()
    plain = [line for line in lines if not line.startswith("{")]
    assert plain == [f"Trainshed serves {running.url}"]
    assert all(json.loads(line)["timestamp"] for line in lines if line.startswith("{"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_open_stream_does_not_keep_the_server_from_stopping(running: ServerProcess, number: int):
    http = running.http()
    job = http.post("/v1/jobs", submission("sleep 300")).json
    url = running.url.removeprefix("http://")
    host, port = url.split(":")
    with socket.create_connection((host, int(port))) as stream:
        path = f"/v1/jobs/{job['job_id']}/events/stream"
        stream.sendall(
            f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {running.key}\r\n\r\n".encode()
        )
        seen = b""
        while b"ACCEPTED" not in seen:
            seen += stream.recv(65536)
        os.kill(running.pid, number)
        assert running.wait(20) == 0
    running.start()
    stopped = running.http().post(f"/v1/jobs/{job['job_id']}/stop")
    assert stopped.status == 200
    wait_until(lambda: released(running, job["job_id"]), 30)


def released(server: ServerProcess, job_id: str) -> bool:
    job = server.http().get(f"/v1/jobs/{job_id}").json
    return all(trial["cleanup_confirmed"] for trial in job["training"]["trials"])


def submission(command: str) -> dict:
    spec = {"runner": "envloop/bash@main", "command": command, "resources": {"gpu_type": "H100", "gpus": 1}}
    return {"type": "train", "request_id": "r", "spec": spec}


@pytest.mark.every_database
def test_api_and_controller_may_be_two_processes(tmp_path: Path, database_url: str):
    data = tmp_path / "data"
    options = ["--database-url", database_url]
    api = ServerProcess(data, options=[*options, "--role", "api"], gpus="")
    controller = ServerProcess(data, options=[*options, "--role", "controller"])
    api.start()
    process = subprocess.Popen(
        controller.command(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("Trainshed serves ")
        http = api.http()
        job = http.post("/v1/jobs", submission("echo hello")).json
        path = f"/v1/jobs/{job['job_id']}"
        wait_until(lambda: http.get(path).json["status"] == "completed", 30)
        wait_until(lambda: released(api, job["job_id"]), 30)
        page = http.get(f"{path}/logs?source=runtime&wait=5").json
        assert [item["content"] for item in page["items"]] == ["hello"]
        system = http.get("/v1/system").json
        assert (system["role"], system["simulated"]) == ("api", True)
        assert system["enforcement"]
        if database_url.startswith("sqlite"):
            assert_one_line(serve(data, *options, "--role", "controller"), EXIT_IN_USE, "another controller")
    finally:
        process.terminate()
        assert process.wait(30) == 0
        process.stdout.close()
    assert api.stop() == 0


def test_a_controller_stands_by_and_takes_over_when_the_leader_is_killed(tmp_path: Path, postgres):
    url = postgres.create_database("standby")
    data = tmp_path / "data"
    options = ["--database-url", url]
    api = ServerProcess(data, options=[*options, "--role", "api"], gpus="")
    api.start()
    command = ServerProcess(data, options=[*options, "--role", "controller"]).command()
    controllers = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for _ in range(2)
    ]
    try:
        for process in controllers:
            assert process.stdout is not None
            assert process.stdout.readline()
        http = api.http()
        for number, victim in enumerate(controllers):
            job = http.post("/v1/jobs", {**submission("true"), "request_id": f"r{number}"}).json
            wait_until(lambda job=job: released(api, job["job_id"]), 30)
            if number == 0:
                victim.kill()
                victim.wait(30)
    finally:
        for process in controllers:
            process.terminate()
            process.wait(30)
            process.stdout.close()
        assert api.stop() == 0
        postgres.drop_database("standby")


@pytest.mark.parametrize("data", ["new", "known"])
def test_an_idle_server_takes_less_than_120_mb(running: ServerProcess, data: str):
    if data == "known":
        running.stop()
        running.start()
    running.http().get("/v1/me")
    for line in Path(f"/proc/{running.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            assert int(line.split()[1]) < 120_000


def test_a_full_disk_does_not_keep_the_server_from_starting(tmp_path: Path):
    """What is stored stays readable; submissions are refused as `STORAGE_FULL` and readiness says why."""
    small = tmp_path / "data"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m,mode=700", "none", str(small)], check=True)
    server = FoundByItsLog(small)
    try:
        server.start()
        job_id = server.submit({"request_id": "before", "spec": submission("true")["spec"]})
        server.wait_for_release(job_id)
        fill(small / "fill")
        assert not_ready(server)["storage"] == "cannot be written: No space left on device"
        server.kill()
        (small / "server.json").unlink()
        fill(small / "fill more")
        server.start()
        assert server.job(job_id)["status"] == "completed"
        assert "storage" in not_ready(server)
        refused = server.http().post("/v1/jobs", {**submission("true"), "request_id": "full"})
        assert (refused.status, refused.code) == (507, "STORAGE_FULL")
        (small / "fill").unlink()
        wait_until(lambda: server.http().get("/readyz").status == 200, 60)
        again = server.submit({"request_id": "after", "spec": submission("true")["spec"]})
        server.wait_for_release(again)
        assert server.stop() == 0
        assert "Traceback" not in server.tail(10**6)
    finally:
        if server.running:
            server.kill()
        subprocess.run(["umount", "--lazy", str(small)], check=True)


class FoundByItsLog(ServerProcess):
    """A server that has no room to announce itself in its data folder."""

    def _announced(self) -> str:
        assert self.running, self.tail()
        ready = [json.loads(line) for line in self.tail(10**6).splitlines() if '"event": "ready"' in line]
        return str(ready[-1]["url"]) if ready and ready[-1]["pid"] == self.pid else ""


def fill(place: Path) -> None:
    """Write until nothing more fits."""
    with contextlib.suppress(OSError), place.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def not_ready(server: ServerProcess) -> dict[str, str]:
    """The checks of ``/readyz`` that fail, once it says 503; it looks at the disk once a second."""

    def failing() -> dict[str, str]:
        answer = server.http().get("/readyz")
        checks = answer.json["checks"].items()
        return {name: said for name, said in checks if said != "ok"} if answer.status == 503 else {}

    return wait_until(failing, 60)


def test_a_first_start_on_a_full_disk_is_told_in_a_sentence(tmp_path: Path):
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(small)], check=True)
    try:
        fill(small / "fill")
        done = serve(small / "data")
        assert done.returncode in {EXIT_FOLDER, EXIT_DATABASE}
        assert "Traceback" not in done.stderr
        assert_one_line(done, done.returncode)
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_a_database_that_was_moved_away_is_noticed_while_running_and_at_the_start(running: ServerProcess):
    job_id = running.submit({"request_id": "kept", "spec": submission("true")["spec"]})
    running.wait_for_release(job_id)
    place = running.data / "trainshed.sqlite"
    names = ["", "-wal", "-shm"]
    for name in names:
        place.with_name(place.name + name).rename(running.data / f"away{name}")
    refused = running.http().post("/v1/jobs", {**submission("true"), "request_id": "lost"})
    assert (refused.status, refused.code) == (503, "DATABASE_UNAVAILABLE")
    assert "moved or replaced" in not_ready(running)["database"]
    assert running.stop() == 0
    assert_one_line(serve(running.data), EXIT_FOLDER, "trainshed.sqlite is missing", "--database-url")
    assert not place.exists()
    for name in names:
        if (running.data / f"away{name}").exists():
            (running.data / f"away{name}").rename(place.with_name(place.name + name))
    running.start()
    assert running.job(job_id)["status"] == "completed"
