"""Parameters as they are frozen: values that any two readers read alike, and the defaults of a schema.

Serves E97, E101, E103 and the reading A17.
"""

from __future__ import annotations

import copy
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from trainshed.model.json_schema import Found, Place, Unbounded, budget, check, spend

MAX_DEPTH = 32
"""Levels of objects and lists in a schema, and in parameters."""
MAX_VALUES = 2_000
"""Values in the parameters of one Trial, all levels together."""
MAX_INTEGER = 2**53 - 1
"""Every JSON reader keeps integers up to this one exactly (RFC 8259 section 6)."""
CUT = "…"
"""Stands where a place, or a name in one, goes on and is not shown further."""
_CHARS_PER_STEP = 256
_SHOWN_CHARS = 80
_SHOWN_LEVELS = 4
_NONE = object()
# Only what cannot be anything else: `/think` and `./configs/a.yaml` may well be values.
_LOCAL_VALUE = re.compile(r"file:/|~[A-Za-z0-9_-]*/|/(?:home|root|Users)/|[A-Za-z]:\\|\\\\[A-Za-z0-9]")


def name_text(name: str) -> str:
    """A name as faults show it: what no terminal shows is escaped, and a long one is cut with a mark."""
    short = name[:_SHOWN_CHARS]
    shown = short if short.isprintable() else short.encode("unicode_escape").decode("ascii")
    return f"{shown}{CUT}" if len(name) > _SHOWN_CHARS else shown


def place_text(base: str, place: Iterable[str | int]) -> str:
    """A place as faults show it: ``spec.profile.parameters.steps[2]``."""
    text = base
    for part in place:
        text += f"[{part}]" if isinstance(part, int) else f".{name_text(part)}"
    return text.removeprefix(".")


def cut(place: Place) -> Place:
    """The first levels of a place that is too deep to be shown, with a mark behind them."""
    return (*place[:_SHOWN_LEVELS], CUT)


def local_faults(value: Any) -> list[Found]:
    """Texts in ``value``, which is not too deep, that can only be a path of some machine (E96)."""
    return [
        (place, f"is a path of some machine, {each[:80]!r}; publish what it holds")
        for place, each in _values(value)
        if isinstance(each, str) and _LOCAL_VALUE.match(each)
    ]


def value_faults(value: Any) -> list[Found]:
    """What keeps ``value`` from being fixed parameters (E97, A17).

    They are integers, booleans, strings, and lists and objects of them. ``1.0`` and ``1e3`` are written as
    fractions are, and refused as such.
    """
    if (place := too_deep(value)) is not None:
        return [(cut(place), f"is nested deeper than {MAX_DEPTH} levels")]
    found: list[Found] = []
    for count, (place, each) in enumerate(_values(value), start=1):
        if count > MAX_VALUES:
            return [((), f"holds more than {MAX_VALUES} values")]
        if fault := _key_fault(place) or plain_fault(each):
            found.append((place, fault))
    return found


def plain_fault(value: Any) -> str | None:
    """Why one value, whatever it holds, cannot be a parameter; or ``None``."""
    if isinstance(value, str):
        return _text_fault(value)
    if isinstance(value, float):
        if value.is_integer() and abs(value) <= MAX_INTEGER:
            return (
                f"is a whole number written with `.` or an exponent, which programs read differently; write "
                f'{int(value)}, or, where the Recipe takes one, a decimal as a string ("{value!r}")'
            )
        shown = repr(value) if math.isfinite(value) else "this number"
        return (
            f"is {shown}: programs read numbers with a fraction or an exponent differently; "
            f'write a decimal as a string ("{shown}"), and a whole number without `.` and `e`'
        )
    if isinstance(value, int):  # which a boolean is, too
        said = f"is beyond {MAX_INTEGER}, which not every program reads exactly; write it as a string"
        return said if abs(value) > MAX_INTEGER else None
    if isinstance(value, Mapping | list):
        return None
    said = "null" if value is None else f"a {type(value).__name__}"
    return f"is {said}; a parameter is an integer, a boolean, a string, or a list or an object of them"


def is_fraction(value: Any, place: Place) -> bool:
    """Whether what stands at ``place`` in ``value`` is a number that only is not written as an integer."""
    try:
        for key in place:
            value = value[key]
    except (KeyError, IndexError, TypeError):  # a place that was cut
        return False
    return isinstance(value, float) and math.isfinite(value)


def too_deep(value: Any) -> Place | None:
    """A place deeper than any document of ours goes, or ``None``. Needs no stack itself."""
    waiting: list[tuple[Place, Any]] = [((), value)]
    while waiting:
        place, each = waiting.pop()
        if len(place) > MAX_DEPTH:
            return place
        waiting += [((*place, key), below) for key, below in _below(each)]
    return None


def apply_schema(schema: Mapping[str, Any], given: Mapping[str, Any]) -> tuple[dict[str, Any], list[Found]]:
    """``given`` with the defaults of ``schema``, and what the schema has against the whole (E101, E103).

    ``schema`` passed `parameter_schema.schema_faults`, ``given`` `value_faults`. Never raises.
    """
    merged = copy.deepcopy(dict(given))
    try:
        with budget():
            fill_defaults(schema, schema, merged)
            found = value_faults(merged)
            if not all(is_fraction(merged, place) for place, _ in found):
                return merged, found
            # A fraction hides no other fault; of the fraction itself enough is said.
            places = {place for place, _ in found}
            return merged, found + [each for each in check(schema, schema, merged) if each[0] not in places]
    except Unbounded as error:
        return merged, [((), f"cannot be checked: {error}")]


def fill_defaults(root: Mapping[str, Any], schema: Any, value: Any) -> None:
    """Put the defaults of ``schema``, a part of ``root``, into ``value``, in place.

    A default is used for a property that is not given, at every level that is there: in objects below
    ``properties``, in the items of lists, behind ``allOf`` and ``$ref``. What only one of several
    alternatives says (``anyOf``, ``oneOf``, ``if``) brings no default. Raises `Unbounded`.
    """
    spend(1)
    if not isinstance(schema, Mapping):
        return
    if isinstance(reference := schema.get("$ref"), str):
        fill_defaults(root, resolved(root, reference), value)
    for each in schema.get("allOf", ()):
        fill_defaults(root, each, value)
    if isinstance(value, dict):
        _fill_object(root, schema, value)
    elif isinstance(value, list):
        first = schema.get("prefixItems", [])
        rest = itertools.repeat(schema.get("items"), max(0, len(value) - len(first)))
        for item, below in zip(value, itertools.chain(first, rest), strict=False):
            fill_defaults(root, below, item)


def resolved(root: Mapping[str, Any], reference: str) -> Any:
    """The part of ``root`` that ``reference`` (``#/$defs/name``) points to; it exists."""
    found: Any = root
    for part in reference.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        found = found[int(name)] if isinstance(found, list) else found[name]
    return found


def _fill_object(root: Mapping[str, Any], schema: Mapping[str, Any], value: dict[str, Any]) -> None:
    for name, below in schema.get("properties", {}).items():
        if name not in value and (default := _default(root, below)) is not _NONE:
            value[name] = copy.deepcopy(default)
            spend(sum(_weight(each) for _, each in _values(default)))
        if name in value:
            fill_defaults(root, below, value[name])


def _weight(value: Any) -> int:
    """Steps that a copy of ``value`` costs: a default of long texts can be wanted a thousand times."""
    return 1 + len(value) // _CHARS_PER_STEP if isinstance(value, str) else 1


def _default(root: Mapping[str, Any], schema: Any) -> Any:
    """The default of a property: its schema's own, or that of what the schema refers to."""
    while isinstance(schema, Mapping):
        spend(1)
        if "default" in schema:
            return schema["default"]
        reference = schema.get("$ref")
        schema = resolved(root, reference) if isinstance(reference, str) else None
    return _NONE


def _values(value: Any, place: Place = ()) -> Iterator[tuple[Place, Any]]:
    """``value`` and every value inside it."""
    yield place, value
    for key, each in _below(value):
        yield from _values(each, (*place, key))


def _below(value: Any) -> list[tuple[str | int, Any]]:
    if isinstance(value, Mapping):
        return list(value.items())
    return list(enumerate(value)) if isinstance(value, list) else []


def _key_fault(place: Place) -> str | None:
    key = place[-1] if place else 0
    fault = _text_fault(key) if isinstance(key, str) else None
    return f"has a name that {fault}" if fault else None


def _text_fault(value: str) -> str | None:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        return f"holds a lone surrogate at character {error.start}, which no UTF-8 text can"
    return "holds NUL" if "\x00" in value else None
