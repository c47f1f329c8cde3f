"""Pools, clusters, cordons and quotas: what there is to run training tasks on (C1, C23-C25, c6)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from trainshed.sdk.answers import Page, Raw, mapping, moment, page, required, text
from trainshed.sdk.transport import Transport, route


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """Units of one instance spec in a pool: a reference value, no reservation (C24)."""

    spec: str
    total: int
    free: int
    in_use: int
    cordoned: int
    as_of: datetime | None
    raw: Raw = field(repr=False)


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool and what is free in it now."""

    pool_id: str
    cluster: str
    region: str
    resource_types: tuple[str, ...]
    nodes: int
    specs: tuple[PoolSpec, ...]
    raw: Raw = field(repr=False)


@dataclass(frozen=True, slots=True)
class IdleSpec:
    """What idle tasks of one spec could take now, and how long it lasts (C25, c6)."""

    spec: str
    idle_units: int
    stability: str
    """high, medium or low: how much of the last 24 hours as many units stayed free for an hour."""
    fragmentation: float | None
    """Share of the free units, 0 to 1, that a task of this shape cannot use."""
    largest_gang: int
    """Replicas of this shape that fit now."""
    raw: Raw = field(repr=False)


@dataclass(frozen=True, slots=True)
class Idle:
    """What is idle in a pool, a spec each."""

    pool: str
    as_of: datetime | None
    specs: tuple[IdleSpec, ...]
    raw: Raw = field(repr=False)


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where tasks run, and what its engine can do (C1, c9)."""

    cluster_id: str
    region: str
    engine: str
    pools: tuple[str, ...]
    capabilities: tuple[Mapping[str, Any], ...]
    """Fields of a task that the engine honours, ``{field, kinds, note}``; not in lists."""
    raw: Raw = field(repr=False)


@dataclass(frozen=True, slots=True)
class Cordon:
    """A node, or one GPU of it, that nothing new is placed on until it is cleared (C34)."""

    cordon_id: str
    cluster: str
    node: str
    gpu: int | None
    reason: str
    at: datetime | None
    by: str
    raw: Raw = field(repr=False)


@dataclass(frozen=True, slots=True)
class Quota:
    """How many units of a spec a project may hold (C23)."""

    project: str
    resource_type: str
    pool: str
    spec: str
    units: int
    """Its own."""
    limit: int
    """The most that it may ever hold, borrowed units included."""
    used: int
    free: int
    borrowed: int
    raw: Raw = field(repr=False)


class Pools:
    """``client.pools``: what there is and what is free. Cordons need the permission ``admin``."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self) -> Page[Pool]:
        """The pools that this key may use."""
        return page(self._transport.call("GET", route("pools")), _pool)

    def get(self, pool_id: str) -> Pool:
        """One pool. Raises `NotFound`."""
        return _pool(self._transport.call("GET", route("pools", pool_id)))

    def idle(self, pool_id: str, *, spec: str | None = None, units: int | None = None) -> Idle:
        """What idle tasks could take now, for replicas of ``units`` of a spec (C25).

        Without ``units``: for replicas that fill the largest node.
        """
        query = {"spec": spec, "units": units}
        answer = self._transport.call("GET", route("pools", pool_id, "idle"), query=query)
        document = mapping(answer, "idle units")
        specs = document.get("specs")
        return Idle(
            pool=text(document, "pool"),
            as_of=moment(document, "as_of"),
            specs=tuple(_idle(each) for each in specs) if isinstance(specs, list) else (),
            raw=document,
        )

    def clusters(self) -> Page[Cluster]:
        """The clusters, without what their engines can do."""
        return page(self._transport.call("GET", route("clusters")), _cluster)

    def cluster(self, cluster_id: str) -> Cluster:
        """One cluster, with its nodes and cordons in ``raw`` (c9). Raises `NotFound`."""
        return _cluster(self._transport.call("GET", route("clusters", cluster_id)))

    def cordons(self) -> Page[Cordon]:
        """The cordons that stand."""
        return page(self._transport.call("GET", route("cordons")), _cordon)

    def cordon(self, cluster: str, node: str, *, reason: str, gpu: int | None = None) -> Cordon:
        """Place nothing new on a node, or one GPU of it; what runs there goes on."""
        body: dict[str, Any] = {"cluster": cluster, "node": node, "reason": reason}
        if gpu is not None:
            body["gpu"] = gpu
        return _cordon(self._transport.call("POST", route("cordons"), body=body, repeatable=False))

    def uncordon(self, cordon_id: str | int) -> None:
        """Clear a cordon."""
        self._transport.call("DELETE", route("cordons", str(cordon_id)))


class Quotas:
    """``client.quotas``: what projects may hold and hold."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self, *, project: str | None = None) -> Page[Quota]:
        """Quotas of the key's project, or of another one that it administers."""
        return page(self._transport.call("GET", route("quotas"), query={"project": project}), _quota)


def _pool(raw: Any) -> Pool:
    document = mapping(raw, "a pool")
    types = document.get("resource_types")
    specs = document.get("specs")
    return Pool(
        pool_id=required(document, "id"),
        cluster=text(document, "cluster"),
        region=text(document, "region"),
        resource_types=tuple(map(str, types)) if isinstance(types, list) else (),
        nodes=_number(document, "nodes") or 0,
        specs=tuple(_pool_spec(each) for each in specs) if isinstance(specs, list) else (),
        raw=document,
    )


def _pool_spec(raw: Any) -> PoolSpec:
    document = mapping(raw, "a spec of a pool")
    return PoolSpec(
        spec=required(document, "spec"),
        total=_number(document, "total") or 0,
        free=_number(document, "free") or 0,
        in_use=_number(document, "in_use") or 0,
        cordoned=_number(document, "cordoned") or 0,
        as_of=moment(document, "as_of"),
        raw=document,
    )


def _idle(raw: Any) -> IdleSpec:
    document = mapping(raw, "idle units")
    part = document.get("fragmentation")
    return IdleSpec(
        spec=required(document, "spec"),
        idle_units=_number(document, "idle_units") or 0,
        stability=text(document, "stability"),
        fragmentation=float(part) if isinstance(part, int | float) else None,
        largest_gang=_number(document, "largest_gang") or 0,
        raw=document,
    )


def _cluster(raw: Any) -> Cluster:
    document = mapping(raw, "a cluster")
    pools, capabilities = document.get("pools"), document.get("capabilities")
    return Cluster(
        cluster_id=required(document, "id"),
        region=text(document, "region"),
        engine=text(document, "engine"),
        pools=tuple(map(str, pools)) if isinstance(pools, list) else (),
        capabilities=tuple(capabilities) if isinstance(capabilities, list) else (),
        raw=document,
    )


def _cordon(raw: Any) -> Cordon:
    document = mapping(raw, "a cordon")
    return Cordon(
        cordon_id=str(document.get("id", "")),
        cluster=text(document, "cluster"),
        node=text(document, "node"),
        gpu=_number(document, "gpu"),
        reason=text(document, "reason"),
        at=moment(document, "at"),
        by=text(document, "by"),
        raw=document,
    )


def _quota(raw: Any) -> Quota:
    document = mapping(raw, "a quota")
    return Quota(
        project=text(document, "project"),
        resource_type=text(document, "resource_type"),
        pool=text(document, "pool"),
        spec=text(document, "spec"),
        units=_number(document, "units") or 0,
        limit=_number(document, "limit") or 0,
        used=_number(document, "used") or 0,
        free=_number(document, "free") or 0,
        borrowed=_number(document, "borrowed") or 0,
        raw=document,
    )


def _number(document: Raw, key: str) -> int | None:
    value = document.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
