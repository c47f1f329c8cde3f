"""Placement in small, readable scenes. What must hold always is in test_placement_properties.py."""

import pytest

from policy.worlds import A100, H100, held, kind, node, queue, started
from trainshed.model.resources import Amounts, Node
from trainshed.policy import (
    Account,
    Cluster,
    PassRules,
    Placement,
    Project,
    ProjectLimits,
    Queue,
    WaitCode,
    place,
)
from trainshed.policy.cluster import NO_GPU
from trainshed.policy.gangs.snapshot import Kept
from trainshed.policy.waiting import TrialClass
from trainshed.policy.words import sentence

EXACT = PassRules(overhead_seconds=0.0)
NOW = 50.0


def decide(nodes, waiting, running=(), projects=None, rules=EXACT, now=NOW):
    return place(Cluster(nodes, running), waiting, projects or {}, now=now, rules=rules)


def limited(**limits):
    return {"p": Project(ProjectLimits(**limits))}


def test_E34_a_trial_gets_its_gpus_on_one_node_with_the_lowest_indices():
    decision = decide([node("a", 4)], queue(("t", kind(2))))
    assert decision.placements == (Placement("t", kind(2), "a", H100, (0, 1)),)


def test_E35_trials_that_run_together_use_their_gpus_in_the_accounting():
    key = kind(2)
    decision = decide([node("a", 8)], queue(*((f"t{n}", key) for n in range(5))))
    assert started(decision) == ["t0", "t1", "t2", "t3"]
    assert decision.pools["H100"].free == 0


def test_E36_a_trial_that_does_not_fit_waits_and_says_why():
    decision = decide([node("a", 2)], queue(("t", kind(2))), [held("x", "a", [0], 80.0)])
    assert not decision.placements
    reason = decision.reason(kind(2))
    assert (reason.code, reason.until) == (WaitCode.GPUS_BUSY, 80.0)


def test_the_tightest_node_is_used_so_that_whole_nodes_stay_whole():
    nodes = [node("a", 8), node("b", 8)]
    decision = decide(nodes, queue(("t", kind(2))), [held("x", "b", range(5))])
    assert (decision.placements[0].node, decision.placements[0].gpus) == ("b", (5, 6))


def test_a_node_that_lacks_something_else_is_passed_over():
    nodes = [node("a", 1, cpus=1), node("b", 8, cpus=64)]
    assert decide(nodes, queue(("t", kind(1, cpus=2)))).placements[0].node == "b"


def test_gpus_of_two_models_are_never_mixed_in_one_trial():
    both = node("a", model=[H100, "NVIDIA H100 NVL", H100])
    decision = decide([both], queue(("t", kind(2)), ("u", kind(2))))
    assert [placed.gpus for placed in decision.placements] == [(0, 2)]
    assert decision.reason(kind(2)).code is WaitCode.GPUS_BUSY


@pytest.mark.parametrize(
    ("need", "code"),
    [
        ({"cpus": 5}, WaitCode.CPU_BUSY),
        ({"memory_mb": 5}, WaitCode.MEMORY_BUSY),
        ({"storage_mb": 5}, WaitCode.DISK_BUSY),
        ({"shm_mb": 5}, WaitCode.SHM_BUSY),
    ],
)
def test_P10_what_is_short_beside_the_gpus_is_named_with_its_number(need, code):
    (name,) = need
    small = {"cpus": 1, "memory_mb": 1, "storage_mb": 1, "shm_mb": 1}
    room = dict.fromkeys(small, 8)
    used = held("x", "a", [0], 80.0, **{**small, name: 4})
    key = kind(1, **{**small, **need})
    reason = decide([node("a", 4, **room)], queue(("t", key)), [used]).reason(key)
    assert (reason.code, reason.have, reason.until) == (code, 4, 80.0)


def test_priority_goes_first_and_then_first_come():
    waiting = queue(("old", kind(1)), ("important", kind(1, priority=1)), ("new", kind(1)))
    assert started(decide([node("a", 2)], waiting)) == ["important", "old"]


def test_P11_waiting_outweighs_priority_in_the_end():
    waiting = Queue(worth_seconds=100)
    waiting.add("important", kind(1, priority=1), 1000.0)
    waiting.add("recent", kind(1), 901.0)
    waiting.add("patient", kind(1), 899.0)
    assert started(decide([node("a", 3)], waiting)) == ["patient", "important", "recent"]


def test_equal_ranks_are_ordered_by_trial_id():
    waiting = Queue()
    for trial_id in ("c", "a", "b"):
        waiting.add(trial_id, kind(1), 5.0)
    assert started(decide([node("a", 2)], waiting)) == ["a", "b"]


def test_backfill_starts_what_is_gone_before_the_first_in_line_can_start():
    short, long = kind(1, timeout=30), kind(1, timeout=31)
    waiting = queue(("big", kind(2)), ("long", long), ("short", short))
    decision = decide([node("a", 2)], waiting, [held("x", "a", [0], NOW + 30)])
    assert started(decision) == ["short"]
    reason = decision.reason(long)
    assert (reason.code, reason.behind, reason.until) == (WaitCode.BEHIND_OTHERS, "big", NOW + 30)
    (reservation,) = decision.reservations
    assert (reservation.trial_id, reservation.node, reservation.at) == ("big", "a", NOW + 30)


def test_backfill_counts_the_overhead_of_starting_and_collecting():
    waiting = queue(("big", kind(2)), ("short", kind(1, timeout=30)))
    busy = [held("x", "a", [0], NOW + 35)]
    assert started(decide([node("a", 2)], waiting, busy, rules=PassRules(overhead_seconds=5.0))) == ["short"]
    assert started(decide([node("a", 2)], waiting, busy, rules=PassRules(overhead_seconds=6.0))) == []


def test_backfill_uses_what_the_first_in_line_leaves_beside_itself_and_no_more():
    waiting = queue(("big", kind(3)), *((f"t{n}", kind(1, timeout=9999)) for n in range(2)))
    decision = decide([node("a", 4)], waiting, [held("x", "a", [0, 1], NOW + 30)])
    assert started(decision) == ["t0"]
    assert decision.reason(kind(1, timeout=9999)).code is WaitCode.BEHIND_OTHERS


def test_backfill_leaves_the_cpus_that_the_first_in_line_will_need():
    waiting = queue(("big", kind(2, cpus=6)), ("hog", kind(1, timeout=9999, cpus=3)))
    decision = decide([node("a", 4, cpus=8)], waiting, [held("x", "a", [0, 1, 2], NOW + 30, cpus=1)])
    assert started(decision) == []


def test_backfill_on_other_nodes_is_free():
    waiting = queue(("big", kind(4)), ("small", kind(1, timeout=9999)))
    busy = [held("x", "a", [0], NOW + 30), held("y", "b", [0], NOW + 10_000)]
    decision = decide([node("a", 4), node("b", 4)], waiting, busy)
    assert [(placed.trial_id, placed.node) for placed in decision.placements] == [("small", "b")]


def test_a_short_trial_may_pass_where_a_longer_equal_one_may_not():
    waiting = queue(
        ("big", kind(2)), ("long", kind(1, timeout=5000)), ("short", kind(1, timeout=10, project="q"))
    )
    decision = decide([node("a", 2)], waiting, [held("x", "a", [0], NOW + 30)])
    assert started(decision) == ["short"]


def test_a_node_that_nobody_expects_back_is_reserved_last_and_never_filled_past_the_reservation():
    waiting = queue(("big", kind(2)), ("small", kind(1, timeout=10)))
    alone = decide([node("a", 2)], waiting, [held("leaked", "a", [0], None)])
    assert started(alone) == []
    assert alone.reason(kind(2)).until is None
    busy = [held("leaked", "a", [0], None), held("x", "b", [0, 1], NOW + 500)]
    both = decide([node("a", 2), node("b", 2)], waiting, busy)
    assert started(both) == ["small"]
    assert (both.reservations[0].node, both.reservations[0].at) == ("b", NOW + 500)


def test_P11_a_node_that_is_overdue_does_not_keep_the_reservation_for_ever():
    waiting = queue(
        ("big", kind(2)),
    )
    busy = [held("late", "a", [0], NOW - 10), held("x", "b", [0, 1], NOW + 500)]
    nodes = [node("a", 2), node("b", 2)]
    assert decide(nodes, waiting, busy).reservations[0].node == "a"
    assert decide(nodes, waiting, busy, now=NOW + 400).reservations[0].node == "b"


def test_every_group_of_gpus_has_its_own_first_in_line():
    waiting = queue(("h", kind(2)), ("a", kind(2, gpu_type="A100")), ("small", kind(1, gpu_type="A100")))
    nodes = [node("a", 2), node("b", 2, A100)]
    busy = [held("x", "a", [0], NOW + 30), held("y", "b", [0], NOW + 40)]
    decision = decide(nodes, waiting, busy)
    assert started(decision) == []
    assert [(r.trial_id, r.at) for r in decision.reservations] == [("h", NOW + 30), ("a", NOW + 40)]


def test_a_project_at_its_gpu_limit_does_not_hold_up_others():
    waiting = queue(("mine", kind(2)), ("theirs", kind(2, project="q")))
    decision = decide([node("a", 8)], waiting, [held("x", "a", [0], 90.0)], projects=limited(max_gpus=2))
    assert started(decision) == ["theirs"]
    reason = decision.reason(kind(2))
    assert (reason.code, reason.have, reason.until) == (WaitCode.PROJECT_GPU_LIMIT, 1, 90.0)


def test_a_project_at_its_trial_limit_waits():
    decision = decide(
        [node("a", 8)], queue(("t", kind())), [held("x")], projects=limited(max_active_trials=1)
    )
    assert decision.reason(kind()).code is WaitCode.PROJECT_TRIAL_LIMIT


def test_P11_a_projects_own_small_trials_do_not_overtake_its_big_one_for_ever():
    waiting = queue(("big", kind(4)), ("small", kind(1, timeout=9999)), ("brief", kind(1, timeout=20)))
    busy = [held("x", "a", [0], NOW + 30)]
    decision = decide([node("a", 64)], waiting, busy, projects=limited(max_gpus=4))
    assert started(decision) == ["brief"]
    reason = decision.reason(kind(1, timeout=9999))
    assert (reason.code, reason.behind, reason.own) == (WaitCode.BEHIND_OTHERS, "big", True)


def test_P11_the_trial_limit_is_kept_for_the_projects_first_trial_too():
    waiting = queue(("big", kind(4)), *((f"t{n}", kind(1, timeout=9999)) for n in range(3)))
    busy = [held("x", "a", [0], NOW + 30, project="q"), held("y", "b", [0], NOW + 9000)]
    nodes = [node("a", 4), node("b", 3)]
    assert started(decide(nodes, waiting, busy, projects=limited(max_active_trials=3))) == ["t0"]
    assert started(decide(nodes, waiting, busy, projects=limited(max_active_trials=2))) == []


def test_what_nobody_expects_back_never_counts_as_coming_back_to_the_project():
    waiting = queue(("big", kind(2)), *((f"t{n}", kind(1, timeout=9)) for n in range(3)))
    busy = [held("leaked", "a", [0], None)]
    decision = decide([node("a", 2), node("b", 1), node("c", 1)], waiting, busy, projects=limited(max_gpus=4))
    assert started(decision) == ["t0"]


def test_P11_the_quota_of_the_first_in_line_is_kept_while_it_waits_for_hardware():
    waiting = queue(("big", kind(2)), ("small", kind(1, timeout=9999)))
    nodes = [node("a", 2), node("b", 1)]
    busy = [held("x", "a", [0, 1], NOW + 30, project="q"), held("y", "b", [0], NOW + 999, project="q")]
    assert started(decide([*nodes, node("c", 1)], waiting, busy, projects=limited(max_gpus=2))) == []
    assert started(decide([*nodes, node("c", 1)], waiting, busy, projects=limited(max_gpus=3))) == ["small"]


def budget(left, attainable=None):
    total = 100_000
    best = left if attainable is None else attainable
    return {"p": Project(ProjectLimits(), Account(total, used=total - best, spent=0, reserved=best - left))}


def test_the_worst_case_of_every_start_is_reserved_in_the_budget():
    waiting = queue(*((f"t{n}", kind(1, timeout=100)) for n in range(3)))
    decision = decide([node("a", 8)], waiting, projects=budget(left=200))
    assert started(decision) == ["t0", "t1"]


def test_a_budget_that_may_come_back_keeps_the_projects_order():
    waiting = queue(("dear", kind(1, timeout=300)), ("cheap", kind(1, timeout=10)))
    decision = decide([node("a", 8)], waiting, projects=budget(left=200, attainable=400))
    assert started(decision) == []
    assert decision.reason(kind(1, timeout=300)).code is WaitCode.PROJECT_BUDGET
    assert decision.reason(kind(1, timeout=10)).behind == "dear"


def test_a_budget_that_cannot_come_back_holds_nobody_else_up():
    waiting = queue(("dear", kind(1, timeout=300)), ("cheap", kind(1, timeout=10)))
    decision = decide([node("a", 8)], waiting, projects=budget(left=200))
    assert started(decision) == ["cheap"]
    assert decision.reason(kind(1, timeout=300)).never


def test_a_limit_that_was_lowered_below_a_waiting_trial_holds_nobody_else_up():
    waiting = queue(("big", kind(4)), ("small", kind(1)))
    decision = decide([node("a", 8)], waiting, projects=limited(max_gpus=2))
    assert started(decision) == ["small"]
    assert decision.reason(kind(4)).never


def test_a_trial_that_no_node_can_ever_serve_holds_nobody_up():
    waiting = queue(("huge", kind(16)), ("odd", kind(1, gpu_type="B200")), ("small", kind(1)))
    decision = decide([node("a", 8)], waiting)
    assert started(decision) == ["small"]
    assert decision.reason(kind(16)).code is WaitCode.NO_NODE
    assert decision.reason(kind(1, gpu_type="B200")).code is WaitCode.NO_NODE
    assert decision.reservations == ()


def test_without_any_node_everything_waits_for_one():
    decision = decide([], queue(("t", kind())))
    assert decision.reason(kind()).code is WaitCode.NO_NODE


def test_an_empty_queue_is_no_work():
    decision = decide([node()], Queue())
    assert (decision.placements, decision.reasons, decision.rest, decision.more) == ((), {}, None, False)


def test_a_pass_ends_after_its_bound_and_asks_for_another():
    waiting = queue(*((f"t{n}", kind()) for n in range(5)))
    decision = decide([node("a", 8)], waiting, rules=PassRules(max_placements=2))
    assert started(decision) == ["t0", "t1"]
    assert decision.more
    assert decision.reason(kind()).code is WaitCode.NEXT_TURN


def test_the_servers_trial_limit_counts_what_is_held():
    waiting = queue(("t", kind()), ("u", kind()))
    rules = PassRules(max_active_trials=2)
    decision = decide([node("a", 8)], waiting, [held("x")], rules=rules)
    assert started(decision) == ["t"]
    assert decision.reason(kind()).code is WaitCode.SERVER_TRIAL_LIMIT


def test_an_allocation_is_held_until_it_is_released_and_may_be_replaced():
    cluster = Cluster([node("a", 4)])
    cluster.hold(held("x", "a", [0, 1], None))
    cluster.hold(held("x", "a", [0, 1], 70.0))
    assert len(cluster) == 1
    assert cluster.pool("H100").free == 2
    cluster.release("x")
    cluster.release("x")
    assert cluster.pool("H100").free == 4


def test_two_allocations_that_name_one_gpu_free_it_only_together():
    cluster = Cluster([node("a", 1)], [held("x"), held("y")])
    cluster.release("x")
    assert cluster.pool("H100").free == 0
    cluster.release("y")
    assert cluster.pool("H100").free == 1


def test_what_is_held_on_a_node_that_is_gone_still_counts_for_its_project():
    running = [held("x", "gone", [0, 1])]
    decision = decide([node("a", 8)], queue(("t", kind())), running, projects=limited(max_gpus=2))
    assert decision.reason(kind()).code is WaitCode.PROJECT_GPU_LIMIT


def test_a_gpu_that_is_gone_is_not_handed_out_and_not_missed():
    cluster = Cluster([node("a", 2)], [held("x", "a", [1, 7])])
    assert cluster.pool("H100").free == 1


def test_a_removed_trial_is_not_placed_and_its_class_goes_on():
    waiting = queue(("t", kind()), ("u", kind()), ("v", kind()))
    waiting.remove("t")
    waiting.remove("t")
    assert "t" not in waiting
    waiting.remove("v")
    assert started(decide([node()], waiting)) == ["u"]
    waiting.remove("u")
    assert len(waiting) == 0
    assert list(waiting.heads) == []


def test_a_trial_that_is_added_again_keeps_one_place():
    waiting = queue(("t", kind()), ("u", kind()))
    waiting.add("u", kind(2), 0.0)
    assert len(waiting) == 2
    assert waiting.key_of("u") == kind(2)


def test_an_older_trial_that_comes_back_takes_the_head_of_its_class():
    waiting = Queue()
    waiting.add("young", kind(), 10.0)
    waiting.add("old", kind(), 5.0)
    assert started(decide([node("a", 1)], waiting)) == ["old"]


def test_C5_what_is_kept_for_a_task_is_kept_without_its_name():
    kept = Kept("task-of-ann", "a", H100, 1000.0, Amounts(gpus=0, cpus=64), 0.0)
    waiting = queue(("t", kind(1, timeout=2000)))
    cluster = Cluster([node("a", 1)])
    reason = place(cluster, waiting, {}, now=NOW, rules=EXACT, kept=[kept]).reason(kind(1, timeout=2000))
    assert reason.code is WaitCode.BEHIND_OTHERS
    said = " ".join(sentence(kind(1, timeout=2000), reason, None))
    assert "a training task comes first" in said
    assert "task-of-ann" not in said


def test_a_trial_without_gpus_runs_on_a_node_without_gpus_and_beside_those_with():
    """Packed projects run on any machine (G4): what they need then is CPUs and memory."""
    node = Node("plain", (), Amounts(cpus=4, memory_mb=8_000, storage_mb=8_000, shm_mb=100))
    key = TrialClass("p", 0, NO_GPU, Amounts(0, 3, 4_000, 1_000, 0), 600)
    queue = Queue()
    for number in range(2):
        queue.add(f"t{number}", key, float(number))
    first = place(Cluster([node]), queue, {}, now=100.0)
    [placement] = first.placements
    assert (placement.trial_id, placement.node, placement.model, placement.gpus) == ("t0", "plain", "", ())
    assert first.reason(key).code is WaitCode.CPU_BUSY, "the second one waits for CPUs"
    [reservation] = first.reservations
    assert (reservation.node, reservation.at) == ("plain", 100.0 + 600 + 60)
