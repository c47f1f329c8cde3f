"""Where gangs run: the engines behind the clusters of the catalogue, and the nodes of their pools."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, runtime_checkable

import structlog

from trainshed.control.background import Background
from trainshed.engines.contract import Engine, EngineError
from trainshed.model.resources import Amounts, Node
from trainshed.model.training.catalog import Catalog, Cluster
from trainshed.model.training.catalog import Engine as EngineKind
from trainshed.policy.gangs.snapshot import PlaceNode
from trainshed.store.gangs import Cordon

OpenEngine = Callable[[Cluster], Engine]
"""Connects to the engine of a cluster that is not this machine. Raises `EngineError`."""

log = structlog.get_logger(__name__)


@runtime_checkable
class _Labelled(Protocol):
    """An engine whose nodes have labels (`NodeRule.labels`)."""

    def labels(self) -> Mapping[str, Mapping[str, str]]: ...


@dataclass(slots=True)
class Site:
    """One engine, whatever number of clusters the catalogue makes of it."""

    key: str
    """What the rows call it (``allocations.engine``)."""
    engine: Engine
    nodes: tuple[Node, ...] = ()
    answers: bool = True
    """Whether it answered last time; nothing starts where it does not."""
    clusters: set[str] = field(default_factory=set)
    labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Of each node, where the engine knows any."""


class Sites:
    """The engine of this machine and those of the catalogue. For the controller's one thread."""

    def __init__(self, home: Engine, connecting: Background, open_engine: OpenEngine | None = None) -> None:
        self._open = open_engine
        self._connecting = connecting
        self._opened: dict[str, Engine] = {}
        self.home = Site(home.name, home)
        self._by_key: dict[str, Site] = {home.name: self.home}
        self._of_cluster: dict[str, Site] = {}
        self._failed: dict[str, str] = {}

    @property
    def all(self) -> Sequence[Site]:
        return tuple(self._by_key.values())

    def of(self, key: str) -> Site | None:
        """The site that rows call ``key``; ``None`` if it cannot be reached now."""
        return self._by_key.get(key)

    def of_cluster(self, cluster: str) -> Site | None:
        return self._of_cluster.get(cluster)

    def refresh(self, catalog: Catalog) -> bool:
        """Follow the catalogue: connect to what is new, keep what still holds something. Whether any came."""
        before = set(self._by_key)
        found: dict[str, Site] = {}
        for cluster in catalog.clusters:
            there = self._site_of(cluster)
            if there is not None:
                found[cluster.id] = there
        # At once, because others look at it as well.
        self._of_cluster = found
        for site in self._by_key.values():
            site.clusters = {cluster for cluster, there in found.items() if there is site}
        return set(self._by_key) != before

    def _site_of(self, cluster: Cluster) -> Site | None:
        if cluster.engine is EngineKind.LOCAL:
            return self.home
        key = f"{cluster.engine}:{cluster.address or cluster.id}"
        known = self._by_key.get(key)
        if known is not None or self._open is None:
            return known
        if key not in self._opened:
            # To reach a cluster takes its time, and one that is not there takes longest.
            self._connecting.start(f"engine {key}", partial(self._connect, key, cluster, self._open))
        engine = self._opened.pop(key, None)
        if engine is None:
            return None
        # Until its nodes were read nothing is known of them.
        site = self._by_key[key] = Site(key, engine, answers=False)
        return site

    def _connect(self, key: str, cluster: Cluster, open_engine: OpenEngine) -> bool:
        try:
            self._opened[key] = open_engine(cluster)
        except EngineError as error:
            if self._failed.get(key) != error.message:
                log.warning("a cluster cannot be reached", cluster=cluster.id, reason=error.message)
            self._failed[key] = error.message
            return not error.retryable
        self._failed.pop(key, None)
        return True

    def read_nodes(self, home: Sequence[Node]) -> None:
        """Ask the engines for their nodes; those of this machine are known already."""
        self.home.nodes = tuple(home)
        for site in self.all:
            if site is self.home:
                continue
            try:
                site.nodes, site.answers = tuple(site.engine.nodes()), True
                site.labels = site.engine.labels() if isinstance(site.engine, _Labelled) else {}
            except EngineError as error:
                if site.answers:
                    log.warning("an engine does not answer", engine=site.key, reason=error.message)
                site.answers = False

    def close(self) -> None:
        """Let go of the other engines; this machine's belongs to somebody else."""
        for engine in self._opened.values():
            engine.close()
        for site in self.all:
            if site is not self.home:
                site.engine.close()


def places_of(site: Site, catalog: Catalog, cordons: Collection[Cordon]) -> tuple[PlaceNode, ...]:
    """The nodes of a site in the pools that have them; each is in the first pool that covers it."""
    closed = closed_gpus(site, cordons)
    found = []
    for node in site.nodes:
        pool = next(
            (
                p
                for p in catalog.pools
                if p.cluster in site.clusters and p.nodes.covers(node.name, site.labels.get(node.name, {}))
            ),
            None,
        )
        if pool is not None:
            found.append(PlaceNode(without_gpus(node, closed.get(node.name, frozenset())), pool.id))
    return tuple(found)


def cordoned_nodes(site: Site, cordons: Collection[Cordon]) -> frozenset[str]:
    """Nodes of a site on which nothing may start: all, where the engine does not answer."""
    if not site.answers:
        return frozenset(node.name for node in site.nodes)
    return frozenset(c.node for c in cordons if c.gpu is None and c.cluster in site.clusters)


def closed_gpus(site: Site, cordons: Collection[Cordon]) -> Mapping[str, frozenset[int]]:
    """Single GPUs of a site that are cordoned, by node."""
    found: dict[str, set[int]] = {}
    for each in cordons:
        if each.gpu is not None and each.cluster in site.clusters:
            found.setdefault(each.node, set()).add(each.gpu)
    return {node: frozenset(gpus) for node, gpus in found.items()}


def without_gpus(node: Node, gone: Collection[int]) -> Node:
    """The node as if it lacked some of its GPUs; everything else of it stays."""
    if not gone:
        return node
    left = tuple(gpu for gpu in node.gpus if gpu.index not in gone)
    fewer = Amounts(gpus=len(node.gpus) - len(left))
    return replace(node, gpus=left, amounts=node.amounts - fewer)
