"""The few Linux calls that the standard library lacks: prctl, unshare, mount."""

from __future__ import annotations

import ctypes
import os

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_CLONE_NEWNS = 0x00020000
_MS_NOSUID_NODEV = 0x2 | 0x4
_MS_REC_PRIVATE = 0x4000 | 1 << 18
_CAP_SYS_ADMIN = 21


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


def private_shared_memory(size: int) -> None:
    """Give this process a mount namespace of its own with ``size`` bytes of ``/dev/shm`` in it."""
    _check(_LIBC.unshare(_CLONE_NEWNS), "unshare(CLONE_NEWNS)")
    _check(_LIBC.mount(None, b"/", None, ctypes.c_ulong(_MS_REC_PRIVATE), None), "mount(MS_PRIVATE)")
    options = b"size=%d,mode=1777" % size
    _check(
        _LIBC.mount(b"tmpfs", b"/dev/shm", b"tmpfs", ctypes.c_ulong(_MS_NOSUID_NODEV), options),
        "mount(/dev/shm)",
    )


def may_mount() -> bool:
    """Whether this process holds CAP_SYS_ADMIN, which a mount namespace needs."""
    with open("/proc/self/status", "rb") as file:
        for line in file:
            if line.startswith(b"CapEff:"):
                return bool(int(line.split()[1], 16) >> _CAP_SYS_ADMIN & 1)
    return False
