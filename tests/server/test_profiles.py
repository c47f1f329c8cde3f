"""Job Profiles over HTTP: what is frozen of them, and what a retry finds (E91-E103)."""

from __future__ import annotations

import copy
import hashlib
from pathlib import Path
from typing import Any

import pytest

from support.profiles import (
    ABI,
    DATASET_FILES,
    V1,
    V2,
    World,
    dependency,
    publish_runner,
    published,
    runner_toml,
)
from support.rows import IDS
from support.site import Site, trials
from trainshed.model.content import ContentKind
from trainshed.model.strict_json import canonical_json
from trainshed.store import jobs


def changed(profile: dict[str, Any], *place: str | int, to: Any) -> dict[str, Any]:
    found = at = copy.deepcopy(profile)
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = to
    return found


# What is frozen


def test_E91_a_runner_that_declares_it_gets_a_snapshot_of_v1(world: World):
    trial = world.accepted(world.v1())
    assert trial["profile"] == world.v1()
    assert trial["profile"]["schema"] == V1


@pytest.mark.parametrize("abis", [(V1,), (ABI,), ("something/1", V1)])
def test_E91_v1_is_read_by_runners_of_either_abi(world: World, tmp_path: Path, name: str, abis):
    runner = publish_runner(world.site, tmp_path / "r", name, runner_toml(*abis, entrypoint=None))
    assert world.accepted(world.v1(), runner=runner)["profile"]["schema"] == V1


def test_E98_E103_the_seeds_profile_is_frozen_with_defaults_beside_what_was_given(world: World):
    trial = world.accepted(world.v2())
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
    trial = world.accepted(
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
    trial = world.accepted(world.v2(plugins=[plugin.reference]))
    assert trial["profile"]["parameters"]["optimizer"] == {"name": "adam"}
    world.revoke(plugin)
    assert world.refused(world.v2(plugins=[plugin.reference])) == (403, {"plugins[0]": "ACCESS_DENIED"})
    world.withdraw(world.data)
    status, found = world.refused(world.v2())
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
    trial = world.accepted(world.v1(inputs={"data": {**world.data.reference, **selection}}))
    assert trial["profile"]["inputs"]["data"] == {**world.data.reference, **frozen}


def test_E98_a_split_of_a_dataset_with_one_config_needs_no_config(world: World, name: str):
    files = {"dataset.toml": b'[configs.only.splits]\na = ["*.txt"]\n', "x.txt": b"x"}
    data = published(world.site, ContentKind.DATASETS, name, files)
    trial = world.accepted(world.v1(inputs={"data": {**data.reference, "split": "a"}}))
    assert trial["profile"]["inputs"]["data"]["config"] == "only"
    two = {**files, "dataset.toml": b'[configs.a.splits]\na = ["*"]\n[configs.b.splits]\na = ["*"]\n'}
    data = published(world.site, ContentKind.DATASETS, name, two)
    given = world.v1(inputs={"data": {**data.reference, "split": "a"}})
    assert world.refused(given) == (422, {"inputs.data.config": "INVALID_PROFILE"})
    assert "a, b" in world.message(given)


@pytest.mark.parametrize(
    ("key", "value", "listed"), [("config", "large", "default, small"), ("split", "dev", "test, train")]
)
def test_E95_a_config_or_split_that_is_not_there_is_refused_with_those_there_are(
    world: World, key, value, listed
):
    profile = changed(world.v2(), "inputs", "data", key, to=value)
    assert world.refused(profile) == (422, {f"inputs.data.{key}": "INVALID_PROFILE"})
    assert listed in world.message(profile)


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
    theirs = world.other_projects(ContentKind.DATASETS, name, DATASET_FILES)
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
