"""Trying out a sandbox: run a shell in one as a program would run, and say why if that is impossible."""

from __future__ import annotations

import json
import os
import signal
import sys

from trainshed.jobkit import child, folder, linux, procs, tree


def main() -> None:
    """Use the empty folder ``argv[1]`` and the launch ``argv[2]`` (JSON); exits 0, or 1 with a sentence."""
    path, launch = sys.argv[1], json.loads(sys.argv[2])
    linux.adopt_orphans()
    pid = os.fork()
    if pid == 0:
        _become_program(path, launch)
    failed = os.waitpid(pid, 0)[1] or os.wait()[1]  # the child that makes way, then the program
    for pid in procs.descendants(os.getpid()):
        procs.send(pid, signal.SIGKILL)
    try:
        while os.wait():
            pass
    except ChildProcessError:
        sys.exit(bool(failed))


def _become_program(path: str, launch: folder.Json) -> None:
    status = 1
    try:
        tree.fill(os.path.join(path, folder.WORK), [])
        child.enter_sandbox(path, launch["sandbox"], launch["shm_mb"], {})
        if linux.fork_sibling() == 0:
            os.execv("/bin/sh", ["/bin/sh", "-c", ":"])  # noqa: S606 - what every machine has
        status = 0
    except OSError as error:
        os.write(1, str(error.strerror).encode())
    finally:
        os._exit(status)
