"""Google's command line for Colab (google-colab-cli 0.7.5), one call a process.

Its exit status says little: it is 0 where a session is not found and where a cell raised, and 1 where a cell
goes on for longer than it was waited for. So what was done is read from the text and from files of the
session. Its text holds addresses with tokens in them, and none of it is shown to anybody.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

from trainshed.engines.providers.contract import AuthRequired, Unavailable
from trainshed.engines.providers.limits import Deadline

INSTALL = "Install it with `uv tool install google-colab-cli`."
LOG_IN = (
    "As the server's user, log in as `colab --help` says under --auth "
    "(`gcloud auth application-default login` with Colab's scopes), until `colab sessions` answers."
)
_LOGGED_OUT = re.compile(
    r"no valid default credentials|reauthentication|refresherror|invalid_grant|\b401\b|unauthorized",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Said:
    """What a call answered."""

    code: int
    text: str
    """Both streams; for looking at, not for showing."""

    @property
    def not_found(self) -> bool:
        """Whether it says that a session or a file is not there."""
        return "not found" in self.text.lower()


class Command:
    """Calls it. Thread-safe. ``state`` is the file in which it keeps the names of its sessions.

    Nothing is waited for longer than ``deadline`` allows.
    """

    def __init__(self, program: str, state: Path, deadline: Deadline | None = None) -> None:
        self.deadline = deadline or Deadline()
        self._program = program
        self._state = state

    def installed(self) -> bool:
        return shutil.which(self._program) is not None

    def __call__(self, *words: str, seconds: float) -> Said:
        """One call; raises `AuthRequired` where nobody is logged in, `Unavailable` where it did not end."""
        seconds = self.deadline.left(seconds)
        argv = [self._program, "--config", os.fspath(self._state), *words]
        try:
            process = subprocess.Popen(  # noqa: S603 - the program that the configuration names
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise Unavailable(f"Colab's command line cannot be run: {error.strerror}. {INSTALL}") from None
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise Unavailable(f"`colab {words[0]}` did not end within {seconds:.3g} s") from None
        said = Said(process.returncode, output.decode("utf-8", "replace"))
        if words[0] != "exec" and _LOGGED_OUT.search(said.text):
            raise AuthRequired(f"nobody is logged in at Colab. {LOG_IN}")
        return said
