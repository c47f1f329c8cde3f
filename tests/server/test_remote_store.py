"""A server whose blobs lie in an object store: published, run, collected and downloaded, end to end."""

from __future__ import annotations

import hashlib
import json
import uuid
from pathlib import Path

import pytest

from support.contents import published_on
from support.profiles import ENTRYPOINT, recipe_files, runner_toml
from support.runners import publish, repository
from support.s3 import BUCKET, REGION, S3Server
from support.server import ServerProcess
from trainshed.model.content import ContentKind

MAIN = """
mkdir -p out
cat "$TRAINSHED_INPUTS/words/a.txt" "$TRAINSHED_INPUTS/words/deep/b.txt" > out/words.txt
cp "$TRAINSHED_PROFILE" out/profile.json
ls "$TRAINSHED_RECIPE" > out/recipe.txt
"""
WORDS = {"a.txt": b"one\n", "deep/b.txt": b"two\n"}
RESOURCES = {"gpu_type": "H100", "gpus": 1}


@pytest.fixture
def remote(moto: S3Server, new_server, tmp_path: Path) -> ServerProcess:
    config = tmp_path / "remote.toml"
    config.write_text(
        f'[content]\nurl = "s3://{BUCKET}/{uuid.uuid4().hex}"\nendpoint = "{moto.endpoint}"\n'
        f'region = "{REGION}"\nallow_http = true\n'
    )
    server = new_server("remote", options=("--config", str(config)), environment=moto.environment)
    return server.start()


def downloads(server: ServerProcess, trial: str) -> dict[str, bytes]:
    """Every Artifact of a Trial."""
    items = server.http().get(f"/v1/trials/{trial}/artifacts").json["items"]
    return {
        item["name"]: server.http().get(f"/v1/trials/{trial}/artifacts/{item['artifact_id']}/content").body
        for item in items
    }


def test_a_job_whose_blobs_lie_in_s3_runs_from_its_profile_to_its_download(remote, moto, tmp_path):
    text = runner_toml("envloop.train-recipe/1", entrypoint=ENTRYPOINT, outputs=("out/*",))
    repository(tmp_path / "runner", {"runner.toml": text, "main.sh": MAIN})
    publish(remote, tmp_path / "runner", "team/words")
    profile = {
        "schema": "envloop.job-profile/v2",
        "recipe": published_on(remote, ContentKind.RECIPES, "team/recipe", recipe_files()),
        "parameters": {"steps": 3},
        "inputs": {"words": published_on(remote, ContentKind.DATASETS, "team/words", WORDS)},
        "plugins": [],
    }
    spec = {"runner": "team/words@main", "resources": RESOURCES}
    for request_id in ("first", "second"):
        job = remote.submit({"request_id": request_id, "spec": {**spec, "profile": profile}})
        [trial] = remote.wait_for_release(job)
        assert trial["status"] == "succeeded", trial
        got = downloads(remote, trial["trial_id"])
        assert got["out/words.txt"] == b"one\ntwo\n"
        assert json.loads(got["out/profile.json"])["parameters"]["steps"] == 3
        assert b"recipe.toml" in got["out/recipe.txt"]
    kept = {place.name for place in (remote.data / "content").rglob("*") if place.is_file()}
    assert not kept & {hashlib.sha256(data).hexdigest() for data in WORDS.values()}, "no blob stays here"
    cached = {place.name for place in (remote.data / "cache").rglob("*") if place.is_file()}
    assert {hashlib.sha256(data).hexdigest() for data in WORDS.values()} <= cached
    assert not list((remote.data / "cache" / "held").iterdir())


def test_a_job_ends_with_the_reason_when_the_store_lost_its_content(remote, moto, tmp_path):
    repository(tmp_path / "runner", {"runner.toml": runner_toml(entrypoint=None), "main.sh": "true\n"})
    publish(remote, tmp_path / "runner", "team/plain")
    client, name = moto.client(), hashlib.sha256(b"true\n").hexdigest()
    stored = [each["Key"] for each in client.list_objects_v2(Bucket=BUCKET)["Contents"]]
    for key in stored:
        if key.endswith(name):
            client.delete_object(Bucket=BUCKET, Key=key)
    job = remote.submit({"request_id": "lost", "spec": {"runner": "team/plain@main", "resources": RESOURCES}})
    [trial] = remote.wait_for_release(job)
    assert (trial["status"], trial["error"]["code"]) == ("failed", "CONTENT_DAMAGED"), trial
    revision = trial["runner"]["revision"]
    said = trial["error"]["message"]
    assert f"`trainshed content verify team/plain@{revision} --repair`, then `trainshed runner " in said
    assert said.endswith(f"then `trainshed job rerun {job}`.")
    assert trial["user_code_started"] is False
