"""Pulls that stall or fail through a whole server, podman and a registry with faults (C38, E42)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from support.faulty_registry import Fault, FaultyRegistry, faulty_registry
from support.registry import Registry
from support.server import ServerProcess
from support.waiting import wait_until

DONE = {"Succeeded", "Failed", "Stopped"}
HALTS, REFUSES = Fault(halts_after=10), Fault(status=503)
ALWAYS = 1000
STARTED = "user code has started"


@pytest.fixture(scope="module")
def faulty(registry: Registry) -> Iterator[FaultyRegistry]:
    with faulty_registry(registry) as running:
        yield running


@pytest.fixture(scope="module")
def server(faulty: FaultyRegistry, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Every image has a server's cache of its own, so that nothing is there before it is pulled."""
    del faulty  # it outlives the pulls
    folder = tmp_path_factory.mktemp("pulls")
    settings = folder / "trainshed.toml"
    settings.write_text('[images]\nruntime = "podman"\npull_retries = 2\nstall_seconds = 1.5\n')
    running = ServerProcess(folder / "data", gpus="H100:2", options=["--config", str(settings)])
    running.start()
    yield running
    running.stop()


@pytest.fixture
def image(faulty: FaultyRegistry, request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """An image that this test alone knows, and the digest of its only layer of its own."""
    name = f"pulled-{sha256(request.node.name.encode()).hexdigest()[:12]}"
    registry = faulty.registry
    digest = registry.push(registry.image("python", marker=name), f"team/{name}", "1")
    yield faulty.name(f"team/{name}", digest), faulty.layers(f"team/{name}", digest)[-1]
    faulty.faults = {}


def codes(server: ServerProcess, job: str, code: str) -> list[str]:
    """What the Job's events of this code say, the oldest first."""
    items = server.http().get(f"/v1/jobs/{job}/events").json["items"]
    return [event["message"] for event in reversed(items) if event["code"] == code]


def submit_trial(server: ServerProcess, image: str) -> str:
    spec = {"runner": "envloop/bash@main", "command": f"echo {STARTED}", "image": image}
    spec["resources"] = {"gpu_type": "H100", "gpus": 1}
    answer = server.http().post("/v1/jobs", {"type": "train", "request_id": image[-40:], "spec": spec})
    assert answer.status == 201, answer.body
    return str(answer.json["job_id"])


def trial_of(server: ServerProcess, job: str) -> dict[str, Any]:
    """The only Trial of a Job, once it is over and released."""
    (trial,) = server.wait_for_release(job, 120.0)
    return dict(server.http().get(f"/v1/trials/{trial['trial_id']}").json)


def starts(server: ServerProcess, job: str) -> int:
    records = server.log_records(job)
    return sum(record["content"].strip() == STARTED for record in records)


def submit_task(server: ServerProcess, image: str, retries: int) -> str:
    """A gang of two in the image; its name."""
    spec = {
        "kind": "pytorch",
        "name_prefix": "pulls",
        "image": image,
        "image_pull_retries": retries,
        "cmd": f"echo {STARTED}",
        "resource_type": "ondemand",
        "instance": {"specs": ["h100x1"]},
        "workers": 1,
    }
    answer = server.http().post("/v1/jobs", {"type": "train", "spec": spec})
    assert answer.status == 201, answer.body
    return str(answer.json["name"])


def task_of(server: ServerProcess, name: str) -> dict[str, Any]:
    def over() -> dict[str, Any] | None:
        task = server.http().get(f"/v1/tasks/{name}").json
        return dict(task) if task["state"] in DONE else None

    task = wait_until(over, 120, f"{name} to end")
    server.wait_for_release(task["job_id"])
    return task


def task_starts(server: ServerProcess, name: str) -> list[int]:
    """How often user code started in the master and in the worker."""
    pages = [server.http().get(f"/v1/tasks/{name}/logs?role={role}").json for role in ("master", "worker")]
    return [sum(item["content"] == STARTED for item in page["items"]) for page in pages]


def test_C38_a_trial_whose_pull_stalls_twice_starts_once_the_image_comes(
    server: ServerProcess, faulty: FaultyRegistry, image: tuple[str, str]
) -> None:
    name, layer = image
    faulty.faults = {layer: [HALTS, HALTS]}
    job = submit_trial(server, name)
    trial = trial_of(server, job)
    assert (trial["state"], trial["error"]) == ("succeeded", None)
    ends = [attempt["ended_by"] for attempt in trial["attempts"]]
    assert ends == ["not_pulled", "not_pulled", "exit"]
    assert starts(server, job) == 1
    failed = codes(server, job, "IMAGE_PULL_FAILED")
    assert [message.partition(" failed (")[0] for message in failed] == [
        "Pull 1 of at most 3",
        "Pull 2 of at most 3",
    ]
    assert all("nothing came for 1.5 seconds" in message for message in failed)
    assert faulty.asked[layer] == 3


def test_C38_a_trial_whose_image_never_comes_fails_as_the_server_is_set_with_the_last_words(
    server: ServerProcess, faulty: FaultyRegistry, image: tuple[str, str]
) -> None:
    name, layer = image
    faulty.faults = {layer: [REFUSES] * ALWAYS}
    trial = trial_of(server, submit_trial(server, name))
    assert (trial["state"], trial["error"]["code"]) == ("failed", "IMAGE_PULL_FAILED")
    assert trial["user_code_started"] is False
    assert [attempt["ended_by"] for attempt in trial["attempts"]] == ["not_pulled"] * 3
    assert "was not pulled in 3 tries" in trial["error"]["message"]
    assert "503" in trial["error"]["message"], "what podman said last"


def test_E42_a_job_tells_what_share_of_its_image_has_come(
    server: ServerProcess, faulty: FaultyRegistry, tmp_path: Path
) -> None:
    (tmp_path / "random").write_bytes(os.urandom(8 << 20))
    registry = faulty.registry
    built = registry.build("shares", tmp_path, registry.image("python"))
    digest = registry.push(built, "team/shares", "1")
    name = faulty.name("team/shares", digest)
    faulty.faults = {faulty.layers("team/shares", digest)[-1]: [Fault(trickles=True)]}
    job = submit_trial(server, name)
    share = re.compile(rf"Pulling {re.escape(name)}: \d+ % of [\d.]+ MB\.")
    wait_until(
        lambda: any(share.fullmatch(message) for message in codes(server, job, "PREPARING")), 60, "the share"
    )
    faulty.flows.set()
    assert trial_of(server, job)["state"] == "succeeded"


@pytest.mark.parametrize("retries", [2, -1])
def test_C38_a_gang_whose_pull_fails_and_stalls_first_starts_each_member_once_in_one_attempt(
    server: ServerProcess, faulty: FaultyRegistry, image: tuple[str, str], retries: int
) -> None:
    name, layer = image
    faulty.faults = {layer: [REFUSES] * ALWAYS}
    task = submit_task(server, name, retries)
    job = str(server.http().get(f"/v1/tasks/{task}").json["job_id"])
    wait_until(lambda: codes(server, job, "IMAGE_PULL_RETRY"), 60, "the first failure")
    faulty.faults = {layer: [HALTS]}
    over = task_of(server, task)
    assert over["state"] == "Succeeded", over["failure"]
    (attempt,) = over["attempts"]
    assert [replica["state"] for replica in attempt["replicas"]] == ["Succeeded", "Succeeded"]
    assert task_starts(server, task) == [1, 1]
    retried = codes(server, job, "IMAGE_PULL_RETRY")
    bound = "" if retries < 0 else f" of {retries}"
    assert [message.partition(f" of {name}")[0] for message in retried] == [
        f"Pull retry 1{bound}",
        f"Pull retry 2{bound}",
    ]
    assert "503" in retried[0]
    assert "nothing came for 1.5 seconds" in retried[1]


def test_C38_a_gang_without_retries_fails_at_the_first_failure(
    server: ServerProcess, faulty: FaultyRegistry, image: tuple[str, str]
) -> None:
    name, layer = image
    faulty.faults = {layer: [HALTS]}
    over = task_of(server, submit_task(server, name, 0))
    assert (over["state"], over["failure"]["code"]) == ("Failed", "IMAGE_PULL_FAILED")
    assert "nothing came for 1.5 seconds" in over["failure"]["message"]
    assert faulty.asked[layer] == 1
    assert codes(server, over["job_id"], "IMAGE_PULL_RETRY") == []
