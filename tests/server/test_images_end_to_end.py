"""Trials in images through a real server and the command line: registry, runtime, digests (E41-E45, E62)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from support.registry import Registry
from support.runners import definition, repository
from support.server import ServerProcess
from support.waiting import wait_until
from trainshed.jobkit import mounts

MARK = "only this image says so"


@pytest.fixture(scope="module", params=["podman", "docker"])
def server(
    request: pytest.FixtureRequest, registry: Registry, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """One GPU, so that Trials wait for each other; images are run by each runtime in turn."""
    del registry  # whoever has it has podman
    environment = {}
    if request.param == "docker":
        environment["DOCKER_HOST"] = request.getfixturevalue("docker_host")
    folder = tmp_path_factory.mktemp("images")
    data, settings = folder / "data", folder / "trainshed.toml"
    settings.write_text(f'[images]\nruntime = "{request.param}"\n')
    running = ServerProcess(data, gpus="H100:1", options=["--config", str(settings)], environment=environment)
    running.start()
    assert running.http().get("/v1/system").json["images"]["reason"] is None
    yield running
    running.stop()
    assert _containers(data, environment) == []
    assert mounts.mounted_below(str(data)) == []


def _containers(data: Path, environment: Mapping[str, str]) -> list[str]:
    """What either runtime still keeps of containers."""
    if not environment:
        folder = data / "local" / "images" / "store" / "overlay-containers"
        return [entry.name for entry in folder.iterdir() if entry.is_dir()]
    command = ["docker", f"--host={environment['DOCKER_HOST']}", "ps", "--all", "--quiet"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


@pytest.fixture(scope="module")
def el(server: ServerProcess) -> Callable[..., Any]:
    """Run the command line with ``--json``; it must succeed with one document."""
    own = {
        name: value for name, value in os.environ.items() if not name.startswith(("TRAINSHED_", "ENVLOOP_"))
    }

    def el(*arguments: str) -> Any:
        done = subprocess.run(
            [sys.executable, "-m", "trainshed", *arguments, "--json"],
            capture_output=True,
            text=True,
            env={**own, **server.environment},
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, f"{done.stderr}\n{server.log.read_text()[-2000:]}"
        return json.loads(done.stdout)

    return el


@pytest.fixture(scope="module")
def image(registry: Registry) -> str:
    """By its tag; the same bytes as the engine's tests use, with a mark of its own."""
    registry.push(registry.image("python", marker=MARK), "team/trained", "1")
    return registry.name("team/trained", "1")


def submit(el: Callable[..., Any], command: str, *options: str, runner: str = "envloop/bash@main") -> str:
    receipt = el(
        "job", "submit", "--type", "train", "--runner", runner, "--gpu-type", "H100", "--gpu", "1",
        *(("--command", command) if command else ()), *options,
    )  # fmt: skip
    return str(receipt["job_id"])


def ended(el: Callable[..., Any], server: ServerProcess, job: str) -> dict[str, Any]:
    """The only Trial of a Job, once that is over and released."""
    wait_until(
        lambda: server.http().get(f"/v1/jobs/{job}").json["status"] in {"completed", "failed"}, 90, "the end"
    )
    (listed,) = el("trial", "list", "--job-id", job)["items"]
    wait_until(
        lambda: server.http().get(f"/v1/trials/{listed['trial_id']}").json["cleanup_confirmed"],
        60,
        "the release",
    )
    return dict(el("trial", "get", listed["trial_id"]))


def test_E41_E62_a_trial_runs_in_the_image_that_was_asked_for(
    el: Callable[..., Any], server: ServerProcess, registry: Registry, image: str
) -> None:
    command = (
        "mkdir -p outputs; cp /marker outputs/marker.txt; python3 -c 'import sys; print(sys.executable)'"
    )
    trial = ended(el, server, submit(el, command, "--docker", image))
    assert trial["state"] == "succeeded", trial
    digest = registry.digest("team/trained", "1")
    assert trial["image"] == {
        "requested": image,
        "resolved": registry.name("team/trained", digest=digest),
        "digest": digest,
    }
    assert trial["cleanup_confirmed"] is True
    (artifact,) = el("trial", "artifacts", trial["trial_id"])["items"]
    assert (artifact["name"], artifact["size"]) == ("outputs/marker.txt", len(MARK))
    events = server.http().get(f"/v1/jobs/{trial['job_id']}/events").json["items"]
    assert any("Pull" in json.dumps(event) for event in events)


def test_E10_a_runner_in_python_starts_with_the_images_python(
    el: Callable[..., Any], server: ServerProcess, image: str, tmp_path: Path
) -> None:
    text = "import os, shutil\nos.mkdir('out')\nshutil.copy('/marker', 'out/m')\n"
    files = {"runner.toml": definition("main.py", outputs=("out/**",)), "main.py": text}
    repository(tmp_path / "runner", files)
    published = el("runner", "publish", str(tmp_path / "runner"), "--name", "images/python")
    trial = ended(el, server, submit(el, "", "--docker", image, runner=published["selector"]))
    assert trial["state"] == "succeeded", trial
    (artifact,) = el("trial", "artifacts", trial["trial_id"])["items"]
    assert artifact["size"] == len(MARK)


def test_E43_a_tag_that_moves_while_the_trial_waits_changes_nothing(
    el: Callable[..., Any], server: ServerProcess, registry: Registry, image: str, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    holder = submit(el, f"while [ ! -e {go} ]; do sleep 0.1; done")
    wait_until(lambda: server.http().get(f"/v1/jobs/{holder}").json["status"] == "running", 60, "the holder")
    before = registry.digest("team/trained", "1")
    job = submit(el, "mkdir outputs; cp /marker outputs/m", "--docker", image)
    registry.push(registry.image("busybox", marker="another"), "team/trained", "1")
    try:
        assert registry.digest("team/trained", "1") != before
        go.touch()
        trial = ended(el, server, job)
    finally:
        registry.push(registry.image("python", marker=MARK), "team/trained", "1")
    assert trial["state"] == "succeeded", trial
    assert trial["image"]["resolved"].endswith(before)
    (artifact,) = el("trial", "artifacts", trial["trial_id"])["items"]
    assert artifact["size"] == len(MARK)


def test_E45_A10_an_image_that_cannot_start_runners_fails_the_trial_before_user_code(
    el: Callable[..., Any], server: ServerProcess, registry: Registry
) -> None:
    registry.push(registry.image("busybox", marker="no bash"), "team/bare", "1")
    trial = ended(el, server, submit(el, "true", "--docker", registry.name("team/bare", "1")))
    assert trial["state"] == "failed"
    assert trial["user_code_started"] is False
    assert trial["cleanup_confirmed"] is True
    assert "has no Bash" in json.dumps(trial)
    assert "IMAGE_UNSUITABLE" in json.dumps(trial)


def test_P14_a_trial_in_an_image_outlives_its_server(
    el: Callable[..., Any], server: ServerProcess, image: str
) -> None:
    command = "mkdir outputs; while [ ! -e go ]; do sleep 0.1; done; cp /marker outputs/m"
    job = submit(el, command, "--docker", image)
    wait_until(lambda: server.http().get(f"/v1/jobs/{job}").json["status"] == "running", 60, "the start")
    (listed,) = el("trial", "list", "--job-id", job)["items"]
    server.kill()
    server.start()
    attempts = server.data / "local" / "attempts"
    works = wait_until(
        lambda: [each for each in attempts.glob("*/work") if not (each.parent / "exit.json").exists()]
    )
    (works[0] / "go").touch()
    trial = ended(el, server, job)
    assert trial["trial_id"] == listed["trial_id"]
    assert (trial["state"], trial["cleanup_confirmed"]) == ("succeeded", True), trial
