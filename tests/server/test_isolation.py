"""``engine.isolation``: one setting of a server, on for every Trial or the server does not start."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.server import ServerProcess
from trainshed.engines.local import DEFAULT_USER, why_impossible
from trainshed.server.config import ConfigFaults, parse
from trainshed.server.run import EXIT_SETTINGS

ON = '[engine]\nisolation = "bubblewrap"\n'


def settings(tmp_path: Path, text: str) -> list[str]:
    file = tmp_path / "trainshed.toml"
    file.write_text(text)
    return ["--config", str(file)]


def job(command: str) -> dict[str, object]:
    spec = {"runner": "envloop/bash@main", "command": command, "resources": {"gpu_type": "H100", "gpus": 1}}
    return {"request_id": "r", "spec": spec}


def test_an_isolated_trial_runs_as_another_and_does_not_find_the_servers_data(tmp_path: Path) -> None:
    if reason := why_impossible():
        pytest.skip(reason)
    server = ServerProcess(tmp_path / "data", options=settings(tmp_path, ON)).start()
    try:
        system = server.http().get("/v1/system").json
        assert system["isolation"].startswith("bubblewrap: ")
        assert system["enforcement"]["isolation"] == "bubblewrap"
        command = f"id -u; cat {server.data}/owner.key; ls {server.data}; exit 0"
        job_id = server.submit(job(command))
        assert server.wait_for_job(job_id)["status"] == "completed"
        output = "\n".join(record["content"] for record in server.log_records(job_id))
        assert server.key not in output
        assert output.count("No such file or directory") == 2
        if os.geteuid() == 0:
            assert output.splitlines()[0] == str(DEFAULT_USER)
        server.wait_for_release(job_id)
    finally:
        assert server.stop() == 0


def test_without_the_setting_an_embedded_server_says_that_nothing_is_hidden(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "data").start()
    try:
        system = server.http().get("/v1/system").json
        assert system["isolation"].startswith("none: Trials run as the server's own user")
        assert system["enforcement"]["isolation"] == "none"
    finally:
        assert server.stop() == 0


def test_a_server_that_must_isolate_and_cannot_does_not_start(tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "git").symlink_to(shutil.which("git") or "git")
    command = [
        sys.executable,
        "-m",
        "trainshed",
        "serve",
        "--port",
        "0",
        "--data-dir",
        str(tmp_path / "data"),
    ]
    done = subprocess.run(
        [*command, *settings(tmp_path, ON)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PATH": str(programs)},
    )
    said = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    assert (done.returncode, done.stdout) == (EXIT_SETTINGS, "")
    (line,) = said
    assert line.startswith("trainshed: programs cannot be isolated with bubblewrap as the settings ask: ")
    assert line.endswith("bubblewrap is not installed (there is no bwrap on the PATH)")


def test_doctor_tells_what_is_possible_on_this_machine() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "trainshed", "doctor", "--json"], capture_output=True, text=True, check=True
    )
    (check,) = [check for check in json.loads(done.stdout)["checks"] if check["name"] == "isolation"]
    reason = why_impossible()
    assert check["state"] == ("warning" if reason else "ok")
    assert check["found"].startswith(f"not possible: {reason}" if reason else "possible: bubblewrap")


def test_an_isolation_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigFaults) as refused:
        parse({"engine": {"isolation": "docker", "isolation_user": 0}})
    assert sorted(refused.value.faults) == [
        "engine.isolation: must be none or bubblewrap, not 'docker'",
        "engine.isolation_user: must be 1 or more, not 0",
    ]
