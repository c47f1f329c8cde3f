"""Runs the user's command on the head and sends all that it prints, and its end, to the submitter.

It is what a Ray Job's entrypoint starts, always as the same list of words (X2). The command is read from a
file, byte for byte, and given to ``bash -c`` as one argument.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time

from trainshed.jobkit import linux, ray_capture, ray_wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainshed.jobkit.ray_wire import Json

_CHUNK = 1 << 16
_CONNECT_SECONDS = 30.0
_DRAIN_SECONDS = 2.0


def main(place: str, address: str, port: str) -> None:
    """Run the command in ``place`` for the submitter that listens at ``address``; exits with its code."""
    with open(os.path.join(place, ray_wire.CONFIG), encoding="utf-8") as file:
        config: Json = json.load(file)
    connection = _connect(address, int(port))
    connection.sendall(config["token"].encode().ljust(128)[:128])
    driver = _Driver(connection, config["grace_seconds"], _environment(place))
    sys.exit(driver.run(os.path.join(place, ray_wire.COMMAND)))


def _environment(place: str) -> dict[str, str]:
    """The driver's variables: those of the Job, and on a shared cluster the task's own over them."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    try:
        with open(os.path.join(place, ray_wire.CLUSTER), encoding="utf-8") as file:
            cluster: Json = json.load(file)
        with open(os.path.join(place, ray_wire.ENVIRONMENT), encoding="utf-8") as file:
            environment |= json.load(file)
    except FileNotFoundError:
        return environment
    environment[ray_capture.VARIABLE] = cluster["group"]
    capture = os.path.join(place, "capture")
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (capture, environment.get("PYTHONPATH"))))
    return environment


def _connect(address: str, port: int) -> socket.socket:
    connection = socket.create_connection((address, port), timeout=_CONNECT_SECONDS)
    connection.settimeout(None)
    return connection


class _Driver:
    def __init__(self, connection: socket.socket, grace: float, environment: dict[str, str]) -> None:
        self._connection = connection
        self._environment = environment
        self._grace = grace
        self._kill_at: float | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, command: str) -> int:
        with open(command, "rb") as file:
            text = file.read()
        wake, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._ask())
        try:
            self._process = process = subprocess.Popen(  # noqa: S603 - the user's own command
                [b"bash", b"-c", text],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                preexec_fn=lambda: linux.die_with_parent(signal.SIGKILL),  # noqa: PLW1509 - one thread
            )
        except OSError as error:
            message = f"BASH_MISSING: the command cannot be run: {error.strerror}\n"
            self._send(ray_wire.STDERR, message.encode())
            self._send(ray_wire.EXIT_CODE, b"127")
            return 127
        assert process.stdout is not None  # noqa: S101 - both were started with a pipe
        assert process.stderr is not None  # noqa: S101 - as above
        pipes = {process.stdout.fileno(): ray_wire.STDOUT, process.stderr.fileno(): ray_wire.STDERR}
        drained: float | None = None
        while pipes and (drained is None or time.monotonic() < drained):
            pause = 0.1 if self._kill_at or drained else None
            watched = [*pipes, wake, self._connection.fileno()]
            ready = select.select(watched, [], [], pause)[0]
            self._keep_time(ready)
            if wake in ready:
                os.read(wake, _CHUNK)
            for fd in [fd for fd in ready if fd in pipes]:
                piece = os.read(fd, _CHUNK)
                if piece:
                    self._pass_on(pipes[fd], piece)
                else:
                    del pipes[fd]
            if drained is None and process.poll() is not None:
                drained = time.monotonic() + _DRAIN_SECONDS  # what it left behind may hold the pipes for ever
        code = process.wait()
        code = 128 - code if code < 0 else code
        self._send(ray_wire.EXIT_CODE, str(code).encode())
        return code

    def _keep_time(self, ready: list[int]) -> None:
        # The submitter says nothing: what can be read is that it asks for the end, or is gone.
        if self._connection.fileno() in ready and self._kill_at is None:
            self._ask()
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self._signal(signal.SIGKILL)

    def _ask(self) -> None:
        if self._kill_at is None:
            self._kill_at = time.monotonic() + self._grace
            self._signal(signal.SIGTERM)

    def _signal(self, number: int) -> None:
        if self._process is not None:
            try:
                os.killpg(self._process.pid, number)
            except ProcessLookupError:
                pass

    def _pass_on(self, kind: int, piece: bytes) -> None:
        self._send(kind, piece)
        try:
            os.write(1, piece)  # for those who look at the Job in Ray's dashboard
        except OSError:
            pass

    def _send(self, kind: int, piece: bytes) -> None:
        try:
            self._connection.sendall(ray_wire.PIECE.pack(kind, len(piece)) + piece)
        except OSError:
            self._ask()  # nobody is there to hear it
