"""P7 for images: what runs is the image that the tag named when the Job was accepted (E42, E43, E62)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.programs import BASH
from support.registry import Registry
from support.runners import trainshed
from support.server import ServerProcess

WAITS = "echo holding; while true; do sleep 0.2; done"


@pytest.fixture
def image_server(module_server: ServerProcess) -> ServerProcess:
    """A real server whose engine runs images."""
    found = module_server.http().get("/v1/system").json["images"]
    if found["reason"] is not None:
        pytest.skip(f"no image can run on this machine: {found['reason']}")
    return module_server


def submit(server: ServerProcess, *options: str) -> str:
    done = trainshed(server, "job", "submit", "--runner", BASH, "--gpu-type", "H100", *options, "--json")
    return str(json.loads(done.stdout)["job_id"])


def only_trial(server: ServerProcess, job_id: str) -> dict[str, Any]:
    (trial,) = server.http().get(f"/v1/jobs/{job_id}").json["training"]["trials"]
    return dict(trial)


def test_E43_a_tag_that_moves_while_its_trial_waits_does_not_change_what_runs(
    image_server: ServerProcess, registry: Registry
):
    old = registry.push(registry.image("python", marker="the old image"), "p7/tool", "v1")
    name = registry.name("p7/tool", "v1")
    holder = submit(image_server, "--gpu", "8", "--command", WAITS)
    waiting = submit(image_server, "--gpu", "1", "--docker", name, "--command", "cat /marker")
    new = registry.push(registry.image("python", marker="the new image"), "p7/tool", "v1")
    fresh = submit(image_server, "--gpu", "1", "--image", name, "--command", "cat /marker")
    assert only_trial(image_server, waiting)["status"] == "queued"
    trainshed(image_server, "job", "stop", holder)

    for job, digest, said in ((waiting, old, "the old image"), (fresh, new, "the new image")):
        trainshed(image_server, "job", "wait", job)
        trial = only_trial(image_server, job)
        assert (trial["status"], trial["cleanup_confirmed"]) == ("succeeded", True)
        resolved = registry.name("p7/tool", digest=digest)
        assert trial["image"] == {"requested": name, "resolved": resolved, "digest": digest}
        log = trainshed(image_server, "job", "log", job, "--source", "runtime").stdout
        assert said in log
        shown = trainshed(image_server, "trial", "get", trial["trial_id"]).stdout
        assert resolved in shown
        assert f"asked for as {name}" in shown
