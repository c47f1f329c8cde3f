"""Runner Trials and gangs on the same nodes: nothing twice, and neither starves the other (P5, P11)."""

from __future__ import annotations

from support.deployment import fleet
from support.gangs import task
from trainshed.engines.fake import Script
from trainshed.model.states import State
from trainshed.policy.effective import ServerPolicy


def _site(site, **options):
    return site(nodes=[fleet(4, name="n1")], default=Script(run_seconds=None), **options)


def test_P5_gangs_and_runner_trials_never_hold_one_gpu_twice(site):
    d = _site(site)
    gang = d.create(task(specs=["h100x2"]))
    job = d.submit(d.publish(gpus=1), trials=4)
    d.step()
    placed = [a for a in d.unreleased() if a.parts is None]
    [part] = d.parts(gang)
    assert len(placed) == 2
    taken = [index for a in placed for index in a.indices] + part["gpus"]
    assert sorted(taken) == [0, 1, 2, 3]
    waiting = [trial for trial in d.facts(job).trials if trial.state is State.QUEUED]
    assert len(waiting) == 2


def test_P11_small_runner_trials_do_not_starve_a_gang_that_waits_for_the_whole_node(site):
    d = _site(site)
    first = d.submit(d.publish(gpus=1, timeout_seconds=100))
    d.step()
    gang = d.create(task(specs=["h100x4"]))
    d.step()
    d.pass_time(1.0)
    later = d.submit(d.publish(name="team/long", gpus=1, timeout_seconds=100_000))
    d.step()
    assert d.trial(gang).state is State.QUEUED
    assert d.facts(later).trial.state is State.QUEUED, "it would delay the gang, which came first"
    d.stop(first)
    d.until(gang, State.RUNNING)
    assert d.facts(later).trial.state is State.QUEUED


def test_P11_small_gangs_do_not_starve_a_runner_trial_that_waits_for_the_whole_node(site):
    d = _site(site)
    first = d.create(task(max_run_seconds=1000))
    d.step()
    trial = d.submit(d.publish(gpus=4))
    d.step()
    d.pass_time(1.0)
    later = d.create(task())
    d.step()
    assert d.trial(later).state is State.QUEUED, "nobody can say when it ends, and the Trial came first"
    short = d.create(task(max_run_seconds=10))
    d.step()
    assert d.trial(short).state is not State.QUEUED, "it is gone before"
    d.stop(first)
    d.stop(short)
    d.run_until(lambda: d.facts(trial).trial.state is State.RUNNING)
    assert d.trial(later).state is State.QUEUED


def test_the_limit_of_active_trials_is_one_of_runner_trials(site):
    d = _site(site, policy=ServerPolicy(max_active_trials=1))
    gang = d.create(task(workers=1))
    d.until(gang, State.RUNNING)
    jobs = [d.submit(d.publish(gpus=1)) for _ in range(2)]
    d.step()
    states = [d.facts(job).trial.state for job in jobs]
    assert states.count(State.QUEUED) == 1, states
