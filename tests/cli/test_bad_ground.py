"""Where the program cannot write, cannot have a home or is given a key that is none: a sentence each."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support import documents
from support.fake_server import Reply
from support.server import ServerProcess
from support.waiting import wait_until
from trainshed.cli.exits import Exit
from trainshed.sdk.home import private_folder

GET = ("job", "get", documents.JOB_ID)


@pytest.fixture
def program(fake):
    """Run the program as a process of its own, with its output where a shell would put it."""
    fake.routes[f"GET /v1/jobs/{documents.JOB_ID}"] = Reply(body=documents.job("running"))

    def run(*arguments: str, redirect: str = "", **environment: str) -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-m", "trainshed", *arguments]
        return subprocess.run(
            ["/bin/sh", "-c", f'"$@" {redirect}', "sh", *command],
            capture_output=True,
            timeout=60,
            check=False,
            env={**os.environ, **environment},
        )

    return run


def one_sentence(done: subprocess.CompletedProcess[bytes], status: int, said: str) -> None:
    lines = done.stderr.decode().splitlines()
    assert done.returncode == status, lines
    assert lines[0].startswith("error: ")
    assert said in lines[0]
    assert len(lines) <= 2, lines


@pytest.mark.parametrize(
    ("redirect", "said"), [(">/dev/full", "No space left on device"), (">&-", "Bad file descriptor")]
)
@pytest.mark.parametrize("form", [(), ("--json",)])
def test_an_output_that_cannot_be_written_is_told_in_a_sentence(program, redirect, said, form):
    done = program(*GET, *form, redirect=redirect)
    if not form:
        one_sentence(done, Exit.FAILED, f"cannot write the output: {said}")
    assert done.returncode == Exit.FAILED
    assert done.stderr.count(b"\n") == 1
    assert b"Traceback" not in done.stderr


def test_closed_streams_do_not_receive_what_other_files_shall_hold(program):
    done = program(*GET, redirect="<&- 2>&-")
    assert done.returncode == Exit.OK
    assert documents.JOB_ID.encode() in done.stdout


def test_a_reader_that_goes_away_is_no_fault(program):
    assert program(*GET, redirect="| true").stderr == b""


@pytest.mark.parametrize("key", ["k\u00e9y-secret", "secret\nkey", "secret key", "s" * 513])
def test_a_key_that_cannot_be_one_is_refused_unsent_and_unshown(run, fake, monkeypatch, key: str):
    monkeypatch.setenv("TRAINSHED_API_KEY", key)
    for form in ((), ("--json",)):
        ran = run(*GET, *form)
        assert ran.status == Exit.USAGE
        assert "TRAINSHED_API_KEY" in ran.err
        assert "secret" not in ran.out + ran.err
        assert "sss" not in ran.out + ran.err
    assert fake.seen == []


def test_a_home_that_cannot_be_made_is_told_with_the_variable(quiet, run, monkeypatch):
    monkeypatch.setenv("TRAINSHED_HOME", "/proc/x")
    monkeypatch.delenv("TRAINSHED_NO_AUTOSTART")
    ran = run("whoami")
    assert (ran.status, ran.raw) == (Exit.USAGE, b"")
    assert "cannot make the folder /proc/x" in ran.err
    assert "TRAINSHED_HOME" in ran.err


@pytest.mark.parametrize("words", [("whoami",), ("stop",)])
def test_a_home_of_an_unknown_user_is_told(quiet, run, monkeypatch, words):
    monkeypatch.setenv("TRAINSHED_HOME", "~nobody-of-that-name/x")
    monkeypatch.delenv("TRAINSHED_NO_AUTOSTART")
    ran = run(*words)
    assert ran.status == Exit.USAGE
    assert "TRAINSHED_HOME is ~nobody-of-that-name/x, the home of a user" in ran.err
    assert not Path("~nobody-of-that-name").exists()


def test_a_home_that_is_a_file_is_told(quiet, run, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TRAINSHED_HOME", str(tmp_path / "file"))
    monkeypatch.delenv("TRAINSHED_NO_AUTOSTART")
    ran = run("whoami")
    assert ran.status == Exit.USAGE
    assert ran.err == (
        f"error: {tmp_path / 'file'} is not a folder\nhint: Set TRAINSHED_HOME to a folder of yours.\n"
    )


def test_a_home_that_others_may_enter_is_refused_before_a_start_with_a_command_that_can_be_run(
    quiet, run, monkeypatch, tmp_path
):
    home = tmp_path / "a b"
    home.mkdir(mode=0o755)
    monkeypatch.setenv("TRAINSHED_HOME", str(home))
    monkeypatch.delenv("TRAINSHED_NO_AUTOSTART")
    ran = run("job", "list")
    assert ran.status == Exit.USAGE
    refused, hint = ran.err.splitlines()
    assert refused.startswith("error: ")
    subprocess.run(hint.split("`")[1], shell=True, check=True)
    assert private_folder(home) == home


def test_settings_that_no_server_starts_with_are_this_users_fault(quiet, run, monkeypatch):
    monkeypatch.setenv("TRAINSHED_SIMULATE_GPUS", "H100")
    monkeypatch.delenv("TRAINSHED_NO_AUTOSTART")
    ran = run("job", "list")
    assert ran.status == Exit.USAGE
    _, refused, hint = ran.err.splitlines()
    said = "simulated GPUs are given as MODEL:COUNT, such as H100:8, not 'H100'"
    assert refused == f"error: your server cannot start: {said}"
    assert "server.log" in hint


@pytest.mark.parametrize("command", [("job", "get"), ("job", "stop"), ("trial", "get")])
@pytest.mark.parametrize("given", ["", "  "])
def test_an_empty_id_is_refused_as_such(run, fake, command, given: str):
    ran = run(*command, given)
    assert ran.status == Exit.USAGE
    assert "is empty" in ran.err
    assert fake.seen == []


def test_what_is_shown_of_bad_arguments_and_refusals_steers_no_terminal(run, fake):
    ran = run("job", "get", "trial_\x1b[31m\x07")
    assert ran.status == Exit.USAGE
    assert not any(letter in ran.err for letter in "\x1b\x07")
    body = {"code": "JOB_NOT_FOUND", "message": "no Job\nerror: forged\x1b[2J", "errors": []}
    fake.routes[f"GET /v1/jobs/{documents.JOB_ID}"] = Reply(404, body)
    ran = run(*GET)
    assert len(ran.err.splitlines()) == 1
    assert "\x1b" not in ran.err


def test_a_server_that_is_told_to_stop_while_it_starts_ends_in_order(tmp_path):
    """SIGTERM at every moment from the program's own first line on: never a death by the signal."""
    server = ServerProcess(tmp_path / "data")
    server.data.mkdir(mode=0o700)
    for pause in (0.0, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.2):
        script = (
            "import os, signal, sys, threading;"
            "from trainshed.cli import serve;"  # what the program loads before it runs the command
            "from trainshed.cli.main import main;"
            "first = serve.signal.signal;"
            f"later = threading.Timer({pause}, os.kill, (os.getpid(), signal.SIGTERM));"
            "later.daemon = True;"
            "serve.signal = type('S', (), {'SIGTERM': signal.SIGTERM, 'signal': staticmethod("
            "lambda *a: (first(*a), later.start()))});"
            "sys.exit(main(sys.argv[1:]))"
        )
        command = [sys.executable, "-c", script, *server.command()[3:]]
        done = subprocess.run(command, capture_output=True, timeout=60, check=False)
        assert done.returncode == 0, (pause, done.returncode, done.stderr[-2000:])
        assert b"Traceback" not in done.stderr
    wait_until(lambda: not (server.data / "server.json").exists(), 60)
