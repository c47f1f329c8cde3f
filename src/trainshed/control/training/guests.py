"""Packed projects on clusters of the catalogue: gangs of one, placed with the others by the pass over gangs.

They are guaranteed (c4): within own units of their project and nobody's victim, so nothing that evicts has to
know them. Who waits, and what is recorded of one that got its place, is told by `trainshed.control.scripts`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from trainshed.control.training.holding import OVERDUE_SECONDS, RELEASE_SECONDS
from trainshed.control.training.sites import Sites
from trainshed.control.training.yards import Yard
from trainshed.model.resources import Amounts
from trainshed.model.states import AllocationState
from trainshed.model.training.catalog import Catalog
from trainshed.model.training.claims import Claim
from trainshed.model.training.spec import Role
from trainshed.policy.gangs.snapshot import (
    Admission,
    Choice,
    GangClass,
    Part,
    ReplicaNeed,
    Running,
    SourceUnits,
    Waiting,
)
from trainshed.policy.gangs.words import sentence
from trainshed.store.database import Connection
from trainshed.store.records import Allocation


class Guests(Protocol):
    """The packed projects of clusters, for the controller's one thread."""

    def waiting(self, connection: Connection, catalog: Catalog) -> Sequence[tuple[str, Waiting]]:
        """Those that wait for a place, each with its cluster."""
        ...

    def place(
        self,
        connection: Connection,
        admission: Admission,
        sources: Sequence[SourceUnits],
        site: str,
        model: str,
        *,
        simulated: bool,
        now: float,
    ) -> Allocation | None:
        """Open the Attempt of one that was admitted; ``None`` where it does not wait there any more."""
        ...


def is_guest(allocation: Allocation) -> bool:
    """Whether it is a packed project's on a cluster."""
    return allocation.parts is None and allocation.sources is not None


def guest_class(
    claim: Claim, project: str, amounts: Amounts, gpu_model: str | None, priority: int
) -> GangClass:
    """The class of equal packed projects: one replica of one unit."""
    need = ReplicaNeed(Role.MASTER, 1, claim.spec, 1, amounts, gpu_model)
    return GangClass(
        project=project,
        pool=claim.pool,
        resource_type=claim.resource_type,
        priority=priority,
        choices=(Choice((need,)),),
        guarantee=True,
    )


def claim_text(claim: Claim, sources: Sequence[SourceUnits]) -> str:
    """How `Allocation.sources` keeps out of whose units one runs."""
    counted = [[each.spec, each.own, each.borrowed, each.supplement] for each in sources]
    return json.dumps({**claim.as_dict(), "sources": counted})


def guest_running(allocation: Allocation, grace_seconds: float) -> Running:
    """One as a placement pass sees it, from its admission until its release is confirmed."""
    claim = Claim.of(json.loads(allocation.sources or "{}"))
    amounts = allocation.amounts
    going = None if allocation.state is AllocationState.HELD else allocation.held_at
    leaves = grace_seconds + OVERDUE_SECONDS + RELEASE_SECONDS
    part = Part(0, Role.MASTER, allocation.node, allocation.indices, claim.spec, 1, amounts)
    return Running(
        id=allocation.id,
        key=guest_class(claim, allocation.project_id, amounts, allocation.gpu_model or None, 0),
        parts=(part,),
        admitted_at=allocation.held_at,
        queued_at=allocation.held_at,
        trial_id=allocation.trial_id,
        expected_end=None
        if allocation.state is AllocationState.LEAKED
        else allocation.held_at + allocation.timeout_seconds + leaves,
        evicted_at=going,
        gone_by=None if going is None else going + leaves,
    )


class GuestBook:
    """Packed projects in the queues and clusters of the sites. For the controller's one thread."""

    def __init__(
        self, guests: Guests | None, sites: Sites, yards: Mapping[str, Yard], grace_seconds: float
    ) -> None:
        self.guests = guests
        self.held: dict[str, Allocation] = {}
        """What they hold, until the release of it is confirmed."""
        self._sites = sites
        self._yards = yards
        self._grace = grace_seconds
        self._tasks: dict[str, tuple[str, Waiting]] = {}
        """Those that stand in a queue, with the site."""
        self._stranded: dict[str, str] = {}
        """Those whose cluster is not connected, with the cluster."""

    def forget(self) -> None:
        """The next `follow` begins anew, with empty queues and clusters."""
        self.held, self._tasks, self._stranded = {}, {}, {}

    def any(self, connection: Connection, catalog: Catalog) -> bool:
        """Whether one waits or holds something."""
        if self._tasks or self.held:
            return True
        return self.guests is not None and bool(self.guests.waiting(connection, catalog))

    def follow(self, connection: Connection, held: Sequence[Allocation], catalog: Catalog) -> None:
        """Bring queues and clusters up to the rows."""
        self._follow_held({allocation.id: allocation for allocation in held})
        if self.guests is None:
            return
        waiting = {one.id: (cluster, one) for cluster, one in self.guests.waiting(connection, catalog)}
        for trial_id in self._tasks.keys() - waiting.keys():
            self._leave(trial_id)
        self._stranded = {}
        for trial_id, (cluster, one) in waiting.items():
            site = self._sites.of_cluster(cluster)
            yard = None if site is None else self._yards.get(site.key)
            if yard is None:
                self._leave(trial_id)
                self._stranded[trial_id] = cluster
            if yard is None or self._tasks.get(trial_id) == (yard.site.key, one):
                continue
            self._leave(trial_id)
            yard.queue.add(one)
            yard.stale = True
            self._tasks[trial_id] = yard.site.key, one

    def _follow_held(self, current: dict[str, Allocation]) -> None:
        for gone in self.held.keys() - current.keys():
            yard = self._yards.get(self.held[gone].engine)
            if yard is not None:
                yard.cluster.release(gone)
                yard.stale = True
        for key, allocation in current.items():
            yard = self._yards.get(allocation.engine)
            if yard is not None and self.held.get(key) != allocation:
                yard.cluster.admit(guest_running(allocation, self._grace))
                yard.stale = True
        self.held = current

    def _leave(self, trial_id: str) -> None:
        key, _ = self._tasks.pop(trial_id, ("", None))
        if (yard := self._yards.get(key)) is not None:
            yard.queue.remove(trial_id)
            yard.stale = True

    def admitted(self, yard: Yard, placed: Sequence[Allocation]) -> None:
        """What was stored is true here as well, without reading it again."""
        for held in placed:
            self._tasks.pop(held.trial_id, None)
            self.held[held.id] = held
            yard.queue.remove(held.trial_id)
            yard.cluster.admit(guest_running(held, self._grace))

    def why_waits(self, trial_id: str) -> str | None:
        """Why one was not placed by the newest pass, in a sentence (P10)."""
        if (cluster := self._stranded.get(trial_id)) is not None:
            return f"waits for cluster {cluster}, which is not connected"
        key, waiting = self._tasks.get(trial_id, ("", None))
        yard = self._yards.get(key)
        if waiting is None or yard is None or yard.decision is None:
            return None
        if not yard.site.answers:
            return "waits for its cluster, which does not answer"
        # Who comes first may be nobody's business who sees this Job (C5).
        blocked, _ = sentence(waiting.key, replace(yard.decision.reason(waiting), behind=None))
        return blocked
