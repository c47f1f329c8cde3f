"""Checkpoints: registered as their Trial ends, held by who resumes, deleted by rules and by people."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator

import pytest

from support import lora
from support.deployment import FakeDeployment, person
from trainshed.content.blobs import StoreUnavailable
from trainshed.control import controller, resuming
from trainshed.control.checkpoints import (
    CheckpointRetention,
    delete_checkpoint,
    pin_checkpoint,
)
from trainshed.engines.fake import Script
from trainshed.model.errors import Refusal
from trainshed.model.states import State
from trainshed.policy.effective import ServerPolicy
from trainshed.store import checkpoints as store
from trainshed.store.database import Database
from trainshed.store.records import Checkpoint

OUT = ["out/**"]
RESUMES = "[checkpoints]\nresume = true\n"


def saved(*steps: int, **more: bytes) -> dict[str, bytes]:
    files = dict(more)
    for step in steps:
        files |= lora.adapter(f"out/checkpoint-{step}", fill=step % 251)
    return files


def checkpoints(d: FakeDeployment, job: str) -> list[Checkpoint]:
    with d.database.read() as connection:
        return store.of_job(connection, job)


def names(d: FakeDeployment, checkpoint: Checkpoint) -> list[str]:
    with d.database.read() as connection:
        return [file.name for file in store.files_of(connection, checkpoint.id)]


def messages(d: FakeDeployment, job: str, code: str) -> list[str]:
    return [event.message for event in d.facts(job).events if event.code == code]


@pytest.fixture
def fake(tmp_path, _migrated_sqlite) -> Iterator[Callable[..., FakeDeployment]]:
    """Makes the deployment on SQLite; which kind of database it is makes no difference to most of this."""
    made: list[FakeDeployment] = []
    path = tmp_path / "database.sqlite"
    shutil.copyfile(_migrated_sqlite, path)
    database = Database(f"sqlite:///{path}")

    def make(**options: object) -> FakeDeployment:
        made.append(FakeDeployment(database, tmp_path / "fake", **options))
        return made[-1]

    yield make
    for deployment in made:
        deployment.close()
    database.close()


@pytest.fixture
def trained_on_either(database, tmp_path) -> Iterator[tuple[FakeDeployment, str]]:
    """A deployment on each kind of database, with a Job whose Runner can resume and left a Checkpoint."""
    d = FakeDeployment(database, tmp_path / "fake", default=Script(run_seconds=5.0, files=saved(5)))
    job = d.submit(d.publish(outputs=OUT, tables=RESUMES), "trained")
    d.settle(job)
    yield d, job
    d.close()


@pytest.fixture
def trained(fake) -> Callable[..., tuple[FakeDeployment, str]]:
    """Runs one Trial that leaves these files, to its end."""

    def run(files: dict[str, bytes], tables: str = "", **script) -> tuple[FakeDeployment, str]:
        d = fake(default=Script(run_seconds=5.0, files=files, **script))
        job = d.submit(d.publish(outputs=OUT, tables=tables), "trained")
        d.settle(job)
        return d, job

    return run


def remove(d: FakeDeployment, checkpoint_id: str, project: str = "default"):
    return delete_checkpoint(d.database, d.ids, project, checkpoint_id, at=d.now(), actor="human:somebody")


def pin(d: FakeDeployment, checkpoint_id: str, *, pinned: bool = True) -> Checkpoint:
    return pin_checkpoint(
        d.database, "default", checkpoint_id, pinned=pinned, at=d.now(), actor="human:somebody"
    )


def retire(d: FakeDeployment) -> None:
    while CheckpointRetention(d.database, d.now).run():
        pass


def refused(work: Callable[[], object]) -> Refusal:
    with pytest.raises(Refusal) as caught:
        work()
    return caught.value


# Registering


def test_E106_a_lora_output_becomes_a_checkpoint_with_its_lineage(trained):
    d, job = trained(saved(20))
    trial = d.facts(job).trial
    [found] = checkpoints(d, job)
    assert (found.job_id, found.trial_id, found.attempt_id) == (job, trial.id, d.attempt(trial))
    assert (found.folder, found.step, found.parent_id) == ("out/checkpoint-20", 20, None)
    assert (found.checkpoint_type, found.base_model, found.lora_rank) == ("lora", lora.BASE_MODEL, 2)
    assert names(d, found) == ["adapter_config.json", "adapter_model.safetensors"]
    [said] = messages(d, job, "CHECKPOINT_REGISTERED")
    assert found.id in said
    assert "out/checkpoint-20/ at step 20" in said


def test_the_checkpoints_of_one_trial_are_listed_in_the_order_of_training(trained):
    d, job = trained({**saved(1000, 20), **lora.adapter("out")})
    assert [each.step for each in checkpoints(d, job)] == [20, 1000, None]


def test_E74_E107_E108_other_outputs_register_nothing_and_a_near_miss_says_why(trained):
    files = {
        "out/model.safetensors": lora.weights(),
        "out/half/adapter_config.json": lora.config(),
        **lora.adapter("out/foreign", peft_type="IA3"),
        "elsewhere/adapter_config.json": lora.config(),
        "elsewhere/adapter_model.safetensors": lora.weights(),
    }
    d, job = trained(files)
    assert checkpoints(d, job) == []
    trial = d.facts(job).trial
    assert (trial.state, trial.output_status, trial.error_code) == (State.SUCCEEDED, "complete", None)
    foreign, half = sorted(messages(d, job, "CHECKPOINT_NOT_REGISTERED"))
    assert foreign.startswith("out/foreign/ is not registered as a Checkpoint: ")
    assert "'IA3'" in foreign
    assert "without adapter_model.safetensors" in half


def test_many_near_misses_are_told_in_few_events(trained):
    d, job = trained({f"out/{number}/adapter_config.json": lora.config() for number in range(30)})
    said = messages(d, job, "CHECKPOINT_NOT_REGISTERED")
    assert len(said) == 21
    assert "10 more folders" in said[-1]


@pytest.mark.parametrize("code", [0, 3])
def test_a_failed_trials_checkpoints_are_registered_too(trained, code):
    d, job = trained(saved(5), code=code)
    assert d.facts(job).trial.state is (State.FAILED if code else State.SUCCEEDED)
    assert [each.step for each in checkpoints(d, job)] == [5]


def test_a_stopped_trials_checkpoints_are_registered_too(fake):
    d = fake(default=Script(run_seconds=None, files=saved(5)))
    job = d.submit(d.publish(outputs=OUT))
    d.run_until(lambda: d.facts(job).trial.state is State.RUNNING)
    d.stop(job)
    assert d.settle(job).trial.state is State.CANCELLED
    assert [each.step for each in checkpoints(d, job)] == [5]


def test_what_the_limits_of_a_stop_cut_off_is_no_checkpoint(fake):
    policy = ServerPolicy(stop_grace_seconds=5.0, collect_bytes=len(lora.config()) + 1)
    d = fake(default=Script(run_seconds=None, files=saved(5)), policy=policy)
    job = d.submit(d.publish(outputs=OUT))
    d.run_until(lambda: d.facts(job).trial.state is State.RUNNING)
    d.stop(job)
    assert d.settle(job).trial.output_status == "partial"
    assert checkpoints(d, job) == []
    assert "without adapter_model.safetensors" in messages(d, job, "CHECKPOINT_NOT_REGISTERED")[0]


def test_a_store_that_fails_while_a_checkpoint_is_looked_at_only_delays_it(fake, monkeypatch):
    d = fake(default=Script(run_seconds=5.0, files=saved(5)))
    faults = iter([StoreUnavailable("the disk is gone")])
    opened = d.blobs.open

    def failing(*arguments):
        if fault := next(faults, None):
            raise fault
        return opened(*arguments)

    job = d.submit(d.publish(outputs=OUT))
    d.run_until(lambda: d.facts(job).trial.state is State.RUNNING)
    monkeypatch.setattr(d.blobs, "open", failing)
    assert d.settle(job).trial.state is State.SUCCEEDED
    assert next(faults, None) is None
    assert len(checkpoints(d, job)) == 1


def test_a_trial_without_such_files_asks_the_database_nothing_more(fake, monkeypatch):
    def never(*_):
        raise AssertionError("asked")

    monkeypatch.setattr("trainshed.control.checkpoints.CheckpointFinder._rules", never)
    monkeypatch.setattr("trainshed.control.finishing.register", never)
    d = fake(default=Script(run_seconds=5.0, files={"out/a": b"a"}))
    job = d.submit(d.publish(outputs=OUT))
    assert d.settle(job).trial.state is State.SUCCEEDED


# Rules


def test_keep_last_deletes_the_others_with_the_reason(trained):
    d, job = trained(saved(1, 2, 3), "[checkpoints]\nkeep_last = 2\n")
    assert [each.superseded is None for each in checkpoints(d, job)] == [False, True, True]
    retire(d)
    assert [each.step for each in checkpoints(d, job)] == [2, 3]
    [said] = messages(d, job, "CHECKPOINT_SUPERSEDED")
    assert "out/checkpoint-1/" in said
    assert "not among the last 2" in said


def test_a_metric_that_is_no_number_is_told_in_an_event(trained):
    files = saved(1) | saved(2) | saved(3)
    for step, text in ((1, b'{"eval_loss": "0.01"}'), (2, b'{"eval_loss": NaN}'), (3, b'{"eval_loss": 0.5}')):
        files[f"out/checkpoint-{step}/metrics.json"] = text
    rules = '[checkpoints]\nkeep_last = 1\nbest = {metric = "eval_loss", mode = "min", keep = 1}\n'
    d, job = trained(files, rules)
    one, two = messages(d, job, "CHECKPOINT_METRIC_UNREADABLE")
    assert "out/checkpoint-1/" in one
    assert "metrics.json says '0.01' for `eval_loss`; a metric is a finite number" in one
    assert "out/checkpoint-2/" in two
    assert "NaN is not JSON" in two


def test_the_best_by_a_declared_metric_are_kept(trained):
    files = saved(1, 2, 3)
    for step, loss in ((1, 0.5), (2, 0.1), (3, 0.9)):
        files[f"out/checkpoint-{step}/metrics.json"] = b'{"eval_loss": %.1f}' % loss
    rules = '[checkpoints]\nkeep_last = 1\nbest = {metric = "eval_loss", mode = "min", keep = 1}\n'
    d, job = trained(files, rules)
    retire(d)
    left = {each.step: (each.metric, each.metric_value) for each in checkpoints(d, job)}
    assert left == {2: ("eval_loss", 0.1), 3: ("eval_loss", 0.9)}


def test_E72_what_a_program_prints_decides_nothing(trained):
    rules = '[checkpoints]\nbest = {metric = "eval_loss", mode = "min", keep = 1}\n'
    d, job = trained(saved(1, 2), rules, output=b'eval_loss: 0.1\n{"eval_loss": 0.1}\n')
    retire(d)
    assert [(each.step, each.metric_value) for each in checkpoints(d, job)] == [(1, None), (2, None)]


def test_a_pinned_checkpoint_outlasts_the_rules_until_it_is_unpinned(trained):
    d, job = trained(saved(1, 2), "[checkpoints]\nkeep_last = 1\n")
    first, second = checkpoints(d, job)
    pin(d, first.id)
    retire(d)
    assert [each.id for each in checkpoints(d, job)] == [first.id, second.id]
    pin(d, first.id, pinned=False)
    retire(d)
    assert [each.id for each in checkpoints(d, job)] == [second.id]


def test_a_checkpoint_in_use_outlasts_the_rules_until_its_user_has_ended(trained):
    d, job = trained(saved(1, 2), f"{RESUMES}keep_last = 1\n")
    first, second = checkpoints(d, job)
    later = d.submit(d.facts(job).trial.selector, resume_from=first.id)
    retire(d)
    assert first.id in {each.id for each in checkpoints(d, job)}
    d.settle(later)
    retire(d)
    assert [each.id for each in checkpoints(d, job)] == [second.id]


def test_the_rules_of_one_trial_never_cost_another_its_results(trained):
    d, job = trained(saved(1, 2), f"{RESUMES}keep_last = 1\n")
    selector = d.facts(job).trial.selector
    retire(d)
    [kept] = checkpoints(d, job)
    later = d.submit(selector, resume_from=kept.id, trials=2)
    d.settle(later)
    retire(d)
    assert [each.id for each in checkpoints(d, job)] == [kept.id]
    assert len(checkpoints(d, later)) == 2


def test_housekeeping_deletes_what_the_rules_do_not_keep(trained, monkeypatch):
    monkeypatch.setattr(controller, "RETENTION_SECONDS", 0.0)
    d, job = trained(saved(1, 2, 3), "[checkpoints]\nkeep_last = 1\n")
    d.run_until(lambda: len(checkpoints(d, job)) == 1)


# Resuming


def test_a_trial_resumes_from_a_checkpoint_which_is_its_results_parent(trained_on_either):
    d, job = trained_on_either
    [first] = checkpoints(d, job)
    later = d.submit(d.facts(job).trial.selector, resume_from=f"envloop://{job}/{first.id}")
    assert d.facts(later).trial.resume_from == first.id
    d.settle(later)
    [second] = checkpoints(d, later)
    assert (second.job_id, second.parent_id) == (later, first.id)


def test_a_runner_that_cannot_resume_and_a_checkpoint_that_is_not_there_are_told_together(trained):
    d, _ = trained(saved(5))
    unknown = "ckpt_01KB7Q3V9E8Z6R5T4W3X2Y1M0N"
    refusal = refused(lambda: d.submit(d.publish(outputs=OUT), resume_from=unknown))
    assert {(fault.path, fault.code) for fault in refusal.faults} == {
        ("trials[0].spec.resume_from", "UNSUPPORTED_RESUME"),
        ("trials[0].spec.resume_from", "CHECKPOINT_NOT_FOUND"),
    }


def test_a_checkpoint_of_another_project_or_another_job_cannot_be_resumed_from(trained):
    d, job = trained(saved(5), RESUMES)
    selector = d.facts(job).trial.selector
    [found] = checkpoints(d, job)
    d.add_project("other")
    assert refused(lambda: d.submit(selector, project="other", resume_from=found.id)).status == 404
    other = d.submit(selector)
    wrong = f"envloop://{other}/{found.id}"
    assert refused(lambda: d.submit(selector, resume_from=wrong)).code == "CHECKPOINT_NOT_FOUND"


def test_E24_a_retry_names_the_same_job_although_its_checkpoint_is_gone(trained):
    d, job = trained(saved(5), RESUMES)
    selector = d.facts(job).trial.selector
    [found] = checkpoints(d, job)
    later = d.submit(selector, "again", resume_from=found.id)
    d.settle(later)
    remove(d, found.id)
    assert d.submit(selector, "again", resume_from=found.id) == later
    assert refused(lambda: d.submit(selector, "again")).code == "JOB_REQUEST_CONFLICT"


def test_one_that_is_deleted_between_the_check_and_the_commit_refuses_the_job(trained_on_either, monkeypatch):
    d, job = trained_on_either
    [found] = checkpoints(d, job)
    hold = resuming.hold_checkpoints

    def too_late(connection, wanted):
        store.mark_deleted(connection, found.id, at=d.now(), by="human:somebody")
        hold(connection, wanted)

    monkeypatch.setattr("trainshed.control.accept.hold_checkpoints", too_late)
    refusal = refused(lambda: d.submit(d.facts(job).trial.selector, "late", resume_from=found.id))
    assert [(fault.path, fault.code) for fault in refusal.faults] == [
        ("trials[0].spec.resume_from", "CHECKPOINT_NOT_FOUND")
    ]
    assert checkpoints(d, job), "the whole transaction was undone"


# Deleting and pinning


def test_deleting_answers_a_receipt_and_the_same_one_again(trained_on_either):
    d, job = trained_on_either
    [found] = checkpoints(d, job)
    receipt = remove(d, found.id)
    assert (receipt.status, receipt.resource_id) == ("SUCCEEDED", found.id)
    assert checkpoints(d, job) == []
    assert remove(d, found.id) == receipt
    [said] = messages(d, job, "CHECKPOINT_DELETED")
    assert said.startswith(f"Deleted Checkpoint {found.id} and the 2 Artifacts that are its files (")
    with d.database.read() as connection:
        assert store.find_operation(connection, "default", receipt.id) == receipt
        assert store.find_operation(connection, "other", receipt.id) is None


def test_what_is_unknown_another_projects_or_gone_by_rules_is_not_found(trained):
    d, job = trained(saved(1, 2), "[checkpoints]\nkeep_last = 1\n")
    old, kept = checkpoints(d, job)
    retire(d)
    for work in (
        lambda: remove(d, old.id),
        lambda: pin(d, old.id),
        lambda: remove(d, kept.id, project="other"),
        lambda: remove(d, "ckpt_unknown"),
    ):
        assert refused(work).code == "CHECKPOINT_NOT_FOUND"


def test_a_pinned_checkpoint_is_not_deleted_and_says_so(trained_on_either):
    d, job = trained_on_either
    [found] = checkpoints(d, job)
    assert pin(d, found.id).pinned
    assert pin(d, found.id).pinned
    refusal = refused(lambda: remove(d, found.id))
    assert refusal.code == "RESOURCE_IN_USE"
    assert "pinned" in refusal.message
    assert not pin(d, found.id, pinned=False).pinned
    remove(d, found.id)
    codes = d.facts(job).codes()
    assert codes[-3:] == ["CHECKPOINT_PINNED", "CHECKPOINT_UNPINNED", "CHECKPOINT_DELETED"]


def test_a_checkpoint_in_use_is_not_deleted_and_its_users_are_named(trained_on_either):
    d, job = trained_on_either
    [found] = checkpoints(d, job)
    later = d.submit(d.facts(job).trial.selector, resume_from=found.id, trials=2)
    refusal = refused(lambda: remove(d, found.id))
    assert refusal.code == "RESOURCE_IN_USE"
    assert all(trial.id in refusal.message for trial in d.facts(later).trials)
    d.settle(later)
    remove(d, found.id)


@pytest.mark.parametrize("_round", range(3))
def test_of_an_acceptance_and_a_deletion_that_race_one_is_refused(trained_on_either, _round):
    d, job = trained_on_either
    selector = d.facts(job).trial.selector
    [found] = checkpoints(d, job)
    together = threading.Barrier(2)
    ends: dict[str, object] = {}

    def take(name: str, work: Callable[[], object]) -> None:
        together.wait()
        try:
            ends[name] = work()
        except Refusal as refusal:
            ends[name] = refusal.code

    document = {
        "type": "train",
        "request_id": "race",
        "spec": {"runner": selector, "resume_from": found.id},
    }
    threads = [
        threading.Thread(target=take, args=("accepted", lambda: d.acceptance.accept(person(), document))),
        threading.Thread(target=take, args=("deleted", lambda: remove(d, found.id))),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    refusals = sorted(str(end) for end in ends.values() if isinstance(end, str))
    assert refusals in (["CHECKPOINT_NOT_FOUND"], ["RESOURCE_IN_USE"])
    assert bool(checkpoints(d, job)) == (refusals == ["RESOURCE_IN_USE"])
