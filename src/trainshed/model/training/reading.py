"""A training task as it is sent: every rule that needs no catalogue, all faults at once.

Serves the contract "Create Training" a1-a6. `resolve.judge` goes on where this ends.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainshed.model.errors import Fault, Refusal
from trainshed.model.submission import read_request_id
from trainshed.model.training.catalog import DEFAULT_MOUNT_ROOTS
from trainshed.model.training.field_table import MAX_COUNT, MAX_PREFIX_CHARS, NAME_PREFIX
from trainshed.model.training.fields import CHILDREN, ROOT_CHILDREN
from trainshed.model.training.reading_environment import read_command, read_env, read_image, read_mounts
from trainshed.model.training.reading_options import (
    read_alarms,
    read_autoscaling,
    read_debug,
    read_exit_notice,
    read_fault_tolerance,
    read_head,
    read_id,
    read_instance,
    read_labels,
    read_metrics,
    read_precheck,
    read_shared_storage,
    read_smoke,
)
from trainshed.model.training.runtime_env import read_runtime_env
from trainshed.model.training.sections import Notes, Section, kind_of, shown_short
from trainshed.model.training.spec import (
    DEFAULT_IMAGE_PULL_RETRIES,
    GUARANTEE_DEFAULTS,
    MAX_WORKERS,
    TASK_TYPES,
    Instance,
    Kind,
    ResourceType,
    TaskRequest,
    TaskSpec,
)

SPEC_PATH = "spec"
_PREFIX = re.compile(NAME_PREFIX)
_TRAINING_KINDS = frozenset({*Kind, *TASK_TYPES})


@dataclass(frozen=True, slots=True)
class Reading:
    """What a document says as far as it can be read, and what is wrong with it."""

    request: TaskRequest
    """Placeholders stand for what is faulty; see ``broken``."""
    faults: tuple[Fault, ...]
    broken: frozenset[str]
    """Fields (`instance.specs`) whose value in ``request`` nobody wrote."""
    places: Mapping[str, Sequence[int]]
    """By list (`mounts`): where in the document each entry of ``request`` stands."""
    left_out: int = 0
    """Faults beside ``faults``, which were counted only."""


def is_training(document: Any) -> bool:
    """Whether a submission is a training task: of kind pytorch or ray, or written like one."""
    spec = document.get("spec") if isinstance(document, dict) else None
    if not isinstance(spec, dict):
        return False
    kind = spec.get("kind")
    if isinstance(kind, str) and kind in _TRAINING_KINDS:
        return True
    return "task_type" in spec or ("name_prefix" in spec and "runner" not in spec)


def read_task(
    document: Any,
    mount_roots: Iterable[str] = DEFAULT_MOUNT_ROOTS,
    *,
    request_id_required: bool = False,
) -> TaskRequest:
    """The request that ``document`` (decoded JSON or YAML) is; raises `Refusal` with all faults."""
    reading = read_document(document, mount_roots, request_id_required=request_id_required)
    if reading.faults:
        raise Refusal(reading.faults, left_out=reading.left_out)
    return reading.request


def read_document(
    document: Any,
    mount_roots: Iterable[str] = DEFAULT_MOUNT_ROOTS,
    *,
    request_id_required: bool = False,
) -> Reading:
    """`read_task` for those who look for more faults. Raises `Refusal` where there is no spec to look at."""
    if not isinstance(document, dict):
        raise Refusal.of("INVALID_REQUEST", f"the body must be a JSON object, not {kind_of(document)}")
    notes = Notes()
    root = Section(document, "", "", ROOT_CHILDREN, notes)
    if root.values.get("type", "train") != "train":
        said = f'`type` must be "train", not {shown_short(root.values["type"])}'
        root.refuse("type", "INVALID_JOB_TYPE", said)
    request_id = None
    if "request_id" in root or request_id_required:
        request_id = read_request_id(root.values, notes.faults)
    spec = root.values.get("spec")
    if not isinstance(spec, dict):
        said = "is missing" if "spec" not in root else f"must be a map, not {kind_of(spec)}"
        root.refuse("spec", "FIELD_REQUIRED", f"`spec` {said}")
        raise Refusal(notes.faults.faults, left_out=notes.faults.left_out)
    notes.kind = _kind(spec, notes)
    task = _spec(Section(spec, SPEC_PATH, "", CHILDREN, notes), notes, mount_roots)
    request = TaskRequest(
        spec=task,
        request_id=request_id,
        allow_duplicate=root.flag("allow_duplicate") if "allow_duplicate" in root else None,
        smoke=read_smoke(root),
    )
    return Reading(
        request,
        tuple(notes.faults.faults),
        frozenset(notes.broken),
        notes.places,
        notes.faults.left_out,
    )


def _kind(spec: Mapping[str, Any], notes: Notes) -> Kind | None:
    """C4, before anything else is read: it decides which fields there are."""
    given = {key: spec[key] for key in ("kind", "task_type") if key in spec}
    words = {"kind": {each.value: each for each in Kind}, "task_type": dict(TASK_TYPES)}
    kinds = []
    for key, value in given.items():
        found = words[key].get(value) if isinstance(value, str) else None
        if found is None:
            said = f"`{key}` must be {' or '.join(words[key])}, not {shown_short(value)}"
            notes.faults.add(f"{SPEC_PATH}.{key}", "KIND_UNKNOWN", said)
        else:
            kinds.append(found)
    if not given:
        notes.faults.add(f"{SPEC_PATH}.kind", "KIND_UNKNOWN", "`kind` is missing; write pytorch or ray")
    if len(set(kinds)) > 1:
        said = f"`kind` says {given['kind']}, `task_type` says {given['task_type']}"
        notes.faults.add(f"{SPEC_PATH}.task_type", "KIND_CONFLICT", said)
    if len(kinds) == len(given) and len(set(kinds)) == 1:
        return kinds[0]
    notes.broken.add("kind")
    return None


def _spec(spec: Section, notes: Notes, mount_roots: Iterable[str]) -> TaskSpec:
    kind = notes.kind
    instance = read_instance(spec) or Instance(None, ())
    workers = spec.whole("workers", 0, "WORKERS_INVALID", least=0, most=MAX_WORKERS)
    resource_type = _resource_type(spec)
    return TaskSpec(
        kind=kind or Kind.PYTORCH,
        name_prefix=_name_prefix(spec),
        image=read_image(spec),
        cmd=read_command(spec),
        resource_type=resource_type or ResourceType.RESERVED,
        instance=instance,
        region=read_id(spec, "region"),
        cluster=read_id(spec, "cluster"),
        project=read_id(spec, "project"),
        pool=read_id(spec, "pool"),
        public=spec.flag("public"),
        labels=read_labels(spec),
        env=read_env(spec, kind),
        mounts=read_mounts(spec, mount_roots),
        workers=workers,
        guarantee=_guarantee(spec, resource_type),
        idle_supplement=_idle_supplement(spec, resource_type),
        priority=_priority(spec),
        max_run_seconds=_seconds(spec, "max_run_seconds", 1),
        spec_patience_seconds=_seconds(spec, "spec_patience_seconds", 0) or 0,
        fault_tolerance=read_fault_tolerance(spec),
        metrics=read_metrics(spec),
        image_pull_retries=spec.whole(
            "image_pull_retries", DEFAULT_IMAGE_PULL_RETRIES, "IMAGE_PULL_RETRIES_INVALID", least=-1
        ),
        ssh=spec.flag("ssh"),
        alarms=read_alarms(spec),
        precheck=read_precheck(spec, instance),
        exit_notice=read_exit_notice(spec),
        head=read_head(spec),
        runtime_env_yaml=_runtime_env(spec),
        shared_storage=read_shared_storage(spec),
        debug=read_debug(spec),
        autoscaling=read_autoscaling(spec, None if "workers" in notes.broken else workers),
    )


def _name_prefix(spec: Section) -> str:
    value = spec.values.get("name_prefix")
    if isinstance(value, str) and _PREFIX.fullmatch(value):
        return value
    if isinstance(value, str):
        said = f"is {shown_short(value)}; `{proposed_prefix(value)}` would do"
    else:
        said = "is missing" if "name_prefix" not in spec else f"must be a string, not {kind_of(value)}"
    rule = f"1 to {MAX_PREFIX_CHARS} lower-case letters, digits and hyphens, no hyphen first or last"
    spec.refuse("name_prefix", "NAME_PREFIX_INVALID", f"`name_prefix` {said} ({rule})")
    return ""


def proposed_prefix(text: str) -> str:
    """The nearest name that the rule of C3 allows."""
    plain = unicodedata.normalize("NFKD", text[: 4 * MAX_PREFIX_CHARS]).encode("ascii", "ignore").decode()
    words = re.findall(r"[a-z0-9]+", plain.lower())
    return "-".join(words)[:MAX_PREFIX_CHARS].strip("-") or "task"


def _resource_type(spec: Section) -> ResourceType | None:
    if "resource_type" not in spec:
        names = ", ".join(ResourceType)
        spec.refuse("resource_type", "RESOURCE_TYPE_UNKNOWN", f"`resource_type` is missing; use {names}")
        return None
    return spec.word("resource_type", ResourceType, "RESOURCE_TYPE_UNKNOWN")


def _guarantee(spec: Section, resource_type: ResourceType | None) -> bool | None:
    """C26; `false` may be said of any type."""
    if "guarantee" not in spec:
        return None
    value = spec.flag("guarantee")
    if value and resource_type is not None and GUARANTEE_DEFAULTS[resource_type] is None:
        said = f"`guarantee` is not offered for resource type {resource_type}"
        spec.refuse("guarantee", "GUARANTEE_NOT_OFFERED", said)
    return value


def _idle_supplement(spec: Section, resource_type: ResourceType | None) -> bool:
    value = spec.flag("idle_supplement")
    if not value or resource_type is None:
        return value
    if resource_type is not ResourceType.RESERVED:
        said = f"`idle_supplement` is not offered for resource type {resource_type}"
        spec.refuse("idle_supplement", "IDLE_SUPPLEMENT_NOT_OFFERED", said)
    elif spec.values.get("guarantee") is True:
        said = "a task with `guarantee` runs on its own units only"
        spec.refuse("idle_supplement", "IDLE_SUPPLEMENT_NOT_OFFERED", said)
    return value


def _priority(spec: Section) -> str | int | None:
    value = spec.values.get("priority")
    if "priority" not in spec:
        return None
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= MAX_COUNT:
        return value
    if isinstance(value, str):
        return read_id(spec, "priority", "PRIORITY_NOT_ALLOWED")
    said = f"`priority` must be a class or a whole number, not {shown_short(value)}"
    spec.refuse("priority", "PRIORITY_NOT_ALLOWED", said)
    return None


def _seconds(spec: Section, key: str, least: int) -> int | None:
    return spec.whole(key, least, "FIELD_INVALID", least=least) if key in spec else None


def _runtime_env(spec: Section) -> str:
    value = spec.values.get("runtime_env_yaml", "")
    if not isinstance(value, str):
        said = f"`runtime_env_yaml` must be a string of YAML, not {kind_of(value)}"
        spec.refuse("runtime_env_yaml", "RUNTIME_ENV_YAML", said)
        return ""
    before = spec.faults.count
    read_runtime_env(value, spec.at("runtime_env_yaml"), spec.faults)
    return value if spec.faults.count == before else ""
