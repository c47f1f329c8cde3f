"""Which words of ``gpu run`` are ours and which the script's (contract G, j).

Before the script every option is ours, behind ``--`` every word is the script's. Between the two a word
counts as ours only where it can be nothing else by our rules; what could be either is refused, because a
guess would run something other than what was meant.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

TAKES_VALUE: Mapping[str, str] = {
    "--vram": "--vram",
    "--hours": "--hours",
    "--provider": "--provider",
    "-p": "--provider",
    "--gpu": "--gpu",
    "--name": "--name",
    "--env": "--env",
    "-e": "--env",
    "--data": "--data",
    "--include": "--include",
    "--request-id": "--request-id",
    "--project": "--project",
    "-C": "--project",
}
"""Options that take a value, and what each is called in full."""
FLAGS: Mapping[str, str] = {
    "--wait": "--wait",
    "-w": "--wait",
    "--detach": "--detach",
    "-d": "--detach",
    "--dry-run": "--dry-run",
    "--smoke": "--smoke",
    "--as-agent": "--as-agent",
    "--json": "--json",
    "--help": "--help",
    "-h": "--help",
}
"""Options without a value."""
LATE_FLAGS = frozenset({"--json", "--wait", "--detach", "--dry-run", "--help", "--as-agent"})
LATE_VALUES = frozenset({"--vram", "--hours", "-p", "--gpu"})
"""What is ours behind the script too, in exactly these spellings."""
REPEATABLE = frozenset({"--env", "--data", "--include"})
_GLUED = re.compile(r"-[pC].|-e.*=", re.DOTALL)
"""A short option with its value in the same word. The value of `-e` has a `=`, so `-epochs` is none."""
_PROVIDER = re.compile(r"[a-zA-Z][a-zA-Z0-9_-]{0,39}")
_GPU_TYPE = re.compile(r"[a-zA-Z][A-Za-z0-9 ._-]{0,39}")


class Ambiguous(Exception):
    """A word that could be ours or the script's; the message says how to tell."""


@dataclass(slots=True)
class Words:
    """A command line of ``gpu run``, told apart."""

    ours: list[str] = field(default_factory=list)
    """Options, each with its value."""
    script: str | None = None
    theirs: list[str] = field(default_factory=list)
    """What the script is started with."""


def split(words: Sequence[str]) -> Words:
    """Tell apart whose each word is. Raises `Ambiguous`."""
    found = Words()
    rest = _before(list(words), found)
    _behind(rest, found)
    return found


def _before(words: list[str], found: Words) -> list[str]:
    """Take our options up to the script; the words that are still to be looked at."""
    while words:
        word = words.pop(0)
        if word == "--":
            if words:
                found.script, found.theirs = words[0], words[1:]
            return []
        if not word.startswith("-") or word == "-":
            found.script = word
            return words
        found.ours.append(word)
        # A word that is none of our options is refused with its name when they are read.
        if word in TAKES_VALUE and words:
            found.ours.append(words.pop(0))
    return []


def _behind(words: list[str], found: Words) -> None:
    """Tell apart the words behind the script."""
    given = {_full(word) for word in found.ours if word.startswith("-")}
    while words:
        word = words.pop(0)
        if word == "--":
            found.theirs += words
            return
        name, equals, value = word.partition("=")
        if name in LATE_FLAGS and not equals:
            found.ours.append(word)
        elif name in LATE_VALUES and (equals or words):
            if not equals:
                value = words.pop(0)
            if not _fits(name, value):
                raise Ambiguous(_either(f"{name}{'=' if equals else ' '}{value}"))
            if TAKES_VALUE[name] in given:
                raise Ambiguous(f"{_either(name)}; it is given before the script too")
            given.add(TAKES_VALUE[name])
            found.ours += [name, value]
        elif name in TAKES_VALUE or name in FLAGS or _GLUED.match(word):
            raise Ambiguous(_either(word))
        else:
            found.theirs.append(word)


def _fits(name: str, value: str) -> bool:
    """Whether a value can be that of our option, rather than of one of the script's of the same name."""
    if name == "-p":
        return bool(_PROVIDER.fullmatch(value))
    if name == "--gpu":
        return bool(_GPU_TYPE.fullmatch(value))
    try:
        return math.isfinite(float(value))
    except ValueError:
        return False


def _full(word: str) -> str:
    name = word.partition("=")[0]
    return TAKES_VALUE.get(name) or FLAGS.get(name) or TAKES_VALUE.get(name[:2], name)


def _either(word: str) -> str:
    return (
        f"`{word[:80]}` behind the script could be an option of `run` or an argument of the script: "
        "put it before the script for the one, behind `--` for the other"
    )
