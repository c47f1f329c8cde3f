"""The fork server: a warm process whose forks are shims.

Started by the engine with one end of a sequenced-packet socket as descriptor 3; each message names an
attempt folder, its version 2 control group (or nothing) and a FIFO, separated by NUL. It stays while
it has shims, also after the server went away, so that a shim that is killed leaves its program to
somebody who ends it.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import sys

from trainshed.jobkit import linux, procs, shim

SOCKET_FD = 3
MAX_MESSAGE = 1 << 14


def main() -> None:
    """Serve until the other end is closed and the last shim is gone."""
    if os.getpid() != os.getsid(0):
        os.setsid()
    os.chdir("/")
    os.umask(0o022)
    os.closerange(SOCKET_FD + 1, 1 << 16)
    linux.set_name(b"trainshed-fork")
    linux.adopt_orphans()
    if len(sys.argv) > 1:
        _leave_service_group(sys.argv[1])
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    server = _Server()
    # Objects made so far are never visited by the collector again: their pages stay shared.
    gc.disable()
    gc.collect()
    gc.freeze()
    server.run()


def _leave_service_group(group: str) -> None:
    """Move to a group of our own, so that a service manager that ends the server spares its shims."""
    try:
        os.makedirs(group, exist_ok=True)
        with open(os.path.join(group, "cgroup.procs"), "w", encoding="ascii") as file:
            file.write("0")
    except OSError:
        sys.excepthook(*sys.exc_info())


class _Server:
    def __init__(self) -> None:
        self._shims: set[int] = set()
        self._wake, self._wake_write = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(self._wake_write, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)

    def run(self) -> None:
        poll = select.poll()
        poll.register(SOCKET_FD, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        serving = True
        while serving or self._shims:
            for fd, _ in poll.poll():
                if fd == self._wake:
                    _drain(fd)
                    self._reap()
                elif request := _receive():
                    self._fork(*os.fsdecode(request).split("\0"))
                else:
                    serving = False
                    poll.unregister(SOCKET_FD)
                    os.close(SOCKET_FD)

    def _fork(self, path: str, group: str, notify: str) -> None:
        try:
            pid = linux.fork()
        except OSError:
            sys.excepthook(*sys.exc_info())  # the engine asks again for what does not start
            return
        if pid:
            self._shims.add(pid)
            return
        code = 1
        try:
            self._become_shim()
            shim.main(path, group, notify)
            code = 0
        except BaseException:  # noqa: BLE001 - nothing may return into the fork server's loop
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(code)

    def _become_shim(self) -> None:
        signal.set_wakeup_fd(-1)
        os.setsid()
        os.close(SOCKET_FD)
        os.close(self._wake)
        os.close(self._wake_write)

    def _reap(self) -> None:
        orphaned = False
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                break
            if pid not in self._shims or status != 0:
                orphaned = True
            self._shims.discard(pid)
        if orphaned:
            self._end_orphans()

    def _end_orphans(self) -> None:
        """Kill what a shim that died left to us. Its children come to us in turn: SIGCHLD tells."""
        for pid in procs.children(os.getpid()):
            if pid not in self._shims:
                for below in procs.descendants(pid):
                    procs.send(below, signal.SIGKILL)
                procs.send(pid, signal.SIGKILL)


def _receive() -> bytes:
    try:
        return os.read(SOCKET_FD, MAX_MESSAGE)
    except ConnectionResetError:  # the server was killed with requests unread
        return b""


def _drain(fd: int) -> None:
    try:
        while os.read(fd, 4096):
            pass
    except BlockingIOError:
        pass
