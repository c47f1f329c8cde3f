"""Which files of a project ship, and why the others do not (e.1 to e.5)."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import translate

from trainshed.model.scripts.credentials import credential_rule
from trainshed.model.scripts.include_patterns import IncludePattern, after_one
from trainshed.sdk.packing.errors import invalid_spec
from trainshed.sdk.packing.files import Files
from trainshed.sdk.packing.git import Listing, listing
from trainshed.sdk.packing.places import Project, below, own_below, store_around, withheld

RUNS = "runs"
"""Where outputs are brought to; never ships (d, "Location")."""
_WALK_NAMES = (
    *(".git", ".hg", ".svn", "__pycache__", "*.pyc", "*.pyo", ".venv", "venv", "env", ".tox", ".nox"),
    *("node_modules", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".ipynb_checkpoints", ".DS_Store"),
    *("*.egg-info", "dist", "build", "runs", "wandb", "mlruns", "lightning_logs", "checkpoints", "outputs"),
    *(".idea", ".vscode"),
)
"""Not looked at outside git (e.2)."""
_INSIDE_NAMES = (
    *(".git", ".hg", ".svn", "__pycache__", ".venv", "venv", "node_modules", ".tox", ".nox", ".mypy_cache"),
    *(".pytest_cache", ".ruff_cache", ".ipynb_checkpoints", "*.pyc", "*.pyo", ".DS_Store"),
)
"""Skipped inside what `include` names (e.5)."""
MAX_INCLUDED = 50_000
"""Entries that are visited for `include`."""
MAX_WALKED = 500_000
OUT, NOWHERE, TO_DIRECTORY, TO_CREDENTIALS, TO_GIT = (
    "it is a link out of the project",
    "it is a link that leads nowhere",
    "it is a link to a directory",
    "it is a link to credentials",
    "it is a link into a repository's own files",
)


def _any_of(names: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(translate, names)))


_WALKED_OVER = _any_of(_WALK_NAMES)
_NEVER_INSIDE = _any_of(_INSIDE_NAMES)


@dataclass(slots=True)
class Included:
    """What one pattern of `include` did."""

    pattern: str
    """As it was written."""
    matched: bool = False
    files: list[str] = field(default_factory=list)
    """Those that ship because of it."""
    notes: list[str] = field(default_factory=list)
    """What stood in its way."""


@dataclass(slots=True)
class Selection:
    """What ships of a project, and what was met on the way."""

    project: Project
    files: Files
    untracked: list[str] = field(default_factory=list)
    """Of the files that ship, those that git does not track."""
    skipped: dict[str, str] = field(default_factory=dict)
    """What does not ship although git lists it, and why: links, submodules, devices."""
    credentials: dict[str, str] = field(default_factory=dict)
    """Files that look like credentials, with the rule; they never ship."""
    ignored: list[str] = field(default_factory=list)
    """Files, and directories (with ``/``), that git ignores, or that are not looked at outside git."""
    nested: list[str] = field(default_factory=list)
    """Directories (with ``/``) that are repositories of their own."""
    included: list[Included] = field(default_factory=list)
    deleted: int = 0
    """Tracked files that are not there."""
    _shipped: set[str] | None = None
    _folders: set[str] | None = None

    @property
    def shipped(self) -> set[str]:
        """The paths of all files that ship."""
        if self._shipped is None:
            self._shipped = set(self.files.paths)
        return self._shipped

    @property
    def folders(self) -> set[str]:
        """Every directory that anything ships of, without the top."""
        if self._folders is None:
            self._folders = set()
            for path in self.files.paths:
                above = path.rpartition("/")[0]
                while above and above not in self._folders:
                    self._folders.add(above)
                    above = above.rpartition("/")[0]
        return self._folders

    @property
    def runs(self) -> str:
        """The directory of outputs, with a ``/`` at its end."""
        workdir = self.project.workdir
        return f"{workdir}/{RUNS}/" if workdir else f"{RUNS}/"


def select(project: Project, includes: Sequence[tuple[str, str]]) -> Selection:
    """Find what ships. ``includes`` are a directory relative to the root and a pattern below it, each.

    Raises `InvalidSpec`: git fails, or far too many files.
    """
    found = Selection(project, Files(project.root))
    adding = _Adding(found)
    if project.in_git:
        _from_git(adding, "", project.root)
    else:
        _from_walk(adding)
    here = set(found.files.paths) if includes else set()
    for directory, pattern in includes:
        _Including(adding, directory, pattern, here).run()
    return found


def _from_git(adding: _Adding, prefix: str, place: str) -> None:
    told: Listing = listing(place)
    found = adding.found
    missing = adding.add_all([prefix + path for path in told.tracked] if prefix else told.tracked)
    found.deleted += missing
    before = len(found.files.paths)
    adding.add_all([prefix + path for path in told.untracked] if prefix else told.untracked)
    found.untracked += found.files.paths[before:]
    found.ignored += [prefix + path for path in told.ignored]
    found.nested += [prefix + path for path in told.nested]
    for path in told.submodules:
        inside = f"{place}/{path}"
        if os.path.islink(inside) or not os.path.lexists(f"{inside}/.git"):
            found.skipped[f"{prefix}{path}/"] = "it is a submodule that is not checked out"
        elif adding.is_reached_through_a_link(prefix + path):
            found.skipped[f"{prefix}{path}/"] = TO_DIRECTORY
        else:
            _from_git(adding, f"{prefix}{path}/", inside)


def _from_walk(adding: _Adding) -> None:
    found = adding.found
    for path, entry, skipped in walk(found.project.root, _WALKED_OVER):
        if skipped:
            found.ignored.append(f"{path}/" if entry.is_dir(follow_symlinks=False) else path)
        else:
            adding.add(path, entry.stat(follow_symlinks=False))


def walk(
    root: str, over: re.Pattern[str], prefix: str = "", most: int = MAX_WALKED
) -> Iterator[tuple[str, os.DirEntry[str], bool]]:
    """What lies below ``root/prefix``, in the order of names: path, entry, whether its name is passed over.

    Links are answered and not followed; a directory is answered only where it is passed over. Raises
    `InvalidSpec` beyond ``most`` entries.
    """
    waiting, seen = [prefix], 0
    while waiting:
        folder = waiting.pop()
        try:
            with os.scandir(f"{root}/{folder}") as listed:
                entries = sorted(listed, key=lambda entry: entry.name)
        except OSError as error:
            raise invalid_spec(f"`{folder or '.'}` cannot be read: {error.strerror}") from None
        seen += len(entries)
        if seen > most:
            raise invalid_spec(
                f"the folder holds more than {most} files, directories counted",
                "Pass datasets in `data`; in a git repository what `.gitignore` names is not looked at.",
            )
        for entry in entries:
            path = folder + entry.name
            if over.fullmatch(entry.name):
                yield path, entry, True
            elif entry.is_dir(follow_symlinks=False):
                waiting.append(f"{path}/")
            else:
                yield path, entry, False


class _Adding:
    """Puts files into a selection by the rules that hold for all of them."""

    def __init__(self, found: Selection) -> None:
        self.found = found
        self._root = found.project.root
        self._runs = found.runs
        self._own = own_below(found.project.root)
        self._through_link: dict[str, bool] = {"": False}
        self.visited = 0
        """Entries that `include` led to."""

    def add_all(self, paths: Sequence[str]) -> int:
        """Add each path that is there; how many are not."""
        missing = 0
        root, lstat = self._root, os.lstat
        for path in paths:
            try:
                info = lstat(f"{root}/{path}")
            except OSError:
                missing += 1
                continue
            self.add(path, info)
        return missing

    def add(self, path: str, info: os.stat_result) -> bool:
        """Add a path that was found, unless a rule is against it."""
        found = self.found
        if path.startswith(self._runs):
            return False
        above = path.rpartition("/")[0]
        if self._through_link.get(above) or self.is_reached_through_a_link(above):
            found.skipped[path] = "it is reached through a link to a directory"
        elif (rule := withheld(path, self._own)) is not None:
            found.credentials[path] = rule
        elif stat.S_ISREG(info.st_mode):
            found.files.add(path, info)
            return True
        elif stat.S_ISLNK(info.st_mode):
            return self._add_link(path)
        elif not stat.S_ISDIR(info.st_mode):
            found.skipped[path] = "it is no regular file"
        return False

    def is_reached_through_a_link(self, directory: str) -> bool:
        """Whether a directory on the way to ``directory``, or itself, is a link now."""
        known = self._through_link.get(directory)
        if known is None:
            above = directory.rpartition("/")[0]
            known = self.is_reached_through_a_link(above) or os.path.islink(f"{self._root}/{directory}")
            self._through_link[directory] = known
        return known

    def _add_link(self, path: str) -> bool:
        """A link to a file of the project ships as that file (e.3)."""
        found = self.found
        place = os.path.realpath(f"{self._root}/{path}")
        inside = below(place, self._root)
        try:
            info = os.lstat(place)
        except OSError:
            info = None
        judged = place.rpartition("/")[2] if inside is None else inside
        if credential_rule(judged) or store_around(place):
            found.credentials[path] = "link target"
        elif inside is None:
            found.skipped[path] = OUT if info is not None else NOWHERE
        elif info is None or stat.S_ISLNK(info.st_mode):
            found.skipped[path] = NOWHERE
        elif stat.S_ISDIR(info.st_mode):
            found.skipped[f"{path}/"] = TO_DIRECTORY
        elif ".git" in inside.lower().split("/"):
            found.skipped[path] = TO_GIT
        elif not stat.S_ISREG(info.st_mode):
            found.skipped[path] = "it is no regular file"
        else:
            found.files.add(path, info, place)
            return True
        return False


class _Including:
    """One pattern of `include` and the walk that finds what it names."""

    def __init__(self, adding: _Adding, directory: str, pattern: str, here: set[str]) -> None:
        """``here`` are the paths that ship so far; it grows."""
        self._adding = adding
        self._root = adding.found.project.root
        self._begin = directory
        self._pattern = IncludePattern(pattern)
        self._here = here
        self._did = Included(pattern)
        adding.found.included.append(self._did)

    def run(self) -> None:
        waiting: list[tuple[str, frozenset[tuple[str, ...]]]] = [
            (self._begin, frozenset(self._pattern.after(())))
        ]
        while waiting:
            folder, states = waiting.pop()
            for name, info in self._entries(folder, states):
                path = f"{folder}/{name}" if folder else name
                after = after_one(states, name)
                directory = stat.S_ISDIR(info.st_mode)
                if () in after and (directory or not self._pattern.directories_only):
                    self._take(path, info)
                elif directory and after - {()}:
                    if not self._passed_over(path, name):
                        waiting.append((path, frozenset(after - {()})))
                elif stat.S_ISLNK(info.st_mode) and after - {()}:
                    self._did.notes.append(f"`{path}` is a link, which is not followed")

    def _entries(
        self, folder: str, states: frozenset[tuple[str, ...]]
    ) -> Iterator[tuple[str, os.stat_result]]:
        place = f"{self._root}/{folder}" if folder else self._root
        literal = {state[0] for state in states if state and not set(state[0]) & set("*?[")}
        if len(literal) == len(states):
            for name in sorted(literal):
                try:
                    yield name, os.lstat(f"{place}/{name}")
                except OSError:
                    continue
            return
        try:
            with os.scandir(place) as listed:
                for entry in sorted(listed, key=lambda entry: entry.name):
                    self._visit()
                    yield entry.name, entry.stat(follow_symlinks=False)
        except OSError as error:
            self._did.notes.append(f"`{folder}` cannot be read: {error.strerror}")

    def _take(self, path: str, info: os.stat_result) -> None:
        name = path.rpartition("/")[2]
        self._did.matched = True
        if stat.S_ISDIR(info.st_mode):
            if self._passed_over(path, name):
                self._did.notes.append(f"`{path}` is of a kind that never ships")
                return
            self._take_directory(path)
        elif _NEVER_INSIDE.fullmatch(name):
            if self._pattern.parts[-1] == name:
                self._did.notes.append(f"`{path}` is of a kind that never ships")
        else:
            self._visit()
            self._add(path, info)
            if stat.S_ISLNK(info.st_mode) and path not in self._here:
                self._did.notes.append(f"`{path}` is a link that does not ship")

    def _take_directory(self, path: str) -> None:
        waiting = [path]
        while waiting:
            folder = waiting.pop()
            try:
                with os.scandir(f"{self._root}/{folder}") as listed:
                    entries = sorted(listed, key=lambda entry: entry.name)
            except OSError as error:
                self._did.notes.append(f"`{folder}` cannot be read: {error.strerror}")
                continue
            for entry in entries:
                self._visit()
                inside = f"{folder}/{entry.name}"
                if entry.is_dir(follow_symlinks=False):
                    if not self._passed_over(inside, entry.name):
                        waiting.append(inside)
                elif not _NEVER_INSIDE.fullmatch(entry.name):
                    self._add(inside, entry.stat(follow_symlinks=False))

    def _add(self, path: str, info: os.stat_result) -> None:
        if path not in self._here and self._adding.add(path, info):
            self._here.add(path)
            self._did.files.append(path)

    def _passed_over(self, path: str, name: str) -> bool:
        return (
            _NEVER_INSIDE.fullmatch(name) is not None
            or f"{path}/".startswith(self._adding.found.runs)
            or os.path.lexists(f"{self._root}/{path}/pyvenv.cfg")
        )

    def _visit(self) -> None:
        self._adding.visited += 1
        if self._adding.visited > MAX_INCLUDED:
            raise invalid_spec(
                f"`include` has `{self._did.pattern}`, which leads through more than {MAX_INCLUDED} files",
                "Pass a dataset in `data` instead: it is uploaded once and is no part of the bundle.",
            )
