"""Finding and ending processes, by /proc."""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainshed.jobkit.folder import StrPath

ATTEMPT_VARIABLE, INSTANCE_VARIABLE = "TRAINSHED_ATTEMPT_ID", "TRAINSHED_INSTANCE"
"""Every program carries these: they are how a process that left everything else is found."""
MARK, INSTANCE_MARK = f"{ATTEMPT_VARIABLE}=".encode(), f"{INSTANCE_VARIABLE}=".encode()


def all_pids() -> list[int]:
    """Every process id there is."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def start_time(pid: int) -> str | None:
    """When ``pid`` started, in clock ticks since boot; ``None`` if it is gone or a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in {b"Z", b"X"} else fields[19].decode()


def children(pid: int) -> list[int]:
    """The direct children of a process, over all its threads."""
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", "rb") as file:
                found += map(int, file.read().split())
    except FileNotFoundError:
        if os.path.exists(f"/proc/{pid}/task"):
            return _children_by_parent(pid)
    except ProcessLookupError:
        pass
    return found


def _children_by_parent(parent: int) -> list[int]:
    """The same where the kernel keeps no list of children (CONFIG_PROC_CHILDREN is off)."""
    found = []
    for pid in all_pids():
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent:
            found.append(pid)
    return found


def descendants(pid: int) -> list[int]:
    """All processes below ``pid``, parents before their children."""
    found: list[int] = []
    level = children(pid)
    while level:
        found += level
        level = [grandchild for child in level for grandchild in children(child)]
    return found


def bytes_moved(pid: int) -> int:
    """Bytes that a process, and children that it waited for, read and wrote of anything; 0 if it is gone."""
    try:
        with open(f"/proc/{pid}/io", "rb") as file:
            return sum(int(line.split()[1]) for line in file if line.startswith((b"rchar:", b"wchar:")))
    except OSError:
        return 0


def send(pid: int, number: int) -> bool:
    """Send a signal; ``False`` if there is nobody to send it to."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def environment(pid: int) -> list[bytes]:
    """The variables a process was started with; empty if it is gone or not ours to read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []


def marked(instance: str) -> dict[int, str]:
    """The processes that carry our mark: ``{pid: attempt id}``."""
    ours = INSTANCE_MARK + instance.encode()
    found = {}
    for pid in all_pids():
        variables = environment(pid)
        if ours in variables:
            for variable in variables:
                if variable.startswith(MARK):
                    found[pid] = variable[len(MARK) :].decode("utf-8", "replace")
    return found


def standing_in(path: StrPath) -> set[int]:
    """The processes whose working directory lies in ``path``."""
    prefix = os.fspath(path).rstrip("/") + "/"
    found = set()
    for pid in all_pids():
        try:
            where = os.readlink(f"/proc/{pid}/cwd")
        except OSError:
            continue
        if where.removesuffix(" (deleted)").startswith(prefix):
            found.add(pid)
    return found


def kill_same(pid: int, started: str | None) -> bool:
    """SIGKILL ``pid`` if it still is the process that started at ``started``.

    The pidfd is opened before the check, so a recycled id is never hit.
    """
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if started is None or start_time(pid) != started:
            return False
        signal.pidfd_send_signal(fd, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        os.close(fd)
    return True
