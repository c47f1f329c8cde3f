"""After an end: the ledger of resubmissions, preemption, replaced nodes, stops with notice (C33-C36)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from support.deployment import fleet
from support.gangs import task
from trainshed.engines.fake import Script
from trainshed.model.states import AllocationState, State
from trainshed.model.training.spec import ResourceType
from trainshed.store import gangs

FOREVER = Script(run_seconds=None)


def _victim(**changes):
    """What may be preempted by anybody of higher rank, at once."""
    return task(resource_type=ResourceType.SPOT, workers=1, specs=["h100x4"], **changes)


def _preemptor():
    return task(resource_type=ResourceType.RESERVED, specs=["h100x4"])


def _old_enough(d):
    """A gang is nobody's victim in its first ten minutes (c4)."""
    d.pass_time(601.0)
    d.step()


# C33


def test_C33_the_whole_gang_is_restarted_as_often_as_the_budget_says(site):
    d = site(default=Script(run_seconds=100.0, code=1))
    job = d.create(task(workers=1, tries=2))
    facts = d.settle(job, pause=10.0)
    assert facts.trial.state is State.FAILED
    assert [(a.number, a.cause, a.exit_class) for a in d.attempts(job)] == [
        (1, "initial", "user"),
        (2, "auto_failure", "user"),
        (3, "auto_failure", "user"),
    ]
    assert d.task(job).resubmissions == 2
    assert facts.codes().count("RESUBMITTED") == 2
    launch = d.world.attempts[d.units(job)[1]].launch
    assert (launch.env["TRAINSHED_ATTEMPT"], launch.env["TRAINSHED_RESUBMISSION"]) == ("3", "2")


def test_C33_zero_disables(site):
    d = site(default=Script(run_seconds=100.0, code=1))
    job = d.create(task(tries=0))
    d.settle(job, pause=10.0)
    assert len(d.attempts(job)) == 1


def test_C33_the_next_try_waits_for_the_release_and_the_back_off(site):
    d = site(default=Script(run_seconds=100.0, code=1, leaks=2))
    job = d.create(task(tries=1))
    d.until(job, State.MIGRATING, pause=10.0)
    assert len(d.attempts(job)) == 1
    d.until(job, State.QUEUED)
    ended = d.attempts(job)[0].ended_at
    d.run_until(lambda: len(d.attempts(job)) == 2)
    assert d.attempts(job)[1].created_at >= ended + 10.0
    first, second = d.facts(job).allocations[d.trial(job).id]
    assert first.state is AllocationState.RELEASED
    assert second.held_at >= first.released_at


def test_C35_three_equal_quick_exits_end_it_early(site):
    d = site(default=Script(run_seconds=1.0, code=7))
    job = d.create(task(tries=50))
    facts = d.settle(job, pause=10.0)
    assert (facts.trial.state, facts.codes()[-3:-1]) == (State.FAILED, ["ENDED", "CRASH_LOOP"])
    assert len(d.attempts(job)) == 3


def test_c7_a_manual_resubmission_is_not_counted(site):
    d = site(default=Script(run_seconds=100.0, code=1))
    job = d.create(task())
    d.settle(job, pause=10.0)
    d.resubmit(job)
    d.settle(job, pause=10.0)
    assert [a.cause for a in d.attempts(job)] == ["initial", "manual"]
    assert d.task(job).resubmissions == 0


# C34


def test_C34_a_lost_node_is_cordoned_and_the_gang_goes_on_without_it(site):
    nodes = [fleet(4, name=f"n{number}") for number in (1, 2, 3)]
    d = site(nodes=nodes, default=FOREVER)
    job = d.create(task(workers=1, specs=["h100x4"], tries=1, replace_node=True))
    d.until(job, State.RUNNING)
    lost, kept = d.nodes_of(job)
    d.engine.lose_node(lost)
    d.run_until(lambda: len(d.attempts(job)) == 2 and d.trial(job).state is State.RUNNING, pause=5.0)
    assert lost not in d.nodes_of(job)
    assert kept in d.nodes_of(job)
    assert [a.cause for a in d.attempts(job)] == ["initial", "node_replaced"]
    assert d.task(job).resubmissions == 0
    codes = d.facts(job).codes()
    assert {"NODE_SUSPECTED", "CORDONED", "NODE_REPLACED"} <= set(codes)
    d.engine.repair(lost)
    other = d.create(task(workers=1, specs=["h100x4"]))
    d.step()
    assert d.trial(other).state is State.QUEUED, "the node takes nothing until a person clears it"


def test_C34_c9_of_the_only_machine_the_gpu_is_cordoned(site):
    d = site(nodes=[fleet(4, name="n1")], default=FOREVER)
    job = d.create(task(specs=["h100x2"], tries=1, replace_node=True))
    d.until(job, State.RUNNING)
    [part] = d.parts(job)
    broken = part["gpus"][0]
    d.engine.break_down(f"n1/gpu:{broken}", "XID 79: the GPU has fallen off the bus")
    d.members(job, run_seconds=0.0, code=1)
    d.run_until(lambda: len(d.attempts(job)) == 2 and d.trial(job).state is State.RUNNING, pause=5.0)
    [again] = d.parts(job)
    assert broken not in again["gpus"]
    assert d.task(job).excluded_nodes == "[]"
    selector = d.publish(gpus=1)
    d.submit(selector, trials=2)
    d.step()
    held = [a for a in d.unreleased() if a.parts is None]
    assert len(held) == 1, "Runner Trials stay off it too"
    assert held[0].indices != (broken,)


def test_C34_without_replacement_a_machine_fault_counts(site):
    d = site(nodes=[fleet(4, name="n1")], default=FOREVER)
    job = d.create(task(tries=1))
    d.until(job, State.RUNNING)
    d.engine.lose(d.units(job)[0])
    d.run_until(lambda: len(d.attempts(job)) == 2, pause=5.0)
    assert [a.cause for a in d.attempts(job)] == ["initial", "auto_failure"]
    assert d.attempts(job)[0].exit_class == "machine"


def test_C34_a_program_that_kills_its_watcher_is_not_run_for_ever_and_closes_nothing(site):
    d = site(nodes=[fleet(4, name="n1")], default=Script(run_seconds=None, lost_after=1.0))
    job = d.create(task(tries=0, replace_node=True))
    facts = d.settle(job, pause=10.0)
    assert (facts.trial.state, facts.trial.error_code) == (State.FAILED, "EXECUTION_LOST")
    assert [a.cause for a in d.attempts(job)] == ["initial", "node_replaced", "node_replaced"]
    codes = facts.codes()
    assert "CRASH_LOOP" in codes
    assert not {"CORDONED", "NODE_SUSPECTED"} & set(codes)
    replaced = [event.message for event in facts.events if event.code == "NODE_REPLACED"]
    assert all(m.startswith("Again on n1, of which nothing is known to be broken") for m in replaced)


BROKE = "XID 79: the GPU has fallen off the bus"


def test_C34_what_breaks_under_a_running_gang_is_said_at_once_and_the_gang_goes_on_elsewhere(site):
    nodes = [fleet(4, name=f"n{number}") for number in (1, 2)]
    d = site(nodes=nodes, default=FOREVER)
    job = d.create(task(specs=["h100x2"], tries=0, replace_node=True))
    d.until(job, State.RUNNING)
    [part] = d.parts(job)
    d.engine.break_down(f"{part['node']}/gpu:{part['gpus'][0]}", BROKE)
    d.run_until(lambda: "NODE_SUSPECTED" in d.facts(job).codes(), pause=2.0)
    assert d.trial(job).state is State.RUNNING
    d.run_until(lambda: len(d.attempts(job)) == 2 and d.trial(job).state is State.RUNNING, pause=5.0)
    assert d.nodes_of(job) != [part["node"]]
    assert [(a.cause, a.exit_class) for a in d.attempts(job)] == [
        ("initial", "machine"),
        ("node_replaced", None),
    ]
    assert d.facts(job).codes().count("NODE_SUSPECTED") == 1


def test_C34_a_program_that_ends_well_when_its_node_broke_is_not_done(site):
    nodes = [fleet(4, name=f"n{number}") for number in (1, 2)]
    d = site(nodes=nodes, default=Script(run_seconds=None, stop_code=0))
    job = d.create(task(specs=["h100x2"], tries=0, replace_node=True))
    d.until(job, State.RUNNING)
    d.engine.break_down(d.nodes_of(job)[0], "The link of ib0 is down.")
    d.run_until(lambda: len(d.attempts(job)) == 2 and d.trial(job).state is State.RUNNING, pause=5.0)
    assert d.attempts(job)[0].exit_class == "machine"


def test_C34_without_replacement_what_broke_is_closed_for_all_and_the_gang_runs_on(site):
    d = site(nodes=[fleet(4, name="n1")], default=FOREVER)
    job = d.create(task(specs=["h100x2"], tries=1))
    d.until(job, State.RUNNING)
    [part] = d.parts(job)
    broken = part["gpus"][0]
    d.engine.break_down(f"n1/gpu:{broken}", BROKE)
    d.run_until(lambda: "CORDONED" in d.facts(job).codes(), pause=2.0)
    d.pass_time(100.0)
    d.step()
    assert d.trial(job).state is State.RUNNING
    d.members(job, run_seconds=0.0, code=1)
    d.run_until(lambda: len(d.attempts(job)) == 2 and d.trial(job).state is State.RUNNING, pause=5.0)
    assert broken not in d.parts(job)[0]["gpus"]
    other = d.create(task(specs=["h100x2"]))
    d.step()
    assert d.trial(other).state is State.QUEUED, "of the four GPUs one is closed"


def test_C34_what_a_person_opened_is_not_closed_again_for_what_was_known_then(site):
    d = site(nodes=[fleet(4, name="n1")], default=FOREVER)
    job = d.create(task(specs=["h100x4"]))
    d.until(job, State.RUNNING)
    d.engine.break_down("n1/gpu:0", BROKE)
    d.run_until(lambda: "CORDONED" in d.facts(job).codes(), pause=2.0)
    d.stop(job)
    d.settle(job, pause=10.0)
    with d.database.read() as connection:
        [standing] = gangs.standing_cordons(connection)
    d.database.write(lambda c: gangs.clear_cordon(c, standing.id, at=d.now(), by="human:ann"))
    other = d.create(task(specs=["h100x4"]))
    d.until(other, State.RUNNING)
    d.pass_time(60.0)
    d.step()
    assert "NODE_SUSPECTED" not in d.facts(other).codes()


def test_C34_healthy_nodes_are_not_closed_one_after_another(site):
    nodes = [fleet(4, name=f"n{number}") for number in range(1, 7)]
    d = site(nodes=nodes, default=Script(run_seconds=None, lost_after=100.0))
    job = d.create(task(tries=0, replace_node=True))
    facts = d.settle(job, pause=10.0)
    assert facts.trial.state is State.FAILED
    assert len(d.attempts(job)) == 4
    assert "less than 600 s of work" in (facts.trial.error_message or "")
    assert "CORDONED" not in facts.codes()


# C30, C36


def test_C30_a_preempted_task_keeps_its_place_and_its_budget(site):
    d = site(default=FOREVER)
    victim = d.create(_victim(tries=1))
    d.until(victim, State.RUNNING)
    queued_at = d.task(victim).queued_at
    _old_enough(d)
    winner = d.create(_preemptor())
    d.until(winner, State.RUNNING)
    assert d.trial(victim).state is State.QUEUED
    assert d.task(victim).queued_at == queued_at
    assert d.task(victim).resubmissions == 0
    codes = d.facts(victim).codes()
    assert codes.index("PREEMPTED") < codes.index("PREEMPTED_QUEUED") < codes.index("RELEASED")
    [attempt] = d.attempts(victim)
    assert (attempt.exit_class, attempt.ended_by) == ("preempted", "preemption")
    d.stop(winner)
    d.until(victim, State.RUNNING)
    assert d.attempts(victim)[1].cause == "preempted"


def test_C36_a_preempted_program_saves_first_and_is_resumed_although_it_exits_with_0(site):
    d = site(default=Script(run_seconds=None, saves_for=45.0))
    victim = d.create(_victim(notice=60))
    d.until(victim, State.RUNNING)
    _old_enough(d)
    winner = d.create(_preemptor())
    d.until(victim, State.CHECKPOINTING)
    told = d.now()
    assert d.trial(winner).state is State.QUEUED
    d.until(winner, State.RUNNING)
    assert 45.0 <= d.now() - told < 55.0
    assert d.trial(victim).state is State.QUEUED
    codes = d.facts(victim).codes()
    assert codes.count("EXIT_NOTICE_SENT") == 2
    assert codes.count("EXIT_NOTICE_HEARD") == 2


def test_c4_a_victim_that_will_not_die_is_killed_and_blocks_nobody(site):
    d = site(default=Script(run_seconds=None, deaf=True))
    victim = d.create(_victim())
    d.until(victim, State.RUNNING)
    _old_enough(d)
    begun = d.now()
    winner = d.create(_preemptor())
    d.until(winner, State.RUNNING, pause=5.0)
    assert d.now() - begun < 120.0


def test_c4_what_a_victim_leaves_is_kept_from_everybody_else(site):
    d = site(default=Script(run_seconds=None, saves_for=30.0))
    victim = d.create(_victim(notice=60))
    d.until(victim, State.RUNNING)
    _old_enough(d)
    winner = d.create(task(resource_type=ResourceType.RESERVED, workers=1, specs=["h100x4"]))
    d.until(victim, State.CHECKPOINTING)
    thief = d.create(task(resource_type=ResourceType.IDLE))
    trial = d.submit(d.publish(gpus=1))
    d.until(winner, State.RUNNING)
    assert d.trial(thief).state is State.QUEUED
    assert d.facts(trial).trial.state is State.QUEUED


def test_C36_a_stop_lets_the_program_save_before_anything_is_released(site):
    d = site(default=Script(run_seconds=None, saves_for=30.0))
    job = d.create(task(workers=1, notice=60))
    d.until(job, State.RUNNING)
    d.stop(job)
    begun = d.now()
    d.pass_time(10.0)
    d.step()
    assert d.trial(job).state is State.STOPPING
    assert {replica.state for replica in d.replicas(job)} == {"Terminating"}
    facts = d.settle(job)
    assert facts.trial.state is State.CANCELLED
    assert facts.trial.exit_code == 0
    assert d.now() - begun >= 30.0
    assert [d.world.attempts[unit].notice_reason for unit in d.units(job)] == ["stop", "stop"]


def test_C36_a_hang_is_ended_at_the_limit(site):
    d = site(default=Script(run_seconds=None, saves_for=1000.0, heeds_sigterm=False))
    job = d.create(task(notice=60))
    d.until(job, State.RUNNING)
    d.stop(job)
    begun = d.now()
    d.settle(job, pause=5.0)
    assert 60.0 <= d.now() - begun < 90.0


def test_C36_a_deletion_sends_it_and_a_failure_does_not(site):
    d = site(default=Script(run_seconds=None, saves_for=5.0))
    deleted, failed = d.create(task(notice=60)), d.create(task(workers=1, notice=60))
    d.until(failed, State.RUNNING)
    d.delete(deleted)
    d.members(failed, [0], run_seconds=0.0, code=1)
    units = d.units(failed)
    d.run_until(lambda: not d.engine.live())
    trial = d.facts(deleted).trial
    assert trial.state is State.CANCELLED
    assert [d.world.attempts[u].notice_reason for u in d.units(deleted)] == ["deletion"]
    assert all(d.world.attempts[unit].notified_at is None for unit in units)


def test_a_stop_between_two_attempts_ends_the_task(site):
    d = site(default=Script(run_seconds=100.0, code=1, leaks=30))
    job = d.create(task(tries=3))
    d.until(job, State.MIGRATING, pause=10.0)
    d.stop(job)
    d.step()
    assert d.trial(job).state is State.CANCELLED


def test_a_stop_of_what_prepares_starts_nobody(site):
    d = site(default=Script(start_after=60.0))
    job = d.create(task(workers=1))
    d.step()
    d.stop(job)
    facts = d.settle(job)
    assert facts.trial.state is State.CANCELLED
    assert not facts.trial.user_code_started
    assert all(seen.started_at is None for seen in d.seen(job))


@pytest.mark.parametrize("leaks", [0, 4])
def test_P6_the_release_is_claimed_only_when_every_member_is_gone(site, leaks):
    d = site(default=Script(run_seconds=1.0))
    job = d.create(task(workers=2))
    d.step()
    unit = d.units(job)[1]
    d.engine.script(unit, replace(d.world.attempts[unit].script, leaks=leaks))
    d.run_until(lambda: d.trial(job).state is State.SUCCEEDED)
    if leaks:
        d.run_until(lambda: d.unreleased()[0].state is AllocationState.LEAKED)
        assert "LEAKED" in d.facts(job).codes()
    d.settle(job)
    assert not d.engine.live()


def test_P5_a_gang_that_is_not_proven_gone_keeps_its_nodes(site):
    d = site(default=Script(run_seconds=1.0, leaks=5))
    first = d.create(task(workers=1, specs=["h100x4"]))
    d.until(first, State.SUCCEEDED)
    second = d.create(task())
    d.step()
    assert d.trial(second).state is State.QUEUED
    d.run_until(lambda: d.trial(second).state is not State.QUEUED, pause=10.0)
    assert d.facts(first).settled
