"""Directory trees: filling a work directory, measuring it, and removing whatever became of it."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainshed.jobkit.folder import StrPath

_COPY_CHUNK = 1 << 30
_DIRECTORY_FLAGS = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FLAGS = struct.Struct("i")
_GET_FLAGS, _SET_FLAGS = 0x80086601, 0x40086602
_FIXED = 0x10 | 0x20
"""What ``chattr +i`` and ``+a`` set: nobody may change it, or only by appending."""
_UNSUPPORTED = {errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EBADF}


def copy_file(source: str, target: str, mode: int) -> None:
    """Copy bytes inside the kernel where it can; the two files share nothing that a writer could see."""
    read_fd = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        write_fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            os.fchmod(write_fd, mode)
            _copy_bytes(read_fd, write_fd)
        finally:
            os.close(write_fd)
    finally:
        os.close(read_fd)


def _copy_bytes(read_fd: int, write_fd: int) -> None:
    try:
        while os.copy_file_range(read_fd, write_fd, _COPY_CHUNK):
            pass
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
    else:
        return
    while chunk := os.read(read_fd, 1 << 20):
        view = memoryview(chunk)
        while view:
            view = view[os.write(write_fd, view) :]


def fill(work: str, files: list[tuple[str, str, bool]]) -> None:
    """Make ``work`` hold exactly these ``(relative path, source, executable)``.

    Removes what an interrupted earlier try left, so it may be repeated until user code starts.
    """
    remove(work)
    os.mkdir(work, 0o755)
    made = {work}
    for path, source, executable in files:
        target = os.path.normpath(os.path.join(work, path))
        if not target.startswith(work + "/"):
            raise ValueError(f"{path!r} leaves the work directory")
        parent = os.path.dirname(target)
        if parent not in made:
            os.makedirs(parent, exist_ok=True)
            made.add(parent)
        copy_file(source, target, 0o755 if executable else 0o644)


def give(path: str, user: int) -> None:
    """Make user and group ``user`` the owner of a tree that nobody else changes."""
    os.chown(path, user, user)
    for parent, folders, files in os.walk(path):
        for name in folders + files:
            os.chown(os.path.join(parent, name), user, user, follow_symlinks=False)


def used_bytes(path: StrPath, enough: int | None = None) -> int:
    """Disk blocks held by a tree that may be changing; stops counting once above ``enough``.

    A file with several names counts once.
    """
    total = 0
    linked: set[tuple[int, int]] = set()
    todo = [os.fspath(path)]
    while todo:
        try:
            entries = os.scandir(todo.pop())
        except OSError:
            continue
        with entries:
            for entry in entries:
                try:
                    facts = entry.stat(follow_symlinks=False)
                except OSError:
                    continue
                if facts.st_nlink > 1 and not stat.S_ISDIR(facts.st_mode):
                    if (facts.st_dev, facts.st_ino) in linked:
                        continue
                    linked.add((facts.st_dev, facts.st_ino))
                total += facts.st_blocks * 512
                if stat.S_ISDIR(facts.st_mode):
                    todo.append(entry.path)
        if enough is not None and total > enough:
            return total
    return total


def mount_id(fd: int) -> int:
    """The mount through which ``fd`` was opened: no two share one, as they may a device. Raises `OSError`."""
    with open(f"/proc/self/fdinfo/{fd}", "rb") as facts:
        for line in facts:
            if line.startswith(b"mnt_id:"):
                return int(line[7:])
    raise OSError(errno.ENOSYS, "the kernel does not say what is mounted where")


def unfix(path: StrPath, parent: int | None = None) -> bool:
    """Let a file or folder be changed that ``chattr`` forbids to change; whether that was forbidden.

    No link is followed, and nothing is done to what is mounted there. Raises `OSError` without the right.
    """
    above = _mount_above(path) if parent is None else mount_id(parent)
    fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        kind = os.fstat(fd).st_mode
        # Only these have such flags; opening a device may do something.
        if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)) or mount_id(fd) != above:
            return False
        inner = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    finally:
        os.close(fd)
    try:
        return _unfix_open(inner)
    finally:
        os.close(inner)


def _unfix_open(fd: int) -> bool:
    try:
        flags = _FLAGS.unpack(fcntl.ioctl(fd, _GET_FLAGS, bytes(_FLAGS.size)))[0]
    except OSError:
        return False  # a file system without such flags
    if flags & _FIXED:
        fcntl.ioctl(fd, _SET_FLAGS, _FLAGS.pack(flags & ~_FIXED))
    return bool(flags & _FIXED)


def _unlink(name: StrPath, parent: int | None = None) -> None:
    try:
        os.unlink(name, dir_fd=parent)
    except PermissionError:
        if not unfix(name, parent):
            raise
        os.unlink(name, dir_fd=parent)


def crossed(path: StrPath) -> OSError:
    """Says that ``path`` shows what is mounted there."""
    return OSError(errno.EBUSY, "something is mounted there", os.fspath(path))


def remove(path: StrPath) -> None:
    """Remove a tree however it is nested and whatever its permissions are. No error if it is gone.

    Where something is mounted it stops with `OSError`, before it touches what the mount shows. What cannot be
    changed because of its flags (``chattr +i``) is made so that it can.

    A directory is emptied by moving its subdirectories up beside it. So no path grows long, no
    recursion goes deep, and two descriptors are enough for a tree a hundred thousand levels deep.
    """
    try:
        mount = _mount_above(path)
        top = _open_directory(path, None, mount)
    except FileNotFoundError:
        return
    except NotADirectoryError:
        _unlink(path)
        return
    try:
        os.fchmod(top, 0o700)
        serial = 0
        while names := os.listdir(top):
            for name in names:
                serial = _empty(top, name, serial, mount)
    finally:
        os.close(top)
    os.rmdir(path)


def _mount_above(path: StrPath) -> int:
    parent = os.open(os.path.dirname(os.path.abspath(path)), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return mount_id(parent)
    finally:
        os.close(parent)


def _open_directory(name: StrPath, parent: int | None, mount: int) -> int:
    """Open a directory of this mount for reading, allowing that first where it must be."""
    try:
        fd = os.open(name, os.O_RDONLY | _DIRECTORY_FLAGS, dir_fd=parent)
    except PermissionError:
        _allow(name, parent, mount)
        fd = os.open(name, os.O_RDONLY | _DIRECTORY_FLAGS, dir_fd=parent)
    if mount_id(fd) != mount:
        os.close(fd)
        raise crossed(name)
    _unfix_open(fd)
    return fd


def _allow(name: StrPath, parent: int | None, mount: int) -> None:
    fd = os.open(name, os.O_PATH | _DIRECTORY_FLAGS, dir_fd=parent)
    try:
        if mount_id(fd) != mount:
            raise crossed(name)
        try:
            os.chmod(f"/proc/self/fd/{fd}", 0o700)
        except PermissionError:
            if not unfix(name, parent):
                raise
            os.chmod(f"/proc/self/fd/{fd}", 0o700)
    finally:
        os.close(fd)


def _is_directory(name: str, parent: int) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)


def _empty(top: int, name: str, serial: int, mount: int) -> int:
    """Remove the entry ``name`` of ``top``, moving its subdirectories up into ``top``."""
    if not _is_directory(name, top):
        _unlink(name, top)
        return serial
    inner = _open_directory(name, top, mount)
    try:
        os.fchmod(inner, 0o700)
        for child in os.listdir(inner):
            if _is_directory(child, inner):
                serial = _move_up(inner, child, top, serial, mount)
            else:
                _unlink(child, inner)
    finally:
        os.close(inner)
    os.rmdir(name, dir_fd=top)
    return serial


def _move_up(inner: int, child: str, top: int, serial: int, mount: int) -> int:
    _allow(child, inner, mount)  # moving a directory writes its ".."
    while True:
        serial += 1
        try:
            os.rename(child, f".removed-{serial}", src_dir_fd=inner, dst_dir_fd=top)
        except OSError as error:
            if error.errno not in {errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR}:
                raise
        else:
            return serial
