"""The shell of an engine that runs nothing: a terminal that knows ``exit`` and answers what it is told."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import termios
import threading
from collections.abc import Callable

_LINE_BYTES = 4096
_LOOK_SECONDS = 0.01


class FakeShell:
    """See `Shell`. ``runs`` says whether its attempt still does."""

    def __init__(self, runs: Callable[[], bool], rows: int, columns: int, *, echo: bool = True) -> None:
        self._runs = runs
        self._terminal, self._inner = os.openpty()
        self._ended, self._ended_write = os.pipe()
        self._code: int | None = None
        self._closing = threading.Event()
        self.resize(rows, columns)
        if not echo:
            modes = termios.tcgetattr(self._inner)
            modes[1] &= ~termios.OPOST
            modes[3] &= ~termios.ECHO
            termios.tcsetattr(self._inner, termios.TCSANOW, modes)
        os.set_blocking(self._terminal, False)
        os.set_blocking(self._inner, False)
        self._thread = threading.Thread(target=self._serve, name="fake-shell", daemon=True)
        self._thread.start()

    @property
    def terminal(self) -> int:
        """See `Shell.terminal`."""
        return self._terminal

    @property
    def output(self) -> int:
        """See `Shell.output`."""
        return self._terminal

    @property
    def ended(self) -> int:
        """See `Shell.ended`."""
        return self._ended

    def exit_code(self) -> int | None:
        """See `Shell.exit_code`."""
        return self._code

    def resize(self, rows: int, columns: int) -> None:
        """See `Shell.resize`."""
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def end_input(self) -> None:
        """See `Shell.end_input`."""
        os.write(self._terminal, b"\x04")

    def close(self) -> None:
        """See `Shell.close`."""
        if self._terminal < 0:
            return
        self._closing.set()
        self._thread.join()
        for fd in (self._terminal, self._inner, self._ended, self._ended_write):
            with contextlib.suppress(OSError):
                os.close(fd)
        self._terminal = -1

    def _serve(self) -> None:
        while not self._closing.wait(_LOOK_SECONDS) and self._runs():
            try:
                line = os.read(self._inner, _LINE_BYTES)
            except BlockingIOError:
                continue
            word, _, rest = line.strip().partition(b" ")
            if not line or word == b"exit":
                self._code = int(rest or b"0")
                break
            with contextlib.suppress(OSError):
                os.write(self._inner, b"you said " + line)
        os.write(self._ended_write, b"!")
