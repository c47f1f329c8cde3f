"""Which Checkpoints a Runner's rules keep: keep last N, the best K, and nothing lost by accident."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from trainshed.model.checkpoints import Best, CheckpointRules, Mode
from trainshed.policy.retention import Candidate, newest_first, superseded

STEPS = [Candidate(f"out/checkpoint-{step}", step) for step in (100, 200, 300)]
LOSSES = {100: 0.5, 200: 0.3, 300: 0.4}
VALUED = [Candidate(f"out/checkpoint-{step}", step, value) for step, value in LOSSES.items()]

candidates = st.lists(
    st.builds(
        Candidate,
        folder=st.text("ab/", min_size=1, max_size=6),
        step=st.none() | st.integers(0, 50),
        value=st.none() | st.floats(-5, 5),
    ),
    unique_by=lambda each: each.folder,
    max_size=12,
)
rules = st.builds(
    CheckpointRules,
    resume=st.booleans(),
    keep_last=st.none() | st.integers(1, 6),
    best=st.none() | st.builds(Best, st.just("loss"), st.sampled_from(Mode), st.integers(1, 6)),
)


def lost(found, **keys):
    return sorted(superseded(found, CheckpointRules(**keys)))


def test_without_rules_everything_is_kept():
    assert lost(STEPS) == []


def test_keep_last_keeps_the_highest_steps_by_number_not_by_name():
    found = [Candidate(f"out/checkpoint-{step}", step) for step in (900, 1000, 1100)]
    assert lost(found, keep_last=2) == ["out/checkpoint-900"]


def test_what_the_program_saved_at_its_end_without_a_step_is_the_newest():
    assert lost([Candidate("out"), *STEPS], keep_last=1) == [each.folder for each in STEPS]


def test_of_one_step_the_folder_above_is_the_newer():
    found = [Candidate("out/checkpoint-300", 300), Candidate("out", 300)]
    assert lost(found, keep_last=1) == ["out/checkpoint-300"]


def test_best_keeps_the_best_values_of_either_mode():
    assert lost(VALUED, best=Best("loss", Mode.MIN)) == ["out/checkpoint-100", "out/checkpoint-300"]
    assert lost(VALUED, best=Best("loss", Mode.MAX)) == ["out/checkpoint-200", "out/checkpoint-300"]


def test_both_rules_keep_what_either_keeps():
    assert lost(VALUED, keep_last=1, best=Best("loss", Mode.MIN)) == ["out/checkpoint-100"]


def test_a_metric_that_was_never_written_costs_nothing():
    assert lost(STEPS, best=Best("loss", Mode.MIN)) == []
    assert lost(STEPS, best=Best("loss", Mode.MIN), keep_last=1) == []


def test_the_reason_names_the_rule_and_the_numbers():
    rules = CheckpointRules(keep_last=1, best=Best("loss", Mode.MIN))
    said = superseded(VALUED, rules)["out/checkpoint-100"]
    assert "not among the last 1" in said
    assert "its loss is 0.5, not among the 1 lowest" in said


@given(candidates, rules)
def test_the_promised_numbers_are_kept_and_no_more_than_they(found, rules):
    gone = superseded(found, rules)
    left = [each for each in found if each.folder not in gone]
    assert gone.keys() <= {each.folder for each in found}
    if rules.keep_last is None and rules.best is None:
        assert not gone
    if rules.keep_last is not None:
        newest = newest_first(found)[: rules.keep_last]
        assert all(each in left for each in newest)
    if rules.best is not None:
        worst_kept = sorted(_badness(each, rules.best) for each in left if each.value is not None)
        for each in found:
            if each.folder in gone and each.value is not None:
                better = [bad for bad in worst_kept if bad <= _badness(each, rules.best)]
                assert len(better) >= rules.best.keep
    most = (rules.keep_last or 0) + (rules.best.keep if rules.best else 0)
    unvalued = rules.best is not None and all(each.value is None for each in found)
    if unvalued:
        assert not gone
    elif rules.keep_last is not None:
        assert len(left) <= most


@given(candidates, rules, st.randoms())
def test_the_order_in_which_they_were_found_does_not_matter(found, rules, random):
    shuffled = list(found)
    random.shuffle(shuffled)
    assert superseded(found, rules) == superseded(shuffled, rules)


@given(candidates, rules)
def test_judging_again_what_was_kept_keeps_it(found, rules):
    gone = superseded(found, rules)
    assert not superseded([each for each in found if each.folder not in gone], rules)


def _badness(each: Candidate, rule: Best) -> float:
    assert each.value is not None
    assert math.isfinite(each.value)
    return each.value if rule.mode is Mode.MIN else -each.value
