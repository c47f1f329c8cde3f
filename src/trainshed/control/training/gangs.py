"""The gangs' part of the controller, put together."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import structlog

from trainshed.content.local import LocalContent
from trainshed.control import metrics
from trainshed.control.background import Workers
from trainshed.control.training.guests import Guests
from trainshed.control.training.idle import IdleSampler
from trainshed.control.training.keys import AttemptFolders
from trainshed.control.training.placing import GangPlacer, ReadCatalog
from trainshed.control.training.reconcile import GangReconciler, known_units
from trainshed.control.training.sites import (
    OpenEngine,
    Site,
    Sites,
    closed_gpus,
    cordoned_nodes,
    places_of,
    without_gpus,
)
from trainshed.control.training.starting import OpenSecrets
from trainshed.engines.contract import Engine, EngineError
from trainshed.model.ids import IdFactory
from trainshed.model.resources import Node
from trainshed.model.training.claims import cluster_of
from trainshed.policy.cluster import Held
from trainshed.policy.effective import ServerPolicy
from trainshed.policy.gangs.snapshot import Kept
from trainshed.store import gangs, settings
from trainshed.store.database import Connection, Database

_COUNT_SECONDS = 1.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Training:
    """What the controller needs for training tasks beside what it has for Runner Trials."""

    read_catalog: ReadCatalog
    open_secrets: OpenSecrets
    folder: Path
    """For what Attempts keep to themselves."""
    open_engine: OpenEngine | None = None
    """Connects to clusters that are not this machine."""


class Gangs:
    """Everything about gangs that the controller's thread does."""

    def __init__(  # noqa: PLR0913 - what it works with
        self,
        training: Training,
        database: Database,
        home: Engine,
        content: LocalContent,
        policy: ServerPolicy,
        clock: Callable[[], float],
        ids: IdFactory,
        workers: Workers,
        *,
        guests: Guests | None = None,
    ) -> None:
        self._database = database
        self._sites = Sites(home, workers.preparing, training.open_engine)
        self._placer = GangPlacer(database, self._sites, policy, clock, ids, training.read_catalog, guests)
        self._reconciler = GangReconciler(
            database,
            self._sites,
            self._placer,
            content,
            AttemptFolders(training.folder),
            policy,
            clock,
            workers,
            open_secrets=training.open_secrets,
        )
        self._idle = IdleSampler(database, self._placer, clock)
        self._fleet_text = ""
        self._counted = float("-inf")

    def news(self) -> set[str]:
        """Members, and packed projects, on the engines of clusters that may have news."""
        found: set[str] = set()
        for site in self._sites.all:
            if site is not self._sites.home:
                try:
                    found |= site.engine.changed(0.0)
                except EngineError as error:
                    log.warning("an engine does not answer", engine=site.key, reason=error.message)
        return found

    def step(self, changed: set[str], *, everything: bool) -> bool:
        """One look at all gangs, and a pass; whether another step should follow at once."""
        again = self._reconciler.step(changed, everything=everything)
        if everything:
            self._idle.look()
        self._count_waiting()
        return again

    def _count_waiting(self) -> None:
        """Who waits for what, for `/metrics`, at most once a second."""
        if time.monotonic() < self._counted + _COUNT_SECONDS:
            return
        self._counted = time.monotonic()
        metrics.gang_queue.clear()
        for code, count in self._placer.waiting_by_reason().items():
            metrics.gang_queue.labels(reason=code).set(count)

    def read_nodes(self, home: Sequence[Node]) -> None:
        """Take in the nodes of this machine, ask the others for theirs, and publish these for readers."""
        self._sites.read_nodes(home)
        rows = {
            cluster: [
                {"node": asdict(node), "labels": dict(site.labels.get(node.name, {}))} for node in site.nodes
            ]
            for site in self._sites.all
            if site is not self._sites.home
            for cluster in sorted(site.clusters)
        }
        text = json.dumps(rows, sort_keys=True)
        if text != (self._fleet_text or "{}"):
            self._database.write(lambda connection: settings.put(connection, settings.FLEET, text))
            self._fleet_text = text

    def reload(self) -> None:
        self._placer.reload()

    def check(self, connection: Connection, *, thoroughly: bool) -> None:
        """Start over where the database knows other waiting tasks."""
        if self._placer.differs(connection, thoroughly=thoroughly):
            self._placer.reload()

    def next_at(self) -> float | None:
        """When time alone makes something due (Unix seconds)."""
        return self._placer.next_at()

    def open_to_runners(self, nodes: Sequence[Node]) -> Sequence[Node]:
        """The nodes of this machine as far as nothing of them is cordoned."""
        home, cordons = self._sites.home, self._placer.cordons
        if not cordons:
            return nodes
        closed, gpus = cordoned_nodes(home, cordons), closed_gpus(home, cordons)
        return [
            without_gpus(node, gpus.get(node.name, frozenset())) for node in nodes if node.name not in closed
        ]

    def holds(self) -> Sequence[Held]:
        """What gangs with a plan hold on this machine although nothing of them runs there yet."""
        return self._placer.holds()

    def reserved(self) -> Sequence[Kept]:
        """What the first gangs in line wait for on this machine."""
        return self._placer.reserved()

    def keep(self, kept: Sequence[Kept]) -> bool:
        """Take in what Runner Trials reserve; whether gangs must look again for it."""
        return self._placer.keep(kept)

    def known_units(self, connection: Connection) -> list[str]:
        """Members that engines may still hold."""
        return known_units(gangs.held(connection))

    def sweep(self, known: Sequence[str]) -> list[str]:
        """End strangers on the other engines (P6)."""
        found: list[str] = []
        for site in self._sites.all:
            if site is not self._sites.home:
                try:
                    found += site.engine.sweep(known)
                except EngineError as error:
                    log.warning("an engine could not be swept", engine=site.key, reason=error.message)
        return found

    def site_of(self, named: str | None) -> Site | None:
        """The Ray cluster that packed projects use, where it is connected."""
        cluster = cluster_of(self._placer.catalog, named)
        return None if cluster is None else self._sites.of_cluster(cluster)

    def site_at(self, key: str) -> Site | None:
        """The site that rows call ``key``, where it is connected."""
        return self._sites.of(key)

    def nodes_for_guests(self, named: str | None) -> Sequence[Node]:
        """The nodes of the pools of that cluster; what is cordoned of them will be opened again."""
        site = self.site_of(named)
        return () if site is None else [place.node for place in places_of(site, self._placer.catalog, ())]

    def why_waits(self, trial_id: str) -> str | None:
        """Why a packed project waits for its cluster, in a sentence (P10)."""
        return self._placer.guests.why_waits(trial_id)

    def forget(self, unit: str) -> None:
        """Delete what engines of clusters keep of a unit. Raises `EngineError`, `OSError`."""
        for site in self._sites.all:
            if site is not self._sites.home:
                site.engine.forget(unit)

    def close(self) -> None:
        """Begin nothing more; what is under way is repeated by the next process."""
        self._reconciler.close()

    def disconnect(self) -> None:
        """Let go of the engines of other clusters, once nobody works with them any more."""
        self._sites.close()
