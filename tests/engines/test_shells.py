"""Shells beside programs of the local engine: where they are, and what they leave alone (C50, rule 20)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from engines.conformance import SETTLED, Behaviour, written
from engines.containers import ImageHarness
from engines.gangs import report
from engines.machinery import WAYS, LocalHarness, each_way
from support.terminals import ending, shown
from support.waiting import wait_until
from trainshed.engines import ExitNotice, Phase


@pytest.fixture(params=WAYS)
def either(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalHarness]:
    yield from each_way(request.param, tmp_path)


FACTS = (
    "for each in mnt pid ipc uts net user; do readlink /proc/self/ns/$each; done; id -u; pwd; "
    "while read -r name value; do case $name in NoNewPrivs:|Seccomp:|CapEff:|CapBnd:) echo $name $value;; "
    "esac; done < /proc/self/status; ulimit -f; ulimit -c; while read -r line; do case $line in "
    "*pids*|*memory*|0::*) echo $line;; esac; done < /proc/self/cgroup; echo $TOKEN.$OWN"
)
"""What makes up surroundings, as Bash prints it without any other program but two."""


def facts_of_shell(harness: LocalHarness) -> list[str]:
    shell = harness.engine.open_shell("attempt-1", rows=30, columns=4000)
    try:
        os.write(
            shell.terminal, f"PS1=; echo be''gin; {FACTS}; echo e''nd; ls /proc/self/fd; exit\n".encode()
        )
        text = shown(shell, b"end\r\n").decode().rpartition("begin\r\n")[2].partition("end\r\n")[0]
        assert ending(shell) == 0
    finally:
        shell.close()
    return [line.rpartition("\x1b[?2004l\r")[2] for line in text.splitlines()]


def check_surroundings(harness: LocalHarness) -> None:
    launch = harness.shell("attempt-1", f"{FACTS}; exec sleep 1000")
    secret = replace(launch, secrets={"TOKEN": "hidden-1"}, env={**launch.env, "OWN": "shown-1"})
    harness.engine.launch(secret)
    harness.running("attempt-1")
    frames = harness.engine.logs("attempt-1").frames
    wait_until(lambda: b"shown-1" in written(frames))
    expected = written(frames).decode().splitlines()
    found = facts_of_shell(harness)
    assert found[-1] == "hidden-1.shown-1"
    assert found[:-1] == expected[:-1]  # the last one is masked in the log
    assert len(found) >= 14
    assert harness.observe("attempt-1").phase is Phase.RUNNING
    assert harness.engine.release("attempt-1").confirmed


def test_C50_a_shell_is_where_the_program_is_with_its_rights_and_limits(either: LocalHarness) -> None:
    check_surroundings(either)


def test_C50_a_shell_is_in_the_container_of_the_program(podman: ImageHarness) -> None:
    check_surroundings(podman)


def test_C36_a_shell_is_none_of_the_programs_when_that_is_told_to_save(local: LocalHarness) -> None:
    launch = replace(local.launch("attempt-1", Behaviour.SAVES_WHEN_TOLD), notice=ExitNotice(30.0))
    local.engine.launch(launch)
    local.running("attempt-1")
    shell = local.engine.open_shell("attempt-1", rows=24, columns=80)
    os.write(shell.terminal, b"trap 'exit 9' USR1; echo re''ady\n")
    shown(shell, b"ready")
    local.engine.notify("attempt-1", reason="test", deadline=4_000_000_000.0)
    exit_ = local.until("attempt-1", SETTLED).exit
    assert exit_ is not None
    assert exit_.code == 0
    assert report(local, "attempt-1", "EXIT_NOTICE_SENT").data["processes"] == 1
    assert ending(shell) is None
    shell.close()


def test_P6_a_shell_does_not_outlive_the_watcher_of_its_program(local: LocalHarness) -> None:
    local.engine.launch(local.launch("attempt-1", Behaviour.RUNS_UNTIL_STOPPED))
    local.running("attempt-1")
    shell = local.engine.open_shell("attempt-1", rows=24, columns=80)
    os.write(shell.terminal, b"trap '' HUP TERM; sleep 1000 & echo re''ady\n")
    shown(shell, b"ready")
    local.lose("attempt-1")
    assert ending(shell) is None
    wait_until(lambda: not local.processes("attempt-1"))
    assert local.observe("attempt-1").phase is Phase.LOST
    shell.close()


@pytest.fixture
def gone(local: LocalHarness) -> LocalHarness:
    """An engine whose program took away by what its shim hears of requests."""
    text = "rm -f ../control; mkdir ../shells; ln -s /etc/passwd ../shells/0123456789abcdef; exec sleep 1000"
    local.engine.launch(local.shell("attempt-1", text))
    local.running("attempt-1")
    wait_until((local.folder("attempt-1") / "shells" / "0123456789abcdef").is_symlink)
    return local


def test_C50_a_program_that_takes_its_shims_ears_only_delays_a_shell(gone: LocalHarness) -> None:
    pid = gone.shim_pid("attempt-1")
    shell = gone.engine.open_shell("attempt-1", rows=24, columns=80)
    os.write(shell.terminal, b"exit 5\n")
    assert ending(shell) == 5
    shell.close()
    assert not (gone.folder("attempt-1") / "shells" / "0123456789abcdef").is_symlink()
    assert gone.shim_pid("attempt-1") == pid  # the request that nobody made did nothing to its lock
