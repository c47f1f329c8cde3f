"""P5: at no instant more than a quota, and no GPU twice, whatever happens between deciding and storing."""

from __future__ import annotations

import json

import pytest

from support.deployment import fleet
from support.gangs import GangDeployment, catalog, task
from trainshed.control.training import placing
from trainshed.engines.fake import Script
from trainshed.model.states import State
from trainshed.model.training.catalog import ANY, Quota
from trainshed.model.training.spec import ResourceType

FOREVER = Script(run_seconds=None)


@pytest.fixture
def make(database, tmp_path):
    made = []

    def build(quotas, gpus=8, **options):
        deployment = GangDeployment(
            database,
            tmp_path,
            nodes=[fleet(gpus, name="n1")],
            default=FOREVER,
            catalog_=catalog(quotas),
            **options,
        )
        made.append(deployment)
        return deployment

    yield build
    for deployment in made:
        deployment.close()


def _quota(units, project=ANY, kind=ResourceType.ONDEMAND, **more):
    return Quota(project, kind, "default", ANY, units, **more)


def _units(d, project="default"):
    """Units that the rows say are in use."""
    held = [a for a in d.unreleased() if a.parts is not None and a.project_id == project]
    return sum(part["units"] for a in held for part in json.loads(a.parts))


def _meanwhile(monkeypatch, happens):
    """Have something happen once, between a decision and its commit."""
    decide, left = placing.decide, [happens]

    def deciding(*args, **options):
        decision = decide(*args, **options)
        if left:
            left.pop()()
        return decision

    monkeypatch.setattr(placing, "decide", deciding)


def test_P5_all_that_fit_are_admitted_in_one_pass_and_not_one_more(make):
    """kueue: 536 pending with room for 300 admitted fewer."""
    d = make([_quota(5)])
    jobs = [d.create() for _ in range(9)]
    d.step()
    assert [d.trial(job).state for job in jobs].count(State.PREPARING) == 5
    assert _units(d) == 5


def test_P5_a_smaller_quota_starts_nothing_new_and_ends_nothing(make):
    d = make([_quota(5)])
    running = d.create(task(workers=3))
    d.until(running, State.RUNNING)
    waiting = d.create()
    d.change_catalog(catalog([_quota(2)]))
    d.step()
    assert (d.trial(running).state, d.trial(waiting).state) == (State.RUNNING, State.QUEUED)


def test_P5_units_that_another_project_lends_come_back_to_it(make):
    cohort = {"kind": ResourceType.RESERVED, "cohort": "all"}
    d = make([_quota(4, "default", **cohort), _quota(4, "team", **cohort)])
    d.add_project("team")
    borrower = d.create(task(resource_type=ResourceType.RESERVED, guarantee=False, workers=5))
    d.until(borrower, State.RUNNING)
    assert _units(d) == 6
    d.pass_time(601.0)
    owner = d.create(task(resource_type=ResourceType.RESERVED, guarantee=False, workers=3, project="team"))
    d.until(owner, State.RUNNING)
    assert d.trial(borrower).state is State.QUEUED
    assert _units(d, "team") == 4


def test_P5_what_another_controller_placed_meanwhile_is_seen_by_the_commit(make, monkeypatch):
    d = make([_quota(100)])
    first = d.create(task(workers=5))
    other = d.controller
    d.boot_quietly()
    second = None

    def other_places():
        nonlocal second
        second = d.create(task(workers=5))
        other.step()

    _meanwhile(monkeypatch, other_places)
    d.controller.step()
    assert second is not None
    d.step()
    held = [a for a in d.unreleased() if a.parts is not None]
    gpus = [index for a in held for part in json.loads(a.parts) for index in part["gpus"]]
    assert len(gpus) == len(set(gpus)) == 6
    assert sorted([d.trial(first).state, d.trial(second).state]).count(State.QUEUED) == 1


def test_P5_a_task_that_is_stopped_before_the_commit_is_not_started(make, monkeypatch):
    d = make([_quota(100)])
    job = d.create()
    _meanwhile(monkeypatch, lambda: d.stop(job))
    d.step()
    assert d.trial(job).state is State.CANCELLED
    assert not d.unreleased()


def test_P5_a_task_whose_priority_changes_before_the_commit_is_decided_anew(make, monkeypatch):
    d = make([_quota(1)])
    low, high = d.create(priority=1), d.create(priority=2)

    def swap():
        for job, priority in ((low, 9), (high, 2)):
            d.set_priority(job, priority)

    _meanwhile(monkeypatch, swap)
    d.step()
    assert _units(d) == 1
