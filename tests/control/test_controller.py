"""What the controller does where nothing crashes: hints, order of arrival, odd ends, what it remembers."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import pytest

from support.deployment import FakeDeployment, Inline, fleet
from support.waiting import wait_until
from trainshed.control.background import Background, pause_seconds
from trainshed.control.controller import Controller
from trainshed.control.launching import GpusMissing, assigned_gpus
from trainshed.control.placing import Placer
from trainshed.engines.contract import EngineError, Observation, Phase
from trainshed.engines.fake import FakeEngine, Script
from trainshed.engines.local import LocalEngine
from trainshed.model.states import AllocationState, State
from trainshed.policy.effective import ServerPolicy
from trainshed.store import jobs, queue, tables
from trainshed.store.database import DatabaseUnavailable

# Hints


def test_hints_alone_are_enough_to_run_a_trial_to_its_release(database, tmp_path):
    """With polling all but off, every move follows from what just happened."""
    d = FakeDeployment(database, tmp_path)
    selector = d.publish("exit 0\n")
    engine = LocalEngine(tmp_path / "local", simulate_gpus={"H100": 4})
    controller = Controller(
        database, engine, d.blobs, ServerPolicy(), content=d.content(), poll_seconds=3600.0
    )
    controller.start()
    try:
        assert controller.ready.wait(20)
        for number in range(5):
            job = d.submit(selector, f"r{number}")
            wait_until(lambda job=job: d.facts(job).settled, 20)
            assert d.facts(job).trial.state is State.SUCCEEDED
    finally:
        controller.stop()
        engine.close()
        d.close()


def test_a_controller_that_was_stopped_is_deaf(database, tmp_path):
    """Whoever writes afterwards must not ring an engine that is closed."""
    d = FakeDeployment(database, tmp_path)
    engine = LocalEngine(tmp_path / "local", simulate_gpus={"H100": 4})
    controller = Controller(database, engine, d.blobs, ServerPolicy(), content=d.content())
    controller.start()
    controller.stop()
    engine.close()
    job = d.submit(d.publish())
    controller.wake()
    assert d.facts(job).trial.state is State.QUEUED
    d.close()


def test_the_controllers_thread_survives_an_engine_and_a_database_that_fail(database, tmp_path, monkeypatch):
    d = FakeDeployment(database, tmp_path, default=Script())
    selector = d.publish()
    faults = iter([RuntimeError("engine"), DatabaseUnavailable("database"), OSError("disk")])
    changed = FakeEngine.changed

    def failing(self, timeout):
        fault = next(faults, None)
        if fault is not None:
            raise fault
        return changed(self, timeout)

    monkeypatch.setattr(FakeEngine, "changed", failing)
    controller = Controller(
        database, d.engine, d.blobs, ServerPolicy(), d.now, d.new_ids(), content=d.content()
    )
    controller.start()
    try:
        job = d.submit(selector)
        wait_until(lambda: d.facts(job).settled, 30)
        assert d.facts(job).trial.state is State.SUCCEEDED
        assert next(faults, None) is None, "every fault was met"
    finally:
        controller.stop()
        d.close()


# The queue


def _placer(d: FakeDeployment) -> Placer:
    return Placer(d.database, "fake", d.policy, d.now, d.new_ids())


def test_a_trial_committed_late_with_a_smaller_id_is_seen_at_once(fake):
    """Ids are made before the commit, so arrivals do not come in the order of their ids."""
    d = fake(nodes=[fleet(1)], default=Script(run_seconds=None))
    d.submit(d.publish(), "running")
    d.step()
    placer = _placer(d)
    with d.database.read() as connection:
        placer.read_changes(connection)
    assert len(placer) == 0
    early = d.ids.job(), d.ids.trial()
    d.submit(d.publish(), "first")
    with d.database.read() as connection:
        placer.read_changes(connection)
    assert len(placer) == 1
    with d.database.read() as connection:
        [newest] = jobs.list_jobs(connection, "default", limit=1)
        [row] = connection.execute(
            tables.trials.select().where(tables.trials.c.job_id == newest.id)
        ).mappings()
    late = replace(newest, id=early[0], request_id="late")
    d.database.write(
        lambda connection: jobs.insert_job(
            connection, late, [{**row, "id": early[1], "job_id": early[0], "name": "late"}]
        )
    )
    with d.database.read() as connection:
        placer.read_changes(connection)
    assert len(placer) == 2


def test_a_queue_that_differs_from_the_database_is_noticed_also_where_the_numbers_agree(fake):
    d = fake(nodes=[fleet(1)], default=Script(run_seconds=None))
    d.submit(d.publish(), "running")
    d.step()
    d.submit(d.publish(), "a")
    placer = _placer(d)
    with d.database.read() as connection:
        placer.read_changes(connection)
        [waiting] = queue.queued_after(connection, "", 10)
        assert not placer.differs(connection, thoroughly=True)
        placer.remove([waiting.id])
        placer.add(replace(waiting, id="trial_ghost"))
        assert not placer.differs(connection, thoroughly=False)
        assert placer.differs(connection, thoroughly=True)
        placer.reload()
        placer.read_changes(connection)
        assert not placer.differs(connection, thoroughly=True)


# Starts that fail


def test_A9_a_start_is_tried_five_times_with_growing_pauses_and_then_given_up(fake):
    d = fake(default=Script(not_started="no such interpreter"))
    job = d.submit(d.publish())
    facts = d.settle(job)
    assert (facts.trial.state, facts.trial.error_code) == (State.FAILED, "LAUNCH_FAILED")
    assert "no such interpreter" in (facts.trial.error_message or "")
    assert not facts.trial.user_code_started
    held = facts.allocations[facts.trial.id]
    assert len(held) == 5
    pauses = [b.held_at - a.held_at for a, b in pairwise(held)]
    assert pauses == sorted(pauses)
    assert pauses[-1] > 4 * pauses[0]
    assert d.project().used_gpu_seconds == 0


def test_A9_a_start_that_fails_and_then_works_runs_the_same_frozen_input(fake):
    d = fake(default=Script(refusals=(EngineError("ENGINE_DISK", "no room", retryable=True),)))
    job = d.submit(d.publish())
    d.step()
    d.default = d.engine._default = Script(run_seconds=3.0)
    facts = d.settle(job)
    assert facts.trial.state is State.SUCCEEDED
    assert len(facts.allocations[facts.trial.id]) == 2
    assert d.starts() == {facts.trial.id: 1}


def test_a_refusal_that_cannot_be_helped_is_not_tried_again(fake):
    refusal = EngineError("LAUNCH_INVALID", "nothing to execute", retryable=False)
    d = fake(default=Script(refusals=(refusal,) * 9))
    facts = d.settle(d.submit(d.publish()))
    assert (facts.trial.state, facts.trial.error_code) == (State.FAILED, "LAUNCH_FAILED")
    assert len(facts.allocations[facts.trial.id]) == 1


def test_E79_a_program_that_cannot_be_executed_after_its_start_was_recorded_fails_and_is_not_replayed(fake):
    """The start marker comes before ``exec``; whoever looked in between saw it running."""
    d = fake(default=Script(run_seconds=None))
    job = d.submit(d.publish(outputs=["out/*"]))
    d.run_until(lambda: d.facts(job).trial.state is State.RUNNING)
    d.script(d.facts(job).trial, not_started="It cannot execute 'bash'.")
    facts = d.settle(job)
    assert (facts.trial.state, facts.trial.error_code) == (State.FAILED, "LAUNCH_FAILED")
    assert "bash" in (facts.trial.error_message or "")
    assert len(facts.allocations[facts.trial.id]) == 1


def test_a_trial_is_not_launched_with_fewer_gpus_than_it_was_given(fake):
    """A server that comes back with fewer GPUs tries again where there is room, and says why."""
    d = fake(nodes=[fleet(4)], default=Script(run_seconds=5.0))
    job = d.submit(d.publish(gpus=4))
    held = d.facts(job).allocations
    assert not any(held.values())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeEngine, "launch_many", lambda _self, _launches: {})
        d.step()
    d.nodes = (fleet(2),)
    d.engine.close()
    d.boot()
    d.step()
    facts = d.facts(job)
    assert facts.trial.state is State.QUEUED
    assert "no longer has the GPU 2, 3" in (facts.trial.error_message or "")
    d.nodes = (fleet(4),)
    d.boot()
    assert d.settle(job).trial.state is State.SUCCEEDED


def test_gpus_of_a_node_that_is_gone_are_missing(fake):
    d = fake(default=Script(run_seconds=None))
    job = d.submit(d.publish(gpus=2))
    d.step()
    [[held]] = d.facts(job).allocations.values()
    assert [gpu.index for gpu in assigned_gpus(held, [fleet(4)])] == list(held.indices)
    with pytest.raises(GpusMissing, match="no longer has the GPU 0, 1"):
        assigned_gpus(held, [])


# What is recorded


def test_the_start_and_the_limits_of_a_short_program_are_recorded(fake):
    """Its start and its end are seen in one look."""
    d = fake(default=Script())
    facts = d.settle(d.submit(d.publish()))
    with d.database.read() as connection:
        [attempt] = jobs.attempts_of(connection, [facts.trial.id])[facts.trial.id]
    assert attempt.started_at is not None
    assert json.loads(attempt.enforcement or "{}") is not None
    assert attempt.ended_at is not None


def test_a_release_that_comes_twice_is_recorded_once(fake):
    d = fake(default=Script(run_seconds=3.0))
    job = d.submit(d.publish())
    d.run_until(lambda: d.facts(job).trial.state is State.RUNNING)
    held = d.unreleased()
    facts = d.settle(job)
    d.controller._reconciler._release([replace(held[0], state=AllocationState.RELEASING)])
    d.step()
    again = d.facts(job)
    assert again.codes() == facts.codes()
    assert again.allocations == facts.allocations


def test_E68_a_release_that_is_not_confirmed_keeps_the_gpus_and_goes_on(fake):
    d = fake(nodes=[fleet(1)], default=Script(run_seconds=3.0, leaks=6))
    job = d.submit(d.publish(), "leaks")
    second = d.submit(d.publish(), "waits")
    d.run_until(lambda: any(a.state is AllocationState.LEAKED for a in d.unreleased()))
    facts = d.facts(job)
    assert facts.trial.state is State.SUCCEEDED
    assert d.facts(second).trial.state is State.QUEUED, "its GPU may still be in use"
    assert facts.codes().count("LEAKED") == 1
    facts = d.settle(job)
    assert facts.codes()[-1] == "RELEASED"
    assert facts.allocations[facts.trial.id][0].tries == 7
    d.settle(second)


def test_a_stop_while_outputs_are_collected_bounds_the_rest(fake, monkeypatch):
    """Collecting begins again, with the bounds of a stop (E77)."""
    d = fake(default=Script(run_seconds=2.0, files={"out/a": b"a", "out/b": b"b"}))
    job = d.submit(d.publish(outputs=["out/*"]))
    d.run_until(lambda: d.facts(job).trial.state is State.RUNNING)
    finisher = d.controller._reconciler._finisher
    collect, limits = finisher.collect, []

    def stopped_meanwhile(ended, files, cancelled):
        limits.append(ended.trial.state)
        if len(limits) == 1:
            d.stop(job)
            d.controller._reconciler._hurried.add(ended.allocation.attempt_id)
        return collect(ended, files, cancelled)

    monkeypatch.setattr(finisher, "collect", stopped_meanwhile)
    facts = d.settle(job)
    assert limits == [State.COLLECTING, State.STOPPING]
    assert (facts.trial.state, facts.trial.output_status, facts.trial.exit_code) == (
        State.CANCELLED,
        "complete",
        0,
    )
    assert sorted(a.name for a in facts.artifacts[facts.trial.id]) == ["out/a", "out/b"]


def test_nothing_is_remembered_of_trials_that_have_ended(fake):
    d = fake(default=Script(run_seconds=2.0))
    selector = d.publish()
    for number in range(20):
        job = d.submit(selector, f"r{number}")
        if number % 2:
            d.run_until(lambda job=job: d.facts(job).trial.state is State.RUNNING)
            d.stop(job)
        d.settle(job)
    d.step()
    r, p = d.controller._reconciler, d.controller._placer
    remembered = [r._launched, r._stopped, r._hurried, p._trials, p._delayed]
    assert [len(each) for each in remembered] == [0] * len(remembered)


def test_an_unknown_attempt_is_lost_and_not_run_again(fake, monkeypatch):
    """The engine's folder is gone: what ran cannot be told any more (rule 5 of the engine contract)."""
    d = fake(default=Script(run_seconds=None))
    job = d.submit(d.publish())
    d.run_until(lambda: d.facts(job).trial.state is State.RUNNING)
    monkeypatch.setattr(
        FakeEngine, "observe", lambda _self, ids: {each: Observation(Phase.ABSENT) for each in ids}
    )
    facts = d.settle(job)
    assert (facts.trial.state, facts.trial.error_code) == (State.FAILED, "EXECUTION_LOST")
    assert len(facts.allocations[facts.trial.id]) == 1


def test_one_attempt_that_cannot_be_stopped_holds_up_no_other(fake, monkeypatch):
    d = fake(default=Script(run_seconds=None))
    stuck, other = d.submit(d.publish(), "a"), d.submit(d.publish(), "b")
    d.run_until(lambda: all(d.facts(j).trial.state is State.RUNNING for j in (stuck, other)))
    stop, full = FakeEngine.stop, d.attempt(d.facts(stuck).trial)

    def failing(self, attempt_id, *, grace_seconds=None):
        if attempt_id == full:
            raise OSError(28, "No space left on device")
        stop(self, attempt_id, grace_seconds=grace_seconds)

    with monkeypatch.context() as patch:
        patch.setattr(FakeEngine, "stop", failing)
        d.stop(stuck)
        d.stop(other)
        d.settle(other)
        assert d.facts(stuck).trial.state is State.STOPPING
    assert d.settle(stuck).trial.state is State.CANCELLED


# Work beside the thread


def test_failed_work_pauses_longer_each_time_and_does_not_spin():
    now, runs = [0.0], []
    background = Background(Inline(), lambda: now[0], lambda: None)

    def fail() -> bool:
        runs.append(now[0])
        raise OSError("no room")

    for _ in range(400):
        background.start("key", fail)
        now[0] += 0.25
    gaps = [b - a for a, b in pairwise(runs)]
    assert gaps == sorted(gaps)
    assert len(runs) < 12
    assert pause_seconds(99) == 60.0
    now[0] += 60
    assert background.offers("key")
    background.start("key", lambda: True)
    assert background.next_due() is None
