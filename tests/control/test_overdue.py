"""Programs whose own watcher neither stops them nor keeps their timeout (E76-E78, P6)."""

from __future__ import annotations

from trainshed.control.reconcile import OVERDUE_SECONDS
from trainshed.engines.fake import Script
from trainshed.model.states import AllocationState, State

DEAF = Script(run_seconds=None, deaf=True)


def test_E78_a_stop_that_nobody_obeys_ends_by_force_once_its_grace_is_over(fake):
    d = fake(default=DEAF)
    job = d.submit(d.publish())
    d.run_until(lambda: d.facts(job).trial.state is State.RUNNING)
    accepted = d.now()
    d.stop(job)
    facts = d.settle(job)
    assert d.now() >= accepted + OVERDUE_SECONDS
    assert (facts.trial.state, facts.trial.exit_code) == (State.CANCELLED, None)
    assert [held.state for held in facts.allocations[facts.trial.id]] == [AllocationState.RELEASED]


def test_P6_a_timeout_that_nobody_keeps_ends_by_force_and_gives_the_gpus_back(fake):
    d = fake(default=DEAF)
    job = d.submit(d.publish(), timeout_seconds=100)
    facts = d.settle(job, pause=5.0)
    assert (facts.trial.state, facts.trial.error_code) == (State.FAILED, "EXECUTION_LOST")
    assert facts.trial.finished_at >= facts.trial.started_at + 100 + OVERDUE_SECONDS
    assert d.unreleased() == []


def test_a_trial_within_its_time_is_left_alone(fake):
    d = fake(default=DEAF)
    job = d.submit(d.publish(), timeout_seconds=1000)
    d.run_until(lambda: d.facts(job).trial.state is State.RUNNING)
    for _ in range(10):
        d.pass_time(100.0)
        d.step()
    assert d.facts(job).trial.state is State.RUNNING
    d.stop(job)
    d.settle(job)
