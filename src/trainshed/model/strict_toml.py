"""TOML as strangers send it: UTF-8, bounded in size, and without keys that take the parser hours."""

from __future__ import annotations

import re
import tomllib
from typing import Any

MAX_KEY_PARTS = 64
_PART = rb"""(?:[A-Za-z0-9_-]++|"[^"\n]*+"|'[^'\n]*+')"""
_LONG_KEY = re.compile(
    rb"(?<![A-Za-z0-9_-])" + _PART + rb"(?:[ \t]*+\.[ \t]*+" + _PART + rb"){%d}" % MAX_KEY_PARTS
)


def decode_toml(content: bytes, most: int) -> dict[str, Any]:
    """The document; raises `ValueError` with the end of a sentence: "has 9 bytes; at most 8"."""
    if len(content) > most:
        raise ValueError(f"has {len(content)} bytes; at most {most}")
    # tomllib's time grows with the square of a key's parts: 64 KiB of `a.a.a` take it half a minute.
    if _LONG_KEY.search(content):
        raise ValueError(f"is not TOML as it is taken here: a key has more than {MAX_KEY_PARTS} parts")
    try:
        return tomllib.loads(content.decode())
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8 (byte {error.start})") from None
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise ValueError(f"is not TOML: {str(error) or 'nested too deeply'}") from None
