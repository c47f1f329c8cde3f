"""The ground gives way under a running server: no room on the disk, a folder that cannot be written."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from support.programs import bash, leaving_a_mark, marks
from support.server import ServerProcess
from support.waiting import wait_until

_SIZE_MB = 48


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own; gone with the test."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={_SIZE_MB}m,mode=700", "tmpfs", place], check=False
    )
    if mounted.returncode:
        pytest.skip("this user may not mount")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def _fill(folder: Path) -> Path:
    """Leave no room at all."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue
    return filler


def test_P1_a_full_disk_refuses_submissions_and_keeps_what_was_accepted(small_disk, tmp_path, request):
    server = ServerProcess(small_disk / "server").start()
    request.addfinalizer(server.stop)
    starts = tmp_path / "starts"
    first = server.submit(bash(leaving_a_mark(starts), "before"))
    server.wait_for_release(first)
    filler = _fill(small_disk)
    answers = [server.http().post("/v1/jobs", bash("true", f"full-{n}")) for n in range(200)]
    refused = [answer for answer in answers if answer.status not in {200, 201}]
    assert refused, "room for at most a few"
    for answer in refused:
        assert answer.status in {503, 507}, answer.body
        assert answer.code
        assert "Traceback" not in answer.body.decode()
    assert server.job(first)["status"] == "completed", "reads go on"
    filler.unlink()
    again = server.submit(bash(leaving_a_mark(starts), "after"))
    [trial] = server.wait_for_release(again)
    assert trial["status"] == "succeeded"
    for answer in answers:
        if answer.status == 201:
            server.wait_for_release(answer.json["job_id"])
    repeated = server.submit(bash("true", "full-199"))
    server.wait_for_release(repeated)


def test_P6_a_program_that_fills_the_servers_disk_is_ended_and_everything_goes_on(
    small_disk, tmp_path, request
):
    """Its quota is larger than the disk: the disk is full before it is caught."""
    server = ServerProcess(small_disk / "server").start()
    request.addfinalizer(server.stop)
    starts = tmp_path / "starts"
    command = leaving_a_mark(starts, "dd if=/dev/zero of=big bs=64k; dd if=/dev/zero of=more bs=1; sleep 600")
    greedy = server.submit(bash(command, "greedy"))
    wait_until(lambda: marks(starts))
    wait_until(lambda: os.statvfs(small_disk).f_bavail == 0, what="the disk to be full")
    wait_until(lambda: server.http().post(f"/v1/jobs/{greedy}/stop").status in {200, 503, 507})
    work = next((server.data / "local" / "attempts").glob("*/work"))

    def stopped() -> bool:
        return server.http().post(f"/v1/jobs/{greedy}/stop").status == 200

    if not stopped():
        (work / "more").unlink(missing_ok=True)  # an operator makes a little room
        (work / "big").unlink(missing_ok=True)
        wait_until(stopped)
    [trial] = server.wait_for_release(greedy, timeout=90)
    assert trial["status"] == "cancelled"
    [after] = server.wait_for_release(server.submit(bash("echo ok", "after")))
    assert after["status"] == "succeeded"
