"""What a reader is told of those who are in a task's way: numbers and times, and no names."""

from policy.gangs.gang_worlds import IDLE, ONDEMAND, RESERVED, SPOT, World, gang, nodes
from trainshed.model.resources import Amounts
from trainshed.policy.cluster import Held
from trainshed.policy.gangs.beside import beside


def said(world, key, now=100.0):
    return beside(world.cluster, world.table, key, now=now, min_run_seconds=600.0)


def test_P10_an_empty_pool_has_nobody_in_the_way():
    assert said(World(nodes(1)), gang(resource_type=ONDEMAND)) == ""


def test_P10_the_protection_of_a_short_run_is_told_with_its_end_and_its_setting():
    world = World(nodes(2))
    world.run("secret", gang(resource_type=IDLE), [("n000", range(8))], admitted_at=0.0)
    world.run("other", gang(resource_type=SPOT), [("n001", range(8))], admitted_at=50.0)
    words = said(world, gang(resource_type=ONDEMAND))
    assert words == (
        "2 tasks (1 spot, 1 idle) run in the pool; 2 of them rank lower but are in the first 600 s of a run,"
        " which are protected (training.min_run_seconds): the first may have to make room from"
        " 1970-01-01T00:10:00+00:00 on"
    )
    assert "1 of them ranks lower but is in" in said(world, gang(resource_type=SPOT))
    assert "protected" not in said(world, gang(resource_type=ONDEMAND), now=651.0)


def test_P10_where_nobody_ranks_lower_that_is_told_too():
    world = World(nodes(1))
    world.run("a", gang(resource_type=RESERVED, guarantee=True), [("n000", range(8))], admitted_at=0.0)
    words = said(world, gang(resource_type=ONDEMAND))
    assert words == "1 task (1 reserved) runs in the pool; none of them may be ended for it"


def test_P10_runner_trials_on_the_same_nodes_are_counted():
    held = Held("h", "t", "p", "n000", (0,), Amounts(gpus=1), None)
    assert said(World(nodes(1), others=(held,)), gang()) == "1 Runner Trial runs in the pool"
