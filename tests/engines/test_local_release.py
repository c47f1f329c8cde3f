"""P6: what is released is gone, whoever was killed before; and ``confirmed`` means that it was seen."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from engines.conformance import SETTLED, Behaviour
from engines.machinery import LocalHarness
from support.waiting import wait_until
from trainshed.engines import Phase
from trainshed.engines.local import LocalEngine
from trainshed.jobkit import procs, tree
from trainshed.jobkit.cgroups import Layout

DAEMONS = """
import os, signal, sys, time
for number in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        os.chdir("/")
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        open(sys.argv[1] + str(number), "w").close()
        while True:
            time.sleep(1000)
time.sleep(1000)
"""


def launch_daemons(local: LocalHarness, tmp_path: Path) -> set[int]:
    local.engine.launch(local.program("attempt-1", ["python3", "-c", DAEMONS, str(tmp_path / "ready-")]))
    wait_until(lambda: len(list(tmp_path.glob("ready-*"))) == 3)
    wait_until(lambda: len(local.processes("attempt-1")) == 4, what="the forks in between to end")
    return local.processes("attempt-1")


def reap(pid: int) -> None:
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def test_P6_the_fork_server_ends_what_a_killed_shim_leaves(local: LocalHarness, tmp_path: Path) -> None:
    launch_daemons(local, tmp_path)
    local.lose("attempt-1")
    wait_until(lambda: not local.processes("attempt-1"), what="the orphans' end")
    assert local.until("attempt-1", SETTLED).phase is Phase.LOST
    assert local.engine.release("attempt-1").confirmed


def test_P6_daemons_reparented_to_init_are_found_and_ended(local: LocalHarness, tmp_path: Path) -> None:
    daemons = launch_daemons(local, tmp_path)
    os.kill(local.engine._forks.pid, signal.SIGKILL)
    reap(local.engine._forks.pid)
    local.lose("attempt-1")
    main_ends_with_its_shim = 1
    wait_until(lambda: len(local.processes("attempt-1")) == len(daemons) - main_ends_with_its_shim)
    release = local.engine.release("attempt-1")
    assert release.confirmed
    assert release.killed == 3
    assert local.processes("attempt-1") == set()


@pytest.fixture
def bare(tmp_path: Path):
    """An engine on a machine without control groups."""
    harness = LocalHarness(tmp_path, layout=Layout(None, (), {}))
    yield harness
    harness.close()


def test_P6_without_control_groups_orphans_are_found_by_their_mark(
    bare: LocalHarness, tmp_path: Path
) -> None:
    launch_daemons(bare, tmp_path)
    assert bare.observe("attempt-1").enforcement["memory"] == "not enforced"
    os.kill(bare.engine._forks.pid, signal.SIGKILL)
    reap(bare.engine._forks.pid)
    bare.lose("attempt-1")
    wait_until(lambda: len(bare.processes("attempt-1")) == 3)
    release = bare.engine.release("attempt-1")
    assert release.confirmed
    assert release.checks["processes"] == "none carries the mark"
    assert release.killed == 3
    assert bare.processes("attempt-1") == set()


def test_P6_without_control_groups_a_stop_reaches_the_whole_tree(bare: LocalHarness, tmp_path: Path) -> None:
    launch_daemons(bare, tmp_path)
    bare.engine.stop("attempt-1", grace_seconds=0.3)
    bare.until("attempt-1", SETTLED)
    assert bare.processes("attempt-1") == set()
    assert bare.engine.release("attempt-1").confirmed


def test_P6_without_control_groups_a_sweep_finds_strangers_without_a_folder(
    bare: LocalHarness, tmp_path: Path
) -> None:
    launch_daemons(bare, tmp_path)
    os.kill(bare.engine._forks.pid, signal.SIGKILL)
    reap(bare.engine._forks.pid)
    bare.lose("attempt-1")
    tree.remove(bare.folder("attempt-1"))
    assert list(bare.engine.sweep(())) == ["attempt-1"]
    assert bare.processes("attempt-1") == set()


def test_P6_a_sweep_spares_another_instance(local: LocalHarness, tmp_path: Path) -> None:
    other = LocalEngine(tmp_path / "other")
    local.engine.launch(local.launch("attempt-1", Behaviour.RUNS_UNTIL_STOPPED))
    local.running("attempt-1")
    assert list(other.sweep(())) == []
    assert local.observe("attempt-1").phase is Phase.RUNNING
    other.close()


def test_P6_a_shim_that_does_not_answer_is_killed(
    local: LocalHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainshed.engines.local.release._SHIM_SECONDS", 0.2)
    local.engine.launch(local.launch("attempt-1", Behaviour.RUNS_UNTIL_STOPPED))
    local.running("attempt-1")
    os.kill(local.shim_pid("attempt-1"), signal.SIGSTOP)
    assert local.engine.release("attempt-1").confirmed
    assert local.processes("attempt-1") == set()


def test_P6_a_process_that_cannot_be_killed_is_not_confirmed(
    local: LocalHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    local.engine.launch(local.launch("attempt-1", Behaviour.RUNS_UNTIL_STOPPED))
    local.running("attempt-1")
    shim = local.shim_pid("attempt-1")
    os.kill(shim, signal.SIGSTOP)
    with monkeypatch.context() as patch:
        # The shim does not act and nobody's SIGKILL arrives: what a process stuck in a driver looks like.
        patch.setattr("trainshed.engines.local.release._SHIM_SECONDS", 0.1)
        patch.setattr("trainshed.engines.local.release._KILLED_SHIM_SECONDS", 0.1)
        patch.setattr("trainshed.engines.local.release._GROUP_SECONDS", 0.1)
        patch.setattr("trainshed.engines.local.release._SCAN_SECONDS", 0.1)
        patch.setattr("trainshed.engines.local.release._kill_holder", lambda *_: None)
        patch.setattr("trainshed.jobkit.cgroups.Group.kill", lambda _: 0)
        patch.setattr("trainshed.jobkit.procs.kill_same", lambda *_: False)
        release = local.engine.release("attempt-1")
    assert not release.confirmed
    assert release.checks["shim"] == "still holds its lock"
    assert "cannot be killed" in release.checks["cgroup"]
    assert local.processes("attempt-1")
    os.kill(shim, signal.SIGCONT)
    assert local.engine.release("attempt-1").confirmed
    assert local.processes("attempt-1") == set()


def test_trees_of_any_shape_are_removed(local: LocalHarness) -> None:
    code = (
        "import os\n"
        "os.makedirs('locked/inner'); open('locked/inner/f', 'w').close()\n"
        "os.chmod('locked/inner', 0); os.chmod('locked', 0)\n"
        "for _ in range(3000):\n"
        "    os.mkdir('deep'); open('file', 'w').close(); os.chdir('deep')\n"
        "os.symlink('/', 'root'); os.mkfifo('fifo')\n"
    )
    local.engine.launch(local.python("attempt-1", code))
    assert local.until("attempt-1", SETTLED).exit.code == 0
    assert local.engine.release("attempt-1").confirmed
    assert not local.engine.work_directory("attempt-1").exists()
    assert Path("/etc").is_dir()


def test_P6_a_program_in_the_work_directory_without_mark_or_group_is_found(bare: LocalHarness) -> None:
    script = "cd $PWD; env -i setsid sleep 55555 & exec sleep 1000"
    bare.engine.launch(bare.shell("attempt-1", script))
    bare.running("attempt-1")
    work = bare.engine.work_directory("attempt-1")
    wait_until(lambda: len(procs.standing_in(work.parent)) == 2)
    os.kill(bare.engine._forks.pid, signal.SIGKILL)
    reap(bare.engine._forks.pid)
    bare.lose("attempt-1")
    assert bare.engine.release("attempt-1").confirmed
    assert procs.standing_in(work.parent) == set()


# A program of the server's own user can remove what tells of it

REMOVALS = {
    "the folder": 'rm -rf "$(dirname "$PWD")"',
    "all in it": 'rm -rf "$(dirname "$PWD")"/*',
    "the marker and the lock": 'rm "$(dirname "$PWD")"/started.json "$(dirname "$PWD")"/lock',
}


@pytest.mark.parametrize("ending", ["exit 0", "exec sleep 1000"])
@pytest.mark.parametrize("removal", REMOVALS.values(), ids=REMOVALS)
def test_P3_P6_what_removed_its_own_folder_is_lost_and_never_starts_again(
    local: LocalHarness, removal: str, ending: str
) -> None:
    launch = local.shell("attempt-1", f"{removal}; {ending}")
    local.engine.launch(launch)
    ended = local.until("attempt-1", SETTLED)
    if ended.phase is Phase.EXITED:  # there still was a place for the record
        assert removal != REMOVALS["the folder"]
        assert ended.exit.code == 0
    else:
        assert ended.phase is Phase.LOST
    local.engine.launch(launch)
    local.reopen()
    local.engine.launch(launch)
    assert local.observe("attempt-1").phase in SETTLED
    assert local.engine.release("attempt-1").confirmed
    assert local.processes("attempt-1") == set()
    assert local.observe("attempt-1").phase in SETTLED
    assert local.starts("attempt-1") == 1
    local.engine.forget("attempt-1")
    assert local.observe("attempt-1").phase is Phase.ABSENT
    assert list((local.root / "begun").iterdir()) == []


FIXED = """
mkdir -p kept/deep; touch file kept/deep/file; ln -s {outside} link; mkfifo kept/fifo
chattr +i file kept/deep/file; chattr +a kept; chattr +i kept/deep
"""


@pytest.fixture
def flags(tmp_path: Path) -> None:
    """Skips where nobody may fix files."""
    probe = tmp_path / "probe"
    probe.touch()
    if shutil.which("chattr") is None or subprocess.run(["chattr", "+i", probe], check=False).returncode:
        pytest.skip("needs chattr, a file system with flags and the right to set them")
    tree.unfix(probe)


@pytest.mark.usefixtures("flags")
@pytest.mark.parametrize("last", ["", 'chattr +i "$PWD"', 'chattr +i "$(dirname "$PWD")"'])
def test_P6_files_that_a_program_forbids_to_change_are_removed(
    local: LocalHarness, tmp_path: Path, last: str
) -> None:
    outside = tmp_path / "outside"
    outside.touch()
    subprocess.run(["chattr", "+i", outside], check=True)
    local.engine.launch(local.shell("attempt-1", f"{FIXED.format(outside=outside)}{last}; exec sleep 1000"))
    local.running("attempt-1")
    wait_until(lambda: _fixed(local.engine.work_directory("attempt-1") / "kept" / "deep"))
    wait_until(lambda: not last or "sleep" in _command(local, "attempt-1"))
    try:
        assert local.engine.release("attempt-1").confirmed
        local.engine.forget("attempt-1")
        assert not local.folder("attempt-1").exists()
        assert _fixed(outside)
    finally:
        tree.unfix(outside)


def _fixed(path: Path) -> bool:
    done = subprocess.run(["lsattr", "-d", path], check=False, capture_output=True, text=True)
    return "i" in done.stdout.partition(" ")[0]


def _command(local: LocalHarness, attempt_id: str) -> str:
    names = [Path(f"/proc/{pid}/comm") for pid in local.processes(attempt_id)]
    return " ".join(each.read_text() for each in names if each.exists())
