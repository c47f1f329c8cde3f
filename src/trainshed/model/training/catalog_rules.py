"""What must hold between the rows of a catalogue: ids occur once, and what is named exists."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from trainshed.model.training.catalog import (
    ANY,
    DEFAULT_PRIORITY,
    Catalog,
    ContentAlias,
    PresetImage,
    Volume,
)
from trainshed.model.training.spec import Kind
from trainshed.model.training.variables import RESERVED

Row = TypeVar("Row")
Finding = tuple[str, str, str]
"""Path, code and message of a fault."""


def reference_faults(catalog: Catalog, places: Mapping[str, Sequence[str]]) -> Iterator[Finding]:
    """``places`` says, by list of the document, where each row stands."""
    yield from _duplicates(catalog, places)
    yield from _unknown(catalog, places)
    yield from _of_quotas(catalog, places)
    yield from _of_priorities(catalog, places)
    for row, path in _with(catalog.task_env, places, "task_env"):
        # Tasks of both kinds get it, so what either reserves is refused.
        if row.name in RESERVED[Kind.PYTORCH] | RESERVED[Kind.RAY]:
            said = f"{row.name} is given to every replica by the platform and cannot be set"
            yield f"{path}.name", "ENV_NAME_RESERVED", said


def _duplicates(catalog: Catalog, places: Mapping[str, Sequence[str]]) -> Iterator[Finding]:
    keys: Mapping[str, list[Hashable]] = {
        "regions": [row.id for row in catalog.regions],
        "clusters": [row.id for row in catalog.clusters],
        "pools": [row.id for row in catalog.pools],
        "instance_specs": [row.name for row in catalog.instance_specs],
        "quotas": [(row.project, row.resource_type, row.pool, row.spec) for row in catalog.quotas],
        "priority_classes": [row.name for row in catalog.priority_classes],
        "priority_ranges": [row.project for row in catalog.priority_ranges],
        "volumes": [row.id for row in catalog.volumes],
        "aliases": [(row.type, row.id) for row in catalog.aliases],
        "task_env": [(row.project, row.name) for row in catalog.task_env],
        "rules": [row.key for row in catalog.label_rules],
        "alarm_channels": [row.id for row in catalog.alarm_channels],
        "images": [row.id for row in catalog.images],
    }
    for key, names in keys.items():
        seen: dict[Hashable, str] = {}
        for name, path in _with(names, places, key):
            if name in seen:
                text = " ".join(str(part) for part in name) if isinstance(name, tuple) else str(name)
                yield path, "CATALOG_DUPLICATE", f"{text} is declared twice, first by {seen[name]}"
            seen.setdefault(name, path)


def _unknown(catalog: Catalog, places: Mapping[str, Sequence[str]]) -> Iterator[Finding]:
    regions = {row.id for row in catalog.regions}
    clusters = {row.id for row in catalog.clusters}
    specs = {row.name for row in catalog.instance_specs}
    for cluster, path in _with(catalog.clusters, places, "clusters"):
        yield from _missing(f"{path}.region", "region", (cluster.region,), regions)
    for pool, path in _with(catalog.pools, places, "pools"):
        yield from _missing(f"{path}.cluster", "cluster", (pool.cluster,), clusters)
        yield from _missing(f"{path}.specs", "instance spec", pool.specs, specs)
    things: Mapping[str, tuple[Volume | ContentAlias | PresetImage, ...]] = {
        "volumes": catalog.volumes,
        "aliases": catalog.aliases,
        "images": catalog.images,
    }
    for key, rows in things.items():
        for row, path in _with(rows, places, key):
            yield from _missing(f"{path}.clusters", "cluster", row.clusters, clusters | {ANY})
    yield from _missing("allow_host_image", "cluster", catalog.allow_host_image, clusters | {ANY})


def _of_quotas(catalog: Catalog, places: Mapping[str, Sequence[str]]) -> Iterator[Finding]:
    pools = {row.id: row for row in catalog.pools}
    for row, path in _with(catalog.quotas, places, "quotas"):
        pool = pools.get(row.pool)
        if pool is None:
            yield from _missing(f"{path}.pool", "pool", (row.pool,), pools)
            continue
        if row.spec not in {ANY, *pool.specs}:
            said = f"pool {pool.id} does not offer the instance spec {row.spec}"
            yield f"{path}.spec", "CATALOG_REFERENCE", said
        if row.resource_type not in pool.resource_types:
            said = f"pool {pool.id} does not offer the resource type {row.resource_type}"
            yield f"{path}.resource_type", "CATALOG_REFERENCE", said


def _of_priorities(catalog: Catalog, places: Mapping[str, Sequence[str]]) -> Iterator[Finding]:
    if DEFAULT_PRIORITY not in {row.name for row in catalog.priority_classes}:
        said = f"there must be a class `{DEFAULT_PRIORITY}`: tasks have it by default"
        yield "priority_classes", "CATALOG_REFERENCE", said
        return
    default = next(row.value for row in catalog.priority_classes if row.name == DEFAULT_PRIORITY)
    for row, path in _with(catalog.priority_ranges, places, "priority_ranges"):
        if not row.min <= default <= row.max:
            said = f"the range {row.min} to {row.max} leaves out `{DEFAULT_PRIORITY}` ({default})"
            yield path, "CATALOG_REFERENCE", said


def _missing(path: str, what: str, names: Iterable[str], known: Iterable[str]) -> Iterator[Finding]:
    there = set(known)
    for name in names:
        if name and name not in there:
            yield path, "CATALOG_REFERENCE", f"the {what} {name} is not declared"


def _with(rows: Sequence[Row], places: Mapping[str, Sequence[str]], key: str) -> Iterator[tuple[Row, str]]:
    """Rows with where they stand; defaults, which stand nowhere, are named after their list."""
    paths = places.get(key) or [key] * len(rows)
    return zip(rows, paths, strict=True)
