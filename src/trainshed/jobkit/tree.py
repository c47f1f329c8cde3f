"""Directory trees: filling a work directory, measuring it, and removing whatever became of it."""

from __future__ import annotations

import errno
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainshed.jobkit.folder import StrPath

_COPY_CHUNK = 1 << 30
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


def remove(path: StrPath) -> None:
    """Remove a tree however it is nested and whatever its permissions are. No error if it is gone.

    A directory is emptied by moving its subdirectories up beside it. So no path grows long, no
    recursion goes deep, and two descriptors are enough for a tree a hundred thousand levels deep.
    """
    try:
        top = _open_directory(path, None)
    except FileNotFoundError:
        return
    except NotADirectoryError:
        os.unlink(path)
        return
    try:
        os.fchmod(top, 0o700)
        serial = 0
        while names := os.listdir(top):
            for name in names:
                serial = _empty(top, name, serial)
    finally:
        os.close(top)
    os.rmdir(path)


def _open_directory(name: StrPath, parent: int | None) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(name, flags, dir_fd=parent)
    except PermissionError:
        os.chmod(name, 0o700, dir_fd=parent)
        return os.open(name, flags, dir_fd=parent)


def _is_directory(name: str, parent: int) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)


def _empty(top: int, name: str, serial: int) -> int:
    """Remove the entry ``name`` of ``top``, moving its subdirectories up into ``top``."""
    if not _is_directory(name, top):
        os.unlink(name, dir_fd=top)
        return serial
    inner = _open_directory(name, top)
    try:
        os.fchmod(inner, 0o700)
        for child in os.listdir(inner):
            if _is_directory(child, inner):
                serial = _move_up(inner, child, top, serial)
            else:
                os.unlink(child, dir_fd=inner)
    finally:
        os.close(inner)
    os.rmdir(name, dir_fd=top)
    return serial


def _move_up(inner: int, child: str, top: int, serial: int) -> int:
    os.chmod(child, 0o700, dir_fd=inner)  # moving a directory writes its ".."
    while True:
        serial += 1
        try:
            os.rename(child, f".removed-{serial}", src_dir_fd=inner, dst_dir_fd=top)
        except OSError as error:
            if error.errno not in {errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR}:
                raise
        else:
            return serial
