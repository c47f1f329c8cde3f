"""Shells beside a program that runs (rule 20 of the engine contract).

The engine asks by a file ``shells/NAME`` in the attempt folder; the shim forks a leader for it. That connects
to the socket ``shells/NAME`` beside the folders of all attempts, gets the terminal there (one descriptor) or
pipes for what it reads and for what it prints (two, where nobody sits at a terminal), moves to where the
program is, and has the shell run below itself. So a shell is a child of the shim's: it ends with the attempt,
whoever else is gone. The connection is open for as long as somebody wants the shell: the leader ends with it,
and with the leader its whole session.

What the program can write says nothing here but that somebody asked: names are all that is read, and what
could be done with one is no more than the program can do anyway.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal

from trainshed.jobkit import cgroups, child, folder, linux, procs, sandbox, seccomp

PROGRAMS = (("bash", "--norc"), ("sh",))
"""Start-up files would change the variables that are to be the program's."""
SHOWN = {"TERM": "xterm-256color", "PS1": "$PWD $ "}
"""What a terminal needs besides, where the program says nothing."""
MOST = 16
"""Shells beside one program; what more is asked for is refused."""
_NAME = re.compile(r"[0-9a-f]{16}")
_NAMESPACES = ("mnt", "pid", "ipc", "uts", "net")
_CONNECTION = 3
_CONNECT_SECONDS = 10.0
_HANG_UP_SECONDS = 10.0
"""How long whoever is told of the end may take to read what the shell printed before it."""
_TRIES = 10
_MESSAGE_BYTES = 4096
_DESCRIPTORS = 1 << 16

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from trainshed.jobkit.folder import Json


class Shells:
    """Those of one attempt, in its shim. ``group`` answers what is in the attempt's control groups."""

    def __init__(
        self, path: str, main: int, launch: Callable[[], Json], group: Callable[[], set[int]]
    ) -> None:
        self._path = path
        self._main = main
        self._launch = launch
        self._group = group
        self._leaders: set[int] = set()

    def open(self) -> None:
        """Start what was asked for since the last look."""
        place = os.path.join(self._path, folder.SHELLS)
        try:
            names = [name for name in os.listdir(place) if _NAME.fullmatch(name)]
        except OSError:
            return
        for name in names:
            try:
                os.unlink(os.path.join(place, name))
            except OSError:
                continue  # asked again at each look, it would be started again
            shim = os.getpid()
            try:
                pid = os.fork()
            except OSError:
                continue  # whoever asked does not wait for ever
            if pid == 0:
                _lead(self._path, name, shim, self._main, self._launch(), len(self._leaders))
            self._leaders.add(pid)

    def ended(self, pid: int) -> None:
        """A child was collected: if it led a shell, nothing of its session is left."""
        if pid not in self._leaders:
            return
        self._leaders.discard(pid)
        for _ in range(_TRIES):
            left = [each for each in self._candidates() if session(each) == pid]
            if not left:
                return
            for each in left:
                procs.send(each, signal.SIGKILL)

    def processes(self) -> set[int]:
        """What runs here now and is none of the program's."""
        if not self._leaders:
            return set()
        return {pid for pid in self._candidates() if pid in self._leaders or session(pid) in self._leaders}

    def _candidates(self) -> set[int]:
        return {*procs.descendants(os.getpid()), *self._group()}


def session(pid: int) -> int | None:
    """The session of a process; ``None`` if it is gone or a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in {b"Z", b"X"} else int(fields[3])


def socket_path(folder_fd: int, name: str) -> str:
    """Where the socket ``name`` lies in an open folder: short, however deep the folder is."""
    return f"/proc/self/fd/{folder_fd}/{name}"


def _lead(path: str, name: str, shim: int, main: int, launch: Json, others: int) -> NoReturn:
    """In the child of the shim: lead the session of one shell until one of the two ends."""
    try:
        linux.die_with_parent(signal.SIGKILL)
        if os.getppid() != shim:
            os._exit(0)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        terminal = _connect(path, name)
    except BaseException:  # noqa: BLE001 - nothing may return into the shim's code
        os._exit(0)  # whoever asked is gone, or was never there; descriptor 3 is still one of the shim's
    step = "be one more of them"
    try:
        _refuse_too_many(others)
        step = "enter the surroundings of the program"
        environment = _environment(main, launch)
        group = cgroups.Group(cgroups.Layout.from_json(launch["cgroups"]), launch["attempt_id"])
        group.enter()
        child.lower_limits(launch["limits"])
        _enter(path, main, launch)
        linux.die_with_parent(signal.SIGKILL)  # it was forgotten with another user
        step = "start a shell"
        shell = _start(environment, terminal=terminal, confined=bool(launch.get("container")))
        os.write(_CONNECTION, b'{"started": true}\n')
        code = _wait(shell)
        if code is not None:
            os.write(_CONNECTION, b'{"exit_code": %d}\n' % code)
            _hung_up(_HANG_UP_SECONDS)
    except BaseException as error:  # noqa: BLE001 - nothing may return into the shim's code
        reason = (
            error.strerror if isinstance(error, OSError) and error.strerror else str(error) or repr(error)
        )
        message = json.dumps({"error": f"it cannot {step}: {reason}"}).encode()[:_MESSAGE_BYTES] + b"\n"
        try:
            os.write(_CONNECTION, message)
        except OSError:
            pass  # whoever asked is gone
    finally:
        os._exit(0)


def _refuse_too_many(others: int) -> None:
    if others >= MOST:
        raise OSError(0, f"there are {others} beside this program already")


def _connect(path: str, name: str) -> bool:
    """Take over standard input, output and error; the connection becomes descriptor 3.

    Answers whether they are a terminal.
    """
    import fcntl  # noqa: PLC0415 - costs memory beside user code
    import socket  # noqa: PLC0415 - as above
    import termios  # noqa: PLC0415 - as above

    place = os.path.join(os.path.dirname(os.path.dirname(path)), folder.SHELLS)
    root = os.open(place, os.O_PATH | os.O_DIRECTORY)
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(_CONNECT_SECONDS)
    connection.connect(socket_path(root, name))
    _, given, _, _ = socket.recv_fds(connection, _MESSAGE_BYTES, 2)
    typed, printed = given[0], given[-1]
    connection.settimeout(None)
    held = connection.detach()
    for standard in range(_CONNECTION):
        os.dup2(printed if standard else typed, standard)
    os.dup2(held, _CONNECTION, inheritable=False)
    os.closerange(_CONNECTION + 1, _DESCRIPTORS)
    terminal = len(given) == 1
    if terminal:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    return terminal


def _environment(main: int, launch: Json) -> dict[str, str]:
    """The program's variables as it was executed with, hidden values among them."""
    found: dict[str, str] = {**SHOWN, **({} if procs.environment(main) else launch["env"])}
    for variable in procs.environment(main):
        key, equals, value = variable.partition(b"=")
        if key and equals:
            found[os.fsdecode(key)] = os.fsdecode(value)
    for name in (procs.ATTEMPT_VARIABLE, procs.INSTANCE_VARIABLE):
        if name in launch["env"]:  # by them it is found, whatever else fails
            found[name] = launch["env"][name]
    return found


def _enter(path: str, main: int, launch: Json) -> None:
    """Move to where the program is, with its rights. Nothing may be imported afterwards."""
    import warnings  # noqa: F401, PLC0415 - `os.execvpe` imports it, and our own files may not be seen inside

    box = launch.get("sandbox") or launch.get("container")
    if box is None:
        mounts = os.open(f"/proc/{main}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        if os.fstat(mounts).st_ino != os.stat("/proc/self/ns/mnt").st_ino:
            linux.enter_namespace(mounts)
        os.close(mounts)
        linux.forbid_new_privileges()
        os.chdir(os.path.join(path, folder.WORK))
        return
    if box["user"] is not None:
        for standard in (0, 1):
            os.fchown(standard, box["user"], box["user"])
    sandbox.join(main, _NAMESPACES)
    linux.drop_privileges(box["user"])
    os.chdir(sandbox.WORK)


def _start(environment: dict[str, str], *, terminal: bool, confined: bool) -> int:
    """Start the shell, in the foreground of a terminal; its process id. Raises `OSError`."""
    failure, failure_write = os.pipe()
    pid = linux.fork()
    if pid == 0:
        try:
            linux.die_with_parent(signal.SIGKILL)
            os.setpgid(0, 0)
            if terminal:
                signal.signal(signal.SIGTTOU, signal.SIG_IGN)
                os.tcsetpgrp(0, os.getpgrp())
                signal.signal(signal.SIGTTOU, signal.SIG_DFL)
            if confined:
                seccomp.forbid()
            for program in PROGRAMS:
                try:
                    os.execvpe(program[0], program, environment)  # noqa: S606 - a shell is what was asked for
                except OSError as error:
                    reason = error.strerror or repr(error)
            os.write(failure_write, reason.encode())
        except BaseException as error:  # noqa: BLE001 - nothing may return into the leader's code
            os.write(failure_write, repr(error).encode()[:_MESSAGE_BYTES])
        finally:
            os._exit(127)
    os.close(failure_write)
    reason = os.read(failure, _MESSAGE_BYTES).decode(errors="replace")
    os.close(failure)
    if reason:
        raise OSError(0, reason)
    return pid


def _wait(shell: int) -> int | None:
    """How the shell ended; ``None`` if nobody wants it any more before it does."""
    handle = os.pidfd_open(shell)
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    poll.register(_CONNECTION, select.POLLIN)
    while True:
        ready = {fd for fd, _ in poll.poll()}
        if handle in ready:
            code = os.waitstatus_to_exitcode(os.waitpid(shell, 0)[1])
            return 128 - code if code < 0 else code
        if _CONNECTION in ready and not os.read(_CONNECTION, _MESSAGE_BYTES):
            return None


def _hung_up(seconds: float) -> None:
    poll = select.poll()
    poll.register(_CONNECTION, select.POLLIN)
    poll.poll(seconds * 1000)
