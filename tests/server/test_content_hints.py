"""What a newcomer is told when content cannot be used: every fault, and what to do about the first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.profiles import ABI, V1, World, publish_runner, published, runner_toml
from support.rows import IDS
from trainshed.model.access import Permission
from trainshed.model.content import ContentKind

NOTHING = "0" * 64


def refusal(world: World, profile: Any, **spec: Any) -> dict[str, Any]:
    answer = world.site.post("/v1/jobs", world.submission(profile, IDS.ulid(), **spec))
    assert not answer.is_success, answer.text
    return dict(answer.json())


def test_E94_the_hint_of_an_unapproved_plugin_is_to_approve_it(world: World, name: str):
    plugin = world.new_plugin(name, approved=False)
    profile = world.v1(plugins=[plugin.reference])
    wanted = f"trainshed plugin approve {name}@{plugin.manifest_sha256}"
    assert wanted in refusal(world, profile)["hint"]
    world.approve(plugin)
    world.revoke(plugin)
    body = refusal(world, profile)
    assert wanted in body["hint"]
    assert "owner key" in body["hint"]
    assert not body["message"].startswith("entry ")


def test_E94_approving_without_the_owner_key_names_that_key(world: World, name: str):
    plugin = world.new_plugin(name, approved=False)
    key = world.site.add_key("default", *Permission)
    answer = world.site.request("PUT", f"{plugin.path}/approval", key=key)
    assert answer.status_code == 403
    assert "owner key of the server" in answer.json()["hint"]
    assert "Ask a project admin" not in answer.json()["hint"]


def test_malformed_parts_hide_no_fault_that_is_looked_up(world: World, name: str):
    plugin = world.new_plugin(name, approved=False)
    text = json.dumps(
        world.submission(
            world.v2(
                recipe={**world.recipe.reference, "manifest_sha256": NOTHING},
                parameters={"lr": "NUMBER"},
                inputs={
                    "bad name": world.data.reference,
                    "other": {"uri": "envloop://datasets/no/such@1", "manifest_sha256": NOTHING},
                },
                plugins=[plugin.reference],
            ),
            IDS.ulid(),
        )
    )
    body = world.site.post("/v1/jobs", text.replace('"NUMBER"', "0.5").encode()).json()
    found = {(each["path"].removeprefix("spec.profile."), each["code"]) for each in body["errors"]}
    assert found == {
        ("plugins[0]", "ACCESS_DENIED"),
        ("inputs.other.uri", "ACCESS_DENIED"),
        ("recipe.manifest_sha256", "PROFILE_HASH_MISMATCH"),
        ("parameters", "INVALID_PROFILE"),  # `steps` is missing
        ("parameters.lr", "INVALID_PROFILE"),
        ("inputs.bad name", "INVALID_PROFILE"),
    }
    first = body["errors"][0]
    assert (body["code"], body["message"]) == (first["code"], first["message"])
    wanted = {
        "spec.profile.plugins[0]": "With the owner key",
        "spec.profile.inputs.other.uri": "Check the name",
    }
    assert body["hint"].startswith(wanted[first["path"]])


def test_E100_a_runner_that_runs_recipes_is_not_started_without_a_profile(
    world: World, tmp_path: Path, name: str
):
    runner = publish_runner(world.site, tmp_path / "r", name, runner_toml(ABI))
    request = world.submission(None, IDS.ulid(), runner=runner)
    del request["spec"]["profile"]
    answer = world.site.post("/v1/jobs", request)
    assert (answer.status_code, answer.json()["code"]) == (422, "INVALID_PROFILE")
    assert answer.json()["errors"][0]["path"] == "spec.profile"
    assert "envloop.job-profile/v2" in answer.json()["message"]
    text = runner_toml(ABI).replace("[recipe]\n", "[recipe]\noptional = true\n")
    request["spec"]["runner"] = publish_runner(world.site, tmp_path / "o", f"{name}-optional", text)
    assert world.site.post("/v1/jobs", request).status_code == 201


def test_E100_v1_needs_a_runner_that_reads_it_or_calls_no_recipe(world: World, tmp_path: Path, name: str):
    strict = publish_runner(world.site, tmp_path / "r", name, runner_toml(ABI))
    assert world.refused(world.v1(), runner=strict) == (422, {"": "PROFILE_RUNNER_UNSUPPORTED"})
    assert "names no Recipe" in world.message(world.v1(), runner=strict)
    loose = publish_runner(world.site, tmp_path / "l", f"{name}-loose", runner_toml(ABI, entrypoint=None))
    assert world.accepted(world.v1(), runner=loose)
    both = publish_runner(world.site, tmp_path / "b", f"{name}-both", runner_toml(ABI, V1))
    assert world.accepted(world.v1(), runner=both)


@pytest.mark.parametrize("ref", ["9", "latest"])
def test_E92_an_unknown_version_of_a_readable_dataset_says_which_there_are(world: World, name: str, ref: str):
    for number in range(7):
        files = {"a.txt": str(number).encode()}
        published(world.site, ContentKind.DATASETS, name, files, version=f"1.{number}")
    reference = {"uri": f"envloop://datasets/{name}@{ref}", "manifest_sha256": NOTHING}
    shown = world.site.get(f"/v1/content/datasets/{name}/versions/{ref}")
    assert (shown.status_code, shown.json()["code"]) == (404, "CONTENT_NOT_FOUND")
    for body in (refusal(world, world.v1(inputs={"data": reference})), shown.json()):
        assert "newest first: 1.6, 1.5, 1.4, 1.3, 1.2, …;" in body["message"]
        assert "a label or a manifest's digest" in body["message"]
        assert ("`latest` is no version" in body["message"]) == (ref == "latest")
        assert f"trainshed dataset versions {name}" in body["hint"]


@pytest.mark.parametrize("kind", list(ContentKind))
def test_hints_name_the_command_of_their_kind(world: World, kind: ContentKind):
    answer = world.site.get(f"/v1/content/{kind}/no/such/versions/1")
    assert answer.json()["code"] == "CONTENT_NOT_FOUND"
    assert f"`trainshed {kind.removesuffix('s')} list`" in answer.json()["hint"]


def test_of_two_faults_each_is_told_with_what_to_do(world: World, name: str):
    plugin = world.new_plugin(name, approved=False)
    data = published(world.site, ContentKind.DATASETS, name, {"a.txt": b"gone"}, version="1")
    world.withdraw(data)
    body = refusal(world, world.v1(inputs={"data": data.reference}, plugins=[plugin.reference]))
    assert [each["code"] for each in body["errors"]] == ["ACCESS_DENIED", "PROFILE_ARCHIVED"]
    assert f"`trainshed plugin approve {name}@{plugin.manifest_sha256}`" in body["hint"]
    assert body["hint"].endswith(f"`trainshed dataset versions {name}`.")


def test_E92_of_content_that_is_not_there_the_hint_is_to_check_its_name(world: World):
    nothing = {"uri": "envloop://datasets/no/such@1", "manifest_sha256": NOTHING}
    body = refusal(world, world.v1(inputs={"data": nothing}))
    assert body["hint"].startswith("Check the name: `trainshed dataset list` ")
    assert "ask its owner" in body["hint"]


def test_a_resume_of_a_malformed_job_says_so(world: World):
    wanted = "envloop://job_x/ckpt_01KB7Q3V9E8Z6R5T4W3X2Y1M9Z"
    body = refusal(world, world.v1(), resume_from=wanted)
    said = next(each["message"] for each in body["errors"] if each["path"] == "spec.resume_from")
    assert "Job id `job_x` is malformed" in said
    assert "trainshed checkpoint list" in body["hint"]
