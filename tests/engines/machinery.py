"""Driving a real local engine: programs as shell or Python text, and looking at what they left."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from engines.conformance import HELLO, LIMITS, Behaviour, Harness
from support.waiting import wait_until
from trainshed.engines import Launch, Limits, TreeFile
from trainshed.engines.local import LocalEngine
from trainshed.jobkit import folder, procs
from trainshed.model.resources import Gpu

_STARTED = "echo >> $STARTS"
_SHELL = {
    Behaviour.SUCCEEDS: f"printf '{HELLO.decode().strip()}\\n'; mkdir out; printf done > out/result.txt",
    Behaviour.EXITS_WITH_3: "exit 3",
    Behaviour.KILLED_BY_SIGNAL_9: "kill -KILL $$",
    Behaviour.RUNS_UNTIL_STOPPED: "exec sleep 1000",
    Behaviour.IGNORES_SIGTERM: f"trap '' TERM; {_STARTED}; while :; do sleep 1000; done",
}


class LocalHarness(Harness):
    engine: LocalEngine

    def __init__(self, path: Path, **settings: object) -> None:
        self.path = path
        self.root = path / "engine"
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
        counted = text if _STARTED in text else f"{_STARTED}; {text}"
        env = {"STARTS": str(self._starts / attempt_id)}
        return self.program(attempt_id, ["bash", "-c", counted], env=env, **settings)  # type: ignore[arg-type]

    def python(self, attempt_id: str, text: str, **settings: object) -> Launch:
        """A launch of a Python program."""
        return self.program(attempt_id, [sys.executable, "-c", text], **settings)  # type: ignore[arg-type]

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
    ) -> Launch:
        return Launch(attempt_id, tuple(argv), env or {}, files, gpus, limits, timeout, grace)

    def pass_time(self) -> None:
        self.engine.changed(0.1)

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


def close_wholly(engine: LocalEngine) -> None:
    """Close an engine and wait until the fork servers of earlier ones on its folder have left too."""
    engine.close()
    if engine._supervisors:
        wait_until(lambda: _removed(engine._supervisors), what="the fork servers' end")
    engine._layout.remove_parents()


def _removed(group: Path) -> bool:
    with contextlib.suppress(OSError):
        group.rmdir()
    return not group.exists()
