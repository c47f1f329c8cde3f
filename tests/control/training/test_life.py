"""The life of a gang from its admission to its release, in virtual time."""

from __future__ import annotations

import json

from support.gangs import task
from trainshed.engines.fake import Script
from trainshed.model.states import AllocationState, State


def test_C27_two_replicas_are_placed_start_together_succeed_and_are_released(site):
    d = site(default=Script(start_after=1.0, run_seconds=5.0))
    job = d.create(task(workers=1, specs=["h100x4"]))
    d.step()
    assert d.trial(job).state is State.PREPARING
    assert sorted(d.nodes_of(job)) == ["n1", "n2"]
    facts = d.settle(job)
    assert facts.trial.state is State.SUCCEEDED
    assert [replica.state for replica in d.replicas(job)] == ["Succeeded", "Succeeded"]
    [held] = facts.allocations[facts.trial.id]
    assert held.state is AllocationState.RELEASED
    assert set(json.loads(held.evidence)) >= {"replica 0: processes", "replica 1: processes"}
    assert facts.codes() == [
        "SUBMITTED",
        "QUEUED",
        "ADMITTED",
        "PLACED",
        "READY",
        "READY",
        "STARTED",
        "ENDED",
        "FINISHED",
        "RELEASED",
    ]
    assert not d.engine.live()
