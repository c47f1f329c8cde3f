"""Job Profiles over HTTP: what is refused, where it stands and with which code (E92-E104, b13)."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from support.profiles import (
    ABI,
    DATASET_FILES,
    V1,
    World,
    dependency,
    publish_runner,
    published,
    recipe_files,
    runner_toml,
)
from support.rows import IDS
from support.site import Site
from trainshed.control import profiles
from trainshed.control.profiles import MAX_DEPENDENCIES, MAX_DEPENDENCY_DEPTH, MAX_SNAPSHOT_BYTES
from trainshed.model.content import ContentKind, parse_content_uri
from trainshed.model.errors import Refusal
from trainshed.model.json_schema import MAX_STEPS, MAX_TOTAL_STEPS
from trainshed.store import contents, jobs
from trainshed.store.tables import content_versions

NOTHING = "0" * 64


def changed(profile: dict[str, Any], *place: str | int, to: Any) -> dict[str, Any]:
    found = at = copy.deepcopy(profile)
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = to
    return found


# Which Runner (A1, E100)


@pytest.mark.parametrize("make", ["v1", "v2"])
def test_A1_a_runner_without_the_abi_takes_no_profile(world: World, make: str):
    profile = getattr(world, make)()
    assert world.refused(profile, runner="envloop/bash@main") == (422, {"": "PROFILE_RUNNER_UNSUPPORTED"})
    said = world.message(profile, runner="envloop/bash@main")
    assert profile["schema"] in said
    assert ABI in said
    assert "declares none" in said


def test_E100_a_runner_of_v1_alone_takes_no_v2(world: World, tmp_path: Path, name: str):
    runner = publish_runner(world.site, tmp_path / "r", name, runner_toml(V1))
    assert world.refused(world.v2(), runner=runner) == (422, {"": "PROFILE_RUNNER_UNSUPPORTED"})
    assert V1 in world.message(world.v2(), runner=runner)


@pytest.mark.parametrize("entrypoint", [None, "pev.train:other"])
def test_E100_the_runner_declares_the_recipes_entrypoint(world: World, tmp_path: Path, name: str, entrypoint):
    runner = publish_runner(world.site, tmp_path / "r", name, runner_toml(ABI, entrypoint=entrypoint))
    assert world.refused(world.v2(), runner=runner) == (422, {"recipe": "PROFILE_RUNNER_UNSUPPORTED"})
    said = world.message(world.v2(), runner=runner)
    assert "pev.train:main" in said
    assert entrypoint is None or entrypoint in said


def test_E7_what_a_runner_reads_and_runs_is_listed(world: World):
    item = world.site.get("/v1/runners/envloop/trainer").json()
    assert item["abi"] == [ABI, V1]
    assert item["recipe_entrypoint"] == "pev.train:main"


# Permission, digests, withdrawal (E92, E94, E95, E99, E102)


def test_E92_what_the_project_may_not_read_is_as_if_it_were_not_there(world: World, name: str):
    theirs = world.other_projects(ContentKind.DATASETS, name, DATASET_FILES)
    unknown = {"uri": "envloop://datasets/theirs/nothing@1", "manifest_sha256": NOTHING}
    answers = []
    for reference in (theirs.reference, {**theirs.reference, "manifest_sha256": NOTHING}, unknown):
        profile = world.v1(inputs={"data": reference})
        assert world.refused(profile) == (403, {"inputs.data.uri": "ACCESS_DENIED"})
        body = world.site.post("/v1/jobs", world.submission(profile, IDS.ulid())).json()
        del body["request_id"]
        answers.append(json.dumps(body).replace(reference["uri"], "URI"))
    assert len(set(answers)) == 1
    world.hide(theirs, "default")
    assert world.accepted(world.v1(inputs={"data": theirs.reference}))


def test_E92_a_version_of_a_readable_content_that_does_not_exist_is_a_fault_of_the_profile(world: World):
    reference = {**world.data.reference, "uri": "envloop://datasets/envloop/pev-smoke-data@smoke-2"}
    assert world.refused(world.v1(inputs={"data": reference})) == (
        422,
        {"inputs.data.uri": "INVALID_PROFILE"},
    )


def test_E102_a_recipe_that_may_not_be_read_is_denied(world: World, name: str):
    theirs = world.other_projects(ContentKind.RECIPES, name, recipe_files())
    assert world.refused(world.v2(recipe=theirs.reference)) == (403, {"recipe.uri": "ACCESS_DENIED"})


@pytest.mark.parametrize("part", ["recipe", "data", "plugin"])
def test_E99_another_digest_than_the_published_one_is_refused(world: World, name: str, part: str):
    plugin = world.new_plugin(name)
    profile = world.v2(plugins=[plugin.reference])
    place = {"recipe": ("recipe",), "data": ("inputs", "data"), "plugin": ("plugins", 0)}[part]
    given = changed(profile, *place, "manifest_sha256", to=NOTHING)
    shown = {"recipe": "recipe", "data": "inputs.data", "plugin": "plugins[0]"}[part]
    assert world.refused(given) == (409, {f"{shown}.manifest_sha256": "PROFILE_HASH_MISMATCH"})


def test_a_digest_of_another_version_of_the_same_dataset_is_refused(world: World, name: str):
    one = published(world.site, ContentKind.DATASETS, name, {"a.txt": b"1"}, version="1")
    two = published(world.site, ContentKind.DATASETS, name, {"a.txt": b"2"}, version="2")
    mixed = {"uri": one.uri, "manifest_sha256": two.manifest_sha256}
    profile = world.v1(inputs={"data": mixed})
    assert world.refused(profile) == (409, {"inputs.data.manifest_sha256": "PROFILE_HASH_MISMATCH"})
    assert one.manifest_sha256 in world.message(profile)


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
    world.accepted(profile)
    world.withdraw(content)
    status, found = world.refused(profile)
    assert status == 409
    assert list(found.values()) == ["PROFILE_ARCHIVED"]


def test_E94_only_approved_plugins_are_bound(world: World, name: str):
    plugin = world.new_plugin(name, approved=False)
    profile = world.v1(plugins=[plugin.reference])
    assert world.refused(profile) == (403, {"plugins[0]": "ACCESS_DENIED"})
    assert "not approved" in world.message(profile)
    world.approve(plugin)
    assert world.accepted(profile)["profile"]["plugins"] == [{**plugin.reference, "name": name}]
    world.revoke(plugin)
    assert world.refused(profile) == (403, {"plugins[0]": "ACCESS_DENIED"})
    assert "any more" in world.message(profile)


def test_E94_an_approval_is_of_one_digest_and_one_name(world: World, name: str):
    world.new_plugin(name, "1")
    changed_package = world.new_plugin(name, "2", approved=False)
    assert world.refused(world.v1(plugins=[changed_package.reference]))[1] == {"plugins[0]": "ACCESS_DENIED"}
    files = {"plugin.py": b"# the same bytes\n"}
    mine = published(world.site, ContentKind.PLUGINS, f"{name}-a", files)
    copy_of_it = published(world.site, ContentKind.PLUGINS, f"{name}-b", files)
    world.approve(mine)
    assert world.accepted(world.v1(plugins=[mine.reference]))
    assert world.refused(world.v1(plugins=[copy_of_it.reference]))[1] == {"plugins[0]": "ACCESS_DENIED"}
    world.approve(copy_of_it)
    assert world.site.get(copy_of_it.path).json()["approval"]["name"] == copy_of_it.name
    assert world.accepted(world.v1(plugins=[copy_of_it.reference]))
    world.revoke(mine)
    assert world.refused(world.v1(plugins=[mine.reference]))[1] == {"plugins[0]": "ACCESS_DENIED"}
    assert world.accepted(world.v1(plugins=[copy_of_it.reference]))
    assert world.site.get(copy_of_it.path).json()["approval"]["approved"] is True


def test_E94_approvals_of_what_a_project_may_not_read_are_not_shown_to_it(world: World, name: str):
    files = {"plugin.py": b"# hidden and shown\n"}
    hidden = published(world.site, ContentKind.PLUGINS, f"{name}-a", files)
    shown = published(world.site, ContentKind.PLUGINS, f"{name}-b", files)
    for each in (hidden, shown):
        world.approve(each)
    world.hide(hidden)
    world.hide(shown, "other")

    def listed(key: str | None = None) -> set[str]:
        answer = world.site.request("GET", "/v1/content/plugins/approvals", key=key).json()
        return {each["name"] for each in answer["items"]} & {hidden.name, shown.name}

    assert listed() == {hidden.name, shown.name}
    assert listed(world.site.add_key("other")) == {shown.name}


def doubling(levels: int) -> str:
    """A part of ``recipe.toml``: a parameter ``tree`` whose check doubles its work at every level."""
    each = ['l0 = {type = "integer"}']
    each += [
        f'l{n} = {{anyOf = [{{"$ref" = "#/$defs/l{n - 1}"}}, {{"$ref" = "#/$defs/l{n - 1}"}}]}}'
        for n in range(1, levels + 1)
    ]
    last = f'[parameters.properties]\ntree = {{"$ref" = "#/$defs/l{levels}"}}\n'
    return '[parameters]\ntype = "object"\n' + last + '[parameters."$defs"]\n' + "\n".join(each)


def costly(world: World, name: str, levels: int) -> dict[str, Any]:
    """A profile of a Recipe with such a schema."""
    text = f'abi = "{ABI}"\nentrypoint = "pev.train:main"\n{doubling(levels)}\n'
    files = {"recipe.toml": text.encode(), "pev/train.py": b"def main():\n    pass\n"}
    recipe = published(world.site, ContentKind.RECIPES, name, files)
    return world.v2(recipe=recipe.reference, parameters={"tree": "x"})


def test_E101_a_check_that_costs_too_much_is_refused_within_its_budget(world: World, name: str):
    profile = costly(world, name, 39)
    assert world.refused(profile) == (422, {"parameters": "INVALID_PROFILE"})
    assert f"{MAX_STEPS} steps" in world.message(profile)


def test_E101_the_trials_of_a_submission_share_one_budget(world: World, name: str):
    profile = costly(world, name, 8)
    body = world.submission(profile, IDS.ulid())
    trial = {"name": "t", "spec": body.pop("spec")}
    body["trials"] = [
        {"name": f"t{n}", "spec": changed(trial["spec"], "profile", "parameters", to={"tree": f"x{n}"})}
        for n in range(16)
    ]
    said = [each["message"] for each in world.site.post("/v1/jobs", body).json()["errors"]]
    assert "anyOf" in said[0]
    assert f"{MAX_TOTAL_STEPS} steps" in said[-1]


def test_equal_parameters_are_checked_once_a_submission(world: World, monkeypatch: pytest.MonkeyPatch):
    checks = []
    real = profiles.apply_schema
    monkeypatch.setattr(profiles, "apply_schema", lambda *given: checks.append(given) or real(*given))
    body = world.submission(world.v2(), IDS.ulid())
    trial = {"name": "t", "spec": body.pop("spec")}
    other = changed(trial["spec"], "profile", "parameters", "steps", to=2)
    body["trials"] = [{"name": f"t{n}", "spec": other if n == 3 else trial["spec"]} for n in range(5)]
    answer = world.site.post("/v1/jobs", body)
    assert answer.status_code == 201, answer.text
    frozen = [each["profile"]["parameters"]["steps"] for each in answer.json()["training"]["trials"]]
    assert frozen == [1, 1, 1, 2, 1]
    assert len(checks) == 2


def test_a_submission_whose_check_finds_too_many_waiting_is_told_to_come_again(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(profiles, "MAX_WAITING_CHECKS", 1)
    gate = profiles.CheckGate()
    monkeypatch.setattr(world.site.services.accept.__self__._profiles, "_gate", gate)
    with gate.turn():
        answer = world.site.post("/v1/jobs", world.submission(world.v2(), IDS.ulid()))
    assert (answer.status_code, answer.json()["code"]) == (429, "RATE_LIMITED")
    assert answer.headers["retry-after"] == "1"
    assert world.accepted(world.v2())


def test_E95_a_manifest_that_the_storage_damaged_is_found_before_anything_is_allocated(
    make_site: Callable[..., Site], tmp_path: Path
):
    world = World.on(make_site(), tmp_path)
    plugins = [world.new_plugin("envloop/one"), world.new_plugin("envloop/two")]
    profile = world.v2(plugins=[each.reference for each in plugins])
    places = {"inputs.data": world.data, "plugins[1]": plugins[1], "recipe": world.recipe}
    blobs = {path: world.site.services.blobs.path(each.manifest_sha256) for path, each in places.items()}
    whole = {blob: blob.read_bytes() for blob in blobs.values()}
    for blob, content in whole.items():
        blob.chmod(0o600)
        blob.write_bytes(content[:-1] + b" ")
    assert world.refused(profile) == (409, dict.fromkeys(places, "CONTENT_DAMAGED"))
    answer = world.site.post("/v1/jobs", world.submission(profile, IDS.ulid())).json()
    assert "is damaged" in answer["message"]
    assert "The reference is right" in answer["hint"]
    named = [f"{each.name}@{each.version}" for each in places.values()]
    assert any(f"content verify {each} --repair" in answer["hint"] for each in named)
    blobs["inputs.data"].unlink()
    for path in ("recipe", "plugins[1]"):
        blobs[path].write_bytes(whole[blobs[path]])
    assert world.refused(profile) == (409, {"inputs.data": "CONTENT_DAMAGED"})
    assert "is gone" in world.message(profile)
    blobs["inputs.data"].write_bytes(whole[blobs["inputs.data"]])
    world.accepted(profile)


def test_E96_a_default_that_is_a_local_path_is_refused_when_published_and_of_older_recipes_when_used(
    make_site: Callable[..., Site], tmp_path: Path
):
    world = World.on(make_site(), tmp_path)
    files = {**recipe_files(), "recipe.toml": recipe_files()["recipe.toml"].replace(b'"0.001"', b'"~/lr"')}
    with pytest.raises(Refusal) as caught:
        published(world.site, ContentKind.RECIPES, "envloop/local", files)
    assert [fault.path for fault in caught.value.faults] == ["parameters.properties.lr.default"]
    uses = dependency("old", world.recipe.reference["uri"], world.recipe.manifest_sha256)
    user = world.new_recipe("envloop/user", uses)
    with world.site.services.database.read() as connection:
        about = contents.resolve(connection, "default", parse_content_uri(world.recipe.uri)).about
    older = about.replace('"0.001"', '"~/lr"')
    change = update(content_versions).where(content_versions.c.about == about).values(about=older)
    world.site.services.database.write(lambda connection: connection.execute(change))
    for reference in (world.recipe.reference, user.reference):
        assert world.refused(world.v2(recipe=reference)) == (422, {"recipe": "INVALID_PROFILE"})
        assert "older rules" in world.message(world.v2(recipe=reference))


def test_E95_nothing_is_frozen_of_a_refused_profile(world: World):
    before = world.site.services.database
    with before.read() as connection:
        held = len(jobs.contents_of(connection, [row["trial_id"] for row in all_trials(world)]))
    world.refused(world.v2(parameters={}))
    with before.read() as connection:
        assert len(jobs.contents_of(connection, [row["trial_id"] for row in all_trials(world)])) == held


def all_trials(world: World) -> list[dict[str, Any]]:
    return world.site.get("/v1/trials?limit=100").json()["items"]


# Local paths and providers (E96, E104)


def test_E96_a_local_path_and_a_provider_are_refused_with_their_places(world: World):
    profile = changed(world.v2(provider="aws"), "inputs", "data", "uri", to="/data/train")
    assert world.refused(profile) == (
        422,
        {"provider": "INVALID_PROFILE", "inputs.data.uri": "INVALID_PROFILE"},
    )


def test_E104_a_reference_of_the_wrong_kind_is_refused(world: World):
    swapped = world.v2(recipe=world.data.reference, inputs={"data": world.recipe.reference})
    assert world.refused(swapped) == (
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
    status, found = world.refused(world.v2(parameters=parameters))
    assert status == 422
    assert sorted(found) == places
    assert set(found.values()) == {"INVALID_PROFILE"}


def test_E101_a_recipe_says_which_inputs_it_takes(world: World, name: str):
    recipe = world.new_recipe(
        name,
        '[inputs.data]\nkind = "dataset"\n[inputs.base]\nkind = "model"\nrequired = false\n',
    ).reference
    data, model = world.data.reference, world.model.reference
    world.accepted(world.v2(recipe=recipe, inputs={"data": data}))
    world.accepted(world.v2(recipe=recipe, inputs={"data": data, "base": model}))
    for inputs, places in [
        ({}, {"inputs.data"}),
        ({"data": model}, {"inputs.data"}),
        ({"data": data, "base": data}, {"inputs.base"}),
        ({"data": data, "dta": data}, {"inputs.dta"}),
        ({"dta": data}, {"inputs.data", "inputs.dta"}),
    ]:
        status, found = world.refused(world.v2(recipe=recipe, inputs=inputs))
        assert (status, set(found)) == (422, places)
    assert "base, data" in world.message(world.v2(recipe=recipe, inputs={"data": data, "x": data}))


@pytest.mark.parametrize(
    ("place", "to"), [("manifest_sha256", "ABC"), ("uri", "envloop://datasets/a/b"), ("uri", "/data/train")]
)
def test_E101_an_input_with_a_malformed_reference_is_not_said_to_be_missing(
    world: World, name: str, place: str, to: str
):
    recipe = world.new_recipe(name, '[inputs.data]\nkind = "dataset"\n').reference
    profile = changed(world.v2(recipe=recipe), "inputs", "data", place, to=to)
    assert world.refused(profile) == (422, {f"inputs.data.{place}": "INVALID_PROFILE"})


def test_E102_every_dependency_is_checked_and_frozen_those_of_dependencies_too(world: World, name: str):
    last = world.new_recipe(f"{name}-2", version="1")
    middle = world.new_recipe(f"{name}-1", dependency("last", last.uri, last.manifest_sha256), version="1")
    recipe = world.new_recipe(
        name,
        dependency("middle", middle.uri, middle.manifest_sha256),
        dependency("last", last.uri, last.manifest_sha256),
    )
    profile = world.v2(recipe=recipe.reference)
    assert set(world.accepted(profile)["profile"]["dependencies"]) == {"middle", "middle.last", "last"}
    world.withdraw(last)
    assert world.refused(profile) == (409, {"recipe": "PROFILE_ARCHIVED"})
    assert "`middle.last`" in world.message(profile) or "`last`" in world.message(profile)


def test_E102_a_dependency_that_may_not_be_read_is_denied(world: World, name: str):
    theirs = world.other_projects(ContentKind.RECIPES, name, recipe_files())
    world.hide(theirs, "default")
    recipe = world.new_recipe(name, dependency("common", theirs.uri, theirs.manifest_sha256))
    profile = world.v2(recipe=recipe.reference)
    world.accepted(profile)
    world.hide(theirs)
    assert world.refused(profile) == (403, {"recipe": "ACCESS_DENIED"})
    assert "`common`" in world.message(profile)


def test_E102_dependencies_are_bounded_in_depth_and_number(world: World, name: str):
    below = world.new_recipe(f"{name}-0", version="1")
    for level in range(1, MAX_DEPENDENCY_DEPTH + 2):
        below = world.new_recipe(
            f"{name}-{level}", dependency("next", below.uri, below.manifest_sha256), version="1"
        )
    profile = world.v2(recipe=below.reference)
    assert world.refused(profile) == (422, {"recipe": "INVALID_PROFILE"})
    assert f"{MAX_DEPENDENCY_DEPTH} levels" in world.message(profile)
    leaf = world.new_recipe(f"{name}-leaf", version="1")
    many = [dependency(f"d{n}", leaf.uri, leaf.manifest_sha256) for n in range(32)]
    wide = world.new_recipe(f"{name}-wide", *many, version="1")
    twice = [dependency(f"w{n}", wide.uri, wide.manifest_sha256) for n in range(2)]
    profile = world.v2(recipe=world.new_recipe(name, *twice).reference)
    status, found = world.refused(profile)
    assert (status, found) == (422, {"recipe": "INVALID_PROFILE"})
    assert str(MAX_DEPENDENCIES) in world.message(profile)


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
    assert world.refused(world.v1(inputs=inputs)) == (422, {"": "INVALID_PROFILE"})
    assert str(MAX_SNAPSHOT_BYTES) in world.message(world.v1(inputs=inputs))
    one = {"i": {**data.reference, "config": "c", "split": "s1"}}
    assert len(world.accepted(world.v1(inputs=one))["profile"]["inputs"]["i"]["files"]) == 1


def faults_of_all(world: World, *specs: dict[str, Any]) -> dict[str, str]:
    entries = [{"name": f"t{number}", "spec": spec} for number, spec in enumerate(specs)]
    answer = world.site.post("/v1/jobs", {"type": "train", "request_id": IDS.ulid(), "trials": entries})
    assert not answer.is_success
    return {each["path"]: each["code"] for each in answer.json()["errors"]}


def test_all_that_is_missing_for_all_trials_is_told_in_one_answer(world: World, name: str):
    plugin = world.new_plugin(name, approved=False)
    gone = {"uri": f"envloop://plugins/envloop/none@{NOTHING}", "manifest_sha256": NOTHING}
    unknown = {"uri": "envloop://datasets/envloop/none@1", "manifest_sha256": NOTHING}
    resources = {"gpu_type": "H100", "gpus": 1}
    checkpoint = "ckpt_01KB7Q3V9E8Z6R5T4W3X2Y1M0Q"
    bad = world.v2(parameters={"steps": 0}, inputs={"data": unknown}, plugins=[plugin.reference, gone])
    found = faults_of_all(
        world,
        {"runner": "envloop/none@main", "profile": bad, "resources": resources, "resume_from": checkpoint},
        {"runner": world.runner, "profile": world.v2(parameters={"steps": 0}), "resources": {"gpus": 0}},
        {"runner": "nothing", "profile": bad, "resources": {"gpu_type": 1}},
        {"runner": "envloop/bash@main", "profile": bad, "resources": resources},
    )
    profile = {
        "parameters.steps": "INVALID_PROFILE",
        "inputs.data.uri": "ACCESS_DENIED",
        "plugins[0]": "ACCESS_DENIED",
        "plugins[1].uri": "ACCESS_DENIED",
    }
    assert found == {
        "trials[0].spec.runner": "RUNNER_NOT_FOUND",
        "trials[0].spec.resume_from": "CHECKPOINT_NOT_FOUND",
        "trials[1].spec.resources.gpus": "INVALID_EXECUTION_CONFIG",
        "trials[1].spec.profile.parameters.steps": "INVALID_PROFILE",
        "trials[2].spec.runner": "INVALID_RUNNER",
        "trials[2].spec.resources.gpu_type": "INVALID_EXECUTION_CONFIG",
        "trials[3].spec.profile": "PROFILE_RUNNER_UNSUPPORTED",
        **{f"trials[{n}].spec.profile.{path}": code for n in (0, 2, 3) for path, code in profile.items()},
    }


def test_E94_of_a_plugin_that_is_not_there_its_approval_is_said_to_be_missing_too(world: World):
    gone = {"uri": f"envloop://plugins/envloop/none@{NOTHING}", "manifest_sha256": NOTHING}
    answer = world.site.post("/v1/jobs", world.submission(world.v1(plugins=[gone]), IDS.ulid())).json()
    assert "has to be approved" in answer["message"]
    assert f"trainshed plugin approve envloop/none@{NOTHING}" in answer["hint"]


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
    status, found = world.refused(profile, resources={"gpu_type": "H100", "gpus": 1000})
    assert status == 403
    assert found == {
        "parameters.steps": "INVALID_PROFILE",
        "inputs.data.config": "INVALID_PROFILE",
        "inputs.none.uri": "ACCESS_DENIED",
        "plugins[0]": "ACCESS_DENIED",
        "spec.resources.gpus": "UNSUPPORTED_HARDWARE",
    }
