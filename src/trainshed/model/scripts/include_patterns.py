"""Patterns of `include`: what ships although git ignores it (e.5).

``*``, ``?`` and ``[…]`` stand for characters of one part of a path, ``**`` for any number of directories, a
``/`` at the end for directories only. A pattern that names a directory ships all of it.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from trainshed.model.scripts.spec import MAX_INCLUDE

_MAGIC = frozenset("*?[")
_ANY = "**"


def include_fault(pattern: str) -> str | None:
    """Why ``pattern`` cannot be one, as the end of a sentence; or ``None``."""
    parts = [part for part in pattern.split("/") if part not in {"", "."}]
    rules = (
        (not pattern.strip(), "is empty"),
        (len(pattern) > MAX_INCLUDE, f"has {len(pattern)} characters; at most {MAX_INCLUDE}"),
        (any(not letter.isprintable() for letter in pattern), "holds control or invisible characters"),
        ("\\" in pattern, "holds a backslash; write `/` between directories"),
        (pattern.startswith("/"), "begins with `/`; write it relative to the project"),
        (
            pattern.startswith("~"),
            "begins with `~`; only what lies in the project can be included, use `data` else",
        ),
        (".." in parts, "leaves the project with `..`; use `data` for what lies outside"),
        (all(part == _ANY for part in parts), "names everything; name what is missing"),
        (
            any(_ANY in part and part != _ANY for part in parts),
            "has `**` inside a name; it must stand alone between `/`",
        ),
    )
    return next((message for broken, message in rules if broken), None)


@dataclass(frozen=True, slots=True)
class IncludePattern:
    """A pattern that `include_fault` has nothing to say of."""

    text: str
    parts: tuple[str, ...] = field(init=False)
    directories_only: bool = field(init=False)

    def __post_init__(self) -> None:
        if fault := include_fault(self.text):
            raise ValueError(f"`{self.text}` {fault}")
        parts: list[str] = []
        for part in self.text.split("/"):
            if part not in {"", "."} and not (part == _ANY and parts[-1:] == [_ANY]):
                parts.append(part)
        object.__setattr__(self, "parts", tuple(parts))
        object.__setattr__(self, "directories_only", self.text.endswith("/"))

    @property
    def begins_at(self) -> str:
        """The directory, written out, below which everything that matches lies; empty for the project."""
        fixed: list[str] = []
        for part in self.parts[:-1]:
            if _MAGIC & set(part):
                break
            fixed.append(part)
        return "/".join(fixed)

    def match(self, path: str) -> bool:
        """Whether the pattern names exactly ``path``, a relative POSIX path."""
        return () in self.after(path.split("/"))

    def may_match_below(self, directory: str) -> bool:
        """Whether anything below ``directory`` could be named."""
        return bool(self.after(directory.split("/")) - {()})

    def after(self, parts: Sequence[str]) -> set[tuple[str, ...]]:
        """What is left of the pattern once these parts were matched, in every possible way.

        Its time is bounded by the parts of both, whatever the pattern.
        """
        states = _open({self.parts})
        for part in parts:
            states = after_one(states, part)
        return states


def after_one(states: Collection[tuple[str, ...]], part: str) -> set[tuple[str, ...]]:
    """What is left, in every way, of what was left before ``part``."""
    return _open({rest for state in states for rest in _step(state, part)})


def _open(states: set[tuple[str, ...]]) -> set[tuple[str, ...]]:
    """With what follows a ``**`` that stands for no directory. A ``**`` at the end needs a name."""
    found = set(states)
    for state in states:
        while len(state) > 1 and state[0] == _ANY:
            state = state[1:]  # noqa: PLW2901 - it is walked along
            found.add(state)
    return found


def _step(state: tuple[str, ...], part: str) -> tuple[tuple[str, ...], ...]:
    if not state:
        return ()
    if state[0] == _ANY:
        return (state,) if len(state) > 1 else (state, ())
    return (state[1:],) if _part_matches(state[0], part) else ()


def _part_matches(pattern: str, part: str) -> bool:
    if not _MAGIC & set(pattern):
        return pattern == part
    return re.fullmatch(fnmatch.translate(pattern), part) is not None
