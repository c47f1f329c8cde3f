"""Job Profiles over HTTP: what is frozen, what is refused and with which code (E91-E104, A16-A18, b13)."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from support.profiles import (
    ABI,
    DATASET_FILES,
    V1,
    V2,
    Published,
    World,
    dependency,
    publish_runner,
    published,
    recipe_files,
    runner_toml,
)
from support.rows import IDS
from support.site import Site, trials
from trainshed.control.profiles import MAX_DEPENDENCIES, MAX_DEPENDENCY_DEPTH, MAX_SNAPSHOT_BYTES
from trainshed.model.content import ContentKind
from trainshed.model.strict_json import canonical_json
from trainshed.store import jobs

NOTHING = "0" * 64
_numbers = count()


@pytest.fixture(scope="module")
def world(module_site: Site, tmp_path_factory: pytest.TempPathFactory) -> World:
    """The seed's example on one site that the tests of this module share; what they change is their own."""
    module_site.add_project("other")
    return World.on(module_site, tmp_path_factory.mktemp("world"))


@pytest.fixture
def name() -> str:
    """A name of this test alone."""
    return f"envloop/c{next(_numbers)}"


def accepted(world: World, profile: Any, **spec: Any) -> dict[str, Any]:
    """Submit one Trial; its view."""
    answer = world.site.post("/v1/jobs", world.submission(profile, IDS.ulid(), **spec))
    assert answer.status_code == 201, answer.text
    return answer.json()["training"]["trials"][0]


def refused(world: World, profile: Any, **spec: Any) -> tuple[int, dict[str, str]]:
    """Submit one Trial that must be refused: the status, and path below the profile -> code."""
    request = IDS.ulid()
    answer = world.site.post("/v1/jobs", world.submission(profile, request, **spec))
    body = answer.json()
    assert not answer.is_success, answer.text
    with world.site.services.database.read() as connection:
        assert jobs.find_by_request(connection, "default", request) is None
    found = {each["path"].removeprefix("spec.profile").lstrip("."): each["code"] for each in body["errors"]}
    assert body["code"] in found.values()
    return answer.status_code, found


def message(world: World, profile: Any, **spec: Any) -> str:
    return world.site.post("/v1/jobs", world.submission(profile, IDS.ulid(), **spec)).json()["message"]


def changed(profile: dict[str, Any], *place: str | int, to: Any) -> dict[str, Any]:
    found = at = copy.deepcopy(profile)
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = to
    return found


# What is frozen


def test_E91_a_runner_that_declares_it_gets_a_snapshot_of_v1(world: World):
    trial = accepted(world, world.v1())
    assert trial["profile"] == world.v1()
    assert trial["profile"]["schema"] == V1


@pytest.mark.parametrize("abis", [(V1,), (ABI,), ("something/1", V1)])
def test_E91_v1_is_read_by_runners_of_either_abi(world: World, tmp_path: Path, name: str, abis):
    runner = publish_runner(world.site, tmp_path / "r", name, runner_toml(*abis, entrypoint=None))
    assert accepted(world, world.v1(), runner=runner)["profile"]["schema"] == V1


def test_E98_E103_the_seeds_profile_is_frozen_with_defaults_beside_what_was_given(world: World):
    trial = accepted(world, world.v2())
    digest = world.recipe.manifest_sha256
    assert trial["profile"] == {
        "schema": V2,
        "recipe": {**world.recipe.reference, "entrypoint": "pev.train:main"},
        "parameters_given": {"steps": 1},
        "parameters": {"steps": 1, "lr": "0.001", "optimizer": {"name": "adam"}},
        "dependencies": {},
        "inputs": {
            "data": {
                "uri": "envloop://datasets/envloop/pev-smoke-data@smoke-1",
                "manifest_sha256": world.data.manifest_sha256,
                "config": "default",
                "split": "train",
                "files": {"train": ["train/**"]},
            }
        },
        "plugins": [],
    }
    assert trial["profile"]["recipe"]["uri"].endswith(f"@{digest}")
    snapshot = world.site.get(f"/v1/trials/{trial['trial_id']}/snapshot").json()
    assert snapshot["profile"] == trial["profile"]
    text = canonical_json(trial["profile"])
    assert trial["profile_sha256"] == snapshot["profile_sha256"] == hashlib.sha256(text.encode()).hexdigest()
    with world.site.services.database.read() as connection:
        [row] = jobs.trials_of(connection, [trial["job_id"]])[trial["job_id"]]
    assert row.profile == text


def test_E95_everything_that_a_profile_names_is_held_for_its_trial(world: World, name: str):
    other = world.new_recipe(f"{name}-dep", version="1")
    recipe = world.new_recipe(name, dependency("common", other.uri, other.manifest_sha256))
    plugin = world.new_plugin(f"{name}-plugin")
    trial = accepted(
        world,
        world.v2(
            recipe=recipe.reference,
            inputs={"data": world.data.reference, "base": world.model.reference},
            plugins=[plugin.reference],
        ),
    )
    with world.site.services.database.read() as connection:
        rows = jobs.contents_of(connection, [trial["trial_id"]])[trial["trial_id"]]
    assert {row.role: (row.kind, row.name, row.version, row.manifest_sha256) for row in rows} == {
        role: (each.kind, each.name, each.version, each.manifest_sha256)
        for role, each in {
            "recipe": recipe,
            "dependency:common": other,
            "input:data": world.data,
            "input:base": world.model,
            f"plugin:{plugin.name}": plugin,
        }.items()
    }
    assert trial["profile"]["plugins"] == [{**plugin.reference, "name": plugin.name}]
    assert trial["profile"]["dependencies"] == {
        "common": {"uri": other.uri, "manifest_sha256": other.manifest_sha256}
    }
    assert trial["profile"]["inputs"]["base"] == world.model.reference


def test_the_same_profile_is_frozen_on_every_kind_of_database(site: Site, tmp_path: Path):
    world = World.on(site, tmp_path)
    plugin = world.new_plugin("envloop/tools")
    trial = accepted(world, world.v2(plugins=[plugin.reference]))
    assert trial["profile"]["parameters"]["optimizer"] == {"name": "adam"}
    world.revoke(plugin)
    assert refused(world, world.v2(plugins=[plugin.reference])) == (403, {"plugins[0]": "ACCESS_DENIED"})
    world.withdraw(world.data)
    status, found = refused(world, world.v2())
    assert (status, found) == (409, {"inputs.data.uri": "PROFILE_ARCHIVED"})
    assert trials(site, trial["job_id"])[0].profile == canonical_json(trial["profile"])


@pytest.mark.parametrize(
    ("selection", "frozen"),
    [
        ({}, {}),
        ({"config": "default"}, {"config": "default", "files": {"train": ["train/**"], "test": ["test/**"]}}),
        ({"config": "small"}, {"config": "small", "files": {"train": ["train/0*"]}}),
        ({"split": "test"}, {"config": "default", "split": "test", "files": {"test": ["test/**"]}}),
    ],
)
def test_E98_config_and_split_choose_files_of_a_dataset(world: World, selection, frozen):
    trial = accepted(world, world.v1(inputs={"data": {**world.data.reference, **selection}}))
    assert trial["profile"]["inputs"]["data"] == {**world.data.reference, **frozen}


def test_E98_a_split_of_a_dataset_with_one_config_needs_no_config(world: World, name: str):
    files = {"dataset.toml": b'[configs.only.splits]\na = ["*.txt"]\n', "x.txt": b"x"}
    data = published(world.site, ContentKind.DATASETS, name, files)
    trial = accepted(world, world.v1(inputs={"data": {**data.reference, "split": "a"}}))
    assert trial["profile"]["inputs"]["data"]["config"] == "only"
    two = {**files, "dataset.toml": b'[configs.a.splits]\na = ["*"]\n[configs.b.splits]\na = ["*"]\n'}
    data = published(world.site, ContentKind.DATASETS, name, two)
    given = world.v1(inputs={"data": {**data.reference, "split": "a"}})
    assert refused(world, given) == (422, {"inputs.data.config": "INVALID_PROFILE"})
    assert "a, b" in message(world, given)


@pytest.mark.parametrize(
    ("key", "value", "listed"), [("config", "large", "default, small"), ("split", "dev", "test, train")]
)
def test_E95_a_config_or_split_that_is_not_there_is_refused_with_those_there_are(
    world: World, key, value, listed
):
    profile = changed(world.v2(), "inputs", "data", key, to=value)
    assert refused(world, profile) == (422, {f"inputs.data.{key}": "INVALID_PROFILE"})
    assert listed in message(world, profile)


def test_E93_E103_trials_of_one_job_have_profiles_of_their_own(world: World):
    document = {
        "type": "train",
        "request_id": IDS.ulid(),
        "trials": [{"spec": world.submission(world.v2(parameters={"steps": n}))["spec"]} for n in (1, 2)],
    }
    answer = world.site.post("/v1/jobs", document).json()
    assert [t["profile"]["parameters"]["steps"] for t in answer["training"]["trials"]] == [1, 2]
    document = {**document, "request_id": IDS.ulid()}
    document["trials"][1]["spec"]["profile"]["parameters"] = {"steps": 0}
    errors = world.site.post("/v1/jobs", document).json()["errors"]
    assert [each["path"] for each in errors] == ["trials[1].spec.profile.parameters.steps"]


# Which Runner (A1, E100)


@pytest.mark.parametrize("make", ["v1", "v2"])
def test_A1_a_runner_without_the_abi_takes_no_profile(world: World, make: str):
    profile = getattr(world, make)()
    assert refused(world, profile, runner="envloop/bash@main") == (422, {"": "PROFILE_RUNNER_UNSUPPORTED"})
    said = message(world, profile, runner="envloop/bash@main")
    assert profile["schema"] in said
    assert ABI in said
    assert "declares none" in said


def test_E100_a_runner_of_v1_alone_takes_no_v2(world: World, tmp_path: Path, name: str):
    runner = publish_runner(world.site, tmp_path / "r", name, runner_toml(V1))
    assert refused(world, world.v2(), runner=runner) == (422, {"": "PROFILE_RUNNER_UNSUPPORTED"})
    assert V1 in message(world, world.v2(), runner=runner)


@pytest.mark.parametrize("entrypoint", [None, "pev.train:other"])
def test_E100_the_runner_declares_the_recipes_entrypoint(world: World, tmp_path: Path, name: str, entrypoint):
    runner = publish_runner(world.site, tmp_path / "r", name, runner_toml(ABI, entrypoint=entrypoint))
    assert refused(world, world.v2(), runner=runner) == (422, {"recipe": "PROFILE_RUNNER_UNSUPPORTED"})
    said = message(world, world.v2(), runner=runner)
    assert "pev.train:main" in said
    assert entrypoint is None or entrypoint in said


def test_E7_what_a_runner_reads_and_runs_is_listed(world: World):
    item = world.site.get("/v1/runners/envloop/trainer").json()
    assert item["abi"] == [ABI, V1]
    assert item["recipe_entrypoint"] == "pev.train:main"


# Permission, digests, withdrawal (E92, E94, E95, E99, E102)


def of_another_project(world: World, kind: ContentKind, name: str, files: dict[str, bytes]) -> Published:
    return published(
        world.site,
        kind,
        name.replace("envloop", "theirs"),
        files,
        key=world.site.add_key("other"),
        version="1",
    )


def test_E92_what_the_project_may_not_read_is_as_if_it_were_not_there(world: World, name: str):
    theirs = of_another_project(world, ContentKind.DATASETS, name, DATASET_FILES)
    unknown = {"uri": "envloop://datasets/theirs/nothing@1", "manifest_sha256": NOTHING}
    answers = []
    for reference in (theirs.reference, {**theirs.reference, "manifest_sha256": NOTHING}, unknown):
        profile = world.v1(inputs={"data": reference})
        assert refused(world, profile) == (403, {"inputs.data.uri": "ACCESS_DENIED"})
        answers.append(message(world, profile).replace(reference["uri"], "URI"))
    assert len(set(answers)) == 1
    world.hide(theirs, "default")
    assert accepted(world, world.v1(inputs={"data": theirs.reference}))


def test_E92_a_version_that_does_not_exist_is_denied_like_any_other(world: World):
    reference = {**world.data.reference, "uri": "envloop://datasets/envloop/pev-smoke-data@smoke-2"}
    assert refused(world, world.v1(inputs={"data": reference})) == (403, {"inputs.data.uri": "ACCESS_DENIED"})


def test_E102_a_recipe_that_may_not_be_read_is_denied(world: World, name: str):
    theirs = of_another_project(world, ContentKind.RECIPES, name, recipe_files())
    assert refused(world, world.v2(recipe=theirs.reference)) == (403, {"recipe.uri": "ACCESS_DENIED"})


@pytest.mark.parametrize("part", ["recipe", "data", "plugin"])
def test_E99_another_digest_than_the_published_one_is_refused(world: World, name: str, part: str):
    plugin = world.new_plugin(name)
    profile = world.v2(plugins=[plugin.reference])
    place = {"recipe": ("recipe",), "data": ("inputs", "data"), "plugin": ("plugins", 0)}[part]
    given = changed(profile, *place, "manifest_sha256", to=NOTHING)
    shown = {"recipe": "recipe", "data": "inputs.data", "plugin": "plugins[0]"}[part]
    assert refused(world, given) == (409, {f"{shown}.manifest_sha256": "PROFILE_HASH_MISMATCH"})


def test_a_digest_of_another_version_of_the_same_dataset_is_refused(world: World, name: str):
    one = published(world.site, ContentKind.DATASETS, name, {"a.txt": b"1"}, version="1")
    two = published(world.site, ContentKind.DATASETS, name, {"a.txt": b"2"}, version="2")
    mixed = {"uri": one.uri, "manifest_sha256": two.manifest_sha256}
    profile = world.v1(inputs={"data": mixed})
    assert refused(world, profile) == (409, {"inputs.data.manifest_sha256": "PROFILE_HASH_MISMATCH"})
    assert one.manifest_sha256 in message(world, profile)


@pytest.mark.parametrize("kind", list(ContentKind))
def test_b13_withdrawn_content_is_archived(world: World, name: str, kind: ContentKind):
    files = recipe_files() if kind is ContentKind.RECIPES else {"a.txt": name.encode()}
    content = published(world.site, kind, name, files, version="1")
    if kind is ContentKind.PLUGINS:
        world.approve(content)
    profile = {
        ContentKind.DATASETS: world.v1(inputs={"data": content.reference}),
        ContentKind.MODELS: world.v1(inputs={"data": content.reference}),
        ContentKind.RECIPES: world.v2(recipe=content.reference),
        ContentKind.PLUGINS: world.v1(plugins=[content.reference]),
    }[kind]
    accepted(world, profile)
    world.withdraw(content)
    status, found = refused(world, profile)
    assert status == 409
    assert list(found.values()) == ["PROFILE_ARCHIVED"]


def test_E94_only_approved_plugins_are_bound(world: World, name: str):
    plugin = world.new_plugin(name, approved=False)
    profile = world.v1(plugins=[plugin.reference])
    assert refused(world, profile) == (403, {"plugins[0]": "ACCESS_DENIED"})
    assert "not approved" in message(world, profile)
    world.approve(plugin)
    assert accepted(world, profile)["profile"]["plugins"] == [{**plugin.reference, "name": name}]
    world.revoke(plugin)
    assert refused(world, profile) == (403, {"plugins[0]": "ACCESS_DENIED"})
    assert "any more" in message(world, profile)


def test_E94_an_approval_is_of_one_digest_and_one_name(world: World, name: str):
    world.new_plugin(name, "1")
    changed_package = world.new_plugin(name, "2", approved=False)
    assert refused(world, world.v1(plugins=[changed_package.reference]))[1] == {"plugins[0]": "ACCESS_DENIED"}
    files = {"plugin.py": b"# the same bytes\n"}
    mine = published(world.site, ContentKind.PLUGINS, f"{name}-a", files)
    copy_of_it = published(world.site, ContentKind.PLUGINS, f"{name}-b", files)
    world.approve(mine)
    assert accepted(world, world.v1(plugins=[mine.reference]))
    assert refused(world, world.v1(plugins=[copy_of_it.reference]))[1] == {"plugins[0]": "ACCESS_DENIED"}


def test_E95_a_manifest_that_the_storage_damaged_is_found_before_anything_is_allocated(
    make_site: Callable[..., Site], tmp_path: Path
):
    world = World.on(make_site(), tmp_path)
    blob = world.site.services.blobs.path(world.data.manifest_sha256)
    whole = blob.read_bytes()
    blob.chmod(0o600)
    blob.write_bytes(whole[:-1] + b" ")
    assert refused(world, world.v2()) == (409, {"": "PROFILE_HASH_MISMATCH"})
    assert "administrator" in message(world, world.v2())
    blob.unlink()
    assert refused(world, world.v2()) == (409, {"": "PROFILE_HASH_MISMATCH"})
    blob.write_bytes(whole)
    accepted(world, world.v2())


def test_E95_nothing_is_frozen_of_a_refused_profile(world: World):
    before = world.site.services.database
    with before.read() as connection:
        held = len(jobs.contents_of(connection, [row["trial_id"] for row in all_trials(world)]))
    refused(world, world.v2(parameters={}))
    with before.read() as connection:
        assert len(jobs.contents_of(connection, [row["trial_id"] for row in all_trials(world)])) == held


def all_trials(world: World) -> list[dict[str, Any]]:
    return world.site.get("/v1/trials?limit=100").json()["items"]


# Local paths and providers (E96, E104)


def test_E96_a_local_path_and_a_provider_are_refused_with_their_places(world: World):
    profile = changed(world.v2(provider="aws"), "inputs", "data", "uri", to="/data/train")
    assert refused(world, profile) == (
        422,
        {"provider": "INVALID_PROFILE", "inputs.data.uri": "INVALID_PROFILE"},
    )


def test_E104_a_reference_of_the_wrong_kind_is_refused(world: World):
    swapped = world.v2(recipe=world.data.reference, inputs={"data": world.recipe.reference})
    assert refused(world, swapped) == (
        422,
        {"recipe.uri": "INVALID_PROFILE", "inputs.data.uri": "INVALID_PROFILE"},
    )


@pytest.mark.parametrize("number", ["0.1", "1.0", "1e3"])
@pytest.mark.parametrize("make", ["v1", "v2"])
def test_E97_A17_a_number_with_a_fraction_is_refused(world: World, make: str, number: str):
    key = "recipe" if make == "v1" else "parameters"
    text = json.dumps(world.submission({**getattr(world, make)(), key: {"steps": "NUMBER"}}, IDS.ulid()))
    answer = world.site.post("/v1/jobs", text.replace('"NUMBER"', number).encode())
    assert (answer.status_code, answer.json()["code"]) == (422, "INVALID_PROFILE")
    assert [each["path"] for each in answer.json()["errors"]] == [f"spec.profile.{key}.steps"]


# The Recipe's parameters, inputs and dependencies (E101-E103)


@pytest.mark.parametrize(
    ("parameters", "places"),
    [
        ({}, ["parameters"]),
        ({"steps": 0}, ["parameters.steps"]),
        ({"steps": "1"}, ["parameters.steps"]),
        ({"steps": 1, "lr": "fast"}, ["parameters.lr"]),
        ({"steps": 1, "optimizer": {"name": 1}}, ["parameters.optimizer.name"]),
        ({"stepz": 1, "steps": True}, ["parameters", "parameters.steps"]),
    ],
)
def test_E101_parameters_are_judged_by_the_recipes_schema(world: World, parameters, places):
    status, found = refused(world, world.v2(parameters=parameters))
    assert status == 422
    assert sorted(found) == places
    assert set(found.values()) == {"INVALID_PROFILE"}


def test_E101_a_recipe_says_which_inputs_it_takes(world: World, name: str):
    recipe = world.new_recipe(
        name,
        '[inputs.data]\nkind = "dataset"\n[inputs.base]\nkind = "model"\nrequired = false\n',
    ).reference
    data, model = world.data.reference, world.model.reference
    accepted(world, world.v2(recipe=recipe, inputs={"data": data}))
    accepted(world, world.v2(recipe=recipe, inputs={"data": data, "base": model}))
    for inputs, places in [
        ({}, {"inputs.data"}),
        ({"data": model}, {"inputs.data"}),
        ({"data": data, "base": data}, {"inputs.base"}),
        ({"data": data, "dta": data}, {"inputs.dta"}),
        ({"dta": data}, {"inputs.data", "inputs.dta"}),
    ]:
        status, found = refused(world, world.v2(recipe=recipe, inputs=inputs))
        assert (status, set(found)) == (422, places)
    assert "base, data" in message(world, world.v2(recipe=recipe, inputs={"data": data, "x": data}))


def test_E102_every_dependency_is_checked_and_frozen_those_of_dependencies_too(world: World, name: str):
    last = world.new_recipe(f"{name}-2", version="1")
    middle = world.new_recipe(f"{name}-1", dependency("last", last.uri, last.manifest_sha256), version="1")
    recipe = world.new_recipe(
        name,
        dependency("middle", middle.uri, middle.manifest_sha256),
        dependency("last", last.uri, last.manifest_sha256),
    )
    profile = world.v2(recipe=recipe.reference)
    assert set(accepted(world, profile)["profile"]["dependencies"]) == {"middle", "middle.last", "last"}
    world.withdraw(last)
    assert refused(world, profile) == (409, {"recipe": "PROFILE_ARCHIVED"})
    assert "`middle.last`" in message(world, profile) or "`last`" in message(world, profile)


def test_E102_a_dependency_that_may_not_be_read_is_denied(world: World, name: str):
    theirs = of_another_project(world, ContentKind.RECIPES, name, recipe_files())
    world.hide(theirs, "default")
    recipe = world.new_recipe(name, dependency("common", theirs.uri, theirs.manifest_sha256))
    profile = world.v2(recipe=recipe.reference)
    accepted(world, profile)
    world.hide(theirs)
    assert refused(world, profile) == (403, {"recipe": "ACCESS_DENIED"})
    assert "`common`" in message(world, profile)


def test_E102_dependencies_are_bounded_in_depth_and_number(world: World, name: str):
    below = world.new_recipe(f"{name}-0", version="1")
    for level in range(1, MAX_DEPENDENCY_DEPTH + 2):
        below = world.new_recipe(
            f"{name}-{level}", dependency("next", below.uri, below.manifest_sha256), version="1"
        )
    profile = world.v2(recipe=below.reference)
    assert refused(world, profile) == (422, {"recipe": "INVALID_PROFILE"})
    assert f"{MAX_DEPENDENCY_DEPTH} levels" in message(world, profile)
    leaf = world.new_recipe(f"{name}-leaf", version="1")
    many = [dependency(f"d{n}", leaf.uri, leaf.manifest_sha256) for n in range(32)]
    wide = world.new_recipe(f"{name}-wide", *many, version="1")
    twice = [dependency(f"w{n}", wide.uri, wide.manifest_sha256) for n in range(2)]
    profile = world.v2(recipe=world.new_recipe(name, *twice).reference)
    status, found = refused(world, profile)
    assert (status, found) == (422, {"recipe": "INVALID_PROFILE"})
    assert str(MAX_DEPENDENCIES) in message(world, profile)


def test_a_snapshot_is_bounded(world: World, name: str):
    lines = "".join(
        "[configs.c.splits]\n" if not n else f's{n} = ["{"x" * 200}{n}", "*"]\n' for n in range(900)
    )
    data = published(
        world.site,
        ContentKind.DATASETS,
        name,
        {"dataset.toml": lines.encode()[:60_000].rpartition(b"\n")[0], "a": b"a"},
    )
    inputs = {f"i{n}": {**data.reference, "config": "c"} for n in range(8)}
    assert refused(world, world.v1(inputs=inputs)) == (422, {"": "INVALID_PROFILE"})
    assert str(MAX_SNAPSHOT_BYTES) in message(world, world.v1(inputs=inputs))
    one = {"i": {**data.reference, "config": "c", "split": "s1"}}
    assert len(accepted(world, world.v1(inputs=one))["profile"]["inputs"]["i"]["files"]) == 1


def test_all_faults_of_a_profile_are_answered_at_once(world: World, name: str):
    plugin = world.new_plugin(name, approved=False)
    profile = world.v2(
        parameters={"steps": 0},
        inputs={
            "data": {**world.data.reference, "config": "x"},
            "none": {"uri": "envloop://models/a/b@1", "manifest_sha256": NOTHING},
        },
        plugins=[plugin.reference],
    )
    status, found = refused(world, profile, resources={"gpu_type": "H100", "gpus": 1000})
    assert status == 403
    assert found == {
        "parameters.steps": "INVALID_PROFILE",
        "inputs.data.config": "INVALID_PROFILE",
        "inputs.none.uri": "ACCESS_DENIED",
        "plugins[0]": "ACCESS_DENIED",
        "spec.resources.gpus": "UNSUPPORTED_HARDWARE",
    }


# Retries (E24, E28, E31, A2)


def test_E24_E28_a_retry_finds_its_job_and_a_changed_profile_conflicts(world: World):
    document = world.submission(world.v2(), IDS.ulid())
    first = world.site.post("/v1/jobs", document)
    again = world.site.post("/v1/jobs", document)
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json()["job_id"] == first.json()["job_id"]
    document["spec"]["profile"]["parameters"] = {"steps": 2}
    answer = world.site.post("/v1/jobs", document)
    assert (answer.status_code, answer.json()["code"]) == (409, "JOB_REQUEST_CONFLICT")
    assert [each["path"] for each in answer.json()["errors"]] == ["trials[0].spec.profile.parameters.steps"]
    document["spec"]["profile"]["parameters"] = {"steps": 1, "lr": "0.001"}
    assert world.site.post("/v1/jobs", document).status_code == 409  # writing out a default is other input


def test_E31_a_frozen_profile_does_not_change_with_what_is_published_later(world: World, name: str):
    data = published(world.site, ContentKind.DATASETS, name, DATASET_FILES, version="1")
    document = world.submission(world.v1(inputs={"data": data.reference}), IDS.ulid())
    first = world.site.post("/v1/jobs", document).json()["training"]["trials"][0]
    published(world.site, ContentKind.DATASETS, name, {"a": b"b"}, version="2")
    again = world.site.post("/v1/jobs", document)
    assert again.status_code == 200
    assert again.json()["training"]["trials"][0]["profile"] == first["profile"]


def test_A2_a_retry_is_refused_when_access_to_its_content_was_revoked(world: World, name: str):
    theirs = of_another_project(world, ContentKind.DATASETS, name, DATASET_FILES)
    world.hide(theirs, "default")
    document = world.submission(world.v1(inputs={"data": theirs.reference}), IDS.ulid())
    job = world.site.post("/v1/jobs", document).json()
    world.hide(theirs)
    answer = world.site.post("/v1/jobs", document)
    assert (answer.status_code, answer.json()["code"]) == (403, "ACCESS_DENIED")
    assert world.site.get(f"/v1/jobs/{job['job_id']}").json()["training"]["trials"][0]["profile"]
    world.hide(theirs, "default")
    assert world.site.post("/v1/jobs", document).json()["job_id"] == job["job_id"]


def test_A2_a_retry_is_refused_when_its_content_was_withdrawn_or_its_plugin_revoked(world: World, name: str):
    plugin = world.new_plugin(name)
    document = world.submission(world.v1(plugins=[plugin.reference]), IDS.ulid())
    assert world.site.post("/v1/jobs", document).status_code == 201
    world.revoke(plugin)
    assert world.site.post("/v1/jobs", document).json()["code"] == "ACCESS_DENIED"
    world.approve(plugin)
    assert world.site.post("/v1/jobs", document).status_code == 200
    world.withdraw(plugin)
    answer = world.site.post("/v1/jobs", document).json()
    assert (answer["code"], answer["errors"][0]["path"]) == ("ACCESS_DENIED", "trials[0].spec.profile")
