"""This user's embedded server: find it, start it once, stop it.

A running server says where it is in ``server.json`` beside its data: ``{"url", "pid", "started_at"}``, mode
0600. The file alone proves nothing: the server counts as running only while the process named there is alive
and is not younger than the file says, so a number that the system gave to another program since then is never
mistaken for it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainshed.sdk.errors import ConfigurationError, ServerStartFailed, TrainshedError, WaitTimeout
from trainshed.sdk.home import Home, private_folder, read_private

SERVER_FILE = "server.json"
OWNER_KEY_FILE = "owner.key"
START_VARIABLES = {
    "TRAINSHED_SIMULATE_GPUS": "--simulate-gpus",
    "TRAINSHED_DATABASE_URL": "--database-url",
    "TRAINSHED_CONFIG": "--config",
}
"""Variables that only a server reads, when it starts, and the option that says the same."""
START_SECONDS = 60.0
STOP_SECONDS = 60.0
_POLL_SECONDS = 0.02
_CLOCK_SLACK_SECONDS = 2.0
"""The creation time of a process is derived from the boot time, which may move by a second."""
_LOG_TAIL_BYTES = 4096
_SAYS = "trainshed: "
"""Begins what ``trainshed serve`` says to whoever started it."""
EXIT_SETTINGS = 2
"""How ``trainshed serve`` exits where its settings cannot be used."""
EXIT_IN_USE = 4
"""How ``trainshed serve`` exits where another server uses its data folder."""
_IN_USE_SECONDS = 0.1
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_UNUSED_SECONDS = 10.0
"""How long a server whose start was given up may take to end by itself."""


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server on this machine that announced itself and is alive."""

    url: str
    pid: int
    started_at: float
    """Unix seconds of the announcement."""
    data_dir: Path

    def alive(self) -> bool:
        import psutil  # noqa: PLC0415 - only a client of an embedded server needs it

        try:
            process = psutil.Process(self.pid)
            older = process.create_time() <= self.started_at + _CLOCK_SLACK_SECONDS
            return older and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False


def read_announcement(data_dir: Path) -> RunningServer | None:
    """What ``server.json`` in ``data_dir`` says, alive or not."""
    document = read_private(data_dir / SERVER_FILE)
    if document is None:
        return None
    try:
        return RunningServer(
            url=str(document["url"]),
            pid=int(document["pid"]),
            started_at=float(document["started_at"]),
            data_dir=data_dir,
        )
    except (KeyError, TypeError, ValueError):
        return None


def find_in(data_dir: Path) -> RunningServer | None:
    """The live server of ``data_dir``, or ``None``."""
    server = read_announcement(data_dir)
    return server if server is not None and server.alive() else None


def find(home: Home) -> RunningServer | None:
    """This user's embedded server if it runs. Starts nothing."""
    return find_in(home.server_data)


def owner_key(home: Home) -> str | None:
    """The key that the embedded server wrote at its first start."""
    return read_key(home.server_data / OWNER_KEY_FILE)


def read_key(path: Path) -> str | None:
    """The key in a file that only its owner may read; ``None`` if there is no file."""
    try:
        info = path.stat()
        if info.st_mode & 0o077:
            hint = f"Run `chmod 600 {shlex.quote(str(path))}`."
            raise ConfigurationError(f"{path} is open to other users", hint=hint)
        return path.read_text(encoding="utf-8").strip() or None
    except FileNotFoundError:
        return None


def ignored_variables(server: RunningServer, environ: Mapping[str, str]) -> dict[str, str | None]:
    """Variables of ``environ`` that decide how a server starts, and this one was started without them.

    Answers each with the value that the server was started with, ``None`` for none. Empty where the system
    does not tell what a process was started with.
    """
    import psutil  # noqa: PLC0415 - as in alive

    try:
        process = psutil.Process(server.pid)
        given, words = process.environ(), process.cmdline()
    except psutil.Error:
        return {}
    return {
        name: given.get(name) or None
        for name, option in START_VARIABLES.items()
        if environ.get(name) and environ[name] != given.get(name) and option not in words
    }


def ensure(home: Home, on_start: Callable[[], None] | None = None) -> RunningServer:
    """This user's embedded server, started if it does not run. Two callers at once get the same one.

    ``on_start`` is called once before a start, or the wait for one that another caller made.
    Raises `ConfigurationError` for folders that are not this user's alone, and `ServerStartFailed` with what
    the server said, or the end of its log.
    """
    if server := find(home):
        return server
    # A folder that is refused is refused before anybody is told of a start.
    private_folder(private_folder(home.data) / home.server_data.name)
    if on_start is not None:
        on_start()
    with _lock(home):
        deadline = time.monotonic() + START_SECONDS
        while True:
            if server := find(home):
                return server
            try:
                return launch(home.server_data, home.server_log)
            except ServerStartFailed as error:
                # An earlier server has withdrawn its announcement and is still ending.
                if error.status != EXIT_IN_USE or time.monotonic() > deadline:
                    raise
                time.sleep(_IN_USE_SECONDS)


def launch(
    data_dir: Path,
    log: Path,
    options: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
) -> RunningServer:
    """Start a server on a free port of 127.0.0.1 in its own session and wait until it answers.

    It outlives the calling process. Raises `ServerStartFailed`.
    """
    private_folder(data_dir)
    (data_dir / SERVER_FILE).unlink(missing_ok=True)
    command = [sys.executable, "-m", "trainshed", "serve", "--host", "127.0.0.1", "--port", "0"]
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as output, _interrupts_held() as let_through:
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and module, no shell
            [*command, "--data-dir", str(data_dir), *options],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=data_dir,
            env=dict(environ) if environ is not None else None,
            start_new_session=True,
        )
        threading.Thread(target=process.wait, name="trainshed-server-reaper", daemon=True).start()
        try:
            let_through()
            said = _await_answer(data_dir, process)
        except BaseException:
            _end(process)
            raise
    if isinstance(said, RunningServer):
        return said
    tail = _tail(log)
    if why := _own_words(tail):
        said = f"your server cannot start: {why}"
    else:
        said = f"{said}; the end of its log:\n{tail}" if tail else f"{said} and wrote no log"
    raise ServerStartFailed(
        said,
        hint=f"The whole log is in {log}.",
        status=process.returncode,
    )


def _await_answer(data_dir: Path, process: subprocess.Popen[bytes]) -> RunningServer | str:
    """The server once it announced itself, or a sentence about why it did not."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        if server := find_in(data_dir):
            return server
        if process.returncode is not None:
            return f"the server ended with status {process.returncode} while starting"
        if time.monotonic() > deadline:
            _end(process)
            return f"the server was not ready after {START_SECONDS:.0f} s"
        time.sleep(_POLL_SECONDS)


@contextlib.contextmanager
def _interrupts_held() -> Iterator[Callable[[], None]]:
    """Let no Ctrl-C come between a process being made and somebody knowing it: nobody would end it.

    Yields what lets them through again, those that came meanwhile first. The same for other signals that the
    program handles.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    before = {number: signal.getsignal(number) for number in _ENDING}
    handled = {number: handler for number, handler in before.items() if callable(handler)}
    came: list[int] = []

    def let_through() -> None:
        for number, handler in handled.items():
            signal.signal(number, handler)
        while came:
            signal.raise_signal(came.pop(0))

    # Handlers, not a mask: the new process would keep that.
    for number in handled:
        signal.signal(number, lambda number, _: came.append(number))
    try:
        yield let_through
    finally:
        let_through()


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a server that nobody will use: what it writes to may be removed next."""
    process.terminate()
    deadline = time.monotonic() + _UNUSED_SECONDS
    while process.returncode is None:
        if time.monotonic() > deadline:
            process.kill()
        time.sleep(_POLL_SECONDS)


def stop(home: Home, *, seconds: float = STOP_SECONDS) -> bool:
    """Stop this user's embedded server; whether one ran. Its Jobs go on and are found again.

    Raises `WaitTimeout` if it is still there after ``seconds``.
    """
    if not home.data.exists():
        return False
    with _lock(home):
        server = find(home)
        if server is None:
            return False
        terminate(server, seconds=seconds)
        return True


def terminate(server: RunningServer, *, seconds: float = STOP_SECONDS) -> None:
    """Ask one server to end (SIGTERM) and wait until its process is gone."""
    import psutil  # noqa: PLC0415 - as in alive

    try:
        process = psutil.Process(server.pid)
        if not server.alive():
            return
        process.terminate()
        deadline = time.monotonic() + seconds
        while server.alive():
            if time.monotonic() > deadline:
                raise WaitTimeout(f"the server (process {server.pid}) is still there after {seconds:.0f} s")
            time.sleep(_POLL_SECONDS)
    except psutil.NoSuchProcess:
        pass
    except psutil.AccessDenied:
        raise TrainshedError(f"the server (process {server.pid}) belongs to another user") from None


@contextlib.contextmanager
def _lock(home: Home) -> Iterator[None]:
    private_folder(home.data)
    descriptor = os.open(home.start_lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _own_words(tail: str) -> str:
    """What a server that refused to start said to its operator, without what it logged before."""
    lines = tail.splitlines()
    for place in range(len(lines) - 1, -1, -1):
        if lines[place].startswith(_SAYS):
            return "\n".join(lines[place:]).removeprefix(_SAYS)
    return ""


def _tail(log: Path) -> str:
    try:
        data = log.read_bytes()
    except OSError:
        return ""
    return data[-_LOG_TAIL_BYTES:].decode("utf-8", "replace").strip()
