"""C51: the cluster of a Ray task follows its load, within its range, its quota and what is free."""

from __future__ import annotations

import json

import pytest

from support.deployment import fleet
from support.gangs import catalog, task
from support.scaling import (
    driver_ends,
    grown,
    head_says,
    leave,
    running,
    scaling_task,
    start,
    units_of,
    workers,
)
from trainshed.engines.contract import EngineError
from trainshed.engines.fake import Script
from trainshed.model.states import AllocationState, State
from trainshed.model.training.catalog import ANY, Quota
from trainshed.model.training.spec import AutoscalingMode, FaultTolerance, Kind, ResourceType
from trainshed.store import gangs

FOREVER = Script(start_after=1.0, run_seconds=None)
QUOTA = [Quota(ANY, ResourceType.ONDEMAND, "default", ANY, 5)]


def _scaling(d, job):
    return json.loads(d.task(job).scaling)


def _held(d, job):
    trial = d.trial(job)
    return d.facts(job).allocations[trial.id][-1]


def test_C51_it_is_admitted_at_workers_and_grows_one_by_one_as_the_load_wants(site):
    d = site(default=FOREVER)
    job = start(d, workers=1)
    assert len(d.parts(job)) == 3
    assert "SCALED_UP" not in d.facts(job).codes()
    head_says(d, job, 3, [1])
    d.run_until(lambda: len(running(d, job)) == 3)
    assert workers(d, job) == [1, 3, 4]
    held = _held(d, job)
    assert (held.gpus, units_of(json.loads(held.sources))) == (4, 4)
    assert d.facts(job).codes().count("SCALED_UP") == 2
    launch = d.world.attempts[d.units(job)[3]].launch
    assert (launch.gang.rank, launch.gang.size, launch.gang.role) == (3, 3, "worker")
    assert launch.gang.host is not None
    assert launch.gang.optional == (1,)
    addresses = [replica.address for replica in d.replicas(job)]
    assert len(set(addresses)) == 5
    assert {part["node"] for part in d.parts(job)} <= {"n1", "n2"}


def test_C51_what_the_head_says_is_a_request_within_the_range(site):
    d = site(default=FOREVER)
    job = start(d, workers=1, most=3)
    head_says(d, job, 99_999, [1])
    d.run_until(lambda: len(running(d, job)) == 3)
    for _ in range(5):
        d.pass_time(60.0)
        d.step()
    assert workers(d, job) == [1, 3, 4]


@pytest.mark.parametrize(
    ("wanted", "joined"),
    [
        ("3", [1]),
        (True, [1]),
        (-1, [1]),
        (10**9, [1]),
        (3, "1"),
        (3, [None]),
        (3, [-1]),
        (None, None),
        (2.5, []),
    ],
)
def test_C51_what_a_program_makes_up_is_nothing(site, wanted, joined):
    d = site(default=FOREVER)
    job = start(d)
    head_says(d, job, wanted, joined)
    for _ in range(3):
        d.step()
    assert workers(d, job) == [1]


def test_C51_only_the_head_of_a_task_that_scales_is_heard(site):
    d = site(default=FOREVER)
    job = d.create(task(kind=Kind.RAY, cmd="x", workers=1))
    d.until(job, State.RUNNING)
    head_says(d, job, 3, [1])
    d.step()
    assert workers(d, job) == [1]
    assert d.task(job).scaling is None


def test_C51_growth_stops_at_the_quota_says_so_and_goes_on_when_units_return(site):
    d = site(default=FOREVER, catalog_=catalog(QUOTA))
    job = start(d, workers=1, most=7)
    taken = d.create(task(workers=2))
    d.until(taken, State.RUNNING)
    head_says(d, job, 7, [1])
    for _ in range(4):
        d.step()
    assert workers(d, job) == [1]
    waits = _scaling(d, job)
    assert waits["waits"] == "WaitingForQuota"
    assert "needs 1 unit" in waits["why"]
    assert d.facts(job).codes().count("SCALE_UP_WAITS") == 1
    d.stop(taken)
    d.run_until(lambda: len(running(d, job)) == 4)
    for _ in range(4):
        d.step()
    assert len(workers(d, job)) == 4, "five units: the head's and four workers'"


def test_C51_growth_waits_for_room_and_takes_nothing_that_somebody_who_waits_has_reserved(site):
    d = site(default=FOREVER, nodes=[fleet(4, name="n1")])
    job = start(d, workers=1)
    first = d.create(task(specs=["h100x4"], max_run_seconds=600))
    d.step()
    assert d.trial(first).state is State.QUEUED
    head_says(d, job, 3, [1])
    for _ in range(4):
        d.step()
    assert workers(d, job) == [1]
    assert _scaling(d, job)["waits"] == "Behind"
    d.stop(first)
    d.run_until(lambda: len(running(d, job)) == 3)
    assert _scaling(d, job)["waits"] == ""


def test_C51_a_worker_that_leaves_is_released_and_its_units_are_free(site):
    d = site(default=FOREVER, catalog_=catalog(QUOTA))
    job = start(d, workers=1)
    grown(d, job, 4)
    waiting = d.create(task())
    d.step()
    assert d.trial(waiting).state is State.QUEUED
    gone = workers(d, job)[-1]
    leave(d, job, gone)
    d.until(waiting, State.RUNNING)
    assert gone not in workers(d, job)
    unit = d.units(job)[[row.rank for row in d.replicas(job)].index(gone)]
    assert d.world.attempts[unit].released
    codes = d.facts(job).codes()
    assert codes.count("SCALED_DOWN") == 1
    assert d.trial(job).state is State.RUNNING
    assert units_of(json.loads(_held(d, job).sources)) == 4
    assert f"replica {gone}: processes" in json.loads(_held(d, job).evidence)
    row = next(each for each in d.replicas(job) if each.rank == gone)
    assert (row.state, row.exit_code) == ("Succeeded", 0)


def test_C51_P6_a_worker_whose_release_is_not_proven_stays_charged(site):
    d = site(default=FOREVER)
    job = start(d, workers=1)
    grown(d, job, 2)
    gone = workers(d, job)[-1]
    d.members(job, [len(d.units(job)) - 1], leaks=3)
    leave(d, job, gone)
    d.step()
    d.step()
    assert workers(d, job) == [1, gone]
    d.run_until(lambda: workers(d, job) == [1], pause=5.0)
    assert "SCALED_DOWN" in d.facts(job).codes()


def test_C51_a_lost_worker_above_the_minimum_is_no_loss_of_the_gang(site):
    d = site(default=FOREVER)
    job = start(d, workers=2, least=1)
    grown(d, job, 3)
    lost = workers(d, job)[0]
    leave(d, job, lost, code=1)
    d.run_until(lambda: lost not in workers(d, job))
    assert "WORKER_LOST" in d.facts(job).codes()
    assert d.trial(job).state is State.RUNNING
    head_says(d, job, 3, workers(d, job))
    d.run_until(lambda: len(running(d, job)) == 3, pause=20.0)
    assert len(d.attempts(job)) == 1


def test_C51_c8_a_loss_that_goes_below_the_minimum_ends_the_gang(site):
    d = site(default=FOREVER)
    job = start(
        d,
        scaling_task(1, 3, workers=1, fault_tolerance=FaultTolerance(enabled=True, max_resubmissions=1)),
    )
    d.members(job, [1], run_seconds=0.0, code=137)
    d.run_until(lambda: len(d.attempts(job)) == 2 and d.trial(job).state is State.RUNNING, pause=5.0)
    first = d.attempts(job)[0]
    assert (first.failed_rank, first.exit_class) == (1, "oom")
    assert workers(d, job) == [1]
    assert d.task(job).scaling is None


def test_C51_a_gang_holds_no_less_than_its_minimum_whatever_is_made_up(site):
    d = site(default=FOREVER)
    job = start(d, workers=2, least=1)
    d.members(job, [1, 2], run_seconds=10.0)
    d.pass_time(11.0)
    head_says(d, job, 0, [])
    for _ in range(4):
        d.pass_time(100.0)
        d.step()
    assert len(workers(d, job)) == 1


def test_C51_the_end_of_a_task_is_no_shrinking(site):
    d = site(default=FOREVER)
    job = start(d, workers=1)
    grown(d, job, 3)
    driver_ends(d, job)
    facts = d.settle(job)
    assert facts.trial.state is State.SUCCEEDED
    assert "SCALED_DOWN" not in facts.codes()
    assert "WORKER_LOST" not in facts.codes()
    assert not d.engine.live()
    assert facts.allocations[facts.trial.id][-1].state is AllocationState.RELEASED


def test_C51_the_driver_decides_also_if_workers_fell_before(site):
    d = site(default=FOREVER)
    job = start(d, workers=2, least=0)
    leave(d, job, 2, code=9)
    driver_ends(d, job, 3)
    facts = d.settle(job)
    assert (facts.trial.state, facts.trial.exit_code) == (State.FAILED, 3)
    assert d.attempts(job)[0].failed_rank == 3


def test_C51_a_stop_ends_those_that_joined_and_one_that_is_on_its_way(site):
    d = site(default=FOREVER)
    job = start(d, workers=1)
    grown(d, job, 2)
    head_says(d, job, 4, workers(d, job))
    d.step()
    d.stop(job)
    facts = d.settle(job)
    assert facts.trial.state is State.CANCELLED
    assert not d.engine.live()


def test_C51_who_needs_its_place_gets_that_of_the_grown_gang(site):
    d = site(default=FOREVER)
    job = start(d, scaling_task(1, 8, workers=1, resource_type=ResourceType.SPOT))
    grown(d, job, 7)
    d.pass_time(700.0)
    winner = d.create(task(workers=1, specs=["h100x4"], resource_type=ResourceType.RESERVED))
    d.until(winner, State.RUNNING)
    assert "PREEMPTED" in d.facts(job).codes()
    assert not [unit for unit in d.engine.live() if unit.startswith(d.attempts(job)[0].id)]


def test_C51_conservative_has_no_more_on_their_way_than_the_cluster_has_nodes(site):
    slow = Script(start_after=1.0, run_seconds=None)
    d = site(default=slow)
    job = start(d, scaling_task(0, 7, workers=0, mode=AutoscalingMode.CONSERVATIVE))
    head_says(d, job, 7, [])
    for _ in range(4):
        d.step()
    assert len(workers(d, job)) == 1, "the head alone is the cluster"
    head_says(d, job, 7, workers(d, job))
    for _ in range(6):
        d.step()
    assert len(workers(d, job)) == 3
    head_says(d, job, 7, workers(d, job))
    d.run_until(lambda: len(workers(d, job)) == 7)


def test_C51_one_that_cannot_join_is_released_and_the_next_waits_a_while(site):
    d = site(default=FOREVER)
    job = start(d, workers=1)
    refused = EngineError("ENGINE_DISK", "the disk is full", retryable=True)
    d.engine.script(f"{d.attempts(job)[0].id}.3", Script(refusals=(refused,)))
    head_says(d, job, 2, [1])
    d.run_until(lambda: "WORKER_LOST" in d.facts(job).codes())
    assert workers(d, job) == [1]
    assert _scaling(d, job)["not_before"] > d.now()
    d.run_until(lambda: len(running(d, job)) == 2, pause=5.0)
    assert workers(d, job) == [1, 4]


def test_C51_a_node_that_is_lost_takes_only_its_workers(site):
    d = site(default=FOREVER, nodes=[fleet(2, name="n1"), fleet(4, name="n2")])
    job = start(d, workers=1, least=0)
    grown(d, job, 3)
    where = {part["rank"]: part["node"] for part in d.parts(job)}
    [other] = {node for rank, node in where.items() if node != where[0]}
    left = [rank for rank in workers(d, job) if where[rank] != other]
    d.engine.lose_node(other)
    head_says(d, job, len(left), left)
    d.run_until(lambda: workers(d, job) == left, pause=10.0)
    assert d.trial(job).state is State.RUNNING


def test_C51_what_each_worker_had_is_charged(site):
    d = site(default=FOREVER)
    job = start(d, workers=1)
    begun = d.now()
    grown(d, job, 2)
    d.pass_time(100.0)
    leave(d, job, workers(d, job)[-1])
    d.run_until(lambda: workers(d, job) == [1])
    charged = d.project().used_gpu_seconds
    assert 95.0 <= charged <= 130.0
    d.pass_time(900.0)
    driver_ends(d, job)
    d.settle(job)
    assert 2 * (d.now() - begun) - 250 <= d.project().used_gpu_seconds - charged <= 2 * (d.now() - begun) + 20


def test_C51_what_growth_waits_for_is_forgotten_once_the_load_wants_no_more(site):
    d = site(default=FOREVER, nodes=[fleet(2, name="n1")])
    job = start(d, workers=1)
    head_says(d, job, 2, [1])
    d.run_until(lambda: _scaling(d, job)["waits"] == "WaitingForResources")
    head_says(d, job, 1, [1])
    d.run_until(lambda: _scaling(d, job)["waits"] == "")
    assert d.facts(job).codes().count("SCALE_UP_WAITS") == 1


def test_C51_one_that_joins_after_a_restart_gets_the_image_again(site):
    d = site(default=FOREVER)
    image = "example/ray@sha256:" + "a" * 64
    job = d.create(scaling_task(1, 3, image="example/ray:1"), image=image)
    d.until(job, State.RUNNING)
    d.engine.close()
    d.boot()
    d.engine.evict(image)
    head_says(d, job, 2, [1])
    d.run_until(lambda: len(running(d, job)) == 2)
    assert d.world.attempts[d.units(job)[3]].launch.image == image
    assert d.world.prepared[image] == 2


def test_C51_a_new_attempt_begins_at_workers(site):
    d = site(default=FOREVER)
    fault = FaultTolerance(enabled=True, max_resubmissions=1)
    job = start(d, scaling_task(1, 4, workers=1, fault_tolerance=fault))
    grown(d, job, 3)
    d.members(job, [0], run_seconds=0.0, code=1)
    d.run_until(lambda: len(d.attempts(job)) == 2 and d.trial(job).state is State.RUNNING, pause=5.0)
    assert workers(d, job) == [1]
    with d.database.read() as connection:
        assert len(gangs.held(connection)) == 1
