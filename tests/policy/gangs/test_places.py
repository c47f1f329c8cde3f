"""Where gangs go: exact where it says so, whole, close together; and quotas in their corners."""

from itertools import combinations_with_replacement
from random import Random

import pytest

from policy.gangs.gang_worlds import A100, IDLE, RESERVED, SPOT, World, gang, need, node, nodes, quota
from trainshed.model.training.spec import Role
from trainshed.policy.gangs import (
    Choice,
    GangQueue,
    GangRules,
    GangWait,
    Part,
    Plan,
    QuotaTable,
    Snapshot,
    Waiting,
    decide,
    decide_snapshot,
)
from trainshed.policy.gangs.cluster import GangCluster


def by_hand(free, head_cpus, replicas, gpus, cpus):
    """Whether a head (CPUs only) and equal replicas fit, by trying every node for the head."""
    for head in range(len(free)):
        if free[head][1] < head_cpus:
            continue
        left = [(g, c - (head_cpus if number == head else 0)) for number, (g, c) in enumerate(free)]
        if sum(min(g // gpus, c // cpus) for g, c in left) >= replicas:
            return True
    return False


def test_C27_a_head_and_its_workers_fit_exactly_where_they_can():
    random = Random(5)
    seen = set()
    for _ in range(600):
        sizes = [(random.choice((2, 4, 8)), random.randint(2, 20)) for _ in range(random.randint(1, 4))]
        gpus, cpus = random.choice((1, 2, 4)), random.randint(1, 6)
        replicas, head = random.randint(1, 6), random.randint(1, 8)
        world = World([node(f"n{i}", g, cpus=c) for i, (g, c) in enumerate(sizes)])
        workers = need(replicas, gpus, cpus=cpus, memory_mb=1)
        choice = Choice((need(1, 0, "c", Role.HEAD, model=None, cpus=head, memory_mb=1), workers))
        world.add("ray", gang(choices=(choice,)))
        expected = by_hand(sizes, head, replicas, gpus, cpus)
        assert (world.step() == ["ray"]) is expected, (sizes, gpus, cpus, replicas, head)
        seen.add(expected)
    assert seen == {True, False}


def test_C27_equal_replicas_fit_exactly_where_they_can():
    for sizes in combinations_with_replacement((1, 2, 3, 4, 8), 3):
        for gpus in (1, 2, 3, 4):
            fits = sum(size // gpus for size in sizes)
            for replicas in {max(1, fits), fits + 1}:
                world = World([node(f"n{i}", size) for i, size in enumerate(sizes)])
                world.add("t", gang(replicas, gpus))
                assert (world.step() == ["t"]) is (replicas <= fits), (sizes, gpus, replicas)


def test_a_gang_that_fits_on_one_node_takes_the_tightest():
    world = World([node("a"), node("b", 4), node("c", 2)])
    world.add("t", gang(3, 1))
    world.step()
    assert {part.node for part in world.cluster.running["t"].parts} == {"b"}


def test_a_gang_stays_in_one_rack_where_one_has_room():
    racks = [node(f"n{i}", rack="ab"[i % 2]) for i in range(6)]
    world = World(racks)
    world.run("x", gang(guarantee=True), [("n0", range(8))])
    world.add("t", gang(3))
    world.step()
    assert [part.node for part in world.cluster.running["t"].parts] == ["n1", "n3", "n5"]


def test_one_gang_has_gpus_of_one_model():
    world = World([node("a", 4), node("b", 4, A100)])
    world.add("t", gang(choices=(Choice((need(2, 4, model="NVIDIA"),)),)))
    world.add("u", gang(choices=(Choice((need(1, 4, model="A100"),)),)))
    assert world.step() == ["u"]
    assert world.reason("t").code is GangWait.NO_MATCHING_SPEC


def test_ranks_are_in_order_of_nodes_and_the_master_is_the_first():
    world = World(nodes(2))
    world.add("t", gang(choices=(Choice((need(1, 4, role=Role.MASTER), need(3, 4))),)))
    world.step()
    parts = world.cluster.running["t"].parts
    assert [(part.rank, part.role, part.node) for part in parts] == [
        (0, Role.MASTER, "n000"),
        (1, Role.WORKER, "n000"),
        (2, Role.WORKER, "n001"),
        (3, Role.WORKER, "n001"),
    ]
    assert parts[0].gpus == (0, 1, 2, 3)


def test_C19_the_submitter_takes_room_and_no_quota():
    submitter = need(1, 0, "", Role.SUBMITTER, units=0, model=None, cpus=1)
    choice = Choice((need(1, 8), submitter.__class__(**{**_fields(submitter), "charged": False})))
    assert choice.units == (("h100x8", 1),)
    world = World(nodes(1), quotas=quota(1))
    world.add("ray", gang(choices=(choice,)))
    assert world.step() == ["ray"]


def _fields(one):
    return {name: getattr(one, name) for name in one.__dataclass_fields__}


def test_c3_idle_tasks_keep_off_units_that_are_not_lent():
    rows = (*quota(2, "p", RESERVED, spec="h100x8", cohort="c", lending_limit=0),)
    world = World(nodes(4), quotas=rows)
    for number in range(4):
        world.add(f"i{number}", gang(resource_type=IDLE))
    assert world.step() == ["i0", "i1"]
    reason = world.reason("i2")
    assert (reason.code, reason.limit) == (GangWait.WAITING_FOR_QUOTA, 2)


def test_c3_a_supplemented_gang_evicts_nobody():
    world = World(nodes(2), quotas=(*quota(1, "p", RESERVED), *quota(9, "*", SPOT)))
    world.run("spot", gang(2, resource_type=SPOT), [("n000", range(8)), ("n001", range(8))])
    world.add("plus", gang(2, idle_supplement=True))
    assert world.step() == []
    assert world.evicted() == []


def test_C23_a_project_without_a_quota_has_none():
    world = World(nodes(1), quotas=quota(1, "p"))
    world.add("t", gang(project="stranger"))
    world.step()
    assert (world.reason("t").code, world.reason("t").limit) == (GangWait.EXCEEDS_MAX_QUOTA, 0)


def test_P11_small_tasks_of_a_project_do_not_overtake_its_large_one_for_ever():
    world = World(nodes(8), quotas=quota(4))
    for number in range(3):
        world.add(f"s{number}", gang(), queued_at=number)
    world.step()
    world.add("large", gang(4), queued_at=10)
    world.add("small", gang(), queued_at=11)
    assert world.step(20) == []
    assert (world.reason("small").code, world.reason("small").behind) == (GangWait.BEHIND, "large")


def test_C36_a_plan_survives_a_restart_as_json():
    plan = Plan(0, (Part(0, Role.MASTER, "a", (0, 1), "s", 2, need(1, 2).amounts),), ("v",), 1.0, 2.0)
    assert Plan.of(plan.as_dict()) == plan


@pytest.mark.parametrize("seed", range(12))
def test_a_snapshot_gives_the_same_decision_as_a_state_kept_up_to_date(seed):
    random = Random(seed)
    rules = GangRules(overhead_seconds=0.0)
    world = World(nodes(6), quotas=quota(random.randint(3, 20)), rules=rules)
    alive = []
    for number in range(60):
        if random.random() < 0.6 or not alive:
            key = gang(
                random.randint(1, 3), random.choice((1, 2, 4, 8)), max_run_seconds=random.choice((None, 50))
            )
            world.add(f"t{number}", key, queued_at=number)
        elif world.cluster.running:
            world.end(random.choice(sorted(world.cluster.running)))
        snapshot = Snapshot(
            now=float(number),
            nodes=world.cluster.layout.nodes,
            quotas=world.table.rows,
            running=tuple(world.cluster.running.values()),
            waiting=tuple(world.queue.tasks.values()),
            rules=rules,
        )
        anew = decide_snapshot(snapshot)
        alive += world.step(number)
        assert (anew.admissions, anew.evictions) == (world.decision.admissions, world.decision.evictions)
        assert dict(anew.reasons) == dict(world.decision.reasons)
        assert anew.reservations == world.decision.reservations


def test_deciding_changes_nothing():
    world = World(nodes(2))
    world.run("v", gang(resource_type=IDLE), [("n000", range(8))])
    world.add("t", gang(2))
    before = (list(world.cluster.room.masks), dict(world.cluster.used), list(world.queue.tasks))
    first = decide(world.cluster, world.queue, world.table, now=5.0)
    assert before == (list(world.cluster.room.masks), dict(world.cluster.used), list(world.queue.tasks))
    assert decide(world.cluster, world.queue, world.table, now=5.0) == first


def test_equal_states_are_equal_however_they_came_about():
    one = GangCluster(nodes(2))
    other = World(nodes(2)).cluster
    assert one.room.masks == other.room.masks
    assert len(GangQueue([Waiting("a", gang(), 1.0)])) == 1
    assert QuotaTable(quota(3)).most(("p", RESERVED, "pool", "h100x8"), guarantee=False) == 3
