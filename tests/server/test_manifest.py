"""A Job's manifest over HTTP: everything that was frozen, in one document whose digest never changes."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support import lora, old_schema
from support.profiles import ABI, DATASET_FILES, V1, World, publish_runner, published, runner_toml
from support.site import Site, finish, start, trials
from trainshed import __version__
from trainshed.model.access import Permission
from trainshed.model.content import ContentKind
from trainshed.model.provenance import check_manifest, compare, rerun_request
from trainshed.model.strict_json import canonical_json
from trainshed.server.provenance import manifest_of
from trainshed.store import checkpoints, jobs
from trainshed.store.database import Database
from trainshed.store.schema import migrate


@pytest.fixture(scope="module")
def world(module_site: Site, tmp_path_factory: pytest.TempPathFactory) -> World:
    module_site.add_project("other")
    folder = tmp_path_factory.mktemp("world")
    text = runner_toml(ABI, V1) + "\n[params.run_command]\n"
    return replace(
        World.on(module_site, folder),
        runner=publish_runner(module_site, folder / "takes-command", "envloop/commanded", text),
    )


def manifest(site: Site, job_id: str, prefix: str = "/v1/jobs", **options: Any) -> dict[str, Any]:
    answer = site.get(f"{prefix}/{job_id}/manifest", **options)
    assert answer.status_code == 200, answer.text
    document = answer.json()
    assert answer.text == canonical_json(document), "the document itself is canonical"
    check_manifest(document)
    return document


def submitted(world: World, request_id: str, **spec: Any) -> str:
    answer = world.site.post("/v1/jobs", world.submission(world.v2(), request_id, **spec))
    assert answer.status_code == 201, answer.text
    return str(answer.json()["job_id"])


def test_everything_that_was_frozen_is_in_it(world: World):
    site = world.site
    spec = {"tags": {"team": "vision"}, "command": "true", "timeout_seconds": 77}
    job_id = submitted(world, "all", **spec)
    document = manifest(site, job_id)
    job = site.get(f"/v1/jobs/{job_id}").json()
    [shown] = job["training"]["trials"]
    snapshot = site.get(f"/v1/trials/{shown['trial_id']}/snapshot").json()
    runner = site.get(f"/v1/runners/envloop/commanded/{shown['runner']['revision']}").json()
    frozen = document["frozen"]
    assert frozen["job"] == {
        "job_id": job_id,
        "project_id": "default",
        "request_id": "all",
        "type": "train",
        "submitted_by": "human:owner",
        "created_at": job["created_at"],
        "platform_version": __version__,
    }
    assert frozen["request"]["trials"][0]["spec"]["tags"] == spec["tags"]
    [trial] = frozen["trials"]
    assert trial["trial_id"] == shown["trial_id"]
    assert trial["runner"] | {"tree_id": ""} == {**shown["runner"], "tree_id": ""}
    assert len(trial["runner"]["tree_id"]) == 40
    assert frozen["runner_files"][trial["runner"]["snapshot_sha256"]] == snapshot["files"] != []
    assert runner["revision"] == trial["runner"]["revision"]
    for key in ("entrypoint", "command", "params", "outputs", "tags", "resources", "timeout_seconds"):
        assert trial[key] == snapshot[key]
    assert trial["profile"] == {"sha256": shown["profile_sha256"], "document": shown["profile"]}
    assert hashlib.sha256(canonical_json(shown["profile"]).encode()).hexdigest() == trial["profile"]["sha256"]
    assert [(use["role"], use["manifest_sha256"]) for use in trial["contents"]] == [
        ("input:data", world.data.manifest_sha256),
        ("recipe", world.recipe.manifest_sha256),
    ]
    assert trial["image"] is None
    assert trial["resume_from"] is None


def test_the_digest_can_be_computed_from_the_document_alone(world: World):
    document = manifest(world.site, submitted(world, "alone"))
    text = json.dumps(document["frozen"], sort_keys=True, separators=(",", ":"))
    assert hashlib.sha256(text.encode()).hexdigest() == document["digest"]


def test_the_line_of_the_documentation_computes_the_digest_as_it_is_written_there(world: World):
    document = manifest(world.site, submitted(world, "documented"))
    text = (Path(__file__).parents[2] / "docs" / "provenance.md").read_text()
    [line] = re.findall(
        r"^trainshed job manifest JOB --json \| (python3 -c '.*?')$", text, re.DOTALL | re.MULTILINE
    )
    done = subprocess.run(
        ["/bin/sh", "-c", line], input=json.dumps(document), capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == document["digest"]


def test_P7_the_frozen_part_is_the_same_before_during_and_after_and_when_all_was_withdrawn(
    sqlite_site: Site, tmp_path
):
    world = World.on(sqlite_site, tmp_path)
    site = sqlite_site
    job_id = submitted(world, "life")
    queued = manifest(site, job_id)
    assert queued["outcome"]["status"] == "queued"
    [trial] = trials(site, job_id)
    attempt = start(site, trial)
    running = manifest(site, job_id)
    assert running["outcome"]["trials"][0]["attempts"][0]["attempt_id"] == attempt
    [trial] = trials(site, job_id)
    finish(site, trial, attempt, artifacts={"out/a": b"result", **lora.adapter("out/last")})
    ended = manifest(site, job_id)
    world.withdraw(world.data)
    world.withdraw(world.recipe)
    commit = trial.revision
    assert site.request("DELETE", f"/v1/runners/envloop/trainer/{commit}").is_success
    [checkpoint] = ended["outcome"]["trials"][0]["checkpoints"]
    assert site.request("DELETE", f"/v1/job/checkpoints/{checkpoint['checkpoint_id']}").is_success
    withdrawn = manifest(site, job_id)
    frozen = {canonical_json(each["frozen"]) for each in (queued, running, ended, withdrawn)}
    assert len(frozen) == 1
    assert {each["digest"] for each in (queued, running, ended, withdrawn)} == {queued["digest"]}
    [outcome] = ended["outcome"]["trials"]
    assert (outcome["status"], outcome["exit_code"]) == ("succeeded", 0)
    sha256 = hashlib.sha256(b"result").hexdigest()
    assert outcome["outputs"][0] == {"name": "out/a", "size": 6, "sha256": sha256, "upload_state": "uploaded"}
    assert [file["name"] for file in checkpoint["files"]] == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    assert outcome["attempts"][0]["gpu_model"] == "H100"
    assert outcome["attempts"][0]["simulated"] is True


def test_a_rerun_of_it_runs_the_same(world: World):
    site = world.site
    job_id = submitted(world, "first", tags={"a": "b"}, command="echo ü")
    before = manifest(site, job_id)
    answer = site.post("/v1/jobs", rerun_request(before["frozen"], "second"))
    assert answer.status_code == 201, answer.text
    after = manifest(site, answer.json()["job_id"])
    found = compare(before["frozen"], after["frozen"])
    assert [(each.path, each.runs) for each in found] == [
        ("trials[0].runner.selector", False),
        ("trials[0].runner.source_ref", False),
    ]
    assert after["frozen"]["trials"][0]["profile"] == before["frozen"]["trials"][0]["profile"]


def test_a_rerun_goes_on_from_the_same_checkpoint_with_its_lineage(sqlite_site: Site, tmp_path):
    site = sqlite_site
    text = runner_toml(entrypoint=None) + "\n[checkpoints]\nresume = true\n"
    runner = publish_runner(site, tmp_path / "runner", "team/resumes", text)
    line: list[str] = []
    document: dict[str, Any] = {}
    for number in range(3):
        more = {"resume_from": line[-1]} if line else {}
        job_id = site.submit(f"r{number}", runner=runner, **more)["job_id"]
        [trial] = trials(site, job_id)
        finish(
            site, trial, start(site, trial), artifacts=lora.adapter(f"out/checkpoint-{number}", fill=number)
        )
        document = manifest(site, job_id)
        [made] = document["outcome"]["trials"][0]["checkpoints"]
        line.append(made["checkpoint_id"])
    [trial] = document["frozen"]["trials"]
    resumed = trial["resume_from"]
    assert resumed["checkpoint_id"] == line[1]
    assert [each["checkpoint_id"] for each in resumed["lineage"]] == [line[1], line[0]]
    assert [each["parent_id"] for each in resumed["lineage"]] == [line[0], None]
    with site.services.database.read() as connection:
        files = checkpoints.files_of(connection, line[1])
    assert resumed["files"] == [
        {"name": file.name, "size": file.size, "sha256": file.sha256} for file in files
    ]
    answer = site.post("/v1/jobs", rerun_request(document["frozen"], "again"))
    assert answer.status_code == 201, answer.text
    again = manifest(site, answer.json()["job_id"])
    assert not any(each.runs for each in compare(document["frozen"], again["frozen"]))


def test_a_changed_dataset_is_a_difference_that_names_it(world: World):
    site = world.site

    newer = published(
        site,
        ContentKind.DATASETS,
        "envloop/pev-smoke-data",
        {**DATASET_FILES, "train/1.txt": b"changed\n"},
        version="smoke-2",
    )
    before = manifest(site, submitted(world, "before"))
    profile = world.v2(inputs={"data": {**newer.reference, "config": "default", "split": "train"}})
    answer = site.post("/v1/jobs", world.submission(profile, "after"))
    after = manifest(site, answer.json()["job_id"])
    found = {each.path: each for each in compare(before["frozen"], after["frozen"])}
    difference = found["trials[0].contents[input:data].manifest_sha256"]
    assert (difference.before, difference.after) == (world.data.manifest_sha256, newer.manifest_sha256)
    assert difference.runs
    assert not found["trials[0].contents[input:data].version"].runs


def test_a_job_of_the_first_release_has_one_too(empty_database_url: str):
    old_schema.build(empty_database_url)
    database = Database(empty_database_url)
    migrate(database.engine)
    with database.read() as connection:
        job = jobs.get_job(connection, "p", old_schema.JOB)
        document = manifest_of(connection, job)
    frozen = check_manifest(document)
    assert frozen["job"]["platform_version"] is None
    [trial] = frozen["trials"]
    assert trial["runner"]["tree_id"] is None
    assert [file["path"] for file in frozen["runner_files"][old_schema.SNAPSHOT]] == [
        "main.sh",
        "runner.toml",
    ]
    assert document["outcome"]["trials"][0]["outputs"][0]["sha256"] == old_schema.OUTPUT
    assert rerun_request(frozen, "again")["trials"][0]["spec"]["runner"] == f"team/one@{old_schema.COMMIT}"
    database.close()


@pytest.mark.parametrize("prefix", ["/v1/job", "/api/v1/jobs", "/api/v1/job"])
def test_every_spelling_of_a_job_answers_it(world: World, prefix: str):
    job_id = submitted(world, f"spelled {prefix}")
    assert manifest(world.site, job_id, prefix) == manifest(world.site, job_id)


def test_who_may_not_read_the_job_may_not_read_its_manifest(world: World):
    site, job_id = world.site, submitted(world, "mine")
    foreign = site.add_key("other", Permission.TRAINING_READ)
    blind = site.add_key("default", Permission.RUNNER_READ)
    reader = site.add_key("default", Permission.TRAINING_READ)
    path = f"/v1/jobs/{job_id}/manifest"
    assert site.get(path, key=foreign).json()["code"] == "JOB_NOT_FOUND"
    assert site.get(path, key=blind).json()["code"] == "PERMISSION_DENIED"
    assert site.get("/v1/jobs/nothing/manifest").json()["code"] == "JOB_NOT_FOUND"
    assert manifest(site, job_id, key=reader) == manifest(site, job_id)
