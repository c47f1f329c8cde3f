"""What is wrong with a script Job before it is one: all faults at once, each with its place and its key."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

INVALID_SPEC, INVALID_REQUEST = "invalid_spec", "invalid_request"
ARGUMENT = "argument"
"""The place of what was not read from a file."""


@dataclass(frozen=True, slots=True)
class SpecFault:
    """One fault. ``place`` is ``gpu.yaml:LINE`` or `ARGUMENT`, ``key`` the field as it was given."""

    place: str
    key: str
    message: str
    """The end of a sentence that begins with the key."""
    hint: str = ""
    code: str = INVALID_SPEC

    def __str__(self) -> str:
        before = "" if self.place == ARGUMENT else f"{self.place}: "
        return f"{before}`{shown(self.key)}` {self.message}" if self.key else f"{before}{self.message}"

    def document(self) -> dict[str, str]:
        """As it stands in the detail of an error."""
        told = {"place": self.place, "key": shown(self.key), "message": str(self), "hint": self.hint}
        return {key: value for key, value in told.items() if value}


class SpecError(Exception):
    """A spec that cannot be used; ``faults`` are all that were found."""

    def __init__(self, faults: Iterable[SpecFault]) -> None:
        self.faults = tuple(faults)
        super().__init__("; ".join(map(str, self.faults)))


def shown(text: str, most: int = 200) -> str:
    """A name of a user's so that it may stand in a sentence: one line, no control characters, not endless."""
    clean = "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape", "surrogatepass").decode()
        for letter in text[:most]
    )
    return clean + ("…" if len(text) > most else "")
