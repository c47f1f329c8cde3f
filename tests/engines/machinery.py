"""Driving a real local engine: programs as shell or Python text, and looking at what they left."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from engines.conformance import HELLO, LIMITS, Behaviour, Harness, written
from support.waiting import wait_until
from trainshed.engines import Launch, Limits, Mount, TreeFile
from trainshed.engines.local import DEFAULT_USER, Isolation, LocalEngine, why_impossible
from trainshed.jobkit import folder, frames, procs, sandbox
from trainshed.model.resources import Gpu

_STARTED = "echo >> $STARTS"
_SHELL = {
    Behaviour.SUCCEEDS: f"printf '{HELLO.decode().strip()}\\n'; mkdir out; printf done > out/result.txt",
    Behaviour.EXITS_WITH_3: "exit 3",
    Behaviour.KILLED_BY_SIGNAL_9: "kill -KILL $$",
    Behaviour.RUNS_UNTIL_STOPPED: "exec sleep 1000",
    Behaviour.SHOWS_ITS_INPUTS: (
        'echo "INPUTS is $INPUTS"; cd "$INPUTS"; shopt -s globstar nullglob; for each in **; do '
        'if [ -f "$each" ]; then echo "$each: $(cat "$each")"; fi; '
        'if [ -w "$each" ]; then echo x > "$each"; rm -f "$each"; fi; done; : > new; exit 0'
    ),
    Behaviour.SAVES_WHEN_TOLD: (
        f"trap 'sleep 0.3; exit 0' USR1; {_STARTED}; while :; do sleep 1000 & wait; done"
    ),
    Behaviour.IGNORES_SIGTERM: f"trap '' TERM; {_STARTED}; while :; do sleep 1000; done",
}


WAYS = ("none", "bubblewrap")
"""How a program may be kept from the machine."""


class LocalHarness(Harness):
    engine: LocalEngine
    interpreter = sys.executable
    """A Python that programs can reach."""
    started = _STARTED
    says: Mapping[str, str] = {}
    """What an attempt says of its enforcement that the engine does not."""
    taken_over = frozenset({"LC_TIME"})
    """What of the server's variables its programs get, of those that the tests set."""

    def __init__(self, path: Path, *, root: Path | None = None, **settings: object) -> None:
        self.path = path
        self.root = root or path / "engine"
        self._settings = settings
        self._starts = path / "starts"
        self._starts.mkdir()
        self.engine = LocalEngine(self.root, **settings)  # type: ignore[arg-type]
        self.layout = self.engine._layout

    def launch(
        self, attempt_id: str, behaviour: Behaviour, *, timeout: int = 60, grace: float = 30.0
    ) -> Launch:
        if behaviour is Behaviour.CANNOT_BE_EXECUTED:
            return self.program(attempt_id, ["no-such-program"], timeout=timeout, grace=grace)
        return self.shell(attempt_id, _SHELL[behaviour], timeout=timeout, grace=grace)

    def shell(self, attempt_id: str, text: str, **settings: object) -> Launch:
        """A launch of shell text that also counts its starts, first of all or where it says so."""
        counted = text.replace(_STARTED, self.started) if _STARTED in text else f"{self.started}; {text}"
        env = {"STARTS": str(self._starts / attempt_id)}
        return self.program(attempt_id, ["bash", "-c", counted], env=env, **settings)  # type: ignore[arg-type]

    def python(self, attempt_id: str, text: str, **settings: object) -> Launch:
        """A launch of a Python program."""
        return self.program(attempt_id, [self.interpreter, "-c", text], **settings)  # type: ignore[arg-type]

    def program(
        self,
        attempt_id: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        files: Sequence[TreeFile] = (),
        gpus: tuple[Gpu, ...] = (),
        limits: Limits = LIMITS,
        timeout: int = 60,
        grace: float = 30.0,
        mounts: tuple[Mount, ...] = (),
        paths: Mapping[str, str] | None = None,
    ) -> Launch:
        return Launch(
            attempt_id,
            tuple(argv),
            env or {},
            files,
            gpus,
            limits,
            timeout,
            grace,
            mounts=mounts,
            paths=paths or {},
        )

    def pass_time(self) -> set[str]:
        return self.engine.changed(0.1)

    def reopen(self) -> None:
        self.engine.close()
        self.engine = LocalEngine(self.root, **self._settings)  # type: ignore[arg-type]

    def lose(self, attempt_id: str) -> None:
        os.kill(self.shim_pid(attempt_id), signal.SIGKILL)
        wait_until(lambda: not folder.is_held(self.folder(attempt_id)))

    def starts(self, attempt_id: str) -> int:
        marks = self._starts / attempt_id
        return len(marks.read_text().splitlines()) if marks.exists() else 0

    def close(self) -> None:
        self.engine.sweep(())
        close_wholly(self.engine)

    def folder(self, attempt_id: str) -> Path:
        return self.root / "attempts" / attempt_id

    def directory(self, attempt_id: str) -> str:
        """The work directory as the program itself knows it."""
        return str(self.engine.work_directory(attempt_id))

    def shim_pid(self, attempt_id: str) -> int:
        pid = wait_until(lambda: folder.holder(self.folder(attempt_id)))
        assert folder.is_held(self.folder(attempt_id))
        return pid

    def processes(self, attempt_id: str) -> set[int]:
        """Everything alive that carries the attempt's mark."""
        return {pid for pid, name in procs.marked(self.engine.instance).items() if name == attempt_id}

    def leftovers(self) -> list[str]:
        """Control groups of this engine's that are still there after it was closed."""
        return sorted(self.layout.names())


class IsolatedHarness(LocalHarness):
    """The same under bubblewrap. A start shows in the log, as a program can write nothing of the host's."""

    started = "cat /proc/sys/kernel/random/uuid >&2"

    def __init__(self, path: Path, *, network: bool = True, **settings: object) -> None:
        if reason := _isolation_fails():
            pytest.skip(reason)  # the kernel's; CI installs bubblewrap itself
        self._seen: dict[str, set[bytes]] = {}
        super().__init__(path, isolation=Isolation(hide=(path,), network=network), **settings)

    @property
    def interpreter(self) -> str:  # type: ignore[override] # found out once it is asked for
        return public_interpreter()

    def starts(self, attempt_id: str) -> int:
        log = self.engine.logs(attempt_id).frames
        if log.exists():
            lines = written(log, frames.STDERR).splitlines()
            self._seen.setdefault(attempt_id, set()).update(lines)
        return len(self._seen.get(attempt_id, ()))

    def directory(self, _attempt_id: str) -> str:
        return sandbox.WORK


@functools.cache
def _isolation_fails() -> str | None:
    return why_impossible()


@functools.cache
def public_interpreter() -> str:
    """A Python that the user of isolated programs can execute: root's own may lie where only root looks."""
    user = DEFAULT_USER if os.geteuid() == 0 else None
    for path in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        with contextlib.suppress(OSError):
            subprocess.run(
                [path, "-c", ""], user=user, group=user, extra_groups=None if user is None else [], check=True
            )
            return path
    pytest.skip("no Python can be executed by another user than root")  # Debian's own can, so CI's does


def each_way(way: str, path: Path) -> Iterator[LocalHarness]:
    """What a fixture yields: an engine of this way of isolation, ended with everything it started."""
    harness = IsolatedHarness(path) if way == "bubblewrap" else LocalHarness(path)
    yield harness
    harness.close()
    assert not harness.leftovers()


def close_wholly(engine: LocalEngine) -> None:
    """Close an engine and wait until the fork servers of earlier ones on its folder have left too."""
    engine.close()
    if group := engine._supervisors:
        try:
            wait_until(lambda: _removed(group), what="the fork servers' end")
        except AssertionError as error:
            error.add_note(f"left are {_members(group)}")
            raise
    engine._layout.remove_parents()


def _members(group: Path) -> list[str]:
    """Processes of a control group: what they run and what they wait for."""
    found = []
    for pid in (group / "cgroup.procs").read_text().split():
        with contextlib.suppress(OSError):
            place = Path("/proc", pid)
            command = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            found.append(f"{pid} {command} {(place / 'status').read_text()} {(place / 'wchan').read_text()}")
    return found


def _removed(group: Path) -> bool:
    with contextlib.suppress(OSError):
        group.rmdir()
    return not group.exists()
