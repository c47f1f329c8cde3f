"""P6, P8: programs that do not want to end, or to be understood, through the whole real server.

Whatever they do, the Trial's state, exit code, outputs and log are right, and nothing of them is left.
"""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass, field
from typing import Any

import pytest

from support.processes import all_pids, environment_of, strangers_of
from support.programs import artifact_names, bash, leaving_a_mark, marks
from support.runners import definition, publish, repository
from support.server import ServerProcess
from support.waiting import wait_until

_BIG = 200 << 20


@dataclass(frozen=True)
class Hostile:
    """What a program does, and what must be said of it afterwards."""

    command: str
    status: str = "succeeded"
    exit_code: int | None = 0
    output_status: str = "complete"
    error: str | None = None
    stdout: bytes | None = b"here\n"
    artifacts: tuple[str, ...] = ("outputs/a",)
    spec: dict[str, Any] = field(default_factory=dict)


_LEAVE = "echo here; echo a > outputs/a; "
_FORKED = """
import os, signal, time
def daemon():
    if os.fork():
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    os.chdir("/")
    for fd in range(3):
        os.close(fd)
    time.sleep(600)
    os._exit(0)
for _ in range(3):
    daemon()
"""
HOSTILE = {
    "forks daemons": Hostile(f"{_LEAVE} python3 -c '{_FORKED}'"),
    "clears its environment": Hostile(f"{_LEAVE} env -i setsid sleep 600 >/dev/null 2>&1 & sleep 0.3"),
    "closes its streams": Hostile(
        f"{_LEAVE} exec >&- 2>&-; sleep 0.3; echo b > outputs/b; exit 7",
        status="failed",
        exit_code=7,
        error="NONZERO_EXIT",
        artifacts=("outputs/a", "outputs/b"),
    ),
    "writes invalid UTF-8": Hostile(
        f"{_LEAVE} printf '\\377\\376\\000\\303(\\n\\200'", stdout=b"here\n\xff\xfe\x00\xc3(\n\x80"
    ),
    "exits while children hold the pipe": Hostile(f"{_LEAVE} sleep 600 & sleep 600 & exit 0"),
    "kills itself": Hostile(f"{_LEAVE} kill -KILL $$", status="failed", exit_code=137, error="NONZERO_EXIT"),
    "fills its disk": Hostile(
        f"{_LEAVE} sync; dd if=/dev/zero of=big bs=1M count=400 2>/dev/null; sleep 600",
        status="failed",
        exit_code=None,
        error="DISK_LIMIT_EXCEEDED",
        spec={"resources": {"storage_mb": 40}},
    ),
    "deletes its outputs": Hostile(f"{_LEAVE} rm -r outputs", output_status="none", artifacts=()),
    "deletes its own directory": Hostile(
        f'{_LEAVE} cp outputs/a /dev/null; rm -rf "$PWD"',
        output_status="failed",
        artifacts=(),
        status="failed",
        error="OUTPUT_COLLECTION_FAILED",
    ),
    "ignores SIGTERM until its timeout": Hostile(
        f"trap '' TERM; {_LEAVE} while :; do sleep 1; done",
        status="failed",
        exit_code=137,
        error="TRIAL_TIMEOUT",
        spec={"timeout_seconds": 1},
    ),
}


@pytest.fixture(scope="module")
def impatient(tmp_path_factory):
    """A server that kills soon after asking."""
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "config.toml").write_text("[trials]\nstop_grace_seconds = 0.5\n")
    server = ServerProcess(folder / "server", options=["--config", str(folder / "config.toml")]).start()
    yield server
    server.stop()


def _nothing_of(server: ServerProcess, trial: dict[str, Any]) -> bool:
    attempt = trial["attempts"][-1]["attempt_id"]
    mark = f"TRAINSHED_ATTEMPT_ID={attempt}".encode()
    marked = [pid for pid in all_pids() if mark in environment_of(pid)]
    standing = strangers_of(server.data / "local" / "attempts" / attempt)
    return not marked and not standing


def _raw(server: ServerProcess, trial: dict[str, Any], stream: str) -> bytes:
    answer = server.http().get(f"/v1/trials/{trial['trial_id']}/logs/raw?stream={stream}")
    assert answer.status == 200, answer.body
    return answer.body


@pytest.mark.parametrize("name", HOSTILE)
def test_P6_P8_a_hostile_program_ends_is_told_right_and_leaves_nothing(impatient, name):
    hostile, server = HOSTILE[name], impatient
    job_id = server.submit(bash(hostile.command, f"hostile-{name}", **hostile.spec))
    [trial] = server.wait_for_release(job_id, timeout=90)
    assert trial["status"] == hostile.status
    assert hostile.exit_code is None or trial["exit_code"] == hostile.exit_code
    assert trial["output_status"] == hostile.output_status
    assert (trial["error"] or {}).get("code") == hostile.error
    assert artifact_names(server, trial["trial_id"]) == list(hostile.artifacts)
    assert trial["cleanup_confirmed"]
    if hostile.stdout is not None:
        assert _raw(server, trial, "stdout") == hostile.stdout
    server.log_records(job_id)
    assert _nothing_of(server, trial)
    assert not (server.data / "local" / "attempts" / trial["attempts"][-1]["attempt_id"] / "work").exists()


def test_E70_exit_zero_after_deleting_a_promised_file_is_no_success(impatient, tmp_path):
    repository(
        tmp_path / "r",
        {"runner.toml": definition(outputs=("model.bin",)), "main.sh": "echo m > model.bin; rm model.bin\n"},
    )
    selector = publish(impatient, tmp_path / "r", "hostile/deletes")["selector"]
    job_id = impatient.submit({"request_id": "deletes", "spec": {"runner": selector}})
    [trial] = impatient.wait_for_release(job_id)
    assert (trial["status"], trial["exit_code"], trial["output_status"]) == ("failed", 0, "failed")
    assert trial["error"]["code"] == "OUTPUT_COLLECTION_FAILED"


def test_P8_two_hundred_megabytes_without_a_line_end_are_all_there(impatient):
    job_id = impatient.submit(
        bash(f"head -c {_BIG} /dev/zero | tr '\\0' x", "big", resources={"memory_mb": 512})
    )
    [trial] = impatient.wait_for_release(job_id, timeout=120)
    assert (trial["status"], trial["exit_code"]) == ("succeeded", 0)
    raw = _raw(impatient, trial, "stdout")
    assert len(raw) == _BIG
    assert raw.count(b"x") == _BIG


def test_E76_E77_a_program_that_ignores_sigterm_is_stopped_and_its_outputs_are_kept(impatient, tmp_path):
    command = leaving_a_mark(
        tmp_path / "starts", f"trap '' TERM; {_LEAVE} python3 -c '{_FORKED}'; while :; do sleep 1; done"
    )
    job_id = impatient.submit(bash(command, "deaf", trials=2))
    wait_until(lambda: len(marks(tmp_path / "starts")) == 2)
    wait_until(lambda: all(t["status"] == "running" for t in impatient.job(job_id)["training"]["trials"]))
    impatient.http().post(f"/v1/jobs/{job_id}/stop")
    for trial in impatient.wait_for_release(job_id):
        assert (trial["status"], trial["exit_code"], trial["output_status"]) == ("cancelled", 137, "complete")
        assert artifact_names(impatient, trial["trial_id"]) == ["outputs/a"]
        assert _nothing_of(impatient, trial)
    assert impatient.job(job_id)["status"] == "cancelled"


def test_P6_P14_the_server_is_killed_at_random_times_over_hostile_programs(new_server, tmp_path):
    server: ServerProcess = new_server().start()
    chance = random.Random(7)
    starts = tmp_path / "starts"
    names = ["forks daemons", "exits while children hold the pipe", "writes invalid UTF-8", "kills itself"]
    expected = {}
    pause = threading.Event()
    for turn in range(4):
        for name in names:
            command = leaving_a_mark(starts, f"sleep 0.{chance.randrange(10)}; {HOSTILE[name].command}")
            expected[server.submit(bash(command, f"{turn}-{name}"))] = name
        pause.wait(chance.random())  # a random moment is the point of this test
        server.kill()
        server.start()
    for job_id, name in expected.items():
        [trial] = server.wait_for_release(job_id)
        assert (trial["status"], trial["exit_code"]) == (HOSTILE[name].status, HOSTILE[name].exit_code)
        assert trial["output_status"] == "complete"
        assert marks(starts).count(trial["trial_id"]) == 1
        assert _nothing_of(server, trial)
