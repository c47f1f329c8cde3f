"""What passes keep for the next one changes no answer: after any change one decides as from scratch."""

from copy import deepcopy
from dataclasses import fields, replace
from random import Random

import pytest

from policy.gangs.gang_worlds import (
    A100,
    H100,
    IDLE,
    ONDEMAND,
    RESERVED,
    SPOT,
    World,
    gang,
    need,
    node,
    quota,
)
from trainshed.model.resources import Amounts
from trainshed.model.training.spec import Role
from trainshed.policy.cluster import Held
from trainshed.policy.gangs import Choice, GangCluster, GangDecision, GangQueue, GangRules, decide
from trainshed.policy.gangs.measure import time_gang_passes

STEPS = 200
NODES = 30


class Changes:
    """A site of middle size, and random changes of everything that a pass looks at."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.places = {place.node.name: place for place in (self.place(n) for n in range(NODES))}
        rows = [
            *quota(self.random.choice((40, 400)), kind=ONDEMAND),
            *quota(40, kind=SPOT),
            *quota(30, project="p", kind=RESERVED, cohort="all"),
            *quota(20, project="q", kind=RESERVED, cohort="all", lending_limit=10),
            *quota(10, project="r", kind=RESERVED),
        ]
        rules = GangRules(min_run_seconds=self.random.choice((0.0, 50.0)), overhead_seconds=5.0)
        self.world = World(self.places.values(), quotas=rows, rules=rules)
        self.number = 0

    def place(self, number: int):
        model = H100 if number % 3 else A100
        pool = "pool" if number % 7 else "side"
        return node(f"n{number:03d}", self.random.choice((0, 4, 8, 8, 8)), model, pool, f"rack-{number % 4}")

    def arrival(self) -> None:
        random = self.random
        kind = random.choice((RESERVED, RESERVED, ONDEMAND, SPOT, IDLE))
        gpus, model = random.choice((1, 2, 4, 8)), random.choice(("H100", "A100"))
        workers = need(random.choice((1, 1, 2, 4, 9)), gpus, f"x{gpus}", model=model)
        head = replace(need(1, 0, "c4", Role.HEAD, cpus=4), gpu_model=None)
        choices = [Choice((workers,)), Choice((head, workers)), Choice((replace(head, count=6),))]
        key = gang(
            project=random.choice("pqr"),
            pool=random.choice(("pool", "pool", "pool", "side")),
            resource_type=kind,
            priority=random.choice((100, 500, 900)),
            choices=tuple(random.sample(choices, random.choice((1, 1, 1, 2)))),
            max_run_seconds=random.choice((None, 20, 200, 2000)),
            excluded=frozenset(random.sample(sorted(self.places), random.choice((0, 0, 0, 2)))),
            spec_patience_seconds=random.choice((0, 30)),
        )
        self.number += 1
        later = self.world.now + 40 if random.random() < 0.1 else None
        self.world.add(f"t{self.number:04d}", key, not_before=later)

    def end(self) -> None:
        running = sorted(self.world.cluster.running)
        if running:
            self.world.end(self.random.choice(running))

    def withdrawal(self) -> None:
        if self.world.queue.tasks:
            self.world.queue.remove(self.random.choice(sorted(self.world.queue.tasks)))

    def node(self) -> None:
        """One goes, comes, comes back or changes."""
        name = f"n{self.random.randrange(NODES + 3):03d}"
        if self.random.random() < 0.5:
            self.places.pop(name, None)
        else:
            self.places[name] = self.place(int(name[1:]))
        self.world.cluster.replace(self.places.values(), self.world.cluster.cordoned)

    def cordon(self) -> None:
        self.world.cluster.cordon(self.random.sample(sorted(self.places), self.random.choice((0, 1, 3))))

    def runner_trial(self) -> None:
        cluster, random = self.world.cluster, self.random
        if cluster.others and random.random() < 0.5:
            cluster.release_other(random.choice(sorted(cluster.others)))
            return
        name = random.choice(sorted(self.places))
        gpus = tuple(range(min(2, len(self.places[name].node.gpus))))
        self.number += 1
        end = random.choice((None, self.world.now + 60))
        held = Held(f"o{self.number}", "trial", "p", name, gpus, Amounts(gpus=len(gpus), cpus=4), end)
        cluster.hold(held)

    def save(self) -> None:
        """A gang's row changes, not what it holds."""
        running = self.world.cluster.running
        if running:
            name = self.random.choice(sorted(running))
            self.world.cluster.admit(replace(running[name], checkpointed_at=self.world.now))

    def time(self) -> None:
        """Long enough now and then for what runs to be overdue."""
        self.world.now += self.random.choice((0.0, 0.5, 7.0, 60.0, 700.0))

    def one(self) -> None:
        several = (self.arrival,) * 5 + (self.end,) * 3 + (self.node, self.cordon, self.withdrawal)
        self.random.choice((*several, self.runner_trial, self.save, self.time, self.time))()

    def from_scratch(self) -> GangDecision:
        """What a pass says that knows nothing but what is so, and what the queue says was tried in vain."""
        world = self.world
        cluster = GangCluster(
            self.places.values(),
            cordoned=world.cluster.cordoned,
            running=world.cluster.running.values(),
            others=world.cluster.others.values(),
        )
        cluster.version = world.cluster.version
        queue = GangQueue(world.queue.tasks.values())
        queue.simulated = deepcopy(world.queue.simulated)
        table = type(world.table)(world.table.rows)
        return decide(cluster, queue, table, now=world.now, rules=world.rules)


@pytest.mark.parametrize("seed", range(8))
def test_after_random_changes_a_pass_decides_as_one_from_scratch(seed):
    changes = Changes(seed)
    for step in range(STEPS):
        changes.one()
        expected = changes.from_scratch()
        changes.world.step()
        for each in fields(GangDecision):
            found = getattr(changes.world.decision, each.name)
            assert found == getattr(expected, each.name), (seed, step, each.name)


def test_the_changes_are_such_that_everything_happens():
    counts = dict.fromkeys(("admissions", "evictions", "plans", "reservations", "reasons"), 0)
    for seed in range(4):
        changes = Changes(seed)
        for _ in range(STEPS):
            changes.one()
            changes.world.step()
            for name in counts:
                counts[name] += len(getattr(changes.world.decision, name))
    assert all(counts.values()), counts


def test_a_gpu_that_two_name_is_free_when_both_have_gone():
    """Whichever ends first, and although the rest of what it held is free at once."""
    for first, second in (("a", "b"), ("b", "a")):
        world = World([node("n", 2)])
        for name in "ab":
            world.run(name, gang(1, 1), [("n", [0])])
        world.end(first)
        assert world.cluster.room.masks == [0b10]
        world.end(second)
        assert world.cluster.room.masks == [0b11]
        assert world.cluster.room.cpus == [128]


def test_what_ends_on_a_closed_node_is_free_once_the_node_opens():
    world = World([node("n", 2)])
    world.run("a", gang(1, 1), [("n", [0])])
    world.cluster.cordon({"n"})
    world.end("a")
    assert world.cluster.room.masks == [0]
    world.cluster.cordon(())
    assert world.cluster.room.masks == [0b11]
    assert world.cluster.room.cpus == [128]


def test_passes_after_one_change_are_fast():
    """The bounds are several times the figures that ``make bench`` reports, for slow and busy machines."""
    times = time_gang_passes(nodes=1000, pending=50_000, repeat=5)
    assert times.placed > 500
    assert times.full < 2.0
    assert max(times.release, times.arrival, times.node) < 0.1
