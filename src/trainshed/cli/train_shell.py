"""``train shell`` and ``train dashboard``: reaching into a task that runs, or is kept for a look."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from trainshed.cli.exits import Exit
from trainshed.cli.output import Sentence
from trainshed.cli.parameters import Whole
from trainshed.cli.session import Session, json_option
from trainshed.cli.train_watch import REFERENCE

if TYPE_CHECKING:
    from trainshed.sdk.websocket import WebSocket

_CHUNK = 4096


@click.command()
@click.argument("task", type=REFERENCE)
@click.option(
    "--role",
    type=click.Choice(["master", "worker", "head", "submitter"]),
    help="Whose; the master's or the head's by default.",
)
@click.option("--index", type=Whole(0), help="Which replica of the role, from 0.")
@click.pass_context
def shell(context: click.Context, *, task: str, role: str | None, index: int | None) -> None:
    """Open a shell beside the program of a replica.

    It is there while the task runs, and while a Ray cluster is kept for a look. What is given on stdin runs
    there too, where that is no terminal: without a prompt or an echo. Exits with the status of the shell,
    and with 1 where it ended with its replica.
    """
    if index is not None and role is None:
        raise click.UsageError("--index counts within a role; give --role too")
    session = context.ensure_object(Session)
    columns, rows = _window()
    with session.client() as client:
        connection = client.tasks.shell(
            task, role=role, index=index, rows=rows, columns=columns, tty=sys.stdin.isatty()
        )
        with connection, _terminal(connection):
            threading.Thread(target=_type, args=(connection,), daemon=True).start()
            code = _print(connection)
    context.exit(Exit.FAILED if code is None else code)


@click.command()
@click.argument("task", type=REFERENCE)
@click.option("--port", type=Whole(0, 65535), default=0, help="Local port; a free one by default.")
@json_option
@click.pass_obj
def dashboard(session: Session, *, task: str, port: int) -> None:
    """Open the Ray dashboard of a task on a local port, until Ctrl-C.

    The address holds a secret: other users of this machine cannot use the port.
    """
    from trainshed.cli.train_proxy import HOST, DashboardServer  # noqa: PLC0415 - not for `--help`
    from trainshed.sdk.errors import ConfigurationError  # noqa: PLC0415 - as above

    with session.client() as client:
        # What cannot be reached is told before a port is open.
        client.tasks.dashboard(task, "GET", "")
        try:
            server = DashboardServer(client, task, port)
        except OSError as error:
            raise ConfigurationError(f"cannot listen on {HOST}:{port}: {error.strerror}") from None
        with server:
            document = {"task": task, "url": server.url}
            session.show(document, Sentence(lambda _: server.url))
            session.note("Ctrl-C ends it.")
            server.serve_forever()


def _print(connection: WebSocket) -> int | None:
    """What the shell prints, until it ends; answers how it ended if the server says so."""
    code = None
    while (message := connection.receive()) is not None:
        if isinstance(message, bytes):
            sys.stdout.buffer.write(message)
            sys.stdout.buffer.flush()
            continue
        with contextlib.suppress(ValueError):
            said = json.loads(message)
            if isinstance(said, dict) and isinstance(said.get("exit_code"), int):
                code = said["exit_code"]
    return code


def _type(connection: WebSocket) -> None:
    """What is typed, until the end of stdin or of the connection."""
    from trainshed.sdk.errors import ConnectionFailed  # noqa: PLC0415 - click only at import time

    with contextlib.suppress(ConnectionFailed, OSError):
        while data := os.read(sys.stdin.fileno(), _CHUNK):
            connection.send(data)
        connection.send(json.dumps({"eof": True}))


def _window() -> tuple[int, int]:
    """Columns and rows of the terminal that is typed at; COLUMNS and LINES do not follow its window."""
    with contextlib.suppress(OSError, ValueError):
        columns, rows = os.get_terminal_size(sys.stdin.fileno())
        if columns and rows:
            return columns, rows
    return shutil.get_terminal_size()


@contextlib.contextmanager
def _terminal(connection: WebSocket) -> Iterator[None]:
    """Hand every key on as it is, and tell of a window that changes its size, while a person types."""
    if not sys.stdin.isatty():
        yield
        return
    import termios  # noqa: PLC0415 - only where there is a terminal
    import tty  # noqa: PLC0415 - as above

    def resized(*_: object) -> None:
        columns, rows = _window()
        connection.send(json.dumps({"resize": {"rows": rows, "columns": columns}}))

    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)
    handler = signal.signal(signal.SIGWINCH, resized)
    tty.setraw(number)
    try:
        yield
    finally:
        signal.signal(signal.SIGWINCH, handler)
        termios.tcsetattr(number, termios.TCSADRAIN, before)
