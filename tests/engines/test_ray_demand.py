"""C51: how many workers the load of a Ray cluster calls for, and when one may go."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainshed.jobkit import ray_demand, reporting
from trainshed.jobkit.ray_scaling import Scaler

SHAPE = {"CPU": 4.0, "GPU": 1.0, "memory": 100.0}


def node(address="a", free=None, status="RUNNING", idle=0.0):
    free = SHAPE if free is None else free
    return {
        "id": f"id-{address}",
        "address": address,
        "status": status,
        "idle_seconds": idle,
        "total": dict(SHAPE),
        "available": dict(free),
    }


def state(*nodes, pending=(), groups=(), constraints=()):
    return {
        "nodes": list(nodes),
        "pending": list(pending),
        "groups": list(groups),
        "constraints": list(constraints),
    }


@pytest.mark.parametrize(
    ("found", "most", "expected"),
    [
        pytest.param(state(node()), 9, 0, id="nothing waits"),
        pytest.param(state(node(), pending=[({"CPU": 1.0}, 4)]), 9, 0, id="it fits on what is there"),
        pytest.param(state(node(), pending=[({"CPU": 1.0}, 5)]), 9, 1, id="one too many"),
        pytest.param(state(node(free={}), pending=[({"CPU": 1.0}, 9)]), 9, 3, id="as many as fit on one"),
        pytest.param(state(node(free={}), pending=[({"CPU": 1.0}, 10**9)]), 5, 5, id="no more than may come"),
        pytest.param(state(pending=[({"CPU": 8.0}, 1)]), 9, 0, id="a new one could not run it either"),
        pytest.param(state(pending=[({"CPU_group_1": 1.0}, 1)]), 9, 0, id="waits for its own bundle"),
        pytest.param(state(node(free={}), pending=[({}, 50)]), 9, 0, id="takes nothing: the head runs it"),
        pytest.param(state(pending=[({"GPU": 0.25}, 8)]), 9, 2, id="shares of GPUs"),
        pytest.param(
            state(node(status="DRAINING"), pending=[({"CPU": 1.0}, 1)]), 9, 1, id="who goes takes nothing"
        ),
        pytest.param(state(node(status="DEAD"), pending=[({"CPU": 1.0}, 1)]), 9, 1, id="nor who is dead"),
        pytest.param(
            state(pending=[({"CPU": 3.0}, 2), ({"CPU": 1.0}, 2)]), 9, 2, id="small ones beside large ones"
        ),
        pytest.param(state(groups=[("SPREAD", [{"CPU": 2.0}] * 4)]), 9, 2, id="a placement group"),
        pytest.param(state(groups=[("STRICT_SPREAD", [{"CPU": 1.0}] * 3)]), 9, 3, id="each on its own node"),
        pytest.param(
            state(node(), groups=[("STRICT_SPREAD", [{"CPU": 1.0}] * 3)]),
            9,
            2,
            id="also on one that is there",
        ),
        pytest.param(
            state(node(free={"CPU": 1.0}), groups=[("STRICT_PACK", [{"CPU": 1.0}] * 3)]), 9, 1, id="on one"
        ),
        pytest.param(
            state(groups=[("STRICT_PACK", [{"CPU": 1.0}] * 5)]), 9, 0, id="on none: too large together"
        ),
        pytest.param(
            state(groups=[("STRICT_SPREAD", [{"CPU": 1.0}] * 5)]), 3, 0, id="a group comes whole or not"
        ),
        pytest.param(state(node(), constraints=[({"CPU": 1.0}, 12)]), 9, 2, id="a size that was asked for"),
        pytest.param(
            state(node(free={}), constraints=[({"CPU": 1.0}, 4)]), 9, 0, id="and is there, though it is busy"
        ),
    ],
)
def test_C51_so_many_more_would_run_what_waits(found, most, expected):
    assert ray_demand.missing(found, SHAPE, most) == expected


def test_C51_a_node_is_spared_unless_a_size_was_asked_for_that_needs_it():
    two = [node("a", free={}), node("b", status="IDLE", idle=99.0)]
    assert ray_demand.spares(state(*two), "id-b", SHAPE)
    assert not ray_demand.spares(state(*two, constraints=[({"CPU": 1.0}, 5)]), "id-b", SHAPE)


class Cluster:
    """What a head has of its workers, and what its scaler said and did."""

    def __init__(self, work: Path, least=1, most=4, idle=10.0, workers=(1,)):
        self.work = work
        self.there = {rank: f"w{rank}" for rank in workers}
        self.dismissed: list[int] = []
        self.asked: list[dict[str, object]] = []
        config = {
            "place": str(work),
            "head": "head",
            "scaling": {"least": least, "most": most, "idle_seconds": idle, "shape": SHAPE},
        }
        self.scaler = Scaler(config, "gcs", lambda: dict(self.there), self.dismiss)
        self.scaler._ask = self.asked.append  # type: ignore[method-assign]
        self.now = 1000.0

    def dismiss(self, rank: int) -> None:
        del self.there[rank]
        self.dismissed.append(rank)

    def look(self, *nodes, seconds=2.0, **rest) -> None:
        self.now += seconds
        known = [node("head", free={}), *nodes]
        self.scaler.look(state(*known, **rest), self.now)

    def said(self) -> list[tuple[int, list[int]]]:
        found, _ = reporting.said(str(self.work), 0)
        return [(each["data"]["wanted"], each["data"]["joined"]) for each in found]


@pytest.fixture
def work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_C51_what_waits_for_a_moment_is_no_load_and_what_lasts_is_asked_for_once(work):
    c = Cluster(work)
    busy = node("w1", free={})
    waits = [({"CPU": 4.0}, 2)]
    c.look(busy)
    c.look(busy, pending=waits)
    c.look(busy)
    assert c.said() == [(1, [1])]
    for _ in range(5):
        c.look(busy, pending=waits)
    assert c.said() == [(1, [1]), (3, [1])]


def test_C51_a_node_counts_before_its_worker_says_that_it_joined(work):
    c = Cluster(work)
    waits = [({"CPU": 4.0}, 1)]
    for _ in range(2):
        c.look(node("w1", free={}), pending=waits)
    c.look(node("w1", free={}), node("w3"))
    assert c.said() == [(1, [1]), (2, [1])]
    c.there[3] = "w3"
    c.look(node("w1", free={}), node("w3", free={}))
    assert c.said()[-1] == (2, [1, 3])


def test_C51_no_more_is_asked_for_than_may_come(work):
    c = Cluster(work, most=3)
    for _ in range(3):
        c.look(node("w1", free={}), pending=[({"CPU": 4.0}, 50)])
    assert c.said()[-1] == (3, [1])


def test_C51_who_was_idle_for_long_enough_goes_the_last_first_and_never_below_the_least(work):
    c = Cluster(work, workers=(1, 3, 4))
    every = [node(f"w{rank}", status="IDLE", idle=500.0) for rank in (1, 3, 4)]
    c.look(*every)
    c.look(*every, seconds=5.0)
    assert c.asked == [], "it just came"
    c.look(*every, seconds=10.0)
    c.look(*every)
    assert c.asked == [{"drain": "id-w4"}]
    c.scaler._drained({"drained": "id-w4", "accepted": True})
    assert c.dismissed == [4]
    assert c.said()[-1] == (2, [1, 3]), "said before it is told to go"
    c.look(*every[:2])
    c.scaler._drained({"drained": "id-w3", "accepted": True})
    for _ in range(3):
        c.look(every[0], seconds=60.0)
    assert c.dismissed == [4, 3]
    assert [each["drain"] for each in c.asked] == ["id-w4", "id-w3"]


def test_C51_who_is_busy_or_needed_stays(work):
    c = Cluster(work, workers=(1, 3), least=0)
    idle = node("w3", status="IDLE", idle=500.0)
    for _ in range(3):
        c.look(node("w1", free={}), idle, seconds=30.0, pending=[({"CPU": 4.0}, 3)])
        c.look(node("w1", free={}), idle, seconds=30.0, constraints=[({"CPU": 1.0}, 12)])
        c.look(node("w1", free={}), node("w3", status="RUNNING"), seconds=30.0)
        c.look(node("w1", free={}), node("w3", status="IDLE", idle=9.0), seconds=30.0)
    assert c.asked == []


def test_C51_a_node_that_ray_does_not_let_go_stays_and_is_asked_later(work):
    c = Cluster(work, workers=(1, 3))
    every = [node("w1", free={}), node("w3", status="IDLE", idle=500.0)]
    c.look(*every)
    c.look(*every, seconds=20.0)
    c.scaler._drained({"drained": "id-w3", "accepted": False, "why": "a task came"})
    c.scaler._drain_at = c.now + 30.0
    c.look(*every)
    assert (len(c.asked), c.dismissed) == (1, [])
    c.look(*every, seconds=40.0)
    assert len(c.asked) == 2


def test_C51_what_is_said_is_bounded(work):
    c = Cluster(work, most=10_000)
    for number in range(2000):
        c.there = {rank: f"w{rank}" for rank in range(1, 2 + number % 2)}
        c.look(*(node(address) for address in c.there.values()), seconds=1.0)
    assert 1000 <= len(c.said()) <= 1040
    assert json.dumps(c.said()[-1])
