"""Which values parameters are, which schemas judge them, which defaults they get (E97, E101, E103)."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainshed.model.json_schema import MAX_STEPS, MAX_TOTAL_STEPS, Steps, Unbounded, budget, check
from trainshed.model.parameter_schema import MAX_PATTERNS, MAX_SUBSCHEMAS, schema_faults
from trainshed.model.parameters import MAX_INTEGER, MAX_VALUES, apply_schema, value_faults
from trainshed.model.schema_patterns import MAX_COST_OF_ONE, MAX_PATTERN_COST, pattern_cost, pattern_fault
from trainshed.model.strict_json import decode_json

NAMES = st.from_regex(r"[a-z][a-z0-9_-]{0,8}", fullmatch=True)
PLAIN = st.recursive(
    st.booleans() | st.integers(-MAX_INTEGER, MAX_INTEGER) | st.text("abcäß\n\"'", max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("xyz", max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


def schema(**keys) -> dict:
    return {"type": "object", **keys}


def places(found) -> list[tuple]:
    return [place for place, _ in found]


# Values (E97, A17)


@pytest.mark.parametrize(
    "text", ["1", "-7", "0", "true", '"0.1"', '""', "[1, [2]]", '{"a": {"b": "c"}}', "{}"]
)
def test_A17_integers_booleans_strings_and_what_holds_them_are_parameters(text):
    assert value_faults({"x": decode_json(text.encode())}) == []


@pytest.mark.parametrize("text", ["1.0", "1e3", "1E3", "0.1", "-0.0", "1e-5", "12.50"])
def test_E97_a_number_with_a_fraction_or_an_exponent_is_refused_where_it_stands(text):
    value = decode_json(f'{{"a": [0, {{"b": {text}}}]}}'.encode())
    [(place, message)] = value_faults(value)
    assert place == ("a", 1, "b")
    assert "decimal as a string" in message


@pytest.mark.parametrize(
    ("value", "word"),
    [
        (None, "null"),
        (MAX_INTEGER + 1, "beyond"),
        (-MAX_INTEGER - 1, "beyond"),
        ("\ud800", "surrogate"),
        ("a\x00", "NUL"),
        (float("nan"), "this number"),
    ],
)
def test_values_that_not_every_program_reads_alike_are_refused(value, word):
    [(place, message)] = value_faults({"x": value})
    assert place == ("x",)
    assert word in message


def test_values_are_bounded_in_number_and_depth():
    assert value_faults({"x": [[]] * (MAX_VALUES - 2)}) == []
    assert "holds more than" in value_faults({"x": [[]] * MAX_VALUES})[0][1]
    deep: list = []
    for _ in range(500):
        deep = [deep]
    assert "nested" in value_faults(deep)[0][1]
    assert places(value_faults({"a\ud800": 1})) == [("a\ud800",)]


# Schemas (E101)


@pytest.mark.parametrize(
    ("given", "place", "word"),
    [
        (schema(**{"$ref": "https://example.com/schema"}), ("$ref",), "nothing is fetched"),
        (schema(**{"$ref": "other.json"}), ("$ref",), "nothing is fetched"),
        (schema(**{"$ref": "#/$defs/none"}), ("$ref",), "no schema is"),
        (schema(enum=[{"pattern": "x"}], **{"$ref": "#/enum/0"}), ("$ref",), "no schema is"),
        (schema(**{"$id": "https://example.com/"}), ("$id",), "address"),
        (schema(properties={"x": {"$dynamicRef": "#a"}}), ("properties", "x", "$dynamicRef"), "$defs"),
        (schema(**{"$schema": "http://json-schema.org/draft-07/schema#"}), ("$schema",), "2020-12"),
        (schema(definitions={}), ("definitions",), "$defs"),
        (schema(properties={"x": {"type": "number"}}), ("properties", "x", "type"), "fraction"),
        (schema(properties={"x": {"type": ["null", "number"]}}), ("properties", "x", "type"), "fraction"),
        (schema(properties={"x": {"type": "int"}}), ("properties", "x", "type"), "boolean, integer, null"),
        (schema(properties={"x": {"type": ["string", 1]}}), ("properties", "x", "type"), "one of array,"),
        (schema(properties={"e": {"$ref": "#/properties/e"}}), ("properties", "e", "$ref"), "itself"),
        (schema(properties={"x": {"minimum": "1"}}), ("properties", "x", "minimum"), "type"),
        (schema(required="x"), ("required",), "type"),
        (schema(properties={"x": {"pattern": "(?=a)"}}), ("properties", "x", "pattern"), "linear time"),
        (schema(properties={"x": {"pattern": "(a)\\1"}}), ("properties", "x", "pattern"), "linear time"),
        (schema(properties={"x": {"pattern": "("}}), ("properties", "x", "pattern"), "linear time"),
        (schema(properties={"x": {"pattern": "a" * 300}}), ("properties", "x", "pattern"), "256"),
        (schema(patternProperties={"[": True}), ("patternProperties", "["), "linear time"),
        ({"type": "array"}, ("type",), "object"),
        ({}, ("type",), "object"),
        (schema(maximum=0.5), ("maximum",), "fraction"),
        ([], (), "table"),
    ],
)
def test_E101_a_schema_that_cannot_judge_is_refused_at_its_place(given, place, word):
    [(where, message)] = schema_faults(given)
    assert where == place
    assert word in message


@pytest.mark.parametrize(
    "fault",
    [
        {"$ref": "http://x/"},
        {"$schema": "http://json-schema.org/draft-07/schema#"},
        {"pattern": r"\w{110}"},
        {"default": None},
        {"default": "~/x"},
    ],
)
def test_E101_one_fault_of_a_schema_hides_no_other(fault):
    given = schema(
        properties={
            "bad": fault,
            "type": {"type": "strin"},
            "least": {"minLength": -1},
            "step": {"multipleOf": 0},
            "one": {"type": "integer", "default": "1"},
            "refers": {"$ref": "#/properties/bad", "default": 1},
        },
        required=["a", 1],
    )
    [key] = fault
    assert set(places(schema_faults(given))) == {
        ("properties", "bad", key),
        ("properties", "type", "type"),
        ("properties", "least", "minLength"),
        ("properties", "step", "multipleOf"),
        ("properties", "one", "default"),
        ("required", 1),
    }


def test_E101_a_circle_of_references_is_shown():
    given = schema(
        properties={"a": {"$ref": "#/$defs/b"}}, **{"$defs": {"b": {"not": {"$ref": "#/$defs/b"}}}}
    )
    [(place, message)] = schema_faults(given)
    assert place == ("$defs", "b", "not", "$ref")
    assert "#/$defs/b -> #/$defs/b/not -> #/$defs/b" in message


def test_E101_a_default_that_never_ends_is_named():
    node = {"type": "object", "default": {}, "properties": {"next": {"$ref": "#/$defs/node"}}}
    [(place, message)] = schema_faults(schema(**{"$defs": {"node": node}}))
    assert place == ("$defs", "node", "default")
    assert "without end" in message


def test_E101_a_schema_is_bounded():
    many = {f"x{n}": {"type": "integer"} for n in range(MAX_SUBSCHEMAS + 1)}
    assert "schemas" in schema_faults(schema(properties=many))[0][1]
    patterns = {f"x{n}": {"pattern": f"a{n}"} for n in range(MAX_PATTERNS + 1)}
    assert "patterns" in schema_faults(schema(properties=patterns))[0][1]


@pytest.mark.parametrize(
    "given",
    [
        schema(**{"$ref": "#"}),
        schema(properties={"x": {"$ref": "#", "default": {}}}),
        schema(
            allOf=[{"$ref": "#/$defs/a"}],
            **{"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        ),
    ],
)
def test_E101_a_schema_that_refers_to_itself_without_end_is_refused(given):
    [(_, message)] = schema_faults(given)
    assert "without end" in message


@pytest.mark.parametrize(("keyword", "last"), [("anyOf", "string"), ("allOf", "object")])
def test_E101_a_schema_that_doubles_its_work_thirty_times_is_refused(keyword, last):
    definitions = {f"a{n}": {keyword: [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(30)}
    given = schema(**{"$ref": "#/$defs/a0", "$defs": {**definitions, "a30": {"type": last}}})
    [(_, message)] = schema_faults(given)
    assert str(MAX_STEPS) in message


def test_a_recursive_schema_that_ends_with_its_value_is_fine():
    tree = {"type": "object", "properties": {"left": {"$ref": "#/$defs/tree"}}, "additionalProperties": False}
    given = schema(properties={"tree": {"$ref": "#/$defs/tree"}}, **{"$defs": {"tree": tree}})
    assert schema_faults(given) == []
    assert apply_schema(given, {"tree": {"left": {"left": {}}}})[1] == []
    assert places(apply_schema(given, {"tree": {"left": {"right": 1}}})[1]) == [("tree", "left")]


def test_E101_defaults_that_their_own_schema_refuses_are_refused_when_published():
    given = schema(
        properties={
            "steps": {"type": "integer", "minimum": 1, "default": 0},
            "opt": {"$ref": "#/$defs/opt", "default": {"name": 1}},
        },
        **{"$defs": {"opt": {"type": "object", "properties": {"name": {"type": "string"}}}}},
    )
    assert places(schema_faults(given)) == [
        ("properties", "steps", "default"),
        ("properties", "opt", "default", "name"),
    ]


@pytest.mark.parametrize(
    ("pattern", "least"),
    [
        (r"\w{110}|1", 110 * 512),
        (r"(?:\w{10}){11}", 110 * 512),
        (r"\w{10}{11}", 110 * 512),
        (r"\w{0,110}", 110 * 512),
        (r"\w{110,}", 110 * 512),
        (r"[\w-]{110}", 110 * 512),
        (r"[]\w]{110}", 110 * 512),
        (r"[^]\w]{110}", 110 * 512),
        (r"[a&&[^\w]]{110}", 110 * 512),
        (r"\pL{110}", 110 * 512),
        (r"\p{L}{110}", 110 * 512),
        (r"(?P<name>\W{110})?", 110 * 512),
        (r"(){100000}", 100_000),
        (r"((a{99}){99}){99}", 99**3),
    ],
)
def test_E101_repetitions_are_multiplied_before_a_pattern_is_compiled(pattern, least):
    assert pattern_cost(pattern) >= least


@pytest.mark.parametrize("pattern", [r"\w{100}", r"((a{9}){99}){40}", r"(?ix)\w {110}"])
def test_E101_a_pattern_that_costs_too_much_is_refused_with_the_rule(pattern):
    [(where, message)] = schema_faults(schema(properties={"x": {"pattern": pattern}}))
    assert where == ("properties", "x", "pattern")
    assert str(MAX_COST_OF_ONE) in message or "flag" in message


def test_E101_patterns_that_together_cost_too_much_are_refused_and_ordinary_ones_are_not():
    hostile = {f"x{n}": {"pattern": rf"\w{{110}}|{n}"} for n in range(32)}
    [(_, message)] = schema_faults(schema(properties=hostile))
    assert str(MAX_PATTERN_COST) in message
    email = r"^[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9.-]{1,255}$"
    fine = {f"x{n}": {"type": "string", "pattern": rf"{email}|\w+:\d{{{n + 1}}}"} for n in range(32)}
    assert schema_faults(schema(properties=fine)) == []


def test_E101_a_costly_pattern_and_a_long_text_are_counted_together():
    given = schema(properties={"x": {"type": "string", "pattern": "(a|b)*a(a|b){2000}"}})
    assert schema_faults(given) == []
    [(_, message)] = apply_schema(given, {"x": "ab" * 20_000})[1]
    assert str(MAX_STEPS) in message


def of_all_kinds(count):
    """A schema of parameters of the kinds that people write."""
    kinds = [
        {"type": "integer", "minimum": 1, "maximum": 10_000, "default": 5, "description": "x"},
        {"type": "string", "pattern": "^[0-9]+([.][0-9]+)?$", "default": "0.1"},
        {"type": "string", "enum": ["adam", "sgd", "lion"], "default": "adam"},
        {"type": "array", "items": {"type": "integer"}, "default": [1, 2, 3, 4, 5, 6, 7, 8]},
        {"type": "object", "default": {}, "properties": {"b": {"$ref": "#/$defs/b", "default": "1"}}},
        {"anyOf": [{"type": "integer"}, {"type": "string"}], "default": 3},
    ]
    each = {f"p{n}": kinds[n % len(kinds)] for n in range(count)}
    return schema(properties=each, **{"$defs": {"b": {"type": "string", "pattern": "^[0-9]+$"}}})


def test_E101_sixteen_trials_with_a_hundred_parameters_are_within_what_a_submission_may_cost():
    given = of_all_kinds(100)
    assert schema_faults(given) == []
    with budget(Steps(MAX_TOTAL_STEPS)):
        assert [apply_schema(given, {"p0": number + 1})[1] for number in range(16)] == [[]] * 16


def test_E101_all_checks_of_one_request_have_one_budget():
    definitions = {f"a{n}": {"anyOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(8)}
    tree = {**definitions, "a8": {"type": "string"}}
    given = schema(properties={"x": {"$ref": "#/$defs/a0"}}, **{"$defs": tree})
    assert "anyOf" in apply_schema(given, {"x": 1})[1][0][1]
    with budget(Steps(MAX_TOTAL_STEPS)):
        found = [apply_schema(given, {"x": number})[1][0][1] for number in range(16)]
    assert "one request" in found[-1]
    wide = {f"b{n}": {"allOf": [{"$ref": f"#/$defs/b{n + 1}"}] * 2} for n in range(7)}
    defaults = {f"x{n}": {"$ref": "#/$defs/b0", "default": "a"} for n in range(200)}
    many = schema(properties=defaults, **{"$defs": {**wide, "b7": {"type": "string"}}})
    assert "steps" in schema_faults(many)[0][1]


def test_E101_a_schema_whose_defaults_cost_too_much_is_refused_when_published():
    wide = {f"b{n}": {"allOf": [{"$ref": f"#/$defs/b{n + 1}"}] * 2} for n in range(30)}
    given = schema(
        properties={"x": {"$ref": "#/$defs/b0"}, "y": {"type": "object", "properties": {}}},
        allOf=[{"properties": {"x": {"default": "a"}}}],
        **{"$defs": {**wide, "b30": {"type": "string"}}},
    )
    [(_, message)] = schema_faults(given)
    assert str(MAX_STEPS) in message


@pytest.mark.parametrize("pattern", ["(a+)+$", "^(a|a)*$", "(a*)*b", "^(([a-z])+.)+[A-Z]([a-z])+$"])
def test_patterns_that_take_other_engines_for_ever_end_at_once(pattern):
    given = schema(properties={"x": {"type": "string", "pattern": pattern}})
    assert schema_faults(given) == []
    merged, found = apply_schema(given, {"x": "a" * 50_000 + "!"})
    assert merged["x"].endswith("!")
    assert places(found) == [("x",)]


def test_a_long_value_is_not_repeated_whole_in_a_message():
    found = apply_schema(schema(properties={"x": {"const": "a"}}), {"x": "b" * 10_000})[1]
    assert len(found[0][1]) < 400


def test_a_check_that_asks_for_too_much_work_ends():
    given = schema(properties={"x": {"type": "array", "items": {"allOf": [{"type": "integer"}] * 100}}})
    assert schema_faults(given) == []
    merged, found = apply_schema(given, {"x": list(range(1500))})
    assert merged == {"x": list(range(1500))}
    assert "steps of work" in found[0][1]
    with pytest.raises(Unbounded):
        check(given, given, merged)
    wide = schema(properties={"x": {"items": {"properties": {"y": {"default": "z" * 50_000}}}}})
    assert schema_faults(wide) == []
    assert "steps of work" in apply_schema(wide, {"x": [{} for _ in range(1000)]})[1][0][1]


def test_patterns_of_names_and_of_all_others():
    given = schema(
        properties={"steps": True},
        patternProperties={"^lora_": {"type": "integer"}},
        additionalProperties=False,
    )
    assert schema_faults(given) == []
    assert apply_schema(given, {"steps": 1, "lora_rank": 8})[1] == []
    assert places(apply_schema(given, {"lora_rank": "8"})[1]) == [("lora_rank",)]
    [(place, message)] = apply_schema(given, {"stepz": 1})[1]
    assert place == ()
    assert "'stepz'" in message
    assert "steps" in message
    typed = schema(additionalProperties={"type": "string"})
    assert places(apply_schema(typed, {"a": "b", "c": 1})[1]) == [("c",)]
    unevaluated = schema(patternProperties={"a": True}, unevaluatedProperties=False)
    assert places(schema_faults(unevaluated)) == [("unevaluatedProperties",)]
    assert schema_faults(schema(properties={"a": True}, unevaluatedProperties=False)) == []


# Defaults (E103)


@pytest.mark.parametrize(
    ("given", "parameters", "expected"),
    [
        (schema(properties={"a": {"default": 1}}), {}, {"a": 1}),
        (schema(properties={"a": {"default": 1}}), {"a": 2}, {"a": 2}),
        (
            schema(properties={"o": {"properties": {"a": {"default": 1}}}}),
            {},
            {},
        ),
        (
            schema(properties={"o": {"default": {}, "properties": {"a": {"default": 1}}}}),
            {},
            {"o": {"a": 1}},
        ),
        (
            schema(properties={"o": {"properties": {"a": {"default": 1}, "b": {"default": [2]}}}}),
            {"o": {"a": 5}},
            {"o": {"a": 5, "b": [2]}},
        ),
        (
            schema(properties={"l": {"items": {"properties": {"a": {"default": 1}}}}}),
            {"l": [{}, {"a": 2}, 3]},
            {"l": [{"a": 1}, {"a": 2}, 3]},
        ),
        (
            schema(
                properties={"l": {"prefixItems": [{"properties": {"a": {"default": 1}}}], "items": False}}
            ),
            {"l": [{}]},
            {"l": [{"a": 1}]},
        ),
        (
            schema(
                allOf=[{"properties": {"a": {"default": 1}}}],
                **{
                    "$ref": "#/$defs/x",
                    "$defs": {"x": {"properties": {"b": {"$ref": "#/$defs/y"}}}, "y": {"default": 2}},
                },
            ),
            {},
            {"a": 1, "b": 2},
        ),
        (schema(anyOf=[{"properties": {"a": {"default": 1}}}, True]), {}, {}),
        (
            schema(properties={"x": {"$ref": "#/$defs/a~1b~0c"}}, **{"$defs": {"a/b~c": {"default": 7}}}),
            {},
            {"x": 7},
        ),
    ],
)
def test_E103_defaults_are_put_where_a_value_is_missing(given, parameters, expected):
    assert schema_faults(given) == []
    before = json.dumps(parameters)
    assert apply_schema(given, parameters) == (expected, [])
    assert json.dumps(parameters) == before


def test_E103_given_parameters_with_their_defaults_are_judged_as_a_whole():
    given = schema(
        properties={"a": {"default": 1}, "b": {"type": "integer"}},
        dependentRequired={"a": ["b"]},
    )
    assert places(apply_schema(given, {})[1]) == [()]
    assert apply_schema(given, {"b": 2}) == ({"a": 1, "b": 2}, [])


@given(st.dictionaries(NAMES, PLAIN, max_size=4), st.dictionaries(NAMES, PLAIN, max_size=4))
def test_E103_what_is_given_stays_what_is_missing_is_the_default_and_doing_it_again_changes_nothing(
    defaults, parameters
):
    judge = schema(properties={name: {"default": value} for name, value in defaults.items()})
    merged, found = apply_schema(judge, parameters)
    assert found == []
    assert merged == {**defaults, **parameters}
    assert apply_schema(judge, merged) == (merged, [])


def test_a_pattern_is_searched_for_as_json_schema_says():
    assert pattern_fault("a") is None
    assert apply_schema(schema(properties={"x": {"pattern": "b"}}), {"x": "abc"})[1] == []


def test_E97_a_whole_number_with_an_exponent_is_told_how_to_write_it():
    [(_, message)] = value_faults({"steps": 1e3})
    assert "write 1000," in message
