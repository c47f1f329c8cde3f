"""Datasets and Models of a task are brought here before its members start: told, stopped, named (C11-C13)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from support.deployment import Deployment, Inline
from support.gangs import GangDeployment, task
from support.local_content import Slow
from support.prepared import READS_PROFILES, profile_of
from support.waiting import wait_until
from trainshed.content.blobs import FolderBlobStore
from trainshed.content.local import LocalContent
from trainshed.engines.fake import ImageScript, Script
from trainshed.model.content import ContentKind
from trainshed.model.states import AllocationState, State
from trainshed.model.training.spec import Mount, MountType
from trainshed.server.task_views import shown
from trainshed.store import jobs

IMAGE = "registry.example/team/train@sha256:" + "5" * 64
FILES = {"a.txt": b"one", "train/b.txt": b"two"}
PIECES = 4
LARGE = {"large.bin": b"x" * PIECES * Slow.PIECE}


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Slow]:
    """What the node reads blobs from: far away, and it gives large files a piece at a time."""
    made = Slow(FolderBlobStore(tmp_path / "site" / "blobs"))

    def content(d: Deployment) -> LocalContent:
        return LocalContent(d.root / "cache", made, clock=d.now)

    monkeypatch.setattr(Deployment, "content", content)
    yield made
    made.give(1000)


@pytest.fixture
def threaded(slow: Slow, site: Callable[..., GangDeployment]) -> GangDeployment:
    """A deployment that prepares in threads, as a server does."""

    def executor(name: str) -> Executor:
        return ThreadPoolExecutor(4) if name == "prepare" else Inline()

    return site(default=Script(run_seconds=None), executor=executor)


def create(
    d: GangDeployment,
    files: dict[str, bytes],
    sub_path: str | None = None,
    *,
    at: str = "/mnt/data",
    image: str | None = None,
) -> str:
    """A task that mounts a Dataset with these files, as the door accepts it; an ``image`` comes first."""
    made = d.publish_content(ContentKind.DATASETS, "team/words", files)
    mount = Mount(MountType.DATASET, "team/words@1", at, sub_path, read_only=True)
    job = d.create(task(mounts=(mount,), image=image or "host"), image=image)
    row = {
        "trial_id": d.trial(job).id,
        "role": f"mount:{at}",
        "kind": "datasets",
        "name": "team/words",
        "version": "1",
        "manifest_sha256": made["manifest_sha256"],
    }
    d.database.write(lambda connection: jobs.insert_contents(connection, [row]))
    return job


def told(d: GangDeployment, job: str) -> list[str]:
    return [event.message for event in d.facts(job).events if event.code == "PREPARING"]


def until(d: Any, condition: Callable[[], object]) -> None:
    """Let the controller work until ``condition`` holds, without virtual time passing."""

    def look() -> bool:
        d.step()
        return bool(condition())

    wait_until(look)


def begin(d: GangDeployment, slow: Slow) -> str:
    """A task whose large file comes, one of its pieces so far, two seconds after it was placed."""
    job = create(d, LARGE)
    until(d, lambda: slow.asked.acquire(blocking=False))
    d.pass_time(2.0)
    slow.give(1)
    until(d, lambda: told(d, job))
    return job


def test_C11_how_far_a_content_is_brought_is_told_while_its_task_prepares(
    threaded: GangDeployment, slow: Slow
):
    job = begin(threaded, slow)
    assert told(threaded, job) == ["Bringing datasets/team/words@1 here: 25 % of 0.262 MB."]
    assert threaded.trial(job).state is State.PREPARING
    slow.give(PIECES)
    until(threaded, lambda: threaded.trial(job).state is State.RUNNING)
    assert told(threaded, job)[-1] == "Prepared in 2.0 s."
    threaded.stop(job)
    until(threaded, lambda: threaded.facts(job).settled)


def test_c1_the_state_tells_whether_the_image_is_pulled_or_what_is_mounted_is_brought(
    threaded: GangDeployment, slow: Slow
):
    threaded.engine.script_image(IMAGE, ImageScript(seconds=5.0))
    job = create(threaded, LARGE, image=IMAGE)

    def page() -> tuple[str, str | None, set[str]]:
        seen = shown(threaded.task(job), threaded.trial(job), (), threaded.now())
        return seen.word, seen.sub_state, {each.state for each in threaded.replicas(job)}

    until(threaded, lambda: threaded.world.prepared[IMAGE])
    assert page() == ("PullingImage", "pulling", {"Pulling"})
    threaded.pass_time(5.0)
    until(threaded, lambda: slow.asked.acquire(blocking=False))
    assert page() == ("Starting", "content", {"Starting"})
    slow.give(PIECES)
    until(threaded, lambda: threaded.trial(job).state is State.RUNNING)
    assert page() == ("Running", None, {"Running"})
    threaded.stop(job)
    until(threaded, lambda: threaded.facts(job).settled)


def test_C36_a_stop_while_a_content_comes_ends_the_task_at_once(threaded: GangDeployment, slow: Slow):
    job = begin(threaded, slow)
    threaded.stop(job)
    threaded.step()
    slow.give(1)
    until(threaded, lambda: threaded.facts(job).settled)
    facts = threaded.facts(job)
    assert (facts.trial.state, facts.trial.user_code_started) == (State.CANCELLED, False)
    assert [each.state for each in facts.allocations[facts.trial.id]] == [AllocationState.RELEASED]
    assert slow.given < PIECES, "what nobody wants any more is not fetched to its end"
    assert not threaded.engine.live()


def test_C11_damage_is_told_of_the_content_and_its_file_and_no_other_try_is_made(
    site: Callable[..., GangDeployment],
):
    d = site(default=Script(run_seconds=1.0))
    job = create(d, FILES)
    place = d.blobs.path(hashlib.sha256(b"two").hexdigest())
    place.chmod(0o644)
    place.write_bytes(b"TWO")
    facts = d.settle(job)
    assert (facts.trial.state, facts.trial.error_code) == (State.FAILED, "CONTENT_DAMAGED")
    assert "Dataset team/words@1 (mount `/mnt/data`): its file `train/b.txt`" in facts.trial.error_message
    assert "`trainshed content verify team/words@1 --repair`" in facts.trial.error_message
    assert f"`trainshed job rerun {job}`" in facts.trial.error_message
    assert len(d.attempts(job)) == 1


@pytest.mark.parametrize(
    ("sub_path", "seen"), [(None, FILES), ("train", {"b.txt": b"two"}), ("a.txt", b"one")]
)
def test_C11_C13_a_content_or_a_part_of_it_is_mounted_and_only_to_be_read(
    site: Callable[..., GangDeployment], sub_path: str | None, seen: Any
):
    d = site(default=Script(run_seconds=1.0))
    job = create(d, FILES, sub_path)
    d.step()
    [unit] = d.units(job)
    [mount] = d.world.attempts[unit].launch.mounts
    assert (mount.target, mount.writable) == ("/mnt/data", False)
    if mount.source.is_file():
        assert mount.source.read_bytes() == seen
    else:
        files = [file for file in mount.source.rglob("*") if file.is_file()]
        assert {str(file.relative_to(mount.source)): file.read_bytes() for file in files} == seen
    assert d.settle(job).trial.state is State.SUCCEEDED


def test_C11_a_part_that_is_not_there_at_the_node_ends_the_task_for_good_and_shows_no_path_of_the_server(
    site: Callable[..., GangDeployment],
):
    d = site(default=Script(run_seconds=1.0))
    job = create(d, FILES, "trian")
    facts = d.settle(job)
    assert (facts.trial.state, facts.trial.error_code) == (State.FAILED, "MOUNT_SUB_PATH_UNKNOWN")
    said = "Dataset team/words@1 (mount `/mnt/data`): it has no file or folder `trian`"
    assert said in facts.trial.error_message
    assert len(d.attempts(job)) == 1
    assert not any(str(d.root) in event.message for event in facts.events)


def test_E91_how_far_an_input_of_a_trial_is_brought_is_told_the_same(threaded: GangDeployment, slow: Slow):
    profile = profile_of(threaded)
    profile["inputs"]["words"] = threaded.publish_content(ContentKind.DATASETS, "team/words", LARGE)
    job = threaded.submit(threaded.publish(**READS_PROFILES), profile=profile)
    until(threaded, lambda: slow.asked.acquire(blocking=False))
    threaded.pass_time(2.0)
    slow.give(1)
    until(threaded, lambda: told(threaded, job))
    digest = profile["inputs"]["words"]["manifest_sha256"]
    assert told(threaded, job) == [f"Bringing datasets/team/words@{digest} here: 25 % of 0.262 MB."]
    slow.give(PIECES)
    threaded.stop(job)
    until(threaded, lambda: threaded.facts(job).settled)
