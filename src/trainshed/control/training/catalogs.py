"""The catalogue that counts: the newest one that was applied, or else what the machine has (contract C1).

URLs of alarm channels and hidden TaskEnv values are sealed before they are stored.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trainshed.control.fleet import SharedFleet, decode_nodes
from trainshed.control.sealing import Seal
from trainshed.model.errors import Refusal
from trainshed.model.resources import Node
from trainshed.model.strict_json import canonical_json
from trainshed.model.training.automatic import automatic
from trainshed.model.training.catalog import ANY, Catalog, Engine, Volume
from trainshed.model.training.catalog_document import Change, diff, masked_url, to_document
from trainshed.model.training.catalog_reading import read_catalog
from trainshed.store import catalogs as store
from trainshed.store.database import Connection, Database
from trainshed.store.settings import FLEET
from trainshed.store.settings import get as setting

_SECRETS = (("alarm_channels", "url"), ("task_env", "value"))


@dataclass(frozen=True, slots=True)
class TrainingRules:
    """What the configuration says of training tasks."""

    allow_host_image: bool = True
    """Of a catalogue that was not applied by anybody: whether `image: host` is allowed (C7)."""
    volumes: Mapping[str, str] | None = None
    """Volumes of such a catalogue: id -> folder of this machine."""


@dataclass(frozen=True, slots=True)
class Applied:
    """What applying a catalogue came to."""

    revision: int
    changes: tuple[Change, ...]
    stored: bool
    """False for a dry run, and where nothing differs."""


class Catalogs:
    """Reads and applies catalogues. Thread-safe; keeps the newest one until a newer one is there."""

    def __init__(self, database: Database, seal: Seal, rules: TrainingRules | None = None) -> None:
        self._database = database
        self._seal = seal
        self._rules = rules or TrainingRules()
        self._fleet = SharedFleet()
        self._guard = threading.Lock()
        self._kept: tuple[int, Catalog] | None = None
        self._made: tuple[Sequence[Node], Catalog] | None = None

    def current(self, connection: Connection) -> tuple[int, Catalog]:
        """The revision and the catalogue; revision 0 is made from the machine. Raises `SealBroken`."""
        revision = store.newest_revision(connection)
        with self._guard:
            if revision and self._kept is not None and self._kept[0] == revision:
                return self._kept
        if not revision:
            return 0, self._automatic(self._fleet.nodes(connection))
        found = store.newest(connection)
        assert found is not None  # noqa: S101 - revisions are never deleted
        kept = found.revision, self._opened(found)
        with self._guard:
            self._kept = kept
        return kept

    def nodes(self, connection: Connection) -> dict[str, list[tuple[Node, dict[str, str]]]]:
        """The nodes and their labels by cluster, as the controller saw them last."""
        here: list[tuple[Node, dict[str, str]]] = [(node, {}) for node in self._fleet.nodes(connection)]
        _, catalog = self.current(connection)
        found: dict[str, list[tuple[Node, dict[str, str]]]] = {
            cluster.id: list(here) for cluster in catalog.clusters if cluster.engine is Engine.LOCAL
        }
        for cluster, rows in json.loads(setting(connection, FLEET) or "{}").items():
            nodes = decode_nodes(json.dumps([row["node"] for row in rows]))
            found[cluster] = [
                (node, dict(row.get("labels") or {})) for node, row in zip(nodes, rows, strict=True)
            ]
        return found

    def apply(
        self,
        document: Any,
        *,
        expected: int | None,
        dry_run: bool,
        at: float,
        by: str,
    ) -> Applied:
        """Make ``document`` the catalogue. Raises `Refusal` with all faults; then nothing changed.

        Idempotent: without a difference nothing is stored. ``expected`` is the revision that the caller
        looked at; another one that came meanwhile is refused ``PRECONDITION_FAILED``. A masked URL
        means the stored one.
        """
        with self._database.read() as connection:
            revision, old = self.current(connection)
        if expected is not None and expected != revision:
            raise _changed_meanwhile(revision)
        new = read_catalog(_unmasked(document, old))
        changes = tuple(diff(old, new))
        if revision and not changes:
            return Applied(revision, (), stored=False)
        if dry_run:
            return Applied(revision, changes, stored=False)
        shown, hidden = _parted(to_document(new))
        text, sealed = canonical_json(shown), self._seal.seal(hidden)
        stored = self._database.write(
            lambda connection: store.add(connection, text, sealed, expected=revision, at=at, by=by)
        )
        if stored is None:
            raise _changed_meanwhile(revision + 1)
        return Applied(stored, changes, stored=True)

    def _automatic(self, nodes: Sequence[Node]) -> Catalog:
        with self._guard:
            if self._made is None or self._made[0] is not nodes:
                volumes = [
                    Volume(name, (ANY,), path, multi_writer=True)
                    for name, path in (self._rules.volumes or {}).items()
                ]
                made = automatic(nodes, volumes)
                if not self._rules.allow_host_image:
                    made = replace(made, allow_host_image=())
                self._made = (nodes, made)
            return self._made[1]

    def _opened(self, found: store.StoredCatalog) -> Catalog:
        document = json.loads(found.document)
        secrets = self._seal.open(found.secrets)
        for list_name, key in _SECRETS:
            for place, row in enumerate(document.get(list_name) or ()):
                if (name := f"{list_name}[{place}].{key}") in secrets:
                    row[key] = secrets[name]
        return read_catalog(document)


def _unmasked(document: Any, old: Catalog) -> Any:
    """The document with the stored values where it shows masks, as readers get them; else it is as it was."""
    if not isinstance(document, Mapping):
        return document
    urls = {each.id: each.url for each in old.alarm_channels}

    def channel(row: Mapping[str, Any]) -> Any:
        url = urls.get(row.get("id", ""))
        return {**row, "url": url} if url is not None and row.get("url") == masked_url(url) else row

    rows = document.get("alarm_channels")
    if not isinstance(rows, list):
        return document
    restored = [channel(row) if isinstance(row, Mapping) else row for row in rows]
    return {**document, "alarm_channels": restored}


def _parted(document: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The document without its secret values, and those by where they stand."""
    hidden = {}
    for list_name, key in _SECRETS:
        for place, row in enumerate(document.get(list_name) or ()):
            secret = list_name == "alarm_channels" or row.get("hidden")
            if secret and row.get(key) is not None:
                hidden[f"{list_name}[{place}].{key}"] = row.pop(key)
    return document, hidden


def _changed_meanwhile(revision: int) -> Refusal:
    said = f"the catalogue is at revision {revision} now; somebody applied one since you looked"
    return Refusal.of("PRECONDITION_FAILED", said, path="expected_revision")
