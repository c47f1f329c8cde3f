"""The server dies at every named point in the life of a script Job, and goes on as if it had not (k.6)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from support.cloud import CloudDeployment, Tale, runs
from support.databases import on_one_kind
from support.deployment import Crash, crashing_at, person
from support.scripts import document
from trainshed.control.crashpoints import Point
from trainshed.control.scripts.accept import ScriptAcceptance
from trainshed.control.scripts.callers import Caller
from trainshed.engines.providers.fake import Save
from trainshed.store import possession

P = Point
HOUR = 3600.0


@dataclass(frozen=True)
class Story:
    """What happens, how it ends, and which points are passed."""

    tell: Callable[[CloudDeployment], str]
    word: str
    points: frozenset[Point]
    attempts: int = 1


def _once(d: CloudDeployment, **spec: object) -> str:
    """The Job of this story: submitted once, whatever crashes came."""
    if d._submitted:
        with d.database.read() as connection:
            return str(connection.exec_driver_sql("SELECT trial_id FROM scripts").scalar_one())
    return d.pack(**spec)


def _plain(d: CloudDeployment) -> str:
    d.cloud.course = runs(60.0, saves=(Save(30.0, 3),))
    job = _once(d, data=(d.dataset("set", {"x": b"1"}),))
    d.rest(job, pause=10.0)
    return job


def _cancelled(d: CloudDeployment) -> str:
    d.cloud.course = runs(None)
    job = _once(d)
    d.run_until(lambda: d.tale(job).word in {"running", "cancelling", "cancelled"}, pause=5.0)
    d.cancel(job)
    d.rest(job, pause=10.0)
    return job


def _overrun(d: CloudDeployment) -> str:
    d.cloud.course = runs(4 * HOUR, answers_after=30.0)
    job = _once(d, source="agent", hours=0.5)
    second = f"gpu-{d.tale(job).look.job.digits}-2"
    d.cloud.courses[second] = runs(60.0)
    d.run_until(lambda: d.tale(job).word == "awaiting_approval" or second in d.cloud.runs, pause=200.0)
    if d.tale(job).word == "awaiting_approval":
        d.answer(job, "approved")
    d.rest(job, pause=30.0)
    return job


_PLAIN = frozenset(
    {
        P.SCRIPT_ROUTE_BEFORE_COMMIT,
        P.SCRIPT_ROUTE_AFTER_COMMIT,
        P.SCRIPT_AFTER_BUNDLE,
        P.SCRIPT_AFTER_DATA,
        P.SCRIPT_AFTER_SUBMIT,
        P.SCRIPT_AFTER_SUBMIT_COMMIT,
        P.SCRIPT_WATCH_BEFORE_COMMIT,
        P.SCRIPT_WATCH_AFTER_COMMIT,
        P.SCRIPT_MID_CHECKPOINT,
        P.SCRIPT_BEFORE_FETCH,
        P.SCRIPT_AFTER_FETCH,
        P.SCRIPT_END_BEFORE_COMMIT,
        P.SCRIPT_END_AFTER_COMMIT,
        P.SCRIPT_AFTER_DELIVERY,
        P.SCRIPT_RELEASE_AFTER_PROVIDER,
    }
)
STORIES = {
    "plain": Story(_plain, "done", _PLAIN),
    "cancelled": Story(
        _cancelled, "cancelled", frozenset({P.SCRIPT_AFTER_CANCEL, P.SCRIPT_END_BEFORE_COMMIT})
    ),
    "overrun": Story(
        _overrun,
        "done",
        frozenset(
            {
                P.SCRIPT_AFTER_ASK,
                P.SCRIPT_AFTER_OVERRUN_STOP,
                P.SCRIPT_MID_CHECKPOINT,
                P.SCRIPT_AFTER_APPROVE,
            }
        ),
        attempts=2,
    ),
}


def test_the_stories_pass_every_point_of_script_jobs():
    declared = {point for point in Point if point.startswith("script.")}
    assert set().union(*(story.points for story in STORIES.values())) == declared


_K6 = {
    "after_place_commit": P.SCRIPT_ROUTE_AFTER_COMMIT,
    "after_submit_return": P.SCRIPT_AFTER_SUBMIT,
    "after_running": P.SCRIPT_WATCH_AFTER_COMMIT,
    "mid_checkpoint": P.SCRIPT_MID_CHECKPOINT,
    "before_fetch": P.SCRIPT_BEFORE_FETCH,
    "after_fetch": P.SCRIPT_AFTER_FETCH,
    "during_cancel": P.SCRIPT_AFTER_CANCEL,
    "during_bundle": P.SCRIPT_AFTER_BUNDLE,
    "during_data_upload": P.SCRIPT_AFTER_DATA,
    "after_overrun_stop": P.SCRIPT_AFTER_OVERRUN_STOP,
    "after_approve": P.SCRIPT_AFTER_APPROVE,
}
"""Points that the contract names, but for ``after_job_commit``, which Jobs of all kinds have."""


def test_k6_every_point_that_the_contract_names_is_passed_by_a_story():
    passed = set().union(*(story.points for story in STORIES.values()))
    assert set(_K6.values()) <= passed
    assert {point.removeprefix("script.") for point in _K6.values()} == set(_K6)


@on_one_kind
@pytest.mark.parametrize(
    ("name", "point"), [(name, point) for name, story in STORIES.items() for point in sorted(story.points)]
)
def test_k6_after_a_crash_there_is_one_run_and_the_expected_end(cloud, name, point):
    story, d = STORIES[name], cloud()
    with crashing_at(point) as reached:
        job = d.surviving(lambda: story.tell(d))
    assert point in reached
    tale: Tale = d.tale(job)
    assert tale.word == story.word
    assert len(d.cloud.runs) == story.attempts, "no run was made twice"
    assert d.cloud.live(d.now()) == []
    assert len(tale.attempts) == story.attempts
    assert d.outputs(job) == {"outputs/model.bin": b"weights"}
    assert d.delivered(job) == {"model.bin": b"weights"}
    late = {P.SCRIPT_END_AFTER_COMMIT, P.SCRIPT_AFTER_DELIVERY, P.SCRIPT_RELEASE_AFTER_PROVIDER}
    if point not in late | {P.SCRIPT_ROUTE_BEFORE_COMMIT}:
        assert "recovered" in tale.notes
    if name == "overrun":
        assert tale.reasons.count("hours_exceeded") == 1
    elif story.word == "done" and tale.checkpoints:
        assert [each.step for each in tale.checkpoints] == [3], "taken in once"


@on_one_kind
def test_k6_after_job_commit_the_same_request_answers_the_job_that_there_is(cloud):
    d = cloud()
    bundle = d.bundle()
    door = ScriptAcceptance(d.database, d.blobs, lambda: d.clouds, d.now, d.ids)
    with d.database.read() as connection:
        names = connection.exec_driver_sql("SELECT sha256 FROM blobs").scalars().all()
    d.database.write(lambda c: possession.prove(c, "default", names))
    packed = {"manifest_sha256": bundle.manifest_sha256, "files": bundle.files, "bytes": bundle.bytes}
    body = {"type": "train", "spec": document(packed), "request_id": "again"}
    with crashing_at(P.ACCEPT_AFTER_COMMIT), pytest.raises(Crash):
        door.accept(Caller(person()), body)
    assert not door.accept(Caller(person()), body).submitted
    d.cloud.course = runs(60.0)
    with d.database.read() as connection:
        [job] = connection.exec_driver_sql("SELECT trial_id FROM scripts").scalars()
    assert d.rest(job).word == "done"
    assert len(d.cloud.runs) == 1
