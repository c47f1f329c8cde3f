"""A task as a document again: what is stored, shown and compared. Hidden values stand apart (C9, C56)."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import hmac
from collections.abc import Iterator, Mapping
from typing import Any

from trainshed.model.errors import Refusal
from trainshed.model.strict_json import canonical_json
from trainshed.model.training.fields import SPEC_FIELDS
from trainshed.model.training.reading import read_document
from trainshed.model.training.spec import EnvVar, Head, Kind, TaskSpec

_ENVIRONMENTS = ("env", "precheck.env")
_KINDS = {each.path: each.kinds for each in SPEC_FIELDS}


def to_document(task: TaskSpec) -> dict[str, Any]:
    """The spec as JSON, defaults written out, hidden values `null`, without fields of the other kind."""
    return _object(task, "", task.kind)


def secrets_of(task: TaskSpec) -> dict[str, str]:
    """The hidden values, by where they belong: ``env.HF_TOKEN``, ``precheck.env.KEY``."""
    return {f"{path}.{each.name}": each.value for path, each in _variables(task) if each.hidden}


def restore(document: Mapping[str, Any], secrets: Mapping[str, str]) -> TaskSpec:
    """The spec that `to_document` and `secrets_of` were made of.

    Raises `Refusal` where a document was not made by `to_document`, or a secret is missing.
    """
    whole = copy.deepcopy(dict(document))
    for path in _ENVIRONMENTS:
        for entry in _entries(whole, path):
            if entry.get("hidden") and f"{path}.{entry['name']}" in secrets:
                entry["value"] = secrets[f"{path}.{entry['name']}"]
    # Roots of mounts were checked when the task was taken; an administrator may have changed them since.
    reading = read_document({"spec": whole}, mount_roots=("",))
    if reading.faults:
        raise Refusal(reading.faults)
    return reading.request.spec


def digest(task: TaskSpec, key: bytes = b"") -> str:
    """64 hex digits: equal exactly for equal specs, hidden values and all (C56).

    With a ``key`` that only the server has, nobody can try out hidden values against a stolen digest.
    """
    text = canonical_json({"spec": to_document(task), "secrets": secrets_of(task)})
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def _variables(task: TaskSpec) -> Iterator[tuple[str, EnvVar]]:
    for path, variables in zip(_ENVIRONMENTS, (task.env, task.precheck.env), strict=True):
        for each in variables:
            yield path, each


def _entries(document: Mapping[str, Any], path: str) -> list[dict[str, Any]]:
    found: Any = document
    for key in path.split("."):
        found = found.get(key, {})
    return list(found)


def _object(value: Any, path: str, kind: Kind) -> dict[str, Any]:
    found = {}
    for each in dataclasses.fields(value):
        where = f"{path}.{each.name}" if path else each.name
        content = getattr(value, each.name)
        if content is None or content == Head() or kind not in _KINDS[where]:
            continue
        hidden = isinstance(value, EnvVar) and each.name == "value" and value.hidden
        found[each.name] = None if hidden else _plain(content, where, kind)
    return found


def _plain(value: Any, path: str, kind: Kind) -> Any:
    if dataclasses.is_dataclass(value):
        return _object(value, path, kind)
    if isinstance(value, tuple):
        return [_plain(each, f"{path}[]", kind) for each in value]
    if isinstance(value, Mapping):
        return dict(value)
    return str(value) if isinstance(value, str) else value
