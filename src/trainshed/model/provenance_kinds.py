"""Packed projects and training tasks in a Job's manifest: submitting them again, and comparing two of them.

`trainshed.model.provenance` does the same for Jobs of Runners, and checks the shape of all that is read here.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

SCRIPT, TASK, RUNNER = "script", "task", "runner"
_MOUNTED = "mount:"
_ENVIRONMENTS = ("env", "precheck.env")
_VARIABLE = ("name", "value", "hidden")
_CONTENT_MOUNTS = ("dataset", "model")
_SAID_OF_THE_BUNDLE = "bundle."
_SHOWN_OF_A_SCRIPT = ("name", "project_dir", "host", "labels")
"""Of a packed project: where its outputs are brought to, and what it is called."""
_SHOWN_OF_A_TASK = ("project", "labels", "public", "alarms", "image")
"""Of a task: who sees it and hears of it. Its image counts by digest."""


class HiddenValuesWanted(ValueError):
    """A task has hidden values, which no manifest holds; or one was given that it has not."""

    def __init__(self, missing: list[str], unknown: list[str]) -> None:
        self.missing = missing
        self.unknown = unknown
        said = []
        if missing:
            said.append(f"no manifest holds the hidden values of a task; give {', '.join(missing)}")
        if unknown:
            said.append(f"the task has no hidden {', '.join(unknown)}")
        super().__init__("; ".join(said))


def kind_of(trial: Mapping[str, Any]) -> str:
    """``script`` for a packed project, ``task`` for a training task, else ``runner``."""
    return next((kind for kind in (SCRIPT, TASK) if trial.get(kind) is not None), RUNNER)


def spec_again(trial: Mapping[str, Any], hidden: Mapping[str, str]) -> dict[str, Any]:
    """The spec that submits a packed project or a task again. Raises `HiddenValuesWanted`.

    ``hidden`` has values by ``NAME``, or by ``env.NAME`` and ``precheck.env.NAME`` where they differ.
    """
    if kind_of(trial) == SCRIPT:
        _give([], hidden)
        return copy.deepcopy(dict(trial[SCRIPT]["spec"]))
    spec = copy.deepcopy(dict(trial[TASK]["spec"]))
    spec.pop("project", None)  # that of the key which submits it again
    # What the catalogue gives its project comes from the catalogue again.
    spec["env"] = [each for each in spec["env"] if each["source"] == "task"]
    if trial["image"] is not None:
        spec["image"] = trial["image"]["resolved"]
    pinned = {each["role"]: each for each in trial["contents"]}
    for mount in spec["mounts"]:
        content = pinned.get(f"{_MOUNTED}{mount['mount_path']}")
        if content is not None and mount["type"] in _CONTENT_MOUNTS:
            mount["ref"] = f"{content['name']}@{content['manifest_sha256']}"
    spec["env"] = [{key: each[key] for key in _VARIABLE} for each in spec["env"]]
    _give(list(_variables(spec)), hidden)
    return spec


def what_runs(trial: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Every field that decides what runs, by its path."""
    for path, value, runs in _fields(trial):
        if runs:
            yield path, value


def how_named(trial: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Every field that makes no difference to the program, by its path."""
    for path, value, runs in _fields(trial):
        if not runs:
            yield path, value


def leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Every value that is no table and no list, by its path; empty tables and lists too."""
    if isinstance(value, Mapping) and value:
        for key, each in value.items():
            yield from leaves(f"{path}.{key}", each)
    elif isinstance(value, list) and value:
        for number, each in enumerate(value):
            yield from leaves(f"{path}[{number}]", each)
    else:
        yield path, value


def _give(variables: list[tuple[str, dict[str, Any]]], hidden: Mapping[str, str]) -> None:
    """Set the value of each hidden variable."""
    missing, used = [], set()
    for path, each in variables:
        if not each["hidden"]:
            continue
        names = (f"{path}.{each['name']}", each["name"])
        found = next((name for name in names if name in hidden), None)
        if found is None:
            missing.append(names[0])
            continue
        used.add(found)
        each["value"] = hidden[found]
    unknown = [name for name in hidden if name not in used]
    if missing or unknown:
        raise HiddenValuesWanted(missing, unknown)


def _variables(spec: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The variables of a task and of its prechecks, each with where it belongs."""
    for path, table in zip(_ENVIRONMENTS, (spec, spec.get("precheck") or {}), strict=True):
        for each in table.get("env") or ():
            yield path, each


def _fields(trial: Mapping[str, Any]) -> Iterator[tuple[str, Any, bool]]:
    yield from _script_fields(trial[SCRIPT]) if kind_of(trial) == SCRIPT else _task_fields(trial)


def _script_fields(script: Mapping[str, Any]) -> Iterator[tuple[str, Any, bool]]:
    for key, value in script["spec"].items():
        if key == "data":
            for item in value:
                for name, each in item.items():
                    # Its files are those of the digest or of the address; the path is where it once lay.
                    yield f"script.data[{item['mount']}].{name}", each, name != "path"
            continue
        for path, each in leaves(key, value):
            said = path.startswith(_SAID_OF_THE_BUNDLE) and path != "bundle.manifest_sha256"
            yield f"script.{path}", each, not said and key not in _SHOWN_OF_A_SCRIPT
    yield "script.source", script.get("source"), False


def _task_fields(trial: Mapping[str, Any]) -> Iterator[tuple[str, Any, bool]]:
    task = trial[TASK]
    spec = task["spec"]
    for key, value in spec.items():
        if key not in {"env", "mounts"}:
            for path, each in leaves(key, value):
                yield f"task.{path}", each, key not in _SHOWN_OF_A_TASK
    for each in spec["env"]:
        for name, value in each.items():
            yield f"task.env[{each['name']}].{name}", value, name != "source"
    for mount in spec["mounts"]:
        for name, value in mount.items():
            by_digest = name == "ref" and mount["type"] in _CONTENT_MOUNTS
            yield f"task.mounts[{mount['mount_path']}].{name}", value, not by_digest
    for path, each in leaves("totals", task["totals"]):
        yield f"task.{path}", each, True
    yield "task.catalog_revision", task["catalog_revision"], False
    image = trial["image"]
    yield "image.digest", None if image is None else image["digest"], True
    for use in trial["contents"]:
        place = f"contents[{use['role']}]"
        yield f"{place}.content", f"{use['kind']} {use['name']}", True
        yield f"{place}.manifest_sha256", use["manifest_sha256"], True
        yield f"{place}.version", use["version"], False
