"""Packed projects on the clusters of the catalogue: what waits for them, and what got its place there.

As on this machine, a Job that was routed to a cluster waits in a queue: that of the training tasks, with one
unit out of its project's own quota (`trainshed.control.training.guests`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from trainshed.control.scripts.choosing import next_number, open_attempt
from trainshed.control.scripts.ground import Ground, Look, ScriptWork, locked_look, move
from trainshed.control.scripts.places import room_of
from trainshed.control.scripts.routing import known_capabilities
from trainshed.control.training.gangs import Gangs
from trainshed.control.training.guests import claim_text, guest_class
from trainshed.control.training.sites import Site
from trainshed.engines.contract import Engine, EngineError
from trainshed.engines.providers.contract import RemoteNotFound
from trainshed.engines.providers.engine_runs import Room
from trainshed.engines.providers.ray import RayProvider
from trainshed.model.resources import Node
from trainshed.model.scripts.spec import RAY
from trainshed.model.states import AllocationState, State
from trainshed.model.training.catalog import Catalog
from trainshed.model.training.claims import Claim, claim_of, cluster_of
from trainshed.policy.gangs.snapshot import Admission, SourceUnits, Waiting
from trainshed.store import attempts, queue, script_work
from trainshed.store.database import Connection, Database
from trainshed.store.records import Allocation, Trial
from trainshed.store.script_records import Script


def clusters_used(connection: Connection, catalog: Catalog) -> Mapping[str, str]:
    """The providers that are clusters of the catalogue, each with the cluster."""
    found = {}
    for name, able in known_capabilities(connection).items():
        if able.cluster is not None:
            cluster = cluster_of(catalog, able.cluster or None)
            if cluster is not None:
                found[name] = cluster
    return found


def waiting_guests(connection: Connection, catalog: Catalog) -> list[tuple[str, Waiting]]:
    """Packed projects that wait for a cluster, each with the cluster."""
    found = []
    for provider, cluster in clusters_used(connection, catalog).items():
        for trial, script in script_work.routed_to(connection, provider):
            if (one := _waiting(trial, script, cluster, catalog)) is not None:
                found.append((cluster, one))
    return found


def claim_of_script(trial: Trial, script: Script, cluster: str, catalog: Catalog) -> Claim | None:
    """The claim of one that was routed there; ``None`` where its project has no unit for it any more."""
    return claim_of(catalog, cluster, trial.project_id, script.gpu)


def _waiting(trial: Trial, script: Script, cluster: str, catalog: Catalog) -> Waiting | None:
    claim = claim_of_script(trial, script, cluster, catalog)
    spec = None if claim is None else catalog.spec(claim.spec)
    if claim is None or spec is None:
        return None
    key = guest_class(claim, trial.project_id, spec.amounts(), script.gpu, catalog.priority_value(None) or 0)
    return Waiting(trial.id, key, queued_at=trial.created_at, since=trial.updated_at)


class ClusterGuests:
    """Opens Attempts of packed projects on clusters; see `trainshed.control.training.guests.Guests`."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground

    def waiting(self, connection: Connection, catalog: Catalog) -> Sequence[tuple[str, Waiting]]:
        """Those that wait for a place, each with its cluster."""
        return waiting_guests(connection, catalog)

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
        """Open the Attempt, in the transaction that gives it its place (P5)."""
        look = locked_look(connection, admission.id, now)
        if look is None or look.trial.state is not State.QUEUED or look.script.provider != RAY:
            return None  # it was stopped, or routed elsewhere, since the pass looked
        [part] = admission.parts
        claim = Claim(admission.key.pool, part.spec, admission.key.resource_type)
        gpus = f", GPU {', '.join(map(str, part.gpus))}" if part.gpus else ""
        label = " (simulated)" if simulated else ""
        said = (
            f"Placed on {look.script.provider}: node {part.node}{gpus}{label}; one unit of {part.spec} in "
            f"pool {claim.pool} out of its project's {claim.resource_type.value} quota."
        )
        if not move(connection, look, (State.QUEUED, State.PREPARING, "PLACED", said), at=now):
            return None
        number = next_number(connection, look.trial.id)
        amounts = part.amounts
        held = Allocation(
            id=self._ground.ids.allocation(),
            attempt_id=self._ground.ids.attempt(),
            trial_id=look.trial.id,
            project_id=look.trial.project_id,
            engine=site,
            node=part.node,
            gpu_model=model,
            gpu_indices=json.dumps(list(part.gpus)),
            simulated=simulated,
            gpus=amounts.gpus,
            cpus=amounts.cpus,
            memory_mb=amounts.memory_mb,
            storage_mb=amounts.storage_mb,
            shm_mb=amounts.shm_mb,
            timeout_seconds=look.trial.timeout_seconds,
            state=AllocationState.HELD,
            held_at=now,
            released_at=None,
            tries=0,
            evidence=None,
            sources=claim_text(claim, sources),
        )
        attempts.open_all(connection, [(held, number)])
        provider, gpu = look.script.provider, look.script.gpu
        open_attempt(connection, look, held.attempt_id, provider, gpu, number)
        return held


def allocation_of(connection: Connection, attempt_id: str) -> Allocation | None:
    """What an Attempt holds until the release of it is confirmed."""
    return next((a for a in queue.unreleased(connection) if a.attempt_id == attempt_id), None)


class Clusters:
    """The cluster that packed projects use, as its provider and the controller see it."""

    def __init__(self, database: Database, work: ScriptWork, grace_seconds: float) -> None:
        self._database = database
        self._work = work
        self._grace = grace_seconds
        self._gangs: Gangs | None = None
        self._there: tuple[tuple[Node, ...], bool] = (), False

    def connect(self, gangs: Gangs) -> None:
        """Have the engines that training tasks have."""
        self._gangs = gangs

    def provider(self) -> RayProvider:
        """The cluster as a place for packed projects."""
        return RayProvider(self._work.ray_cluster, self.engine, self.room, self.nodes, self.engine_of)

    def changed(self) -> bool:
        """Whether it has other nodes than when this was asked last, or came, or went."""
        if self._gangs is None or not self._work.ray:
            return False
        site = self._site()
        there = tuple(self.nodes()), site is not None and site.answers
        before, self._there = self._there, there
        return before != there

    def engine(self) -> Engine | None:
        """Its engine, where it is connected."""
        site = self._site()
        return None if site is None else site.engine

    def engine_of(self, attempt_id: str) -> Engine | None:
        """The engine that has an Attempt, whatever the catalogue says by now, where it is connected."""
        with self._database.read() as connection:
            held = allocation_of(connection, attempt_id)
        site = self._site() if held is None else self._site_of(held)
        return None if site is None else site.engine

    def nodes(self) -> Sequence[Node]:
        """The nodes of its pools."""
        return () if self._gangs is None else self._gangs.nodes_for_guests(self._work.ray_cluster)

    def room(self, attempt_id: str) -> Room:
        """What an Attempt was given there. Raises `EngineError`, and `RemoteNotFound` where that is gone."""
        with self._database.read() as connection:
            held = allocation_of(connection, attempt_id)
        if held is None:
            raise EngineError("LAUNCH_INVALID", f"{attempt_id} holds nothing on a cluster", retryable=False)
        site = self._site_of(held)
        if site is None or not site.answers:
            raise EngineError("ENGINE_UNREACHABLE", "the cluster does not answer", retryable=True)
        found = room_of(held, site.nodes, self._grace, pinned=True)
        if len(found.gpus) < held.gpus or all(node.name != held.node for node in site.nodes):
            raise RemoteNotFound(f"what it was given on node {held.node} is not there any more")
        return found

    def lost_its_claim(self, look: Look) -> bool:
        """Whether one that waits for the cluster cannot be placed there by the catalogue that counts now."""
        read = self._work.read_catalog
        if look.script.provider != RAY or read is None:
            return False
        with self._database.read() as connection:
            _, catalog = read(connection)
        cluster = cluster_of(catalog, self._work.ray_cluster)
        return cluster is None or claim_of_script(look.trial, look.script, cluster, catalog) is None

    def _site_of(self, held: Allocation) -> Site | None:
        return None if self._gangs is None else self._gangs.site_at(held.engine)

    def _site(self) -> Site | None:
        return None if self._gangs is None else self._gangs.site_of(self._work.ray_cluster)
