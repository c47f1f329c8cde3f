"""The few Linux calls that the standard library lacks: prctl, unshare, setns, mount, capset, clone3."""

from __future__ import annotations

import ctypes
import errno
import os
import signal

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_CAPBSET_DROP = 24
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_CAPABILITY_VERSION_3 = 0x20080522
_CAPABILITY_DATA_BYTES = 24
_CLONE_NEWNS = 0x00020000
_MS_NOSUID_NODEV = 0x2 | 0x4
_MS_RDONLY, _MS_REMOUNT_BIND = 0x1, 0x20 | 0x1000
_MS_REC_PRIVATE = 0x4000 | 1 << 18
_MS_BIND, _MS_REC, _MS_UNBINDABLE = 0x1000, 0x4000, 1 << 17
_MS_READ_ONLY = 0x1 | 0x20 | _MS_BIND
_MNT_DETACH, _UMOUNT_NOFOLLOW = 2, 8
_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_CAP_SYS_ADMIN = 21
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2
_FILTER_STEP_BYTES = 8
# Called with the interpreter lock held, as the child continues in the same line of Python.
_SYSCALL = ctypes.PyDLL(None, use_errno=True).syscall
_SYSCALL.restype = ctypes.c_long
_SYS_CLONE3 = 435
_CLONE_PARENT = 0x8000
_CLONE_INTO_CGROUP = 0x200000000
_CLONE_ARGS_WORDS = 11
_IN_CREATE, _IN_MOVED_TO = 0x100, 0x80
_READ_BYTES = 1 << 14
_EXIT_SIGNAL_WORD, _CGROUP_WORD = 4, 10


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def die_with_parent(signal: int) -> None:
    """Have the kernel send ``signal`` to this process when the thread that forked it ends."""
    _check(_LIBC.prctl(_PR_SET_PDEATHSIG, signal, 0, 0, 0), "prctl(PR_SET_PDEATHSIG)")


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends (child subreaper)."""
    _check(_LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl(PR_SET_CHILD_SUBREAPER)")


def set_name(name: bytes) -> None:
    """Name this process as ``ps`` and ``top`` show it (at most 15 bytes)."""
    _check(_LIBC.prctl(_PR_SET_NAME, name, 0, 0, 0), "prctl(PR_SET_NAME)")


def forbid_new_privileges() -> None:
    """Make set-uid programs useless below this process: what we started we can also end."""
    _check(_LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(PR_SET_NO_NEW_PRIVS)")


def filter_system_calls(program: bytes) -> None:
    """Have the kernel ask ``program`` (classic BPF) about every system call from here on."""

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_char_p))

    steps = Program(len(program) // _FILTER_STEP_BYTES, program)
    what = "prctl(PR_SET_SECCOMP)"
    _check(_LIBC.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(steps), 0, 0), what)


def own_mounts() -> None:
    """Give this process a mount namespace of its own: what it mounts from here on is seen by nobody else."""
    _check(_LIBC.unshare(_CLONE_NEWNS), "unshare(CLONE_NEWNS)")
    _mount(None, "/", _MS_REC_PRIVATE)


def private_shared_memory(size: int) -> None:
    """Mount ``size`` bytes of ``/dev/shm`` in this process's own mount namespace."""
    mount_tmpfs("/dev/shm", b"size=%d,mode=1777" % size)  # noqa: S108 - in our own namespace


def mount_tmpfs(place: str, options: bytes) -> None:
    """Mount an empty folder in memory."""
    _mount("tmpfs", place, _MS_NOSUID_NODEV, b"tmpfs", options)


def bind(source: str, place: str, *, recursive: bool = False) -> None:
    """Show ``source`` at ``place`` as well, with what is mounted below it if ``recursive``."""
    _mount(source, place, _MS_BIND | (_MS_REC if recursive else 0))


def read_only(place: str) -> None:
    """Make the mount at ``place`` read-only, without set-uid programs and devices."""
    _mount(None, place, _MS_READ_ONLY | _MS_NOSUID_NODEV)


def writable(place: str) -> None:
    """Keep set-uid programs and devices of the mount at ``place`` from being used."""
    _mount(None, place, _MS_REMOUNT_BIND | _MS_NOSUID_NODEV)


def forbid_binding(place: str) -> None:
    """Have the mount at ``place`` left out of binds of what lies above it."""
    _mount(None, place, _MS_UNBINDABLE)


def make_private(place: str) -> None:
    """Keep what happens to the mount at ``place``, and to those in it, from the mounts it came from."""
    _mount(None, place, _MS_REC_PRIVATE)


def unmount(place: str) -> None:
    """Take away what is mounted at ``place``, whoever still uses it."""
    _check(_LIBC.umount2(os.fsencode(place), _MNT_DETACH | _UMOUNT_NOFOLLOW), f"umount({place})")


def change_root(place: str) -> None:
    """Make the mount at ``place`` the root of this process's mount namespace."""
    number = _SYS_PIVOT_ROOT.get(os.uname().machine)
    if number is None:
        raise OSError(errno.ENOSYS, "the root folder cannot be changed on this kind of machine")
    os.chdir(place)
    _check(int(_SYSCALL(ctypes.c_long(number), b".", b".")), "pivot_root")
    unmount(".")  # the old root, which now lies over the new one
    os.chdir("/")


def _mount(
    source: str | None, place: str, flags: int, kind: bytes | None = None, options: bytes | None = None
) -> None:
    name = None if source is None else os.fsencode(source)
    result = _LIBC.mount(name, os.fsencode(place), kind, ctypes.c_ulong(flags), options)
    _check(result, f"mount({place})")


def remount(place: str, flags: int, *, read_only: bool) -> None:
    """Change the flags of what is mounted at ``place``, in this mount namespace only."""
    flags |= _MS_REMOUNT_BIND | (_MS_RDONLY if read_only else 0)
    _check(_LIBC.mount(None, os.fsencode(place), None, ctypes.c_ulong(flags), None), f"mount({place})")


def may_mount() -> bool:
    """Whether this process holds CAP_SYS_ADMIN, which a mount namespace needs."""
    with open("/proc/self/status", "rb") as file:
        for line in file:
            if line.startswith(b"CapEff:"):
                return bool(int(line.split()[1], 16) >> _CAP_SYS_ADMIN & 1)
    return False


def fork() -> int:
    """Fork as ``os.fork`` does, without what CPython does in the child to make up for other threads.

    That writes to a hundred kilobytes of pages which else stay shared. For processes of one thread,
    whose children end by ``exec`` or ``os._exit``: this holds for the two functions below, too.
    """
    try:
        return _clone(0, signal.SIGCHLD, 0)
    except OSError:  # an older kernel or a sandbox
        return os.fork()


def fork_into(group: int) -> int:
    """Fork, with the child born in the version 2 group open as ``group``.

    Moving a process later waits for an RCU grace period, often ten milliseconds; being born there
    costs nothing.
    """
    return _clone(_CLONE_INTO_CGROUP, signal.SIGCHLD, group)


def fork_sibling() -> int:
    """Fork a process whose parent is ours. It signals its end as we signal ours."""
    return _clone(_CLONE_PARENT, 0, 0)


def _clone(flags: int, exit_signal: int, group: int) -> int:
    words = (ctypes.c_uint64 * _CLONE_ARGS_WORDS)()
    words[0] = flags
    words[_EXIT_SIGNAL_WORD] = exit_signal
    words[_CGROUP_WORD] = group
    pid = int(_SYSCALL(ctypes.c_long(_SYS_CLONE3), words, ctypes.c_size_t(ctypes.sizeof(words))))
    if pid < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"clone3: {os.strerror(number)}")
    return pid


def enter_namespace(fd: int) -> None:
    """Move into a namespace, open as ``fd``. A process id namespace takes only later children in."""
    _check(_LIBC.setns(fd, 0), "setns")


def drop_privileges(user: int | None) -> None:
    """Become user and group ``user`` (where given) for good, without a capability now or later."""
    capability = 0
    while _LIBC.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) == 0:
        capability += 1
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    _check(_LIBC.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0), "prctl(PR_CAP_AMBIENT)")
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    _check(_LIBC.capset(header, bytes(_CAPABILITY_DATA_BYTES)), "capset")
    forbid_new_privileges()


def watch_names(path: str) -> int:
    """A descriptor that is readable when a name appears in ``path``; -1 where the kernel has none left."""
    fd = int(_LIBC.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
    if fd < 0:
        return -1
    if _LIBC.inotify_add_watch(fd, os.fsencode(path), _IN_CREATE | _IN_MOVED_TO) < 0:
        os.close(fd)
        return -1
    return fd


def read_all(fd: int) -> None:
    """Take whatever waits in a descriptor that does not block."""
    try:
        while os.read(fd, _READ_BYTES):
            pass
    except BlockingIOError:
        pass
