"""C51, C53: what readers are told of a cluster that follows its load."""

from __future__ import annotations

import pytest

from support.databases import on_one_kind
from support.gangs import GangDeployment, catalog, task
from support.scaling import grown, head_says, running, scaling_task, start, workers
from trainshed.cli.train_views import scaling_text
from trainshed.engines.fake import Script
from trainshed.model.states import State
from trainshed.model.training.capabilities import unsupported
from trainshed.model.training.catalog import ANY, Engine, Quota
from trainshed.model.training.spec import ResourceType
from trainshed.server.outlook import OutlookReader
from trainshed.server.task_views import TaskViews, scaling_view


@pytest.fixture
def d(database, tmp_path):
    quotas = [Quota(ANY, ResourceType.ONDEMAND, "default", ANY, 3)]
    script = Script(start_after=1.0, run_seconds=None)
    made = GangDeployment(database, tmp_path, default=script, catalog_=catalog(quotas))
    yield made
    made.close()


def _seen(d, job):
    trial = d.trial(job)
    return scaling_view(d.task(job), trial, d.facts(job).allocations[trial.id])


@on_one_kind
def test_C51_its_range_its_size_what_the_load_wants_and_what_growth_waits_for(d):
    job = d.create(scaling_task(1, 5))
    seen = _seen(d, job)
    assert (seen.min, seen.max, seen.workers, seen.wanted, seen.waits_for) == (1, 5, None, None, None)
    assert scaling_text({"scaling": seen.model_dump()}) == "1 to 5"
    d.until(job, State.RUNNING)
    head_says(d, job, 4, [1])
    d.run_until(lambda: len(running(d, job)) == 2)
    for _ in range(3):
        d.step()
    seen = _seen(d, job)
    assert (seen.workers, seen.joined, seen.wanted) == (2, 1, 4)
    assert seen.waits_for.code == "WaitingForQuota"
    assert scaling_text({"scaling": seen.model_dump()}) == "2 of 1 to 5; the load wants 4 (WaitingForQuota)"


@on_one_kind
def test_C51_why_says_what_a_running_task_waits_for(d):
    job = start(d, workers=1)
    outlook = OutlookReader(lambda _: (1, d.catalog), d.policy)

    def why():
        with d.database.read() as connection:
            return TaskViews(connection, outlook, d.now()).why(d.task(job), d.trial(job))

    assert why().code is None
    head_says(d, job, 4, [1])
    d.run_until(lambda: len(running(d, job)) == 2)
    for _ in range(3):
        d.step()
    said = why()
    assert said.code == "WaitingForQuota"
    assert "one more has to wait: needs 1 unit" in said.message


@on_one_kind
def test_C51_replicas_that_left_stay_listed_and_nothing_is_said_of_the_size_afterwards(d):
    job = start(d, workers=1)
    grown(d, job, 2)
    d.stop(job)
    d.settle(job)
    assert [row.role for row in d.replicas(job)] == ["head", "worker", "submitter", "worker"]
    assert workers(d, job) == [1, 3]
    seen = _seen(d, job)
    assert (seen.workers, seen.wanted, seen.waits_for) == (None, None, None)


@on_one_kind
def test_C51_other_tasks_have_no_range(d):
    job = d.create(task())
    assert _seen(d, job) is None
    assert scaling_text({"scaling": None}) is None


def test_C51_c9_only_a_shared_cluster_cannot_follow_the_load():
    spec = scaling_task()
    assert [field for field, _ in unsupported(spec, Engine.LOCAL)] == []
    assert "autoscaling" in [field for field, _ in unsupported(spec, Engine.RAY)]
