import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainshed.policy import (
    Account,
    ProjectLimits,
    RunningTrial,
    account,
    charge,
    gpu_hours_text,
    gpu_seconds,
    worst_case,
)

BUDGET = ProjectLimits(budget_gpu_seconds=10_000)


def test_a_trial_is_charged_for_every_begun_second_of_user_code_times_its_gpus():
    assert charge(4, 600, 100.0, 110.2) == 4 * 11


def test_a_trial_is_never_charged_more_than_its_timeout():
    assert charge(2, 60, 0.0, 75.0) == 120


def test_a_trial_that_never_started_costs_nothing():
    assert charge(8, 600, None, 1000.0) == 0


def test_a_clock_that_went_backwards_costs_nothing():
    assert charge(8, 600, 100.0, 90.0) == 0


@given(st.integers(1, 64), st.integers(1, 10**6), st.floats(0, 1e9), st.floats(0, 1e9))
def test_P5_a_charge_is_never_above_the_reserved_worst_case(gpus, timeout, started_at, ended_at):
    assert 0 <= charge(gpus, timeout, started_at, ended_at) <= worst_case(gpus, timeout)


def test_a_running_trial_reserves_its_worst_case_and_can_give_back_the_rest():
    funds = account(BUDGET, 1000, [RunningTrial(2, 3000, started_at=100.0)], now=600.0)
    assert funds == Account(budget=10_000, used=1000, spent=1000, reserved=6000)
    assert funds.left == 3000
    assert funds.attainable == 8000


def test_a_trial_that_prepares_reserves_but_has_spent_nothing():
    funds = account(BUDGET, 0, [RunningTrial(1, 500, started_at=None)], now=600.0)
    assert (funds.spent, funds.reserved) == (0, 500)


def test_a_trial_whose_program_has_ended_reserves_only_what_it_used():
    ended = RunningTrial(1, 500, started_at=100.0, finished_at=130.0)
    funds = account(BUDGET, 0, [ended], now=600.0)
    assert (funds.spent, funds.reserved) == (30, 30)


def test_without_a_budget_nothing_is_short():
    funds = account(ProjectLimits(), 5, [], now=0.0)
    assert funds.left is None
    assert funds.attainable is None


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 GPU-hours"),
        (20, "20 GPU-seconds"),
        (3600, "1 GPU-hours"),
        (9000, "2.5 GPU-hours"),
        (7_200_000, "2,000 GPU-hours"),
    ],
)
def test_gpu_time_reads_well(seconds, text):
    assert gpu_hours_text(seconds) == text


def test_gpu_hours_become_whole_gpu_seconds():
    assert gpu_seconds(2.5) == 9000
