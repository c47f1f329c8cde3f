"""What ``recipe.toml`` may say, which schemas judge parameters, and which defaults they bring."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainshed.model.content import ContentKind, parse_content_uri
from trainshed.model.errors import Refusal
from trainshed.model.json_schema import MAX_STEPS, Unbounded, check, pattern_fault
from trainshed.model.parameter_schema import MAX_PATTERNS, MAX_SUBSCHEMAS, schema_faults
from trainshed.model.parameters import MAX_DEPTH, MAX_INTEGER, MAX_VALUES, apply_schema, value_faults
from trainshed.model.recipe import (
    MAX_DEPENDENCIES,
    MAX_RECIPE_BYTES,
    Recipe,
    RecipeInput,
    Reference,
    parse_recipe,
    recipe_from_about,
)
from trainshed.model.strict_json import canonical_json, decode_json

DIGEST = "ab" * 32
HEAD = 'abi = "envloop.train-recipe/1"\nentrypoint = "pev.train:main"\n'
FULL = f"""{HEAD}
description = "Fine-tunes on one split"
[inputs.data]
kind = "dataset"
description = "What to learn from"
[inputs.base]
kind = "model"
required = false
[dependencies.common]
uri = "envloop://recipes/envloop/common@1.2"
manifest_sha256 = "{DIGEST}"
[parameters]
type = "object"
additionalProperties = false
required = ["name"]
[parameters.properties]
steps = {{type = "integer", minimum = 1, default = 100}}
name = {{type = "string", pattern = "^[a-z]+$"}}
lr = {{type = "string", pattern = "^[0-9]+([.][0-9]+)?$", default = "0.001"}}
"""


def faults_of(text: str | bytes) -> dict[str, str]:
    with pytest.raises(Refusal) as caught:
        parse_recipe(text.encode() if isinstance(text, str) else text)
    assert {fault.code for fault in caught.value.faults} == {"INVALID_CONTENT"}
    return {fault.path: fault.message for fault in caught.value.faults}


def schema(**keys) -> dict:
    return {"type": "object", **keys}


def places(found) -> list[tuple]:
    return [place for place, _ in found]


# The definition


def test_every_key_of_a_full_definition_is_read():
    recipe = parse_recipe(FULL.encode())
    assert recipe.abi == "envloop.train-recipe/1"
    assert recipe.entrypoint == "pev.train:main"
    assert recipe.description == "Fine-tunes on one split"
    assert recipe.inputs == {
        "data": RecipeInput(ContentKind.DATASETS, required=True, description="What to learn from"),
        "base": RecipeInput(ContentKind.MODELS, required=False),
    }
    uri = parse_content_uri("envloop://recipes/envloop/common@1.2")
    assert recipe.dependencies == {"common": Reference(uri, DIGEST)}
    assert recipe.parameters["properties"]["steps"]["default"] == 100


def test_only_abi_and_entrypoint_are_required_and_then_there_are_no_parameters():
    recipe = parse_recipe(HEAD.encode())
    assert (recipe.inputs, recipe.dependencies) == (None, {})
    assert apply_schema(recipe.parameters, {}) == ({}, [])
    assert places(apply_schema(recipe.parameters, {"steps": 1})[1]) == [()]


def test_all_faults_are_answered_at_once():
    found = faults_of(
        """
abi = "envloop.train-recipe/2"
entrypoint = "train.py"
paramters = 1
[inputs.data]
kind = "datasets"
requird = 1
[inputs.DATA]
kind = "model"
[inputs."a/b"]
kind = "model"
[dependencies.common]
uri = "envloop://datasets/envloop/common@1"
manifest_sha256 = "AB"
[parameters]
type = "array"
"""
    )
    assert set(found) == {
        "abi",
        "entrypoint",
        "paramters",
        "inputs.data.kind",
        "inputs.data.requird",
        "inputs.DATA",
        "inputs.a/b",
        "dependencies.common.uri",
        "dependencies.common.manifest_sha256",
        "parameters.type",
    }
    assert "did you mean `parameters`?" in found["paramters"]
    assert "'train.py'" in found["entrypoint"]


@pytest.mark.parametrize(
    "entrypoint",
    [
        "main",
        "main:",
        ":main",
        "a.b",
        "a/b:c",
        "a..b:c",
        "a:b.c",
        "import:main",
        "a:class",
        "ä:b",
        "a:b c",
        "a" * 300,
    ],
)
def test_E100_an_entrypoint_is_module_and_function(entrypoint):
    assert "entrypoint" in faults_of(
        f'abi = "envloop.train-recipe/1"\nentrypoint = {json.dumps(entrypoint)}\n'
    )


@pytest.mark.parametrize("paths", [["pev/train.py"], ["pev/train/__init__.py", "recipe.toml"]])
def test_the_entrypoints_module_is_a_file_of_the_recipe(paths):
    assert parse_recipe(HEAD.encode()).tree_faults(paths) == []


def test_a_recipe_without_its_entrypoints_file_is_refused():
    [fault] = parse_recipe(HEAD.encode()).tree_faults(["train.py", "recipe.toml"])
    assert (fault.path, fault.code) == ("entrypoint", "INVALID_CONTENT")
    assert "pev/train.py" in fault.message


@pytest.mark.parametrize("kind", ["datasets", "models", "plugins"])
def test_E104_only_recipes_are_source_dependencies(kind):
    lines = f'[dependencies.a]\nuri = "envloop://{kind}/n/a@1"\nmanifest_sha256 = "{DIGEST}"\n'
    found = faults_of(HEAD + lines)
    assert "takes recipes only" in found["dependencies.a.uri"]


@pytest.mark.parametrize("digest", ["ab" * 31, "AB" * 32, f"sha256:{DIGEST}", ""])
def test_E99_a_dependency_is_pinned_by_the_whole_digest(digest):
    lines = f'[dependencies.a]\nuri = "envloop://recipes/n/a@1"\nmanifest_sha256 = "{digest}"\n'
    assert list(faults_of(HEAD + lines)) == ["dependencies.a.manifest_sha256"]


def test_E99_the_digest_in_a_dependencys_uri_is_its_digest():
    lines = f'[dependencies.a]\nuri = "envloop://recipes/n/a@{"cd" * 32}"\nmanifest_sha256 = "{DIGEST}"\n'
    assert list(faults_of(HEAD + lines)) == ["dependencies.a.manifest_sha256"]


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"\xff", "UTF-8"),
        (b"a = ", "TOML"),
        (b"#" * (MAX_RECIPE_BYTES + 1), "at most"),
        (b"a" + b".a" * 30_000 + b" = 1", "64 parts"),
        (b"a = " + b"[" * 60_000, "TOML"),
    ],
)
def test_what_cannot_be_read_is_refused_as_one_file(content, word):
    assert word in faults_of(content)["recipe.toml"]


def test_bounds():
    assert "nested" in faults_of(HEAD + "[a" + ".a" * (MAX_DEPTH + 1) + "]")["a.a.a.a"]
    lines = "".join(
        f'[dependencies.d{n}]\nuri = "envloop://recipes/n/a@1"\nmanifest_sha256 = "{DIGEST}"\n'
        for n in range(MAX_DEPENDENCIES + 1)
    )
    assert "at most" in faults_of(HEAD + lines)["dependencies"]
    assert "description" in faults_of(HEAD + f'description = "{"x" * 1001}"\n')


@pytest.mark.parametrize("value", ["2024-01-01", "0.5", "1e3", "inf", "nan"])
def test_E97_a_recipe_holds_no_dates_and_no_fractions_in_its_schema(value):
    found = faults_of(f'{HEAD}[parameters]\ntype = "object"\nproperties.x.default = {value}\n')
    assert list(found) == ["parameters.properties.x.default"]


NAMES = st.from_regex(r"[a-z][a-z0-9_-]{0,8}", fullmatch=True)
PLAIN = st.recursive(
    st.booleans() | st.integers(-MAX_INTEGER, MAX_INTEGER) | st.text("abcäß\n\"'", max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("xyz", max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)
REFERENCES = st.builds(
    lambda name, ref, digest: Reference(parse_content_uri(f"envloop://recipes/n/{name}@{ref}"), digest),
    NAMES,
    st.from_regex(r"[0-9][0-9a-z.+-]{0,6}", fullmatch=True),
    st.binary(min_size=32, max_size=32).map(bytes.hex),
)
RECIPES = st.builds(
    Recipe,
    entrypoint=st.from_regex(r"x[a-z]{0,5}(\.y[a-z]{0,5}){0,2}:z[a-z]{0,5}", fullmatch=True),
    inputs=st.none()
    | st.dictionaries(
        NAMES,
        st.builds(
            RecipeInput,
            st.sampled_from([ContentKind.DATASETS, ContentKind.MODELS]),
            st.booleans(),
            st.none() | st.text("ab ", max_size=9),
        ),
        max_size=3,
    ),
    dependencies=st.dictionaries(NAMES, REFERENCES, max_size=3),
    parameters=st.dictionaries(NAMES, PLAIN.map(lambda value: {"default": value}), max_size=4).map(
        lambda properties: {"type": "object", "properties": properties}
    ),
    description=st.none() | st.text("ab ", max_size=9),
)


@given(RECIPES)
def test_a_recipe_survives_its_way_through_a_manifest(recipe):
    stored = json.loads(canonical_json(recipe.about()))
    assert recipe_from_about(stored) == recipe
    assert recipe_from_about(stored).about() == recipe.about()


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.just("\ud800"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["abi", "entrypoint", "inputs", "dependencies", "parameters", "kind", "uri", "$ref"]
            )
            | st.sampled_from(
                ["properties", "allOf", "type", "pattern", "default", "items", "enum", "$defs"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(ANYTHING)
def test_any_values_give_a_recipe_or_a_refusal(value):
    about = value if isinstance(value, dict) else {"parameters": value}
    try:
        recipe_from_about(about)
    except Refusal as refusal:
        refusal.body()


@given(st.binary(max_size=200))
def test_any_bytes_give_a_recipe_or_a_refusal(content):
    with contextlib.suppress(Refusal):
        parse_recipe(content)


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
        (schema(properties={"x": {"type": "int"}}), ("properties", "x", "type"), "not valid"),
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


# What it costs to use none of it


def test_the_libraries_that_judge_are_not_imported_before_they_are_needed():
    program = (
        "import sys, trainshed.control.accept, trainshed.cli.main\n"
        "print(sorted({'jsonschema', 'referencing'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_pattern_is_searched_for_as_json_schema_says():
    assert pattern_fault("a") is None
    assert apply_schema(schema(properties={"x": {"pattern": "b"}}), {"x": "abc"})[1] == []
