"""What a program sees beside its work directory: read-only folders and files that are not copied (C11-C13).

They lie below one folder of the attempt, and where it is asked for at an absolute path as well. With a mount
namespace of its own the program has read-only binds there, which nobody else sees and which end with it.
Without the right to make one, symbolic links lead to the sources, which only their permissions guard.

An absolute path that does not exist gets its mount point inside the namespace alone: the nearest folder above
it is covered by an empty one, its entries are bound back, and the new name is made beside them. Nothing is
written to the machine's own disk.
"""

from __future__ import annotations

import errno
import os
import stat

from trainshed.jobkit import folder, linux, tree

MOUNT, LINKS = "mount", "permissions"
"""What an attempt says of how its inputs are kept from it."""
RAY = "/tmp/ray"  # noqa: S108 - where Ray has its files, on every node
"""Where the shared storage of a Ray task belongs (C48); the one place in a folder of the system's."""
SANDBOX_CONTENT = "/run/content"
"""The folder of mounts inside a sandbox."""
_MOST_ENTRIES = 1000
_TMPFS = b"size=1m,mode=755"
_REPLACED = ("proc", "dev", "run", "tmp")  # a sandbox has its own of these

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

    Entry = tuple[str, str, str | None, bool]
    """Source, place below the folder of mounts, absolute path or nothing, whether it may be written."""


def bind(path: str, entries: list[Entry]) -> None:
    """Bind ``entries`` for the attempt folder ``path`` in this process's own mount namespace.

    Raises `OSError` with the reason.
    """
    content = os.path.join(path, folder.CONTENT)
    os.makedirs(content, mode=0o755, exist_ok=True)
    wanted = {target: (source, writable) for source, _, target, writable in entries if target}
    if RAY in wanted:
        os.makedirs(RAY, exist_ok=True)  # empty for everybody else; /tmp itself must not be covered
    covers = _covers(wanted)
    if covers.pop("/", None):
        _cover_root(content)
    linux.mount_tmpfs(content, _TMPFS)
    for source, place, _, writable in entries:
        _bind_at(source, os.path.join(content, place), writable=writable)
    linux.read_only(content)
    for above in sorted(covers):
        _cover(above)
    for target, (source, writable) in sorted(wanted.items()):
        _bind_at(source, target, writable=writable)
    for above in covers:
        linux.read_only(above)
    if wanted:
        os.chdir("/")


def link(path: str, entries: list[Entry]) -> None:
    """Make symbolic links to ``entries`` for the attempt folder ``path``. Raises `OSError`.

    What may be written is only below the folder of mounts, whatever absolute path it belongs at.
    """
    content = os.path.join(path, folder.CONTENT)
    tree.remove(content)
    os.mkdir(content, 0o755)
    made = [content]
    for source, place, target, writable in entries:
        if target and not writable:
            raise OSError(errno.EPERM, "nobody may mount here, so nothing can be shown at", target)
        point = os.path.join(content, place)
        parent = os.path.dirname(point)
        os.makedirs(parent, exist_ok=True)
        made.append(parent)
        os.symlink(source, point)
    for parent in made:
        os.chmod(parent, 0o555)  # noqa: S103 - for reading alone


def sandbox_arguments(entries: list[Entry]) -> tuple[list[str], list[str]]:
    """What bubblewrap is told: how to show the machine's files, and what to mount once ``/run`` is there."""
    wanted = {target: (source, writable) for source, _, target, writable in entries if target}
    ray = wanted.pop(RAY, None)  # its /tmp is its own, and mounted later
    covers = _covers(wanted)
    first = whole = ["--ro-bind", "/", "/"]
    if covers.pop("/", None):
        first = [word for name in _entries("/") if name not in _REPLACED for word in _shown("/", name)]
    first = list(first)
    for above in sorted(covers):
        first += ("--tmpfs", above)
        for name in _entries(above):
            first += _shown(above, name)
    for target, (source, writable) in sorted(wanted.items()):
        first += (*_parents(target), "--bind" if writable else "--ro-bind", source, target)
    for above in covers:
        first += ("--remount-ro", above)
    last = ["--bind" if ray[1] else "--ro-bind", ray[0], RAY] if ray else []
    for source, place, _, writable in entries:
        point = f"{SANDBOX_CONTENT}/{place}"
        last += (*_parents(point), "--bind" if writable else "--ro-bind", source, point)
    return first, last + ([] if first[:3] == whole else ["--remount-ro", "/"])


def clear(path: str) -> str:
    """Remove the folder of mounts of the attempt folder ``path``; what was seen. Raises `OSError`.

    What a program with all rights mounted for everybody, anywhere below ``path``, is unmounted first, even
    if it is in use: removing must never reach what a mount shows.
    """
    place = os.path.realpath(path)
    found = mounted_below(place)
    for _ in found:
        if left := mounted_below(place):
            # The outermost takes along what is mounted in it. Of shared mounts the originals would go too.
            linux.make_private(left[0])
            linux.unmount(left[0])
    if left := mounted_below(place):
        raise tree.crossed(left[0])
    content = os.path.join(path, folder.CONTENT)
    tree.remove(os.path.join(path, folder.VOLUMES))
    if not found and not os.path.lexists(content):
        return "none"
    tree.remove(content)
    return "none left"


def mounted_below(place: str) -> list[str]:
    """What is mounted at or below ``place`` for this process, outer ones first."""
    found = []
    with open("/proc/self/mountinfo", "rb") as file:
        for line in file:
            point = os.fsdecode(_unescaped(line.split(b" ")[4]))
            if point == place or point.startswith(f"{place}/"):
                found.append(point)
    return sorted(found)


def _unescaped(name: bytes) -> bytes:
    """Spaces and the like are written as three octal digits."""
    parts = name.split(b"\\")
    return parts[0] + b"".join(bytes([int(part[:3], 8)]) + part[3:] for part in parts[1:])


def _covers(wanted: Collection[str]) -> dict[str, list[str]]:
    """The folders that need a new name in or below them, with the paths that need it."""
    covers: dict[str, list[str]] = {}
    for target in wanted:
        above = target
        while not os.path.lexists(above):
            above = os.path.dirname(above)
        if above != target:
            covers.setdefault(os.path.realpath(above), []).append(target)
    return covers


def _entries(place: str) -> list[str]:
    names = sorted(os.listdir(place))
    if len(names) > _MOST_ENTRIES:
        why = f"make the folder by hand: {len(names)} names cannot be shown again one by one in"
        raise OSError(errno.E2BIG, why, place)
    return names


def _shown(above: str, name: str) -> list[str]:
    """How bubblewrap shows an entry of a covered folder again."""
    place = os.path.join(above, name)
    if os.path.islink(place):
        return ["--symlink", os.readlink(place), place]
    return ["--ro-bind", place, place]


def _parents(point: str) -> list[str]:
    """How bubblewrap makes what is missing above ``point``: by itself, it lets nobody but root walk there."""
    words: list[str] = []
    parent = os.path.dirname(point)
    while (
        parent == SANDBOX_CONTENT or parent.startswith(f"{SANDBOX_CONTENT}/") or not os.path.lexists(parent)
    ):
        words = ["--perms", "0755", "--dir", parent, *words]
        parent = os.path.dirname(parent)
    return words


def _cover(above: str) -> None:
    cover(above, _TMPFS)


def cover(above: str, options: bytes, without: Collection[str] = ()) -> None:
    """Put a folder in memory in the place of ``above``, with what it held bound back into it.

    Names in ``without`` are left out. Raises `OSError`.
    """
    names = [name for name in _entries(above) if name not in without]
    fd = os.open(above, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        linux.mount_tmpfs(above, options)
        for name in names:
            _bind_back(f"/proc/self/fd/{fd}/{name}", os.path.join(above, name))
    finally:
        os.close(fd)


def _cover_root(spare: str) -> None:
    """The same for the root folder: a new root, made at ``spare``, takes its place."""
    linux.mount_tmpfs(spare, _TMPFS)
    linux.forbid_binding(spare)  # or the copies of what lies above it would hold it again
    for name in _entries("/"):
        _bind_back(f"/{name}", os.path.join(spare, name))
    linux.change_root(spare)


def _bind_back(source: str, place: str) -> None:
    if os.path.islink(source):
        os.symlink(os.readlink(source), place)
        return
    _make_point(source, place)
    linux.bind(source, place, recursive=True)


def _bind_at(source: str, place: str, *, writable: bool = False) -> None:
    os.makedirs(os.path.dirname(place), mode=0o755, exist_ok=True)
    if not os.path.lexists(place):
        _make_point(source, place)
    linux.bind(source, place)
    if writable:
        linux.writable(place)
    else:
        linux.read_only(place)


def _make_point(source: str, place: str) -> None:
    if stat.S_ISDIR(os.stat(source).st_mode):
        os.mkdir(place, 0o755)
    else:
        os.close(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444))
