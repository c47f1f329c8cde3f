"""What a publication leaves out of a folder beside `scan.SKIPPED`.

That is what the publisher excludes, what git ignores, and credentials. Patterns are lines of a
``.gitignore``; ``pathspec`` reads them. Of code (Recipes, Plugins) git itself is asked what it ignores, and
what looks like credentials stays here, both as when a project is packed for a Job.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from trainshed.sdk.errors import ConfigurationError, NotFreezable
from trainshed.sdk.scan import Rule

EXCLUDED = "excluded"
IGNORED = "git ignores it"
CREDENTIALS = "looks like credentials"
"""How the reasons of files with credentials begin; the rule follows."""


def rule_for(exclude: Sequence[str], *, code: bool) -> Callable[[Path, bool], Rule]:
    """What decides, once the place is known (absolute and resolved; whether it is a folder).

    Raises `ConfigurationError` for a pattern that is none; what is answered raises `NotFreezable` where git
    cannot say what it ignores.
    """
    excluded = _excluding(exclude)
    return lambda root, folder: _of_code(str(root), excluded, folder=folder) if code else excluded


def _excluding(lines: Sequence[str]) -> Rule:
    if not lines:
        return lambda _path, _folder: None
    last_first = [_pattern(line) for line in reversed(lines)]

    def excluded(path: str, folder: bool) -> str | None:  # noqa: FBT001 - a Rule
        verdicts = (excludes for names, excludes in last_first if _named(names, path, folder=folder))
        return EXCLUDED if next(verdicts, False) else None

    return excluded


def _pattern(line: str) -> tuple[re.Pattern[str], bool]:
    """What the line names, and whether it excludes that; raises `ConfigurationError`."""
    from pathspec import GitIgnoreSpec  # noqa: PLC0415 - only where something is excluded

    try:
        for pattern in GitIgnoreSpec.from_lines([line]).patterns:
            if pattern.regex is not None and pattern.include is not None:
                return pattern.regex, pattern.include
    except ValueError:
        pass
    raise ConfigurationError(
        f"exclude: {line!r} names nothing",
        hint="Write it as a line of a .gitignore: `*.log`, `/build/`, `data/**/raw`, `!keep.log`.",
    )


def _named(names: re.Pattern[str], path: str, *, folder: bool) -> bool:
    """Whether a pattern names the path itself, not only a folder around it.

    The library judges lists of files, so a folder's pattern names what is in it, too. In a walk that
    would name files of a folder which a later pattern took back. The one group of its expressions is a
    ``/`` behind a folder.
    """
    found = names.search(path)
    if found is not None and found.lastindex is None:
        return True
    whole = len(path) + 1
    return folder and any(
        found.lastindex is not None and found.end() == whole for found in names.finditer(f"{path}/")
    )


def _of_code(root: str, excluded: Rule, *, folder: bool) -> Rule:
    from trainshed.sdk.packing.places import own_below, withheld  # noqa: PLC0415 - code only

    ignored = _ignored(root) if folder else frozenset()
    own = own_below(root)

    def left_out(path: str, is_folder: bool) -> str | None:  # noqa: FBT001 - a Rule
        if why := excluded(path, is_folder):
            return why
        named = f"{path}/" if is_folder else path
        if named in ignored:
            return IGNORED
        rule = withheld(named, own)
        return None if rule is None else f"{CREDENTIALS} ({rule})"

    return left_out


def _ignored(root: str) -> frozenset[str]:
    """What git ignores below ``root``, relative to it; folders that are ignored whole end in ``/``."""
    from trainshed.sdk.packing.errors import InvalidSpec  # noqa: PLC0415 - code only
    from trainshed.sdk.packing.git import ignored_below  # noqa: PLC0415 - as above

    try:
        return frozenset(ignored_below(root))
    except InvalidSpec as error:
        raise NotFreezable("INVALID_CONTENT", error.message, hint=error.hint) from None
