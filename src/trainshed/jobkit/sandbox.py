"""What a program sees of the machine under bubblewrap: its own namespaces, and the way into them.

bubblewrap makes the namespaces and keeps them alive; its command only waits. The child that becomes
the program moves into them and forks there, with the shim as the parent. So what holds without
bubblewrap holds with it: everything that can fail does so before the start marker, a program that
cannot be executed is told from one that failed, exit statuses are raw, and signals reach the program,
which is not the first process of its namespace.

Two processes stay beside the program: bubblewrap and its command below the namespace's first process.
They end with the shim, and with the first process the kernel ends every other one of the namespace.
"""

from __future__ import annotations

import fcntl
import os
import signal

from trainshed.jobkit import folder, linux, mounts, neighbours, procs

NAME, NONE = "bubblewrap", "none"
"""What an attempt says of its isolation."""
WORK = "/run/work"
"""The work directory inside: a path that every user id can walk, whatever lies above it outside."""
TEMPORARY = ("/tmp", "/var/tmp")  # noqa: S108 - inside
"""Where the attempt's folder for temporary files is inside."""
PROCESSES = 3
"""How many processes of ours count against the limit of the attempt."""
_ERROR_BYTES = 4096
_NS_GET_USERNS = 0xB701
_NAMESPACES = ("mnt", "pid", "ipc", "uts", "net")
_REPLACED = ("/tmp", "/var/tmp", "/run", "/dev", "/proc")  # noqa: S108 - what a sandbox has of its own

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainshed.jobkit.folder import Json


def enter(path: str, sandbox: Json, shm_bytes: int, marks: dict[str, str]) -> None:
    """Move this process, which has one thread, into namespaces made for the attempt folder ``path``.

    Its next child is the first to be inside wholly. ``marks`` are the variables by which the processes
    that stay are found. Afterwards this process has no privileges. Raises `OSError` with the reason.
    """
    import warnings  # noqa: F401, PLC0415 - `os.execvpe` imports it, and our own files may not be seen inside

    join(_build(_arguments(path, sandbox, shm_bytes), marks), _NAMESPACES)
    linux.drop_privileges(sandbox["user"])
    os.chdir(WORK)


def _arguments(path: str, sandbox: Json, shm_bytes: int) -> list[str]:
    temporary = os.path.join(path, folder.TEMPORARY)
    machine, content = mounts.sandbox_arguments(sandbox.get("mounts", []))
    arguments = [sandbox["program"], "--die-with-parent", "--unshare-pid", "--unshare-ipc", "--unshare-uts"]
    if sandbox["network"] == "private":
        # Programs that look up their own name to talk to themselves find the only address there is.
        arguments += ("--unshare-net", "--hostname", "localhost")
    arguments += ("--cap-drop", "ALL", *machine, "--proc", "/proc", "--dev", "/dev")
    in_run, elsewhere = _neighbours(sandbox.get("shown", []))
    arguments += elsewhere
    arguments += ("--perms", "1777", "--size", str(shm_bytes), "--tmpfs", "/dev/shm")  # noqa: S108 - inside
    for device in sandbox["devices"]:
        arguments += ("--dev-bind", device, device)
    for place in TEMPORARY:
        arguments += ("--bind", temporary, place)
    for hidden in sandbox["hide"]:
        if not hidden.startswith(tuple(f"{place}/" for place in _REPLACED)) and os.path.isdir(hidden):
            arguments += ("--tmpfs", hidden, "--remount-ro", hidden)
    arguments += ("--tmpfs", "/run")
    for shared in _shared_of_run(sandbox["network"]):
        arguments += ("--perms", "0755", "--dir", os.path.dirname(shared), "--ro-bind", shared, shared)
    arguments += (*in_run, "--bind", os.path.join(path, folder.WORK), WORK, *content)
    return [*arguments, "--remount-ro", "/run", "cat"]


def _neighbours(shown: list[tuple[str, str]]) -> tuple[list[str], list[str]]:
    """What bubblewrap is told of a gang's files: once ``/run`` is there, and before that."""
    in_run: list[str] = []
    # Nobody but root sees root's home as it is; here it holds what the gang is told.
    elsewhere = ["--perms", "0755", "--tmpfs", neighbours.HOME] if shown else []
    for source, place in shown:
        words = in_run if place.startswith(f"{neighbours.INSIDE}/") else elsewhere
        words += ("--ro-bind", source, place)
    return in_run + (["--remount-ro", neighbours.HOME] if shown else []), elsewhere


def _shared_of_run(network: str) -> list[str]:
    """What a program needs of ``/run``, which else holds the sockets of the machine's services."""
    drivers, names = "/run/opengl-driver", os.path.dirname(os.path.realpath("/etc/resolv.conf"))
    shared = [drivers] if os.path.isdir(drivers) else []  # NixOS
    return [*shared, names] if network == "host" and names.startswith("/run/") else shared


def _build(arguments: list[str], marks: dict[str, str]) -> int:
    """Start bubblewrap beside us; returns the first process of its namespaces once all is mounted.

    The command is ``cat``: what we write comes back when everything is there, and as it holds its own
    pipe open it then waits for ever.
    """
    back_read, back_write = os.pipe()
    error_read, error_write = os.pipe()
    feed_read, feed_write = os.pipe()
    os.write(feed_write, b"!")
    shim = os.getppid()
    pid = linux.fork_sibling()
    if pid == 0:
        try:
            linux.die_with_parent(signal.SIGKILL)
            if os.getppid() != shim:
                os._exit(127)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a stop is for the program
            for source, target in ((feed_read, 0), (back_write, 1), (error_write, 2)):
                os.dup2(source, target)
            os.set_inheritable(feed_write, True)  # noqa: FBT003 - the function has one meaning
            env = {"PATH": os.defpath, **marks}
            os.execve(arguments[0], arguments, env)  # noqa: S606 - bubblewrap, with arguments of ours
        except OSError as error:
            os.write(error_write, f"{arguments[0]}: {error.strerror}".encode())
        finally:
            os._exit(127)
    for fd in (back_write, error_write, feed_read, feed_write):
        os.close(fd)
    if not os.read(back_read, 1):
        said = os.read(error_read, _ERROR_BYTES).decode(errors="replace").strip()
        raise OSError(0, f"bubblewrap made no sandbox: {said or 'it ended without a word'}")
    os.close(back_read)
    os.close(error_read)
    return procs.children(pid)[0]


def join(first: int, namespaces: tuple[str, ...]) -> None:
    """Move into these namespaces of the process ``first``, into its user namespaces where it has some.

    Where they were made without privileges, the user namespace that owns the others is not always
    the one that its processes end up in; it gives us the right to enter both.
    """
    # Who shares the machine's network has no right to "enter" it without privileges on the machine.
    others = [name for name in namespaces if _namespace(first, name) != _namespace("self", name)]
    fds = [os.open(f"/proc/{first}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in others]
    users = os.open(f"/proc/{first}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    owner = fcntl.ioctl(fds[0], _NS_GET_USERNS)
    current = os.stat("/proc/self/ns/user").st_ino
    for group in ([owner], fds, [users]):
        for fd in group:
            inode = os.fstat(fd).st_ino
            if inode != current:
                linux.enter_namespace(fd)
            if group is not fds:
                current = inode
            os.close(fd)


def _namespace(pid: int | str, name: str) -> int:
    return os.stat(f"/proc/{pid}/ns/{name}").st_ino
