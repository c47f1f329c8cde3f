"""Checking the small request bodies of administration and publishing, all faults at once."""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainshed.model.access import PROJECT_ID, Visibility
from trainshed.model.errors import FaultList

MAX_TEXT_CHARS = 200
_SHOWN_CHARS = 80


@dataclass(slots=True)
class Body:
    """An object of a request; each getter checks one key and notes what is wrong. ``finish`` refuses."""

    values: Mapping[str, Any]
    code: str = "INVALID_SPEC"
    faults: FaultList = field(default_factory=FaultList)

    def known(self, keys: Collection[str]) -> None:
        """Refuse any other key, with the nearest known one."""
        for key in self.values:
            if key not in keys:
                near = difflib.get_close_matches(key, keys, n=1)
                hint = f"did you mean `{near[0]}`?" if near else f"known keys: {', '.join(keys)}"
                self.fault(_shown(key), f"unknown key: {hint}")

    def fault(self, key: str, message: str, *, code: str | None = None) -> None:
        self.faults.add(key, code or self.code, f"`{key}`: {message}")

    def text(self, key: str, *, most: int = MAX_TEXT_CHARS) -> str | None:
        """Printable text, not blank; ``None`` where the key is absent or null."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, str) or not value.strip() or not value.isprintable() or len(value) > most:
            self.fault(key, f"must be printable text of 1 to {most} characters")
            return None
        return value

    def required_text(self, key: str, *, most: int = MAX_TEXT_CHARS) -> str:
        if self.values.get(key) is None:
            self.fault(key, "is missing")
            return ""
        return self.text(key, most=most) or ""

    def word(self, key: str, words: Collection[str]) -> str | None:
        """One of ``words``; ``None`` where the key is absent or null."""
        value = self.values.get(key)
        if value is not None and (not isinstance(value, str) or value not in words):
            self.fault(key, f"must be one of {', '.join(words)}")
            return None
        return value

    def words(self, key: str, known: Collection[str] | None = None) -> list[str]:
        """A list of text, each one of ``known`` where that is given."""
        value = self.values.get(key)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
            self.fault(key, "must be a list of strings")
            return []
        for entry in value:
            if known is not None and entry not in known:
                near = difflib.get_close_matches(entry, known, n=1)
                hint = f"did you mean `{near[0]}`?" if near else f"known: {', '.join(known)}"
                self.fault(key, f"`{_shown(entry)}` is unknown; {hint}")
        return value

    def whole(self, key: str, least: int, most: int) -> int | None:
        """A whole number; ``None`` where the key is absent or null."""
        value = self.values.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            self.fault(key, f"must be a whole number from {least} to {most}")
            return None
        return value

    def number(self, key: str, *, least: float, most: float = 1e12) -> float | None:
        """A finite number; ``None`` where the key is absent or null."""
        value = self.values.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.fault(key, "must be a number")
            return None
        if not math.isfinite(value) or not least <= value <= most:
            self.fault(key, f"must be from {least:g} to {most:g}")
            return None
        return float(value)

    def boolean(self, key: str) -> bool:
        value = self.values.get(key)
        if value is not None and not isinstance(value, bool):
            self.fault(key, "must be true or false")
        return value is True

    def finish(self) -> None:
        """Raise `Refusal` with every fault noted."""
        self.faults.raise_if_any()


def visibility_of(body: Body) -> tuple[Visibility, list[str]]:
    """Who may read, of a request; raises `Refusal` with every fault."""
    body.known(["visibility", "projects"])
    word = body.word("visibility", [str(v) for v in Visibility])
    if body.values.get("visibility") is None:
        body.fault("visibility", "is missing")
    projects = sorted(set(body.words("projects")))
    if projects and word != Visibility.PROJECTS:
        body.fault("projects", "counts for visibility `projects` only")
    if not all(PROJECT_ID.fullmatch(project) for project in projects):
        body.fault("projects", "must hold project ids")
    body.finish()
    assert word is not None  # noqa: S101 - a missing or unknown word was refused above
    return Visibility(word), projects


def _shown(text: str) -> str:
    shown = text[:_SHOWN_CHARS].encode("ascii", "backslashreplace").decode()
    return f"{shown}…" if len(text) > _SHOWN_CHARS else shown
