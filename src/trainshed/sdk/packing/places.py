"""Which folder is packed, and where its gpu.yaml lies; what may never be packed at all (a.1, d)."""

from __future__ import annotations

import contextlib
import os
import pwd
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from trainshed.model.scripts.credentials import (
    DIRECTORIES,
    HOME_STORES,
    PAIRS,
    credential_rule,
    in_home_store,
)
from trainshed.model.scripts.faults import shown
from trainshed.model.scripts.gpu_yaml import FILE_NAME, MAX_BYTES
from trainshed.sdk.home import find_home
from trainshed.sdk.packing.errors import invalid_request, invalid_spec
from trainshed.sdk.packing.git import repository_of

MOST_LOOKED_AT = 20_000
"""Entries of a data folder that are looked at for links into a store (a.1)."""


@dataclass(frozen=True, slots=True)
class Project:
    """What is packed."""

    given: str
    """The project directory, absolute, as it was named."""
    directory: str
    """The same with links resolved."""
    root: str
    """What ships: the root of the git repository around it, else the directory itself."""
    in_git: bool

    @property
    def workdir(self) -> str:
        """Where the directory lies in what ships; empty for its top."""
        return below(self.directory, self.root) or ""


def find_project(given: str) -> Project:
    """The project at ``given``, an absolute path of a directory (``~`` is expanded).

    Raises `InvalidSpec` (``invalid_request``, G80), also for a home directory and what holds credentials.
    """
    if not isinstance(given, str) or "\0" in given or not given.strip():
        raise invalid_request("`project_dir` must be the path of a directory")
    path = os.path.expanduser(given)
    if not os.path.isabs(path):
        raise invalid_request(
            f"`project_dir` must be absolute; `{shown(given)}` is not",
            f"Write {shown(os.path.abspath(path))}",
        )
    path = os.path.normpath(path)
    if not os.path.isdir(path):
        what = "is no directory" if os.path.lexists(path) else "is not there"
        raise invalid_request(f"`project_dir`: {shown(path)} {what}")
    directory = os.path.realpath(path)
    for each in (path, directory):
        if shown(each, len(each)) != each:
            raise invalid_request(f"`project_dir`: {shown(each)} is not UTF-8, or holds control characters")
    repository = repository_of(directory)
    root = repository or directory
    if ".git" in (below(directory, root) or "").lower().split("/"):
        raise invalid_request(f"`project_dir`: {shown(path)} lies in a repository's own files")
    if said := refused_place(root):
        hint = (
            "Pack a folder of its own; `git init` in it keeps the repository around it out."
            if repository
            else ""
        )
        raise invalid_request(f"`project_dir`: {shown(root)} is not packed: {said}", hint)
    return Project(path, directory, root, in_git=repository is not None)


def refused_place(place: str) -> str | None:
    """Why nothing of ``place`` (absolute, resolved) is ever packed, as a sentence's end; or ``None``."""
    homes = home_directories()
    for home in homes:
        if place == home:
            return "it is a home directory"
        if below(home, place) is not None:
            return "a home directory lies in it"
    if store := store_around(place, homes):
        return f"it is or lies in a store of credentials ({store})"
    for home in homes:
        for store in HOME_STORES:
            inside = f"{home}/{store}"
            if below(inside, place) and os.path.exists(inside):
                return f"it contains a store of credentials ({store})"
    return None


def store_around(place: str, homes: Iterable[str] | None = None) -> str | None:
    """The store of credentials that ``place`` is or lies in: one of a home, of any folder, or our own."""
    if store := in_home_store(place, list(home_directories() if homes is None else homes)):
        return store
    parts = place.lower().split("/")
    for number, part in enumerate(parts):
        if part in DIRECTORIES:
            return part
        if "/".join(parts[number : number + 2]) in PAIRS:
            return "/".join(parts[number : number + 2])
    return (
        "the folder of this program"
        if any(below(place, each) is not None for each in own_folders())
        else None
    )


def own_folders() -> tuple[str, ...]:
    """Where this program keeps what it knows of its user: keys and, of an embedded server, everything."""
    home = find_home()
    return tuple({os.path.realpath(home.config), os.path.realpath(home.data)})


def own_below(root: str) -> tuple[str, ...]:
    """Those of `own_folders` that lie below ``root``, relative, each with a ``/`` at its end."""
    inside = (below(folder, root) for folder in own_folders())
    return tuple(f"{folder}/" for folder in inside if folder)


def withheld(path: str, own: tuple[str, ...]) -> str | None:
    """The rule by which ``path`` never leaves this machine, or ``None``; ``own`` is of `own_below`."""
    if own and path.startswith(own):
        return "the folder of this program"
    return credential_rule(path)


def home_directories() -> tuple[str, ...]:
    """This user's, as the environment and as the system name it; resolved."""
    named = [os.path.expanduser("~")]
    with contextlib.suppress(KeyError):
        named.append(pwd.getpwuid(os.getuid()).pw_dir)
    return tuple(dict.fromkeys(os.path.realpath(each) for each in named if each not in {"", "/", "~"}))


def below(place: str, root: str) -> str | None:
    """``place`` relative to ``root``, empty for the root itself; ``None`` if it does not lie in it."""
    if place == root:
        return ""
    start = root if root.endswith("/") else f"{root}/"
    return place[len(start) :] if place.startswith(start) else None


def read_spec_file(project: Project) -> tuple[str, bytes] | None:
    """gpu.yaml: the directory that it lies in and its bytes; ``None`` where there is none.

    That of the project directory, else that of the repository's root (d, "Location"). Raises `InvalidSpec`.
    """
    for directory in dict.fromkeys((project.directory, project.root)):
        path = f"{directory}/{FILE_NAME}"
        if os.path.lexists(path):
            return directory, _read(path, project.root)
    return None


def _read(path: str, root: str) -> bytes:
    place = os.path.realpath(path)
    if below(place, root) is None or store_around(place):
        raise invalid_spec(f"{FILE_NAME}: it is a link out of the project, which is not read")
    try:
        descriptor = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise invalid_spec(f"{FILE_NAME}: it is no regular file")
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise invalid_spec(f"{FILE_NAME}: it cannot be read: {error.strerror}") from None


def links_into_a_store(place: str) -> Iterator[str]:
    """Links below ``place`` that lead into a store of credentials, of the first `MOST_LOOKED_AT` entries."""
    homes = home_directories()
    waiting, looked_at = [place], 0
    while waiting:
        folder = waiting.pop()
        try:
            with os.scandir(folder) as found:
                for entry in found:
                    looked_at += 1
                    if looked_at > MOST_LOOKED_AT:
                        return
                    if entry.is_symlink():
                        if store_around(os.path.realpath(entry.path), homes):
                            yield entry.path
                    elif entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
        except OSError:
            continue
