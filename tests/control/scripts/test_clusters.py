"""Packed projects on a Ray cluster of the catalogue: placed, charged and released beside training tasks."""

from __future__ import annotations

import json

import pytest

from support.clusters import ClusterDeployment, far_catalog
from support.deployment import Crash, crashing_at
from trainshed.control.crashpoints import Point
from trainshed.engines.fake import Script
from trainshed.model.scripts.spec import RAY
from trainshed.model.states import AllocationState, State
from trainshed.model.training.spec import ResourceType
from trainshed.store import jobs

FOREVER = Script(run_seconds=None)


def _allocation(d: ClusterDeployment, trial_id: str):
    with d.database.read() as connection:
        [*_, held] = jobs.allocations_of(connection, [trial_id])[trial_id]
    return held


def test_a_packed_project_runs_on_a_node_of_the_cluster_and_brings_its_outputs_home(ray):
    d = ray()
    job = d.pack(hours=1.0, data=(d.dataset("set", {"x": b"1"}),))
    d.until(job, "running")
    [held] = d.held_there()
    assert (held.node, held.indices, held.gpus, held.cpus) == ("far1", (0,), 1, 8)
    claim = json.loads(held.sources)
    assert (claim["pool"], claim["spec"], claim["resource_type"]) == ("far", "h100x1", "reserved")
    launch = d.far.launched[held.attempt_id]
    assert (launch.node, launch.carry) == ("far1", True)
    assert [mount.place for mount in launch.mounts] == ["data/set"]
    tale = d.rest(job)
    assert (tale.word, [each.provider for each in tale.attempts]) == ("done", [RAY])
    assert d.outputs(job) == {"outputs/model.bin": b"weights"}
    assert _allocation(d, job).state is AllocationState.RELEASED
    assert d.held_there() == []


def test_P5_tasks_and_packed_projects_never_hold_one_gpu_twice(ray):
    d = ray(course=FOREVER, catalog_=far_catalog(2, ondemand=10))
    task_job = d.far_task()
    d.until_running(task_job)
    first, second = d.pack(), d.pack()
    d.until(first, "running")
    d.step()
    [part] = d.parts(task_job)
    mine = _allocation(d, first)
    assert sorted([*part["gpus"], *mine.indices]) == [0, 1]
    tale = d.tale(second)
    assert (tale.look.trial.state, tale.look.script.provider) == (State.QUEUED, RAY)
    assert "GPU" in (tale.look.script.message or "") or "room" in (tale.look.script.message or "")
    d.stop(task_job)
    d.until(second, "running")


def test_C23_a_packed_project_stays_within_its_projects_own_quota_and_says_so(ray):
    d = ray(catalog_=far_catalog(1), course=FOREVER)
    first, second = d.pack(), d.pack()
    d.until(first, "running")
    d.step()
    tale = d.tale(second)
    assert tale.look.trial.state is State.QUEUED
    assert "h100x1" in (tale.look.script.message or "")
    d.pass_time(1.0)
    reserved = d.far_task(resource_type=ResourceType.RESERVED, guarantee=True)
    d.step()
    assert d.trial(reserved).state is State.QUEUED, "the one unit is a packed project's"
    d.cancel(first)
    d.until(second, "running")
    assert d.trial(reserved).state is State.QUEUED


def test_a_project_without_quota_is_not_sent_there(ray):
    d = ray(catalog_=far_catalog(0, ondemand=0))
    job = d.pack()
    d.step()
    tale = d.tale(job)
    assert tale.look.script.provider is None
    assert "no quota of its own on cluster far" in json.dumps(json.loads(tale.look.script.route))
    d.change_catalog(far_catalog(0, ondemand=1))
    done = d.rest(job, pause=60.0)
    assert done.word == "done"
    assert json.loads(_allocation(d, job).sources)["resource_type"] == "ondemand"


def test_a_quota_that_goes_while_it_waits_sends_it_to_be_routed_anew(ray):
    d = ray(catalog_=far_catalog(1), course=FOREVER)
    first, second = d.pack(), d.pack()
    d.until(first, "running")
    d.step()
    assert d.tale(second).look.script.provider == RAY
    d.change_catalog(far_catalog(0))
    d.run_until(lambda: d.tale(second).look.script.provider is None, pause=10.0)
    assert d.tale(first).word == "running", "what runs goes on"


POINTS = (
    Point.SCRIPT_ROUTE_AFTER_COMMIT,
    Point.GANG_PLACE_BEFORE_COMMIT,
    Point.GANG_PLACE_AFTER_COMMIT,
    Point.SCRIPT_AFTER_SUBMIT,
    Point.SCRIPT_AFTER_SUBMIT_COMMIT,
    Point.SCRIPT_WATCH_AFTER_COMMIT,
    Point.SCRIPT_AFTER_FETCH,
    Point.SCRIPT_END_AFTER_COMMIT,
    Point.SCRIPT_RELEASE_AFTER_PROVIDER,
)


@pytest.mark.parametrize("point", POINTS, ids=str)
def test_k_the_server_dies_at_any_point_and_nothing_runs_twice_or_is_held_twice(ray, point):
    d = ray()
    job = d.pack()
    with crashing_at(point) as reached:
        with pytest.raises(Crash):
            d.rest(job)
        assert reached[-1] is point
    d.boot()
    tale = d.rest(job)
    assert (tale.word, len(tale.attempts)) == ("done", 1)
    assert d.outputs(job) == {"outputs/model.bin": b"weights"}
    assert len(d.far.launched) == 1
    assert d.held_there() == []


def test_it_may_have_idle_tasks_go_and_is_itself_nobodys_victim(ray):
    d = ray(catalog_=far_catalog(1, ondemand=10), course=FOREVER)
    idle = d.far_task(specs=["h100x2"], resource_type=ResourceType.IDLE)
    d.until_running(idle)
    d.pass_time(1000.0)
    job = d.pack()
    d.until(job, "running")
    assert d.trial(idle).state is not State.RUNNING
    d.pass_time(1000.0)
    other = d.far_task(specs=["h100x2"], priority=1000)
    d.step()
    d.pass_time(1000.0)
    d.step()
    assert (d.tale(job).word, d.trial(other).state) == ("running", State.QUEUED)


def test_P14_another_controller_goes_on_with_it_and_the_sweep_ends_nothing_of_it(ray):
    d = ray()
    job = d.pack()
    d.until(job, "running")
    attempt = d.tale(job).attempts[-1].attempt_id
    d.boot()
    d.controller._swept = float("-inf")
    d.step()
    assert attempt in d.far.live()
    assert d.rest(job).word == "done"
    assert len(d.tale(job).attempts) == 1


def test_one_that_waits_for_the_cluster_is_cancelled_at_once_and_one_that_runs_is_released(ray):
    d = ray(gpus=1, course=FOREVER)
    first, second = d.pack(), d.pack()
    d.until(first, "running")
    d.step()
    d.cancel(second)
    d.step()
    assert d.tale(second).word == "cancelled"
    d.cancel(first)
    assert d.rest(first).word == "cancelled"
    assert d.held_there() == []
    assert not d.far.live()


def test_a_lost_node_sends_it_on_from_where_it_was(ray):
    d = ray(course=FOREVER)
    job = d.pack()
    d.until(job, "running")
    d.far.lose(d.tale(job).attempts[-1].attempt_id)
    d.run_until(lambda: len(d.tale(job).attempts) == 2, pause=20.0)
    assert d.tale(job).attempts[0].state == "lost"
    d.until(job, "running")


def test_c4_one_that_ran_over_its_hours_is_asked_to_save_and_stopped(ray):
    d = ray(course=FOREVER)
    job = d.pack(source="agent", hours=0.5)
    d.until(job, "running")
    attempt = d.tale(job).attempts[-1].attempt_id
    d.until(job, "awaiting_approval", pause=100.0)
    assert (attempt, ".gpu/checkpoint_requested") in d.far.asked
    assert d.held_there() == []


def test_a_cluster_that_is_not_connected_is_not_chosen(ray):
    d = ray()
    d.connected = False
    d.boot()
    job = d.pack()
    d.step()
    tale = d.tale(job)
    assert tale.look.script.provider is None
    d.connected = True
    assert d.rest(job, pause=60.0).word == "done"


def test_P5_the_time_on_its_gpu_is_charged_to_its_project(ray):
    d = ray()
    job = d.pack()
    d.rest(job)
    with d.database.read() as connection:
        [row] = connection.exec_driver_sql("SELECT used_gpu_seconds FROM projects WHERE id = 'default'")
    assert row[0] >= 60


def test_C27_the_first_gang_in_line_is_not_starved_by_packed_projects_that_come_later(ray):
    d = ray(course=FOREVER, catalog_=far_catalog(2, ondemand=10))
    first = d.far_task()
    d.until_running(first)
    d.pass_time(1.0)
    gang = d.far_task(workers=1, priority=900)
    d.step()
    d.pass_time(1.0)
    packed = d.pack()
    d.step()
    assert d.trial(gang).state is State.QUEUED
    waits = d.tale(packed).look.trial.state is State.QUEUED
    d.stop(first)
    d.run_until(lambda: d.trial(gang).state is State.RUNNING or not waits, pause=1.0)
    if waits:
        assert d.tale(packed).look.trial.state is State.QUEUED
