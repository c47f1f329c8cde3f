"""Logins without a password among the members of a gang (C39), with a real OpenSSH."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from engines.conformance import SETTLED, written
from engines.gangs import gang, settled
from engines.machinery import IsolatedHarness, LocalHarness
from trainshed.engines import EndedBy, Launch, Ssh
from trainshed.jobkit import frames, linux

needs_ssh = pytest.mark.skipif(
    not (shutil.which("sshd", path="/usr/sbin:/usr/bin") and shutil.which("ssh") and linux.may_mount()),
    reason="needs OpenSSH's server and client, and the right to mount (scripts/install-ssh)",
)


def made(folder: Path, name: str) -> tuple[str, str]:
    """A key pair as the controller would make it."""
    place = folder / name
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(place)]
    subprocess.run(command, check=True)
    return place.read_text(), place.with_suffix(".pub").read_text()


@pytest.fixture(scope="session")
def ssh(tmp_path_factory: pytest.TempPathFactory) -> Ssh:
    folder = tmp_path_factory.mktemp("keys")
    private, public = made(folder, "user")
    hosts = [made(folder, f"host-{rank}") for rank in range(2)]
    return Ssh(private, public, tuple(key for key, _ in hosts), tuple(key for _, key in hosts))


REACHES_ALL = """
for file in /root/hostfile /root/hostfile.hostname; do
  while read host slots; do
    ssh -o BatchMode=yes "$host" 'echo "$(head -1 /root/hostfile) $TRAINSHED_ATTEMPT_ID"' < /dev/null || exit
  done < $file
done
touch "$DONE/$RANK"
while [ "$(ls "$DONE" | wc -l)" -lt 2 ]; do sleep 0.05; done
"""


def reaching(local: LocalHarness, ssh: Ssh, done: Path, gang_id: str) -> list[Launch]:
    done.mkdir()
    launches = gang(local, [REACHES_ALL] * 2, gang_id=gang_id, shared={"ssh": ssh})
    return [replace(each, env={**each.env, "DONE": str(done)}) for each in launches]


@needs_ssh
def test_T9_C39_replicas_reach_each_other_through_both_files_and_only_their_own(
    local: LocalHarness, ssh: Ssh, tmp_path: Path
) -> None:
    before = set(Path("/root").iterdir())
    gangs = [reaching(local, ssh, tmp_path / name, name) for name in ("one", "two")]
    for launches in gangs:
        assert local.engine.launch_many(launches) == {}
    for launches in gangs:
        ended = settled(local, launches)
        for each, seen in zip(launches, ended, strict=True):
            log = local.engine.logs(each.attempt_id).frames
            assert seen.exit.code == 0, (seen, written(log, frames.STDERR))
            hosts = [f"{each.gang.id}.{rank}" for rank in range(2)] * 2
            first = f"{each.gang.meeting.hosts[0].address} slots=1"
            assert written(log).decode().splitlines() == [f"{first} {host}" for host in hosts]
            assert local.engine.release(each.attempt_id).confirmed
            assert local.processes(each.attempt_id) == set()
    assert set(Path("/root").iterdir()) == before


@needs_ssh
def test_C39_keys_are_readable_by_their_owner_alone_and_go_with_the_program(
    local: LocalHarness, ssh: Ssh
) -> None:
    launches = gang(
        local, ["stat -c '%a %n' /root/.ssh /root/.ssh/*; ls -A /root/.ssh"] * 2, shared={"ssh": ssh}
    )
    local.engine.launch_many(launches)
    settled(local, launches)
    said = written(local.engine.logs(launches[0].attempt_id).frames).decode()
    assert "700 /root/.ssh\n" in said
    assert "600 /root/.ssh/id_ed25519\n" in said
    for place in local.root.rglob("*"):
        if place.is_file():
            assert b"PRIVATE KEY" not in place.read_bytes(), place


@needs_ssh
def test_C39_a_port_that_is_taken_is_said_to_be_and_nothing_starts(local: LocalHarness, ssh: Ssh) -> None:
    launches = gang(local, ["true"] * 2, shared={"ssh": ssh})
    taken = __import__("socket").create_server((launches[1].gang.meeting.hosts[1].address, ssh.port))
    with taken:
        local.engine.launch_many(launches)
        first, second = settled(local, launches)
    assert (second.exit.code, second.exit.ended_by) == (None, EndedBy.NOT_STARTED)
    assert second.exit.detail.startswith("SSH_UNAVAILABLE: port 2222 of 127.")
    assert first.exit.ended_by is EndedBy.GANG
    assert [local.starts(each.attempt_id) for each in launches] == [0, 0]


def test_C39_without_the_right_to_mount_logins_are_unavailable(
    local: LocalHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linux, "may_mount", lambda: False)
    local.reopen()
    keys = Ssh("private", "ssh-ed25519 AAAA", ("host",), ("ssh-ed25519 BBBB",))
    [launch] = gang(local, ["true"], shared={"ssh": keys})
    local.engine.launch(launch)
    ended = local.until(launch.attempt_id, SETTLED).exit
    assert ended.ended_by is EndedBy.NOT_STARTED
    assert ended.detail.startswith("SSH_UNAVAILABLE: the server may not mount")


def test_C39_isolated_programs_have_no_logins(tmp_path: Path) -> None:
    harness = IsolatedHarness(tmp_path)
    try:
        keys = Ssh("private", "ssh-ed25519 AAAA", ("host",), ("ssh-ed25519 BBBB",))
        [launch] = gang(harness, ["true"], shared={"ssh": keys})
        harness.engine.launch(launch)
        detail = harness.until(launch.attempt_id, SETTLED).exit.detail
        assert detail.startswith("SSH_UNAVAILABLE: programs run apart from the machine (bubblewrap)")
    finally:
        harness.close()
