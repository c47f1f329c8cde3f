"""From a forked shim to the program: everything between ``fork`` and ``exec``.

The child gets ready, reports, and waits for one byte before it executes anything. In that pause the
shim writes the start marker, so whatever goes wrong before it certainly ran no user code.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal

from trainshed.jobkit import linux
from trainshed.jobkit.cgroups import MIB, Group

_READY, _READY_PRIVATE_SHM, _GO = b"r", b"s", b"g"
_DEFAULT_SIGNALS = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGCHLD,
    # Python ignores these two, and ignoring is inherited by programs that do not expect it.
    signal.SIGPIPE,
    signal.SIGXFSZ,
)
_MESSAGE_BYTES = 4096


class Program:
    """What the child is to become."""

    __slots__ = ("argv", "directory", "env", "file_size_mb", "group", "shm_mb", "stderr", "stdout")

    def __init__(
        self,
        argv: list[str],
        env: dict[str, str],
        directory: str,
        group: Group,
        *,
        shm_mb: int | None,
        file_size_mb: int,
        stdout: int,
        stderr: int,
    ) -> None:
        self.argv = argv
        self.env = env
        self.directory = directory
        self.group = group
        self.shm_mb = shm_mb
        """Size of a private /dev/shm in MiB; ``None`` to leave the machine's."""
        self.file_size_mb = file_size_mb
        self.stdout = stdout
        self.stderr = stderr


class Child:
    """A forked child that waits to be let go."""

    __slots__ = ("_go", "_status", "pid")

    def __init__(self, pid: int, status: int, go: int) -> None:
        self.pid = pid
        self._status = status
        self._go = go

    def wait_ready(self) -> bool:
        """Wait until the child is set up; whether it has a private ``/dev/shm``.

        Raises `OSError` with the reason if it could not be set up.
        """
        message = os.read(self._status, _MESSAGE_BYTES)
        if message not in {_READY, _READY_PRIVATE_SHM}:
            raise OSError(message.decode(errors="replace") or "ended while it was being set up")
        return message == _READY_PRIVATE_SHM

    def execute(self) -> str:
        """Let the child execute the program; returns why it could not, or nothing."""
        with contextlib.suppress(BrokenPipeError):  # it is gone; its status says how
            os.write(self._go, _GO)
        message = os.read(self._status, _MESSAGE_BYTES)
        self.abandon()
        return message.decode(errors="replace")

    def abandon(self) -> None:
        """Close our ends: a child that still waits ends without executing anything."""
        os.close(self._go)
        os.close(self._status)


def fork(program: Program) -> Child:
    """Fork a child of this process that gets ready to become ``program``."""
    status_read, status_write = os.pipe()
    go_read, go_write = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid:
        os.close(status_write)
        os.close(go_read)
        return Child(pid, status_read, go_write)
    step = "set up"
    try:
        os.close(go_write)
        private = _set_up(program, parent)
        os.write(status_write, _READY_PRIVATE_SHM if private else _READY)
        if os.read(go_read, 1) == _GO:
            step = f"execute {program.argv[0]!r}"
            os.execvpe(program.argv[0], program.argv, program.env)  # noqa: S606 - argv is what was asked to run
    except BaseException as error:  # noqa: BLE001 - nothing may return into the shim's code
        reason = error.strerror if isinstance(error, OSError) and error.strerror else repr(error)
        os.write(status_write, f"cannot {step}: {reason}".encode()[:_MESSAGE_BYTES])
    finally:
        os._exit(127)


def _set_up(program: Program, parent: int) -> bool:
    linux.die_with_parent(signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(127)
    os.setsid()
    for number in _DEFAULT_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    program.group.enter()
    private = False
    if program.shm_mb is not None:
        try:
            linux.private_shared_memory(program.shm_mb * MIB)
            private = True
        except OSError:
            pass  # reported as not enforced
    _lower(resource.RLIMIT_FSIZE, program.file_size_mb * MIB)
    _lower(resource.RLIMIT_CORE, 0)
    linux.forbid_new_privileges()
    null = os.open("/dev/null", os.O_RDONLY)
    for source, target in ((null, 0), (program.stdout, 1), (program.stderr, 2)):
        os.dup2(source, target)
    os.chdir(program.directory)
    return private


def _lower(limit: int, value: int) -> None:
    """Lower both limits: raising a hard one takes a capability that even root may lack."""
    hard = resource.getrlimit(limit)[1]
    if hard == resource.RLIM_INFINITY or value < hard:
        resource.setrlimit(limit, (value, value))
