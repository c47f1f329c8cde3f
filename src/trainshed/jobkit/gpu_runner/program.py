"""Running one program to its end: in a group of its own, told to stop when we are, leaving nothing behind."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import time

_CHUNK = 1 << 16
_LOOK_SECONDS = 0.5
_REST_SECONDS = 2.0
"""How long what a program left running may take to end, and then its last output to arrive."""
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trainshed.jobkit.gpu_runner.output import Relay


def _prctl() -> Callable[..., object] | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        function: Callable[..., object] = ctypes.CDLL(None).prctl
    except (OSError, AttributeError):
        return None
    return function


_PRCTL = _prctl()


def _die_with_parent() -> None:
    """In the new process: a runner that is killed leaves no program behind. We ignore SIGHUP, it does not."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if _PRCTL is not None:
        _PRCTL(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


class Stop:
    """Whether the runner was told to end. Its descriptor wakes whoever waits for signals or children."""

    def __init__(self) -> None:
        self.asked = 0
        """How often."""
        self.at: float | None = None
        """When first, Unix seconds."""
        self.fd, self._wake = os.pipe()
        for end in (self.fd, self._wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._heard)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        if _PRCTL is not None:
            _PRCTL(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def _heard(self, *_: object) -> None:
        self.asked += 1
        if self.at is None:
            self.at = time.time()

    def drain(self) -> None:
        """Forget what woke us."""
        try:
            while os.read(self.fd, _CHUNK):
                pass
        except OSError:
            pass


class CannotStart(Exception):
    """There is no such program, or it may not be run; ``code`` is what a shell would say."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class Ended:
    """How a program ended."""

    def __init__(self, status: int, at: float, *, killed: bool) -> None:
        self.signal = -status if status < 0 else None
        self.code = 128 - status if status < 0 else status
        self.at = at
        """Unix seconds."""
        self.killed = killed
        """We had to."""


def run(
    argv: Sequence[str],
    *,
    cwd: str,
    env: Mapping[str, str],
    relay: Relay,
    stop: Stop,
    grace: float,
    started: Callable[[], object] = lambda: None,
) -> Ended:
    """Run a program until it and all it started have ended.

    Once ``stop`` is asked, the program's group gets SIGTERM, and SIGKILL ``grace`` seconds later or when
    asked again. Raises `CannotStart`.
    """
    reader, writer = os.pipe()
    try:
        process = subprocess.Popen(  # noqa: S603 - the Job's program
            list(argv),
            cwd=cwd,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=writer,
            stderr=writer,
            start_new_session=True,
            preexec_fn=_die_with_parent,  # noqa: PLW1509 - there is one thread yet
        )
    except (OSError, ValueError) as problem:
        os.close(reader)
        known = isinstance(problem, OSError) and not isinstance(problem, FileNotFoundError)
        raise CannotStart(f"cannot run {argv[0]}: {problem}", 126 if known else 127) from None
    finally:
        os.close(writer)
    os.set_blocking(reader, False)
    try:
        started()
        return _Course(process, reader, relay, stop, grace).end()
    except BaseException:
        _kill(process.pid, signal.SIGKILL)
        raise
    finally:
        os.close(reader)


class _Course:
    """A program that runs."""

    def __init__(
        self, process: subprocess.Popen[bytes], reader: int, relay: Relay, stop: Stop, grace: float
    ) -> None:
        self._process = process
        self._reader = reader
        self._relay = relay
        self._stop = stop
        self._grace = grace
        self._open = True
        self._kill_at: float | None = None
        self._killed = False

    def end(self) -> Ended:
        while self._process.poll() is None:
            self._step(_LOOK_SECONDS)
            self._obey()
        at = time.time()
        self._clear()
        self._relay.close()
        return Ended(self._process.returncode, at, killed=self._killed)

    def _step(self, seconds: float) -> None:
        """Wait for output or a signal, and take it."""
        waited = [self._reader, self._stop.fd] if self._open else [self._stop.fd]
        ready = select.select(waited, (), (), seconds)[0]
        if self._stop.fd in ready:
            self._stop.drain()
            _reap(self._process.pid)
        if self._reader in ready:
            self._take()
        self._relay.tick()

    def _take(self) -> bool:
        """Pass on what there is; whether there was something."""
        try:
            data = os.read(self._reader, _CHUNK)
        except BlockingIOError:
            return False
        self._open = bool(data)
        self._relay.feed(data)
        return self._open

    def _obey(self) -> None:
        if not self._stop.asked or self._killed:
            return
        now = time.monotonic()
        if self._kill_at is None:
            self._kill_at = now + self._grace
            _kill(self._process.pid, signal.SIGTERM)
        if now >= self._kill_at or self._stop.asked > 1:
            self._killed = True
            _kill(self._process.pid, signal.SIGKILL)

    def _clear(self) -> None:
        """End what the program left running, and take the output that is still on its way."""
        group = self._process.pid
        until = time.monotonic() + _REST_SECONDS
        told = False
        while _lives(group) and time.monotonic() < until:
            if not told:
                _kill(group, signal.SIGTERM)
                told = True
            self._step(0.05)
        _kill(group, signal.SIGKILL)
        for child in _children():
            os.kill(child, signal.SIGKILL)  # ours, and not taken leave of: there is such a process
        _reap(0)
        until = time.monotonic() + _REST_SECONDS
        while self._open and time.monotonic() < until and self._take():
            pass


def _kill(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except OSError:
        pass


def _lives(group: int) -> bool:
    _reap(0)
    try:
        os.killpg(group, 0)
    except OSError:
        return False
    return True


def _reap(program: int) -> None:
    """Take leave of what came to us when its parent ended, and has ended; not of the program itself."""
    if _PRCTL is None:
        return  # nothing comes to us
    try:
        while True:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None or ended.si_pid == program:
                return
            os.waitpid(ended.si_pid, os.WNOHANG)
    except OSError:
        pass


def _children() -> list[int]:
    """Processes that left the group and came to us when their parents ended."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
            return [int(pid) for pid in file.read().split()]
    except (OSError, ValueError):
        return []
