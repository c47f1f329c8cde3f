"""Under bubblewrap a program sees its own folder and nobody else; without it nothing runs at all."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from engines.conformance import LIMITS, SETTLED, Behaviour, written
from engines.machinery import LocalHarness, each_way, public_interpreter
from support.waiting import wait_until
from trainshed.engines import EndedBy, EngineError, Phase, TreeFile
from trainshed.engines.local import DEFAULT_USER, Isolation, LocalEngine, describe, why_impossible
from trainshed.jobkit import procs

LOOK = textwrap.dedent("""
    import errno, json, os, socket, sys
    def tried(what, *arguments):
        try:
            what(*arguments)
        except OSError as error:
            return errno.errorcode[error.errno]
        return "done"
    def read(path): open(path, "rb").read()
    def write(path): open(path, "wb").write(b"x")
    def connect(port): socket.create_connection(("127.0.0.1", int(port)), timeout=5).close()
""")


@pytest.fixture
def isolated(tmp_path: Path) -> Iterator[LocalHarness]:
    yield from each_way("bubblewrap", tmp_path)


@pytest.fixture
def seen_from_outside() -> Iterator[LocalHarness]:
    """An engine in a server's data folder that lies where a program would find it: not below /tmp."""
    above = "/var/lib" if os.geteuid() == 0 else Path.home()
    with tempfile.TemporaryDirectory(dir=above, prefix="trainshed-test-") as path:
        yield from each_way("bubblewrap", Path(path))


def look(local: LocalHarness, code: str, name: str = "attempt-1", **settings: object) -> Any:
    """What a program in a sandbox answers, as JSON."""
    local.engine.launch(local.python(name, f"{LOOK}\nprint(json.dumps({code}))", **settings))
    observation = local.until(name, SETTLED)
    log = local.engine.logs(name).frames
    assert observation.exit is not None
    assert observation.exit.code == 0, log.read_bytes()
    return json.loads(written(log))


def test_the_servers_data_and_other_attempts_are_not_there(seen_from_outside: LocalHarness) -> None:
    local, data = seen_from_outside, seen_from_outside.path
    (data / "owner.key").write_text("secret")
    for path, mode in ((data / "owner.key", 0o644), (data, 0o755), (local.root, 0o755)):
        path.chmod(mode)  # it is not the mode that protects them
    local.engine.launch(local.launch("attempt-2", Behaviour.RUNS_UNTIL_STOPPED))
    local.running("attempt-2")
    other = local.engine.work_directory("attempt-2")
    code = (
        f"[os.listdir({str(data)!r}), tried(read, {str(data / 'owner.key')!r}), "
        f"tried(os.listdir, {str(other)!r}), tried(write, {str(data / 'new')!r})]"
    )
    listing, key, attempt, new = look(local, code)
    assert (listing, key, attempt) == ([], "ENOENT", "ENOENT")
    assert new in {"EROFS", "EACCES"}
    assert other.is_dir()


def test_no_other_process_is_seen_or_reached(isolated: LocalHarness) -> None:
    isolated.engine.launch(isolated.launch("attempt-2", Behaviour.RUNS_UNTIL_STOPPED))
    isolated.running("attempt-2")
    code = (
        "[[open(f'/proc/{pid}/comm').read().strip()"
        " for pid in sorted(filter(str.isdigit, os.listdir('/proc')), key=int)],"
        f" os.getppid(), tried(os.kill, {os.getpid()}, 0)]"
    )
    names, parent, hit = look(isolated, code)
    assert names[:2] == ["bwrap", "cat"]
    assert len(names) == 3
    assert (parent, hit) == (0, "ESRCH")


def test_nothing_of_the_host_can_be_written_and_tmp_is_private(
    isolated: LocalHarness, tmp_path: Path
) -> None:
    places = ["/trainshed-test", "/etc/trainshed-test", "/usr/trainshed-test", "/run/trainshed-test"]
    places += ["/dev/trainshed-test", str(tmp_path / "trainshed-test")]
    code = (
        f"[[tried(write, place) for place in {places}], tried(write, '/tmp/x'), tried(write, '/var/tmp/y'),"
        " os.listdir('/tmp'), tried(write, 'here'), os.getcwd(), os.environ['HOME']]"
    )
    refused, temporary, other, listing, here, directory, home = look(isolated, code)
    assert "done" not in refused
    assert (temporary, other, sorted(listing), here) == ("done", "done", ["x", "y"], "done")
    assert (directory, home) == (isolated.directory("attempt-1"), "/tmp")
    assert (isolated.engine.work_directory("attempt-1") / "here").read_bytes() == b"x"
    assert not [place for place in places if Path(place).exists()]
    assert isolated.engine.release("attempt-1").confirmed
    assert not (isolated.folder("attempt-1") / "tmp").exists()


def test_what_lies_in_tmp_counts_for_the_disk_limit(isolated: LocalHarness) -> None:
    code = (
        "import time\n"
        "for number in range(60): open(f'/tmp/{number}', 'wb').write(b'x' * (1 << 20)); time.sleep(0.02)\n"
        "time.sleep(1000)\n"
    )
    isolated.engine.launch(isolated.python("attempt-1", code, limits=replace(LIMITS, storage_mb=20)))
    assert isolated.until("attempt-1", SETTLED).exit.ended_by is EndedBy.DISK


def test_a_program_has_no_privileges_and_cannot_gain_any(isolated: LocalHarness) -> None:
    code = (
        "[dict(line.rstrip('\\n').split(':\\t') for line in open('/proc/self/status')),"
        " os.getresuid(), os.getgroups()]"
    )
    status, users, groups = look(isolated, code)
    assert [int(status[name], 16) for name in ("CapEff", "CapPrm", "CapInh", "CapBnd", "CapAmb")] == [0] * 5
    assert status["NoNewPrivs"] == "1"
    if os.geteuid() == 0:
        assert (users, groups) == ([DEFAULT_USER] * 3, [])


def test_the_settings_name_the_user_of_programs(isolated: LocalHarness) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can change users")
    isolated.engine._intents._isolation = replace(isolated.engine._isolation, user=54_321)
    users, written_as = look(isolated, "[os.getresuid(), (write('out'), os.stat('out').st_uid)[1]]")
    assert users == [54_321] * 3
    assert written_as == isolated.engine.work_directory("attempt-1").stat().st_uid == 54_321


def test_files_of_a_trial_can_be_changed_by_it_and_its_standard_streams_opened(
    isolated: LocalHarness, tmp_path: Path
) -> None:
    source = tmp_path / "blob"
    source.write_bytes(b"original")
    files = [TreeFile("deep/er/data", source), TreeFile("main", source, executable=True)]
    code = (
        "[tried(write, 'deep/er/data'), tried(write, 'deep/new'), tried(os.unlink, 'main'),"
        " tried(write, '/dev/stderr')]"
    )
    assert look(isolated, code, files=files) == ["done"] * 4
    assert source.read_bytes() == b"original"


def test_only_devices_that_were_assigned_are_there(
    isolated: LocalHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    basic = look(isolated, "sorted(os.listdir('/dev'))")
    assert not [name for name in basic if name.startswith(("nvidia", "sd", "nvme", "kmsg", "mem"))]
    extra = next((path for path in ("/dev/fuse", "/dev/kmsg") if Path(path).exists()), None)
    if extra is None:
        pytest.skip("this machine has no device to hand out")
    monkeypatch.setattr("trainshed.engines.local.gpus.device_files", lambda _: [extra])
    with_device = look(isolated, "sorted(os.listdir('/dev'))", name="attempt-2")
    assert set(with_device) - set(basic) == {Path(extra).name}


class _Greeting(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(204)
        self.end_headers()


@pytest.fixture
def loopback_port() -> Iterator[int]:
    with HTTPServer(("127.0.0.1", 0), _Greeting) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(("private", "reached"), [(True, "ECONNREFUSED"), (False, "done")])
def test_loopback_servers_are_out_of_reach_unless_the_network_is_shared(
    isolated: LocalHarness, loopback_port: int, *, private: bool, reached: str
) -> None:
    isolated.engine._intents._isolation = replace(isolated.engine._isolation, network=private)
    assert look(isolated, f"tried(connect, {loopback_port})") == reached


def test_a_program_can_talk_to_itself_by_name(isolated: LocalHarness) -> None:
    code = (
        "(lambda server: (socket.create_connection((socket.gethostname(), server.getsockname()[1])).close(),"
        " socket.gethostname()))(socket.create_server(('', 0)))[1]"
    )
    assert look(isolated, code) == "localhost"


def test_P6_daemons_end_with_the_program_even_if_everybody_who_watched_was_killed(
    isolated: LocalHarness, tmp_path: Path
) -> None:
    code = (
        "import os, signal, time\n"
        "for _ in range(3):\n"
        "    if os.fork() == 0:\n"
        "        os.setsid(); signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "        if os.fork(): os._exit(0)\n"
        "        os.execve('/bin/sleep', ['sleep', '876543'], {})\n"
        "time.sleep(1000)\n"
    )
    isolated.engine.launch(isolated.program("attempt-1", [public_interpreter(), "-c", code]))
    wait_until(lambda: len(_sleepers()) == 3)
    os.kill(isolated.engine._forks.pid, signal.SIGKILL)
    os.waitid(os.P_PID, isolated.engine._forks.pid, os.WEXITED | os.WNOWAIT)
    isolated.lose("attempt-1")
    wait_until(lambda: not _sleepers(), what="the kernel to end the whole namespace")
    assert isolated.observe("attempt-1").phase is Phase.LOST
    assert isolated.engine.release("attempt-1").confirmed


def _sleepers() -> list[int]:
    def command(pid: int) -> bytes:
        try:
            return Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return b""

    return [pid for pid in procs.all_pids() if command(pid) == b"sleep\x00876543\x00"]


def test_an_attempt_says_that_it_is_isolated(isolated: LocalHarness) -> None:
    assert isolated.engine.enforcement()["isolation"] == "bubblewrap"
    assert isolated.run("attempt-1", Behaviour.SUCCEEDS).enforcement["isolation"] == "bubblewrap"


def test_what_is_on_is_described(isolated: LocalHarness) -> None:
    assert describe(None).startswith("none: Trials run as the server's own user")
    assert "a network of its own" in describe(Isolation())
    assert "the host's network" in describe(Isolation(network=False))


def test_without_bubblewrap_there_is_no_engine_rather_than_a_weaker_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineError, match="bubblewrap is not installed") as refusal:
        LocalEngine(tmp_path / "engine", isolation=Isolation())
    assert refusal.value.code == "ISOLATION_IMPOSSIBLE"
    assert not (tmp_path / "engine").exists()


def test_a_bubblewrap_that_makes_no_sandbox_is_refused_with_its_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2; exit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert "No permissions to create new namespace" in why_impossible()
    with pytest.raises(EngineError, match="No permissions"):
        LocalEngine(tmp_path / "engine", isolation=Isolation())


def test_a_bubblewrap_removed_later_starts_nothing(
    isolated: LocalHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(tmp_path))
        with pytest.raises(EngineError, match="not installed"):
            isolated.engine.launch(isolated.launch("attempt-1", Behaviour.SUCCEEDS))
    assert isolated.observe("attempt-1").phase is Phase.ABSENT
    assert isolated.run("attempt-1", Behaviour.SUCCEEDS).exit.code == 0


ORDINARY = textwrap.dedent("""
    import json, os, sys
    from pathlib import Path
    from trainshed.engines import Launch, Limits, Phase
    from trainshed.engines.local import Isolation, LocalEngine, why_impossible
    root, interpreter = Path(sys.argv[1]), sys.argv[2]
    os.setgroups([]); os.setresgid(4321, 4321, 4321); os.setresuid(4321, 4321, 4321)
    sys.executable = interpreter
    reason = why_impossible()
    if reason:
        raise SystemExit("cannot: " + reason)
    engine = LocalEngine(root, isolation=Isolation())
    limits = Limits(cpus=1, memory_mb=256, storage_mb=256, shm_mb=16)
    script = "id -u; df --output=size -m /dev/shm | tail -1; kill -TERM $$"
    engine.launch(Launch("attempt-1", ("bash", "-c", script), {}, (), (), limits, 60))
    for _ in range(200):
        seen = engine.observe(["attempt-1"])["attempt-1"]
        if seen.phase is Phase.EXITED:
            break
        engine.changed(0.1)
    log = engine.logs("attempt-1").frames.read_bytes()
    release = engine.release("attempt-1")
    how = (seen.exit.code, seen.exit.signal, seen.enforcement)
    print(json.dumps([*how, log.decode("latin-1"), release.confirmed]))
    engine.close()
""")


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming an ordinary user takes root")
def test_a_server_of_an_ordinary_user_isolates_through_user_namespaces(isolated: LocalHarness) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="trainshed-ordinary-") as folder:
        root = Path(folder)
        os.chown(root, 4321, 4321)
        done = subprocess.run(
            [sys.executable, "-c", ORDINARY, str(root / "engine"), public_interpreter()],
            capture_output=True,
            text=True,
            check=False,
        )
    if "cannot: " in done.stderr:
        pytest.skip(done.stderr.strip())
    code, number, enforcement, log, confirmed = json.loads(done.stdout)
    assert (code, number, confirmed) == (143, signal.SIGTERM, True)
    assert (enforcement["isolation"], enforcement["shm"]) == ("bubblewrap", "mount")
    assert "4321\n" in log
    assert "16\n" in log
