"""Programs that behave badly all end cleanly, and nothing they wrote is lost."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from engines.conformance import SETTLED, dropped, read_frames, written
from engines.containers import image_way
from engines.machinery import WAYS, LocalHarness, each_way
from support.waiting import wait_until
from trainshed.engines import EndedBy, Exit, Limits, Phase, TreeFile
from trainshed.jobkit import frames

DAEMON = """
import os, sys, time
def daemon(what):
    if os.fork():
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    os.chdir("/")
    what()
"""


# How output is kept does not depend on where a program runs; these take the most time.
HEAVY = ("two_hundred_megabytes", "above_its_limit", "index_points")


@pytest.fixture(params=[*WAYS, "podman"])
def local(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalHarness]:
    if request.param != "podman":
        yield from each_way(request.param, tmp_path)
    elif any(word in request.node.name for word in HEAVY):
        pytest.skip("output is kept alike")
    else:
        yield from image_way(tmp_path, request.getfixturevalue("image_ground"))


def run(local: LocalHarness, text: str, **settings: object) -> Exit:
    local.engine.launch(local.python("attempt-1", text, **settings))
    observation = local.until("attempt-1", SETTLED)
    assert observation.phase is Phase.EXITED
    assert observation.exit is not None
    return observation.exit


def log_of(local: LocalHarness) -> Path:
    return local.engine.logs("attempt-1").frames


def test_P6_daemons_that_left_the_session_end_with_the_program(local: LocalHarness) -> None:
    code = DAEMON + "for _ in range(5): daemon(lambda: time.sleep(1000))\nprint('parent done')"
    assert run(local, code).code == 0
    assert local.processes("attempt-1") == set()
    assert local.engine.release("attempt-1").confirmed


def test_P6_daemons_that_ignore_sigterm_and_clear_their_environment_end_too(local: LocalHarness) -> None:
    code = DAEMON + (
        "import signal\n"
        "def deaf():\n"
        "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "    os.execve('/bin/sleep', ['sleep', '987654'], {})\n"
        "daemon(deaf)\n"
    )
    assert run(local, code).code == 0
    assert local.engine.release("attempt-1").confirmed
    assert os.system("pgrep -x -f 'sleep 987654' > /dev/null") != 0


def test_P6_a_program_that_forks_without_end_is_ended(local: LocalHarness) -> None:
    code = (
        "import os, time\n"
        "end = time.monotonic() + 0.3\n"
        "while time.monotonic() < end:\n"
        "    if os.fork() == 0:\n"
        "        os.setsid()\n"
        "        while True:\n"
        "            if os.fork(): os._exit(0)\n"
    )
    run(local, code, limits=Limits(cpus=1, memory_mb=512, storage_mb=512, shm_mb=64, pids=64))
    assert local.processes("attempt-1") == set()
    assert local.engine.release("attempt-1").confirmed


def test_a_program_that_closes_its_streams_runs_on_to_its_own_end(local: LocalHarness) -> None:
    code = (
        "import os, time; print('before', flush=True); os.close(1); os.close(2); time.sleep(0.2); os._exit(7)"
    )
    assert run(local, code).code == 7
    assert written(log_of(local)) == b"before\n"


def test_P8_a_program_that_exits_while_children_hold_the_pipe_ends_the_log(local: LocalHarness) -> None:
    code = (
        DAEMON + "daemon(lambda: (print('from the daemon', flush=True), time.sleep(1000)))\ntime.sleep(0.3)\n"
    )
    assert run(local, code).code == 0
    assert written(log_of(local)) == b"from the daemon\n"
    assert read_frames(log_of(local))[-1][0] == frames.EOF


def test_P8_two_hundred_megabytes_without_a_line_end_are_kept(local: LocalHarness) -> None:
    code = (
        "import sys\n"
        "block = bytes(range(11, 256)) * 1337\n"
        "for _ in range(640): sys.stdout.buffer.write(block)\n"
    )
    exit_ = run(local, code)
    block = bytes(range(11, 256)) * 1337
    expected = hashlib.sha256()
    for _ in range(640):
        expected.update(block)
    assert exit_.code == 0
    assert exit_.usage["log_bytes"] == 640 * len(block) > 200_000_000
    seen = hashlib.sha256()
    for stream, flags, payload in read_frames(log_of(local)):
        assert len(payload) <= frames.MAX_PAYLOAD
        if stream == frames.STDOUT:
            assert flags == frames.CONTINUES
            seen.update(payload)
    assert seen.digest() == expected.digest()


def test_P8_any_byte_values_are_kept_and_streams_are_told_apart(local: LocalHarness) -> None:
    code = (
        "import sys\n"
        "sys.stdout.buffer.write(bytes(range(256)) * 3); sys.stdout.flush()\n"
        "sys.stderr.buffer.write(b'\\xff\\xfe\\x00 not utf-8 \\xc3'); sys.stderr.flush()\n"
    )
    assert run(local, code).code == 0
    assert written(log_of(local), frames.STDOUT) == bytes(range(256)) * 3
    assert written(log_of(local), frames.STDERR) == b"\xff\xfe\x00 not utf-8 \xc3"


def test_an_unfinished_line_is_shown_before_it_ends(local: LocalHarness) -> None:
    code = "import time; print('step 1 ...', end='', flush=True); time.sleep(1000)"
    local.engine.launch(local.python("attempt-1", code))
    wait_until(lambda: log_of(local).exists() and written(log_of(local)) == b"step 1 ...")
    assert read_frames(log_of(local))[0][1] == frames.CONTINUES


def test_what_was_written_before_a_kill_is_in_the_log(local: LocalHarness) -> None:
    code = "import os, signal; os.write(1, b'x' * 60000 + b'end'); os.kill(os.getpid(), signal.SIGKILL)"
    assert run(local, code).code == 137
    assert written(log_of(local)) == b"x" * 60000 + b"end"


def test_P8_output_above_its_limit_is_cut_and_flagged(local: LocalHarness) -> None:
    limits = Limits(cpus=1, memory_mb=512, storage_mb=512, shm_mb=64, log_bytes=1 << 20)
    exit_ = run(local, "import sys\nfor n in range(500000): print(f'line {n}')", limits=limits)
    total = sum(len(f"line {n}\n") for n in range(500000))
    kept = written(log_of(local))
    assert exit_.code == 0
    assert 0.9 * (1 << 20) < len(kept) <= 1 << 20
    assert kept.startswith(b"line 0\nline 1\n")
    assert kept.endswith(b"\n")
    assert dropped(log_of(local)) == total - len(kept) == exit_.usage["dropped_log_bytes"]


def test_the_index_points_at_frames_about_every_256_kib(local: LocalHarness) -> None:
    run(local, "import sys\nfor n in range(300000): print(f'line {n}')")
    data = log_of(local).read_bytes()
    index = local.engine.logs("attempt-1").index.read_bytes()
    offsets = [frames.OFFSET.unpack_from(index, at)[0] for at in range(0, len(index), 8)]
    starts, at = set(), 0
    while at < len(data):
        starts.add(at)
        at += frames.HEADER.size + frames.HEADER.unpack_from(data, at)[0]
    assert set(offsets) <= starts
    gaps = [later - earlier for earlier, later in zip([0, *offsets], [*offsets, len(data)], strict=True)]
    assert max(gaps) <= frames.INDEX_EVERY + frames.MAX_PAYLOAD + frames.HEADER.size


def test_sigterm_reaches_workers_that_left_the_group_and_their_last_words_are_kept(
    local: LocalHarness,
) -> None:
    code = DAEMON + (
        "import signal\n"
        "def worker():\n"
        "    signal.signal(signal.SIGTERM, lambda *_: (print('worker saved', flush=True), os._exit(0)))\n"
        "    print('worker ready', flush=True)\n"
        "    while True: time.sleep(100)\n"
        "daemon(worker)\n"
        "def save(*_): time.sleep(0.5); print('main saved', flush=True); os._exit(0)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "while True: time.sleep(100)\n"
    )
    local.engine.launch(local.python("attempt-1", code))
    wait_until(lambda: log_of(local).exists() and b"worker ready\n" in written(log_of(local)))
    local.engine.stop("attempt-1", grace_seconds=20)
    exit_ = local.until("attempt-1", SETTLED).exit
    assert exit_ is not None
    assert (exit_.code, exit_.ended_by) == (0, EndedBy.STOP)
    assert written(log_of(local)).splitlines() == [b"worker ready", b"worker saved", b"main saved"]


def test_a_stopped_process_still_hears_a_stop(local: LocalHarness) -> None:
    local.engine.launch(local.shell("attempt-1", "kill -STOP $$; sleep 1000"))
    local.running("attempt-1")
    local.engine.stop("attempt-1", grace_seconds=0.5)
    exit_ = local.until("attempt-1", SETTLED).exit
    assert exit_ is not None
    assert exit_.ended_by is EndedBy.STOP


def test_a_program_that_deletes_its_directory_still_ends_and_is_released(local: LocalHarness) -> None:
    local.engine.launch(local.shell("attempt-1", 'echo x > out; rm -rf "$PWD"; exit 0'))
    assert local.until("attempt-1", SETTLED).exit.code == 0
    assert local.engine.release("attempt-1").confirmed


def test_a_program_starts_with_default_signals_and_no_stray_descriptors(local: LocalHarness) -> None:
    code = (
        "import os, signal, sys\n"
        "numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)\n"
        "print([number for number in numbers if signal.getsignal(number) == signal.SIG_IGN])\n"
        "status = dict(line.split(':', 1) for line in open('/proc/self/status'))\n"
        "print(int(status['SigBlk'], 16), os.read(0, 1), os.getsid(0) == os.getpid())\n"
        "print(sorted(os.listdir('/proc/self/fd')))\n"
    )
    run(local, code)
    assert written(log_of(local)) == b"[]\n0 b'' True\n['0', '1', '2', '3']\n"


def test_programs_do_not_see_the_servers_settings(
    local: LocalHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINSHED_ADMIN_KEY", "secret")
    monkeypatch.setenv("ENVLOOP_API_KEY", "secret")
    monkeypatch.setenv("LC_TIME", "C")
    launch = local.program(
        "attempt-1", [local.interpreter, "-c", "import os; print(sorted(os.environ))"], env={"OWN": "1"}
    )
    local.engine.launch(launch)
    local.until("attempt-1", SETTLED)
    names = set(eval(written(log_of(local))))  # our own program printed a list of strings
    assert {"OWN", "PATH", "HOME", "TRAINSHED_ATTEMPT_ID", "CUDA_VISIBLE_DEVICES"} <= names
    assert names & {"LC_TIME"} == local.taken_over
    assert not names & {"TRAINSHED_ADMIN_KEY", "ENVLOOP_API_KEY", "PYTEST_CURRENT_TEST"}


def test_a_relative_program_runs_in_the_work_directory_with_its_mode_bits(
    local: LocalHarness, tmp_path: Path
) -> None:
    source = tmp_path / "blob"
    source.write_bytes(b"#!/bin/sh\nprintf changed > data.txt; pwd\n")
    data = tmp_path / "data"
    data.write_bytes(b"original")
    files = [TreeFile("bin/run", source, executable=True), TreeFile("data.txt", data)]
    local.engine.launch(local.program("attempt-1", ["bin/run"], files=files))
    assert local.until("attempt-1", SETTLED).exit.code == 0
    work = local.engine.work_directory("attempt-1")
    assert written(log_of(local)).decode().strip() == local.directory("attempt-1")
    assert (work / "data.txt").read_bytes() == b"changed"
    assert data.read_bytes() == b"original"


def test_a_missing_source_file_means_that_it_did_not_start(local: LocalHarness, tmp_path: Path) -> None:
    files = [TreeFile("main.sh", tmp_path / "nowhere")]
    local.engine.launch(local.program("attempt-1", ["true"], files=files))
    exit_ = local.until("attempt-1", SETTLED).exit
    assert exit_.ended_by is EndedBy.NOT_STARTED
    assert "nowhere" in exit_.detail
    assert local.engine.release("attempt-1").confirmed


def test_a_killed_shim_leaves_a_log_that_ends(local: LocalHarness) -> None:
    local.engine.launch(local.program("attempt-1", ["sh", "-c", "echo hello; exec sleep 1000"]))
    wait_until(lambda: log_of(local).exists() and written(log_of(local)) == b"hello\n")
    local.lose("attempt-1")
    with log_of(local).open("ab") as log:
        log.write(frames.header(100, frames.STDOUT, 0, 1) + b"torn")
    assert local.engine.release("attempt-1").confirmed
    assert [stream for stream, _, _ in read_frames(log_of(local))] == [frames.STDOUT, frames.EOF]
