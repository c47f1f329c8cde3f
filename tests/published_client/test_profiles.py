"""The published client submits the seed's Job Profile, and prints why one is refused (E6, E98, b13)."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from support.profiles import ABI, DATASET_FILES, recipe_files, runner_toml
from support.runners import publish, repository, trainshed


def _published(server, folder: Path, kind: str, name: str, files: dict[str, bytes]) -> dict[str, str]:
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    item = json.loads(trainshed(server, kind, "publish", str(folder), "--name", name, "--json").stdout)
    return {key: item[key] for key in ("uri", "manifest_sha256")}


@pytest.fixture(scope="module")
def spec(module_server, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The spec of a Trial with the seed's Profile."""
    folder = tmp_path_factory.mktemp("profile")
    repository(folder / "runner", {"runner.toml": runner_toml(ABI), "main.sh": 'cat "$TRAINSHED_PROFILE"\n'})
    recipe = _published(module_server, folder / "recipe", "recipe", "seed/recipe", recipe_files())
    data = _published(module_server, folder / "data", "dataset", "seed/data", DATASET_FILES)
    return {
        "runner": publish(module_server, folder / "runner", "seed/runner")["selector"],
        "resources": {"gpu_type": "H100", "gpus": 1},
        "profile": {
            "schema": "envloop.job-profile/v2",
            "recipe": recipe,
            "parameters": {"steps": 1},
            "inputs": {"data": {**data, "config": "default", "split": "train"}},
            "plugins": [],
        },
    }


def test_E98_the_seeds_profile_runs_and_is_shown(client, spec, tmp_path):
    file = tmp_path / "request.json"
    file.write_text(json.dumps({"request_id": str(uuid.uuid4()), "spec": spec}))
    job = client.el("job", "submit", "--type", "train", "--file", str(file), "--wait").json
    [trial] = job["training"]["trials"]
    assert trial["profile"]["parameters"]["lr"] == "0.001"
    log = client.el("job", "log", job["job_id"], "--json").json["items"]
    [line] = [item["content"] for item in log if item["source"] == "runtime"]
    assert json.loads(line) == trial["profile"]


def test_E6_the_sdk_freezes_the_same(client, spec):
    answer = client.sdk(
        "answer = client.training_jobs.submit({'request_id': request_id, 'spec': spec})",
        request_id=str(uuid.uuid4()),
        spec=spec,
    )
    assert answer["trials"][0]["profile"]["parameters_given"] == {"steps": 1}


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"parameters": {"steps": 0}}, "INVALID_PROFILE"),
        (
            {"recipe": {"uri": f"envloop://recipes/no/such@{'0' * 64}", "manifest_sha256": "0" * 64}},
            "ACCESS_DENIED",
        ),
    ],
)
def test_b13_refusals_of_profiles_are_printed_by_name(client, spec, tmp_path, change, code):
    file = tmp_path / "request.json"
    changed = {**spec, "profile": {**spec["profile"], **change}}
    file.write_text(json.dumps({"request_id": str(uuid.uuid4()), "spec": changed}))
    assert code in client.el("job", "submit", "--type", "train", "--file", str(file), expect=1).err
