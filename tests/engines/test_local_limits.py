"""Limits hold for real, and an attempt says how each of its own is enforced."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from engines.conformance import LIMITS, SETTLED, Behaviour, written
from engines.containers import image_way
from engines.machinery import WAYS, LocalHarness, each_way
from support.waiting import wait_until
from trainshed.engines import EndedBy, Exit, Limits, Phase
from trainshed.jobkit import cgroups


@pytest.fixture(params=[*WAYS, "podman"])
def local(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalHarness]:
    if request.param == "podman":
        yield from image_way(tmp_path, request.getfixturevalue("image_ground"))
    else:
        yield from each_way(request.param, tmp_path)


@pytest.fixture
def offered(local: LocalHarness) -> Mapping[str, str]:
    return local.engine.enforcement()


def run(local: LocalHarness, code: str, limits: Limits = LIMITS, **settings: object) -> Exit:
    local.engine.launch(local.python("attempt-1", code, limits=limits, **settings))
    exit_ = local.until("attempt-1", SETTLED).exit
    assert exit_ is not None
    return exit_


def output(local: LocalHarness) -> bytes:
    return written(local.engine.logs("attempt-1").frames)


def needs(offered: Mapping[str, str], limit: str) -> None:
    if offered[limit] == cgroups.NOT_ENFORCED:
        pytest.skip(f"this machine does not enforce {limit}")


def test_memory_above_the_limit_ends_by_memory(local: LocalHarness, offered: Mapping[str, str]) -> None:
    needs(offered, "memory")
    exit_ = run(local, "x = bytearray(300 << 20); print(len(x))", replace(LIMITS, memory_mb=100))
    assert (exit_.code, exit_.signal, exit_.ended_by) == (137, signal.SIGKILL, EndedBy.MEMORY)
    assert "100 MiB" in exit_.detail
    assert exit_.usage["max_memory_mb"] <= 100


def test_memory_below_the_limit_is_measured(local: LocalHarness, offered: Mapping[str, str]) -> None:
    needs(offered, "memory")
    exit_ = run(local, "x = bytearray(60 << 20); x[::4096] = b'1' * len(x[::4096])")
    assert exit_.ended_by is EndedBy.EXIT
    assert 60 <= exit_.usage["max_memory_mb"] <= 300


def test_a_worker_killed_at_the_limit_is_told_when_the_program_fails_of_it(
    local: LocalHarness, offered: Mapping[str, str]
) -> None:
    needs(offered, "memory")
    code = (
        "import os, sys\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    open('/proc/self/oom_score_adj', 'w').write('1000')\n"
        "    x = bytearray(300 << 20); os._exit(0)\n"
        "sys.exit(1 if os.waitpid(pid, 0)[1] else 0)\n"
    )
    exit_ = run(local, code, replace(LIMITS, memory_mb=100))
    assert (exit_.code, exit_.ended_by) == (1, EndedBy.MEMORY)


def test_processes_above_the_limit_are_refused(local: LocalHarness, offered: Mapping[str, str]) -> None:
    needs(offered, "pids")
    code = (
        "import os, time\n"
        "made = 0\n"
        "try:\n"
        "    while made < 200:\n"
        "        if os.fork() == 0: time.sleep(1000)\n"
        "        made += 1\n"
        "except BlockingIOError: pass\n"
        "print(made)\n"
    )
    assert run(local, code, replace(LIMITS, pids=20)).code == 0
    assert output(local) == b"19\n"


def test_cpu_time_is_limited_to_the_cores_given(local: LocalHarness, offered: Mapping[str, str]) -> None:
    needs(offered, "cpus")
    code = (
        "import os, time\n"
        "begin = time.monotonic(); end = begin + 1.5\n"
        "pids = []\n"
        "for _ in range(3):\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        "        while time.monotonic() < end: pass\n"
        "        os._exit(0)\n"
        "    pids.append(pid)\n"
        "for pid in pids: os.waitpid(pid, 0)\n"
        "print(time.monotonic() - begin)\n"
    )
    exit_ = run(local, code, replace(LIMITS, cpus=1))
    assert exit_.usage["cpu_seconds"] <= float(output(local)) * 1.15 + 0.2


def test_a_full_disk_quota_ends_by_disk(local: LocalHarness) -> None:
    code = (
        "import time\n"
        "for number in range(200):\n"
        "    open(f'part-{number}', 'wb').write(b'x' * (1 << 20)); time.sleep(0.02)\n"
        "time.sleep(1000)\n"
    )
    exit_ = run(local, code, replace(LIMITS, storage_mb=20))
    assert (exit_.code, exit_.ended_by) == (137, EndedBy.DISK)
    assert "20 MiB" in exit_.detail
    kept = len(list(local.engine.work_directory("attempt-1").iterdir()))
    assert 20 <= kept < 150


def test_one_file_cannot_outgrow_the_disk_limit_at_all(local: LocalHarness) -> None:
    code = (
        "import errno\n"
        "with open('big', 'wb', buffering=0) as file:\n"
        "    try:\n"
        "        while True: file.write(b'x' * (1 << 20))\n"
        "    except OSError as error: print(errno.errorcode[error.errno], file.tell() >> 20)\n"
    )
    run(local, code, replace(LIMITS, storage_mb=8, shm_mb=8))
    assert output(local) in {b"EFBIG 8\n", b""}  # empty: the watch was faster than the print


def test_shared_memory_is_private_and_of_the_size_asked_for(
    local: LocalHarness, offered: Mapping[str, str]
) -> None:
    needs(offered, "shm")
    code = (
        "import os\n"
        "s = os.statvfs('/dev/shm'); print(s.f_blocks * s.f_frsize >> 20, os.listdir('/dev/shm'))\n"
        "try: open('/dev/shm/trainshed-test', 'wb').write(b'x' * (40 << 20))\n"
        "except OSError as error: print(error.strerror)\n"
    )
    run(local, code, replace(LIMITS, shm_mb=32))
    assert output(local) == b"32 []\nNo space left on device\n"
    assert not Path("/dev/shm/trainshed-test").exists()


def test_an_attempt_says_how_its_limits_are_enforced(local: LocalHarness, offered: Mapping[str, str]) -> None:
    observation = local.run("attempt-1", Behaviour.SUCCEEDS)
    assert observation.enforcement == {**offered, **local.says}
    known = {"cpus", "memory", "pids", "shm", "mounts", "storage", "log", "tree", "isolation"}
    assert set(offered) == known


def test_real_limits_never_exceed_the_machine(tmp_path: Path) -> None:
    harness = LocalHarness(tmp_path, simulate_gpus={"H100": 4})
    node = harness.engine.nodes()[0]
    assert node.simulated
    assert node.amounts.gpus == 4
    assert node.amounts.memory_mb >= 4 * 256 * 1024
    limits = Limits(cpus=64, memory_mb=1 << 20, storage_mb=100 << 10, shm_mb=512 << 10)
    harness.engine.launch(harness.program("attempt-1", ["true"], limits=limits, gpus=node.gpus[:2]))
    assert harness.until("attempt-1", SETTLED).exit.code == 0
    harness.close()


def test_the_timeout_holds_while_no_server_is_there(local: LocalHarness) -> None:
    local.engine.launch(
        local.shell("attempt-1", "trap '' TERM; echo >> $STARTS; sleep 1000", timeout=1, grace=0.3)
    )
    local.running("attempt-1")
    begin = time.monotonic()
    local.engine.close()
    path = local.folder("attempt-1") / "exit.json"
    wait_until(path.exists)
    assert time.monotonic() - begin < 15
    local.engine = type(local.engine)(local.root)
    assert local.observe("attempt-1").exit.ended_by is EndedBy.TIMEOUT


def test_an_idle_attempt_costs_little_memory(local: LocalHarness) -> None:
    ids = [f"attempt-{number}" for number in range(10)]
    local.engine.launch_many([local.program(name, ["sleep", "1000"]) for name in ids])
    private = []
    for name in ids:
        local.until(name, {Phase.RUNNING})
        pid = local.shim_pid(name)
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
        private.append(sum(int(line.split()[1]) for line in lines if line.startswith("Private_")))
    # CPython 3.11 counts references to None and to small numbers, and counts calls inside bytecode.
    most = 1024 if sys.version_info >= (3, 12) else 1360
    assert sorted(private)[len(private) // 2] < most
