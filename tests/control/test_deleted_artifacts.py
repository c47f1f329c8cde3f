"""Artifacts deleted with Checkpoints, by people, by age: rows stay, bytes go (contract E b6)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from support import lora
from support.deployment import FakeDeployment
from trainshed.control import controller
from trainshed.control.artifacts import ArtifactRetention, delete_artifacts
from trainshed.control.checkpoints import CheckpointRetention, delete_checkpoint, pin_checkpoint
from trainshed.control.garbage import Collector
from trainshed.engines.fake import Script
from trainshed.model.errors import Refusal
from trainshed.model.states import State
from trainshed.store import artifacts, jobs
from trainshed.store import checkpoints as store
from trainshed.store.records import Artifact, Checkpoint

OUT = ["out/**"]
GRACE = 3600.0
KEEP_ONE = "[checkpoints]\nresume = true\nkeep_last = 1\n"
BEST = '[checkpoints]\nbest = {metric = "eval_los", mode = "min", keep = 1}\n'


def saved(*steps: int, **more: bytes) -> dict[str, bytes]:
    files = dict(more)
    for step in steps:
        files |= lora.adapter(f"out/checkpoint-{step}", fill=step)
        # As real adapters, no two of which are alike; the configuration is the same in all of them.
        files[f"out/checkpoint-{step}/optimizer.pt"] = f"{step}".encode() * 1000
    return files


@pytest.fixture
def trained(database, tmp_path) -> Iterator[Callable[..., tuple[FakeDeployment, str]]]:
    """On each kind of database: runs one Trial that leaves these files, to its end."""
    made: list[FakeDeployment] = []

    def run(files: dict[str, bytes], tables: str = "") -> tuple[FakeDeployment, str]:
        d = FakeDeployment(database, tmp_path / "fake", default=Script(run_seconds=5.0, files=files))
        made.append(d)
        job = d.submit(d.publish(outputs=OUT, tables=tables), "trained")
        d.settle(job)
        return d, job

    yield run
    for deployment in made:
        deployment.close()


def retire(d: FakeDeployment) -> None:
    while CheckpointRetention(d.database, d.now).run():
        pass


def checkpoints(d: FakeDeployment, job: str) -> dict[int | None, Checkpoint]:
    with d.database.read() as connection:
        return {each.step: each for each in store.of_job(connection, job)}


def outputs(d: FakeDeployment, job: str) -> dict[str, Artifact]:
    with d.database.read() as connection:
        rows = jobs.list_artifacts(connection, d.facts(job).trial.id, limit=1000)
    return {row.name: row for row in rows}


def gone(d: FakeDeployment, job: str) -> set[str]:
    return {name for name, row in outputs(d, job).items() if row.upload_state != "uploaded"}


def messages(d: FakeDeployment, job: str, code: str) -> list[str]:
    return [event.message for event in d.facts(job).events if event.code == code]


def remove(d: FakeDeployment, checkpoint: Checkpoint) -> None:
    delete_checkpoint(d.database, d.ids, "default", checkpoint.id, at=d.now(), actor="human:somebody")


def collect_garbage(d: FakeDeployment, *, after: float) -> None:
    """A pass as it is made that many seconds from now."""
    now = d.now() + after
    Collector(d.database, d.blobs, lambda: now, grace_seconds=GRACE).run()


def stored(d: FakeDeployment, rows: dict[str, Artifact]) -> set[str]:
    return {name for name, row in rows.items() if row.sha256 and d.blobs.exists(row.sha256)}


def test_E73_what_a_rule_deletes_frees_its_bytes_with_the_next_garbage(trained):
    """Checkpoint and Artifacts name the same bytes, and the one would keep those of the other."""
    d, job = trained(saved(1, 2, **{"out/log.txt": b"log"}), KEEP_ONE)
    before = outputs(d, job)
    retire(d)
    rows = outputs(d, job)
    lost = {name for name in rows if name.startswith("out/checkpoint-1/")}
    assert len(lost) == 3
    assert gone(d, job) == lost
    collect_garbage(d, after=GRACE / 2)
    assert stored(d, rows) == set(rows), "within the time of grace a backup finds all that it names"
    collect_garbage(d, after=2 * GRACE)
    shared = "out/checkpoint-1/adapter_config.json"
    assert rows[shared].sha256 == rows["out/checkpoint-2/adapter_config.json"].sha256
    assert stored(d, rows) == (set(rows) - lost) | {shared}, "what the other one needs too stays"
    assert {name: (row.size, row.sha256) for name, row in rows.items()} == {
        name: (row.size, row.sha256) for name, row in before.items()
    }, "the list still says what was there"
    trial = d.facts(job).trial
    assert trial.output_status == "complete"
    for name in lost:
        assert rows[name].upload_state == "deleted"
        assert "by rule: The Runner's [checkpoints] rules do not keep it" in (rows[name].deletion or "")


def test_what_a_person_deletes_frees_its_bytes_too(trained):
    d, job = trained(saved(1))
    [found] = checkpoints(d, job).values()
    remove(d, found)
    rows = outputs(d, job)
    assert {row.deletion for row in rows.values()} == {
        f"deleted with Checkpoint {found.id} by human:somebody"
    }
    collect_garbage(d, after=2 * GRACE)
    assert stored(d, rows) == set()


def test_a_pinned_one_and_one_in_use_keep_their_artifacts(trained):
    d, job = trained(saved(1, 2, 3), KEEP_ONE)
    found = checkpoints(d, job)
    pin_checkpoint(d.database, "default", found[1].id, pinned=True, at=d.now(), actor="human:somebody")
    later = d.submit(d.facts(job).trial.selector, resume_from=found[2].id)
    retire(d)
    assert gone(d, job) == set()
    collect_garbage(d, after=2 * GRACE)
    assert stored(d, outputs(d, job)) == set(outputs(d, job))
    d.settle(later)
    retire(d)
    assert {name.split("/")[1] for name in gone(d, job)} == {"checkpoint-2"}


def test_only_files_of_that_checkpoint_go_with_it(trained):
    """A folder above is a Checkpoint of its own; a copy elsewhere is another file; other bytes are too."""
    files = saved(1) | lora.adapter("out", fill=9) | {"out/copy.pt": b"1" * 1000}
    d, job = trained(files)
    found = checkpoints(d, job)
    other = "out/checkpoint-1/adapter_config.json"

    def change(connection):
        connection.exec_driver_sql(f"UPDATE artifacts SET sha256 = '{'0' * 64}' WHERE name = '{other}'")

    d.database.write(change)
    remove(d, found[1])
    assert gone(d, job) == {
        "out/checkpoint-1/adapter_model.safetensors",
        "out/checkpoint-1/optimizer.pt",
    }
    collect_garbage(d, after=2 * GRACE)
    copy = outputs(d, job)["out/copy.pt"]
    assert d.blobs.exists(copy.sha256 or "")


def test_deleting_is_one_transaction(trained, monkeypatch):
    d, job = trained(saved(1))
    [found] = checkpoints(d, job).values()

    def broken(*_, **__):
        raise RuntimeError("the server ends here")

    monkeypatch.setattr(artifacts, "delete_files_of", broken)
    with pytest.raises(RuntimeError):
        remove(d, found)
    assert list(checkpoints(d, job)) == [1]
    monkeypatch.undo()
    remove(d, found)
    assert gone(d, job) == set(outputs(d, job))


# A metric that nothing declares


def test_a_metric_that_no_checkpoint_declares_is_told_once_with_what_they_declare(trained):
    files = saved(1, 2, 3)
    for step in (1, 2, 3):
        files[f"out/checkpoint-{step}/metrics.json"] = b'{"eval_loss": 0.5, "loss": 1, "name": "x"}'
    d, job = trained(files, BEST)
    [said] = messages(d, job, "CHECKPOINT_METRIC_MISSING")
    assert said == (
        "None of 3 Checkpoints has eval_los; metrics.json or trainer_state.json has eval_loss, loss; "
        "perhaps eval_loss is meant."
    )
    assert {each.metric_fault for each in checkpoints(d, job).values()} == {f"n{said[1:-1]}"}
    retire(d)
    assert set(checkpoints(d, job)) == {1, 2, 3}


def test_where_nothing_declares_any_metric_that_is_said(trained):
    d, job = trained(saved(1), BEST)
    [said] = messages(d, job, "CHECKPOINT_METRIC_MISSING")
    assert said.startswith("The Checkpoint has no eval_los, and nothing beside the adapter declares a metric")


@pytest.mark.parametrize("declared", [b'{"eval_los": 1.5}', b'{"eval_los": "1.5"}'])
def test_a_metric_that_one_declares_or_declares_badly_is_not_misspelt(trained, declared):
    files = saved(1)
    files["out/checkpoint-1/metrics.json"] = declared
    d, job = trained(files, BEST)
    assert messages(d, job, "CHECKPOINT_METRIC_MISSING") == []


# By age


def test_past_their_time_artifacts_go_and_those_of_live_checkpoints_keep_their_bytes(trained):
    d, job = trained(saved(1, **{"out/log.txt": b"log"}))
    ended = d.facts(job).trial.finished_at or 0.0
    day = 86_400.0

    def retire_at(now: float, days: float | None = 2.0) -> bool:
        return ArtifactRetention(d.database, lambda: now, days).run()

    retire_at(ended + 100 * day, None)
    retire_at(ended + 2 * day)
    assert gone(d, job) == set()
    retire_at(ended + 2 * day + 1)
    rows = outputs(d, job)
    assert gone(d, job) == set(rows)
    assert {row.deletion for row in rows.values()} == {"deleted by artifacts.retention_days = 2"}
    [said] = messages(d, job, "ARTIFACTS_DELETED")
    assert said.startswith("Deleted 4 Artifacts (")
    collect_garbage(d, after=10 * day)
    assert stored(d, rows) == {name for name in rows if name.startswith("out/checkpoint-1/")}
    assert not retire_at(ended + 10 * day)


def test_housekeeping_deletes_what_is_past_its_time(tmp_path, database, monkeypatch):
    monkeypatch.setattr(controller, "RETENTION_SECONDS", 0.0)
    script = Script(run_seconds=5.0, files={"out/a": b"a"})
    d = FakeDeployment(database, tmp_path / "fake", default=script, artifact_retention_days=0.0001)
    try:
        job = d.submit(d.publish(outputs=OUT), "trained")
        d.settle(job)
        d.run_until(lambda: gone(d, job) == {"out/a"})
        [row] = outputs(d, job).values()
        assert row.deletion == "deleted by artifacts.retention_days = 0.0001"
    finally:
        d.close()


def test_a_trial_that_has_not_ended_keeps_its_artifacts(database, tmp_path):
    d = FakeDeployment(database, tmp_path / "fake", default=Script(run_seconds=None, files={"out/a": b"a"}))
    try:
        job = d.submit(d.publish(outputs=OUT))
        d.run_until(lambda: d.facts(job).trial.state is State.RUNNING)
        with pytest.raises(Refusal) as caught:
            delete_artifacts(d.database, job, None, None, at=d.now(), actor="human:somebody")
        assert (caught.value.code, caught.value.status) == ("RESOURCE_IN_USE", 409)
        ArtifactRetention(d.database, lambda: d.now() + 1e9, 1.0).run()
        d.stop(job)
        d.settle(job)
        done = delete_artifacts(d.database, job, None, None, at=d.now(), actor="human:somebody")
        assert (done.count, done.bytes, done.kept_bytes) == (1, 1, 0)
    finally:
        d.close()
