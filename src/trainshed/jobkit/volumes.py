"""Folders below volumes: opened without following a link, and bound from what was opened (C11-C13).

Programs write to volumes, and several tasks may mount one. So a name in a volume may be a folder when it is
looked at and a link to somewhere else when it is mounted. Here it is opened part by part, each part in the
one that was opened before, and what is bound is the open folder, not its name. It is bound at a place of
ours, in a mount namespace of ours; from there it is shown to the program by whatever runs that.
"""

from __future__ import annotations

import errno
import os

from trainshed.jobkit import folder, linux

_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ROOT = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_TMPFS = b"size=1m,mode=755"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainshed.jobkit.folder import StrPath

    Staged = tuple[str, str, str, bool]
    """Root of the volume, folder below it, name of our own place or nothing, whether it may be written."""


def open_beneath(root: StrPath, within: str, *, make: bool) -> int:
    """Open the folder ``within`` below ``root``; the descriptor is for paths alone (``O_PATH``).

    The root is the administrator's and may be reached through links; what is below it may not. Folders that
    are missing are made if ``make``. Raises `OSError`.
    """
    fd = os.open(root, _ROOT)
    for name in within.split("/"):
        try:
            inner = _open_part(fd, name, make=make)
        except OSError as error:
            why = error.strerror or str(error)
            if error.errno in {errno.ENOTDIR, errno.ELOOP}:
                why = "a link or something else that is no folder is on the way to the `sub_path` of a volume"
            raise OSError(error.errno, why, os.path.join(os.fspath(root), within)) from None
        finally:
            os.close(fd)
        fd = inner
    return fd


def _open_part(above: int, name: str, *, make: bool) -> int:
    if name in {"", ".", ".."}:
        raise OSError(errno.EINVAL, "the `sub_path` of a volume is no plain relative path")
    try:
        return os.open(name, _FOLDER, dir_fd=above)
    except FileNotFoundError:
        if not make:
            raise
    try:
        os.mkdir(name, dir_fd=above)
    except FileExistsError:
        pass  # another task was as fast
    return os.open(name, _FOLDER, dir_fd=above)


def stage(path: str, staged: list[Staged]) -> None:
    """Bind folders of volumes at places in the attempt folder ``path`` that only this process sees.

    Those without a name are only made: nobody may mount here, and the program has our own rights. Where there
    is one with a name this process moves into a mount namespace of its own. Raises `OSError` with the reason.
    """
    place = os.path.join(path, folder.VOLUMES)
    if any(name for _, _, name, _ in staged):
        linux.own_mounts()
        os.makedirs(place, mode=0o700, exist_ok=True)
        linux.mount_tmpfs(place, _TMPFS)
    for root, within, name, writable in staged:
        fd = open_beneath(root, within, make=writable)
        try:
            if name:
                point = os.path.join(place, name)
                os.mkdir(point, 0o755)
                linux.bind(f"/proc/self/fd/{fd}", point)
                if writable:
                    linux.writable(point)
                else:
                    linux.read_only(point)
        finally:
            os.close(fd)


def unstage(path: str) -> None:
    """Take our own places away again, for a program that sees the attempt folder. Raises `OSError`."""
    linux.unmount(os.path.join(path, folder.VOLUMES))
