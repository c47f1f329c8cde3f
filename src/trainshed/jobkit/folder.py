"""The attempt folder: every durable fact about one replica, and how it is written and read.

Which of its files exist, and whether somebody holds its lock, is all that is needed to say how far
an attempt got; no process id is ever trusted across a restart.

==================  =====================================================================
``launch.json``     what to run; durable before anything else happens (launch intent)
``stop.json``       durable request to end; ``{"grace": seconds}``
``started.json``    created exclusively, synced, just before user code is executed
``exit.json``       the exit record; the last thing a shim writes
``lock``            an open-file-description lock, held by the shim for as long as it lives; its
                    content is the holder's pid: a hint for killing it, never evidence
``control``         FIFO: any byte means "read stop.json again"
``log.frames``      output (`trainshed.jobkit.frames`); ``log.index`` lies beside it
``work``            the program's working directory
``tmp``             its ``/tmp`` in a sandbox
``content``         where it finds what it only reads (`trainshed.jobkit.mounts`)
``volumes``         where folders of volumes are bound before they are shown (`trainshed.jobkit.volumes`)
``training.json``   what a member of a gang, a notice or measuring needs; lies there before the launch
``secrets.json``    hidden values and keys, readable by us alone; gone when the program ended
``notice.json``     durable request to tell the program that it must go (C36)
``stage``           how far one that prepares got
``shells``          names of shells that are asked for (`trainshed.jobkit.shells`)
``reports.jsonl``   what the shim has to say, numbered; ``samples.jsonl`` what it measured
``.exit.json``      the exit record to be: disk space held for it and for the end of the log
==================  =====================================================================

A program of our own user can remove all this. So ``begun/ATTEMPT`` stands beside the folders of all attempts
from before user code is executed until the attempt is forgotten: what it names never starts again.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import struct

LAUNCH, STOP, STARTED, EXIT = "launch.json", "stop.json", "started.json", "exit.json"
LOCK, CONTROL, WORK, TEMPORARY, CONTENT = "lock", "control", "work", "tmp", "content"
VOLUMES = "volumes"
FRAMES, INDEX = "log.frames", "log.index"
REPORTS, SAMPLES, OLDER_SAMPLES = "reports.jsonl", "samples.jsonl", "samples.1.jsonl"
TRAINING, SECRETS, NOTICE, STAGE = "training.json", "secrets.json", "notice.json", "stage"
GANGS, BEGUN, SHELLS = "gangs", "begun", "shells"

_FLOCK = struct.Struct("@hhqqi4x")
_WHOLE_FILE = (os.SEEK_SET, 0, 0, 0)

_RECORD_TO_BE = ".exit.json"
_MOST_BYTES = 64 << 20
"""A launch of ten thousand files is a few MiB."""
_RECORD_BYTES, _RESERVE_BYTES = 1 << 12, 1 << 13

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing itself is not loaded beside user code
    from typing import Any

    Json = dict[str, Any]
    StrPath = str | os.PathLike[str]


def sync_directory(path: StrPath) -> None:
    """Make the names in ``path`` durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _write_new(path: StrPath, flags: int, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | flags, 0o600)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.fsync(fd)
    finally:
        os.close(fd)


def write_durably(folder: StrPath, name: str, content: Json) -> None:
    """Replace ``name`` so that after a crash it holds the old or the new content, nothing else."""
    temporary = os.path.join(folder, f".{name}.{os.getpid()}.{os.urandom(4).hex()}")
    _write_new(temporary, os.O_EXCL, json.dumps(content).encode())
    place = os.path.join(folder, name)
    try:
        os.rename(temporary, place)
    except IsADirectoryError:
        os.rename(place, f"{temporary}.was")  # nothing of ours: the program put it there
        os.rename(temporary, place)
    sync_directory(folder)


def create_durably(folder: StrPath, name: str, content: bytes) -> None:
    """Create ``name`` or raise `FileExistsError`: at most one caller ever succeeds.

    Where it cannot be written (`OSError`) nothing is left of it.
    """
    path = os.path.join(folder, name)
    try:
        _write_new(path, os.O_EXCL, content)
        sync_directory(folder)
    except FileExistsError:
        raise
    except OSError:
        if os.path.exists(path):
            os.unlink(path)
        raise


def read(folder: StrPath, name: str) -> Json | None:
    """The content of ``name``; ``None`` if there is none, empty if it is torn or nothing of ours.

    The program runs as the same user and may put anything in this place: a FIFO must not make us wait, a
    link not lead us away, and nothing may be read without bound.
    """
    try:
        fd = os.open(os.path.join(folder, name), os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        return {}
    try:
        size = os.fstat(fd).st_size
        if not stat.S_ISREG(os.fstat(fd).st_mode) or size > _MOST_BYTES:
            return {}
        data = b""
        while len(data) < size and (piece := os.read(fd, size - len(data))):
            data += piece
        content = json.loads(data or b"{}")
    except (OSError, ValueError, RecursionError):
        return {}
    finally:
        os.close(fd)
    return content if isinstance(content, dict) else {}


def exists(folder: StrPath, name: str) -> bool:
    """Whether the fact called ``name`` is recorded."""
    return os.path.exists(os.path.join(folder, name))


def _begun(folder: StrPath) -> str:
    attempts, name = os.path.split(os.fspath(folder))
    return os.path.join(os.path.dirname(attempts), BEGUN, name)


def note_begun(folder: StrPath) -> None:
    """Note outside the attempt folder that user code may have begun. Raises `OSError`."""
    note = _begun(folder)
    os.makedirs(os.path.dirname(note), mode=0o700, exist_ok=True)
    os.close(os.open(note, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))


def has_begun(folder: StrPath) -> bool:
    """Whether user code may have begun, also where the program removed what says so."""
    return exists(folder, STARTED) or os.path.lexists(_begun(folder))


def forget_begun(folder: StrPath) -> None:
    """Remove the note: the attempt is released, and its folder is about to go."""
    try:
        os.unlink(_begun(folder))
    except FileNotFoundError:
        pass


def identity(folder: StrPath) -> tuple[int, int] | None:
    """What tells this folder from another that took its name; ``None`` if there is none."""
    try:
        facts = os.stat(folder, follow_symlinks=False)
    except OSError:
        return None
    return facts.st_dev, facts.st_ino


def is_stopped(folder: StrPath) -> bool:
    """Whether user code that has not started must not start any more."""
    return exists(folder, STOP) or exists(folder, NOTICE)


def acquire(folder: StrPath) -> int | None:
    """Take the lock and return the descriptor that holds it; ``None`` if it is not to be had.

    That is while another process has it, and for ever where the program put a directory in its place.

    The lock belongs to the open file description: it goes when the last copy of the descriptor is
    closed, at the latest with the process. That is what makes a free lock evidence.
    """
    try:
        fd = os.open(os.path.join(folder, LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except IsADirectoryError:
        return None
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, *_WHOLE_FILE))
    except OSError as error:
        os.close(fd)
        if error.errno in {errno.EAGAIN, errno.EACCES}:
            return None
        raise
    os.pwrite(fd, b"%d\n" % os.getpid(), 0)
    return fd


def holder(folder: StrPath) -> int | None:
    """The process id that the last holder of the lock wrote into it."""
    try:
        fd = os.open(os.path.join(folder, LOCK), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return int(os.read(fd, 32))
    except (OSError, ValueError):
        return None
    finally:
        os.close(fd)


def is_held(folder: StrPath) -> bool:
    """Whether a process holds the lock. Looks without touching: it disturbs nobody who acquires."""
    try:
        fd = os.open(os.path.join(folder, LOCK), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _FLOCK.pack(fcntl.F_WRLCK, *_WHOLE_FILE))
    except OSError:
        return False  # something else stands in its place, which nobody can lock
    finally:
        os.close(fd)
    return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)


def reserve(folder: StrPath) -> None:
    """Hold disk space for the last writes, so that a full disk cannot keep an end from being recorded."""
    fd = os.open(os.path.join(folder, _RECORD_TO_BE), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, _RECORD_BYTES + _RESERVE_BYTES)
    finally:
        os.close(fd)


def use_reserve(folder: StrPath) -> None:
    """Give the disk back what is held for the end of the log."""
    try:
        os.truncate(os.path.join(folder, _RECORD_TO_BE), _RECORD_BYTES)
    except FileNotFoundError:
        pass


def record_exit(folder: StrPath, content: Json) -> None:
    """Write the exit record, durably, into the space held for it. Needs the lock."""
    path = os.path.join(folder, _RECORD_TO_BE)
    data = json.dumps(content).encode()
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if os.pwrite(fd, data, 0) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.ftruncate(fd, len(data))
        os.fsync(fd)
    finally:
        os.close(fd)
    place = os.path.join(folder, EXIT)
    try:
        os.rename(path, place)
    except IsADirectoryError:
        os.rename(place, f"{path}.was")
        os.rename(path, place)
    sync_directory(folder)


def forget_secrets(folder: StrPath) -> None:
    """Remove hidden values and keys: the program that they were for is gone, or never comes."""
    try:
        os.unlink(os.path.join(folder, SECRETS))
    except FileNotFoundError:
        pass


def open_control(folder: StrPath) -> int:
    """Create the control FIFO if needed and open it so that reading it never meets an end."""
    path = os.path.join(folder, CONTROL)
    try:
        os.mkfifo(path, 0o600)
    except FileExistsError:
        pass
    return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)


def poke(fifo: StrPath, message: bytes = b"!") -> bool:
    """Write ``message`` to a FIFO if somebody reads it; never waits."""
    try:
        fd = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.write(fd, message)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True
