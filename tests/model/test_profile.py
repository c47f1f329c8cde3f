"""What a Job Profile may say (E92-E99, E104, A16-A18), rule by rule."""

from __future__ import annotations

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainshed.model.content import ContentKind
from trainshed.model.errors import CODES, FaultList, Refusal
from trainshed.model.profile import (
    MAX_INPUTS,
    MAX_PLUGINS,
    MAX_PROFILE_BYTES,
    PROFILE_V1,
    PROFILE_V2,
    parse_profile,
)
from trainshed.model.strict_json import decode_json

DATA, RECIPE, PLUGIN = "11" * 32, "22" * 32, "33" * 32
PATH = "trials[0].spec.profile"


def v1(**changes):
    return {
        "schema": PROFILE_V1,
        "recipe": {"steps": 1, "lr": "0.001"},
        "inputs": {"data": {"uri": "envloop://datasets/envloop/data@smoke-1", "manifest_sha256": DATA}},
        "plugins": [{"uri": f"envloop://plugins/envloop/tools@{PLUGIN}", "manifest_sha256": PLUGIN}],
        **changes,
    }


def v2(**changes):
    """The document of the seed, with digests."""
    return {
        "schema": PROFILE_V2,
        "recipe": {"uri": f"envloop://recipes/envloop/pev-recipe@{RECIPE}", "manifest_sha256": RECIPE},
        "parameters": {"steps": 1},
        "inputs": {
            "data": {
                "uri": "envloop://datasets/envloop/pev-smoke-data@smoke-1",
                "manifest_sha256": DATA,
                "config": "default",
                "split": "train",
            }
        },
        "plugins": [],
        **changes,
    }


def with_value(document, place, value):
    changed = copy.deepcopy(document)
    at = changed
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = value
    return changed


def without(document, *keys):
    return {key: value for key, value in document.items() if key not in keys}


def faults(document) -> dict[str, str]:
    """Path below the profile -> message, after its code where that is not the usual one."""
    found = FaultList()
    assert parse_profile(document, PATH, found) is None
    assert found.faults
    assert all(fault.path.startswith(PATH) and fault.code in CODES for fault in found.faults)
    Refusal(found.faults).body()
    return {
        fault.path.removeprefix(PATH).removeprefix("."): (
            "" if fault.code == "INVALID_PROFILE" else f"{fault.code}: "
        )
        + fault.message
        for fault in found.faults
    }


def parsed(document):
    found = FaultList()
    profile = parse_profile(document, PATH, found)
    assert found.faults == []
    assert profile is not None
    return profile


def test_A16_a_profile_of_v1_is_read():
    profile = parsed(v1())
    assert profile.schema == PROFILE_V1
    assert profile.recipe is None
    assert profile.parameters == {"steps": 1, "lr": "0.001"}
    assert str(profile.inputs["data"].reference.uri) == "envloop://datasets/envloop/data@smoke-1"
    assert profile.inputs["data"].config is profile.inputs["data"].split is None
    assert [each.manifest_sha256 for each in profile.plugins] == [PLUGIN]


def test_A18_a_digest_may_be_written_with_its_algorithm_and_is_frozen_without():
    recipe = {"uri": f"envloop://recipes/envloop/pev-recipe@sha256:{RECIPE}", "manifest_sha256": RECIPE}
    assert parsed(v2(recipe=recipe)) == parsed(v2())
    plugin = {"uri": f"envloop://plugins/envloop/tools@sha256:{PLUGIN}", "manifest_sha256": PLUGIN}
    assert parsed(v1(plugins=[plugin])) == parsed(v1())
    other = {**recipe, "manifest_sha256": DATA}
    assert list(faults(v2(recipe=other))) == ["recipe.manifest_sha256"]


def test_E98_a_profile_of_v2_keeps_the_recipe_apart_from_its_parameters():
    profile = parsed(v2())
    assert profile.recipe is not None
    assert profile.recipe.document() == v2()["recipe"]
    assert profile.parameters == {"steps": 1}
    assert profile.inputs["data"].config == "default"
    assert profile.inputs["data"].split == "train"


@pytest.mark.parametrize("key", ["recipe", "inputs", "plugins"])
def test_A16_all_four_keys_of_v1_are_required(key):
    assert list(faults(without(v1(), key))) == [key]


@pytest.mark.parametrize("key", ["recipe", "parameters", "inputs", "plugins"])
def test_E98_all_five_keys_of_v2_are_required(key):
    assert "is missing" in faults(without(v2(), key))[key]


@pytest.mark.parametrize("schema", ["", "envloop.job-profile/v3", "v2", 2, None, [], {}])
def test_a_profile_names_its_schema(schema):
    assert list(faults(v2(schema=schema))) == ["schema"]
    assert "missing" in faults(without(v2(), "schema"))["schema"]


def test_parameters_of_v2_are_no_key_of_v1():
    assert "did you mean" not in faults(v1(parameters={}))["parameters"]
    assert list(faults(v1(input={}))) == ["input"]
    assert "did you mean `inputs`?" in faults(v1(input={}))["input"]


# References (E92, E99, E104, A18)


@pytest.mark.parametrize("place", [("inputs", "data"), ("recipe",)])
@pytest.mark.parametrize("digest", ["", "11" * 31, "AB" * 32, f"sha256:{DATA}", None, 5])
def test_E99_every_reference_carries_the_whole_digest(place, digest):
    found = faults(with_value(v2(), (*place, "manifest_sha256"), digest))
    assert list(found) == [".".join((*place, "manifest_sha256"))]
    assert "64 lower-case hex digits" in next(iter(found.values()))


def test_E92_a_reference_without_a_digest_is_refused():
    document = v1(inputs={"data": {"uri": "envloop://datasets/envloop/data@1"}})
    assert "is missing" in faults(document)["inputs.data.manifest_sha256"]


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        (("inputs", "data"), "recipes"),
        (("inputs", "data"), "plugins"),
        (("recipe",), "datasets"),
        (("recipe",), "models"),
        (("plugins", 0), "recipes"),
    ],
)
def test_E104_a_reference_of_the_wrong_kind_is_refused(place, kind):
    plugin = {"uri": f"envloop://plugins/envloop/tools@{PLUGIN}", "manifest_sha256": PLUGIN}
    digest = {"recipe": RECIPE, "plugins": PLUGIN}.get(place[0], DATA)
    changed = with_value(v2(plugins=[plugin]), (*place, "uri"), f"envloop://{kind}/a/b@{digest}")
    changed["inputs"]["data"].pop("config")
    changed["inputs"]["data"].pop("split")
    [(path, message)] = faults(changed).items()
    assert path == ("plugins[0].uri" if place[0] == "plugins" else ".".join((*place, "uri")))
    assert f"names {kind}" in message
    assert "only" in message


def test_a_model_is_an_input_without_configs_and_splits():
    model = {"uri": "envloop://models/envloop/base@1", "manifest_sha256": DATA}
    assert parsed(v2(inputs={"base": model})).inputs["base"].reference.uri.kind is ContentKind.MODELS
    assert list(faults(v2(inputs={"base": {**model, "config": "default"}}))) == ["inputs.base.config"]
    assert list(faults(v2(inputs={"base": {**model, "split": "train"}}))) == ["inputs.base.split"]


@pytest.mark.parametrize("ref", ["1.0", "main", RECIPE[:40]])
def test_A18_the_uri_of_a_recipe_ends_in_its_digest(ref):
    found = faults(with_value(v2(), ("recipe", "uri"), f"envloop://recipes/a/b@{ref}"))
    assert "<manifest_sha256>" in found["recipe.uri"]


@pytest.mark.parametrize(("key", "kind"), [("recipe", "recipes"), ("plugins", "plugins")])
def test_A18_who_leaves_a_uri_out_is_told_the_form_that_is_taken(key, kind):
    reference = {"manifest_sha256": RECIPE}
    [message] = faults(v2(**{key: reference if key == "recipe" else [reference]})).values()
    assert f"write envloop://{kind}/namespace/name@<manifest_sha256>" in message
    reference["uri"] = f"envloop://{kind}/a"
    [message] = faults(v2(**{key: reference if key == "recipe" else [reference]})).values()
    assert message.endswith("name@ref; after its `@` stands the manifest's SHA-256")


def test_A18_the_uri_of_a_plugin_ends_in_its_digest():
    plugin = {"uri": "envloop://plugins/a/b@1.0", "manifest_sha256": PLUGIN}
    assert list(faults(v1(plugins=[plugin]))) == ["plugins[0].uri"]


@pytest.mark.parametrize("place", [("inputs", "data"), ("recipe",)])
def test_A18_a_digest_in_a_uri_is_the_one_beside_it(place):
    kind = "recipes" if place == ("recipe",) else "datasets"
    [(path, message)] = faults(with_value(v2(), (*place, "uri"), f"envloop://{kind}/a/b@{'44' * 32}")).items()
    assert path == ".".join((*place, "manifest_sha256"))
    assert message.startswith("PROFILE_HASH_MISMATCH: ")
    assert "44" * 32 in message


@pytest.mark.parametrize(
    "uri",
    [
        "envloop://datasets/a@1",
        "envloop://datasets/a/b",
        "envloop://data/a/b@1",
        "s3://a/b",
        "",
        "a b",
        7,
        None,
    ],
)
def test_E92_what_is_no_content_uri_is_refused(uri):
    assert list(faults(with_value(v2(), ("inputs", "data", "uri"), uri))) == ["inputs.data.uri"]


# Local paths and providers (E96)


@pytest.mark.parametrize(
    "path",
    [
        "/data/train",
        "./data",
        "../data",
        "data\\train",
        "~/data",
        "~ada/data",
        "file:///data",
        "FILE:data",
        "C:\\data",
        "c:/data",
        "\\\\server\\data",
        ".",
    ],
)
def test_E96_a_local_path_is_refused_as_a_reference(path):
    message = faults(with_value(v2(), ("inputs", "data", "uri"), path))["inputs.data.uri"]
    if path != "data\\train":
        assert "nothing local is read" in message
        assert "trainshed dataset publish" in message
    assert list(faults(v2(inputs={"data": path}))) == ["inputs.data"]


@pytest.mark.parametrize(
    "value",
    [
        "file:///etc/passwd",
        "~/data",
        "/home/ada/data",
        "/root/x",
        "/Users/ada/x",
        "C:\\data",
        "\\\\server\\x",
    ],
)
def test_E96_a_path_of_some_machine_is_refused_as_a_parameter(value):
    assert list(faults(v1(recipe={"a": {"b": [value]}}))) == ["recipe.a.b[0]"]
    assert list(faults(v2(parameters={"a": value}))) == ["parameters.a"]


@pytest.mark.parametrize("value", ["/think", "./configs/a.yaml", "a/b", "~", "http://x/home/", "C:", "1/2"])
def test_a_text_that_may_be_anything_else_stays_a_parameter(value):
    assert parsed(v1(recipe={"a": value})).parameters == {"a": value}


@pytest.mark.parametrize("key", ["provider", "executor", "backend", "Cluster", "region"])
def test_E96_a_provider_choice_is_refused_wherever_it_stands(key):
    assert "platform chooses" in faults(v2(**{key: "x"}))[key]
    for place in (("recipe",), ("inputs", "data")):
        assert "platform chooses" in faults(with_value(v2(), (*place, key), "x"))[".".join((*place, key))]


@pytest.mark.parametrize("key", ["provider", "executor", "backend", "Provider"])
def test_E96_no_parameter_of_v1_chooses_a_provider_at_any_depth(key):
    found = faults(v1(recipe={key: "x", "a": {key: 1}, "b": [{key: []}]}))
    assert set(found) == {f"recipe.{key}", f"recipe.a.{key}", f"recipe.b[0].{key}"}
    assert all("platform chooses" in message for message in found.values())


def test_what_a_parameter_of_v2_is_called_is_for_the_recipes_schema():
    assert parsed(v2(parameters={"backend": "nccl", "path": "a/b"})).parameters["backend"] == "nccl"


@pytest.mark.parametrize("key", ["path", "local_path", "files"])
def test_E96_a_place_for_local_files_is_refused(key):
    assert "nothing local" in faults(with_value(v2(), ("inputs", "data", key), "x"))[f"inputs.data.{key}"]


# Parameters (E93, E97, A17)


@pytest.mark.parametrize("number", ["0.1", "1.0", "1e3", "1E-5", "-0.0"])
def test_E97_a_number_with_a_fraction_is_refused_in_v1(number):
    document = v1(recipe=decode_json(f'{{"lr": {number}, "a": [{{"b": {number}}}]}}'.encode()))
    assert list(faults(document)) == ["recipe.lr", "recipe.a[0].b"]


@pytest.mark.parametrize("number", ["0.1", "1.0", "1e3"])
def test_A17_a_number_with_a_fraction_is_refused_in_v2(number):
    document = v2(parameters=decode_json(f'{{"o": {{"lr": {number}}}}}'.encode()))
    assert list(faults(document)) == ["parameters.o.lr"]


def test_E93_parameters_are_integers_booleans_texts_and_what_holds_them():
    parameters = {"a": 1, "b": True, "c": "0.1", "d": [1, {"e": ["f"]}], "g": {}}
    assert parsed(v1(recipe=parameters)).parameters == parameters
    assert list(faults(v1(recipe={"a": None}))) == ["recipe.a"]
    assert list(faults(v1(recipe=[1]))) == ["recipe"]
    assert list(faults(v2(parameters="x"))) == ["parameters"]


# Plugins and names


def test_a_plugin_is_bound_once():
    plugin = {"uri": f"envloop://plugins/envloop/tools@{PLUGIN}", "manifest_sha256": PLUGIN}
    other = {"uri": f"envloop://plugins/envloop/Tools@{DATA}", "manifest_sha256": DATA}
    assert "same plugin as entry 0" in faults(v1(plugins=[plugin, other]))["plugins[1]"]


@pytest.mark.parametrize("name", ["", "a/b", "..", "1a", "a b", "a" * 65, "ä", "a.b"])
def test_an_inputs_name_is_that_of_a_folder(name):
    assert "is no name of an input" in next(iter(faults(v1(inputs={name: v1()["inputs"]["data"]})).values()))


def test_inputs_that_differ_only_in_case_are_refused():
    entry = v1()["inputs"]["data"]
    assert list(faults(v1(inputs={"data": entry, "Data": entry}))) == ["inputs.Data"]


@pytest.mark.parametrize("value", ["", None, 3, "x" * 129])
@pytest.mark.parametrize("key", ["config", "split"])
def test_config_and_split_are_names(key, value):
    assert list(faults(with_value(v2(), ("inputs", "data", key), value))) == [f"inputs.data.{key}"]


# All at once, and bounds


def test_all_faults_are_answered_at_once_with_their_places():
    document = {
        "schema": PROFILE_V2,
        "recipe": {"uri": "envloop://datasets/a/b@1", "manifest_sha256": "x", "provider": "y"},
        "parameters": {"lr": 0.1},
        "inputs": {"data": {"uri": "/data"}, "1": []},
        "plugins": [{}],
        "env": {},
    }
    assert set(faults(document)) == {
        "env",
        "recipe.uri",
        "recipe.manifest_sha256",
        "recipe.provider",
        "parameters.lr",
        "inputs.data.uri",
        "inputs.data.manifest_sha256",
        "inputs.1",
        "plugins[0].uri",
        "plugins[0].manifest_sha256",
    }


def test_a_profile_is_bounded():
    assert str(MAX_PROFILE_BYTES) in faults(v1(recipe={"a": "x" * MAX_PROFILE_BYTES}))[""]
    entry = v1()["inputs"]["data"]
    assert "at most" in faults(v1(inputs={f"i{n}": entry for n in range(MAX_INPUTS + 1)}))["inputs"]
    assert "at most" in faults(v1(plugins=[{}] * (MAX_PLUGINS + 1)))["plugins"]
    deep: dict = {}
    for _ in range(90):
        deep = {"a": deep}
    assert faults(v1(recipe=deep)) == {
        "recipe.a.a.a.a.…": "`recipe.a.a.a.a.…` is nested deeper than 32 levels"
    }
    long = "x" * 100
    assert list(faults(v1(recipe={long: None}))) == [f"recipe.{long[:80]}…"]


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=6)
    | st.sampled_from(["\ud800", "/x", PROFILE_V1, PROFILE_V2, DATA, f"envloop://recipes/a/b@{DATA}"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["uri", "manifest_sha256", "config", "data", "provider", "path"])
            | st.text(max_size=4),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(st.sampled_from([v1, v2]), st.dictionaries(st.sampled_from(list(v2())), ANYTHING, max_size=3))
def test_any_values_give_a_profile_or_faults_below_its_path(make, changes):
    document = {**make(), **changes}
    found = FaultList()
    profile = parse_profile(document, PATH, found)
    assert (profile is None) == bool(found.faults)
    assert all(fault.path.startswith(PATH) for fault in found.faults)
    if profile is not None:
        assert json.loads(json.dumps(document)) == document
