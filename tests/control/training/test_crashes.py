"""The controller dies at every named point of a gang's life, and the end is the same (P3, P6, P14)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from support.deployment import crashing_at, empty
from support.gangs import GangDeployment, catalog, task
from support.scaling import driver_ends, head_says, leave, running, workers
from trainshed.control.crashpoints import Point
from trainshed.engines.fake import Script
from trainshed.model.states import State
from trainshed.model.training.catalog import ANY, Volume
from trainshed.model.training.spec import Autoscaling, Kind, Mount, MountType, ResourceType
from trainshed.store.database import Database

P = Point
_COMMON = {
    P.GANG_PLACE_BEFORE_COMMIT,
    P.GANG_PLACE_AFTER_COMMIT,
    P.GANG_MEET_AFTER_ENGINE,
    P.GANG_LAUNCH_AFTER_ENGINE,
    P.GANG_LOOK_BEFORE_COMMIT,
    P.GANG_LOOK_AFTER_COMMIT,
    P.GANG_END_BEFORE_COMMIT,
    P.GANG_END_AFTER_COMMIT,
    P.GANG_RELEASE_AFTER_ENGINE,
    P.GANG_RELEASE_AFTER_CLEANUP,
    P.GANG_RELEASE_BEFORE_COMMIT,
    P.GANG_RELEASE_AFTER_COMMIT,
}
_SCALING = {
    P.GANG_GROW_BEFORE_COMMIT,
    P.GANG_GROW_AFTER_COMMIT,
    P.GANG_JOIN_AFTER_ENGINE,
    P.GANG_JOIN_AFTER_LAUNCH,
    P.GANG_LEAVE_AFTER_ENGINE,
    P.GANG_LEAVE_BEFORE_COMMIT,
    P.GANG_LEAVE_AFTER_COMMIT,
}
_NOTICE = {P.GANG_NOTICE_BEFORE_COMMIT, P.GANG_NOTICE_AFTER_COMMIT, P.GANG_NOTICE_AFTER_ENGINE}


@dataclass(frozen=True)
class Story:
    """What happens, and which points are passed."""

    tell: Callable[[GangDeployment], list[str]]
    points: set[Point]
    default: Script = field(default_factory=lambda: Script(start_after=1.0, run_seconds=5.0))


def _once(d: GangDeployment, **options: Any) -> list[str]:
    """As a client does that repeats a request under one id: created at most once."""
    known = d.created
    number = options.pop("number")
    while len(known) <= number:
        known.append(d.create(task(**options)))
    return known[number]


def _succeeds(d: GangDeployment) -> list[str]:
    mount = Mount(MountType.VOLUME, "vol", "/volume/out")
    job = _once(d, number=0, workers=1, mounts=(mount,))
    d.settle(job)
    return [job]


def _resubmits(d: GangDeployment) -> list[str]:
    job = _once(d, number=0, workers=1, tries=1)
    d.settle(job, pause=25.0)
    return [job]


def _preempts(d: GangDeployment) -> list[str]:
    spot = {"resource_type": ResourceType.SPOT, "workers": 1, "specs": ["h100x4"], "notice": 60}
    victim = _once(d, number=0, max_run_seconds=1200, **spot)
    d.run_until(lambda: d.trial(victim).state is not State.PREPARING and d.attempts(victim), pause=1.0)
    if len(d.created) == 1:
        d.pass_time(700.0)
        d.step()
    winner = _once(d, number=1, resource_type=ResourceType.RESERVED, specs=["h100x4"], max_run_seconds=60)
    d.settle(winner, pause=10.0)
    d.settle(victim, pause=200.0)
    return [victim, winner]


def _stops(d: GangDeployment) -> list[str]:
    job = _once(d, number=0, workers=1, notice=60)
    d.run_until(lambda: d.trial(job).state not in {State.QUEUED, State.PREPARING})
    d.stop(job)
    d.settle(job)
    return [job]


def _scales(d: GangDeployment) -> list[str]:
    own = Autoscaling(enabled=True, min=1, max=2, idle_timeout_seconds=60)
    job = _once(d, number=0, kind=Kind.RAY, cmd="python main.py", workers=1, autoscaling=own)
    d.run_until(lambda: d.trial(job).state not in {State.QUEUED, State.PREPARING})

    def said() -> int:
        return len(d.world.attempts[d.units(job)[0]].script.reports)

    if said() == 0:
        head_says(d, job, 2, [1])
    d.run_until(lambda: said() > 1 or running(d, job) == [1, 3])
    if said() == 1:
        leave(d, job, 3)
    d.run_until(lambda: workers(d, job) == [1])
    if said() == 2:
        head_says(d, job, 1, [1])
        driver_ends(d, job)
    d.settle(job)
    return [job]


STORIES = {
    "scales": Story(_scales, _COMMON | _SCALING, Script(start_after=1.0, run_seconds=None)),
    "succeeds": Story(_succeeds, _COMMON | {P.GANG_PREPARE_AFTER_CONTENT}),
    "resubmits": Story(_resubmits, _COMMON, Script(run_seconds=100.0, code=1)),
    "preempts": Story(_preempts, _COMMON | _NOTICE, Script(run_seconds=None, saves_for=20.0)),
    "stops": Story(_stops, _COMMON | _NOTICE, Script(run_seconds=None, saves_for=20.0)),
}
CASES = [(name, point) for name, story in STORIES.items() for point in sorted(story.points)]
_QUIET: dict[tuple[str, str], Any] = {}


def _run(database: Database, root: Path, story: Story, point: Point | None = None, time: int = 1) -> Any:
    empty(database)
    volume = root / "volume"
    volume.mkdir(parents=True)
    made = catalog(volumes=[Volume("vol", (ANY,), str(volume), multi_writer=True)])
    d = GangDeployment(database, root, default=story.default, catalog_=made)
    try:
        with crashing_at(point, time=time) as reached:
            jobs = d.surviving(lambda: story.tell(d))
        return [_end(d, job) for job in jobs], {p for p in reached if p.startswith("gang.")}, list(reached)
    finally:
        d.close()


def _end(d: GangDeployment, job: str) -> Any:
    facts = d.facts(job)
    assert facts.settled
    units = {unit for unit in d.world.attempts if unit.startswith("att_")}
    assert all(d.world.attempts[unit].released for unit in units)
    told = [(e.code, e.replica) for e in facts.events if e.replica is not None]
    attempts = [(a.number, a.cause, a.exit_class, a.ended_by) for a in d.attempts(job)]
    # Reports come once each, whoever read them; other events may say of one more try.
    return facts.trial.state, facts.trial.error_code, attempts, sorted(told), d.task(job).resubmissions


def test_the_stories_pass_every_point_of_gangs():
    every = {point for point in Point if point.startswith("gang.")}
    assert set().union(*(story.points for story in STORIES.values())) == every


@pytest.mark.parametrize(("name", "point"), CASES)
def test_P3_P6_P14_after_a_crash_at_any_point_the_end_is_the_same(reused_database, tmp_path, name, point):
    story = STORIES[name]
    key = (name, reused_database.dialect)
    if key not in _QUIET:
        _QUIET[key] = _run(reused_database, tmp_path / "quiet", story)
    expected, passed, _ = _QUIET[key]
    assert passed == story.points
    found, _, reached = _run(reused_database, tmp_path / "crash", story, point)
    assert point in reached, "the crash happened"
    assert found == expected
