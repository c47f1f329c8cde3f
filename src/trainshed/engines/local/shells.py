"""The engine's end of a shell beside a program: a terminal or pipes, and the connection that holds it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import struct
import termios
from pathlib import Path
from typing import Any

from trainshed.engines.contract import EngineError
from trainshed.jobkit import folder
from trainshed.jobkit.shells import socket_path

_OPEN_SECONDS = 20.0
"""More than a shim takes to look at its requests by itself, if the program took its FIFO away."""
_MESSAGE_BYTES = 1 << 14
_END_OF_TRANSMISSION = b"\x04"


class LocalShell:
    """See `Shell`. Closing its connection ends it, and so does the end of this process."""

    def __init__(
        self, terminal: int, connection: socket.socket, *, pipe: tuple[int, int] | None = None
    ) -> None:
        """``pipe``: both ends of what it prints into, where ``terminal`` is the pipe that it reads from.

        The end that it prints into stays open here, so that reading finds no end before the shell's.
        """
        self._terminal = terminal
        self._pipe = pipe
        self._connection = connection
        self._said = b""
        self._code: int | None = None
        os.set_blocking(terminal, False)
        os.set_blocking(self.output, False)

    @property
    def terminal(self) -> int:
        """See `Shell.terminal`."""
        return self._terminal

    @property
    def output(self) -> int:
        """See `Shell.output`."""
        return self._terminal if self._pipe is None else self._pipe[0]

    @property
    def ended(self) -> int:
        """See `Shell.ended`."""
        return self._connection.fileno()

    def started(self) -> None:
        """Wait until it runs. Raises `EngineError` with the reason if it does not."""
        try:
            self._connection.settimeout(_OPEN_SECONDS)
            said = self._next()
        except (OSError, ValueError) as error:
            raise _unavailable(f"the shell did not start: {error}") from error
        if said is None:
            raise _unavailable("the program ended before the shell had started")
        if said.get("started") is not True:
            raise _unavailable(f"the shell did not start: {said.get('error')}")
        self._connection.settimeout(0)

    def exit_code(self) -> int | None:
        """See `Shell.exit_code`."""
        if self._code is None:
            with contextlib.suppress(OSError, ValueError):
                code = (self._next() or {}).get("exit_code")
                self._code = code if isinstance(code, int) else None
        return self._code

    def _next(self) -> dict[str, Any] | None:
        """The next message of the leader's; ``None`` if it is gone."""
        while b"\n" not in self._said and len(self._said) < _MESSAGE_BYTES:
            data = self._connection.recv(_MESSAGE_BYTES)
            if not data:
                return None
            self._said += data
        line, _, self._said = self._said.partition(b"\n")
        said = json.loads(line)
        return said if isinstance(said, dict) else {}

    def resize(self, rows: int, columns: int) -> None:
        """See `Shell.resize`."""
        if self._pipe is None:
            fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def end_input(self) -> None:
        """See `Shell.end_input`."""
        if self._pipe is None:
            os.write(self._terminal, _END_OF_TRANSMISSION)
        elif self._terminal >= 0:
            os.close(self._terminal)
            self._terminal = -1

    def close(self) -> None:
        """See `Shell.close`."""
        self._connection.close()
        if self._terminal >= 0:
            os.close(self._terminal)
            self._terminal = -1
        for end in self._pipe or ():
            os.close(end)
        self._pipe = None


def clear(root: Path) -> None:
    """Remove what a process left that was killed while it asked for a shell; whoever was asked gives up."""
    place = root / folder.SHELLS
    if place.is_dir():
        for left in place.iterdir():
            left.unlink(missing_ok=True)


def open_shell(root: Path, path: Path, size: tuple[int, int] | None) -> LocalShell:
    """Have the shim of the attempt in ``path`` start a shell. Raises `EngineError`.

    ``size``: rows and columns of its terminal; ``None`` gives it pipes.
    """
    place, name = root / folder.SHELLS, os.urandom(8).hex()
    request = path / folder.SHELLS / name
    with contextlib.ExitStack() as stack:
        try:
            place.mkdir(mode=0o700, exist_ok=True)
            held = os.open(place, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, held)
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(socket_path(held, name))
            stack.callback((place / name).unlink, missing_ok=True)
            listener.listen(1)
            listener.settimeout(_OPEN_SECONDS)
            request.parent.mkdir(mode=0o700, exist_ok=True)
            request.touch(mode=0o600)
            stack.callback(request.unlink, missing_ok=True)
            folder.poke(path / folder.CONTROL)
            connection, _ = listener.accept()
        except TimeoutError as error:
            raise _unavailable("nobody beside the program answered in time") from error
        except OSError as error:
            raise _unavailable(f"a shell cannot be asked for: {error}") from error
        shell = _hand_over(connection, size)
    try:
        shell.started()
    except BaseException:
        shell.close()
        raise
    return shell


def _hand_over(connection: socket.socket, size: tuple[int, int] | None) -> LocalShell:
    if size is None:
        (inner, typed), pipe = os.pipe(), os.pipe()
        shell, given = LocalShell(typed, connection, pipe=pipe), [inner, pipe[1]]
    else:
        terminal, inner = os.openpty()
        shell, given = LocalShell(terminal, connection), [inner]
    try:
        if size is not None:
            shell.resize(*size)
        socket.send_fds(connection, [b"{}"], given)
    except OSError as error:
        shell.close()
        raise _unavailable(f"the terminal cannot be handed over: {error}") from error
    finally:
        os.close(inner)
    return shell


def _unavailable(message: str) -> EngineError:
    return EngineError("SHELL_UNAVAILABLE", message, retryable=True)
