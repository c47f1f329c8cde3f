"""Which JSON Schemas may judge a Recipe's parameters (E101).

Any of JSON Schema 2020-12 that refers to nothing outside itself and can be applied within bounds. What could
never be met is refused when it is published, not when somebody submits: numbers, which no decimal may be
(E97), and defaults that their own schema refuses. So are keywords that JSON Schema does not know: to it they
are annotations, and a rule that is misspelt judges nothing.
"""

from __future__ import annotations

import copy
import difflib
from collections.abc import Iterable, Iterator, Mapping
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
from trainshed.model.parameters import (
    MAX_DEPTH,
    cut,
    fill_defaults,
    is_fraction,
    local_faults,
    too_deep,
    value_faults,
)
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
MAX_KEYWORD_CHARS = 64
"""Of a key so much is compared with the known ones."""
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
_OF_THE_SAME_VALUE = ("allOf", "anyOf", "oneOf", "if", "then", "else", "not", "dependentSchemas")
_BY_PLACE = "refer to a part by its place: `#/$defs/NAME`"
_REFUSED = {
    "$anchor": _BY_PLACE,
    "$dynamicAnchor": _BY_PLACE,
    "$dynamicRef": _BY_PLACE,
    "$id": "a parameter schema has no address",
    "$vocabulary": "the vocabularies of JSON Schema 2020-12 apply",
    "definitions": "JSON Schema 2020-12 says `$defs`",
}
_KEYWORDS = (
    *(
        "$id",
        "$schema",
        "$ref",
        "$anchor",
        "$dynamicRef",
        "$dynamicAnchor",
        "$vocabulary",
        "$comment",
        "$defs",
    ),
    *_MAPS,
    *("dependentRequired", "contentSchema", *_LISTS, *_SINGLE),
    *("type", "const", "enum", "multipleOf", "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum"),
    *(
        "maxLength",
        "minLength",
        "pattern",
        "maxItems",
        "minItems",
        "uniqueItems",
        "maxContains",
        "minContains",
    ),
    *("maxContains", "minContains", "maxProperties", "minProperties", "required", "format"),
    *(
        "contentEncoding",
        "contentMediaType",
        "title",
        "description",
        "default",
        "deprecated",
        "readOnly",
        "writeOnly",
        "examples",
    ),
)
"""Those of JSON Schema 2020-12; a test compares them with its metaschema."""
_FORMER = {
    "dependencies": "JSON Schema 2020-12 says `dependentRequired` or `dependentSchemas`",
    "additionalItems": "JSON Schema 2020-12 says `prefixItems`, and `items` for those that follow",
    "$recursiveRef": "refer to a part by its place: `#/$defs/NAME`",
    "$recursiveAnchor": "refer to a part by its place: `#/$defs/NAME`",
    "nullable": 'JSON Schema says `type = ["null", …]`',
}
OWN_KEYWORD = "x-"
"""What the keywords begin with that are notes of the author."""
_NO_NUMBERS = (
    "allows numbers, and no parameter is ever a fraction: use `integer`, or for decimals `string` with a "
    "pattern such as ^[0-9]+([.][0-9]+)?$"
)


def schema_faults(schema: Any, *, published: bool = False) -> list[Found]:
    """Everything that keeps ``schema`` from judging parameters; places are inside the schema.

    Of one that is ``published`` keywords that are none are passed over: versions are for good, also those of
    a time when nobody looked.
    """
    if not isinstance(schema, Mapping):
        return [((), "must be a table that holds a JSON Schema")]
    if (place := too_deep(schema)) is not None:
        return [(cut(place), f"is nested deeper than {MAX_DEPTH} levels")]
    values = value_faults(schema)
    if any(place == () for place, _ in values):  # too many to look at one by one
        return values
    parts = list(_parts(schema))
    if len(parts) > MAX_SUBSCHEMAS:
        return [((), f"holds {len(parts)} schemas; at most {MAX_SUBSCHEMAS}")]
    places = {place for place, _ in parts}
    unfit = [each for place, part in parts for each in _part_faults(place, part, places)]
    unfit += _pattern_faults(parts)
    found = [*values, *unfit]
    found += [((*place, "type"), _NO_NUMBERS) for place, part in parts if _allows_numbers(part)]
    if schema.get("type") != "object":
        found.append((("type",), 'must be "object": parameters are given by their names'))
    for place, part in parts:
        if "default" in part:
            found += [((*place, "default", *below), said) for below, said in local_faults(part["default"])]
    malformed = metaschema_faults(schema)
    _add(found, malformed)
    if unfit or malformed or not all(is_fraction(schema, place) for place, _ in values):
        _add(found, _of_sound_parts(schema, parts, [place for place, _ in found]))
    else:
        _add(found, _endless(parts) or _default_faults(schema, parts, whole=True))
    if not published:  # last: what is no keyword keeps nothing else from being tried
        _add(found, list(_unknown_keywords(parts)))
    return found[:MAX_SHOWN]


def _add(found: list[Found], more: list[Found]) -> None:
    """Add faults of places of which nothing is said yet."""
    told = {place for place, _ in found}
    found += [(place, message) for place, message in more if place not in told]


def _of_sound_parts(
    schema: Mapping[str, Any], parts: list[tuple[Place, Mapping[str, Any]]], told: list[Place]
) -> list[Found]:
    """Faults of defaults, of a schema that cannot be applied: of its parts that nothing is wrong with.

    Only a schema that is one, and refers to what is there, has defaults to be tried; of any other those
    parts have that refer to nothing.
    """
    sound = [each for each in parts if () not in told and _stands_alone(*each, told)]
    return _default_faults(schema, sound, whole=False)


def _stands_alone(place: Place, part: Mapping[str, Any], told: list[Place]) -> bool:
    """Whether a schema can be applied although others cannot: nothing at it or below it is at fault."""
    if any(each[: len(place)] == place for each in told):
        return False
    return not any("$ref" in below for _, below in _parts(part))


def _endless(parts: list[tuple[Place, Mapping[str, Any]]]) -> list[Found]:
    """Where a schema refers, by whatever way, to itself for the same value: to apply it never ends."""
    by_place = {_pointer(place): (place, part) for place, part in parts}
    ended: set[str] = set()
    found: list[Found] = []

    def follow(name: str, way: list[str], through: Place | None) -> None:
        if name in way:
            circle = " -> ".join([*way[way.index(name) :], name])
            where = through or ()
            found.append((where, f"refers to itself without end: {circle}"))
            return
        if name in ended or name not in by_place:
            return
        place, part = by_place[name]
        for below in _same_value(place, part):
            follow(_pointer(below), [*way, name], through)
        if "$ref" in part:
            follow(part["$ref"], [*way, name], (*place, "$ref"))
        ended.add(name)

    for name in by_place:
        follow(name, [], None)
    return found


def _same_value(place: Place, part: Mapping[str, Any]) -> Iterator[Place]:
    """The schemas inside ``part`` that judge the very value that it judges."""
    for key in _OF_THE_SAME_VALUE:
        below = part.get(key)
        if isinstance(below, list):
            yield from ((*place, key, number) for number in range(len(below)))
        elif key in _MAPS and isinstance(below, Mapping):
            yield from ((*place, key, name) for name in below)
        elif below is not None:
            yield (*place, key)


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


def _unknown_keywords(parts: Iterable[tuple[Place, Mapping[str, Any]]]) -> Iterator[Found]:
    """Keys that JSON Schema does not know, where a schema stands; also where it only describes a text."""
    for place, part in parts:
        for key, value in part.items():
            if key not in _KEYWORDS and key not in _REFUSED and not key.startswith(OWN_KEYWORD):
                yield (*place, key), f"is no keyword of JSON Schema 2020-12: {_meant(key, value)}"
        yield from _unknown_keywords(_parts(part.get("contentSchema"), (*place, "contentSchema")))


def _meant(key: str, value: Any) -> str:
    if key in _FORMER:
        return _FORMER[key]
    table = isinstance(value, Mapping)
    alike = 0.8 if table else 0.6  # a table may well be a parameter that stands a level too high
    if near := difflib.get_close_matches(key[:MAX_KEYWORD_CHARS], _KEYWORDS, n=1, cutoff=alike):
        return f"did you mean `{near[0]}`?"
    below = "parameters stand below `properties`; " if table else ""
    return f"{below}a note of your own begins with `{OWN_KEYWORD}`"


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


def _default_faults(
    schema: Mapping[str, Any], parts: list[tuple[Place, Mapping[str, Any]]], *, whole: bool
) -> list[Found]:
    """Defaults that their own schema refuses: nobody could ever use them; of the ``whole`` schema, too."""
    found: list[Found] = []
    where: Place = ()
    try:
        with budget(Steps(MAX_TOTAL_STEPS)):
            for place, part in parts:
                if "default" in part:
                    where = (*place, "default")
                    value = copy.deepcopy(part["default"])
                    with budget():
                        fill_defaults(schema, part, value)
                    found += [((*where, *below), message) for below, message in check(schema, part, value)]
            if whole and not found:  # what a submission costs that gives nothing
                where, value = (), {}
                with budget():
                    fill_defaults(schema, schema, value)
                    check(schema, schema, value)
    except Unbounded as error:
        found.append((where, f"cannot be applied: {error}"))
    return found
