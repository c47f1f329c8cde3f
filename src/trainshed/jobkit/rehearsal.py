"""Trying out a sandbox or a container: run a program in one as Trials run, or say why that is impossible."""

from __future__ import annotations

import json
import os
import signal
import sys

from trainshed.jobkit import cgroups, child, container, folder, linux, procs, seccomp, tree


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
        if "container" in launch:
            argv, env = launch["argv"], _enter_container(path, launch)
        else:
            child.enter_sandbox(path, launch["sandbox"], launch["shm_mb"], {})
            argv, env = ["/bin/sh", "-c", ":"], {}
        if linux.fork_sibling() == 0:
            if "container" in launch:
                seccomp.forbid()
            os.execvpe(argv[0], argv, env)  # noqa: S606 - what every machine has, or the image to be tried
        status = 0
    except OSError as error:
        os.write(1, str(error.strerror).encode())
    finally:
        os._exit(status)


def _enter_container(path: str, launch: folder.Json) -> dict[str, str]:
    """Move into a container within limits; the variables that a program has there."""
    box, limits = launch["container"], launch["limits"]
    keeper = child.make_container(path, box, launch["attempt_id"])
    group = cgroups.Group(cgroups.Layout.from_json(launch["cgroups"]), launch["attempt_id"])
    pids = limits["pids"] + container.PROCESSES
    group.create(memory_mb=limits["memory_mb"], pids=pids, cpus=limits["cpus"])
    group.adopt(keeper.helpers)
    group.enter()
    child.enter_container(keeper, box["user"])
    return keeper.environment
