"""The `gpu` command line as people run it: in this process where that is enough, at a terminal where not.

What sits at a terminal descends from the init process alone, so what the tests themselves run under does not
count as who is behind it. Run as a program, this module is that process.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from unittest import mock

from support.waiting import wait_until
from trainshed.cli.main import gpu_main
from trainshed.sdk.source import MARKERS

GPU = Path(sys.executable).with_name("gpu")
SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Ran:
    """One run of the program: exit status and what it printed."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def error(self) -> Any:
        """The refusal of a run with ``--json``: the last line on stderr."""
        return json.loads(self.err.splitlines()[-1])


class Line:
    """Runs ``gpu`` with an environment of its own."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = dict(environment)

    def __call__(
        self,
        *words: str,
        folder: Path | None = None,
        stdin: str = "",
        env: Mapping[str, str] | None = None,
        program: str = "gpu",
    ) -> Ran:
        """Run it in this process; ``folder`` is where it stands."""
        kept = {name: value for name, value in os.environ.items() if name not in MARKERS}
        kept = {name: value for name, value in kept.items() if not name.startswith("TRAINSHED_")}
        out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
        with contextlib.ExitStack() as stack:
            stack.enter_context(
                mock.patch.dict(os.environ, {**kept, **self.environment, **(env or {})}, clear=True)
            )
            stack.enter_context(mock.patch.object(sys, "argv", [program]))
            stack.enter_context(mock.patch.object(sys, "stdin", io.StringIO(stdin)))
            stack.enter_context(contextlib.chdir(folder or Path.cwd()))
            stack.enter_context(contextlib.redirect_stdout(out))
            stack.enter_context(contextlib.redirect_stderr(err))
            status = int(gpu_main(list(words)))
        found = [stream.buffer.getvalue().decode() for stream in (out, err)]  # type: ignore[attr-defined] # BytesIO
        return Ran(status, *found)

    def json(self, *words: str, **more: Any) -> Any:
        """The document of a run that has to work."""
        ran = self(*words, "--json", **more)
        assert ran.status == 0, (ran.status, ran.err)
        return ran.json

    def process(self, *words: str, folder: Path) -> subprocess.Popen[str]:
        """Run it as a process of its own."""
        return subprocess.Popen(
            [GPU, *words],
            cwd=folder,
            env={**_plain_environment(), **self.environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


class Seat:
    """A program in the foreground of a pseudo-terminal, with nobody above it."""

    def __init__(self, folder: Path, words: Sequence[str], environment: Mapping[str, str]) -> None:
        folder.mkdir(parents=True)
        self._end = folder / "status"
        self._master, self._slave = pty.openpty()
        setting = {
            "terminal": os.ttyname(self._slave),
            "argv": [os.fspath(GPU), *words],
            "env": {**_plain_environment(), "TERM": "xterm", "COLUMNS": "100", **environment},
            "end": os.fspath(self._end),
        }
        above = {"PYTHONPATH": os.pathsep.join(sys.path), "PATH": os.environ["PATH"]}
        subprocess.run(
            [sys.executable, "-m", "support.gpu_line", json.dumps(setting)], env=above, check=True, timeout=60
        )
        self._seen = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._slave)
        os.close(self._master)

    def shown(self) -> str:
        """What the terminal has shown so far."""
        while select.select([self._master], [], [], 0)[0]:
            self._seen += os.read(self._master, 65_536).decode("utf-8", "replace")
        return self._seen

    def until(self, text: str) -> str:
        """Everything shown, once ``text`` is among it."""
        wait_until(lambda: text in self.shown(), SECONDS, f"{text!r} on the terminal: {self._seen!r}")
        return self._seen

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def status(self) -> int:
        """How the program ended."""

        def ended() -> str:
            self.shown()  # a full terminal would hold the program up
            return self._end.read_text() if self._end.exists() else ""

        return int(wait_until(ended, SECONDS, "the end of the program"))


def _plain_environment() -> dict[str, str]:
    names = ("PATH", "HOME", "LANG", "PYTHONDONTWRITEBYTECODE")
    return {"PYTHONUTF8": "1", **{name: os.environ[name] for name in names if name in os.environ}}


def _become(setting: Mapping[str, Any]) -> None:
    """Leave this process's parents, take the terminal, and run the program there."""
    if os.fork():
        os._exit(0)
    os.setsid()
    # The first terminal that a session leader opens becomes the one that controls it.
    terminal = os.open(setting["terminal"], os.O_RDWR)
    child = os.fork()
    if not child:
        for number in range(3):
            os.dup2(terminal, number)
        os.execve(setting["argv"][0], setting["argv"], setting["env"])
    # Ctrl-C goes to everything in the foreground; what it is about is the program.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    part = Path(setting["end"] + ".part")
    part.write_text(str(status))
    part.replace(setting["end"])


def lines(process: subprocess.Popen[str]) -> Iterator[str]:
    """What a process prints, line by line."""
    assert process.stdout is not None
    yield from process.stdout


if __name__ == "__main__":
    _become(json.loads(sys.argv[1]))
