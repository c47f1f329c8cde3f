"""Sessions of simulated notebook providers: real processes of this machine, each with folders of its own.

A session finds what it believes to be ``/kaggle`` or ``/content`` below a folder, and a driver with the
accelerators that the simulator gives it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

_DRIVER = "#!/bin/sh\nprintf '{rows}'\n"


def driver(folder: Path, name: str | None, count: int, memory_mib: int = 15360) -> None:
    """An ``nvidia-smi`` that shows ``count`` cards of a name."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = "".join(f"{n}, GPU-{n}, {name}, {memory_mib}\\n" for n in range(count)) if name else ""
    program = folder / "nvidia-smi"
    program.write_text(_DRIVER.format(rows=rows))
    program.chmod(0o755)


def environment(root: Path) -> dict[str, str]:
    """What a session has: nothing of this machine's user."""
    path = os.pathsep.join([str(root / "bin"), str(Path(sys.executable).parent), os.defpath])
    return {"PATH": path, "HOME": str(root), "TRAINSHED_SESSION_ROOT": str(root), "LANG": "C.UTF-8"}


@dataclass
class Session:
    """One process and what it printed."""

    root: Path
    argv: list[str]
    on_end: Callable[[int], None] = lambda _code: None
    entries: list[dict[str, object]] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)
    code: int | None = None
    _process: subprocess.Popen[bytes] | None = None
    _thread: threading.Thread | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(
            self.argv,
            cwd=self.root,
            env=environment(self.root),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def kill(self) -> None:
        """End it at once, with everything that it started."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        if self._thread is not None:
            self._thread.join(30)

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self.root, ignore_errors=True)

    def _follow(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self.changed:
                text = line.decode("utf-8", "replace")
                self.entries.append({"stream_name": "stdout", "time": time.time(), "data": text})
                self.changed.notify_all()
        code = self._process.wait()
        self._process.stdout.close()
        self.on_end(code)
        with self.changed:
            self.code = code
            self.changed.notify_all()
