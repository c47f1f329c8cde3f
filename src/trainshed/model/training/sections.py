"""One map of a document while it is read: its fields are asked for by key, faults are collected."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

from trainshed.model.conflicts import shown
from trainshed.model.training.codes import SpecFaults
from trainshed.model.training.field_table import MAX_COUNT, MAX_ENTRIES, Field
from trainshed.model.training.spec import Kind

MAX_COMPARED = 64
"""Unknown keys of a document that get a proposal; the comparison is slow."""
MAX_KEY_COMPARED = 80
Word = TypeVar("Word", bound=StrEnum)


@dataclass(slots=True)
class Notes:
    """What reading a document brought up."""

    faults: SpecFaults = field(default_factory=SpecFaults)
    broken: set[str] = field(default_factory=set)
    """Fields of the table that have a fault; what stands for them was not written by anybody."""
    kind: Kind | None = None
    """``None`` while it is not known: then no field is refused for its kind."""
    compared: int = 0
    places: dict[str, list[int]] = field(default_factory=dict)
    """Of lists from which faulty entries were left out: where each entry that was kept stands."""


class Section:
    """A map of the document: ``path`` is where it stands, ``table`` its path in the table of fields."""

    def __init__(
        self,
        value: Mapping[str, Any],
        path: str,
        table: str,
        fields: Mapping[str, Mapping[str, Field]],
        notes: Notes,
    ) -> None:
        self._fields = fields
        self._notes = notes
        self.path = path
        self.table = table
        self.faults = notes.faults
        self.values = {str(key): value[key] for key in value if self._known(str(key))}

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def at(self, key: str) -> str:
        """Where a field stands."""
        return join(self.path, key)

    def refuse(self, key: str, code: str, message: str) -> None:
        """A fault of a field, or of an entry of it (``env[2]``)."""
        self._notes.broken.add(join(self.table, key.partition("[")[0]))
        self.faults.add(self.at(key), code, message)

    def keep(self, key: str, place: int) -> None:
        """Remembers where an entry of a list stands that is kept."""
        self._notes.places.setdefault(join(self.table, key), []).append(place)

    def flag(self, key: str, *, default: bool = False) -> bool:
        value = self.values.get(key, default)
        if isinstance(value, bool):
            return value
        self.refuse(key, "FIELD_INVALID", f"`{key}` must be true or false, not {shown_short(value)}")
        return default

    def whole(self, key: str, default: int, code: str, *, least: int, most: int = MAX_COUNT) -> int:
        value = self.values.get(key, default)
        if key not in self.values:
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            self.refuse(key, code, f"`{key}` must be a whole number, not {shown_short(value)}")
        elif not least <= value <= most:
            self.refuse(key, code, f"`{key}` must be from {least} to {most}, not {shown_short(value)}")
        else:
            return value
        return default

    def word(self, key: str, words: type[Word], code: str) -> Word | None:
        """One of a few words; ``None`` where it is missing or none of them."""
        if key not in self.values:
            return None
        value = self.values[key]
        if isinstance(value, str) and value in set(words):
            return words(value)
        names = ", ".join(words)
        self.refuse(key, code, f"`{key}` must be one of {names}, not {shown_short(value)}")
        return None

    def text(self, key: str, code: str = "FIELD_INVALID") -> str | None:
        """Text with something in it and no NUL; ``None`` where it is missing or faulty."""
        if key not in self.values:
            return None
        value = self.values[key]
        if not isinstance(value, str):
            self.refuse(key, code, f"`{key}` must be a string, not {kind_of(value)}")
        elif not value.strip():
            self.refuse(key, code, f"`{key}` is blank")
        elif fault := text_fault(value):
            self.refuse(key, code, f"`{key}` {fault}")
        else:
            return value
        return None

    def section(self, key: str, code: str = "FIELD_INVALID") -> Section | None:
        """The map at ``key``, or ``None``."""
        if key not in self.values:
            return None
        value = self.values[key]
        if isinstance(value, dict):
            return Section(value, self.at(key), join(self.table, key), self._fields, self._notes)
        self.refuse(key, code, f"`{key}` must be a map, not {kind_of(value)}")
        return None

    def entries(self, key: str, code: str) -> list[Any]:
        """The list at ``key``; empty where it is missing, faulty or longer than its field allows."""
        value = self.values.get(key, [])
        known = self._fields.get(self.table, {}).get(key)
        most = MAX_ENTRIES if known is None else known.schema.get("maxItems", MAX_ENTRIES)
        if not isinstance(value, list):
            self.refuse(key, code, f"`{key}` must be a list, not {kind_of(value)}")
        elif len(value) > most:
            self.refuse(key, code, f"`{key}` has {len(value)} entries; at most {most}")
        else:
            return value
        return []

    def sections(self, key: str, code: str) -> Iterator[Section]:
        """The maps in the list at ``key``; faults for entries that are none."""
        for place, value in enumerate(self.entries(key, code)):
            where = f"{key}[{place}]"
            if isinstance(value, dict):
                table = f"{join(self.table, key)}[]"
                yield Section(value, self.at(where), table, self._fields, self._notes)
            else:
                self.refuse(where, code, f"an entry of `{key}` must be a map, not {kind_of(value)}")

    def _known(self, key: str) -> bool:
        known = self._fields.get(self.table, {})
        found = known.get(key)
        where = self.at(key)
        if found is None:
            said = "" if self.faults.full else self._unknown(key, tuple(known))
            self.faults.add(where, "UNKNOWN_FIELD", said)
            return False
        kind = self._notes.kind
        if kind is None or kind in found.kinds:
            return True
        code = next((each for each in found.codes if each.endswith("_PYTORCH_ONLY")), "FIELD_NOT_FOR_KIND")
        others = " or ".join(found.kinds)
        self.faults.add(where, code, f"`{key}` is a field of kind {others}; this task is of kind {kind}")
        return False

    def _unknown(self, key: str, known: tuple[str, ...]) -> str:
        near: list[str] = []
        self._notes.compared += 1
        if self._notes.compared <= MAX_COMPARED:
            near = difflib.get_close_matches(key[:MAX_KEY_COMPARED].lower(), known, n=1)
        said = f"did you mean `{near[0]}`?" if near else f"known here: {', '.join(known)}"
        return f"unknown field `{clean(key)}`: {said}"


def join(path: str, key: str) -> str:
    return f"{path}.{clean(key)}" if path else clean(key)


def clean(text: str) -> str:
    """A key as it is shown: one printable line of at most 80 characters."""
    short = text[:MAX_KEY_COMPARED]
    return short if short.isprintable() else short.encode("unicode_escape").decode("ascii")


def shown_short(value: Any) -> str:
    """A value in a message: lists and maps by their kind, huge numbers by their size."""
    if isinstance(value, (list, dict)):
        return kind_of(value)
    if isinstance(value, int) and abs(value) > MAX_COUNT**2:
        return "a number beyond all limits"
    return shown(value[:MAX_KEY_COMPARED] if isinstance(value, str) else value)


def kind_of(value: Any) -> str:
    """What JSON calls a value, with its article."""
    names = {type(None): "null", bool: "a boolean", int: "a number", float: "a number", str: "a string"}
    return names.get(type(value), "a list" if isinstance(value, list) else "a map")


def text_fault(value: str) -> str | None:
    """Why a text can be in no file and no argument, or ``None``."""
    if "\x00" in value:
        return f"contains NUL at character {value.index(chr(0))}"
    try:
        value.encode()
    except UnicodeEncodeError as error:
        return f"contains a lone surrogate at character {error.start}, which no UTF-8 text can"
    return None
