"""P10: every waiting Trial says what blocks it, what would unblock it, its place and an estimated start."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings

from policy.worlds import A100, World, arrivals, held, kind, node, nodes, queue
from support.examples import examples
from trainshed.policy import (
    Account,
    Cluster,
    Decision,
    PassRules,
    Project,
    ProjectLimits,
    Queue,
    WaitCode,
    WaitReason,
    answer,
    forecast,
    from_json,
    make_board,
    place,
    retry_answer,
    to_json,
)
from trainshed.policy.reasons import MAX_CLASSES
from trainshed.policy.words import sentence

NOW = 50.0
EXACT = PassRules(overhead_seconds=0.0)


def board_of(fleet, waiting, running=(), projects=None, **options):
    """The board as a reader gets it: through JSON."""
    cluster = Cluster(fleet, running)
    decision = place(cluster, waiting, projects or {}, now=NOW, rules=EXACT)
    for placed in decision.placements:
        waiting.remove(placed.trial_id)
        end = NOW + placed.key.timeout_seconds
        cluster.hold(held(placed.trial_id, placed.node, placed.gpus, end, placed.key.project))
    seen = forecast(cluster, waiting, projects or {}, now=NOW, rules=EXACT, **options)
    return from_json(json.loads(json.dumps(to_json(make_board(decision, seen, waiting)))))


def said(board, key, trial_id, position=None, now=NOW):
    return answer(board, key, trial_id, position=position, now=now)


def test_P10_a_trial_behind_busy_gpus_says_all_of_it():
    board = board_of([node("a", 4)], queue(("t", kind(4))), [held("x", "a", [0, 1], 80.0)])
    found = said(board, kind(4), "t")
    assert found.as_dict() == {
        "code": "GPUS_BUSY",
        "message": "needs 4 H100 GPUs on one node; 2 of 4 are free, at most 2 on one node",
        "unblock": "2 more H100 GPUs free on one node, expected by 1970-01-01T00:01:20+00:00",
        "position": 1,
        "waiting": 1,
        "estimated_start": "1970-01-01T00:01:20+00:00",
    }


def test_P10_the_estimate_plays_the_queue_through_in_its_order():
    waiting = queue(*((f"t{n}", kind(2, timeout=100)) for n in range(3)))
    board = board_of([node("a", 2)], waiting, [held("x", "a", [0, 1], 80.0)])
    assert [said(board, kind(2, timeout=100), f"t{n}").estimated_start for n in range(3)] == [
        80.0,
        180.0,
        280.0,
    ]
    assert [said(board, kind(2, timeout=100), f"t{n}").position for n in range(3)] == [1, 2, 3]


def test_P10_groups_of_gpus_do_not_wait_for_each_other_in_the_estimate():
    waiting = queue(("h", kind(1)), ("a", kind(1, gpu_type="A100")))
    busy = [held("x", "a", [0], 900.0), held("y", "b", [0], 60.0)]
    board = board_of([node("a", 1), node("b", 1, A100)], waiting, busy)
    assert said(board, kind(1), "h").estimated_start == 900.0
    assert said(board, kind(1, gpu_type="A100"), "a").estimated_start == 60.0


@pytest.mark.parametrize("limit", [{"max_gpus": 1}, {"max_active_trials": 1}])
def test_P10_the_estimate_keeps_the_projects_limits(limit):
    waiting = queue(("t", kind(1, timeout=100)), ("u", kind(1, timeout=100)))
    limits = {"p": Project(ProjectLimits(**limit))}
    board = board_of([node("a", 8)], waiting, [held("x", "a", [0], 80.0)], limits)
    assert said(board, kind(1, timeout=100), "t").estimated_start == 80.0
    assert said(board, kind(1, timeout=100), "u").estimated_start == 180.0


def test_P10_beyond_the_first_trials_work_ahead_is_divided_by_the_gpus_there_are():
    key = kind(1, timeout=100)
    waiting = queue(*((f"t{n:03d}", key) for n in range(100)))
    board = board_of([node("a", 2)], waiting, [held("x", "a", [0, 1], 60.0)], simulated=10)
    found = said(board, key, "t050", position=51)
    # 2 GPUs busy for 10 s, then 50 Trials of 100 s ahead on 2 GPUs.
    assert found.estimated_start == NOW + (20 + 50 * 100) / 2
    assert (found.position, found.waiting) == (51, 100)


def test_P10_work_of_lower_priority_is_not_ahead():
    mine, low = kind(1, timeout=100, priority=1), kind(1, timeout=100)
    waiting = queue(*((f"l{n:02d}", low) for n in range(20)), *((f"m{n:02d}", mine) for n in range(20)))
    board = board_of([node("a", 1)], waiting, [held("x", "a", [0], NOW)], simulated=1)
    assert said(board, mine, "m10", position=11).estimated_start == NOW + 10 * 100
    assert said(board, low, "l10", position=31).estimated_start == NOW + (20 + 10) * 100


def test_an_estimate_is_never_in_the_past():
    board = board_of([node("a", 1)], queue(("t", kind(1))), [held("x", "a", [0], 80.0)])
    assert said(board, kind(1), "t", now=500.0).estimated_start == 500.0


def test_a_trial_that_nothing_can_start_has_no_estimate():
    board = board_of([node("a", 1)], queue(("t", kind(2)), ("u", kind(1, gpu_type="B200"))))
    for key, trial_id in ((kind(2), "t"), (kind(1, gpu_type="B200"), "u")):
        found = said(board, key, trial_id)
        assert (found.code, found.estimated_start) == (WaitCode.NO_NODE, None)


def test_a_node_that_nobody_expects_back_gives_no_estimate():
    board = board_of([node("a", 1)], queue(("t", kind(1))), [held("leaked", "a", [0], None)])
    found = said(board, kind(1), "t")
    assert (found.code, found.estimated_start) == (WaitCode.GPUS_BUSY, None)


def test_a_budget_that_is_used_up_gives_no_estimate():
    poor = {"p": Project(ProjectLimits(), Account(budget=100, used=50, spent=0, reserved=0))}
    found = said(board_of([node("a", 1)], queue(("t", kind(1))), projects=poor), kind(1), "t")
    assert (found.code, found.estimated_start) == (WaitCode.PROJECT_BUDGET, None)
    assert "50 GPU-seconds" in found.message or "GPU-hours" in found.message
    assert "an admin adds" in found.unblock


def test_before_the_first_pass_a_trial_says_that_it_is_next():
    found = said(None, kind(), "t", position=3)
    assert (found.code, found.position, found.estimated_start) == (WaitCode.NEXT_TURN, 3, None)


def test_a_trial_that_came_after_the_board_is_answered_from_its_class_or_the_general_reason():
    board = board_of([node("a", 1)], queue(("t", kind(1))), [held("x", "a", [0], 80.0)])
    assert said(board, kind(1), "new").code == WaitCode.GPUS_BUSY
    assert said(board, kind(1), "new").position == 2
    assert said(board, kind(1, project="other"), "new").code == WaitCode.NEXT_TURN


def test_with_very_many_classes_the_later_ones_get_the_general_reason():
    keys = [kind(1, timeout=number + 1) for number in range(MAX_CLASSES + 5)]
    waiting = queue(*((f"t{number:04d}", key) for number, key in enumerate(keys)))
    board = board_of([node("a", 1)], waiting, [held("x", "a", [0], 80.0)])
    assert len(board.classes) == MAX_CLASSES
    assert said(board, keys[-1], "t-last").code == WaitCode.GPUS_BUSY


def test_a_board_of_another_version_is_not_read():
    assert from_json({"version": 0}) is None


def test_A9_a_trial_that_waits_for_its_next_start_says_so():
    found = retry_answer(60.0, 2, "no space left", position=1, waiting=4, now=NOW)
    assert found.code == "STARTING_RETRY"
    assert "2 times" in found.message
    assert "in 10 s" in found.unblock
    assert found.estimated_start == 60.0


@pytest.mark.parametrize("code", list(WaitCode))
@pytest.mark.parametrize(
    "more", [{}, {"have": 1, "until": 80.0}, {"never": True}, {"own": True, "behind": "t9"}]
)
def test_P10_every_code_has_both_sentences(code, more):
    blocked, unblock = sentence(kind(4, cpus=8), WaitReason(code, **more), (8, 2, 1))
    assert blocked
    assert unblock
    if code is not WaitCode.BEHIND_OTHERS or "behind" in more:
        assert "None" not in blocked + unblock


@settings(max_examples=examples(60), deadline=None)
@given(nodes, arrivals(priorities=(0, 1)))
def test_P10_every_waiting_trial_gets_an_answer_and_those_that_can_run_an_estimate(fleet, trials):
    waiting, cluster = Queue(), Cluster(fleet)
    for number, trial in enumerate(trials):
        waiting.add(f"t{number:03d}", trial.key, float(number))
    decision: Decision = place(cluster, waiting, {}, now=NOW, rules=EXACT)
    for placed in decision.placements:
        waiting.remove(placed.trial_id)
        end = NOW + placed.key.timeout_seconds
        one = held(placed.trial_id, placed.node, placed.gpus, end, placed.key.project)
        cluster.hold(replace(one, amounts=placed.key.amounts))
    board = make_board(decision, forecast(cluster, waiting, {}, now=NOW, rules=EXACT), waiting)
    order = sorted((place_, trial_id) for line in waiting.lines() for place_, trial_id in line.entries)
    for position, (_, trial_id) in enumerate(order, start=1):
        key = waiting.key_of(trial_id)
        found = answer(board, key, trial_id, position=None, now=NOW)
        assert (found.position, found.waiting) == (position, len(order))
        possible = cluster.ever_fits(cluster.meaning(key.gpu_type), key.amounts)
        assert (found.estimated_start is not None) == possible
        assert (found.code == WaitCode.NO_NODE) == (not possible)


@settings(max_examples=examples(60), deadline=None)
@given(nodes, arrivals(gpu_types=("H100",), projects=("p",)))
def test_P10_the_estimate_of_the_first_in_line_is_kept_when_every_program_uses_its_whole_timeout(
    fleet, trials
):
    for trial in trials:
        trial.at, trial.runs = 0.0, trial.key.timeout_seconds
    world = World(fleet).run(trials)
    waiting, cluster = Queue(), Cluster(fleet)
    for trial_id, trial in world.arrivals.items():
        waiting.add(trial_id, trial.key, 0.0)
    guess = forecast(cluster, waiting, {}, now=0.0, rules=EXACT)
    first = min(guess.starts, default=None)
    if first is not None:
        assert guess.starts[first] == world.starts[first] == 0.0
    assert set(guess.starts) == set(world.starts)
