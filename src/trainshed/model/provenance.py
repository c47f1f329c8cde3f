"""A Job's manifest: everything that was frozen, in one document with a digest; and comparing two of them.

The document has a part ``frozen``, which never changes and which the digest is of, and a part ``outcome``,
which grows while the Job runs. Pure: the server writes it, the client reads, checks and compares it.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trainshed.model import provenance_kinds
from trainshed.model.provenance_kinds import RUNNER, HiddenValuesWanted, kind_of, leaves
from trainshed.model.strict_json import canonical_json

JOB_MANIFEST_SCHEMA = "trainshed.job-manifest/1"
_PARTS = ("schema", "digest", "frozen", "outcome")
_RESOURCES = ("gpu_type", "gpus", "cpus", "memory_mb", "storage_mb", "shm_mb")
_REFERENCE = ("uri", "manifest_sha256")
_INPUT = (*_REFERENCE, "config", "split")
_SNAPSHOT = ".profile.sha256"
_MISSING = object()
_MOST_FAULTS = 50
_VALUE_CHARS = 60


@dataclass(frozen=True, slots=True)
class _OrNull:
    """A shape of what may also be ``null``, and may lack if ``optional``."""

    shape: Any
    optional: bool = False


@dataclass(frozen=True, slots=True)
class _Each:
    """An object with any keys whose values have one shape."""

    shape: Any


# An object with these keys at least, a list of one shape, a string, or anything: then the server checks it.
_VARIABLE = {"name": str, "value": _OrNull(str), "hidden": Any}
_SCRIPT = {"spec": {"bundle": {"manifest_sha256": str}, "data": [{"mount": str}], "project_dir": str}}
_TASK = {
    "spec": {
        "env": [{**_VARIABLE, "source": str}],
        "mounts": [{"type": str, "ref": str, "mount_path": str}],
        "precheck": _OrNull({"env": _OrNull([_VARIABLE], optional=True)}, optional=True),
    },
    "totals": _Each(Any),
    "catalog_revision": Any,
}
_FROZEN: Mapping[str, Any] = {
    "job": {"job_id": str, "type": str, "platform_version": _OrNull(str)},
    "runner_files": _Each([{"path": str, "mode": str, "sha256": str}]),
    "trials": [
        {
            "name": str,
            "runner": {
                "name": str,
                "revision": str,
                "snapshot_sha256": str,
                "selector": str,
                "source_ref": _OrNull(str),
            },
            "entrypoint": str,
            "command": _OrNull(str),
            "params": _Each(Any),
            "outputs": [str],
            "tags": _Each(Any),
            "image": _OrNull({"requested": str, "resolved": str, "digest": str}),
            "profile": _OrNull(
                {
                    "sha256": str,
                    "document": {
                        "schema": str,
                        "inputs": _Each(_Each(Any)),
                        "plugins": [{"name": str}],
                        "recipe": _Each(Any),
                        "parameters_given": _OrNull(_Each(Any), optional=True),
                    },
                }
            ),
            "contents": [{"role": str, "kind": str, "name": str, "version": str, "manifest_sha256": str}],
            "resources": dict.fromkeys(_RESOURCES, Any),
            "timeout_seconds": Any,
            "resume_from": _OrNull({"checkpoint_id": str, "files": [{"name": str, "sha256": str}]}),
            "script": _OrNull(_SCRIPT, optional=True),
            "task": _OrNull(_TASK, optional=True),
        }
    ],
}
"""What is read of the part that never changes."""


class ManifestFault(ValueError):
    """The document is no Job manifest, or not the one that its digest names."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One field in which two manifests differ. ``None`` stands for a field that one of them lacks."""

    path: str
    """``trials[0].resources.gpus``."""
    before: Any
    after: Any
    runs: bool
    """Whether it is part of what runs; else it only says how that was named, or by which program."""

    def as_dict(self) -> dict[str, Any]:
        return {"path": self.path, "before": self.before, "after": self.after, "runs": self.runs}


def manifest_digest(frozen: Mapping[str, Any]) -> str:
    """The SHA-256 of the canonical JSON of the part that never changes."""
    return hashlib.sha256(canonical_json(frozen).encode()).hexdigest()


def job_manifest(frozen: Mapping[str, Any], outcome: Mapping[str, Any]) -> dict[str, Any]:
    """The whole document."""
    frozen = {"schema": JOB_MANIFEST_SCHEMA, **frozen}
    return {
        "schema": JOB_MANIFEST_SCHEMA,
        "digest": manifest_digest(frozen),
        "frozen": frozen,
        "outcome": dict(outcome),
    }


def check_manifest(document: Any) -> Mapping[str, Any]:
    """The frozen part of a manifest, proved to be the one that its digest names.

    Everything that `rerun_request` and `compare` use is there, in its shape. Raises `ManifestFault` with a
    sentence that names all that is wrong (the first 50 of it).
    """
    if not isinstance(document, dict) or document.keys() != set(_PARTS):
        raise ManifestFault(f"a Job manifest is an object with {', '.join(_PARTS)}")
    frozen = document["frozen"]
    if not isinstance(frozen, dict) or frozen.get("schema") != JOB_MANIFEST_SCHEMA:
        raise ManifestFault(f"its frozen part has no schema {JOB_MANIFEST_SCHEMA}; another program wrote it")
    found = manifest_digest(frozen)
    if document["digest"] != found:
        raise ManifestFault(
            f"its frozen part has the digest {found}, and it says {str(document['digest'])[:80]}: "
            "it was changed after it was written"
        )
    faults = list(itertools.islice(_shape_faults(_FROZEN, frozen), _MOST_FAULTS))
    faults = faults or list(itertools.islice(_files_faults(frozen), _MOST_FAULTS))
    if faults:
        raise ManifestFault(f"its frozen part is not complete: {'; '.join(faults)}")
    return frozen


def rerun_request(
    frozen: Mapping[str, Any],
    request_id: str,
    *,
    hidden: Mapping[str, str] | None = None,
    by_digest: Collection[str] = (),
) -> dict[str, Any]:
    """A submission that runs again what was frozen: Runners by commit, images and content by digest.

    ``hidden`` has the hidden values of a training task. An input of a Profile keeps the label that it was
    named by, beside its digest, unless its URI is among ``by_digest``: those are named by the digest alone.
    Raises `HiddenValuesWanted` where the hidden values are others than it needs.
    """
    asked = {"type": frozen["job"]["type"], "request_id": request_id}
    kinds = [kind_of(trial) for trial in frozen["trials"]]
    if kinds != [RUNNER] * len(kinds):
        return {**asked, "spec": provenance_kinds.spec_again(frozen["trials"][0], hidden or {})}
    if hidden:
        raise HiddenValuesWanted([], list(hidden))
    return {
        **asked,
        "trials": [{"name": trial["name"], "spec": _spec(trial, by_digest)} for trial in frozen["trials"]],
    }


def compare(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Difference]:
    """Where the frozen parts of two manifests differ, in what runs and in how it was named.

    Ids, request ids, times and who submitted are those of each Job and are not compared.
    """
    old, new = dict(_fields(before)), dict(_fields(after))
    found = []
    for path in dict.fromkeys([*old, *new]):
        was, runs = old.get(path, (_MISSING, True))
        now, runs = new.get(path, (_MISSING, runs))
        if was is _MISSING or now is _MISSING or not _same(was, now):
            found.append(Difference(path, _shown(was), _shown(now), runs))
    # A snapshot is compared value by value; its digest differs also where content only is named otherwise.
    renamed = {each.path.partition(".profile.")[0] for each in found if _is_uri(each)}
    found = [
        replace(each, runs=False) if each.path.removesuffix(_SNAPSHOT) in renamed else each for each in found
    ]
    return sorted(found, key=lambda each: not each.runs)


def _is_uri(found: Difference) -> bool:
    return not found.runs and ".profile." in found.path and found.path.endswith(".uri")


def _shape_faults(shape: Any, value: Any, path: str = "") -> Iterator[str]:
    """What is not as it should be, each as a sentence in ASCII."""
    if isinstance(shape, _OrNull):
        if value is None or (value is _MISSING and shape.optional):
            return
        shape = shape.shape
    wanted, words = _kind(shape)
    if value is _MISSING:
        yield f"`{path}` is missing"
    elif not isinstance(value, wanted):
        yield f"`{path}` must be {words}, not {_told(value)}"
    else:
        for inner, each, place in _inside(shape, value, path):
            yield from _shape_faults(inner, each, place)


def _kind(shape: Any) -> tuple[type, str]:
    if shape is Any:
        return object, "anything"
    if shape is str:
        return str, "a string"
    return (list, "a list") if isinstance(shape, list) else (dict, "an object")


def _inside(shape: Any, value: Any, path: str) -> Iterator[tuple[Any, Any, str]]:
    """The shape, the value and the place of everything in a list or an object."""
    if isinstance(shape, list):
        for number, each in enumerate(value):
            yield shape[0], each, f"{path}[{number}]"
    elif isinstance(shape, _Each):
        for key, each in value.items():
            yield shape.shape, each, f"{path}[{_told(key)}]"
    elif isinstance(shape, Mapping):
        for key, inner in shape.items():
            yield inner, value.get(key, _MISSING), f"{path}.{key}".lstrip(".")


def _files_faults(frozen: Mapping[str, Any]) -> Iterator[str]:
    for number, trial in enumerate(frozen["trials"]):
        if (kind := kind_of(trial)) != RUNNER:
            if len(frozen["trials"]) > 1:
                yield f"`trials[{number}]` is a {kind}, which is a Job by itself"
            continue
        snapshot = trial["runner"]["snapshot_sha256"]
        if snapshot not in frozen["runner_files"]:
            yield f"`runner_files` has no {_told(snapshot)}, the snapshot of `trials[{number}]`"


def _told(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _VALUE_CHARS else f"{text[:_VALUE_CHARS]}..."


def _spec(trial: Mapping[str, Any], by_digest: Collection[str]) -> dict[str, Any]:
    runner, image = trial["runner"], trial["image"]
    spec: dict[str, Any] = {
        "runner": f"{runner['name']}@{runner['revision']}",
        "resources": {key: trial["resources"][key] for key in _RESOURCES},
        "timeout_seconds": trial["timeout_seconds"],
    }
    if image is not None:
        spec["image"] = image["resolved"]
    if trial["command"] is not None:
        spec["command"] = trial["command"]
    if trial["tags"]:
        spec["tags"] = dict(trial["tags"])
    if trial["profile"] is not None:
        spec["profile"] = _profile(trial["profile"]["document"], by_digest)
    if trial["resume_from"] is not None:
        spec["resume_from"] = trial["resume_from"]["checkpoint_id"]
    return spec


def labelled(reference: Any) -> str | None:
    """The URI of a reference that a label names there, or ``None``: a digest does, or it is no reference."""
    uri = reference.get("uri") if isinstance(reference, Mapping) else None
    if not isinstance(uri, str) or uri.endswith(f"@{reference.get('manifest_sha256')}"):
        return None
    return uri


def _profile(snapshot: Mapping[str, Any], by_digest: Collection[str]) -> dict[str, Any]:
    """The Profile that a snapshot was made of; every reference in it carries its digest already (E99)."""
    given = snapshot.get("parameters_given")
    profile: dict[str, Any] = {
        "schema": snapshot["schema"],
        "inputs": {name: _input(each, by_digest) for name, each in snapshot["inputs"].items()},
        "plugins": [_some(each, _REFERENCE) for each in snapshot["plugins"]],
    }
    if given is None:
        return {**profile, "recipe": dict(snapshot["recipe"])}
    return {**profile, "recipe": _some(snapshot["recipe"], _REFERENCE), "parameters": dict(given)}


def _input(each: Mapping[str, Any], by_digest: Collection[str]) -> dict[str, Any]:
    found = _some(each, _INPUT)
    uri = labelled(each)
    if uri is not None and uri in by_digest:
        found["uri"] = f"{uri.partition('@')[0]}@{each.get('manifest_sha256')}"
    return found


def _some(table: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    return {key: table[key] for key in keys if key in table}


def _fields(frozen: Mapping[str, Any]) -> Iterator[tuple[str, tuple[Any, bool]]]:
    """Every field to compare: its path, its value, whether it is part of what runs."""
    yield "trials", (len(frozen["trials"]), True)
    for number, trial in enumerate(frozen["trials"]):
        own = kind_of(trial) != RUNNER
        runs = provenance_kinds.what_runs(trial) if own else _what_runs(trial, frozen["runner_files"])
        for path, value in runs:
            yield f"trials[{number}].{path}", (value, True)
        for path, value in provenance_kinds.how_named(trial) if own else _how_named(trial):
            yield f"trials[{number}].{path}", (value, False)
    yield "job.platform_version", (frozen["job"]["platform_version"], False)


def _what_runs(trial: Mapping[str, Any], files: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    runner = trial["runner"]
    yield "name", trial["name"]
    yield "runner.name", runner["name"]
    yield "runner.revision", runner["revision"]
    yield "runner.snapshot_sha256", runner["snapshot_sha256"]
    for file in files[runner["snapshot_sha256"]]:
        yield f"runner.files[{file['path']}]", f"{file['mode']} {file['sha256']}"
    for key in ("entrypoint", "command", "outputs", "timeout_seconds"):
        yield key, trial[key]
    for table in ("params", "tags", "resources"):
        for key, value in trial[table].items():
            yield f"{table}.{key}", value
    yield "image.digest", None if trial["image"] is None else trial["image"]["digest"]
    if trial["profile"] is not None:
        snapshot = trial["profile"]["document"]
        named = dict(_uris(snapshot))
        yield "profile.sha256", trial["profile"]["sha256"]
        yield from (each for each in leaves("profile", snapshot) if each[0] not in named)
        for path, uri in named.items():
            yield f"{path.removesuffix('uri')}content", uri.partition("@")[0]
    for use in trial["contents"]:
        place = f"contents[{use['role']}]"
        yield f"{place}.content", f"{use['kind']} {use['name']}"
        yield f"{place}.manifest_sha256", use["manifest_sha256"]
    if trial["resume_from"] is not None:
        for file in trial["resume_from"]["files"]:
            yield f"resume_from.files[{file['name']}]", file["sha256"]


def _how_named(trial: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    runner, image = trial["runner"], trial["image"]
    yield "runner.selector", runner["selector"]
    yield "runner.source_ref", runner["source_ref"]
    yield "image.requested", None if image is None else image["requested"]
    yield "image.resolved", None if image is None else image["resolved"]
    if trial["profile"] is not None:
        yield from _uris(trial["profile"]["document"])
    for use in trial["contents"]:
        yield f"contents[{use['role']}].version", use["version"]
    if trial["resume_from"] is not None:
        yield "resume_from.checkpoint_id", trial["resume_from"]["checkpoint_id"]


def _uris(snapshot: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The URIs in a snapshot, each by its path: the digest beside it says what it names, however it does."""
    plugins = snapshot["plugins"]
    places = [(f"profile.plugins[{number}]", each) for number, each in enumerate(plugins)]
    for part in ("inputs", "dependencies"):
        table = snapshot.get(part)
        if isinstance(table, Mapping):
            places += [(f"profile.{part}.{name}", each) for name, each in table.items()]
    if snapshot.get("parameters_given") is not None:  # of v1 `recipe` holds parameters
        places.append(("profile.recipe", snapshot["recipe"]))
    for place, each in places:
        if isinstance(each, Mapping) and isinstance(each.get("uri"), str) and "manifest_sha256" in each:
            yield f"{place}.uri", each["uri"]


def _same(was: Any, now: Any) -> bool:
    """Equal as JSON: ``1`` is not ``true``."""
    return canonical_json(was) == canonical_json(now)


def _shown(value: Any) -> Any:
    return None if value is _MISSING else value
