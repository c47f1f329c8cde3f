"""P3 and P14: whoever is killed, and whenever, user code starts at most once and nothing is forgotten."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from engines.conformance import SETTLED, Behaviour, written
from engines.machinery import LocalHarness, close_wholly
from support.waiting import wait_until
from trainshed.engines import EndedBy, Phase, TreeFile
from trainshed.engines.local import LocalEngine
from trainshed.jobkit import folder, procs

WINDOWS = ["lock", "control", "work", "started.json"]
"""What a shim makes, in this order, up to the start of user code."""


def kill_shim_at(local: LocalHarness, attempt_id: str, name: str) -> bool:
    """SIGKILL the shim as soon as ``name`` is there; whether it was still alive then."""
    path = local.folder(attempt_id)
    while not (path / name).exists():
        if (path / "exit.json").exists():
            return False
    pid = wait_until(lambda: folder.holder(path))
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    wait_until(lambda: not folder.is_held(path))
    return True


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("turn", range(4))
def test_P3_a_shim_killed_at_any_point_starts_user_code_at_most_once(
    local: LocalHarness, window: str, turn: int
) -> None:
    launch = local.shell("attempt-1", "sleep 0.05")
    with ThreadPoolExecutor(1) as pool:
        killed = pool.submit(kill_shim_at, local, "attempt-1", window)
        local.engine.launch(launch)
        was_alive = killed.result(timeout=20)
    if local.observe("attempt-1").phase is Phase.PREPARING:
        assert local.starts("attempt-1") == 0
        local.engine.launch(launch)
    observation = local.until("attempt-1", SETTLED)
    if observation.phase is Phase.LOST:
        assert was_alive
        assert (local.folder("attempt-1") / "started.json").exists()
    local.engine.launch(launch)
    assert local.engine.release("attempt-1").confirmed
    assert local.starts("attempt-1") <= 1
    assert local.processes("attempt-1") == set()


def test_P3_an_intent_without_a_shim_is_preparing_and_starts_once(local: LocalHarness) -> None:
    launch = local.shell("attempt-1", "true")
    local.engine._record_intent(local.folder("attempt-1"), launch)  # the crash: recorded, never asked for
    local.reopen()
    assert local.observe("attempt-1").phase is Phase.PREPARING
    local.engine.launch(launch)
    assert local.until("attempt-1", SETTLED).phase is Phase.EXITED
    assert local.starts("attempt-1") == 1


def test_P3_half_a_folder_is_absent_and_can_be_launched(local: LocalHarness) -> None:
    path = local.folder("attempt-1")
    path.mkdir()
    (path / ".launch.json.1.abc").write_text('{"half')
    assert local.observe("attempt-1").phase is Phase.ABSENT
    assert local.run("attempt-1", Behaviour.SUCCEEDS).phase is Phase.EXITED


def test_P7_what_an_interrupted_preparation_left_is_not_in_the_work_directory(
    local: LocalHarness, tmp_path: Path
) -> None:
    source = tmp_path / "blob"
    source.write_bytes(b"whole")
    launch = local.program("attempt-1", ["ls", "-A"], files=[TreeFile("main.sh", source)])
    local.engine._record_intent(local.folder("attempt-1"), launch)
    work = local.folder("attempt-1") / "work"
    (work / "stale").mkdir(parents=True)
    (work / "main.sh").write_bytes(b"ha")
    local.engine.launch(launch)
    local.until("attempt-1", SETTLED)
    assert written(local.engine.logs("attempt-1").frames) == b"main.sh\n"
    assert (work / "main.sh").read_bytes() == b"whole"


def test_P3_a_marker_whose_content_did_not_survive_still_counts(local: LocalHarness) -> None:
    launch = local.shell("attempt-1", "true")
    local.engine._record_intent(local.folder("attempt-1"), launch)
    (local.folder("attempt-1") / "started.json").touch()  # a power loss kept the name only
    local.engine.launch(launch)
    observation = local.observe("attempt-1")
    assert observation.phase is Phase.LOST
    assert observation.started_at is not None
    assert local.starts("attempt-1") == 0


def test_P3_a_stop_that_was_recorded_before_a_crash_holds(local: LocalHarness) -> None:
    path = local.folder("attempt-1")
    path.mkdir()
    folder.write_durably(path, folder.STOP, {"grace": 0})  # the crash: before the exit record
    assert local.observe("attempt-1").exit.ended_by is EndedBy.STOP
    local.engine.launch(local.shell("attempt-1", "true"))
    assert local.until("attempt-1", SETTLED).exit.ended_by is EndedBy.STOP
    assert local.starts("attempt-1") == 0


def test_a_stop_during_a_long_preparation_ends_it(local: LocalHarness, tmp_path: Path) -> None:
    fifo = tmp_path / "never-ending"
    os.mkfifo(fifo)
    launch = local.program("attempt-1", ["true"], files=[TreeFile("data", fifo)])
    local.engine.launch(launch)
    wait_until((local.folder("attempt-1") / "work").exists)
    assert local.observe("attempt-1").phase is Phase.PREPARING
    local.engine.stop("attempt-1")
    assert local.until("attempt-1", SETTLED).exit.ended_by is EndedBy.STOP


def test_a_request_lost_with_the_fork_server_is_made_again(
    local: LocalHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(local.engine._forks, "submit", lambda *_: None)
        local.engine.launch(local.shell("attempt-1", "true"))
    assert local.observe("attempt-1").phase is Phase.PREPARING
    monkeypatch.setattr("trainshed.engines.local.engine._RESCAN_SECONDS", 0.05)
    local.engine._rescan_at = 0
    assert local.until("attempt-1", SETTLED).phase is Phase.EXITED


def test_a_new_fork_server_takes_the_place_of_a_killed_one(local: LocalHarness) -> None:
    local.run("attempt-1", Behaviour.SUCCEEDS)
    os.kill(local.engine._forks.pid, signal.SIGKILL)
    os.waitid(os.P_PID, local.engine._forks.pid, os.WEXITED | os.WNOWAIT)
    assert local.run("attempt-2", Behaviour.SUCCEEDS).phase is Phase.EXITED


def test_P14_attempts_outlive_the_fork_server_and_are_watched_on(local: LocalHarness) -> None:
    local.engine.launch(local.shell("attempt-1", "read -t 0.5 < <(sleep 1000); echo late; exit 5"))
    local.running("attempt-1")
    os.kill(local.engine._forks.pid, signal.SIGKILL)
    observation = local.until("attempt-1", SETTLED)
    assert observation.phase is Phase.EXITED
    assert observation.exit.code == 5
    assert written(local.engine.logs("attempt-1").frames) == b"late\n"


SERVER = textwrap.dedent("""
    import sys
    from pathlib import Path
    from trainshed.engines import Launch, Limits
    from trainshed.engines.local import LocalEngine
    engine = LocalEngine(Path(sys.argv[1]))
    limits = Limits(cpus=1, memory_mb=256, storage_mb=256, shm_mb=16)
    script = 'echo started; while [ ! -e "$GO" ]; do sleep 0.02; done; echo went on; exit 4'
    engine.launch(Launch("attempt-1", ("bash", "-c", script), {"GO": sys.argv[2]}, (), (), limits, 60))
    print("launched", flush=True)
    sys.stdin.read()
""")


def test_P14_a_program_goes_on_while_no_server_is_there_and_the_next_one_finds_it(
    local: LocalHarness, tmp_path: Path
) -> None:
    root, go = tmp_path / "other", tmp_path / "go"
    command = [sys.executable, "-c", SERVER, str(root), str(go)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout.readline() == b"launched\n"
        frames = root / "attempts" / "attempt-1" / "log.frames"
        wait_until(lambda: frames.exists() and written(frames) == b"started\n")
        server.kill()
    engine = LocalEngine(root)
    assert engine.observe(["attempt-1"])["attempt-1"].phase is Phase.RUNNING
    go.touch()
    wait_until(lambda: engine.observe(["attempt-1"])["attempt-1"].phase is Phase.EXITED)
    assert engine.observe(["attempt-1"])["attempt-1"].exit.code == 4
    assert written(engine.logs("attempt-1").frames) == b"started\nwent on\n"
    assert engine.release("attempt-1").confirmed
    close_wholly(engine)


def test_P14_the_fork_server_leaves_when_its_last_shim_did(local: LocalHarness) -> None:
    local.engine.launch(local.launch("attempt-1", Behaviour.RUNS_UNTIL_STOPPED))
    local.running("attempt-1")
    first = local.engine._forks.pid
    local.reopen()
    assert procs.start_time(first) is not None
    local.engine.stop("attempt-1", grace_seconds=0)
    local.until("attempt-1", SETTLED)
    wait_until(lambda: procs.start_time(first) is None)
