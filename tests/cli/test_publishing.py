"""Publishing by the program as people run it: at a terminal, into a file, in parallel, and killed midway."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable
from fcntl import ioctl
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from support.proxy import Fault, FaultProxy
from support.server import ServerProcess
from trainshed.cli import content_progress
from trainshed.cli.exits import Exit

PART = 1 << 20
PARTS = 4
"""Of the large file; each is a request of its own."""
_CODES = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]")
_AMOUNT = re.compile(r"(\w+(?: files)?) [^\w]+ (\S+(?: [KMG]iB| B)?) of (\S+ (?:[KMG]?i?B|files))")
_SECONDS = 60.0


@pytest.fixture(scope="module")
def parted(tmp_path_factory) -> ServerProcess:
    """A server that takes large files in many parts."""
    place = tmp_path_factory.mktemp("parted")
    running = small_parts(lambda name, **options: ServerProcess(place / name, **options), place)
    yield running
    running.stop()


def small_parts(new_server: Callable[..., ServerProcess], place: Path) -> ServerProcess:
    (place / "server.toml").write_text(f"[http]\nmax_blob_bytes = {PART}\n")
    return new_server("server", options=("--config", str(place / "server.toml"))).start()


@pytest.fixture
def tree(tmp_path) -> Path:
    """One file of four parts, a tail, and three files that are sent together."""
    root = tmp_path / "tree"
    root.mkdir()
    (root / "large.bin").write_bytes(os.urandom(PARTS * PART + 5))
    for name in "abc":
        (root / name).write_text(f"{name} of {tmp_path}")
    return root


class Program:
    """``trainshed`` as a process of its own."""

    def __init__(self, server: ServerProcess, place: Path) -> None:
        self._program = [sys.executable, "-m", "trainshed"]
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("TRAINSHED_")},
            **server.environment,
            "TRAINSHED_HOME": str(place / "home"),
            "TERM": "xterm-256color",
            "COLUMNS": "100",
        }

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self._program, *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=_SECONDS,
        )

    def begin(self, *arguments: str, **where: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*self._program, *arguments], env=self.environment, stdin=subprocess.DEVNULL, **where
        )

    def at_terminal(self, *arguments: str) -> tuple[int, bytes, bytes]:
        """Exit status, what came on stdout, and what was drawn at a terminal of 100 columns."""
        mine, theirs = pty.openpty()
        ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        with self.begin(*arguments, stdout=subprocess.PIPE, stderr=theirs) as process:
            os.close(theirs)
            said: list[bytes] = []
            reading = threading.Thread(target=lambda: said.append(process.stdout.read()))
            reading.start()
            drawn = b"".join(iter(lambda: _read(mine), b""))
            reading.join()
        os.close(mine)
        return process.returncode, said[0], drawn


def _read(terminal: int) -> bytes:
    with contextlib.suppress(OSError):  # EIO is Linux's word for that nobody has the other end any more
        return os.read(terminal, 65536)
    return b""


@pytest.fixture
def program(parted, tmp_path) -> Program:
    return Program(parted, tmp_path)


def publish(tree: Path, name: str, *more: str) -> tuple[str, ...]:
    return ("dataset", "publish", str(tree), "--name", name, "--version", "1", *more)


def amounts(drawn: bytes) -> dict[str, list[tuple[str, str]]]:
    """Of each bar in turn what it said: done, of all."""
    found: dict[str, list[tuple[str, str]]] = {}
    for stage, done, total in _AMOUNT.findall(_CODES.sub(b"", drawn).decode()):
        found.setdefault(stage, []).append((done, total))
    return found


def offsets(proxy: FaultProxy) -> list[int]:
    """Where each part began that was sent, in turn."""
    sent = (urlsplit(seen.path) for seen in proxy.seen if seen.method == "PUT")
    return [int(parse_qs(where.query)["offset"][0]) for where in sent if where.path.endswith("/upload")]


# What is shown


def test_bars_at_a_terminal_show_bytes_and_files_and_end_whole(program, tree, tmp_path):
    status, said, drawn = program.at_terminal(*publish(tree, "bars/words"))
    assert status == Exit.OK, drawn
    assert b"envloop://datasets/bars/words@1" in said
    shown = amounts(drawn)
    assert shown.keys() == {"reading", "reading files", "uploading", "uploading files"}
    for stage in ("reading", "uploading"):
        assert shown[stage][-1] == ("4.0 MiB", "4.0 MiB")
        assert shown[f"{stage} files"][-1] == ("4", "4 files")
    ended_whole(drawn, b"Published; 4 files uploaded.")
    status, _, drawn = program.at_terminal("dataset", "download", "bars/words@1", str(tmp_path / "copy"))
    assert status == Exit.OK, drawn
    assert {each[-1] for each in amounts(drawn).values()} == {("4.0 MiB", "4.0 MiB"), ("4", "4 files")}
    ended_whole(drawn, b"each verified")


def ended_whole(drawn: bytes, last: bytes) -> None:
    """The cursor is there again, no bar is left, and what stays are sentences."""
    assert drawn.rfind(b"\x1b[?25h") > drawn.rfind(b"\x1b[?25l") > -1
    left = drawn[drawn.rfind(b"\x1b[?25h") :]
    assert last in left
    assert amounts(left) == {}


def test_bars_of_a_refused_publication_end_whole_too(program, tree):
    assert program.run(*publish(tree, "bars/taken")).returncode == Exit.OK
    (tree / "a").write_text("other")
    status, said, drawn = program.at_terminal(*publish(tree, "bars/taken"))
    assert (status, said) == (Exit.CONFLICT, b"")
    ended_whole(drawn, b"CONTENT_VERSION_EXISTS")


def test_documents_and_ids_have_no_bars_beside_them_at_a_terminal_either(program, tree):
    status, said, drawn = program.at_terminal(*publish(tree, "bars/json", "--json"))
    assert (status, json.loads(said)["uploaded"]) == (Exit.OK, 4)
    assert drawn == b""
    status, said, drawn = program.at_terminal(*publish(tree, "bars/json", "--quiet"))
    assert (status, said) == (Exit.OK, b"envloop://datasets/bars/json@1\n")
    assert amounts(drawn) == {}


def test_without_a_terminal_there_are_plain_lines_or_none(program, run, parted, tree, monkeypatch):
    quick = program.run(*publish(tree, "lines/quick"))
    assert (quick.returncode, quick.stderr) == (Exit.OK, "\nPublished; 4 files uploaded.\n")
    assert "\x1b" not in quick.stdout
    for name, value in program.environment.items():
        if name.startswith("TRAINSHED_"):
            monkeypatch.setenv(name, value)
    monkeypatch.setattr(content_progress, "LINE_SECONDS", 0.0)
    (tree / "a").write_text("new")
    slow = run(*publish(tree, "lines/slow"))
    lines = [line for line in slow.err.splitlines() if " of " in line]
    assert slow.status == Exit.OK
    assert lines[-1] == "uploading: 4 of 4 files, 4.0 MiB of 4.0 MiB"
    amount = r"\S+ (?:[KM]i)?B of \S+ (?:[KM]i)?B"
    shape = re.compile(rf"(?:reading|uploading): (?:\d of \d files|{amount}|\d of \d files, {amount})")
    assert [line for line in lines if not shape.fullmatch(line)] == []


# How many at once


class Counting(FaultProxy):
    """Answers the first requests only once ``together`` of them are there; how many ever were at once."""

    def __init__(self, target: str, matches: Callable[[str, str], bool], together: int) -> None:
        super().__init__(target, self._meet)
        self._matches = matches
        self._all_there = threading.Barrier(together)
        self._count = threading.Lock()
        self._met = 0
        self._together = together
        self._now = 0
        self.most = 0

    def _meet(self, method: str, path: str) -> Fault:
        if self._matches(method, path):
            with self._count:
                self._now += 1
                self.most = max(self.most, self._now)
                self._met += 1
                first = self._met <= self._together
            if first:
                self._all_there.wait(_SECONDS / 2)
        return Fault.NONE

    def _pass(self, caller, message: bytes) -> None:
        reply = self._ask(message)
        method, path, _ = message.split(b"\r\n", 1)[0].decode().split(" ")
        if self._matches(method, path):
            # Before the caller knows, so that what it asks next is not counted beside this.
            with self._count:
                self._now -= 1
        caller.sendall(reply)


def blob(method: str, path: str) -> bool:
    return method in {"PUT", "GET"} and re.search(r"/blobs/[0-9a-f]{64}", path) is not None


@pytest.mark.parametrize("parallel", [1, 3])
def test_parallel_is_how_many_files_travel_at_once(program, parted, tmp_path, parallel):
    root = tmp_path / "many"
    root.mkdir()
    for number in range(7):
        (root / f"{number}.bin").write_bytes(os.urandom(PART // 2 + number))
    name, at_once = f"parallel/of{parallel}", ("--parallel", str(parallel))
    for arguments in (
        publish(root, name, *at_once),
        ("dataset", "download", f"{name}@1", str(tmp_path / "copy"), *at_once),
    ):
        with Counting(parted.url, blob, parallel) as proxy:
            program.environment["TRAINSHED_URL"] = proxy.url
            done = program.run(*arguments)
        assert done.returncode == Exit.OK, done.stderr
        assert proxy.most == parallel
        assert sum(blob(seen.method, seen.path) for seen in proxy.seen) == 7


# Killed midway


class Midway:
    """A plan: once the third part of the large file is on its way, ``then`` happens, and it is lost."""

    def __init__(self, then: Callable[[], None]) -> None:
        self._then = then
        self._left = 3

    def __call__(self, method: str, path: str) -> Fault:
        if method != "PUT" or "/upload" not in path:
            return Fault.NONE
        self._left -= 1
        if self._left:
            return Fault.NONE
        self._then()
        return Fault.DROP_REQUEST


def test_a_publication_whose_client_is_killed_goes_on_where_it_broke_off(program, parted, tree):
    begun: list[subprocess.Popen[bytes]] = []
    there = threading.Event()

    def kill() -> None:
        assert there.wait(_SECONDS)
        begun[0].kill()
        begun[0].wait()

    with FaultProxy(parted.url, Midway(kill)) as proxy:
        program.environment["TRAINSHED_URL"] = proxy.url
        begun.append(program.begin(*publish(tree, "killed/client"), stdout=subprocess.DEVNULL))
        there.set()
        assert begun[0].wait(_SECONDS) == -signal.SIGKILL
        assert offsets(proxy) == [0, PART, 2 * PART]
        done = program.run(*publish(tree, "killed/client", "--json"))
        assert done.returncode == Exit.OK, done.stderr
        # Nothing that was confirmed is sent again.
        assert offsets(proxy)[3:] == [2 * PART, 3 * PART, 4 * PART]
    document = json.loads(done.stdout)
    # The small ones may have arrived before the kill, or not.
    assert (document["files"], 1 <= document["uploaded"] <= 4) == (4, True)


def test_a_publication_goes_on_when_its_server_is_killed_in_the_middle(new_server, tree, tmp_path):
    server = small_parts(new_server, tmp_path)
    program = Program(server, tmp_path)
    port = urlsplit(server.url).port

    def kill() -> None:
        server.kill()
        server.start(("--port", str(port)))

    with FaultProxy(server.url, Midway(kill)) as proxy:
        program.environment["TRAINSHED_URL"] = proxy.url
        done = program.run(*publish(tree, "killed/server", "--json"))
        assert done.returncode == Exit.OK, done.stderr
        assert offsets(proxy) == [0, PART, 2 * PART, 2 * PART, 3 * PART, 4 * PART]
    program.environment["TRAINSHED_URL"] = server.url
    fetched = program.run("dataset", "download", "killed/server@1", str(tmp_path / "copy"))
    assert fetched.returncode == Exit.OK, fetched.stderr
    assert (tmp_path / "copy/large.bin").read_bytes() == (tree / "large.bin").read_bytes()


def test_ctrl_c_at_a_terminal_leaves_it_whole_and_the_upload_goes_on_later(program, parted, tree):
    begun: list[subprocess.Popen[bytes]] = []
    there = threading.Event()
    begin = program.begin

    def remembered(*arguments: str, **where: int) -> subprocess.Popen[bytes]:
        begun.append(begin(*arguments, **where))
        there.set()
        return begun[0]

    def interrupt() -> None:
        assert there.wait(_SECONDS)
        begun[0].send_signal(signal.SIGINT)

    program.begin = remembered
    with FaultProxy(parted.url, Midway(interrupt)) as proxy:
        program.environment["TRAINSHED_URL"] = proxy.url
        status, said, drawn = program.at_terminal(*publish(tree, "killed/ctrl-c"))
        assert (status, said) == (Exit.INTERRUPTED, b"")
        assert drawn.rfind(b"\x1b[?25h") > drawn.rfind(b"\x1b[?25l") > -1
        assert b"Traceback" not in drawn
        done = program.run(*publish(tree, "killed/ctrl-c"))
        assert done.returncode == Exit.OK, done.stderr
        assert offsets(proxy).count(0) == 1
