"""The engine's end of the fork server: started when needed, replaced when it is gone."""

from __future__ import annotations

import os
import select
import socket
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import trainshed
from trainshed.engines.contract import EngineError

_SOCKET_FD = 3
_CODE_ROOT = Path(trainshed.__file__).resolve().parent.parent
_BOOT = "import sys; sys.path.append(sys.argv.pop()); from trainshed.jobkit.forkserver import main; main()"
_LEAVE_SECONDS = 0.5


class ForkServer:
    """Hands attempt folders to a warm process outside of ours. Thread-safe."""

    def __init__(self, log: Path, env: Mapping[str, str], group: Path | None) -> None:
        self._log = log
        self._env = env
        self._group = group
        self._guard = threading.Lock()
        self._socket: socket.socket | None = None
        self._pid: int | None = None

    @property
    def pid(self) -> int | None:
        """The process id of the current fork server, if one was started."""
        return self._pid

    def start(self) -> None:
        """Have one running, so that the first launch need not wait for it."""
        with self._guard:
            self._ensure()

    def submit(self, folder: Path, group: Path | None, notify: Path) -> None:
        """Ask for a shim for this attempt folder. Raises `EngineError` if no fork server can be had."""
        message = b"\0".join(os.fsencode(part) for part in (folder, group or "", notify))
        with self._guard:
            try:
                self._ensure().sendall(message)
            except OSError:  # it died since; one more try with a new one
                self._let_go()
                try:
                    self._ensure().sendall(message)
                except OSError as error:
                    raise EngineError(
                        "FORK_SERVER_GONE", f"no fork server: {error}", retryable=True
                    ) from error

    def close(self) -> None:
        """Close our end; a fork server without shims leaves, one with shims stays with them."""
        with self._guard:
            self._let_go()

    def _ensure(self) -> socket.socket:
        if self._socket is None:
            self._socket = self._spawn()
        return self._socket

    def _spawn(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        arguments = [os.fspath(self._group)] if self._group else []
        log = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            self._pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-I", "-S", "-c", _BOOT, *arguments, str(_CODE_ROOT)],
                dict(self._env),
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, log, 1),
                    (os.POSIX_SPAWN_DUP2, log, 2),
                    (os.POSIX_SPAWN_DUP2, theirs.fileno(), _SOCKET_FD),
                ],
                setsigmask=[],
            )
        except OSError as error:
            ours.close()
            raise EngineError("FORK_SERVER_GONE", f"no fork server: {error}", retryable=True) from error
        finally:
            os.close(log)
            theirs.close()
        return ours

    def _let_go(self) -> None:
        if self._socket is None or self._pid is None:
            return
        self._socket.close()
        self._socket = None
        try:
            handle = os.pidfd_open(self._pid)
        except ProcessLookupError:
            return
        try:
            if select.select([handle], [], [], _LEAVE_SECONDS)[0]:
                os.waitpid(self._pid, os.WNOHANG)
        except ChildProcessError:
            return  # somebody else in this process reaped it
        finally:
            os.close(handle)
