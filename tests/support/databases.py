"""On which kinds of database tests run: what may differ between them on all, everything else on one.

All: the tests of the store, the promises, and what is marked ``every_database``, races above all.
``TRAINSHED_TEST_DATABASES`` names kinds, ``sqlite,postgresql`` for instance, that every test is to run on.
Without it, what is built on the store runs on either kind, in turn: the same kind in each run, half of the
tests of a module on each.
"""

from __future__ import annotations

import os
import zlib
from collections import defaultdict
from collections.abc import Sequence

import pytest

_EVERY = os.environ.get("TRAINSHED_TEST_DATABASES")
KINDS = (_EVERY or "sqlite,postgresql").split(",")
_ON_ALL = frozenset({"store", "promises"})
"""Folders of what proves that the kinds are alike."""


def on_one_kind_of(fixture: str) -> pytest.MarkDecorator:
    """Mark of a test or a module that only needs some database, the quickest one, by way of this fixture."""
    return pytest.mark.parametrize(fixture, KINDS[:1], indirect=True)


on_one_kind = on_one_kind_of("database_url")


def left_out(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """The tests that need not run because their twins do, on another kind of database."""
    if _EVERY is not None:
        return []
    twins: defaultdict[str, dict[str, pytest.Item]] = defaultdict(dict)
    for item in items:
        kind = _kind_of(item)
        if kind is not None and not _on_all(item):
            name, _, parameters = item.nodeid.partition("[")
            twins[f"{name}[{parameters.replace(kind, '')}"][kind] = item
    found = []
    for key, by_kind in twins.items():
        kept = sorted(by_kind)[zlib.crc32(key.encode()) % len(by_kind)]
        found += [item for kind, item in by_kind.items() if kind != kept]
    return found


def _on_all(item: pytest.Item) -> bool:
    return item.path.parent.name in _ON_ALL or item.get_closest_marker("every_database") is not None


def _kind_of(item: pytest.Item) -> str | None:
    given = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    return next((value for name, value in given.items() if "database" in name and value in KINDS), None)
