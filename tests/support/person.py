"""A person at a terminal: a process of its own session in the foreground of a pseudo-terminal.

It descends from the init process alone, so what the tests themselves run under does not count as who is
behind it. Run as a program, this module is that process.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import tty
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from support.waiting import wait_until

SECONDS = 30.0
CODE = re.compile(r"type this code: ([0-9A-Z]{4}-[0-9A-Z]{4})")


class Person:
    """Makes requests from a terminal, one after another, and sees what the terminal shows."""

    def __init__(
        self,
        folder: Path,
        url: str,
        key: str,
        *,
        env: Mapping[str, str] | None = None,
        ancestor: Mapping[str, str] | None = None,
        screen: Mapping[str, str] | None = None,
        terminal: bool = True,
        background: bool = False,
        orphan: bool = False,
    ) -> None:
        """``env`` is the environment of the process, ``ancestor`` that of one above it alone, ``screen`` that
        of whoever has the other end of the terminal. An ``orphan`` left the one above it.
        """
        self._folder = folder
        folder.mkdir(parents=True)
        self._requests, self._answers = folder / "requests", folder / "answers"
        os.mkfifo(self._requests)
        os.mkfifo(self._answers)
        self._screen = folder / "screen"
        self._screen.touch()
        os.mkfifo(folder / "switch")
        setting = {
            "url": url,
            "key": key,
            "env": dict(env or {}),
            "ancestor": None if ancestor is None else dict(ancestor),
            "screen": str(self._screen),
            "switch": str(folder / "switch"),
            "screen_env": dict(screen or {}),
            "terminal": terminal,
            "background": background,
            "orphan": orphan,
            "requests": str(self._requests),
            "answers": str(self._answers),
        }
        above = {"PYTHONPATH": os.pathsep.join(sys.path), "PATH": os.environ["PATH"]}
        subprocess.run(
            [sys.executable, "-m", "support.person", json.dumps(setting)],
            env={**above, **setting["screen_env"]},
            check=True,
            timeout=SECONDS,
        )
        self._on = (folder / "switch").open("w")
        self._to = self._requests.open("w", buffering=1)
        self._from = self._answers.open()
        self._seen = ""

    def request(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        self._to.write(json.dumps([method, path, body]) + "\n")
        status, answer = json.loads(self._from.readline())
        return status, answer

    def shown(self) -> str:
        """What the terminal has shown so far."""
        self._seen = self._screen.read_text()
        return self._seen

    def code(self) -> str:
        """The newest code that was shown."""
        wait_until(lambda: bool(CODE.search(self.shown())), SECONDS, "a code on the terminal")
        return CODE.findall(self._seen)[-1]

    def close(self) -> None:
        for file in (self._to, self._from, self._on):
            with contextlib.suppress(OSError):
                file.close()


def _become(setting: dict[str, Any]) -> None:
    """Leave this process's parents, and be the screen of a terminal with somebody at it."""
    if os.fork():
        os._exit(0)
    os.setsid()
    master, slave = pty.openpty()
    tty.setraw(slave, termios.TCSANOW)
    place = os.ttyname(slave)
    if not os.fork():
        os.close(master)
        _sit_down(setting, place)
    switch = os.open(setting["switch"], os.O_RDONLY)
    with open(setting["screen"], "ab", buffering=0) as screen:  # noqa: PTH123 - a text from JSON
        # It has the terminal open itself, so nothing is lost while nobody else has.
        while switch not in select.select([master, switch], [], [])[0]:
            screen.write(os.read(master, 65_536))


def _sit_down(setting: Mapping[str, Any], place: str) -> None:
    """Take the terminal, and serve the requests."""
    if os.fork():
        os._exit(0)  # whoever is at the terminal is no child of its screen
    os.setsid()
    if setting["terminal"]:
        # The first terminal that a session leader opens becomes the one that controls it.
        os.open(place, os.O_RDWR)
    argv = [sys.executable, "-m", "support.person", "serve", json.dumps(setting)]
    env = {"PYTHONPATH": os.environ["PYTHONPATH"], "PATH": os.environ["PATH"], **setting["env"]}
    if setting["ancestor"] is None and not setting["background"]:
        os.execve(sys.executable, argv, env)
    how = json.dumps([setting["background"], setting["orphan"], argv, env])
    above = [sys.executable, "-m", "support.person", "above", how]
    os.execve(sys.executable, above, {**env, **(setting["ancestor"] or {})})


def _above(background: bool, orphan: bool, argv: Sequence[str], env: Mapping[str, str]) -> None:  # noqa: FBT001 - from JSON
    child = os.fork()
    if not child:
        if orphan and os.fork():
            os._exit(0)
        if background:
            os.setpgid(0, 0)
        os.execve(argv[0], list(argv), dict(env))
    os.waitpid(child, 0)
    if orphan:
        signal.pause()  # until the terminal is gone


def _serve(setting: Mapping[str, Any]) -> None:
    places = Path(setting["requests"]), Path(setting["answers"])
    with places[0].open() as requests, places[1].open("w", buffering=1) as answers:
        for line in requests:
            method, path, body = json.loads(line)
            host = setting["url"].removeprefix("http://")
            connection = http.client.HTTPConnection(host, timeout=SECONDS)
            headers = {"Authorization": f"Bearer {setting['key']}", "Content-Type": "application/json"}
            content = None if body is None else json.dumps(body)
            connection.request(method, path, content, headers)
            answer = connection.getresponse()
            answers.write(json.dumps([answer.status, json.loads(answer.read())]) + "\n")
            connection.close()


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        _serve(json.loads(sys.argv[2]))
    elif sys.argv[1] == "above":
        _above(*json.loads(sys.argv[2]))
    else:
        _become(json.loads(sys.argv[1]))
