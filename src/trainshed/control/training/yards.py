"""What a placement pass works on at one site."""

from __future__ import annotations

from dataclasses import dataclass, field

from trainshed.control.training.sites import Site
from trainshed.policy.gangs.cluster import GangCluster
from trainshed.policy.gangs.queue import GangQueue
from trainshed.policy.gangs.snapshot import GangDecision


@dataclass(slots=True)
class Yard:
    """The gangs of one site: what waits for it and what is on it."""

    site: Site
    cluster: GangCluster
    queue: GangQueue = field(default_factory=GangQueue)
    decision: GangDecision | None = None
    looked_at: int = -1
    """The version of the cluster that the decision is about."""
    stale: bool = True
    places: tuple[object, ...] = ()
    asked: frozenset[str] = frozenset()
    """Allocations that would grow, as the decision saw them."""
