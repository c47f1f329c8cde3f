"""Advice that was given once for a folder is not given again while nothing changes."""

from __future__ import annotations

import contextlib
import hashlib
import re
import secrets
from collections.abc import Sequence
from pathlib import Path

from trainshed.sdk.errors import ConfigurationError
from trainshed.sdk.home import find_home, private_folder

_SIZE = re.compile(r" \([^()]*\)$")
"""How much it is, and why it did not ship: a log that grows is no news."""
_KEPT = 512
"""Folders that are remembered."""


def is_new(project_dir: str, left_out: Sequence[str]) -> bool:
    """Whether what a folder leaves out was not told of it last time; from now on it was.

    Only digests are kept, below `TRAINSHED_HOME`. What cannot be kept is told again.
    """
    if not left_out:
        return False
    folder = find_home().data / "told"
    place = folder / _digest(project_dir)
    names = _digest("\0".join(sorted(_SIZE.sub("", each) for each in left_out)))
    with contextlib.suppress(OSError):
        if place.read_text("ascii", "replace") == names:
            return False
    with contextlib.suppress(OSError, ConfigurationError):
        _keep(private_folder(folder), place, names)
    return True


def _keep(folder: Path, place: Path, names: str) -> None:
    part = folder / f".{secrets.token_hex(8)}.part"
    try:
        part.write_text(names, "ascii")
        part.replace(place)
    finally:
        part.unlink(missing_ok=True)
    known = sorted(folder.iterdir(), key=lambda each: each.stat().st_mtime, reverse=True)
    for each in known[_KEPT:]:
        each.unlink()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:40]
