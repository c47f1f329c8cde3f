"""The fork server: a warm process whose forks are shims.

Started by the engine with one end of a sequenced-packet socket as descriptor 3; each message is the
path of an attempt folder. It stays while it has shims, also after the server went away, so that a
shim that is killed leaves its program to somebody who ends it.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import sys
import traceback

from trainshed.jobkit import linux, procs, shim

SOCKET_FD = 3
MAX_MESSAGE = 4096


def main() -> None:
    """Serve until the other end is closed and the last shim is gone."""
    if os.getpid() != os.getsid(0):
        os.setsid()
    os.umask(0o022)
    os.closerange(SOCKET_FD + 1, 1 << 16)
    linux.set_name(b"trainshed-fork")
    linux.adopt_orphans()
    if len(sys.argv) > 1:
        _leave_service_group(sys.argv[1])
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    server = _Server(socket.socket(fileno=SOCKET_FD))
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
        traceback.print_exc()


class _Server:
    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._shims: dict[int, str] = {}
        self._wake, self._wake_write = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(self._wake_write, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)

    def run(self) -> None:
        poll = select.poll()
        poll.register(self._requests, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        serving = True
        while serving or self._shims:
            for fd, _ in poll.poll():
                if fd == self._wake:
                    _drain(fd)
                    self._reap()
                elif request := self._requests.recv(MAX_MESSAGE):
                    self._fork(os.fsdecode(request))
                else:
                    serving = False
                    poll.unregister(self._requests)
                    self._requests.close()

    def _fork(self, path: str) -> None:
        try:
            pid = os.fork()
        except OSError:
            traceback.print_exc()  # the engine asks again for what does not start
            return
        if pid:
            self._shims[pid] = path
            return
        code = 1
        try:
            self._become_shim()
            shim.main(path)
            code = 0
        except BaseException:  # noqa: BLE001 - nothing may return into the fork server's loop
            traceback.print_exc()
        finally:
            os._exit(code)

    def _become_shim(self) -> None:
        signal.set_wakeup_fd(-1)
        os.setsid()
        self._requests.close()
        os.close(self._wake)
        os.close(self._wake_write)
        self._shims.clear()

    def _reap(self) -> None:
        orphaned = False
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                break
            if self._shims.pop(pid, None) is None or status != 0:
                orphaned = True
        if orphaned:
            self._end_orphans()

    def _end_orphans(self) -> None:
        """Kill what a shim that died left to us. Its children come to us in turn: SIGCHLD tells."""
        for pid in procs.children(os.getpid()):
            if pid not in self._shims:
                for below in procs.descendants(pid):
                    procs.send(below, signal.SIGKILL)
                procs.send(pid, signal.SIGKILL)


def _drain(fd: int) -> None:
    try:
        while os.read(fd, 4096):
            pass
    except BlockingIOError:
        pass
