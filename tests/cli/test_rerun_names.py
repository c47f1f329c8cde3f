"""By which names ``job rerun`` asks for content, and what it says where a server knows none of them."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from cli.test_rerun import CONTENTS, DATA, NEW, OLD, PLUGIN, PROFILE, SUBMIT, command, frozen, scripted
from support import documents
from support.fake_server import Reply
from support.profiles import ABI, V1, V2, recipe_files, runner_toml
from support.runners import repository
from trainshed.cli.exits import Exit
from trainshed.model.provenance import job_manifest, manifest_digest

__all__ = ["scripted"]


@pytest.mark.parametrize("code", ["PROFILE_HASH_MISMATCH", "PROFILE_ARCHIVED"])
def test_E99_a_label_that_leads_elsewhere_there_is_replaced_by_the_digest(run, scripted, code):
    """The hint too: what is published under its digest is found, and the label is not needed."""
    fake = scripted(
        frozen(NEW, profile=PROFILE, contents=CONTENTS), frozen(profile=PROFILE, contents=CONTENTS)
    )
    accepted = fake.routes[SUBMIT]
    place = "trials[0].spec.profile.inputs.data.manifest_sha256"

    def refuse_labels(request: Any) -> Reply:
        data = request.json["trials"][0]["spec"]["profile"]["inputs"]["data"]
        if data["uri"].endswith("@1"):
            return Reply(409, {"code": code, "message": "no", "errors": [fault(place, code)]})
        assert data == {"uri": f"envloop://datasets/a/data@{DATA}", "manifest_sha256": DATA}
        return Reply(201, accepted.body)

    def fault(path: str, code: str) -> dict[str, str]:
        return {"path": path, "code": code, "message": "no"}

    fake.routes[SUBMIT] = refuse_labels
    ran = run("job", "rerun", OLD, "--json")
    assert (ran.status, ran.json["same"]) == (Exit.OK, True), ran.err
    denied = fault("trials[0].spec.profile.inputs.data.uri", "ACCESS_DENIED")

    def nothing_there(request: Any) -> Reply:
        first = refuse_labels(request)
        body = {"code": "ACCESS_DENIED", "message": "no", "errors": [denied]}
        return first if first.status == 409 else Reply(403, body)

    fake.routes[SUBMIT] = nothing_there
    ran = run("job", "rerun", OLD)
    [line] = [line for line in ran.err.splitlines() if line.startswith("  trainshed")]
    command, _, why = line.strip().partition("  # ")
    assert command == "trainshed dataset publish PATH --name a/data"
    assert "its label 1 names something else there" in why


def test_a_retry_of_a_rerun_by_digest_finds_its_job(run, scripted):
    """Labels may lead there meanwhile: the request was accepted as it was written then."""
    document = copy.deepcopy(PROFILE["document"])
    document["inputs"]["data"]["uri"] = f"envloop://datasets/a/data@{DATA}"
    after = frozen(NEW, profile={**PROFILE, "document": document}, contents=CONTENTS)
    fake = scripted(after, frozen(profile=PROFILE, contents=CONTENTS))

    def taken(request: Any) -> Reply:
        if request.json["trials"][0]["spec"]["profile"]["inputs"]["data"]["uri"].endswith("@1"):
            fault = {"path": "request_id", "code": "JOB_REQUEST_CONFLICT", "message": "no"}
            conflict = {"code": "JOB_REQUEST_CONFLICT", "message": "no", "job_id": NEW, "errors": [fault]}
            return Reply(409, conflict)
        return Reply(200, {**documents.job("queued"), "job_id": NEW})

    fake.routes[SUBMIT] = taken
    ran = run("job", "rerun", OLD, "--request-id", "again", "--json")
    assert (ran.status, ran.json["same"]) == (Exit.OK, True), ran.err
    assert [(each["path"], each["runs"]) for each in ran.json["differences"]] == [
        ("trials[0].profile.inputs.data.uri", False)
    ], "the digest of the snapshot did not change in this script"


def test_what_is_to_be_published_is_one_command_a_line_in_an_order_that_works(run, scripted):
    plugin = {"uri": f"envloop://plugins/a/plugin@{PLUGIN}", "manifest_sha256": PLUGIN, "name": "a/plugin"}
    use = {"kind": "plugins", "name": "a/plugin", "version": "1", "manifest_sha256": PLUGIN}
    needed = {"role": "dependency:b", "kind": "recipes", "version": "1", "manifest_sha256": DATA}
    profile = {**PROFILE, "document": {**PROFILE["document"], "plugins": [plugin]}}
    contents = [
        *CONTENTS,
        {**needed, "name": "a/base"},
        {**needed, "role": "dependency:b.c", "name": "a/root"},
        {"role": "plugin:a/plugin", **use},
    ]
    fake = scripted(frozen(NEW), frozen(profile=profile, contents=contents))
    places = {
        "profile.plugins[0].uri": "ACCESS_DENIED",
        "profile.inputs.data.uri": "ACCESS_DENIED",
        "profile.recipe.uri": "ACCESS_DENIED",
        "runner": "RUNNER_NOT_FOUND",
    }
    faults = [
        {"path": f"trials[0].spec.{path}", "code": code, "message": "no"} for path, code in places.items()
    ]
    fake.routes[SUBMIT] = Reply(403, {"code": "ACCESS_DENIED", "message": "no", "errors": faults})
    ran = run("job", "rerun", OLD)
    lines = ran.err.splitlines()
    begun = next(number for number, line in enumerate(lines) if line.startswith("hint: "))
    assert lines[-2] == "then run it again"
    assert "NAMESPACE_TAKEN" in lines[-1]
    assert [line.partition("  # ")[0].strip() for line in lines[begun + 1 : -2]] == [
        f"trainshed runner publish PATH --ref {'a' * 40} --name team/run",
        "trainshed recipe publish PATH --name a/root",
        "trainshed recipe publish PATH --name a/base",
        "trainshed recipe publish PATH --name a/recipe",
        "trainshed dataset publish PATH --name a/data --version 1",
        "trainshed plugin publish PATH --name a/plugin",
        f"trainshed plugin approve a/plugin@{PLUGIN}",
    ]
    ran = run("job", "rerun", OLD, "--json")
    assert len(json.loads(ran.err.splitlines()[-1])["publish"]) == 7


def test_what_only_is_named_otherwise_is_one_line_a_kind_below_what_differs(run, scripted):
    def of_16(job_id: str, **last: Any) -> dict[str, Any]:
        trial = frozen(job_id)["frozen"]["trials"][0]
        trials = [{**trial, "name": f"t{number}"} for number in range(16)]
        trials[-1] = {**trials[-1], **last}
        document = {key: value for key, value in frozen(job_id)["frozen"].items() if key != "schema"}
        return job_manifest({**document, "trials": trials}, {})

    after = of_16(NEW, command="false")
    before = of_16(OLD)
    for trial in before["frozen"]["trials"]:
        trial["runner"] |= {"selector": "team/run@main", "source_ref": "main"}
    before["digest"] = manifest_digest(before["frozen"])
    scripted(after, before)
    ran = run("job", "rerun", OLD)
    assert ran.status == Exit.DIFFERS
    table = ran.out[ran.out.index("FIELD") :].splitlines()[1:]
    assert [line.split()[0] for line in table] == [
        "trials[15].command",
        "trials[*].runner.selector",
        "trials[*].runner.source_ref",
    ]
    assert [line.split("  ")[-1].strip() for line in table] == [
        "yes",
        "only named so (16 times)",
        "only named so (16 times)",
    ]
    assert len(run("job", "rerun", OLD, "--json").json["differences"]) == 33


def test_E101_labels_that_lead_elsewhere_there_are_no_dead_end(new_server, tmp_path):
    """A Dataset and what a Recipe depends on: other bytes, a withdrawn label, another label."""
    here, there = (command(new_server(name).start()) for name in ("here", "there"))
    runner = tmp_path / "runner"
    repository(runner, {"runner.toml": runner_toml(ABI, V1), "main.sh": "true\n"})

    def folder(name: str, files: dict[str, bytes]) -> str:
        for path, data in files.items():
            place = tmp_path / name / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
        return str(tmp_path / name)

    def publish(where: Any, noun: str, path: str, name: str, *more: str) -> str:
        done = where(noun, "publish", path, "--name", name, *more, "--json")
        return str(json.loads(done.stdout)["manifest_sha256"])

    ones, twos = folder("ones", {"part.txt": b"one\n"}), folder("twos", {"part.txt": b"two\n"})
    base, other = folder("base", recipe_files()), folder("other", {**recipe_files(), "more.py": b""})
    label = ("--version", "1.0")
    here("runner", "publish", str(runner), "--name", "team/run")
    data = publish(here, "dataset", ones, "team/data", *label)
    pinned = publish(here, "recipe", base, "team/base", *label)
    needs = f'[dependencies.base]\nuri = "envloop://recipes/team/base@1.0"\nmanifest_sha256 = "{pinned}"\n'
    recipe = folder("recipe", recipe_files(needs))
    digest = publish(here, "recipe", recipe, "team/recipe")
    profile = {
        "schema": V2,
        "recipe": {"uri": f"envloop://recipes/team/recipe@{digest}", "manifest_sha256": digest},
        "parameters": {"steps": 1},
        "inputs": {"data": {"uri": "envloop://datasets/team/data@1.0", "manifest_sha256": data}},
        "plugins": [],
    }
    request = tmp_path / "request.json"
    spec = {"runner": "team/run@main", "profile": profile, "resources": {"gpu_type": "H100", "gpus": 1}}
    request.write_text(json.dumps({"type": "train", "request_id": "first", "spec": spec}))
    first = json.loads(here("job", "submit", "--spec", str(request), "--json").stdout)
    place = str(tmp_path / "manifest.json")
    here("job", "manifest", first["job_id"], "--output", place)

    publish(there, "dataset", twos, "team/data", *label)
    publish(there, "recipe", other, "team/base", *label)
    there("dataset", "withdraw", "team/data@1.0")
    refused = there("job", "rerun", place, status=Exit.ACCESS)
    commands = [line.partition("#")[0].split() for line in refused.stderr.splitlines() if "#" in line]
    folders = {"team/run": str(runner), "team/data": ones, "team/base": base, "team/recipe": recipe}
    assert {words[words.index("--name") + 1] for words in commands} == folders.keys()
    for words in commands:
        # As they are printed, and in that order.
        path = folders[words[words.index("--name") + 1]]
        there(*(path if word == "PATH" else word for word in words[1:]))
    again = json.loads(there("job", "rerun", place, "--request-id", "again", "--json").stdout)
    assert again["same"] is True
    named = {each["path"]: each["runs"] for each in again["differences"]}
    assert named["trials[0].profile.inputs.data.uri"] is False
    assert not any(named.values())
    retried = json.loads(there("job", "rerun", place, "--request-id", "again", "--json").stdout)
    assert retried["job_id"] == again["job_id"]
    # Where the label leads to the same bytes it stays.
    own = json.loads(here("job", "rerun", first["job_id"], "--json").stdout)
    assert "trials[0].profile.inputs.data.uri" not in {each["path"] for each in own["differences"]}


def test_E99_any_version_with_the_digest_will_do(new_server, tmp_path):
    """The label is unknown there and another has the bytes; then the label is withdrawn here, they stay."""
    here, there = (command(new_server(name).start()) for name in ("here", "there"))
    runner, folder = tmp_path / "runner", tmp_path / "data"
    repository(runner, {"runner.toml": runner_toml(ABI, V1), "main.sh": "true\n"})
    folder.mkdir()
    (folder / "part.txt").write_bytes(b"one\n")

    def publish(where: Any, *version: str) -> str:
        done = where("dataset", "publish", str(folder), "--name", "team/data", *version, "--json")
        return str(json.loads(done.stdout)["manifest_sha256"])

    digest = publish(here, "--version", "1.0")
    assert publish(there, "--version", "2.0") == digest
    for where in (here, there):
        where("runner", "publish", str(runner), "--name", "team/run")
    reference = {"uri": "envloop://datasets/team/data@1.0", "manifest_sha256": digest}
    profile = {"schema": V1, "recipe": {}, "inputs": {"data": reference}, "plugins": []}
    spec = {"runner": "team/run@main", "profile": profile, "resources": {"gpu_type": "H100", "gpus": 1}}
    (tmp_path / "request.json").write_text(json.dumps({"type": "train", "request_id": "first", "spec": spec}))
    first = json.loads(here("job", "submit", "--spec", str(tmp_path / "request.json"), "--json").stdout)
    place = str(tmp_path / "manifest.json")
    here("job", "manifest", first["job_id"], "--output", place)
    publish(here)
    here("dataset", "withdraw", "team/data@1.0")
    for where in (there, here):
        again = json.loads(where("job", "rerun", place, "--json").stdout)
        assert again["same"] is True
        named = {each["path"]: each["after"] for each in again["differences"]}
        assert named["trials[0].profile.inputs.data.uri"] == f"envloop://datasets/team/data@{digest}"


def test_E92_a_name_that_is_another_projects_there_is_no_dead_end(new_server, tmp_path):
    """The name is part of what ran, so no copy under another one is taken: who holds it has to publish it."""
    here, server = command(new_server("here").start()), new_server("there").start()
    owner = command(server)
    runner, folder = tmp_path / "runner", tmp_path / "data"
    repository(runner, {"runner.toml": runner_toml(ABI, V1), "main.sh": "true\n"})
    folder.mkdir()
    (folder / "part.txt").write_bytes(b"one\n")
    published = here("dataset", "publish", str(folder), "--name", "team/data", "--json")
    digest = json.loads(published.stdout)["manifest_sha256"]
    here("runner", "publish", str(runner), "--name", "own/run")
    reference = {"uri": f"envloop://datasets/team/data@{digest}", "manifest_sha256": digest}
    profile = {"schema": V1, "recipe": {}, "inputs": {"data": reference}, "plugins": []}
    spec = {"runner": "own/run@main", "profile": profile, "resources": {"gpu_type": "H100", "gpus": 1}}
    (tmp_path / "request.json").write_text(json.dumps({"type": "train", "request_id": "first", "spec": spec}))
    first = json.loads(here("job", "submit", "--spec", str(tmp_path / "request.json"), "--json").stdout)
    place = str(tmp_path / "manifest.json")
    here("job", "manifest", first["job_id"], "--output", place)

    def member_of(project: str) -> Any:
        owner("project", "create", project)
        key = owner("--project", project, "key", "create", "laptop").stdout.strip()
        return command(server, key)

    holder, other = member_of("holder"), member_of("other")
    holder("dataset", "publish", str(folder), "--name", "team/else")
    other("runner", "publish", str(runner), "--name", "own/run")
    refused = other("job", "rerun", place, status=Exit.ACCESS)
    way = "have that project or the owner key publish it and open it to yours"
    assert way in refused.stderr.splitlines()[-1]
    publish = ("dataset", "publish", str(folder), "--name", "team/data")
    taken = other(*publish, status=Exit.CONFLICT)
    assert "the namespace `team` belongs to another project" in taken.stderr
    assert way in taken.stderr
    owner(*publish)
    owner("dataset", "visibility", "team/data", "projects", "--to", "other")
    assert json.loads(other("job", "rerun", place, "--json").stdout)["same"] is True


def test_a_rerun_can_be_followed_like_a_submission(new_server, tmp_path):
    run = command(new_server("here").start())
    echo = ("--runner", "envloop/bash@main", "--command", "echo of the program")
    first = run("job", "submit", *echo, "--gpu-type", "H100", "--gpu", "1", "--wait", "--json")
    done = run("job", "rerun", json.loads(first.stdout)["job_id"], "--follow")
    assert "of the program" in done.stdout
    assert "-- Started" in done.stderr
    assert "runs the same  yes" in done.stdout
