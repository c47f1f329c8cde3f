"""Script Jobs on this machine in a project with a budget of GPU-hours (P5)."""

from __future__ import annotations

import pytest

from support.cloud import CloudDeployment, LocalCourse
from support.databases import on_one_kind
from trainshed.control.accept import project_account
from trainshed.store import access, jobs

pytestmark = on_one_kind
HOUR = 3600
MARGIN = 660
"""To save for the last time, and to stop."""


@pytest.fixture
def here(cloud):
    def make(budget_hours: float | None, **course: object) -> CloudDeployment:
        values = {"run_seconds": 60.0, **course}
        d = cloud(local=True, clouds={}, default=LocalCourse(**values))
        budget = None if budget_hours is None else budget_hours * HOUR
        d.change_project("default", budget_gpu_seconds=budget)
        return d

    return make


def account(d):
    with d.database.snapshot() as connection:
        project = access.get_project(connection, "default")
        return project_account(connection, project, now=d.now())


def timeouts(d, job):
    with d.database.read() as connection:
        return [each.timeout_seconds for each in jobs.allocations_of(connection, [job])[job]]


def test_P5_declared_hours_with_their_overrun_are_reserved_and_what_was_not_used_comes_back(here):
    d = here(2.0)
    job = d.pack(hours=1.0, provider="local")
    d.until(job, "running", pause=1.0)
    assert timeouts(d, job) == [round(1.5 * HOUR) + MARGIN]
    assert account(d).reserved == round(1.5 * HOUR) + MARGIN
    tale = d.rest(job)
    assert tale.word == "done"
    [ran] = tale.attempts
    funds = account(d)
    assert funds.reserved == 0
    assert funds.used == pytest.approx(ran.ended_at - ran.started_at, abs=1.0)


def test_P5_one_without_hours_counts_for_twelve_and_its_message_says_so(here):
    d = here(10.0)
    job = d.pack(hours=None, provider="local")
    d.run_until(lambda: "GPU-hours" in (d.tale(job).look.script.message or ""), pause=1.0)
    said = d.tale(job).look.script.message
    assert "may use 12 GPU-hours; project default has 10 GPU-hours left" in said
    assert "it declares no hours, so 12 h are counted; with `hours` it may need less" in said
    assert d.tale(job).word == "routing"
    d.change_project("default", budget_gpu_seconds=12.0 * HOUR)
    assert d.rest(job).word == "done"
    assert timeouts(d, job) == [12 * HOUR]


def test_P5_a_budget_that_comes_while_it_waits_counts(here):
    d = here(None)
    first = d.pack(hours=0.5, provider="local")
    d.until(first, "running", pause=1.0)
    assert timeouts(d, first)[0] > 1000 * HOUR, "without a budget nothing limits it"
    d.change_project("default", budget_gpu_seconds=float(HOUR))
    assert account(d).reserved <= 60
    d.rest(first)
    second = d.pack(hours=0.5, provider="local")
    d.rest(second)
    assert timeouts(d, second) == [round(0.75 * HOUR) + MARGIN]


def test_P5_one_of_a_person_that_takes_longer_goes_on_from_its_checkpoint_with_another_reservation(here):
    d = here(10.0, run_seconds=1.9 * HOUR)
    job = d.pack(hours=1.0, provider="local")
    d.run_until(lambda: len(d.tale(job).attempts) == 2, pause=60.0)
    tale, limit = d.tale(job), round(1.5 * HOUR) + MARGIN
    assert "handoff" in tale.reasons
    first = tale.attempts[0]
    assert HOUR < first.ended_at - first.started_at < limit
    assert timeouts(d, job)[1] == pytest.approx(limit - (first.ended_at - first.started_at), abs=2.0)
    assert account(d).used == pytest.approx(first.ended_at - first.started_at, abs=1.0), "charged at once"
    assert account(d).reserved >= timeouts(d, job)[1] - 1


def test_P5_an_agents_job_that_overruns_is_asked_about_before_its_end_and_reserves_again_after_a_yes(here):
    d = here(10.0, run_seconds=4.0 * HOUR)
    job = d.pack("agent", hours=0.5, provider="local")
    tale = d.until(job, "awaiting_approval", pause=60.0)
    assert "handoff" not in tale.reasons
    assert tale.reasons[-2:] == ["hours_exceeded", "approval_required"]
    [first] = timeouts(d, job)
    assert first == round(0.75 * HOUR) + MARGIN
    assert tale.attempts[0].ended_at - tale.attempts[0].started_at < first
    assert account(d).reserved == 0, "one that asks holds nothing"
    d.answer(job, "approved")
    d.until(job, "running", pause=5.0)
    assert timeouts(d, job) == [first, first]
