"""Which JSON Schemas may judge a Recipe's parameters (E101).

Any of JSON Schema 2020-12 that refers to nothing outside itself and can be applied within bounds. What could
never be met is refused when it is published, not when somebody submits: numbers, which no decimal may be
(E97), and defaults that their own schema refuses.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from trainshed.model.json_schema import (
    MAX_SHOWN,
    MAX_TOTAL_STEPS,
    Found,
    Place,
    Steps,
    Unbounded,
    budget,
    check,
    metaschema_faults,
)
from trainshed.model.parameters import MAX_DEPTH, fill_defaults, is_fraction, too_deep, value_faults
from trainshed.model.schema_patterns import (
    MAX_PATTERN_CHARS,
    MAX_PATTERN_COST,
    cost_rule,
    pattern_cost,
    pattern_fault,
)

DIALECT = "https://json-schema.org/draft/2020-12/schema"
MAX_SUBSCHEMAS = 500
MAX_PATTERNS = 32
_MAPS = ("properties", "patternProperties", "$defs", "dependentSchemas")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_SINGLE = (
    "items",
    "contains",
    "additionalProperties",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
    "if",
    "then",
    "else",
    "not",
)
_BY_PLACE = "refer to a part by its place: `#/$defs/NAME`"
_REFUSED = {
    "$anchor": _BY_PLACE,
    "$dynamicAnchor": _BY_PLACE,
    "$dynamicRef": _BY_PLACE,
    "$id": "a parameter schema has no address",
    "$vocabulary": "the vocabularies of JSON Schema 2020-12 apply",
    "definitions": "JSON Schema 2020-12 says `$defs`",
}
_NO_NUMBERS = (
    "allows numbers, and no parameter is ever a fraction: use `integer`, or for decimals `string` with a "
    "pattern such as ^[0-9]+([.][0-9]+)?$"
)


def schema_faults(schema: Any) -> list[Found]:
    """Everything that keeps ``schema`` from judging parameters; places are inside the schema."""
    if not isinstance(schema, Mapping):
        return [((), "must be a table that holds a JSON Schema")]
    if (place := too_deep(schema)) is not None:
        return [(place[:4], f"is nested deeper than {MAX_DEPTH} levels")]
    values = value_faults(schema)
    if not all(is_fraction(schema, place) for place, _ in values):
        return values[:MAX_SHOWN]
    parts = list(_parts(schema))
    if len(parts) > MAX_SUBSCHEMAS:
        return [((), f"holds {len(parts)} schemas; at most {MAX_SUBSCHEMAS}")]
    places = {place for place, _ in parts}
    unfit = [each for place, part in parts for each in _part_faults(place, part, places)]
    unfit += _pattern_faults(parts)
    numbers = [((*place, "type"), _NO_NUMBERS) for place, part in parts if _allows_numbers(part)]
    found = [*values, *unfit, *numbers]
    if schema.get("type") != "object":
        found.append((("type",), 'must be "object": parameters are given by their names'))
    # Each step relies on the one before: only a schema that is one, and refers to what is there, has
    # defaults to be tried.
    if not unfit:
        told = {place for place, _ in found}
        more = metaschema_faults(schema) or _default_faults(schema, parts)
        found += [(place, message) for place, message in more if place not in told]
    return found[:MAX_SHOWN]


def _parts(schema: Any, place: Place = ()) -> Iterator[tuple[Place, Mapping[str, Any]]]:
    """Every schema inside ``schema``, itself first. What is data (``default``, ``enum``) is none."""
    if not isinstance(schema, Mapping):
        return
    yield place, schema
    for key in _MAPS:
        if isinstance(below := schema.get(key), Mapping):
            for name, each in below.items():
                yield from _parts(each, (*place, key, name))
    for key in _LISTS:
        if isinstance(below := schema.get(key), list):
            for number, each in enumerate(below):
                yield from _parts(each, (*place, key, number))
    for key in _SINGLE:
        yield from _parts(schema.get(key), (*place, key))


def _part_faults(place: Place, part: Mapping[str, Any], places: set[Place]) -> Iterator[Found]:
    for key, why in _REFUSED.items():
        if key in part:
            yield (*place, key), f"is not taken here: {why}"
    if (dialect := part.get("$schema", DIALECT)) != DIALECT:
        yield (*place, "$schema"), f"must be {DIALECT}, not {str(dialect)[:80]!r}"
    if "$ref" in part and (fault := _reference_fault(part["$ref"], places)):
        yield (*place, "$ref"), fault


def _allows_numbers(part: Mapping[str, Any]) -> bool:
    kind = part.get("type")
    return "number" in (kind if isinstance(kind, list) else [kind])


def _reference_fault(reference: Any, places: set[Place]) -> str | None:
    if not isinstance(reference, str) or not reference.startswith("#"):
        return "must point into this schema, as `#/$defs/NAME` does; nothing is fetched from elsewhere"
    if reference not in {_pointer(place) for place in places}:
        return f"points to {reference[:80]!r}, where no schema is"
    return None


def _pointer(place: Place) -> str:
    return "#" + "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in place)


def _pattern_faults(parts: list[tuple[Place, Mapping[str, Any]]]) -> list[Found]:
    named = [
        ((*place, "patternProperties", pattern), pattern)
        for place, part in parts
        if isinstance(part.get("patternProperties"), Mapping)
        for pattern in part["patternProperties"]
    ]
    patterns = [((*place, "pattern"), part["pattern"]) for place, part in parts if "pattern" in part] + named
    texts = {pattern for _, pattern in patterns if isinstance(pattern, str)}
    if len(texts) > MAX_PATTERNS:
        return [((), f"holds {len(texts)} patterns; at most {MAX_PATTERNS}")]
    # Before any is compiled: together they may cost what none of them does.
    cost = sum(pattern_cost(each) for each in texts if len(each) <= MAX_PATTERN_CHARS)
    if cost > MAX_PATTERN_COST:
        return [((), f"holds patterns that cost {cost}, {cost_rule()}")]
    found: list[Found] = [
        (place, fault)
        for place, pattern in patterns
        if isinstance(pattern, str) and (fault := pattern_fault(pattern))
    ]
    if named:
        # The library finds the properties that are left with an engine whose time has no bound.
        found += [
            ((*place, "unevaluatedProperties"), "is not taken beside `patternProperties`")
            for place, part in parts
            if "unevaluatedProperties" in part
        ]
    return found


def _default_faults(schema: Mapping[str, Any], parts: list[tuple[Place, Mapping[str, Any]]]) -> list[Found]:
    """Defaults that their own schema refuses: nobody could ever use them."""
    found: list[Found] = []
    try:
        with budget(Steps(MAX_TOTAL_STEPS)):
            for place, part in parts:
                if "default" in part:
                    value = copy.deepcopy(part["default"])
                    with budget():
                        fill_defaults(schema, part, value)
                    where = (*place, "default")
                    found += [((*where, *below), message) for below, message in check(schema, part, value)]
            if not found:  # what a submission costs that gives nothing; a schema may be endless, too
                value = {}
                with budget():
                    fill_defaults(schema, schema, value)
                    check(schema, schema, value)
    except Unbounded as error:
        return [((), f"cannot be applied: {error}")]
    return found
