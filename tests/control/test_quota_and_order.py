"""Quota, budget, priority, backfill; Trials of one Job that do not touch each other (E75-E79, A14, P5)."""

from __future__ import annotations

import pytest

from support.deployment import Facts, FakeDeployment, fleet
from trainshed.engines.fake import Script
from trainshed.model.errors import Refusal
from trainshed.model.states import State

HOUR = 3600


def _running(d: FakeDeployment, *jobs: str) -> list[str]:
    return [job for job in jobs for trial in d.facts(job).trials if trial.state is State.RUNNING]


def _gpus_held(d: FakeDeployment, project: str) -> int:
    return sum(held.gpus for held in d.unreleased() if held.project_id == project)


def _until_ended(d: FakeDeployment, *jobs: str, watch=lambda: None) -> list[Facts]:
    def ended() -> bool:
        watch()
        return all(d.facts(job).settled for job in jobs)

    d.run_until(ended, pause=5.0)
    return [d.facts(job) for job in jobs]


# Limits of a project


def test_P5_E36_a_project_never_holds_more_gpus_than_it_may_and_its_trials_wait_for_their_turn(fake):
    d = fake(nodes=[fleet(8)], default=Script(run_seconds=10.0))
    d.add_project("small", max_gpus=2)
    job = d.submit(d.publish(), project="small", trials=7)
    most = []
    [facts] = _until_ended(d, job, watch=lambda: most.append(_gpus_held(d, "small")))
    assert max(most) == 2
    assert [trial.state for trial in facts.trials] == [State.SUCCEEDED] * 7


def test_E59_what_a_projects_limit_can_never_admit_is_refused_and_what_only_waits_is_accepted(fake):
    d = fake(nodes=[fleet(8)], default=Script(run_seconds=None))
    d.add_project("small", max_gpus=2, budget_gpu_seconds=10.0 * HOUR)
    selector = d.publish(timeout_seconds=HOUR)
    with pytest.raises(Refusal) as refused:
        d.submit(selector, project="small", resources={"gpus": 3})
    assert refused.value.code == "TRAIN_JOB_CAPACITY_EXCEEDED"
    with pytest.raises(Refusal) as refused:
        d.submit(selector, project="small", resources={"gpus": 2}, timeout_seconds=6 * HOUR)
    assert refused.value.code == "INSUFFICIENT_BALANCE"
    for number in range(3):
        d.submit(selector, f"r{number}", project="small", resources={"gpus": 2})
    d.step()
    assert _gpus_held(d, "small") == 2


def test_P5_a_budget_is_never_exceeded_and_what_was_not_used_comes_back(fake):
    d = fake(nodes=[fleet(8)], default=Script(run_seconds=100.0))
    d.add_project("poor", budget_gpu_seconds=float(2 * HOUR))
    selector = d.publish(timeout_seconds=HOUR)
    jobs = [d.submit(selector, f"r{n}", project="poor") for n in range(5)]

    def within() -> None:
        reserved = sum(held.gpus * HOUR for held in d.unreleased() if held.state == "held")
        assert d.project("poor").used_gpu_seconds + reserved <= 2 * HOUR

    ended = _until_ended(d, *jobs, watch=within)
    assert [facts.trial.state for facts in ended] == [State.SUCCEEDED] * 5
    assert d.project("poor").used_gpu_seconds == 500


def test_a_budget_that_is_used_up_refuses_and_one_that_is_raised_admits(fake):
    d = fake(nodes=[fleet(8)], default=Script(run_seconds=900.0))
    d.add_project("poor", budget_gpu_seconds=1000.0)
    selector = d.publish(timeout_seconds=1000)
    d.settle(d.submit(selector, "first", project="poor"), pause=100.0)
    with pytest.raises(Refusal) as refused:
        d.submit(selector, "second", project="poor")
    assert refused.value.code == "INSUFFICIENT_BALANCE"
    d.change_project("poor", budget_gpu_seconds=5000.0)
    assert d.settle(d.submit(selector, "second", project="poor"), 100.0).trial.state is State.SUCCEEDED


def test_a_raised_limit_lets_waiting_trials_start_without_anything_else_happening(fake):
    d = fake(nodes=[fleet(8)], default=Script(run_seconds=None))
    d.add_project("small", max_gpus=1)
    job = d.submit(d.publish(), project="small", trials=4)
    d.step()
    assert _gpus_held(d, "small") == 1
    d.change_project("small", max_gpus=4)
    d.step()
    assert _gpus_held(d, "small") == 4
    d.stop(job)
    d.settle(job)


def test_one_projects_limits_do_not_hold_up_another(fake):
    d = fake(nodes=[fleet(4)], default=Script(run_seconds=None))
    d.add_project("small", max_gpus=1)
    selector = d.publish()
    full = d.submit(selector, project="small", trials=6)
    other = d.submit(selector, "other", trials=3)
    d.run_until(lambda: len(_running(d, full, other)) == 4)
    assert _running(d, full, other) == [full] + [other] * 3


# Order


def test_priority_goes_first_then_first_come(fake):
    d = fake(nodes=[fleet(1)], default=Script(run_seconds=10.0))
    d.add_project("urgent", priority=5)
    selector = d.publish()
    first = d.submit(selector, "first")
    d.step()
    waiting = [d.submit(selector, f"r{n}") for n in range(3)]
    d.pass_time(1.0)
    urgent = d.submit(selector, "urgent", project="urgent")
    _until_ended(d, first, urgent, *waiting)
    starts = {job: d.facts(job).trial.started_at for job in (first, urgent, *waiting)}
    assert sorted(starts, key=starts.__getitem__) == [first, urgent, *waiting]


def test_P11_small_trials_fill_gaps_but_never_delay_the_first_in_line(fake):
    d = fake(nodes=[fleet(4)], default=Script(run_seconds=100.0))
    small = d.publish("small\n", name="team/small", timeout_seconds=100)
    running = d.submit(small, "running", trials=3)
    d.step()
    head = d.submit(d.publish("head\n", name="team/head", gpus=4, timeout_seconds=100), "head")
    d.step()
    stream = []

    def more() -> bool:
        if len(stream) < 30:
            stream.append(d.submit(small, f"stream-{len(stream)}"))
        return d.facts(head).trial.state is State.RUNNING

    began = d.now()
    d.run_until(more, pause=10.0)
    latest = 100.0 + 60.0 + d.policy.stop_grace_seconds
    assert d.now() - began <= latest + 10.0, "by when it can start at the latest, whatever comes behind it"
    _until_ended(d, running, head, *stream)


# Trials of one Job


def test_E75_a_failed_trial_does_not_cancel_the_others(fake):
    d = fake(nodes=[fleet(4)], default=Script(run_seconds=None))
    job = d.submit(d.publish(), trials=3)
    d.run_until(lambda: len(_running(d, job)) == 3)
    first, second, third = d.facts(job).trials
    d.script(first, run_seconds=0.0, code=1)
    d.run_until(lambda: d.facts(job).trials[0].state is State.FAILED)
    assert len(_running(d, job)) == 2
    assert d.facts(job).job.status == "running"
    d.script(second, run_seconds=0.0)
    d.script(third, run_seconds=0.0)
    facts = d.settle(job)
    assert [trial.state for trial in facts.trials] == [State.FAILED, State.SUCCEEDED, State.SUCCEEDED]
    assert facts.job.status == "failed"


def test_A14_a_trials_own_stop_leaves_its_siblings_alone(fake):
    d = fake(nodes=[fleet(2)], default=Script(run_seconds=30.0))
    job = d.submit(d.publish(), trials=4)
    d.run_until(lambda: len(_running(d, job)) == 2)
    one, *_, waiting = d.facts(job).trials
    d.stop(job, one)
    d.stop(job, waiting)
    assert d.facts(job).job.status == "running"
    facts = d.settle(job)
    states = [trial.state for trial in facts.trials]
    assert states == [State.CANCELLED, State.SUCCEEDED, State.SUCCEEDED, State.CANCELLED]
    assert facts.job.status == "cancelled"
    assert facts.job.stop_accepted_at is None


def test_E76_E78_stopping_a_job_cancels_all_and_each_release_is_confirmed_on_its_own(fake):
    d = fake(nodes=[fleet(2)], default=Script(run_seconds=None, heeds_sigterm=False))
    job = d.submit(d.publish(), trials=5)
    d.run_until(lambda: len(_running(d, job)) == 2)
    assert d.stop(job).status == "stopping"
    assert d.stop(job).status == "stopping", "repeatable"
    facts = d.settle(job)
    assert {trial.state for trial in facts.trials} == {State.CANCELLED}
    assert [event.code for event in facts.events].count("RELEASED") == 2
    assert [event.code for event in facts.events].count("STOP_ACCEPTED") == 5
    before = d.facts(job)
    assert d.stop(job) == before.job, "a finished Job is answered unchanged"
    assert d.facts(job) == before


def test_E77_a_stopped_trial_keeps_its_outputs_and_its_exit_code(fake):
    d = fake(default=Script(run_seconds=None, files={"out/a": b"a"}))
    job = d.submit(d.publish(outputs=["out/*", "never"]))
    d.run_until(lambda: d.facts(job).trial.state is State.RUNNING)
    d.stop(job)
    facts = d.settle(job)
    assert (facts.trial.state, facts.trial.exit_code, facts.trial.output_status) == (
        State.CANCELLED,
        143,
        "partial",
    )
    assert [artifact.name for artifact in facts.artifacts[facts.trial.id]] == ["out/a"]


def test_E79_what_is_lost_after_its_start_is_never_run_again(fake):
    d = fake(default=Script(run_seconds=None))
    job = d.submit(d.publish())
    d.run_until(lambda: d.facts(job).trial.state is State.RUNNING)
    d.engine.lose(d.attempt(d.facts(job).trial))
    facts = d.settle(job)
    assert (facts.trial.state, facts.trial.error_code) == (State.FAILED, "EXECUTION_LOST")
    assert len(facts.allocations[facts.trial.id]) == 1
    for _ in range(10):
        d.pass_time(100.0)
        d.step()
    assert d.facts(job) == facts, "terminal is terminal"


def test_E70_exit_zero_without_a_promised_output_is_no_success(fake):
    d = fake(default=Script(run_seconds=1.0))
    facts = d.settle(d.submit(d.publish(outputs=["model.bin"])))
    assert (facts.trial.state, facts.trial.exit_code, facts.trial.output_status) == (
        State.FAILED,
        0,
        "failed",
    )
    assert facts.trial.error_code == "OUTPUT_COLLECTION_FAILED"


# Access


def test_A2_a_waiting_trial_whose_runner_was_withdrawn_ends_failed_and_running_ones_go_on(fake):
    d = fake(nodes=[fleet(1)], default=Script(run_seconds=20.0))
    selector = d.publish()
    running, waiting = d.submit(selector, "a"), d.submit(selector, "b")
    d.run_until(lambda: d.facts(running).trial.state is State.RUNNING)
    d.withdraw(selector)
    assert d.settle(running).trial.state is State.SUCCEEDED
    facts = d.settle(waiting)
    assert (facts.trial.state, facts.trial.error_code) == (State.FAILED, "RUNNER_NOT_FOUND")
    assert not facts.allocations[facts.trial.id]


def test_E30_a_retry_after_the_runner_was_withdrawn_is_refused_and_a_replay_changes_nothing(fake):
    d = fake(default=Script(run_seconds=None))
    selector = d.publish()
    job = d.submit(selector, "r")
    before = d.facts(job)
    d.withdraw(selector)
    with pytest.raises(Refusal) as refused:
        d.submit(selector, "r")
    assert refused.value.code == "RUNNER_NOT_FOUND"
    assert d.facts(job) == before
