"""`trainshed train explain` and `trainshed catalog explain`: what a field means, its limits and default."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from trainshed.model.training.catalog_fields import CATALOG_FIELDS
from trainshed.model.training.field_table import NO_DEFAULT, Field
from trainshed.model.training.fields import ROOT_FIELDS, SPEC_FIELDS
from trainshed.model.training.spec import BOTH_KINDS

MAX_NAME_CHARS = 200


@dataclass(frozen=True, slots=True)
class Explanation:
    """A field, and those below it."""

    field: Field
    below: tuple[Field, ...]

    def as_dict(self) -> dict[str, Any]:
        each = self.field
        return {
            "field": each.path,
            "meaning": each.meaning,
            "type": type_text(each),
            "limits": each.limits,
            "required": each.required,
            "default": None if each.default is NO_DEFAULT else each.default,
            "default_text": each.default_text,
            "kinds": sorted(each.kinds),
            "codes": list(each.codes),
            "fields": [child.path for child in self.below],
        }

    def text(self) -> str:
        """Lines for a terminal."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        each = self.field
        yield f"{each.path}: {type_text(each)}"
        yield f"  {each.meaning}"
        if each.limits:
            yield f"  limits: {each.limits}"
        yield f"  default: {each.default_text}"
        if each.kinds != BOTH_KINDS:
            yield f"  only for kind {', '.join(sorted(each.kinds))}"
        if each.codes:
            yield f"  refused with: {', '.join(each.codes)}"
        if self.below:
            yield "  fields:"
            width = max(len(child.path) for child in self.below)
            yield from (f"    {child.path:{width}}  {child.meaning}" for child in self.below)


def explain(name: str) -> Explanation:
    """A field of a task by its dotted name: `instance.specs`, `spec.env[].name`, `request_id`.

    Raises `ValueError` with a sentence that proposes names for one that is unknown.
    """
    return _explain(name.removeprefix("spec.") if name != "spec" else name, (*ROOT_FIELDS, *SPEC_FIELDS))


def explain_catalog(name: str) -> Explanation:
    """A field of a catalogue, as `explain`."""
    return _explain(name, CATALOG_FIELDS)


def field_names() -> tuple[str, ...]:
    """The fields of a spec that `explain` is asked for first: those with nothing above them."""
    return tuple(each.path for each in SPEC_FIELDS if "." not in each.path)


def catalog_field_names() -> tuple[str, ...]:
    """The lists and settings of a catalogue."""
    return tuple(each.path for each in CATALOG_FIELDS if "." not in each.path)


def type_text(each: Field) -> str:
    """What kind of value a field has, in words."""
    schema = each.schema
    if "enum" in schema:
        return " | ".join(str(word) for word in schema["enum"])
    if "const" in schema:
        return str(schema["const"])
    if "anyOf" in schema:
        return " or ".join(_type_word(part) for part in schema["anyOf"])
    return _type_word(schema)


def _type_word(schema: Any) -> str:
    if "const" in schema:
        return str(schema["const"])
    words = {"integer": "whole number", "boolean": "true or false", "array": "list", "object": "map"}
    kind = str(schema.get("type", "value"))
    return words.get(kind, kind)


def _explain(name: str, fields: Sequence[Field]) -> Explanation:
    wanted = _bare(name[:MAX_NAME_CHARS].strip())
    found = next((each for each in fields if _bare(each.path) == wanted), None)
    if found is None:
        known = [_bare(each.path) for each in fields]
        last = [each for each in known if each.rpartition(".")[2] == wanted.rpartition(".")[2]]
        near = (last or difflib.get_close_matches(wanted, known, n=3))[:5]
        said = f"; did you mean {' or '.join(near)}?" if near else ""
        raise ValueError(f"there is no field {wanted or 'without a name'}{said}")
    if found.path == "spec":
        return Explanation(found, tuple(each for each in SPEC_FIELDS if "." not in each.path))
    starts = (f"{found.path}.", f"{found.path}[].")
    return Explanation(found, tuple(each for each in fields if _direct(each.path, starts)))


def _direct(path: str, starts: tuple[str, str]) -> bool:
    start = next((each for each in starts if path.startswith(each)), None)
    return start is not None and "." not in path[len(start) :]


def _bare(path: str) -> str:
    """A path without the marks of lists: `env[].name`, `env[0].name` and `env.name` are one field."""
    return ".".join(part.partition("[")[0] for part in path.split("."))
