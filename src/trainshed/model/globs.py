"""Output patterns: which files below a Trial's directory its Runner declared as outputs (contract E73).

The language, on relative POSIX paths compared part by part:

- ``*`` any characters of one part, also none; ``?`` one character; ``[abc]``, ``[a-z]``, ``[!a]`` one of
  a set (write ``[*]`` for a star itself). A leading dot is an ordinary character.
- ``**`` as a whole part: any number of directories, also none. At the end: everything below, at any depth.
- A pattern without any of these is a *literal*: one file the program promises to write.

Every step of a match is atomic (the earliest place a piece fits is kept), so the time is bounded by the
length of the path times that of the pattern; no pattern makes it exponential.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

MAX_PATTERNS = 64
MAX_PATTERN_CHARS = 512
_ANY_DEPTH = "**"
_MAGIC = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class OutputPatterns:
    """A compiled set of patterns. Build it with valid ones only: see `pattern_fault`."""

    patterns: tuple[str, ...]
    literals: frozenset[str] = field(init=False)
    """Patterns that name exactly one file."""
    _whole: re.Pattern[str] = field(init=False, repr=False, compare=False)
    _fixed_prefixes: tuple[tuple[re.Pattern[str], ...], ...] = field(init=False, repr=False, compare=False)
    _open_ended: tuple[bool, ...] = field(init=False, repr=False, compare=False)

    def __init__(self, patterns: Iterable[str]) -> None:
        given = tuple(dict.fromkeys(patterns))
        for pattern in given:
            if fault := pattern_fault(pattern):
                raise ValueError(f"output pattern {pattern!r}: {fault}")
        parts = [pattern.split("/") for pattern in given]
        put = object.__setattr__
        put(self, "patterns", given)
        put(self, "literals", frozenset(pattern for pattern in given if not _MAGIC & set(pattern)))
        put(self, "_whole", re.compile("|".join(map(_pattern_regex, parts)) or r"(?!)"))
        put(self, "_fixed_prefixes", tuple(_fixed_prefix(each) for each in parts))
        put(self, "_open_ended", tuple(_ANY_DEPTH in each for each in parts))

    def match(self, path: str) -> bool:
        """Whether the file ``path`` (relative, ``/`` between parts) is declared."""
        return self._whole.fullmatch(path) is not None

    def may_match_below(self, directory: str) -> bool:
        """Whether any file below ``directory`` could be declared, at whatever depth."""
        parts = directory.split("/")
        return any(
            (open_ended or len(parts) <= len(prefix)) and _starts(parts, prefix)
            for prefix, open_ended in zip(self._fixed_prefixes, self._open_ended, strict=True)
        )

    def names_directory(self, directory: str) -> bool:
        """Whether a pattern spells ``directory`` out before its first ``**``, as ``a/b/**`` does ``a``."""
        parts = directory.split("/")
        return any(len(parts) <= len(prefix) and _starts(parts, prefix) for prefix in self._fixed_prefixes)


def pattern_fault(pattern: str) -> str | None:
    """Why ``pattern`` cannot be an output pattern, or ``None``."""
    if len(pattern) > MAX_PATTERN_CHARS:
        return f"has {len(pattern)} characters; at most {MAX_PATTERN_CHARS}"
    parts = pattern.split("/")
    rules = (
        (not pattern, "is empty"),
        (not pattern.isprintable(), "may hold printable characters only"),
        ("\\" in pattern, "may not contain a backslash; write `/` between directories and `[*]` for a star"),
        (pattern.startswith("/"), "must be relative to the Trial's directory"),
        (pattern.endswith("/"), f"names a directory; write `{pattern}**` for the files below it"),
        ("" in parts or "." in parts, "has an empty or `.` part; write each directory once"),
        (".." in parts, "may not leave the Trial's directory with `..`"),
    )
    broken = next((message for is_broken, message in rules if is_broken), None)
    return broken or next(filter(None, map(_part_fault, parts)), None)


def _part_fault(part: str) -> str | None:
    if part == _ANY_DEPTH:
        return None
    if _ANY_DEPTH in part:
        return f"`{part}`: `**` must be a whole part, as in `**/{part.replace('**', '*')}`"
    for piece in _pieces(part):
        if piece == "[":
            return f"`{part}`: a `[` has no `]`; write `[[]` for the character itself"
        if len(piece) > 1 and any(low > high for low, high in _class_ranges(piece)):
            return f"`{part}`: a range in `{piece}` runs backwards"
    return None


def _starts(parts: Sequence[str], prefix: Sequence[re.Pattern[str]]) -> bool:
    return all(each.fullmatch(part) for part, each in zip(parts, prefix, strict=False))


def _fixed_prefix(parts: Sequence[str]) -> tuple[re.Pattern[str], ...]:
    """The directory parts of a pattern up to its first ``**``."""
    fixed = parts[: parts.index(_ANY_DEPTH)] if _ANY_DEPTH in parts else parts[:-1]
    return tuple(re.compile(_part_regex(part)) for part in fixed)


def _pattern_regex(parts: Sequence[str]) -> str:
    # The parts between two `**` have a fixed number of directories, so the earliest place where they
    # fit is as good as any other and can be kept; that is what makes each group atomic.
    groups: list[list[str]] = [[]]
    for part in parts:
        if part == _ANY_DEPTH:
            groups.append([])
        else:
            groups[-1].append(_part_regex(part))
    first, *later = groups
    regex = "/".join(first)
    if not later:
        return regex
    if first:
        regex += "/"
    for group in later[:-1]:
        if group:
            regex += rf"(?>(?:[^/]+/)*?{'/'.join(group)}/)"
    if not later[-1]:
        return regex + r"(?s:.+)"
    # Only the last parts of a path can be the last group: skip directories until just so many are left.
    depth = len(later[-1]) - 1
    return regex + rf"(?>(?:[^/]+/)*(?=[^/]+(?:/[^/]+){{{depth}}}\Z))" + "/".join(later[-1])


def _part_regex(part: str) -> str:
    runs = [""]
    for piece in _pieces(part):
        if piece == "*":
            runs.append("")
        elif piece == "?":
            runs[-1] += "[^/]"
        else:
            runs[-1] += _class_regex(piece) if len(piece) > 1 else re.escape(piece)
    first, *later = runs
    if not later:
        return first
    # Every run between two stars has a fixed length, so its earliest place can be kept as well.
    middle = "".join(rf"(?>[^/]*?{run})" for run in later[:-1] if run)
    return rf"{first}{middle}[^/]*{later[-1]}"


def _class_regex(piece: str) -> str:
    negated = piece.startswith("[!")
    ranges = "".join(f"{re.escape(low)}-{re.escape(high)}" for low, high in _class_ranges(piece))
    return f"[^/{ranges}]" if negated else f"(?!/)[{ranges}]"


def _class_ranges(piece: str) -> Iterable[tuple[str, str]]:
    body = piece[2:-1] if piece.startswith("[!") else piece[1:-1]
    place = 0
    while place < len(body):
        last = place + 2 if body[place + 1 : place + 2] == "-" and place + 2 < len(body) else place
        yield body[place], body[last]
        place = last + 1


def _pieces(part: str) -> Iterable[str]:
    """Characters of a part, a closed class such as ``[!a-z]`` being one; an unclosed ``[`` stands alone."""
    place = 0
    while place < len(part):
        end = place + 1
        if part[place] == "[":
            # A `]` right after the opening belongs to the set, as in the shell.
            start = place + (2 if part[place + 1 : place + 2] == "!" else 1)
            closing = part.find("]", start + 1)
            end = closing + 1 if closing > 0 else end
        yield part[place:end]
        place = end
