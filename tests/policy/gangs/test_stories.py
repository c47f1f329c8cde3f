"""The stories that other schedulers get wrong, and the rules of c3 to c5, one by one."""

from policy.gangs.gang_worlds import (
    H100,
    IDLE,
    ONDEMAND,
    RESERVED,
    SPOT,
    World,
    gang,
    need,
    node,
    nodes,
    quota,
)
from trainshed.model.resources import Amounts
from trainshed.model.training.spec import Role
from trainshed.policy.gangs import Choice, GangRules, GangWait, Kept, ReplicaNeed


def test_C27_of_536_tasks_those_300_that_have_room_start_in_one_pass():
    world = World(nodes(300))
    for number in range(536):
        world.add(f"t{number:03d}", gang(), queued_at=number)
    assert world.step() == [f"t{number:03d}" for number in range(300)]
    assert world.reason("t300").code is GangWait.WAITING_FOR_RESOURCES
    assert world.reason("t535").code in (GangWait.WAITING_FOR_RESOURCES, GangWait.BEHIND)


def test_C27_one_replica_of_8_gpus_is_not_two_times_4():
    world = World([node("a", 4), node("b", 4), node("c", 16)])
    world.run("x", gang(1, 16), [("c", range(16))])
    world.add("whole", gang(1, 8))
    assert world.step() == []
    reason = world.reason("whole")
    assert (reason.code, reason.requested, reason.available) == (GangWait.FRAGMENTED, 8, 8)


def test_C27_two_times_4_start_where_one_times_8_cannot():
    world = World([node("a", 4), node("b", 4)])
    world.add("halves", gang(2, 4))
    assert world.step() == ["halves"]
    assert [part.node for part in world.cluster.running["halves"].parts] == ["a", "b"]


def test_c4_a_victim_that_will_not_die_does_not_block_the_queue():
    world = World([node("a"), node("b"), node("c")], rules=GangRules(notice_seconds=100, overhead_seconds=0))
    world.run("stuck", gang(resource_type=IDLE), [("a", range(8))], admitted_at=-2000)
    world.run("meek", gang(resource_type=IDLE), [("b", range(8))], admitted_at=-3000)
    world.run("kept", gang(guarantee=True), [("c", range(8))])
    world.add("first", gang())
    world.step()
    assert world.evicted() == ["stuck"]
    world.add("other", gang(1, 4, resource_type=IDLE))
    assert world.step(10) == []
    world.step(101)
    assert world.evicted() == ["meek"]
    world.end("meek")
    assert world.step(102) == ["first"]


def test_c4_others_start_beside_a_task_that_waits_for_its_victim():
    world = World([node("a"), node("b", 4)])
    world.run("victim", gang(resource_type=IDLE), [("a", range(8))])
    world.add("big", gang())
    world.step()
    world.add("small", gang(1, 4))
    assert world.step(10) == ["small"]


def test_c4_freed_nodes_are_not_stolen_from_the_preemptor():
    world = World([node("a"), node("b")])
    world.run("v1", gang(resource_type=IDLE), [("a", range(8))])
    world.run("v2", gang(resource_type=IDLE), [("b", range(8))])
    world.add("big", gang(2))
    world.step()
    assert world.evicted() == ["v1", "v2"]
    world.end("v1")
    world.add("thief", gang(priority=900), queued_at=-5)
    assert world.step(20) == []
    assert world.reason("big").code is GangWait.WAITING_FOR_PREEMPTED
    assert world.reason("thief").code is not GangWait.PENDING_EVALUATION
    assert [held.node for held in world.decision.holds if held.gpus] == ["a"]
    world.end("v2")
    assert world.step(30) == ["big"]


def test_c2_the_reason_does_not_flicker_while_victims_end():
    world = World([node("a"), node("b")])
    world.run("v1", gang(resource_type=IDLE), [("a", range(8))])
    world.run("v2", gang(resource_type=IDLE), [("b", range(8))])
    world.add("big", gang(2))
    codes = []
    world.step()
    for second in range(1, 5):
        world.step(second)
        codes.append(world.reason("big").code)
    world.end("v1")
    world.step(6)
    codes.append(world.reason("big").code)
    assert set(codes) == {GangWait.WAITING_FOR_PREEMPTED}


def test_c4_nobody_is_evicted_where_that_would_not_help():
    world = World([node("a"), node("b")])
    world.run("idle", gang(1, 4, resource_type=IDLE), [("a", range(4))])
    world.run("firm", gang(1, 4, guarantee=True), [("a", range(4, 8))])
    world.run("firm2", gang(guarantee=True), [("b", range(8))])
    world.add("big", gang())
    assert world.step() == []
    assert world.evicted() == []


def test_c4_gangs_go_whole_and_unneeded_victims_are_spared():
    world = World([node("a"), node("b"), node("c")])
    world.run("wide", gang(2, 4, resource_type=IDLE), [("a", range(4)), ("b", range(4))], admitted_at=-900)
    world.run("narrow", gang(1, 8, resource_type=IDLE), [("c", range(8))], admitted_at=-5000)
    world.run("firm", gang(1, 4, guarantee=True), [("a", range(4, 8))])
    world.run("firm2", gang(1, 4, guarantee=True), [("b", range(4, 8))])
    world.add("big", gang())
    world.step()
    assert world.evicted() == ["narrow"]


def test_c4_nobody_is_a_victim_in_its_first_600_seconds():
    world = World([node("a")])
    world.run("young", gang(resource_type=IDLE), [("a", range(8))], admitted_at=0)
    world.add("big", gang())
    world.step(599)
    assert world.evicted() == []
    assert world.decision.next_at == 600
    world.step(600)
    assert world.evicted() == ["young"]


def test_c4_ties_are_won_by_fewest_lost_gpu_seconds():
    world = World([node("a"), node("b")])
    world.run("saved", gang(resource_type=IDLE), [("a", range(8))], admitted_at=-5000, checkpointed_at=-10)
    world.run("unsaved", gang(resource_type=IDLE), [("b", range(8))], admitted_at=-5000)
    world.add("big", gang())
    world.step()
    assert world.evicted() == ["saved"]


def test_c3_who_may_evict_whom():
    allowed = {
        (RESERVED, SPOT), (RESERVED, IDLE), (ONDEMAND, SPOT), (ONDEMAND, IDLE), (SPOT, IDLE),
    }  # fmt: skip
    for mine in (RESERVED, ONDEMAND, SPOT, IDLE):
        for other in (RESERVED, ONDEMAND, SPOT, IDLE):
            world = World([node("a")])
            world.run("v", gang(resource_type=other, project="q"), [("a", range(8))])
            world.add("t", gang(resource_type=mine))
            world.step()
            assert bool(world.evicted()) == ((mine, other) in allowed), (mine, other)


def test_c3_higher_priority_evicts_within_a_project_only_what_has_no_guarantee():
    for guarantee in (True, False):
        world = World([node("a")])
        world.run("v", gang(priority=100, guarantee=guarantee), [("a", range(8))])
        world.add("t", gang(priority=900))
        world.step()
        assert bool(world.evicted()) is not guarantee


def test_c3_ondemand_of_higher_priority_evicts_ondemand_without_guarantee():
    for guarantee in (True, False):
        world = World([node("a")])
        world.run(
            "v",
            gang(priority=100, resource_type=ONDEMAND, project="q", guarantee=guarantee),
            [("a", range(8))],
        )
        world.add("t", gang(priority=900, resource_type=ONDEMAND))
        world.step()
        assert bool(world.evicted()) is not guarantee


def cohort(**limits):
    return (
        *quota(2, "p", RESERVED, cohort="c", **limits),
        *quota(2, "q", RESERVED, cohort="c"),
    )


def test_c3_borrowed_units_go_back_to_their_owner():
    world = World(nodes(4), quotas=cohort())
    for number in range(4):
        world.add(f"p{number}", gang())
    assert len(world.step()) == 4
    assert [world.sources[f"p{n}"][0].borrowed for n in range(4)] == [0, 0, 1, 1]
    world.add("q0", gang(project="q", guarantee=True))
    world.step(10_000)
    assert len(world.evicted()) == 1
    world.end(world.evicted()[0])
    assert world.step(10_001) == ["q0"]


def test_c3_borrowing_and_lending_have_limits():
    world = World(nodes(4), quotas=cohort(borrowing_limit=1))
    for number in range(4):
        world.add(f"p{number}", gang())
    assert len(world.step()) == 3
    reason = world.reason("p3")
    assert (reason.code, reason.requested, reason.available, reason.limit) == (
        GangWait.WAITING_FOR_QUOTA, 1, 0, 3,
    )  # fmt: skip


def test_c4_a_guaranteed_task_never_borrows():
    world = World(nodes(4), quotas=cohort())
    for number in range(3):
        world.add(f"p{number}", gang(guarantee=True))
    assert world.step() == ["p0", "p1"]
    assert world.reason("p2").code is GangWait.WAITING_FOR_QUOTA


def test_C23_more_than_the_quota_can_ever_give_is_told_apart_from_more_than_it_has_now():
    world = World(nodes(4), quotas=quota(3))
    world.add("never", gang(4))
    world.add("now", gang(2))
    world.add("later", gang(2), queued_at=5)
    assert world.step() == ["now"]
    assert world.reason("never").code is GangWait.EXCEEDS_MAX_QUOTA
    assert world.reason("later").code is GangWait.WAITING_FOR_QUOTA


def test_C23_ray_counts_same_specs_together_and_different_ones_apart():
    same = Choice((need(1, 8), need(2, 8)))
    apart = Choice((need(1, 0, "c16m64", model=None, cpus=16), need(2, 8)))
    assert same.units == (("h100x8", 3),)
    assert apart.units == (("c16m64", 1), ("h100x8", 2))
    world = World([*nodes(2), node("cpu", 0)])
    world.add("ray", gang(choices=(apart,)))
    assert world.step() == ["ray"]
    assert [part.node for part in world.cluster.running["ray"].parts] == ["cpu", "n000", "n001"]


def test_c3_idle_supplement_runs_what_is_above_the_own_quota_as_idle():
    world = World(nodes(4), quotas=quota(2, "p", RESERVED))
    world.add("plus", gang(4, idle_supplement=True))
    assert world.step() == ["plus"]
    source = world.sources["plus"][0]
    assert (source.own, source.borrowed, source.supplement) == (2, 0, 2)
    world.add("spot", gang(1, project="q", resource_type=SPOT))
    world.table = type(world.table)((*world.table.rows, *quota(4, "q", SPOT)))
    world.step(10_000)
    assert world.evicted() == ["plus"]


def test_C22_the_first_choice_on_which_the_whole_gang_fits_is_taken():
    choices = (Choice((need(2, 8, "big"),)), Choice((need(2, 4, "small"),)))
    world = World([node("a"), node("b", 4)])
    world.add("t", gang(choices=choices))
    assert world.step() == ["t"]
    assert world.decision.admissions[0].choice == 1
    assert world.decision.admissions[0].passed_over == (("big", "NoMatchingSpec"),)


def test_C22_patience_holds_out_for_the_first_choice():
    choices = (Choice((need(1, 8, "big"),)), Choice((need(1, 4, "small"),)))
    world = World([node("a"), node("b", 4)])
    world.run("x", gang(guarantee=True), [("a", range(8))])
    world.add("t", gang(choices=choices, spec_patience_seconds=60))
    assert world.step(0) == []
    assert world.decision.next_at == 60
    assert world.step(59) == []
    assert world.step(60) == ["t"]


def test_c5_a_blocked_head_does_not_block_others_and_is_not_overtaken_for_ever():
    world = World([node("a"), node("b")])
    world.run("x", gang(1, 4, guarantee=True), [("a", range(4))], expected_end=100.0)
    world.add("head", gang(2, 8), queued_at=0)
    world.add("short", gang(1, 4, max_run_seconds=100), queued_at=1)
    world.add("long", gang(1, 4, max_run_seconds=101), queued_at=2)
    world.add("unknown", gang(1, 4), queued_at=3)
    assert world.step() == ["short"]
    assert world.decision.reservations[0].at == 100
    reason = world.reason("long")
    assert (reason.code, reason.behind, reason.until) == (GangWait.BEHIND, "head", 100)
    world.end("x")
    world.end("short")
    assert world.step(90) == ["head"]


def test_c5_backfill_takes_what_the_head_cannot_use():
    world = World([node("a"), node("b", 4)])
    world.run("x", gang(1, 4, guarantee=True), [("a", range(4))])
    world.add("head", gang(1, 8), queued_at=0)
    world.add("beside", gang(1, 4), queued_at=1)
    assert world.step() == ["beside"]
    assert world.cluster.running["beside"].parts[0].node == "b"


def _cpu(**rest):
    need_ = ReplicaNeed(Role.WORKER, 1, "c1m1", 1, Amounts(cpus=1, memory_mb=1024), None)
    return gang(choices=(Choice((need_,)),), **rest)


def test_c5_cpus_that_the_head_leaves_are_not_kept_from_others_however_long_they_run():
    world = World([node("a")])
    world.run("x", gang(1, 1), [("a", range(1))])
    world.add("head", gang(1, 8), queued_at=0)
    for number in range(200):
        world.add(f"c{number:03d}", _cpu(), queued_at=1 + number)
    assert len(world.step()) == 120, "128 CPUs but the 8 of the head"
    assert world.reason("c120").code is GangWait.BEHIND
    assert world.step(5) == [], "those that run may stay as long as they like"
    world.end("x")
    assert world.step(10) == ["head"]


def test_c5_what_ends_soon_runs_before_a_head_of_unknown_start_and_delays_it_by_no_more():
    world = World([node("a")])
    world.run("x", _cpu(), [("a", ())])
    head = gang(choices=(Choice((need(1, 8, cpus=128),)),))
    world.add("head", head, queued_at=0)
    world.add("soon", _cpu(max_run_seconds=600), queued_at=1)
    world.add("late", _cpu(max_run_seconds=601), queued_at=2)
    world.add("never", _cpu(), queued_at=3)
    assert world.step(0) == ["soon"]
    assert {world.reason(name).code for name in ("late", "never")} == {GangWait.BEHIND}
    world.end("x")
    world.add("again", _cpu(max_run_seconds=600), queued_at=4)
    assert world.step(10) == [], "now its start is known: 600"
    assert world.decision.reservations[0].at == 600
    world.end("soon")
    assert world.step(600) == ["head"]


def test_c5_what_ends_soon_does_not_drive_the_reservation_of_the_head_elsewhere():
    world = World([node("a"), node("b")])
    world.run("x", gang(1, 1), [("a", range(1))])
    world.run("y", gang(1, 4), [("b", range(4))])
    world.add("head", gang(), queued_at=0)
    world.add("soon", gang(1, 4, max_run_seconds=600), queued_at=1)
    world.add("again", gang(1, 4, max_run_seconds=600), queued_at=2)
    for second in (1, 2):
        world.step(second)
        assert [at for at, _ in world.decision.reservations[0].parts] == ["a"]


def test_c5_a_head_without_gpus_waits_for_the_node_with_least_on_it_and_leaves_the_others_alone():
    world = World([node("a"), node("b")])
    for number in range(100):
        world.run(f"a{number:02d}", _cpu(), [("a", ())])
    world.run("b", _cpu(), [("b", ())])
    whole = ReplicaNeed(Role.WORKER, 1, "c128", 1, Amounts(cpus=128, memory_mb=1024), None)
    world.add("head", gang(choices=(Choice((whole,)),)), queued_at=0)
    for number in range(40):
        world.add(f"c{number:02d}", _cpu(), queued_at=1 + number)
    started = world.step(0)
    assert world.decision.reservations[0].parts == (("b", 1),)
    assert len(started) == 28, "what runs without an end fills the other node"
    assert {world.cluster.running[name].parts[0].node for name in started} == {"a"}
    world.end("b")
    assert world.step(1) == ["head"]


def test_c5_priority_and_then_the_first_submission_decide():
    world = World([node("a")])
    world.add("late", gang(priority=500), queued_at=2)
    world.add("early", gang(priority=500), queued_at=1)
    world.add("high", gang(priority=900), queued_at=3)
    order = []
    for _ in range(3):
        order += world.step()
        world.end(order[-1])
    assert order == ["high", "early", "late"]


def test_c2_positions_count_from_1_in_the_queue_and_in_the_project():
    world = World([node("a")])
    world.run("x", gang(guarantee=True), [("a", range(8))])
    world.add("a", gang(), queued_at=1)
    world.add("b", gang(1, 4), queued_at=2)
    world.add("high", gang(priority=900), queued_at=3)
    world.add("other", gang(project="q"), queued_at=0)
    world.add("spot", gang(resource_type=SPOT), queued_at=0)
    place = world.queue.place("b")
    assert (place.in_queue, place.in_project, place.queue_length) == (3, 3, 3)
    assert dict(place.ahead) == {900: 1, 500: 1}
    assert world.queue.place("spot").in_queue == 1
    assert world.queue.place("spot").in_project == 4


def test_C34_an_excluded_node_is_not_used_and_a_cordoned_one_neither():
    world = World([node("a"), node("b"), node("c")])
    world.cluster.cordon(["b"])
    world.add("t", gang(excluded=frozenset({"a"})))
    assert world.step() == ["t"]
    assert world.cluster.running["t"].parts[0].node == "c"


def test_C33_a_task_waits_for_its_back_off_and_says_so():
    world = World([node("a")])
    world.add("t", gang(), not_before=20.0)
    assert world.step(0) == []
    assert (world.reason("t").code, world.reason("t").until) == (GangWait.HELD, 20.0)
    assert world.decision.next_at == 20.0
    assert world.step(20) == ["t"]


def test_runner_trials_and_gangs_leave_each_other_what_waits_longer():
    kept = Kept("trial", "a", H100, float("inf"), Amounts(), queued_at=5.0)
    world = World([node("a")])
    world.add("later", gang(), queued_at=6.0)
    assert world.step(10, kept=[kept]) == []
    assert (world.reason("later").code, world.reason("later").behind) == (GangWait.BEHIND, "trial")
    world.add("sooner", gang(), queued_at=4.0)
    assert world.step(11, kept=[kept]) == ["sooner"]
