"""P7 for Job Profiles: what ran is what was accepted, byte for byte, through a real server."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from support.profiles import DATASET_FILES, dependency, recipe_files, runner_toml
from support.programs import bash
from support.runners import publish, repository, trainshed
from support.server import ServerProcess
from support.waiting import wait_until
from trainshed.model.strict_json import canonical_json

EXAMPLE = Path(__file__).parents[2] / "examples" / "profile"
PROGRAM = """
set -e
mkdir outputs
cp "$TRAINSHED_PROFILE" outputs/profile.json
test "$ENVLOOP_JOB_PROFILE" = "$TRAINSHED_PROFILE"
for root in RECIPE INPUTS PLUGINS DEPENDENCIES; do
  name="TRAINSHED_$root"
  (cd "${!name}" && find -L . -type f -exec sha256sum {} +) | sort -k2 > "outputs/$root"
  if ! [ -w "${!name}" ] || ! touch "${!name}/written" 2>/dev/null; then echo "$root is read-only"; fi
done
"""


def published(server: ServerProcess, kind: str, folder: Path, name: str, *options: str) -> dict[str, Any]:
    done = trainshed(server, kind, "publish", str(folder), "--name", name, *options, "--json")
    return dict(json.loads(done.stdout))


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return folder


def reference(item: dict[str, Any], **more: str) -> dict[str, str]:
    return {"uri": item["uri"], "manifest_sha256": item["manifest_sha256"], **more}


def ran(server: ServerProcess, request: dict[str, Any], folder: Path) -> tuple[dict[str, Any], Path]:
    """Submit a request file, wait, download the outputs; the Trial and where they are."""
    file = folder / "request.json"
    file.write_text(json.dumps(request))
    done = trainshed(server, "job", "submit", "--spec", str(file), "--wait", "--json", check=False)
    log = trainshed(server, "job", "log", json.loads(done.stdout)["job_id"]).stdout
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{log}"
    [trial] = json.loads(done.stdout)["training"]["trials"]
    trainshed(server, "trial", "download", trial["trial_id"], "--to", str(folder / "got"))
    return trial, folder / "got"


def test_E98_the_example_trains_as_its_profile_says(module_server: ServerProcess, tmp_path: Path):
    server = module_server
    repository(tmp_path / "runner", {f.name: f.read_bytes() for f in (EXAMPLE / "runner").iterdir()})
    runner = publish(server, tmp_path / "runner", "examples/recipe-runner")
    recipe = published(server, "recipe", EXAMPLE / "recipe", "examples/digits-recipe")
    data = published(server, "dataset", EXAMPLE / "dataset", "examples/digits", "--version", "1")
    profile = {
        "schema": "envloop.job-profile/v2",
        "recipe": reference(recipe),
        "parameters": {"epochs": 3},
        "inputs": {
            "data": reference(data, config="default", split="train"),
            "heldout": reference(data, config="default", split="heldout"),
        },
        "plugins": [],
    }
    request = {
        "type": "train",
        "request_id": "e2e",
        "spec": {"runner": runner["selector"], "profile": profile},
    }
    trial, outputs = ran(server, request, tmp_path)
    seen = (outputs / "outputs" / "profile.json").read_bytes()
    assert seen == canonical_json(trial["profile"]).encode()
    assert hashlib.sha256(seen).hexdigest() == trial["profile_sha256"]
    assert json.loads(seen)["parameters"] == {"epochs": 3, "seed": 0, "learning_rate": "0.05"}
    metrics = json.loads((outputs / "outputs" / "metrics.json").read_bytes())
    assert (metrics["epoch"], metrics["samples"]) == (3, 1000)
    assert metrics["heldout_accuracy"] > 0.9


@pytest.mark.parametrize("schema", ["v1", "v2"])
def test_E91_E94_E102_everything_a_profile_names_is_there_as_published_and_cannot_be_changed(
    module_server: ServerProcess, tmp_path: Path, schema: str
):
    server = module_server
    trees = {
        "DEPENDENCIES": write(tmp_path / "common", recipe_files("# common")),
        "INPUTS": write(tmp_path / "data", DATASET_FILES),
        "PLUGINS": write(tmp_path / "tools", {"tools/a b.py": b"x = 1\n", "LICENSE": b""}),
    }
    common = published(server, "recipe", trees["DEPENDENCIES"], "frozen/common", "--version", schema)
    pinned = dependency("common", common["uri"], common["manifest_sha256"])
    trees["RECIPE"] = write(tmp_path / "recipe", recipe_files(pinned))
    recipe = published(server, "recipe", trees["RECIPE"], "frozen/recipe")
    data = published(server, "dataset", trees["INPUTS"], "frozen/data", "--version", schema)
    plugin = published(server, "plugin", trees["PLUGINS"], "frozen/tools")
    trainshed(server, "plugin", "approve", plugin["uri"].removeprefix("envloop://plugins/"), "--yes")
    repository(
        tmp_path / "runner",
        {
            "runner.toml": runner_toml(
                "envloop.train-recipe/1", "envloop.job-profile/v1", outputs=("outputs/**",)
            ),
            "main.sh": PROGRAM
            if schema == "v2"
            else PROGRAM.replace("RECIPE ", "").replace(" DEPENDENCIES", ""),
        },
    )
    runner = publish(server, tmp_path / "runner", "frozen/runner")
    profile: dict[str, Any] = {
        "schema": f"envloop.job-profile/{schema}",
        "recipe": {"steps": 1} if schema == "v1" else reference(recipe),
        "inputs": {"data": reference(data)},
        "plugins": [reference(plugin)],
    }
    if schema == "v2":
        profile["parameters"] = {"steps": 1}
    request = {
        "type": "train",
        "request_id": f"whole-{schema}",
        "spec": {"runner": runner["selector"], "profile": profile},
    }
    trial, outputs = ran(server, request, tmp_path)
    assert (outputs / "outputs/profile.json").read_bytes() == canonical_json(trial["profile"]).encode()
    below = {"RECIPE": "", "INPUTS": "data/", "PLUGINS": "frozen/tools/", "DEPENDENCIES": "common/"}
    names = below if schema == "v2" else {"INPUTS": below["INPUTS"], "PLUGINS": below["PLUGINS"]}
    for name in names:
        wanted = sorted(
            (
                f"./{below[name]}{place.relative_to(trees[name]).as_posix()}",
                hashlib.sha256(place.read_bytes()),
            )
            for place in trees[name].rglob("*")
            if place.is_file()
        )
        lines = (outputs / "outputs" / name).read_text().splitlines()
        assert sorted((line[66:], line[:64]) for line in lines) == [(a, b.hexdigest()) for a, b in wanted]
    log = trainshed(server, "job", "log", trial["job_id"]).stdout
    assert sorted(line.split()[-3] for line in log.splitlines() if "is read-only" in line) == sorted(names)


def test_A2_E94_a_trial_that_waits_does_not_start_when_its_plugin_was_revoked(
    module_server: ServerProcess, tmp_path: Path
):
    server = module_server
    plugin = published(server, "plugin", write(tmp_path / "p", {"a.py": b"1\n"}), "waiting/tools")
    package = plugin["uri"].removeprefix("envloop://plugins/")
    trainshed(server, "plugin", "approve", package, "--yes")
    text = runner_toml("envloop.job-profile/v1", entrypoint=None)
    repository(tmp_path / "runner", {"runner.toml": text, "main.sh": "true\n"})
    runner = publish(server, tmp_path / "runner", "waiting/runner")["selector"]
    hog = server.submit(bash("sleep 600", "hog", resources={"gpus": 8}))
    wait_until(lambda: server.job(hog)["training"]["trials"][0]["status"] == "running")
    profile = {
        "schema": "envloop.job-profile/v1",
        "recipe": {},
        "inputs": {},
        "plugins": [reference(plugin)],
    }
    spec = {"runner": runner, "profile": profile}
    waiting = server.submit({"type": "train", "request_id": "waits", "spec": spec})
    trainshed(server, "plugin", "revoke", package)
    server.http().post(f"/v1/jobs/{hog}/stop")
    server.wait_for_job(waiting, {"failed"})
    [trial] = server.job(waiting)["training"]["trials"]
    assert (trial["error"]["code"], trial["user_code_started"]) == ("ACCESS_DENIED", False)
    assert "waiting/tools" in trial["error"]["message"]
