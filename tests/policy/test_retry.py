"""E66, E69, E70, E76, E79 and the readings A2, A7, A9: how a Trial ends, and what is tried again."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainshed.engines.contract import EndedBy
from trainshed.model.resources import Amounts
from trainshed.model.states import MOVES, TERMINAL, OutputStatus, State
from trainshed.policy import (
    TRIAL_ERRORS,
    Again,
    EffectiveResources,
    Ending,
    Outcome,
    RetryPolicy,
    WaitCode,
    access_revoked,
    after_failed_pull,
    after_failed_start,
    content_revoked,
    outcome,
)

LIMITS = EffectiveResources("H100", Amounts(1, 1, 2048, 4096, 64), timeout_seconds=600)


def end(ending=Ending.EXIT, code=0, outputs=OutputStatus.COMPLETE, *, number=None, stop=False, detail=""):
    return outcome(
        ending=ending,
        exit_code=code,
        exit_signal=number,
        output_status=outputs,
        stop_requested=stop,
        limits=LIMITS,
        detail=detail,
    )


def failed_start(failures, *, code="LAUNCH_FAILED", retryable=True, stop=False, policy=None):
    return after_failed_start(
        failures=failures,
        error_code=code,
        error="no space left",
        retryable=retryable,
        stop_requested=stop,
        now=1000.0,
        policy=policy,
    )


@pytest.mark.parametrize("outputs", [OutputStatus.COMPLETE, OutputStatus.NONE])
def test_exit_zero_with_every_output_stored_is_success(outputs):
    found = end(outputs=outputs)
    assert (found.state, found.error_code) == (State.SUCCEEDED, None)


@pytest.mark.parametrize("outputs", [OutputStatus.COMPLETE, OutputStatus.FAILED, OutputStatus.NONE])
def test_E69_a_nonzero_exit_fails_whatever_else_succeeded(outputs):
    found = end(code=3, outputs=outputs)
    assert (found.state, found.error_code) == (State.FAILED, "NONZERO_EXIT")
    assert "exit code 3" in found.message


@pytest.mark.parametrize("outputs", [OutputStatus.FAILED, OutputStatus.PARTIAL])
def test_E70_exit_zero_with_failed_collection_is_no_success(outputs):
    found = end(outputs=outputs, detail="model.bin changed while it was read")
    assert (found.state, found.error_code) == (State.FAILED, "OUTPUT_COLLECTION_FAILED")
    assert "model.bin" in found.message


def test_a_signal_is_named():
    found = end(code=139, number=11)
    assert found.error_code == "NONZERO_EXIT"
    assert "SIGSEGV" in found.message
    assert "139" in found.message
    assert "signal 77" in end(code=205, number=77).message


@pytest.mark.parametrize(
    ("ending", "code", "number"),
    [
        (Ending.TIMEOUT, "TRIAL_TIMEOUT", "600"),
        (Ending.MEMORY, "MEMORY_LIMIT_EXCEEDED", "2048"),
        (Ending.DISK, "DISK_LIMIT_EXCEEDED", "4096"),
        (Ending.LOST, "EXECUTION_LOST", ""),
        (Ending.STOP, "EXECUTION_LOST", ""),
    ],
)
@pytest.mark.parametrize("exit_code", [0, 137, None])
def test_a_program_that_was_cut_short_failed_whatever_it_answered(ending, code, number, exit_code):
    found = end(ending, exit_code)
    assert (found.state, found.error_code) == (State.FAILED, code)
    assert number in found.message


@pytest.mark.parametrize("ending", list(Ending))
@pytest.mark.parametrize("outputs", [OutputStatus.COMPLETE, OutputStatus.FAILED])
def test_E76_an_accepted_stop_ends_as_cancelled(ending, outputs):
    found = end(ending, 143, outputs, stop=True)
    assert (found.state, found.error_code) == (State.CANCELLED, None)


@pytest.mark.parametrize("outputs", [OutputStatus.PENDING, OutputStatus.COLLECTING])
def test_a_trial_does_not_end_before_its_collection_has(outputs):
    with pytest.raises(ValueError, match="has not ended"):
        end(outputs=outputs)


def test_E79_a_start_that_happened_is_never_decided_as_a_failed_start():
    with pytest.raises(ValueError, match="after_failed_start"):
        end(Ending.NOT_STARTED, None, OutputStatus.NONE)


@given(
    st.sampled_from([one for one in Ending if one is not Ending.NOT_STARTED]),
    st.none() | st.integers(0, 255),
    st.sampled_from([OutputStatus.COMPLETE, OutputStatus.PARTIAL, OutputStatus.FAILED, OutputStatus.NONE]),
    st.booleans(),
)
def test_E79_every_end_after_user_code_started_is_final(ending, code, outputs, stop):
    found = end(ending, code, outputs, stop=stop)
    assert found.state in TERMINAL
    assert found.state in MOVES[State.STOPPING if stop else State.COLLECTING]
    success = ending is Ending.EXIT and code == 0 and outputs in {OutputStatus.COMPLETE, OutputStatus.NONE}
    assert (found.state is State.SUCCEEDED) == (success and not stop)
    assert (found.error_code is not None) == (found.state is State.FAILED)
    assert found.message.endswith(".")


def test_A9_a_failed_start_is_tried_again_with_growing_pauses_and_a_bound():
    pauses = [failed_start(n).not_before - 1000.0 for n in range(1, 5)]
    assert pauses == [1.0, 4.0, 16.0, 60.0]
    last = failed_start(5)
    assert (last.state, last.error_code) == (State.FAILED, "LAUNCH_FAILED")
    assert "5 tries" in last.message
    assert "no space left" in last.message


def test_A9_what_cannot_get_better_is_not_tried_again():
    found = failed_start(1, code="RUNNER_HASH_MISMATCH", retryable=False)
    assert (found.state, found.error_code) == (State.FAILED, "RUNNER_HASH_MISMATCH")


def test_an_engines_own_code_becomes_one_that_a_trial_can_show():
    assert failed_start(1, code="CGROUP_BUSY", retryable=False).error_code == "LAUNCH_FAILED"


def test_E76_a_stop_ends_the_tries():
    assert failed_start(1, stop=True).state is State.CANCELLED


def test_a_start_that_did_not_fail_is_nothing_to_decide_about():
    with pytest.raises(ValueError, match="no failed start"):
        failed_start(0)


@given(st.integers(1, 10**6), st.integers(1, 10**6))
def test_pauses_are_bounded_however_often_a_start_failed(failures, bound):
    found = failed_start(failures, policy=RetryPolicy(max_starts=bound))
    if isinstance(found, Again):
        assert failures < bound
        assert 1000.0 < found.not_before <= 1060.0
    else:
        assert failures >= bound


def failed_pull(failures, retries):
    return after_failed_pull(failures=failures, error="no route", pull_retries=retries, now=1000.0)


def test_C38_a_failed_pull_is_repeated_as_often_as_configured():
    first = failed_pull(1, 0)
    assert (first.state, first.error_code) == (State.FAILED, "IMAGE_PULL_FAILED")
    assert "no route" in first.message
    assert [type(failed_pull(number, 2)) for number in (1, 2, 3)] == [Again, Again, Outcome]
    assert "of at most 3" in failed_pull(1, 2).message


@given(st.integers(1, 10**6))
def test_C38_minus_one_repeats_for_ever_with_bounded_pauses(failures):
    found = failed_pull(failures, -1)
    assert isinstance(found, Again)
    assert 1000.0 < found.not_before <= 1060.0


def test_A2_revoked_content_ends_a_waiting_trial_as_it_is_refused_at_submission():
    found = content_revoked("envloop://datasets/a/b@1")
    assert (found.state, found.error_code) == (State.FAILED, "ACCESS_DENIED")
    assert "envloop://datasets/a/b@1" in found.message


def test_A2_revoked_access_ends_a_waiting_trial():
    found = access_revoked("envloop/bash")
    assert (found.state, found.error_code) == (State.FAILED, "RUNNER_NOT_FOUND")
    assert State.FAILED in MOVES[State.QUEUED]


def test_the_words_for_an_end_are_those_of_the_engines():
    of_gangs = {"gang", "precheck"}
    assert {str(one) for one in Ending} == {str(one) for one in EndedBy} - of_gangs | {"lost"}


def page():
    return (Path(__file__).parents[2] / "docs" / "scheduling.md").read_text()


def test_every_error_of_a_trial_is_in_the_documentation_as_the_program_says_it():
    text = page()
    for error in TRIAL_ERRORS.values():
        assert f"| `{error.code}` | {error.meaning} | {error.advice} |" in text


def test_every_reason_to_wait_is_in_the_documentation():
    text = page()
    for code in WaitCode:
        assert f"| `{code}` |" in text
