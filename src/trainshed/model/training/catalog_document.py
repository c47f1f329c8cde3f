"""A catalogue as a document again, and what differs between two of them.

`to_document` and `catalog_reading.read_catalog` are each other's inverse. What people see has masked URLs.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from trainshed.model.training.catalog import ANY, Catalog, NodeRule, TaskEnvVar
from trainshed.model.training.catalog_reading import MASK

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(?://)?")
_KEYS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "regions": ("region", ("id",)),
    "clusters": ("cluster", ("id",)),
    "instance_specs": ("instance spec", ("name",)),
    "pools": ("pool", ("id",)),
    "quotas": ("quota", ("project", "resource_type", "pool", "spec")),
    "priority_classes": ("priority class", ("name",)),
    "priority_ranges": ("priority range", ("project",)),
    "volumes": ("volume", ("id",)),
    "aliases": ("alias", ("type", "id")),
    "task_env": ("task variable", ("project", "name")),
    "label_rules": ("label", ("key",)),
    "alarm_channels": ("alarm channel", ("id",)),
    "images": ("image", ("id",)),
}
"""Lists of rows: what one row is called, and what names it."""
_SECRETS = frozenset({("alarm_channels", "url"), ("task_env", "value")})


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between two catalogues, with nothing secret in it."""

    action: str
    """`added`, `removed`, `changed` or `reordered`."""
    what: str
    """`pool h200-pool`, say."""
    details: str = ""
    """What changed: `units 4 -> 8`."""

    def __str__(self) -> str:
        return f"{self.action} {self.what}" + (f": {self.details}" if self.details else "")

    def as_dict(self) -> dict[str, str]:
        return {"action": self.action, "what": self.what, "details": self.details}


def to_document(catalog: Catalog, *, masked: bool = False) -> dict[str, Any]:
    """The canonical document; what is as by default is left out.

    Unless ``masked``, it holds the URLs of alarm channels: for the database only.
    """
    document: dict[str, Any] = {}
    default = Catalog()
    for each in dataclasses.fields(catalog):
        value = getattr(catalog, each.name)
        if value != getattr(default, each.name):
            document[each.name] = _plain(value)
    validation, rules = document.pop("label_validation", False), document.pop("label_rules", [])
    if validation or rules:
        document["labels"] = {"validation": validation, "rules": rules}
    if "allow_host_image" in document:
        allowed = document["allow_host_image"]
        document["allow_host_image"] = True if allowed == [ANY] else allowed
    if masked:
        for row in document.get("alarm_channels", []):
            row["url"] = masked_url(row["url"])
    return document


def masked_url(url: str) -> str:
    """What may be shown of an alarm channel's URL: the scheme; any other part may be a password."""
    scheme = _SCHEME.match(url)
    return f"{scheme[0] if scheme else ''}{MASK}"


def diff(old: Catalog, new: Catalog) -> list[Change]:
    """What `new` changes, in the order of the document; empty exactly if the two are equal."""
    found: list[Change] = []
    for each in dataclasses.fields(Catalog):
        before, after = getattr(old, each.name), getattr(new, each.name)
        if before == after:
            continue
        if each.name in _KEYS:
            found.extend(_row_changes(each.name, before, after))
        else:
            details = f"{_shown(_plain(before))} -> {_shown(_plain(after))}"
            found.append(Change("changed", each.name, details))
    return found


def _row_changes(name: str, before: Iterable[Any], after: Iterable[Any]) -> Iterator[Change]:
    title, keys = _KEYS[name]

    def rows(given: Iterable[Any]) -> dict[str, Any]:
        return {" ".join(str(getattr(row, key)) for key in keys): row for row in given}

    old, new = rows(before), rows(after)
    for key in old:
        if key not in new:
            yield Change("removed", f"{title} {key}")
    for key, row in new.items():
        if key not in old:
            yield Change("added", f"{title} {key}", _details(name, None, row))
        elif old[key] != row:
            yield Change("changed", f"{title} {key}", _details(name, old[key], row))
    if [key for key in old if key in new] != [key for key in new if key in old]:
        yield Change("reordered", name.replace("_", " "), ", ".join(new))


def _details(name: str, old: Any, new: Any) -> str:
    parts = []
    for each in dataclasses.fields(new):
        after = getattr(new, each.name)
        if old is None:
            if after == _default(each) or each.name in _KEYS[name][1]:
                continue
            before = None
        else:
            before = getattr(old, each.name)
            if before == after:
                continue
        if (name, each.name) in _SECRETS:
            parts.append(each.name if old is None else f"{each.name} changed")
        elif old is None:
            parts.append(f"{each.name} {_shown(_plain(after))}")
        else:
            parts.append(f"{each.name} {_shown(_plain(before))} -> {_shown(_plain(after))}")
    return ", ".join(parts)


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, list):
        return "[" + ", ".join(_shown(each) for each in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_shown(each)}" for key, each in value.items()) + "}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _plain(value: Any) -> Any:
    """A value as JSON has it; fields of rows that are as by default are left out."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        if value == NodeRule():
            return "all"
        fields = dataclasses.fields(value)
        row = {each.name: getattr(value, each.name) for each in fields}
        if isinstance(value, TaskEnvVar) and value.secret is not None:
            row.pop("hidden")
        return {
            each.name: _plain(row[each.name])
            for each in fields
            if each.name in row and row[each.name] != _default(each)
        }
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(each) for each in value]
    if isinstance(value, Decimal):
        return format(value, "f")
    return str(value) if isinstance(value, str) else value


def _default(each: dataclasses.Field[Any]) -> Any:
    if each.default_factory is not dataclasses.MISSING:
        return each.default_factory()
    return each.default
