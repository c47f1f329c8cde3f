"""What ``recipe.toml`` may say, which schemas judge parameters, and which defaults they bring."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainshed.model.content import ContentKind, parse_content_uri
from trainshed.model.errors import MAX_BODY_BYTES, Refusal
from trainshed.model.parameters import MAX_DEPTH, MAX_INTEGER, apply_schema
from trainshed.model.recipe import (
    MAX_DEPENDENCIES,
    MAX_RECIPE_BYTES,
    Recipe,
    RecipeInput,
    Reference,
    parse_recipe,
    recipe_from_about,
)
from trainshed.model.strict_json import canonical_json

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
    [(place, _)] = apply_schema(recipe.parameters, {"steps": 1})[1]
    assert place == ()


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


def test_a_bad_name_hides_nothing_of_what_stands_under_it():
    found = faults_of(
        f"""{HEAD}
[inputs.1data]
kind = "datasets"
required = "yes"
[inputs.data]
[inputs.Data]
kind = "x"
[dependencies."a b"]
uri = "x"
"""
    )
    assert set(found) == {
        "inputs.1data",
        "inputs.1data.kind",
        "inputs.1data.required",
        "inputs.data.kind",
        "inputs.Data",
        "inputs.Data.kind",
        "dependencies.a b",
        "dependencies.a b.uri",
        "dependencies.a b.manifest_sha256",
    }


@pytest.mark.parametrize("value", ["/home/ada/x", "~/x", "C:\\x", "file:///x"])
def test_E96_a_default_is_no_path_of_some_machine(value):
    found = faults_of(f"{HEAD}[parameters]\ntype = 'object'\nproperties.x.default = [{json.dumps(value)}]\n")
    assert list(found) == ["parameters.properties.x.default[0]"]
    assert "path of some machine" in next(iter(found.values()))


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
    assert "nested" in faults_of(HEAD + "[a" + ".a" * (MAX_DEPTH + 1) + "]")["a.a.a.a.…"]
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


def outcome(read: Callable[[], Recipe]) -> Recipe | Refusal:
    try:
        return read()
    except Refusal as refusal:
        return refusal


def check_outcome(found: Recipe | Refusal) -> None:
    """A refusal can be sent; what was accepted is written so that it is read the same again."""
    if isinstance(found, Refusal):
        assert found.code == "INVALID_CONTENT"
        assert len(json.dumps(found.body())) <= MAX_BODY_BYTES
    else:
        assert recipe_from_about(found.about()) == found


@given(ANYTHING)
def test_any_values_give_a_recipe_or_a_refusal(value):
    about = value if isinstance(value, dict) else {"parameters": value}
    check_outcome(outcome(lambda: recipe_from_about(about)))


@given(st.binary(max_size=200))
def test_any_bytes_give_a_recipe_or_a_refusal(content):
    check_outcome(outcome(lambda: parse_recipe(content)))


# What it costs to use none of it


def test_the_libraries_that_judge_are_not_imported_before_they_are_needed():
    program = (
        "import sys, trainshed.control.accept, trainshed.cli.program\n"
        "print(sorted({'jsonschema', 'referencing'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
