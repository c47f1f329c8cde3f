"""Asking git what belongs to a project: its own answer, never a guess (e.1).

Only ``ls-files`` and ``check-ignore`` are run. They start no hook, filter or monitor that a repository could
configure, take no lock and write nothing.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from trainshed.model.scripts.faults import shown
from trainshed.sdk.packing.errors import InvalidSpec, invalid_spec

LIMIT_SECONDS = 30.0
_SUBMODULE = "160000"
_SHOWN_ERROR = 300


@dataclass(slots=True)
class Listing:
    """What git says of one repository. Paths are relative to its root, as the file system has them."""

    tracked: list[str] = field(default_factory=list)
    submodules: list[str] = field(default_factory=list)
    untracked: list[str] = field(default_factory=list)
    """Not ignored."""
    nested: list[str] = field(default_factory=list)
    """Directories with a repository of their own that is no submodule."""
    ignored: list[str] = field(default_factory=list)
    """Files, and directories (with ``/`` at their end) that are ignored as a whole."""


def repository_of(place: str) -> str | None:
    """The nearest directory, from ``place`` (absolute) upwards, that holds ``.git``."""
    while True:
        if os.path.lexists(f"{place}/.git"):
            return place
        above = os.path.dirname(place)
        if above == place:
            return None
        place = above


def listing(root: str, below: str = "") -> Listing:
    """Everything git knows of the repository at ``root``, or of the directory ``below`` in it.

    Of a directory that is ignored as a whole, or lies in such a one, ``ignored`` may name that. Raises
    `InvalidSpec`.
    """
    where = ["--", f":(literal){below}"] if below else []
    known = _Question(root, ["-c", "-o", "-s", "-t", "--exclude-standard", *where])
    ignored = _Question(root, ["-o", "-i", "--directory", "--exclude-standard", *where])
    found = Listing()
    for record in known.answer():
        tag, _, rest = record.partition(" ")
        if tag == "?":
            (found.nested if rest.endswith("/") else found.untracked).append(rest)
            continue
        attributes, _, path = rest.partition("\t")
        (found.submodules if attributes.startswith(_SUBMODULE) else found.tracked).append(path)
    found.ignored = _outermost(ignored.answer())
    # A file with a conflict is listed once for each side.
    found.tracked = list(dict.fromkeys(found.tracked))
    return found


def ignored_below(directory: str) -> list[str]:
    """What git ignores below ``directory`` (absolute, resolved), relative to it; see `Listing.ignored`.

    Repositories inside it, submodules or not, are asked for their own. Nothing is ignored in a directory
    that is ignored itself: who names it wants what is in it. Raises `InvalidSpec`.
    """
    root = repository_of(directory)
    if root is None:
        return []
    below = os.path.relpath(directory, root) if directory != root else ""
    start = f"{below}/" if below else ""
    told = listing(root, below)
    if below and any(start.startswith(path) for path in told.ignored) and ignoring_rule(root, start):
        return []
    found: list[str] = []
    for path in told.ignored:
        # Nothing but ignored files makes it look as if the directory were ignored as a whole.
        found += _entries(directory) if start.startswith(path) else [path.removeprefix(start)]
    for path in (*told.nested, *(f"{path}/" for path in told.submodules)):
        if os.path.lexists(f"{root}/{path}.git") and not os.path.islink(f"{root}/{path}".rstrip("/")):
            inside = path.removeprefix(start)
            found += [inside + each for each in ignored_below(f"{root}/{path}".rstrip("/"))]
    return found


def _entries(directory: str) -> list[str]:
    with os.scandir(directory) as listed:
        return [f"{entry.name}/" if entry.is_dir(follow_symlinks=False) else entry.name for entry in listed]


def _outermost(paths: Sequence[str]) -> list[str]:
    """Without what lies in a directory that is named too."""
    whole = {path for path in paths if path.endswith("/")}
    return [path for path in paths if not any(above in whole for above in _above(path))]


def _above(path: str) -> Iterator[str]:
    place = path.rfind("/", 0, len(path) - 1)
    while place > 0:
        yield path[: place + 1]
        place = path.rfind("/", 0, place)


def ignoring_rule(root: str, path: str) -> str | None:
    """The rule by which ``path`` is ignored, as ``FILE:LINE: PATTERN``; ``None`` if none does."""
    asked = f"{path}\0".encode("utf-8", "surrogateescape")
    done = _run(root, ["check-ignore", "--verbose", "--non-matching", "-z", "--no-index", "--stdin"], asked)
    if done.returncode not in {0, 1}:
        raise _failed(root, done.stderr)
    source, line, pattern, _ = (*done.stdout.decode("utf-8", "surrogateescape").split("\0"), "", "", "")[:4]
    return f"{shown(source)}:{line}: {shown(pattern)}" if source and not pattern.startswith("!") else None


class _Question:
    """One run of ``git ls-files`` that began; several run at once."""

    def __init__(self, root: str, arguments: Sequence[str]) -> None:
        self._root = root
        self._done: subprocess.CompletedProcess[bytes] | None = None
        self._fault: InvalidSpec | None = None
        self._thread = threading.Thread(target=self._ask, args=(["ls-files", "-z", *arguments],))
        self._thread.start()

    def answer(self) -> list[str]:
        self._thread.join()
        if self._fault is not None:
            raise self._fault
        done = self._done
        if done is None or done.returncode:
            raise _failed(self._root, done.stderr if done else b"it could not be started")
        return done.stdout.decode("utf-8", "surrogateescape").split("\0")[:-1]

    def _ask(self, arguments: Sequence[str]) -> None:
        try:
            self._done = _run(self._root, arguments)
        except InvalidSpec as fault:
            self._fault = fault


def _run(root: str, arguments: Sequence[str], stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = ["git", "-c", "core.fsmonitor=false", "-C", root, *arguments]
    try:
        return subprocess.run(  # noqa: S603 - a fixed program, no shell
            command,
            input=stdin,
            capture_output=True,
            check=False,
            env=_environment(root, os.environ),
            timeout=LIMIT_SECONDS,
        )
    except FileNotFoundError:
        raise invalid_spec(
            "the project is in a git repository, and the program `git` was not found", "Install git."
        ) from None
    except subprocess.TimeoutExpired:
        raise invalid_spec(
            f"git did not list {shown(root)} within {LIMIT_SECONDS:g} seconds",
            "Try `git status` there; a smaller folder with a repository of its own is listed faster.",
        ) from None


def _environment(root: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Without what would show git another repository, and without a way up from a broken one."""
    kept = {name: value for name, value in environ.items() if not name.startswith("GIT_")}
    ours = {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    configured = {
        name: environ[name] for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM") if name in environ
    }
    return kept | ours | configured | {"GIT_CEILING_DIRECTORIES": os.path.dirname(root)}


def _failed(root: str, stderr: bytes) -> InvalidSpec:
    said = stderr.decode("utf-8", "replace").strip()
    if "dubious ownership" in said:
        return invalid_spec(
            f"the repository {shown(root)} belongs to another user, so git does not read it",
            f"If you trust it: git config --global --add safe.directory {shown(root)}",
        )
    first = shown(said.removeprefix("fatal: ").partition("\n")[0], _SHOWN_ERROR)
    return invalid_spec(
        f"git cannot list the repository {shown(root)}: {first or 'it failed'}",
        "Repair the repository, or remove its `.git`; a folder without one is packed as it is.",
    )
