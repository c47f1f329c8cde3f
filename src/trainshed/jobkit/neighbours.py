"""What a member of a gang sees of the others, in a mount namespace of its own (C39, C41).

Two gangs on one machine never see each other's names, host files or keys: ``/etc/hosts`` is a bind, and
root's home is covered by a folder in memory, whose entries are the machine's own again, ours beside them.
"""

from __future__ import annotations

import os

from trainshed.jobkit import linux, mounts

HOME = "/root"
HOSTS, HOSTFILE, HOSTFILE_NAMES = "hosts", "hostfile", "hostfile.hostname"
"""Files of the attempt folder."""
INSIDE = "/run"
"""Where the two host files are in a sandbox or an image as well: not everybody there may walk root's home."""
VARIABLE = "TRAINSHED_HOSTFILE"
UNAVAILABLE = "SSH_UNAVAILABLE"
_HOME_OPTIONS = b"size=64m,mode=700"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainshed.jobkit.folder import Json


def shown(path: str, *, inside: bool) -> list[tuple[str, str]]:
    """The files of the attempt folder ``path`` with where they are to be found."""
    found = [(os.path.join(path, HOSTS), os.path.realpath("/etc/hosts"))]
    for name in (HOSTFILE, HOSTFILE_NAMES):
        source = os.path.join(path, name)
        found.append((source, f"{HOME}/{name}"))
        if inside:
            found.append((source, f"{INSIDE}/{name}"))
    return found


def show(path: str, logins: Json | None, keys: dict[str, str]) -> None:
    """Make all of that seen by this process, which has a mount namespace. Raises `OSError`."""
    source, hosts = shown(path, inside=False)[0]
    linux.bind(source, hosts)
    linux.read_only(hosts)
    made = {HOSTFILE, HOSTFILE_NAMES} | ({".ssh"} if logins else set())
    texts = {}
    for name in (HOSTFILE, HOSTFILE_NAMES):
        with open(os.path.join(path, name), encoding="utf-8") as file:
            texts[name] = file.read()
    mounts.cover(HOME, _HOME_OPTIONS, without=made)
    for name, text in texts.items():
        _write(f"{HOME}/{name}", text, 0o644)
    if logins:
        os.mkdir(f"{HOME}/.ssh", 0o700)
        for name, text in {**logins["files"], **keys}.items():
            _write(f"{HOME}/.ssh/{name}", text, 0o600)


def _write(place: str, text: str, mode: int) -> None:
    fd = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(text)


def unavailable(reason: str) -> OSError:
    """The error that a member without logins does not start with."""
    return OSError(0, f"{UNAVAILABLE}: {reason}")
