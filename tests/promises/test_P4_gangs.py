"""P4: no user code of a partial gang ever runs, and gangs that each fit half never block each other (C27)."""

from __future__ import annotations

import random

import pytest

from support.deployment import crashing_at, fleet
from support.examples import examples
from support.gangs import GangDeployment, task
from trainshed.control.crashpoints import Point
from trainshed.engines.contract import Phase
from trainshed.engines.fake import Script
from trainshed.model.states import State

ROUNDS = examples(40)
_LAUNCH = [Point.GANG_PLACE_AFTER_COMMIT, Point.GANG_MEET_AFTER_ENGINE, Point.GANG_LAUNCH_AFTER_ENGINE]


@pytest.fixture
def site(database, tmp_path):
    nodes = [fleet(4, name="n1"), fleet(4, name="n2")]
    deployment = GangDeployment(
        database, tmp_path, nodes=nodes, default=Script(start_after=1.0, run_seconds=3.0)
    )
    yield deployment
    deployment.close()


def _partial(d) -> list[str]:
    """Gangs of which user code of some members runs and others have not come."""
    found = {}
    for unit, attempt in d.world.attempts.items():
        seen = d.engine.observe([unit])[unit]
        members = found.setdefault(attempt.launch.gang.id, [])
        members.append((attempt.launch.gang.size, seen.started_at, seen.phase))
    return [
        gang
        for gang, members in found.items()
        if any(started is not None for _, started, _ in members)
        and (
            len(members) < members[0][0]
            or any(phase in {Phase.ABSENT, Phase.PREPARING} for _, _, phase in members)
        )
    ]


def test_P4_T11_two_gangs_that_each_fit_half_never_block_each_other(site):
    """Random rounds: both finish, one after the other or together, and none ever runs in part."""
    d, dice = site, random.Random(27)
    shapes = [("h100x1", 4, 7), ("h100x2", 2, 3), ("h100x4", 1, 1)]
    for _ in range(ROUNDS):
        jobs = []
        for _ in range(2):
            spec, least, most = dice.choice(shapes)
            jobs.append(d.create(task(workers=dice.randint(least, most), specs=[spec])))
        while not all(d.facts(job).settled for job in jobs):
            d.step()
            assert not _partial(d)
            d.pass_time(dice.choice([0.5, 1.0, 3.0]))
        assert {d.trial(job).state for job in jobs} == {State.SUCCEEDED}
        assert [len(d.attempts(job)) for job in jobs] == [1, 1]
        d.world.attempts.clear()


@pytest.mark.parametrize("point", _LAUNCH)
def test_P4_a_crash_between_placing_and_starting_leaves_no_partial_gang(site, point):
    d = site
    job = d.create(task(workers=7))
    with crashing_at(point):
        d.surviving(d.step)
    assert not _partial(d)
    d.settle(job)
    assert d.trial(job).state is State.SUCCEEDED
    assert len(d.attempts(job)) == 1


def test_P4_a_gang_of_which_one_member_cannot_start_starts_none(site):
    d = site
    d.engine._default = Script(start_after=5.0, run_seconds=3.0)
    job = d.create(task(workers=3))
    d.step()
    d.members(job, [2], not_started="its cgroup cannot be made")
    d.pass_time(6.0)
    d.step()
    started = [seen.started_at for seen in d.seen(job)]
    assert started == [None] * 4
    assert d.facts(job).trial.state is State.QUEUED
