"""Who we are at Kaggle: what its own command line reads, in its order. It reaches no message and no log."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

LOG_IN = (
    "Put the token from https://www.kaggle.com/settings into ~/.kaggle/access_token or "
    "~/.kaggle/kaggle.json of the server's user, or set KAGGLE_API_TOKEN, or KAGGLE_USERNAME and KAGGLE_KEY."
)


@dataclass(frozen=True, slots=True)
class Login:
    """Either a token, or a name and a key."""

    username: str | None
    secret: str = field(repr=False)
    is_token: bool

    @property
    def words(self) -> tuple[str, ...]:
        """What no message may hold."""
        return (self.secret,)


def find_login(environ: Mapping[str, str] = os.environ, home: Path | None = None) -> Login | None:
    """Read anew each time, so that logging in needs no restart."""
    home = Path.home() if home is None else home
    folder = home / ".kaggle"
    token = environ.get("KAGGLE_API_TOKEN", "").strip()
    if token and "/" in token:
        token = _text(Path(token))
    token = token or _text(folder / "access_token") or _text(folder / "access_token.txt")
    if token:
        return Login(environ.get("KAGGLE_USERNAME") or None, token, is_token=True)
    name, key = environ.get("KAGGLE_USERNAME", ""), environ.get("KAGGLE_KEY", "")
    if name and key:
        return Login(name, key, is_token=False)
    given = environ.get("KAGGLE_CONFIG_DIR")
    places = [Path(given)] if given else [folder, home / ".config" / "kaggle"]
    for place in places:
        found = _from_file(place / "kaggle.json")
        if found is not None:
            return found
    return None


def _from_file(path: Path) -> Login | None:
    try:
        document = json.loads(_text(path))
        name, key = document["username"], document["key"]
    except (ValueError, KeyError, TypeError):
        return None
    if isinstance(name, str) and isinstance(key, str) and name and key:
        return Login(name, key, is_token=False)
    return None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
