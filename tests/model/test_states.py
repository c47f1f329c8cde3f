"""The one table of moves, and the words that callers see (design section 6, contract E b12)."""

from __future__ import annotations

import itertools

import pytest

from trainshed.model.states import (
    ACTIVE,
    E_JOB_STATUSES,
    E_TRIAL_STATUSES,
    E_TRIAL_WORDS,
    MOVES,
    TERMINAL,
    WAITING,
    ImpossibleMove,
    State,
    check_move,
    job_status,
)

S = State


def reachable(start: State) -> set[State]:
    found, frontier = {start}, [start]
    while frontier:
        for following in MOVES[frontier.pop()]:
            if following not in found:
                found.add(following)
                frontier.append(following)
    return found


def test_every_state_is_waiting_active_or_terminal_and_only_one_of_them():
    assert set(State) == WAITING | ACTIVE | TERMINAL
    assert len(State) == len(WAITING) + len(ACTIVE) + len(TERMINAL)


def test_terminal_is_terminal_and_everything_else_has_a_way_to_an_end():
    for state in State:
        assert (not MOVES[state]) == (state in TERMINAL)
        assert reachable(state) & TERMINAL


def test_every_state_can_be_reached_from_the_queue():
    assert reachable(S.QUEUED) == set(State)


def test_a_stop_is_possible_from_every_state_that_is_not_terminal():
    for state in set(State) - TERMINAL - {S.STOPPING}:
        assert S.STOPPING in MOVES[state]
    assert MOVES[S.STOPPING] == {S.CANCELLED}


def test_P3_user_code_that_started_never_goes_back_to_the_queue_without_migrating():
    for state in (S.RUNNING, S.CHECKPOINTING, S.COLLECTING):
        assert S.QUEUED not in MOVES[state]
        assert S.PREPARING not in MOVES[state]


@pytest.mark.parametrize(("before", "after"), list(itertools.product(State, State)))
def test_a_move_is_checked_by_the_table(before, after):
    if after in MOVES[before]:
        check_move(before, after)
    else:
        with pytest.raises(ImpossibleMove, match=f"{before} to {after}"):
            check_move(before, after)


def test_every_state_has_a_word_that_the_published_client_knows():
    assert set(E_TRIAL_WORDS) == set(State)
    assert set(E_TRIAL_WORDS.values()) == set(E_TRIAL_STATUSES)
    ends = {word for state, word in E_TRIAL_WORDS.items() if state in TERMINAL}
    assert ends == {"succeeded", "failed", "cancelled"}


@pytest.mark.parametrize(
    ("states", "stopped", "word"),
    [
        ([S.QUEUED, S.AWAITING_APPROVAL], False, "queued"),
        ([S.QUEUED, S.PREPARING], False, "running"),
        ([S.QUEUED, S.SUCCEEDED], False, "running"),
        ([S.QUEUED], True, "stopping"),
        ([S.STOPPING, S.FAILED], True, "stopping"),
        ([S.STOPPING], False, "running"),
        ([S.SUCCEEDED, S.SUCCEEDED], False, "completed"),
        ([S.SUCCEEDED, S.FAILED], False, "failed"),
        ([S.CANCELLED, S.FAILED], False, "failed"),
        ([S.SUCCEEDED, S.CANCELLED], False, "cancelled"),
        ([S.DENIED], False, "cancelled"),
        ([S.SUCCEEDED, S.FAILED], True, "cancelled"),
    ],
)
def test_the_word_of_a_job_follows_contract_E_b12(states, stopped, word):
    assert job_status(states, stop_accepted=stopped) == word


def test_a_job_is_at_an_end_exactly_when_all_its_trials_are():
    ends = {"completed", "failed", "cancelled"}
    for pair in itertools.product(State, State):
        for stopped in (False, True):
            word = job_status(pair, stop_accepted=stopped)
            assert word in E_JOB_STATUSES
            assert (word in ends) == (set(pair) <= TERMINAL)
