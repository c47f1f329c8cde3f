"""Which of our processes are there: servers, shims and the programs that carry our mark."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_ATTEMPT = b"TRAINSHED_ATTEMPT_ID="
_MARKS = (_ATTEMPT, b"TRAINSHED_TEST_SERVER=")


@dataclass(frozen=True, slots=True)
class Stranger:
    """A process that is ours by a mark in its environment or by where it stands."""

    pid: int
    mark: str
    command: str


def environment_of(pid: int) -> list[bytes]:
    """The environment that a process was started with; empty if it is gone or not ours to read."""
    with contextlib.suppress(OSError):
        return (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    return []


def command_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        words = (_PROC / str(pid) / "cmdline").read_bytes()
        return words.replace(b"\0", b" ").decode(errors="replace").strip()
    return ""


def directory_of(pid: int) -> str:
    """Where a process stands; empty if it is gone or not ours to read."""
    with contextlib.suppress(OSError):
        return str((_PROC / str(pid) / "cwd").readlink())
    return ""


def all_pids() -> Iterator[int]:
    return (int(entry.name) for entry in _PROC.iterdir() if entry.name.isdecimal())


def marked(value: bytes = b"") -> list[Stranger]:
    """Live processes whose environment holds one of our marks and, if given, ``value`` somewhere."""
    found = []
    for pid in all_pids():
        if pid == os.getpid():
            continue
        entries = environment_of(pid)
        mark = next((entry for entry in entries if entry.startswith(_MARKS)), None)
        if mark is not None and (not value or any(value in entry for entry in entries)):
            found.append(Stranger(pid, mark.decode(errors="replace"), command_of(pid)))
    return found


def strangers_of(folder: Path) -> list[Stranger]:
    """Live processes that stand in ``folder`` or below it, or name it in their command or environment.

    Every server, fork server, shim and program of a test does; this process and its ancestors do not count.
    """
    inside, family = re.compile(rf"{re.escape(str(folder))}(?![\w-])"), _ancestors()
    found = []
    for pid in all_pids():
        facts = [directory_of(pid), command_of(pid), *(e.decode("latin-1") for e in environment_of(pid))]
        if pid not in family and any(inside.search(fact) for fact in facts):
            found.append(Stranger(pid, directory_of(pid), command_of(pid)))
    return found


def kill_programs(folder: Path) -> None:
    """End by force the programs of Attempts, with their shims, that belong to the data of a server."""
    for each in strangers_of(folder):
        if any(entry.startswith(_ATTEMPT) for entry in environment_of(each.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(each.pid, signal.SIGKILL)


def _ancestors() -> set[int]:
    family, pid = set(), os.getpid()
    while pid > 0:
        family.add(pid)
        status = (_PROC / str(pid) / "status").read_text()
        pid = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("PPid:"))
    return family
