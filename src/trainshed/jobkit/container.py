"""What a program sees in an image: the namespaces of a container, and the way into them.

The container runtime makes the container around a keeper: the image's own Bash, which waits for ever and
collects whatever loses its parent. The child that becomes the program moves into the keeper's namespaces
and forks there, with the shim as the parent, as it does under bubblewrap. So what holds without an image
holds with one: everything that can fail does so before the start marker, a program that cannot be executed
is told from one that failed, exit statuses are raw, signals reach the program, and it lives in control
groups of ours, which hold its limits and see what the kernel does at them.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time

from trainshed.jobkit import linux, procs, sandbox

NAME = "container"
"""What an attempt says of its isolation."""
PROCESSES = 2
"""How many processes of ours count against the limit of the attempt."""
KEEPER = ("--norc", "--noprofile", "-p", "-c", "exec 3<> <(:); read -r -u 3")
"""Arguments for Bash: reading a pipe that it holds open itself, it waits for ever and reaps meanwhile."""
OUTPUT = "runtime.txt"
"""What the container runtime said last, in the attempt folder."""
HINTS = ("See 'docker ", "Run 'docker ")
"""How lines begin that docker adds to what went wrong."""
TAKEN = "is already in use by container"
"""What docker says of the name of a container that there is, or that is being made."""
START = "@start@"
"""Stands in names of files for what differs in each start: nobody else writes there, and nobody did."""
_REPLACEMENTS, _AGAIN, _PAUSE = 20, 5, 0.1
"""How often a name that is taken is waited for, and another failure where an earlier shim was killed here."""
_SECONDS = 120
_KEEPER_SECONDS = 10
_OUTPUT_BYTES = 1 << 14
_DETAIL_CHARS = 600
_NAMESPACES = ("mnt", "pid", "ipc", "uts", "net")
_KERNEL_FILES = {
    "bpf",
    "cgroup",
    "cgroup2",
    "configfs",
    "debugfs",
    "devpts",
    "devtmpfs",
    "mqueue",
    "proc",
    "securityfs",
    "sysfs",
    "tmpfs",
    "tracefs",
}
"""File systems that hold nothing on a disk."""
_FLAGS = {
    "nosuid": 0x2,
    "nodev": 0x4,
    "noexec": 0x8,
    "noatime": 0x400,
    "nodiratime": 0x800,
    "relatime": 0x200000,
}

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainshed.jobkit.folder import Json


class Keeper:
    """A container that was made: its first process, and what is needed of it before we are inside."""

    __slots__ = ("environment", "helpers", "layer", "mounts", "pid", "writable")

    def __init__(self, pid: int, helpers: list[int], writable: list[str]) -> None:
        self.pid = pid
        self.helpers = helpers
        """Processes that stay beside the program: the keeper and the runtime's monitor."""
        self.environment = _variables(pid)
        """The image's variables, with what the runtime and the GPU's driver add."""
        self.mounts = _mounts(pid)
        self.writable = writable
        """Where something of the machine is mounted for writing."""
        self.layer = _upper(self.mounts)
        """Where on the disk lies what the program changes in the image's own files; empty if it cannot."""


def start(path: str, box: Json, attempt_id: str) -> Keeper:
    """Have the runtime make the container of the attempt folder ``path``. Raises `OSError`.

    What an earlier shim had begun to make may still write its files, or have left one of them half done,
    which its own runtime then takes for somebody else's.
    """
    keeper, monitor, said = _make(path, box)
    pid = keeper if box["keeper"] else int(said.strip() or 0)
    if not pid or not _became_keeper(pid, procs.MARK + attempt_id.encode()):
        raise OSError(0, f"the container ended as soon as it was made: {_last_words(said)}")
    return Keeper(pid, [pid, *([monitor] if monitor else [])], box.get("writable", []))


def enter(keeper: Keeper, user: int | None) -> None:
    """Move this process, which has one thread, into the container for good, without privileges.

    Its next child is the first to be inside wholly. Nothing may be imported afterwards: what stands where
    our modules lie is the image's. Raises `OSError`.
    """
    import warnings  # noqa: F401, PLC0415 - `os.execvpe` imports it, which it cannot inside

    sys.path.clear()
    sys.meta_path.clear()
    sandbox.join(keeper.pid, _NAMESPACES)
    _restrict(keeper.mounts, keeper.writable)
    linux.drop_privileges(user)
    os.chdir(sandbox.WORK)


def _make(path: str, box: Json) -> tuple[int, int, str]:
    """Run the commands that make the container; the numbers in its files, and what was said last.

    What a shim that was killed had begun is put out of the way. A daemon goes on with what it was told, so
    that may appear, and keep its name, a moment later; podman first has to notice that its monitor is gone.
    """
    left = _AGAIN if os.path.exists(os.path.join(path, OUTPUT)) else 0
    taken = _REPLACEMENTS
    while True:
        this = f"{os.getpid()}-{time.monotonic_ns()}"
        try:
            said = ""
            for command in box["commands"]:
                said = _invoke(path, [word.replace(START, this) for word in command], box["environment"])
            keeper, monitor = (
                _number(name.replace(START, this)) if name else 0 for name in (box["keeper"], box["monitor"])
            )
        except OSError as error:
            is_taken = TAKEN in str(error.strerror)
            if not box.get("replace") or (taken if is_taken else left) == 0:
                raise
            taken, left = (taken - 1, left) if is_taken else (taken, left - 1)
        else:
            return keeper, monitor, said
        with contextlib.suppress(OSError):
            _invoke(path, box["replace"], box["environment"])
        time.sleep(_PAUSE)


def _invoke(path: str, command: list[str], environment: dict[str, str]) -> str:
    """Run a command of the runtime to its end; returns what it said, raises `OSError` if it failed."""
    output = os.open(os.path.join(path, OUTPUT), os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                linux.die_with_parent(signal.SIGKILL)
                if os.getppid() == parent:
                    null = os.open("/dev/null", os.O_RDONLY)
                    for source, target in ((null, 0), (output, 1), (output, 2)):
                        os.dup2(source, target)
                    os.chdir("/")
                    os.execve(command[0], command, environment)  # noqa: S606 - arguments of ours
            except OSError as error:
                os.write(output, f"{command[0]}: {error.strerror}".encode())
            finally:
                os._exit(127)
        code = _wait(pid)
        said = os.pread(output, _OUTPUT_BYTES, 0).decode(errors="replace")
    finally:
        os.close(output)
    if code is None:
        raise OSError(0, f"{os.path.basename(command[0])} made no container within {_SECONDS} seconds")
    if code != 0:
        raise OSError(0, f"{os.path.basename(command[0])} made no container: {_last_words(said)}")
    return said


def _became_keeper(pid: int, mark: bytes) -> bool:
    """Wait until the first process of the container is what was asked for; the runtime says so too early."""
    deadline = time.monotonic() + _KEEPER_SECONDS
    while procs.start_time(pid) is not None and time.monotonic() < deadline:
        if mark in procs.environment(pid):
            return True
        time.sleep(0.001)
    return False


def _wait(pid: int) -> int | None:
    """The exit code of a child, or ``None`` if it had to be killed for taking too long."""
    handle = os.pidfd_open(pid)
    try:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        in_time = bool(poll.poll(_SECONDS * 1000))
        if not in_time:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
    finally:
        os.close(handle)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code if in_time else None


def _last_words(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip() and not line.startswith(HINTS)]
    words = lines[-1].removeprefix("Error: ") if lines else "it ended without a word"
    return words[-_DETAIL_CHARS:]


def _number(name: str) -> int:
    try:
        with open(name, "rb") as file:
            return int(file.read(32))
    except (OSError, ValueError):
        return 0


def _variables(pid: int) -> dict[str, str]:
    found = {}
    for variable in procs.environment(pid):
        name, equals, value = variable.partition(b"=")
        if name and equals and name != b"TERM":  # there is no terminal
            found[os.fsdecode(name)] = os.fsdecode(value)
    return found


def _mounts(pid: int) -> list[tuple[str, str, list[str], list[str]]]:
    """What is mounted where ``pid`` is: ``(place, type, options, options of the file system)``."""
    found = []
    with open(f"/proc/{pid}/mountinfo", "rb") as file:
        for line in os.fsdecode(file.read()).splitlines():
            left, _, right = line.partition(" - ")
            fields, (kind, _, options) = left.split(" "), right.split(" ", 2)
            found.append((_plain(fields[4]), kind, fields[5].split(","), options.split(",")))
    return found


def _plain(text: str) -> str:
    """The kernel writes some characters of a path as their octal numbers."""
    parts = text.split("\\")
    return parts[0] + "".join(chr(int(part[:3], 8)) + part[3:] for part in parts[1:])


def _upper(mounts: list[tuple[str, str, list[str], list[str]]]) -> str:
    for place, _, options, of_files in mounts:
        if place == "/" and "ro" not in options:
            layers = [each[len("upperdir=") :] for each in of_files if each.startswith("upperdir=")]
            if not layers:
                raise OSError(0, "what a program changes in the image's files could not be measured")
            return _plain(layers[0])
    return ""


def _restrict(mounts: list[tuple[str, str, list[str], list[str]]], shared: list[str]) -> None:
    """Leave nothing writable but what is measured, and no device of the image's usable.

    The runtime mounts some files of its own for writing (``/etc/hosts``), which nobody measures.
    """
    ours = {sandbox.WORK, *sandbox.TEMPORARY, *shared}
    for place, kind, options, _ in mounts:
        writable = place == "/" or place in ours
        if kind in _KERNEL_FILES or (not writable and "ro" in options):
            continue
        flags = sum(_FLAGS.get(option, 0) for option in options) | _FLAGS["nosuid"] | _FLAGS["nodev"]
        linux.remount(place, flags, read_only=not writable or "ro" in options)
