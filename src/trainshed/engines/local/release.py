"""Ending everything an attempt holds, and saying what proves it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from trainshed.engines.contract import EngineError, Release
from trainshed.jobkit import folder, mounts, procs, tree
from trainshed.jobkit.cgroups import Group, Layout
from trainshed.jobkit.logwriter import end_log
from trainshed.jobkit.shim import GONE

_SHIM_SECONDS = 5.0
_KILLED_SHIM_SECONDS = 2.0
_GROUP_SECONDS = 5.0
_SCAN_SECONDS = 3.0


def release(
    path: Path, layout: Layout, instance: str, remove_container: Callable[[], str | None] | None = None
) -> Release:
    """Release the attempt in ``path``, whose stop without grace is already recorded.

    ``remove_container``, where it may have one, says why that is still there.
    Every step may be repeated. ``confirmed`` means that each check below saw what it must see.
    """
    checks: dict[str, str] = {}
    shim_gone = _end_shim(path)
    checks["shim"] = "gone" if shim_gone else "still holds its lock"

    group = Group(layout, path.name)
    killed, group_gone = 0, True
    if group.exists():
        killed, empty = group.kill_until_empty(_GROUP_SECONDS)
        group_gone = empty and group.remove(_GROUP_SECONDS)
        checks["cgroup"] = (
            "empty, removed" if group_gone else f"{len(group.pids())} process(es) cannot be killed"
        )
    else:
        checks["cgroup"] = "removed" if layout.parents() else "none on this machine"

    processes_gone = True
    if _tree_is_proved_gone(path):
        checks["processes"] = "all ended and reaped by the shim"
    else:
        scanned, processes_gone = _end_marked(path, instance)
        killed += scanned
        checks["processes"] = (
            "none carries the mark" if processes_gone else "some that carry the mark cannot be killed"
        )

    container_gone = True
    if remove_container is not None and shim_gone:
        container_gone, checks["container"] = _without_container(remove_container)

    work_gone = False
    if shim_gone and group_gone and processes_gone and container_gone:
        try:
            checks["mounts"] = mounts.clear(os.fspath(path))
        except OSError as error:
            checks["mounts"] = f"not removed: {error}"
            checks["work"] = "kept while something is mounted there"
            return Release(work_gone, checks, killed)
        try:
            tree.remove(path / folder.WORK)
            tree.remove(path / folder.TEMPORARY)
            folder.forget_secrets(path)
            (path / folder.CONTROL).unlink(missing_ok=True)
            end_log(path)
            work_gone = True
            checks["work"] = "removed"
        except OSError as error:
            checks["work"] = f"not removed: {error}"
    else:
        checks["work"] = "kept while something may use it"
    return Release(work_gone, checks, killed)


def _without_container(remove: Callable[[], str | None]) -> tuple[bool, str]:
    try:
        reason = remove()
    except EngineError as error:
        reason = error.message
    return (False, f"not removed: {reason}") if reason else (True, "removed")


def kill(path: Path, layout: Layout, instance: str) -> None:
    """End the shim of the attempt in ``path`` and everything it started, whoever listens or not."""
    pid = folder.holder(path)
    if pid is not None:
        _kill_holder(pid, path / folder.LOCK)
    _wait(lambda: not folder.is_held(path), _KILLED_SHIM_SECONDS)
    group = Group(layout, path.name)
    if group.exists():
        group.kill_until_empty(_GROUP_SECONDS)
    _end_marked(path, instance)


def _end_shim(path: Path) -> bool:
    """Wait until nobody holds the lock; kill the holder if it does not leave by itself."""
    if _wait(lambda: not folder.is_held(path), _SHIM_SECONDS):
        return True
    pid = folder.holder(path)
    if pid is not None:
        _kill_holder(pid, path / folder.LOCK)
    return _wait(lambda: not folder.is_held(path), _KILLED_SHIM_SECONDS)


def _kill_holder(pid: int, lock: Path) -> None:
    """SIGKILL the process if it has the lock open; the pidfd keeps a recycled id from being hit."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return
    try:
        if _has_open(pid, lock):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        os.close(handle)


def _has_open(pid: int, path: Path) -> bool:
    try:
        return any(entry.readlink() == path for entry in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False


def _tree_is_proved_gone(path: Path) -> bool:
    """Whether the shim itself saw the last process of the tree end, or no program ever started."""
    if not folder.exists(path, folder.LAUNCH):
        return False  # the folder may be younger than the processes
    ended = folder.read(path, folder.EXIT)
    if ended is None:
        return not folder.has_begun(path)
    return ended.get("tree") == GONE


def _end_marked(path: Path, instance: str) -> tuple[int, bool]:
    """Kill whatever carries the attempt's mark or stands in its folder, until a look finds nothing."""
    killed: set[int] = set()
    deadline = time.monotonic() + _SCAN_SECONDS
    while True:
        marked = {pid for pid, attempt in procs.marked(instance).items() if attempt == path.name}
        found = {
            pid: started
            for pid in marked | procs.standing_in(path)
            if (started := procs.start_time(pid)) is not None
        }
        if not found:
            return len(killed), True
        if time.monotonic() >= deadline:
            return len(killed), False
        killed.update(pid for pid, started in found.items() if procs.kill_same(pid, started))
        time.sleep(0.005)


def _wait(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    pause = 0.0005
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(pause)
        pause = min(pause * 2, 0.05)
    return True
