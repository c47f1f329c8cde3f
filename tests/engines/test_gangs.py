"""Gangs of real processes: they begin together, and what fails of one ends all, also without a server."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from engines.conformance import SETTLED, written
from engines.gangs import codes, gang, member, running, settled, stage
from engines.machinery import IsolatedHarness, LocalHarness, close_wholly
from support.waiting import wait_until
from trainshed.engines import EndedBy, EngineError, Phase, TreeFile
from trainshed.engines.local import LocalEngine
from trainshed.jobkit import folder

FOREVER = "exec sleep 1000"


def held_back(local: LocalHarness, tmp_path: Path, *, start_seconds: float = 60.0) -> tuple[list, Path]:
    """A gang of three whose last member cannot get ready before the pipe is written to."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    launches = gang(local, ["true"] * 3, start_seconds=start_seconds)
    launches[2] = replace(launches[2], files=[TreeFile("data", gate)])
    return launches, gate


def test_C27_user_code_of_none_starts_before_the_last_shim_reported(
    local: LocalHarness, tmp_path: Path
) -> None:
    launches, gate = held_back(local, tmp_path)
    assert local.engine.launch_many(launches) == {}
    for early in launches[:2]:
        stage(local, early.attempt_id, "ready")
    assert local.observe(launches[2].attempt_id).stage == "starting"
    assert [local.starts(each.attempt_id) for each in launches] == [0, 0, 0]
    gate.write_bytes(b"data")
    ended = settled(local, launches)
    assert [each.exit.code for each in ended] == [0, 0, 0]
    assert [local.starts(each.attempt_id) for each in launches] == [1, 1, 1]
    latest_ready = max(local.engine.reports(each.attempt_id, 0)[0].at for each in launches)
    assert all(each.started_at >= latest_ready for each in ended)
    assert codes(local, launches[0].attempt_id) == ["READY"]


def test_C27_none_starts_when_one_is_not_ready_in_time(local: LocalHarness, tmp_path: Path) -> None:
    launches, _ = held_back(local, tmp_path, start_seconds=0.3)
    local.engine.launch_many(launches)
    first, second = (local.until(each.attempt_id, SETTLED).exit for each in launches[:2])
    for ended in (first, second):
        assert (ended.code, ended.ended_by) == (None, EndedBy.GANG)
        assert "0.3 seconds; missing: rank 2" in ended.detail
    local.engine.stop(launches[2].attempt_id)
    settled(local, launches)
    assert [local.starts(each.attempt_id) for each in launches] == [0, 0, 0]


def test_C27_a_member_that_comes_after_the_time_does_not_start(local: LocalHarness) -> None:
    launches = gang(local, ["true"] * 2, start_seconds=0.2)
    local.engine.launch(launches[0])
    local.until(launches[0].attempt_id, SETTLED)
    local.engine.launch(launches[1])
    ended = local.until(launches[1].attempt_id, SETTLED).exit
    assert (ended.code, ended.ended_by) == (None, EndedBy.GANG)
    assert local.starts(launches[1].attempt_id) == 0


def test_C27_a_stop_of_one_that_waits_keeps_all_from_starting(local: LocalHarness) -> None:
    launches = gang(local, ["true"] * 3)
    local.engine.launch_many(launches[:2])
    stage(local, launches[0].attempt_id, "ready")
    local.engine.stop(launches[0].attempt_id)
    first, second = settled(local, launches[:2])
    assert first.exit.ended_by is EndedBy.STOP
    assert (second.exit.code, second.exit.ended_by) == (None, EndedBy.GANG)
    assert "rank 0 did not start (stop)" in second.exit.detail


@pytest.mark.parametrize("victim", [0, 1])
def test_P3_C27_the_barrier_survives_a_member_whose_shim_is_killed(
    local: LocalHarness, tmp_path: Path, victim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainshed.engines.local.engine._RESCAN_SECONDS", 0.05)
    launches, gate = held_back(local, tmp_path)
    local.engine.launch_many(launches)
    for early in launches[:2]:
        stage(local, early.attempt_id, "ready")
    killed = launches[victim].attempt_id
    pid = local.shim_pid(killed)
    os.kill(pid, signal.SIGKILL)
    local.engine._rescan_at = 0
    wait_until(lambda: (local.pass_time(), folder.holder(local.folder(killed)) != pid)[1])
    gate.write_bytes(b"data")
    assert [each.exit.code for each in settled(local, launches)] == [0, 0, 0]
    assert [local.starts(each.attempt_id) for each in launches] == [1, 1, 1]
    # The first watcher may die between being ready and telling it.
    said = codes(local, killed)
    assert said in (["READY"], ["READY", "READY"])
    numbers = [each.number for each in local.engine.reports(killed, 0)]
    assert numbers == list(range(1, len(said) + 1)), "without gaps"


def test_C27_gangs_of_many_members_start_together(local: LocalHarness) -> None:
    launches = [each for name in "ab" for each in gang(local, ["true"] * 6, gang_id=name)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(local.engine.launch, launches))
    assert {each.exit.code for each in settled(local, launches)} == {0}
    for name in "ab":
        mine = [each.attempt_id for each in launches if each.attempt_id.startswith(name)]
        ready = max(local.engine.reports(each, 0)[0].at for each in mine)
        assert min(local.observe(each).started_at for each in mine) >= ready


# Rule 15: what fails of one ends all


def test_c8_a_member_that_fails_ends_the_others_without_the_server(
    local: LocalHarness, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    launches = gang(local, [f"while [ ! -e {go} ]; do sleep 0.02; done; exit 7", FOREVER, FOREVER])
    local.engine.launch_many(launches)
    running(local, launches)
    local.engine.close()
    go.touch()
    wait_until(lambda: all((local.folder(each.attempt_id) / "exit.json").exists() for each in launches))
    local.reopen()
    first, *others = settled(local, launches)
    assert (first.exit.code, first.exit.ended_by) == (7, EndedBy.EXIT)
    for other in others:
        assert (other.exit.code, other.exit.ended_by) == (143, EndedBy.GANG)
        assert "rank 0 exited with 7" in other.exit.detail
        assert other.exit.finished_at - first.exit.finished_at < 10


def test_c8_a_member_that_succeeds_leaves_the_others_alone(local: LocalHarness, tmp_path: Path) -> None:
    go = tmp_path / "go"
    launches = gang(local, ["true", f"while [ ! -e {go} ]; do sleep 0.02; done"])
    local.engine.launch_many(launches)
    assert local.until(launches[0].attempt_id, SETTLED).exit.code == 0
    local.running(launches[1].attempt_id)
    assert local.observe(launches[1].attempt_id).phase is Phase.RUNNING
    go.touch()
    assert local.until(launches[1].attempt_id, SETTLED).exit.code == 0


def test_c8_the_others_end_when_a_shim_is_killed(local: LocalHarness) -> None:
    launches = gang(local, [FOREVER] * 3)
    local.engine.launch_many(launches)
    running(local, launches)
    os.kill(local.shim_pid(launches[1].attempt_id), signal.SIGKILL)
    ended = settled(local, launches)
    assert [each.phase for each in ended] == [Phase.EXITED, Phase.LOST, Phase.EXITED]
    assert ended[0].exit.ended_by is EndedBy.GANG
    assert "rank 1 is lost" in ended[0].exit.detail


def test_c8_a_member_that_ignores_sigterm_is_killed(local: LocalHarness) -> None:
    deaf = "trap '' TERM; echo >> $STARTS; while :; do sleep 1000; done"
    launches = gang(local, ["sleep 0.3; exit 1", deaf], grace=0.2)
    local.engine.launch_many(launches)
    ended = settled(local, launches)
    assert (ended[1].exit.code, ended[1].exit.ended_by) == (137, EndedBy.GANG)


def test_c8_members_that_are_stopped_say_so_and_not_that_their_gang_ended(local: LocalHarness) -> None:
    launches = gang(local, [FOREVER] * 3)
    local.engine.launch_many(launches)
    running(local, launches)
    for each in launches:
        local.engine.stop(each.attempt_id)
    assert {each.exit.ended_by for each in settled(local, launches)} == {EndedBy.STOP}


def test_c8_members_that_run_out_of_time_together_all_say_so(local: LocalHarness) -> None:
    launches = gang(local, [FOREVER] * 3, timeout=1)
    local.engine.launch_many(launches)
    assert {each.exit.ended_by for each in settled(local, launches)} == {EndedBy.TIMEOUT}


def test_c8_a_gang_is_found_again_after_a_restart_and_still_ends_together(
    local: LocalHarness, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    launches = gang(local, [FOREVER, f"while [ ! -e {go} ]; do sleep 0.02; done; kill -9 $$"])
    local.engine.launch_many(launches)
    running(local, launches)
    local.reopen()
    assert local.engine.launch_many(launches) == {}
    go.touch()
    first, second = settled(local, launches)
    assert second.exit.signal == 9
    assert first.exit.ended_by is EndedBy.GANG
    assert "rank 1 was ended by signal 9" in first.exit.detail
    assert [local.starts(each.attempt_id) for each in launches] == [1, 1]


@pytest.mark.parametrize("ending", ["exit 0", "exec sleep 1000"])
def test_c8_a_member_that_removed_its_own_folder_is_lost_and_ends_the_others(
    local: LocalHarness, ending: str
) -> None:
    launches = gang(local, ["exec sleep 1000", f'rm -rf "$(dirname "$PWD")"; {ending}'])
    local.engine.launch_many(launches)
    first, second = settled(local, launches)
    assert (first.phase, second.phase) == (Phase.EXITED, Phase.LOST)
    assert first.exit.ended_by is EndedBy.GANG
    assert "rank 1 is lost" in first.exit.detail
    for each in launches:
        assert local.engine.release(each.attempt_id).confirmed
        local.engine.forget(each.attempt_id)
    assert not (local.root / "gangs" / "gang-1").exists()


SERVER = textwrap.dedent("""
    import sys
    from dataclasses import replace
    from pathlib import Path
    from trainshed.engines import Gang, Launch, Limits, Role
    from trainshed.engines.local import LocalEngine
    engine = LocalEngine(Path(sys.argv[1]))
    limits = Limits(cpus=1, memory_mb=256, storage_mb=256, shm_mb=16)
    meeting = engine.meet("g", ["local"] * 2, [1, 1])
    for rank in range(2):
        role = Role.WORKER if rank else Role.MASTER
        script = 'while [ ! -e "$GO" ]; do sleep 0.02; done; exit $((RANK * 5))'
        env = {"GO": sys.argv[2], "RANK": str(rank)}
        launch = Launch(f"g.{rank}", ("bash", "-c", script), env, (), (), limits, 60)
        engine.launch(replace(launch, gang=Gang("g", rank, 2, role, "local", meeting)))
    print("launched", flush=True)
    sys.stdin.read()
""")


def test_P14_c8_a_gang_goes_on_and_ends_together_while_its_server_is_killed(
    local: LocalHarness, tmp_path: Path
) -> None:
    root, go = tmp_path / "other", tmp_path / "go"
    command = [sys.executable, "-c", SERVER, str(root), str(go)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout.readline() == b"launched\n"
        wait_until(lambda: all((root / "attempts" / f"g.{rank}/started.json").exists() for rank in (0, 1)))
        server.kill()
    go.touch()
    wait_until(lambda: all((root / "attempts" / f"g.{rank}/exit.json").exists() for rank in (0, 1)))
    engine = LocalEngine(root)
    wait_until(lambda: all(each.exit for each in engine.observe(["g.0", "g.1"]).values()))
    assert engine.observe(["g.1"])["g.1"].exit.code == 5
    for rank in (0, 1):
        assert engine.release(f"g.{rank}").confirmed
    close_wholly(engine)
    del local


# Rule 18: where they meet


def test_C41_a_meeting_is_decided_once_and_its_port_is_free(local: LocalHarness) -> None:
    first = local.engine.meet("gang-1", ["local"] * 3, [8, 8, 1])
    assert len({host.address for host in first.hosts}) == 3
    assert all(host.address.startswith("127.") for host in first.hosts)
    assert [host.slots for host in first.hosts] == [8, 8, 1]
    with closing(socket.create_server(("", first.port))):
        assert local.engine.meet("gang-1", ["local"] * 3, [8, 8, 1]) == first
    local.reopen()
    assert local.engine.meet("gang-1", ["local"] * 3, [8, 8, 1]) == first


def test_C41_no_two_gangs_share_an_address_or_a_port(local: LocalHarness) -> None:
    meetings = [local.engine.meet(f"gang-{number}", ["local"] * 2, [1, 1]) for number in range(20)]
    addresses = [host.address for each in meetings for host in each.hosts]
    names = [host.name for each in meetings for host in each.hosts]
    assert len(set(addresses)) == len(set(names)) == 40
    assert len({each.port for each in meetings}) == 20


def test_C41_a_port_that_somebody_listens_at_everywhere_is_not_chosen(local: LocalHarness) -> None:
    next_port = local.engine.meet("gang-1", ["local"], [1]).port + 2
    with closing(socket.socket()) as taken:
        # Where somebody else has it already, it may be chosen just as little.
        with suppress(OSError):
            taken.bind(("", next_port))
        assert local.engine.meet("gang-2", ["local"], [1]).port != next_port


def test_C41_what_a_released_gang_met_at_is_free_again(local: LocalHarness) -> None:
    launches = gang(local, ["true"] * 2)
    held = launches[0].gang.meeting.hosts[0].address
    local.engine.launch_many(launches)
    settled(local, launches)
    assert local.engine.meet("gang-2", ["local"], [1]).hosts[0].address != held
    for each in launches:
        assert local.engine.release(each.attempt_id).confirmed
    assert local.engine.meet("gang-3", ["local"], [1]).hosts[0].address == held
    assert local.engine.meet("gang-1", ["local"] * 2, [1, 1]) == launches[0].gang.meeting
    for each in launches:
        local.engine.forget(each.attempt_id)
    assert not (local.root / "gangs" / "gang-1").exists()


def test_C41_a_gang_whose_members_left_no_folder_is_forgotten_with_them(local: LocalHarness) -> None:
    held = local.engine.meet("gang-1", ["local"], [1]).hosts[0].address
    local.engine.forget("gang-1.0")
    assert not (local.root / "gangs" / "gang-1").exists()
    assert local.engine.meet("gang-2", ["local"], [1]).hosts[0].address == held


def test_P6_a_sweep_frees_what_gangs_that_nobody_knows_meet_at(local: LocalHarness) -> None:
    known = local.engine.meet("known", ["local"], [1]).hosts[0].address
    stranger = local.engine.meet("stranger", ["local"], [1]).hosts[0].address
    local.engine.sweep({"known.0"})
    assert local.engine.meet("next", ["local"], [1]).hosts[0].address == stranger
    assert local.engine.meet("other", ["local"], [1]).hosts[0].address != known


@pytest.mark.parametrize(
    ("change", "words"),
    [({"rank": 2}, "is not rank 2 of the 2"), ({"size": 3}, "is not rank|members and 2 hosts")],
)
def test_a_member_that_cannot_be_one_is_refused(local: LocalHarness, change: dict, words: str) -> None:
    launch = gang(local, ["true"] * 2)[1]
    wrong = replace(launch, gang=replace(launch.gang, **change))
    with pytest.raises(EngineError, match=words) as refused:
        local.engine.launch(wrong)
    assert refused.value.code == "LAUNCH_INVALID"
    assert local.observe(launch.attempt_id).phase is Phase.ABSENT


# What a member finds


def test_C39_C41_names_and_host_files_are_those_of_ones_own_gang(local: LocalHarness) -> None:
    text = "cat /root/hostfile /root/hostfile.hostname $TRAINSHED_HOSTFILE; getent hosts $MASTER_ADDR"
    text += "; touch /root/.new"
    gangs = [gang(local, [text] * 2, gang_id=name) for name in ("one", "two")]
    for launches in gangs:
        local.engine.launch_many(launches)
    for launches in gangs:
        ended = settled(local, launches)
        hosts = launches[0].gang.meeting.hosts
        by_address = "".join(f"{host.address} slots=1\n" for host in hosts)
        by_name = "".join(f"{host.name} slots=1\n" for host in hosts)
        for each, seen in zip(launches, ended, strict=True):
            said = written(local.engine.logs(each.attempt_id).frames).decode()
            assert said.startswith(by_address + by_name + by_address)
            assert said.splitlines()[-1].split() == [hosts[0].address, hosts[0].name]
            assert seen.exit.code == 0
    assert not Path("/root/hostfile").exists()
    assert not Path("/root/.new").exists()


def test_C39_where_nobody_may_mount_host_files_are_elsewhere_and_a_report_says_so(
    local: LocalHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainshed.jobkit.linux.may_mount", lambda: False)
    local.reopen()
    meeting = local.engine.meet("gang-1", ["local"], [1])
    launch = member(local.shell("gang-1.0", "cat $TRAINSHED_HOSTFILE.hostname"), meeting, 0)
    local.engine.launch(launch)
    assert local.until("gang-1.0", SETTLED).exit.code == 0
    address = meeting.hosts[0].address
    assert written(local.engine.logs("gang-1.0").frames).decode() == f"{address} slots=1\n"
    assert codes(local, "gang-1.0") == ["HOSTFILE_ELSEWHERE", "READY"]


def test_C41_members_with_networks_of_their_own_cannot_meet_and_that_is_said(tmp_path: Path) -> None:
    harness = IsolatedHarness(tmp_path)
    try:
        with pytest.raises(EngineError, match="a network of its own") as refused:
            harness.engine.meet("gang-1", ["local"] * 2, [1, 1])
        assert (refused.value.code, refused.value.retryable) == ("NOT_SUPPORTED_BY_ENGINE", False)
        assert harness.engine.meet("gang-2", ["local"], [1]).port
    finally:
        harness.close()


def test_C39_C41_an_isolated_member_finds_the_files_of_its_gang(tmp_path: Path) -> None:
    harness = IsolatedHarness(tmp_path, network=False)
    try:
        text = "cat $TRAINSHED_HOSTFILE /root/hostfile.hostname; getent hosts $MASTER_ADDR"
        launches = gang(harness, [text] * 2)
        harness.engine.launch_many(launches)
        hosts = launches[0].gang.meeting.hosts
        expected = "".join(f"{host.address} slots=1\n" for host in hosts)
        expected += "".join(f"{host.name} slots=1\n" for host in hosts)
        for each in launches:
            assert harness.until(each.attempt_id, SETTLED).exit.code == 0
            said = written(harness.engine.logs(each.attempt_id).frames).decode()
            assert said.startswith(expected)
            assert said.splitlines()[-1].split() == [hosts[0].address, hosts[0].name]
    finally:
        harness.close()
