"""Server processes from one warm start: loading a server's code takes seconds, forking it does not.

``python support/warm.py FD`` loads what ``trainshed serve`` loads and then waits at a socket. For each
request it forks a child that becomes ``python -m trainshed …`` in every respect but two: its code is loaded
already, and ``/proc`` shows the command and the environment of the warm process. Who needs a process that
shows its own, or whose environment speaks to the interpreter, starts one cold.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_LOADED = (
    "trainshed.cli.serve",
    "trainshed.server.run",
    "trainshed.engines.local.engine",
    "alembic.command",
    "encodings.idna",
    "platformdirs.unix",
    "pydantic.v1",
    "psycopg",
    "sqlalchemy.dialects.postgresql.psycopg",
    "sqlalchemy.dialects.sqlite",
    "uvicorn.lifespan.on",
    "uvicorn.loops.auto",
    "uvicorn.protocols.http.auto",
)
_ANSWER_SECONDS = 120.0
_ENVIRONMENT = dict(os.environ)
"""As it was before any test changed it."""


class WarmProcess:
    """A forked server, with as much of `subprocess.Popen` as its users ask for."""

    def __init__(self, source: _Source, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._source = source
        self._handle = os.pidfd_open(pid)

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._source.ask({"poll": self.pid})
            if self.returncode is not None:
                os.close(self._handle)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            ended = select.poll()
            ended.register(self._handle, select.POLLIN)
            if not ended.poll(None if timeout is None else timeout * 1000):
                raise subprocess.TimeoutExpired("trainshed serve", timeout or 0)
        status = self.poll()
        assert status is not None
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class _Source:
    """The warm process and our end of its socket. It ends when the socket does."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, str(Path(__file__)), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                cwd="/",
                env=_ENVIRONMENT,
            )
        ours.settimeout(_ANSWER_SECONDS)
        self._socket, self._file, self._guard = ours, ours.makefile("rwb"), threading.Lock()

    def ask(self, request: Mapping[str, Any]) -> Any:
        with self._guard:
            self._file.write(json.dumps(request).encode() + b"\n")
            self._file.flush()
            answer = self._file.readline()
        assert answer, f"the warm process ended with {self._process.wait()}"
        return json.loads(answer)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._process.wait()


_source: _Source | None = None
_starting = threading.Lock()


def start(arguments: Sequence[str], *, environment: Mapping[str, str], cwd: Path, log: Path) -> WarmProcess:
    """Fork ``python -m trainshed ARGUMENTS`` in a session of its own; what it prints goes behind ``log``."""
    global _source  # noqa: PLW0603 - one warm process for all tests of this process
    with _starting:
        if _source is None:
            _source = _Source()
            atexit.register(_source.close)
    request = {"start": list(arguments), "environment": dict(environment), "cwd": str(cwd), "log": str(log)}
    return WarmProcess(_source, _source.ask(request))


def can_be_warm(command: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether this command is ours, and nothing in the environment had to be there before Python was."""
    early = ("PYTHON", "LD_", "LC_", "LANG", "TZ", "MALLOC_")
    return list(command[:3]) == [sys.executable, "-m", "trainshed"] and not any(
        value != _ENVIRONMENT.get(name) for name, value in environment.items() if name.startswith(early)
    )


def _serve_forks(control: socket.socket) -> list[str] | None:
    """Answer requests until the socket ends. In a child: what it is to run."""
    file = control.makefile("rwb")
    while line := file.readline():
        request = json.loads(line)
        answer: int | None
        if "start" in request:
            answer = os.fork()
            if answer == 0:
                control.detach()
                _become(request)
                return list(request["start"])
        else:
            pid, status = os.waitpid(request["poll"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        file.write(json.dumps(answer).encode() + b"\n")
        file.flush()
    return None


def _become(request: Mapping[str, Any]) -> None:
    """What `subprocess.Popen` does between fork and exec, and what exec does to a process."""
    os.setsid()
    os.chdir(request["cwd"])
    log = os.open(request["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = ["trainshed", *request["start"]]


def main() -> int:
    # What is imported here is not what the tests' folders hold.
    sys.path[:] = [place for place in sys.path if Path(place) != Path(__file__).parent]
    import gc  # noqa: PLC0415 - as the imports below, of no use to who imports this module
    from importlib import import_module  # noqa: PLC0415

    from trainshed.cli.main import main as trainshed  # noqa: PLC0415

    for name in _LOADED:
        import_module(name)
    from fastapi import FastAPI  # noqa: PLC0415

    from trainshed.server import app  # noqa: PLC0415

    for prefix, routers in app._ROUTES:
        for each in routers:
            each.mount(FastAPI(), prefix)
    assert len(os.listdir("/proc/self/task")) == 1, "a fork would lose threads"  # noqa: PTH208 - names are enough
    gc.freeze()  # collections in the children would copy all of it
    arguments = _serve_forks(socket.socket(fileno=int(sys.argv[1])))
    return 0 if arguments is None else trainshed(arguments)


if __name__ == "__main__":
    sys.exit(main())
