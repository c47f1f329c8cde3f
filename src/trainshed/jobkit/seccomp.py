"""System calls that no program in an image gets: what reaches the kernel's insides, or makes namespaces.

A container runtime's own filter holds for what the runtime starts, and the program is started by us. None of
these works without privileges today, except that new user namespaces would lend some; the filter is the
second lock on the same door. Calls of another instruction set (32 bit) are refused as unknown.
"""

from __future__ import annotations

import errno
import os
import struct

from trainshed.jobkit import linux

_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
"""Where ``struct seccomp_data`` holds what is asked for (the lower half of the argument)."""
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000
_NEW_NAMESPACES = 0x7E020000
_X32 = 0x40000000
_CLONE3 = 435
_CLONE = {"x86_64": 56, "aarch64": 220}
_AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_SAME = {
    "io_uring_setup": 425,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "mount_setattr": 442,
}
"""Numbers that every instruction set shares."""
_DIFFERENT = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "init_module": (175, 105),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "mount": (165, 40),
    "open_by_handle_at": (304, 265),
    "perf_event_open": (298, 241),
    "pivot_root": (155, 41),
    "quotactl": (179, 60),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
    "vhangup": (153, 58),
}
"""Numbers by instruction set: x86_64, aarch64."""
_OLD = {"iopl": 172, "ioperm": 173}
"""What only x86_64 has."""


def forbid() -> None:
    """Refuse them (EPERM) to this process and all that it will start. Needs ``no_new_privs``.

    Raises `OSError` where the kernel has no such filters; does nothing for an instruction set that is not
    listed here.
    """
    machine = os.uname().machine
    if machine in _AUDIT:
        linux.filter_system_calls(program(machine))


def program(machine: str) -> bytes:
    """The filter in the kernel's own language (classic BPF)."""
    column = list(_AUDIT).index(machine)
    refused = {*_SAME.values(), *(numbers[column] for numbers in _DIFFERENT.values())}
    if machine == "x86_64":
        refused.update(_OLD.values())
    refuse, unknown = _REFUSE | errno.EPERM, _REFUSE | errno.ENOSYS
    # Each step: (code, value, steps to skip if it holds, steps to skip if not)
    steps = [
        (_LOAD, _ARCHITECTURE, 0, 0),
        (_JUMP_EQUAL, _AUDIT[machine], 1, 0),
        (_RETURN, unknown, 0, 0),
        (_LOAD, _NUMBER, 0, 0),
        (_JUMP_AT_LEAST, _X32, 0, 1),
        (_RETURN, unknown, 0, 0),
        # Its flags lie in memory, where no filter sees them; programs fall back to clone.
        (_JUMP_EQUAL, _CLONE3, 0, 1),
        (_RETURN, unknown, 0, 0),
    ]
    for number in sorted(refused):
        steps += [(_JUMP_EQUAL, number, 0, 1), (_RETURN, refuse, 0, 0)]
    steps += [
        (_JUMP_EQUAL, _CLONE[machine], 1, 0),
        (_RETURN, _ALLOW, 0, 0),
        (_LOAD, _FIRST_ARGUMENT, 0, 0),
        (_JUMP_ANY_BIT, _NEW_NAMESPACES, 0, 1),
        (_RETURN, refuse, 0, 0),
        (_RETURN, _ALLOW, 0, 0),
    ]
    return b"".join(struct.pack("=HBBI", code, yes, no, value) for code, value, yes, no in steps)
