"""What did not ship and may be missed: named with size and cause, the biggest first (e.6)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import translate

from trainshed.model.scripts.credentials import credential_rule
from trainshed.model.scripts.faults import shown
from trainshed.sdk.packing.selection import TO_DIRECTORY, Selection

SHOWN = 8
MOST_IN_ONE, MOST_IN_ALL = 5_000, 20_000
"""Entries that are looked at to tell a size."""
_JUNK_NAMES = (
    *(
        ".git",
        ".hg",
        ".svn",
        "__pycache__",
        "*.py[co]",
        ".venv",
        "venv",
        "env",
        ".tox",
        ".nox",
        "node_modules",
    ),
    *(".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis", ".cache", "*.egg-info", ".eggs", "dist"),
    *(".ipynb_checkpoints", ".DS_Store", "Thumbs.db", "build", "runs", "wandb", "mlruns", "lightning_logs"),
    *(".idea", ".vscode", ".coverage*", "htmlcov", "*.swp", "*~", ".direnv"),
)
_JUNK = re.compile("|".join(map(translate, _JUNK_NAMES)))
"""Nobody misses these in a Job."""
_STEP = 1000


@dataclass(frozen=True, slots=True)
class _Gap:
    path: str
    size: int
    files: int
    said: str


def describe(selection: Selection, data: Sequence[str]) -> tuple[tuple[str, ...], int]:
    """The lines of `left_out`, and how many more there are. ``data``: absolute places of datasets."""
    gaps = _gaps(selection, data)
    gaps.sort(key=lambda gap: (-gap.size, -gap.files, gap.path))
    if len(gaps) <= SHOWN:
        return tuple(f"{shown(gap.path)} ({gap.said})" for gap in gaps), 0
    groups: dict[str, list[_Gap]] = {}
    for gap in gaps:
        top, slash, _ = gap.path.partition("/")
        groups.setdefault(top + slash, []).append(gap)
    lines = sorted(groups.items(), key=lambda each: (-sum(gap.size for gap in each[1]), each[0]))
    shown_lines = tuple(_grouped(top, inside) for top, inside in lines[:SHOWN])
    return shown_lines, sum(len(inside) for _, inside in lines[SHOWN:])


def hint(left_out: Sequence[str]) -> str | None:
    """What to do about it; there is one exactly if something was left out (G16)."""
    if not left_out:
        return None
    return (
        "What left_out names is not in the Job. Code that it needs: add the path to `include`. "
        "Datasets: pass the folder in `data` and read it at gpu.data_dir()/NAME."
    )


def size(count: int) -> str:
    """Bytes as people read them: ``2.1 GB``."""
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < _STEP:
            return f"{count} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= _STEP
    return f"{amount:.1f} TB"


def is_junk(path: str) -> bool:
    """Whether a path is of a kind that is not worth a word."""
    return any(_JUNK.fullmatch(part) for part in path.rstrip("/").split("/"))


def _gaps(selection: Selection, data: Sequence[str]) -> list[_Gap]:
    budget = MOST_IN_ALL
    found: list[_Gap] = []
    root = selection.project.root
    word = "ignored" if selection.project.in_git else "not looked at outside git"
    for path in _worth_a_word(selection, selection.ignored):
        if not path.endswith("/") and path in selection.shipped:
            continue
        total, files, whole = _measure(f"{root}/{path}".rstrip("/"), min(budget, MOST_IN_ONE))
        budget = max(0, budget - files)
        if not files:
            continue
        told = f"{size(total)}, {word}" if whole else f"{word}, {files}+ files"
        ships = path.endswith("/") and path.rstrip("/") in selection.folders
        if ships and whole and _ships_whole(selection, path, files):
            continue
        found.append(_Gap(path, total, files, told + _suffix(f"{root}/{path}", data, ships=ships)))
    for path in _worth_a_word(selection, selection.nested):
        if path.rstrip("/") not in selection.folders:
            said = "nested git repo" + _suffix(f"{root}/{path}", data, ships=False)
            found.append(_Gap(path, 0, 1, said))
    links = [path for path, why in selection.skipped.items() if why == TO_DIRECTORY]
    for path in _worth_a_word(selection, links):
        said = "link to a directory" + _suffix(f"{root}/{path}", data, ships=False)
        found.append(_Gap(path, 0, 1, said))
    for path, why in selection.skipped.items():
        if path.endswith("/") and "submodule" in why:
            found.append(_Gap(path, 0, 1, "submodule, not checked out"))
    return found


def _worth_a_word(selection: Selection, paths: Iterable[str]) -> Iterable[str]:
    for path in paths:
        if not is_junk(path) and not credential_rule(path) and not path.startswith(selection.runs):
            yield path


def _measure(place: str, most: int) -> tuple[int, int, bool]:
    """Bytes and files below ``place``, and whether all were counted. Directories count as looked at."""
    try:
        info = os.lstat(place)
    except OSError:
        return 0, 0, True
    if not os.path.isdir(place) or os.path.islink(place):
        return info.st_size, 1, True
    total = files = looked_at = 0
    waiting = [place]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as listed:
                for entry in listed:
                    looked_at += 1
                    if looked_at > most:
                        return total, files, False
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    else:
                        files += 1
                        total += entry.stat(follow_symlinks=False).st_size
        except OSError:
            continue
    return total, files, True


def _ships_whole(selection: Selection, path: str, files: int) -> bool:
    return sum(each.startswith(path) for each in selection.files.paths) >= files


def _suffix(place: str, data: Sequence[str], *, ships: bool) -> str:
    place = os.path.realpath(place)
    if any(place == each or place.startswith(f"{each}/") for each in data):
        return "; passed as data"
    if any(each.startswith(f"{place}/") for each in data):
        return "; part of it is passed as data"
    return "; part of it ships" if ships else ""


def _grouped(top: str, gaps: Sequence[_Gap]) -> str:
    if len(gaps) == 1:
        return f"{shown(gaps[0].path)} ({gaps[0].said})"
    total = sum(gap.size for gap in gaps)
    return f"{shown(top)} ({size(total)}, {len(gaps)} left out in it)"
