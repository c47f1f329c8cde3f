"""Answers about tasks that need not exist: starts, reasons, places, estimates (C16, c2)."""

from policy.gangs.gang_worlds import IDLE, World, gang, node, nodes, quota
from trainshed.model.training.spec import ResourceType
from trainshed.policy.gangs import GangReason, GangWait, Snapshot, Waiting
from trainshed.policy.gangs.evaluate import estimate, evaluate, evaluate_in
from trainshed.policy.gangs.words import sentence


def test_C16_a_task_that_fits_would_start_now():
    found = evaluate(Snapshot(now=5.0, nodes=nodes(1), quotas=quota()), Waiting("t", gang(), 5.0))
    assert (found.starts_now, found.choice, found.reason) == (True, 0, None)
    assert (found.start.earliest, found.start.latest) == (5.0, 5.0)
    assert found.sources[0].own == 1


def test_C16_asking_changes_nothing():
    world = World(nodes(1))
    world.run("x", gang(guarantee=True), [("n000", range(8))])
    world.add("a", gang(), queued_at=1)
    evaluate_in(world.cluster, world.queue, world.table, Waiting("t", gang(), 2.0), now=3.0)
    assert list(world.queue.tasks) == ["a"]
    assert list(world.cluster.running) == ["x"]


def test_c2_who_is_ahead_is_told_in_numbers_only():
    world = World(nodes(1))
    world.run("x", gang(guarantee=True), [("n000", range(8))])
    world.add("secret", gang(), queued_at=1)
    world.add("important", gang(priority=900), queued_at=1)
    found = evaluate_in(world.cluster, world.queue, world.table, Waiting("t", gang(), 2.0), now=3.0)
    assert (found.place.in_queue, dict(found.place.ahead)) == (3, {900: 1, 500: 1})
    assert "secret" not in str(found)
    assert "important" not in str(found)


def test_c2_an_estimated_start_is_an_interval():
    world = World(nodes(1))
    world.run("x", gang(guarantee=True), [("n000", range(8))], expected_end=100.0)
    world.add("first", gang(max_run_seconds=200), queued_at=0)
    world.add("second", gang(), queued_at=1)
    state = (world.cluster, world.queue, world.table)
    found = estimate(*state, ["first", "second"], now=0.0, rules=world.rules, usual_share=0.5)
    assert (found["first"].earliest, found["first"].latest) == (50.0, 100.0)
    assert (found["second"].earliest, found["second"].latest) == (150.0, 300.0)


def test_c2_without_max_run_seconds_nobody_can_say():
    world = World(nodes(1))
    world.run("x", gang(guarantee=True), [("n000", range(8))])
    world.add("t", gang())
    assert estimate(world.cluster, world.queue, world.table, ["t"], now=0.0) == {}


def test_C16_how_many_would_have_to_go_is_told():
    world = World(nodes(2))
    for number in range(2):
        world.run(f"v{number}", gang(resource_type=IDLE), [(f"n00{number}", range(8))])
    found = evaluate_in(world.cluster, world.queue, world.table, Waiting("t", gang(2), 0.0), now=0.0)
    assert (found.starts_now, found.evicts) == (False, 2)
    assert found.reason.code is GangWait.WAITING_FOR_PREEMPTED


def test_P10_every_reason_has_words_with_numbers():
    for code in GangWait:
        reason = GangReason(code, "h100x8", 5, 3, 7, 2, behind="b", until=60.0, pool="pool")
        blocked, unblock = sentence(gang(), reason)
        assert blocked
        assert unblock
    reason = GangReason(GangWait.WAITING_FOR_QUOTA, "h100x8", 5, 3, 7, pool="pool")
    assert sentence(gang(), reason) == (
        "needs 5 units; project p (reserved, pool pool, spec h100x8) may take 3 more now of at most 7",
        "2 units returned, or a higher quota",
    )


def test_c3_the_types_are_tried_in_the_order_of_their_rank():
    world = World([node("a")])
    for kind in reversed(ResourceType):
        world.add(kind.value, gang(resource_type=kind), queued_at=0)
    assert world.step() == ["reserved"]
