"""What a program finds is brought to the node before it starts: shown, watched, stopped, retried, resumed."""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from support.deployment import (
    Crash,
    Deployment,
    Facts,
    FakeDeployment,
    Inline,
    crashing_at,
    fleet,
)
from support.prepared import IMAGE, READS_PROFILES, RECIPE, profile_of, with_image
from support.waiting import wait_until
from trainshed.content.blobs import StoreUnavailable
from trainshed.content.local import LocalContent
from trainshed.content.verified import explained
from trainshed.control.crashpoints import Point
from trainshed.control.launching import content_mount, inputs_of
from trainshed.control.preparing import Preparer
from trainshed.engines.contract import EngineError, Launch, Mount
from trainshed.engines.fake import ImageScript, Script
from trainshed.model.content import ContentKind
from trainshed.model.states import AllocationState, State
from trainshed.store import checkpoints, contents, jobs, plugins
from trainshed.store.records import Trial


def launched(d: FakeDeployment, trial: Trial) -> Launch:
    return d.world.attempts[d.attempt(trial)].launch


def seen(launch: Launch) -> dict[str, str]:
    """Every file that the program finds, by the path below its folder of mounts."""
    found = {}
    for mount in launch.mounts:
        files = [mount.source] if mount.source.is_file() else sorted(mount.source.rglob("*"))
        for file in files:
            if file.is_file():
                below = "" if file == mount.source else f"/{file.relative_to(mount.source)}"
                found[f"{mount.place}{below}"] = file.read_text()
    return found


def told(facts: Facts) -> list[str]:
    return [event.message for event in facts.events if event.code == "PREPARING"]


def holds(d: Deployment) -> list[str]:
    return sorted(place.name for place in (d.root / "cache" / "held").iterdir())


@pytest.fixture
def threaded(database, tmp_path) -> Iterator[Callable[..., FakeDeployment]]:
    """Deployments that prepare in threads, as a server does, so that it can take its (virtual) time."""
    made: list[FakeDeployment] = []

    def executor(name: str) -> Executor:
        return ThreadPoolExecutor(16) if name == "prepare" else Inline()

    def make(**options: Any) -> FakeDeployment:
        deployment = FakeDeployment(database, tmp_path / "fake", executor=executor, **options)
        made.append(deployment)
        return deployment

    yield make
    for each in made:
        each.controller.stop()
        each.close()


def until(d: FakeDeployment, condition: Callable[[], object]) -> None:
    """Let the controller work until ``condition`` holds, without virtual time passing."""

    def look() -> bool:
        d.step()
        return bool(condition())

    wait_until(look)


# What a program finds


def test_E91_a_profile_comes_as_a_file_and_what_it_names_as_folders(fake):
    d = fake()
    job = d.submit(d.publish(**READS_PROFILES), profile=profile_of(d))
    d.step()
    trial = d.facts(job).trial
    launch = launched(d, trial)
    assert seen(launch) == {
        "profile.json": trial.profile,
        "recipe/recipe.toml": seen(launch)["recipe/recipe.toml"],
        "recipe/train.py": "main",
        "recipe/x.sh": "#!",
        "dependencies/base/recipe.toml": RECIPE,
        "dependencies/base/train.py": "0",
        "inputs/words/train/a.txt": "one",
        "inputs/words/train/b.txt": "two",
        "plugins/team/extra/extra.py": "more",
    }
    assert launch.paths == {
        "TRAINSHED_PROFILE": "profile.json",
        "ENVLOOP_JOB_PROFILE": "profile.json",
        "TRAINSHED_RECIPE": "recipe",
        "TRAINSHED_INPUTS": "inputs",
        "TRAINSHED_PLUGINS": "plugins",
        "TRAINSHED_DEPENDENCIES": "dependencies",
    }
    assert hashlib.sha256(seen(launch)["profile.json"].encode()).hexdigest() == trial.profile_sha256


def test_P6_everything_that_was_held_is_let_go_with_the_release(fake):
    d = fake(default=Script(run_seconds=5.0))
    job = d.submit(d.publish(**READS_PROFILES), profile=profile_of(d))
    d.step()
    assert holds(d) == [d.attempt(d.facts(job).trial)]
    facts = d.settle(job)
    assert facts.trial.state is State.SUCCEEDED
    assert holds(d) == []


def test_a_checkpoint_to_resume_from_is_a_folder(fake):
    d = fake()
    first = d.submit(d.publish(tables="[checkpoints]\nresume = true\n"), "first")
    d.settle(first)
    files = {"adapter_config.json": b"{}", "adapter_model.safetensors": b"weights"}
    checkpoint = put_checkpoint(d, d.facts(first).trial, files)
    selector = d.publish(tables="[checkpoints]\nresume = true\n")
    job = d.submit(selector, "second", resume_from=checkpoint)
    d.step()
    launch = launched(d, d.facts(job).trial)
    assert seen(launch) == {f"checkpoint/{name}": data.decode() for name, data in files.items()}
    assert launch.paths == {"TRAINSHED_RESUME_FROM": "checkpoint"}


def put_checkpoint(d: Deployment, trial: Trial, files: dict[str, bytes]) -> str:
    """A registered Checkpoint of a Trial that has ended; its id."""
    blobs = {name: d.blobs.put(io.BytesIO(data)) for name, data in files.items()}
    with d.database.read() as connection:
        [attempt] = jobs.attempts_of(connection, [trial.id])[trial.id]
    made = d.ids.checkpoint()
    row = {
        "id": made,
        "project_id": trial.project_id,
        "job_id": trial.job_id,
        "trial_id": trial.id,
        "attempt_id": attempt.id,
        "folder": "out",
        "checkpoint_type": "lora",
        "base_model": "base",
        "created_at": d.now(),
    }
    listed = [
        {"checkpoint_id": made, "name": name, "size": blob.size, "sha256": blob.sha256}
        for name, blob in blobs.items()
    ]
    d.database.write(lambda c: checkpoints.insert_checkpoints(c, [row], listed))
    return made


@pytest.mark.parametrize(
    ("role", "place", "target"),
    [
        ("recipe", "recipe", None),
        ("input:words", "inputs/words", None),
        ("plugin:team/extra", "plugins/team/extra", None),
        ("dependency:base.more", "dependencies/base.more", None),
        ("mount:/mnt/data", "mounts/mnt/data", "/mnt/data"),
    ],
)
def test_C12_each_role_has_its_place(role, place, target):
    source = Path("/trees/x")
    assert content_mount(role, source) == Mount(source, place, target)


def test_variables_are_set_only_for_what_is_there():
    inputs = inputs_of([Mount(Path("/x"), "inputs/a"), Mount(Path("/y"), "inputs/b")])
    assert inputs.paths == {"TRAINSHED_INPUTS": "inputs"}
    assert inputs_of([]).paths == {}


def test_a_plain_trial_is_launched_at_once_and_asks_for_nothing_more(fake, monkeypatch):
    def unwanted(*_: object) -> None:
        raise AssertionError("nothing is to be prepared")

    monkeypatch.setattr(Preparer, "start", unwanted)
    monkeypatch.setattr(jobs, "contents_of", unwanted)
    d = fake()
    job = d.submit(d.publish(), trials=3)
    facts = d.settle(job)
    assert {trial.state for trial in facts.trials} == {State.SUCCEEDED}
    assert holds(d) == []


# Time


def test_an_image_is_made_present_before_the_program_starts(threaded):
    d = threaded()
    d.engine.script_image(IMAGE, ImageScript(60.0, ("Pulling 0 %.", "Pulling 50 %.")))
    job = d.submit(d.publish())
    with_image(d, job)
    until(d, lambda: told(d.facts(job)) == ["Pulling 0 %."])
    assert d.facts(job).trial.state is State.PREPARING
    assert d.attempt(d.facts(job).trial) not in d.world.attempts
    d.pass_time(61)
    until(d, lambda: d.facts(job).trial.state is State.RUNNING)
    assert launched(d, d.facts(job).trial).image == IMAGE
    assert told(d.facts(job))[-1] == "Prepared in 61.0 s."
    assert d.world.prepared[IMAGE] == 1


def test_progress_is_told_at_most_every_five_seconds(threaded):
    d = threaded()
    d.engine.script_image(IMAGE, ImageScript(30.0, tuple(f"{n} of 30" for n in range(30))))
    job = d.submit(d.publish())
    with_image(d, job)
    until(d, lambda: told(d.facts(job)))
    for second in range(1, 31):
        d.pass_time(1)
        until(
            d, lambda second=second: d.world.now > 0 and (second % 5 or len(told(d.facts(job))) > second // 5)
        )
    until(d, lambda: d.facts(job).trial.state is State.RUNNING)
    facts = d.facts(job)
    times = [event.at for event in facts.events if event.code == "PREPARING"][:-1]
    assert 5 <= len(times) <= 7
    assert all(later - earlier >= 5 for earlier, later in pairwise(times))


def test_one_slow_pull_holds_up_nobody_else(threaded):
    d = threaded(nodes=[fleet(4)])
    d.engine.script_image(IMAGE, ImageScript(3600.0))
    slow = d.submit(d.publish(), "slow")
    with_image(d, slow)
    until(d, lambda: d.world.prepared[IMAGE])
    others = [d.submit(d.publish(**READS_PROFILES), f"r{n}", profile=profile_of(d)) for n in range(2)]
    until(d, lambda: all(d.facts(job).trial.state is State.RUNNING for job in others))
    assert d.facts(slow).trial.state is State.PREPARING
    assert len(d.unreleased()) == 3, "it holds its GPUs meanwhile"


# Stops and restarts


def test_E76_a_stop_while_it_is_prepared_ends_it_promptly_with_nothing_left(threaded):
    d = threaded()
    d.engine.script_image(IMAGE, ImageScript(3600.0, ("Pulling.",)))
    job = d.submit(d.publish(**READS_PROFILES), profile=profile_of(d))
    with_image(d, job)
    until(d, lambda: told(d.facts(job)))
    d.stop(job)
    until(d, lambda: d.facts(job).settled)
    facts = d.facts(job)
    assert (facts.trial.state, facts.trial.user_code_started) == (State.CANCELLED, False)
    assert [a.state for a in facts.allocations[facts.trial.id]] == [AllocationState.RELEASED]
    assert d.starts() == {}
    assert holds(d) == []


def test_P14_a_server_that_ends_while_it_prepares_begins_again(threaded):
    d = threaded()
    d.engine.script_image(IMAGE, ImageScript(60.0, ("Pulling.",)))
    job = d.submit(d.publish(**READS_PROFILES), profile=profile_of(d))
    with_image(d, job)
    until(d, lambda: told(d.facts(job)))
    d.controller.stop()
    d.boot()
    until(d, lambda: d.world.prepared[IMAGE] == 2)
    d.pass_time(60)
    until(d, lambda: d.facts(job).trial.state is State.RUNNING)
    facts = d.settle(job)
    assert facts.trial.state is State.SUCCEEDED
    assert d.starts() == {facts.trial.id: 1}
    assert len(facts.allocations[facts.trial.id]) == 1, "the same Attempt went on"


@pytest.mark.parametrize("point", [Point.PREPARE_AFTER_IMAGE, Point.PREPARE_AFTER_CONTENT])
def test_P3_a_crash_between_preparing_and_launching_leaves_one_start(fake, point):
    d = fake(default=Script(run_seconds=5.0))
    profile = profile_of(d)
    with crashing_at(point) as reached:
        job = d.submit(d.publish(**READS_PROFILES), "r", profile=profile)
        with_image(d, job)
        with pytest.raises(Crash):
            d.step()
        d.engine.close()
        d.boot()
        facts = d.settle(job)
    assert reached.count(point) == 2
    assert facts.trial.state is State.SUCCEEDED
    assert d.starts() == {facts.trial.id: 1}
    assert holds(d) == []


def test_P6_a_hold_whose_attempt_nobody_knows_is_let_go_by_the_sweep(fake):
    d = fake()
    d.content().own_file("profile.json", b"{}", "att_gone")
    d.boot()
    assert holds(d) == []


# Failures


def fault(code: str, *, retryable: bool) -> EngineError:
    return EngineError(code, "the registry says no", retryable=retryable)


@pytest.mark.parametrize(("retries", "pulls"), [(0, 1), (2, 3), (6, 7)])
def test_C38_pulls_are_repeated_as_often_as_configured_with_pauses(fake, retries, pulls):
    d = fake(pull_retries=retries)
    d.engine.script_image(IMAGE, ImageScript(failures=(fault("IMAGE_PULL_FAILED", retryable=True),) * 99))
    job = d.submit(d.publish())
    with_image(d, job)
    facts = d.settle(job)
    assert (facts.trial.state, facts.trial.error_code) == (State.FAILED, "IMAGE_PULL_FAILED")
    assert "the registry says no" in facts.trial.error_message
    assert facts.trial.user_code_started is False
    assert d.world.prepared[IMAGE] == pulls
    assert len(facts.allocations[facts.trial.id]) == pulls, "it gives its GPUs back between two pulls"


def test_C38_minus_one_never_gives_up(fake):
    d = fake(pull_retries=-1)
    d.engine.script_image(IMAGE, ImageScript(failures=(fault("IMAGE_PULL_FAILED", retryable=True),) * 20))
    job = d.submit(d.publish())
    with_image(d, job)
    facts = d.settle(job, pause=30.0)
    assert facts.trial.state is State.SUCCEEDED
    assert d.world.prepared[IMAGE] == 21


def test_C38_pulls_and_other_failures_are_counted_apart(fake):
    """Four failed pulls leave all tries for a start that fails otherwise, and a pull that succeeds resets."""
    pull, other = fault("IMAGE_PULL_FAILED", retryable=True), fault("ENGINE_DISK", retryable=True)
    d = fake(pull_retries=4)
    d.engine.script_image(
        IMAGE, ImageScript(failures=(pull, pull, pull, pull, other, other, pull, pull, other))
    )
    job = d.submit(d.publish())
    with_image(d, job)
    assert d.settle(job, pause=30.0).trial.state is State.SUCCEEDED


def test_E45_an_image_in_which_nothing_can_run_fails_before_user_code(fake):
    d = fake()
    d.engine.script_image(IMAGE, ImageScript(failures=(fault("IMAGE_UNSUITABLE", retryable=False),)))
    job = d.submit(d.publish())
    with_image(d, job)
    facts = d.settle(job)
    assert (facts.trial.state, facts.trial.error_code) == (State.FAILED, "IMAGE_UNSUITABLE")
    assert facts.trial.user_code_started is False
    assert d.world.prepared[IMAGE] == 1


def test_an_image_that_vanished_before_the_launch_is_prepared_again(fake, monkeypatch):
    d = fake()
    launch_many = type(d.engine).launch_many
    vanished = iter([True])

    def evicting(self: Any, launches: Any) -> Any:
        if next(vanished, False):
            self.evict(IMAGE)
        return launch_many(self, launches)

    monkeypatch.setattr(type(d.engine), "launch_many", evicting)
    job = d.submit(d.publish())
    with_image(d, job)
    assert d.settle(job).trial.state is State.SUCCEEDED
    assert d.world.prepared[IMAGE] == 2


def test_P7_content_that_was_damaged_is_never_shown(fake):
    d = fake()
    job = d.submit(d.publish(**READS_PROFILES), profile=profile_of(d))
    place = d.blobs.path(hashlib.sha256(b"two").hexdigest())
    place.chmod(0o644)
    place.write_bytes(b"TWO")
    facts = d.settle(job)
    assert (facts.trial.state, facts.trial.error_code) == (State.FAILED, "CONTENT_DAMAGED")
    said = str(facts.trial.error_message)
    assert "Dataset " in said
    assert "(input `" in said
    assert "its file `" in said
    name, version = re.search(r"Dataset (\S+)@(\S+) ", said).groups()
    publish = f"`trainshed dataset publish FOLDER --name {name}"
    assert f"with the owner key `trainshed content verify {name}@{version} --repair`, then {publish}" in said
    assert said.endswith(f"then `trainshed job rerun {job}`.")
    assert facts.trial.user_code_started is False
    assert d.starts() == {}
    assert holds(d) == []


def test_A9_a_store_that_does_not_answer_is_asked_again_and_then_given_up(fake, monkeypatch):
    d = fake()
    job = d.submit(d.publish(**READS_PROFILES), profile=profile_of(d))
    tree, calls = LocalContent.tree, []

    def away(self: LocalContent, *args: Any, **kwargs: Any) -> Path:
        calls.append(args)
        if len(calls) <= 3:
            raise_unavailable()
        return tree(self, *args, **kwargs)

    monkeypatch.setattr(LocalContent, "tree", away)
    assert d.settle(job).trial.state is State.SUCCEEDED
    monkeypatch.setattr(LocalContent, "tree", lambda *_, **__: raise_unavailable())
    second = d.submit(d.publish(**READS_PROFILES), profile=profile_of(d))
    facts = d.settle(second)
    assert (facts.trial.state, facts.trial.error_code) == (State.FAILED, "CONTENT_UNAVAILABLE")
    assert "5 tries" in facts.trial.error_message


def raise_unavailable() -> Any:
    with explained(Path("store")):
        raise StoreUnavailable("no answer")


# Access is looked at again


def test_A2_content_that_was_withdrawn_while_a_trial_waited_ends_it(fake):
    d = fake(nodes=[fleet(1)])
    running = d.submit(d.publish(), "running")
    d.step()
    profile = profile_of(d)
    job = d.submit(d.publish(**READS_PROFILES), "waiting", profile=profile)
    digest = profile["inputs"]["words"]["manifest_sha256"]
    d.database.write(lambda c: contents.withdraw(c, ContentKind.DATASETS, "team/words", digest, at=d.now()))
    d.settle(running)
    facts = d.settle(job)
    assert (facts.trial.state, facts.trial.error_code) == (State.FAILED, "ACCESS_DENIED")
    assert "datasets/team/words" in facts.trial.error_message
    assert facts.allocations[facts.trial.id] == []


def test_E94_a_plugin_that_was_revoked_while_a_trial_waited_ends_it(fake):
    d = fake(nodes=[fleet(1)])
    running = d.submit(d.publish(), "running")
    d.step()
    profile = profile_of(d)
    job = d.submit(d.publish(**READS_PROFILES), "waiting", profile=profile)
    [plugin] = profile["plugins"]
    d.database.write(
        lambda c: plugins.revoke_plugin(
            c, "team/extra", plugin["manifest_sha256"], by="human:admin", at=d.now()
        )
    )
    d.settle(running)
    facts = d.settle(job)
    assert (facts.trial.state, facts.trial.error_code) == (State.FAILED, "ACCESS_DENIED")


def test_A2_content_that_only_others_lose_harms_nobody(fake):
    d = fake(nodes=[fleet(1)])
    d.add_project("other")
    running = d.submit(d.publish(), "running")
    d.step()
    job = d.submit(d.publish(**READS_PROFILES), "waiting", profile=profile_of(d))
    d.settle(running)
    assert d.settle(job).trial.state is State.SUCCEEDED


# Real programs


def test_E91_a_real_program_reads_its_profile_and_inputs_and_collects_what_it_makes(local):
    d = local()
    script = (
        'cat "$TRAINSHED_INPUTS/words/train/a.txt" "$TRAINSHED_PLUGINS/team/extra/extra.py" '
        '"$TRAINSHED_RECIPE/train.py" "$TRAINSHED_DEPENDENCIES/base/train.py" > out.txt\n'
        'cp "$ENVLOOP_JOB_PROFILE" profile.json\ncmp "$TRAINSHED_PROFILE" profile.json\n'
        'echo harm > "$TRAINSHED_INPUTS/words/train/a.txt"; rm -rf "$TRAINSHED_RECIPE"; true\n'
    )
    job = d.submit(
        d.publish(script, **READS_PROFILES, outputs=["out.txt", "profile.json"]), profile=profile_of(d)
    )
    facts = d.settle(job)
    assert facts.trial.state is State.SUCCEEDED, facts.trial.error_message
    stored = {a.name: d.blobs.open(a.sha256).read() for a in facts.artifacts[facts.trial.id]}
    assert stored["out.txt"] == b"onemoremain0"
    assert json.loads(stored["profile.json"]) == json.loads(facts.trial.profile)
    assert stored["profile.json"].decode() == facts.trial.profile
    assert d.blobs.path(hashlib.sha256(b"one").hexdigest()).read_bytes() == b"one"
    again = d.submit(
        d.publish(script, **READS_PROFILES, outputs=["out.txt", "profile.json"]), profile=profile_of(d)
    )
    assert d.settle(again).trial.state is State.SUCCEEDED
