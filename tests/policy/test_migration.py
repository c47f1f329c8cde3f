"""What follows when an Attempt of a script Job ends, errs or has to leave (sections b, c.4, g)."""

from __future__ import annotations

from itertools import pairwise

import pytest

from trainshed.engines.providers import contract
from trainshed.model.scripts.states import REASONS, AttemptState, FailureKind, Reason, Word
from trainshed.policy.migration import (
    CONSEQUENCES,
    Budget,
    End,
    Ending,
    backoff,
    gave_up,
    judge_end,
    must_leave,
    quota_ends_first,
    recheck,
)

HOUR = 3600.0


def test_b_pauses_double_from_30_seconds_to_half_an_hour():
    assert [backoff(n) for n in range(1, 9)] == [30, 60, 120, 240, 480, 960, 1800, 1800]
    assert backoff(1000) == 1800


def test_g7_a_provider_is_looked_at_again_after_one_to_fifteen_minutes():
    assert [recheck(n) for n in range(1, 6)] == [60, 120, 240, 480, 900]


@pytest.mark.parametrize(
    ("end", "ending", "reason"),
    [
        (End("succeeded", 0, started=True), Ending.DONE, Reason.COMPLETED),
        (End("failed", 0, started=True), Ending.DONE, Reason.COMPLETED),
        (End("failed", 3, started=True), Ending.FAILED, Reason.SCRIPT_FAILED),
        (End("failed", 90, started=True, ran_seconds=900), Ending.LOST, Reason.SESSION_LOST),
        (End("failed", 137, started=True, ran_seconds=5), Ending.LOST, Reason.SESSION_LOST),
        (
            End("failed", 137, started=True, ran_seconds=5, progressed=True),
            Ending.FAILED,
            Reason.SCRIPT_FAILED,
        ),
        (End("failed", 137, started=True, ran_seconds=500), Ending.FAILED, Reason.SCRIPT_FAILED),
        (End("failed", None, started=True), Ending.LOST, Reason.SESSION_LOST),
        (End("lost", None, started=False), Ending.LOST, Reason.LOST_BEFORE_START),
        (End("lost", 0, started=True), Ending.LOST, Reason.SESSION_LOST),
        (
            End("lost", 137, started=True, ran_seconds=500, progressed=True),
            Ending.LOST,
            Reason.SESSION_LOST,
        ),
        (End("lost", None, started=True, interactive=True), Ending.FAILED, Reason.INTERACTIVE_LOST),
        (End("lost", None, started=False, interactive=True), Ending.LOST, Reason.LOST_BEFORE_START),
        (End("cancelled", 143, started=True), Ending.CANCELLED, Reason.REMOTE_CANCELLED),
    ],
)
def test_b_what_an_end_means(end, ending, reason):
    verdict = judge_end(end)
    assert (verdict.ending, verdict.reason) == (ending, reason)
    assert verdict.message.endswith(".") or ending is Ending.CANCELLED


def test_b_only_the_scripts_own_end_is_the_users_fault():
    assert judge_end(End("failed", 3, started=True)).failure is FailureKind.USER_ERROR
    assert judge_end(End("lost", None, started=True)).failure is None
    assert judge_end(End("lost", started=True)).attempt is AttemptState.LOST


@pytest.mark.parametrize(
    "why", ["No matching distribution found for no_such", "Because no_such was not found"]
)
def test_b_a_package_that_is_not_there_twice_is_the_users_to_correct(why):
    said = f"requirements.txt could not be installed: {why}; pip install ended with exit status 1"
    first = judge_end(End("failed", 90, started=True, message=said))
    assert (first.ending, why in first.message) == (Ending.LOST, True), "another place may have it"
    other = judge_end(End("failed", 90, started=True, message=said, before=["something else"]))
    assert other.ending is Ending.LOST
    second = judge_end(End("failed", 90, started=True, message=said, before=[first.message]))
    assert (second.ending, second.failure) == (Ending.FAILED, FailureKind.USER_ERROR)
    assert why in second.message
    sure = judge_end(
        End("failed", 90, started=True, message=said.replace("installed:", "installed anywhere:"))
    )
    assert (sure.ending, sure.failure) == (Ending.FAILED, FailureKind.USER_ERROR), "no place has it"
    assert why in sure.message
    network = End("failed", 90, started=True, message="the hub does not answer", before=["the same"])
    assert judge_end(network).ending is Ending.LOST


def test_b_budgets():
    assert gave_up(Budget(accepted=5, free=0, placements=29), 0.0) is None
    assert "6 Attempts" in (gave_up(Budget(accepted=6), 0.0) or "")
    assert gave_up(Budget(accepted=9, free=4), 0.0) is None, "those that saved something newer are free"
    assert gave_up(Budget(placements=30), 0.0) is not None
    assert gave_up(Budget(waiting_since=0.0), 6 * HOUR) is None
    assert "6 hours" in (gave_up(Budget(waiting_since=0.0), 6 * HOUR + 1) or "")
    assert gave_up(Budget(accepted=2, free=2, max_attempts=2), 0.0) is not None, (
        "max_attempts counts them all"
    )


def test_g7_every_error_of_a_provider_has_a_consequence_that_section_b_knows():
    classes = [each for each in vars(contract).values() if isinstance(each, type)]
    codes = {each.code for each in classes if issubclass(each, contract.ProviderError)}
    assert set(CONSEQUENCES) == codes
    for code, what in CONSEQUENCES.items():
        after = Word.FAILED if what.fails else Word.QUEUED
        assert what.reason in REASONS[Word.PROVISIONING, after], code


def test_g7_one_jobs_bad_luck_cools_nobody_down_for_others():
    assert not CONSEQUENCES["invalid_job"].cools_down
    assert not CONSEQUENCES["remote_not_found"].cools_down


def leaves(now, **facts):
    base = {"started_at": 0.0, "ran_before": 0.0, "limit": None, "session_seconds": None, "can_resume": True}
    return must_leave(now, **{**base, **facts})


def test_c4_the_limit_counts_running_time_of_all_attempts():
    assert leaves(HOUR, limit=1.5 * HOUR, ran_before=0.5 * HOUR) is None
    assert leaves(HOUR + 1, limit=1.5 * HOUR, ran_before=0.5 * HOUR) is Reason.HOURS_EXCEEDED


def test_g9_a_session_is_left_half_an_hour_before_its_end_by_what_can_go_on():
    assert leaves(10 * HOUR, session_seconds=11 * HOUR) is None
    assert leaves(10.5 * HOUR, session_seconds=11 * HOUR) is Reason.HANDOFF
    assert leaves(10.9 * HOUR, session_seconds=11 * HOUR, can_resume=False) is None
    assert leaves(10.9 * HOUR, session_seconds=11 * HOUR, limit=HOUR) is Reason.HOURS_EXCEEDED


def test_g9_a_quota_is_left_half_an_hour_before_its_end_unless_the_job_ends_or_it_is_renewed_first():
    assert leaves(HOUR, quota_ends=True) is Reason.HANDOFF
    assert leaves(HOUR, quota_ends=True, can_resume=False) is None
    assert quota_ends_first(0.5, 0.6, 1, 0.0, None)
    assert not quota_ends_first(0.51, 9.0, 1, 0.0, None)
    assert quota_ends_first(0.9, 9.0, 2, 0.0, None), "two use it up in half the time"
    assert not quota_ends_first(0.5, 0.4, 1, 0.0, None)
    assert not quota_ends_first(0.5, 9.0, 1, 0.0, 0.4 * HOUR)
    assert quota_ends_first(0.5, 9.0, 1, 0.0, 0.6 * HOUR)


def test_g9_a_short_session_is_used_for_half_of_its_time():
    assert leaves(0.2 * HOUR, session_seconds=0.5 * HOUR) is None
    assert leaves(0.25 * HOUR, session_seconds=0.5 * HOUR) is Reason.HANDOFF


def test_pauses_never_shrink():
    assert all(before <= after for before, after in pairwise(backoff(n) for n in range(1, 40)))
