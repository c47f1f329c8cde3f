"""The server's end of the helper: started when it is needed, replaced when it is gone. Thread-safe."""

from __future__ import annotations

import contextlib
import io
import json
import os
import select
import socket
import subprocess
import sys
import threading
import zipfile
from pathlib import Path
from typing import Any

import trainshed
from trainshed.engines.contract import EngineError
from trainshed.engines.local.environment import base_environment

Json = dict[str, Any]
_PACKAGE = Path(trainshed.__file__).parent
_SHIPPED = ("engines", "jobkit", "model")
_HELPER = Path(__file__).with_name("helper.py")
_BOOT = "import runpy, sys; runpy.run_path(sys.argv.pop(), run_name='__main__')"
"""As a file: its interpreter has Ray, and need not have what our packages import."""
_CONNECT_SECONDS = 60.0
_ANSWER_SECONDS = 90.0
_LEAVE_SECONDS = 5.0
_LOOK_SECONDS = 5.0
_CHUNK = 1 << 16


class _HelperGone(EngineError):
    """The helper ended, or does not answer."""


class Channel:
    """Requests to the helper, one at a time.

    Args:
        address: The cluster, as ``ray.init`` takes it.
        python: The interpreter that has Ray, of the version of the cluster.
        folder: For the code that is shipped and the helper's own log.
        settings: What the helper gets beside that.
    """

    def __init__(self, address: str, python: str, folder: Path, settings: Json) -> None:
        self._python = python
        self._folder = folder
        self._settings = {**settings, "address": address, "code": str(folder / "code.zip")}
        self._guard = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._buffer = b""
        self.facts: Json = {}
        """What the cluster said of itself: ``version``, ``dashboard``, ``gcs``."""

    @property
    def pid(self) -> int | None:
        """The process id of the helper, if there is one."""
        return self._process.pid if self._process else None

    def call(self, method: str, *arguments: Any) -> Any:
        """Raises `EngineError` ``ENGINE_UNREACHABLE`` where the cluster, or Ray itself, is not to be had."""
        with self._guard:
            known = self._process is not None and self._process.poll() is None
            if not known:
                self._start()
            try:
                return self._ask(method, arguments, _ANSWER_SECONDS)
            except _HelperGone:
                if not known:
                    raise
            self._start()  # it died meanwhile; every request may be repeated
            return self._ask(method, arguments, _ANSWER_SECONDS)

    def close(self) -> None:
        """End the helper. Whatever runs on the cluster goes on."""
        with self._guard:
            self._let_go()

    def _start(self) -> None:
        self._let_go()
        self._look_for_head()
        code = self._folder / "code.zip"
        fresh = code.with_name(f".{code.name}.{os.getpid()}")
        fresh.write_bytes(shipped_code())
        fresh.replace(code)
        with (self._folder / "helper.log").open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - the interpreter of the settings, our code
                [self._python, "-P", "-c", _BOOT, str(_HELPER)],
                env={**base_environment(), "RAY_USAGE_STATS_ENABLED": "0"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        self._buffer = b""
        try:
            self.facts = self._ask("connect", (self._settings,), _CONNECT_SECONDS)
        except EngineError:
            self._let_go()
            raise

    def _look_for_head(self) -> None:
        """Ray itself waits for a minute before it says that nobody is there. Raises `EngineError`."""
        address = str(self._settings["address"])
        host, _, port = address.removeprefix("ray://").rpartition(":")
        if not host or not port.isdecimal():
            return
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_LOOK_SECONDS).close()
        except OSError as error:
            message = f"nobody answers at the Ray cluster's address {address}: {error.strerror or error}"
            raise EngineError("ENGINE_UNREACHABLE", message, retryable=True) from error

    def _ask(self, method: str, arguments: tuple[Any, ...], seconds: float) -> Any:
        process = self._process
        assert process is not None  # noqa: S101 - it was started
        assert process.stdin is not None  # noqa: S101 - with two pipes
        try:
            process.stdin.write(json.dumps({"method": method, "arguments": arguments}).encode() + b"\n")
            process.stdin.flush()
            said = json.loads(self._line(process, seconds))
        except (OSError, ValueError) as error:
            self._let_go()
            address = self._settings["address"]
            log = self._folder / "helper.log"
            message = f"the helper of the Ray cluster at {address} does not answer ({error}); see {log}"
            raise _HelperGone("ENGINE_UNREACHABLE", message, retryable=True) from error
        if "error" in said:
            message = f"the Ray cluster at {self._settings['address']}: {said['error']}"
            raise EngineError("ENGINE_UNREACHABLE", message, retryable=True)
        return said["answer"]

    def _line(self, process: subprocess.Popen[bytes], seconds: float) -> bytes:
        assert process.stdout is not None  # noqa: S101 - it was started with a pipe
        while b"\n" not in self._buffer:
            if not select.select([process.stdout], [], [], seconds)[0]:
                raise OSError(f"no answer in {seconds:g} seconds")
            piece = os.read(process.stdout.fileno(), _CHUNK)
            if not piece:
                raise OSError("it ended")
            self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _let_go(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(OSError):
            if process.stdin is not None:
                process.stdin.close()
        try:
            process.wait(_LEAVE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def shipped_code() -> bytes:
    """What runs on nodes, as an archive."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(_PACKAGE / "__init__.py", "trainshed/__init__.py")
        for room in _SHIPPED:
            for path in sorted((_PACKAGE / room).rglob("*.py")):
                archive.write(path, f"trainshed/{path.relative_to(_PACKAGE)}")
    return packed.getvalue()


def default_python() -> str:
    """The interpreter with Ray: the variable ``TRAINSHED_RAY_PYTHON``, else this one."""
    return os.environ.get("TRAINSHED_RAY_PYTHON") or sys.executable
