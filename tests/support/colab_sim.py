"""Google's command line for Colab as google-colab-cli 0.7.5 behaves, with machines that are folders here.

`install` writes the program; cells really run. The traps: exit status 0 where a session is not found and
where a cell raised; a cell that goes on after it was not waited for any longer, which ends the call with a
traceback; an unknown name of a GPU becomes an A100; a name is given twice to two machines; hidden files
cannot be reached; errors that show an address with its token.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

GPUS = {"t4": "T4", "l4": "L4", "g4": "G4", "h100": "H100", "a100": "A100"}
_PROGRAM = """#!{python}
import sys
sys.path.insert(0, {tests!r})
from support.colab_sim import main
sys.exit(main({root!r}, sys.argv[1:]))
"""


class Colab:
    """Everything at Colab, as it is in a folder; the program and the tests look at the same."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)

    @property
    def program(self) -> str:
        return str(self.root / "colab")

    def install(self) -> None:
        path = self.root / "colab"
        tests = str(Path(__file__).parents[1])
        path.write_text(_PROGRAM.format(python=sys.executable, tests=tests, root=str(self.root)))
        path.chmod(0o755)

    @contextmanager
    def state(self) -> Iterator[dict[str, Any]]:
        """``sessions`` by name, ``cells``, ``calls`` and ``faults`` by command."""
        with (self.root / "lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            path = self.root / "state.json"
            empty = {"sessions": {}, "cells": [], "calls": [], "faults": {}, "pids": [], "machines": 0}
            found = json.loads(path.read_text()) if path.exists() else empty
            yield found
            # A call that is ended in the middle must leave what was there before.
            fresh = path.with_suffix(".new")
            fresh.write_text(json.dumps(found))
            fresh.replace(path)

    def fault(self, command: str, *texts: str) -> None:
        """What the next calls of a command say, with status 1, having done nothing."""
        with self.state() as state:
            state["faults"].setdefault(command, []).extend(texts)

    def slow_down(self, seconds: float | None) -> None:
        """Have every call take longer; ``None``: for ever."""
        with self.state() as state:
            state["slow"] = seconds

    def lose(self, name: str) -> None:
        """Take a machine away."""
        with self.state() as state:
            session = state["sessions"].pop(name)
        self._kill(session.get("pids", []))
        shutil.rmtree(session["root"], ignore_errors=True)

    def close(self) -> None:
        with self.state() as state:
            self._kill(state["pids"])

    @staticmethod
    def _kill(pids: list[int]) -> None:
        for pid in pids:
            try:
                os.killpg(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def say(text: str) -> None:
    sys.stdout.write(text + "\n")


def main(root: str, argv: list[str]) -> int:  # noqa: PLR0911 - one for each command
    """The program."""
    there = Colab(Path(root))
    if argv[0] == "--config":
        argv = argv[2:]
    command, words = argv[0], argv[1:]
    with there.state() as state:
        state["calls"].append(argv)
        slow = state.get("slow", 0.0)
        faults = state["faults"].get(command) or state["faults"].get("*") or []
        if faults:
            say(faults[0] if state["faults"].get("*") else faults.pop(0))
            return 1
    select.select((), (), (), slow)
    options, rest = _options(words)
    name = options.get("-s", "")
    if command in {"sessions", "usage"}:
        say("[colab] No active sessions found on server." if command == "sessions" else _USAGE)
        return 0
    if command == "new":
        return _new(there, name, options)
    with there.state() as state:
        session = state["sessions"].get(name)
    if session is None:
        say(f"[colab] Session '{name}' not found.")
        return 0 if command in {"status", "stop"} else 1
    top = Path(session["root"])
    if command == "status":
        shape = "Shape: STANDARD | Variant: GPU | Status: BUSY (exec(cell.py))"
        say(f"[{name}] m-s-{name} | Hardware: {session['gpu']} | {shape}")
        return 0
    if command == "stop":
        there.lose(name)
        say("[colab] Session terminated.")
        return 0
    if command == "exec":
        return _exec(there, name, top, options)
    return _file(command, top, rest)


_USAGE = "Current balance: 12.50 compute units\nUsage rate: 0.00/hr\nActive assignments: 0"


def _options(words: list[str]) -> tuple[dict[str, str], list[str]]:
    options, rest, at = {}, [], 0
    while at < len(words):
        if words[at].startswith("-"):
            options[words[at]] = words[at + 1]
            at += 2
        else:
            rest.append(words[at])
            at += 1
    return options, rest


def _new(there: Colab, name: str, options: dict[str, str]) -> int:
    from support.sessions import driver  # noqa: PLC0415 - most calls need none

    gpu = GPUS.get(options["--gpu"].lower(), "A100") if "--gpu" in options else "CPU"
    say(f"[colab] Creating session '{name}'...")
    with there.state() as state:
        state["machines"] += 1
        root = there.root / "machines" / f"{name}-{state['machines']}"
        (root / "content").mkdir(parents=True)
        driver(root / "bin", None if gpu == "CPU" else f"Tesla {gpu}", 0 if gpu == "CPU" else 1)
        state["sessions"][name] = {"root": str(root), "gpu": gpu, "pids": []}
    say("[colab] Session READY.")
    return 0


def _exec(there: Colab, name: str, top: Path, options: dict[str, str]) -> int:
    from support.sessions import environment  # noqa: PLC0415 - as above

    seconds = float(options.get("--timeout", "30"))
    shutil.copyfile(options["-f"], top / "cell.py")
    process = subprocess.Popen(
        [sys.executable, "cell.py"],
        cwd=top,
        env=environment(top),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=(top / "cell.err").open("wb"),
        start_new_session=True,
    )
    with there.state() as state:
        state["cells"].append(name)
        state["pids"].append(process.pid)
        state["sessions"][name]["pids"].append(process.pid)
    # The tests do not wait as long as they say: what goes on after two seconds, goes on.
    try:
        process.wait(min(seconds, 2.0))
    except subprocess.TimeoutExpired:
        say("Traceback (most recent call last):\nTimeoutError: Timeout waiting for output")
        return 1
    say((top / "cell.err").read_text())
    return 0  # also of a cell that raised


def _file(command: str, top: Path, words: list[str]) -> int:
    remote = words[1] if command == "upload" else words[0]
    path = top / remote.strip("/")
    if any(part.startswith(".") for part in Path(remote).parts):
        say(
            f"[colab] {command.title()} failed: 404 Client Error for url: https://x/?colab-runtime-proxy-token=t"
        )
        return 1
    if command == "upload":
        if not path.parent.is_dir():
            say("[colab] Upload failed: 500 Server Error")
            return 1
        shutil.copyfile(words[0], path)
        say(f"[colab] Uploaded '{words[0]}' to '{remote}'")
        return 0
    if not path.exists():
        said = f"File or directory not found: {remote}"
        say(f"[colab] Download failed: {said}" if command == "download" else f"[colab] Error: {said}")
        return 1
    if command == "download":
        shutil.copyfile(path, words[1])
        say(f"[colab] Downloaded '{remote}' to '{words[1]}'")
    else:
        for entry in sorted(path.iterdir()):
            say(f"{entry.name}{'/' if entry.is_dir() else ''}")
    return 0
