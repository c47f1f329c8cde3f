"""C51: how a gang that runs grows and shrinks: what it asks for, may take, and whom it never delays."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy.gangs.gang_worlds import IDLE, ONDEMAND, RESERVED, SPOT, World, gang, nodes, quota
from support.examples import examples
from trainshed.policy.gangs import GangWait, Growing, SourceUnits, decide
from trainshed.policy.gangs.growth import Bounds, Scaling, with_units, without_units
from trainshed.policy.gangs.invariants import check_booking, check_quotas

FIVE = Bounds(1, 5)


def known(wanted, *joined, **rest):
    return Scaling(wanted, frozenset(joined), **rest)


def test_C51_it_wants_more_until_so_many_are_there_or_on_their_way():
    assert known(3, 1).wants_more([1], FIVE)
    assert known(3, 1).wants_more([1, 3], FIVE)
    assert not known(3, 1).wants_more([1, 3, 4], FIVE)
    assert not known(1, 1).wants_more([1], FIVE)
    assert not Scaling().wants_more([1], FIVE)


def test_C51_who_left_is_not_replaced_before_the_head_says_so():
    assert not known(2, 1, 3).wants_more([1], FIVE)
    assert known(2, 1).wants_more([1], FIVE)


def test_C51_a_request_is_bounded_by_the_range():
    asked = Scaling().asked(900, [1], FIVE)
    assert asked.wanted == 5
    assert Scaling().asked(0, [1], FIVE).wanted == 1
    assert not replace(asked, wanted=900).wants_more([1, 2, 3, 4, 5], FIVE)


def test_C51_conservative_has_at_most_as_many_on_their_way_as_the_cluster_has_nodes():
    careful = Bounds(0, 50, conservative=True)
    scaling, there, sizes = known(50), [], []
    while len(there) < 50:
        fresh = list(there)
        while scaling.wants_more(fresh, careful):
            fresh.append(len(fresh) + 1)
        sizes.append(len(fresh) - len(there))
        there = fresh
        scaling = scaling.asked(50, there, careful)
    assert sizes == [1, 2, 4, 8, 16, 19]


def test_C51_pauses_after_failures_double_and_end_when_somebody_joins():
    scaling, pauses = known(3, 1), []
    for _ in range(7):
        scaling = scaling.failed(1000.0)
        pauses.append(scaling.not_before - 1000.0)
    assert pauses == [10, 20, 40, 80, 160, 300, 300]
    assert scaling.asked(3, [1], FIVE).failures == 7
    assert scaling.asked(3, [1, 4], FIVE).failures == 0


@given(
    st.integers(0, 9),
    st.frozensets(st.integers(0, 9)),
    st.integers(0, 3),
    st.sampled_from(["", "WaitingForQuota"]),
)
def test_C51_what_is_stored_is_read_again(wanted, joined, failures, waits):
    scaling = Scaling(wanted, joined, failures, 5.0, waits, "because")
    assert Scaling.of(scaling.as_dict()) == scaling


def test_C51_units_come_and_go_and_what_is_lent_goes_first():
    before = (SourceUnits("a", 2, 0, 0),)
    after = with_units(before, [SourceUnits("a", 0, 1, 0), SourceUnits("b", 0, 0, 1)])
    assert after == (SourceUnits("a", 2, 1, 0), SourceUnits("b", 0, 0, 1))
    assert without_units(after, "a", 1) == (SourceUnits("a", 2, 0, 0), SourceUnits("b", 0, 0, 1))
    assert without_units((SourceUnits("a", 2, 1, 1),), "a", 3) == (SourceUnits("a", 1, 0, 0),)


def grow(world, *growing):
    """One pass with gangs that would grow."""
    return decide(world.cluster, world.queue, world.table, now=world.now, rules=world.rules, growing=growing)


def one(gpus=1, **rest):
    return gang(1, gpus, **rest)


def test_C51_it_takes_room_and_units_like_any_other_replica():
    world = World(nodes(1, 4), quotas=quota(3))
    world.run("ray", gang(2, 1), [("n000", [0]), ("n000", [1])])
    decision = grow(world, Growing("ray", one()))
    [growth] = decision.growths
    assert (growth.id, growth.parts[0].gpus, growth.sources[0].own) == ("ray", (2,), 1)
    assert decision.admissions == ()
    decision = grow(world, Growing("ray", one()), Growing("other", one()))
    assert [each.id for each in decision.growths] == ["ray"]
    assert decision.growth_reasons["other"].code is GangWait.WAITING_FOR_QUOTA


def test_C51_who_waits_and_fits_comes_first():
    world = World(nodes(1, 4))
    world.run("ray", gang(2, 1), [("n000", [0]), ("n000", [1])])
    world.add("waits", gang(2, 1, resource_type=SPOT))
    decision = grow(world, Growing("ray", one()))
    assert [each.id for each in decision.admissions] == ["waits"]
    assert decision.growth_reasons["ray"].code is GangWait.WAITING_FOR_RESOURCES


def test_C51_what_is_reserved_for_somebody_is_not_taken():
    world = World(nodes(1, 4))
    world.run("ray", gang(2, 1), [("n000", [0]), ("n000", [1])], expected_end=world.now + 100)
    world.add("waits", gang(1, 4))
    decision = grow(world, Growing("ray", one(max_run_seconds=5000)))
    assert decision.growths == ()
    assert decision.growth_reasons["ray"].code is GangWait.BEHIND
    assert decision.growth_reasons["ray"].behind == "waits"


def test_C51_units_that_the_first_of_a_quota_waits_for_are_not_taken():
    world = World(nodes(1, 8), quotas=quota(3))
    world.run("ray", gang(2, 1), [("n000", [0]), ("n000", [1])])
    world.add("waits", gang(3, 1))
    decision = grow(world, Growing("ray", one()))
    assert decision.growths == ()
    assert decision.growth_reasons["ray"].code is GangWait.BEHIND


def test_C51_growing_ends_nobody():
    world = World(nodes(1, 4))
    world.run("ray", gang(2, 1, resource_type=RESERVED), [("n000", [0]), ("n000", [1])])
    world.run("spot", gang(2, 1, resource_type=SPOT), [("n000", [2]), ("n000", [3])])
    decision = grow(world, Growing("ray", one(resource_type=RESERVED)))
    assert (decision.evictions, decision.growths) == ((), ())


def test_C51_a_grown_gang_counts_whole_for_whom_it_has_to_make_room():
    world = World(nodes(1, 4))
    world.run("ray", gang(4, 1, resource_type=IDLE), [("n000", [index]) for index in range(4)])
    world.add("first", gang(1, 4, resource_type=RESERVED))
    world.step()
    assert world.evicted() == ["ray"]


@pytest.mark.parametrize("resource_type", [RESERVED, ONDEMAND, SPOT, IDLE])
@given(seed=st.integers(0, 10**6))
@settings(max_examples=examples(40), deadline=None)
def test_C51_P5_whatever_grows_shrinks_waits_and_ends_no_quota_is_exceeded(resource_type, seed):
    random = Random(seed)
    world = World(nodes(3, 4), quotas=quota(random.randint(2, 9), kind=resource_type))
    for number in range(40):
        world.now += 10.0
        match random.randint(0, 4):
            case 0:
                world.add(f"t{number}", one(random.choice([1, 2]), resource_type=resource_type))
            case 1 if world.cluster.running:
                world.end(random.choice(sorted(world.cluster.running)))
            case 2 if world.cluster.running:
                shrink(world, random.choice(sorted(world.cluster.running)))
            case _:
                world.step()
        live = sorted(world.cluster.running)
        asking = [Growing(name, _more(world, name)) for name in live if random.random() < 0.7]
        decision = grow(world, *asking)
        for growth in decision.growths:
            running = world.cluster.running[growth.id]
            fresh = replace(growth.parts[0], rank=len(running.parts))
            world.cluster.admit(_of(running, (*running.parts, fresh)))
        check_booking(world.cluster.layout.nodes, world.cluster.running.values(), ())
        check_quotas(world.table, world.cluster.running.values())


def _more(world, name):
    key = world.cluster.running[name].key
    return replace(key, choices=(gang(1, key.choices[0].needs[0].amounts.gpus).choices[0],))


def _of(running, parts):
    need = running.key.choices[0].needs[0]
    key = replace(
        running.key, choices=(replace(running.key.choices[0], needs=(replace(need, count=len(parts)),)),)
    )
    return replace(running, key=key, parts=parts)


def shrink(world, name):
    running = world.cluster.running[name]
    if len(running.parts) > 1:
        world.cluster.admit(_of(running, running.parts[:-1]))
