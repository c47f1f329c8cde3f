"""The stored effective spec of a task as types again, and the class in which the task waits."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from trainshed.control.training.missing import is_offered, missing_of
from trainshed.model.resources import Amounts
from trainshed.model.training.catalog import Catalog, InstanceSpec
from trainshed.model.training.spec import (
    SUBMITTER_CPUS,
    SUBMITTER_MEMORY_MB,
    Autoscaling,
    AutoscalingMode,
    Debug,
    Endpoint,
    EnvVar,
    ExitNotice,
    FaultTolerance,
    Head,
    Instance,
    InstanceType,
    Kind,
    Metrics,
    Mount,
    MountType,
    NoticeSignal,
    Precheck,
    ResourceType,
    RoleGroup,
    SharedStorage,
    TaskSpec,
)
from trainshed.policy.gangs.snapshot import Choice, GangClass, GangWait, Plan, ReplicaNeed, Waiting
from trainshed.store.records import Task, Trial

_KNOWN = 4096


def spec_of(task: Task) -> TaskSpec:
    """The effective spec of a task. Hidden values are not in it: they read as empty (C9)."""
    return _read(task.spec)


@lru_cache(maxsize=_KNOWN)
def _read(text: str) -> TaskSpec:
    """Every check was made at acceptance; what is missing has its default."""
    said: Mapping[str, Any] = json.loads(text)
    options: dict[str, Any] = {}
    for key in ("public", "workers", "guarantee", "idle_supplement", "max_run_seconds", "ssh", "priority"):
        if said.get(key) is not None:
            options[key] = said[key]
    for key in ("spec_patience_seconds", "image_pull_retries", "runtime_env_yaml"):
        if said.get(key) is not None:
            options[key] = said[key]
    for key in ("region", "cluster", "project", "pool"):
        options[key] = said.get(key)
    for key, read in _PARTS.items():
        if said.get(key) is not None:
            options[key] = read(said[key])
    return TaskSpec(
        kind=Kind(said["kind"]),
        name_prefix=said.get("name_prefix", ""),
        image=said["image"],
        cmd=said["cmd"],
        resource_type=ResourceType(said["resource_type"]),
        instance=_instance(said["instance"]),
        labels=dict(said.get("labels") or {}),
        env=_env(said.get("env") or ()),
        mounts=tuple(_mount(each) for each in said.get("mounts") or ()),
        **options,
    )


def _instance(said: Mapping[str, Any]) -> Instance:
    kind = said.get("type")
    return Instance(
        None if kind is None else InstanceType(kind), tuple(said["specs"]), said.get("count_per_node", 1)
    )


def _env(said: Any) -> tuple[EnvVar, ...]:
    return tuple(EnvVar(each["name"], each.get("value") or "", bool(each.get("hidden"))) for each in said)


def _mount(said: Mapping[str, Any]) -> Mount:
    return Mount(
        MountType(said["type"]),
        said["ref"],
        said["mount_path"],
        said.get("sub_path"),
        bool(said.get("read_only")),
    )


def _metrics(said: Mapping[str, Any]) -> Metrics:
    ends = tuple(Endpoint(each["port"], each.get("path", "/metrics")) for each in said.get("endpoints") or ())
    return Metrics(bool(said.get("enabled")), ends)


def _notice(said: Mapping[str, Any]) -> ExitNotice:
    known = {key: said[key] for key in ("enabled", "timeout_seconds") if said.get(key) is not None}
    return ExitNotice(**known, signal=NoticeSignal(said.get("signal") or NoticeSignal.SIGUSR1))


def _autoscaling(said: Mapping[str, Any]) -> Autoscaling:
    known = {key: value for key, value in said.items() if key != "mode" and value is not None}
    return Autoscaling(**known, mode=AutoscalingMode(said.get("mode") or AutoscalingMode.DEFAULT))


def _plain(said: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in said.items() if value is not None}


_PARTS: Mapping[str, Any] = {
    "fault_tolerance": lambda said: FaultTolerance(**_plain(said)),
    "metrics": _metrics,
    "precheck": lambda said: Precheck(bool(said.get("enabled")), _env(said.get("env") or ())),
    "exit_notice": _notice,
    "head": lambda said: Head(_instance(said["instance"]) if said.get("instance") else None),
    "shared_storage": lambda said: SharedStorage(**_plain(said)),
    "debug": lambda said: Debug(**_plain(said)),
    "autoscaling": _autoscaling,
}


def waiting_of(trial: Trial, task: Task, catalog: Catalog) -> Waiting:
    """A queued task as a placement pass sees it."""
    key = class_of(task, catalog)
    return Waiting(
        id=trial.id,
        key=key,
        queued_at=task.queued_at,
        since=trial.updated_at,
        not_before=trial.not_before or None,
        plan=None if task.plan is None else _still(Plan.of(json.loads(task.plan)), key),
    )


def _still(plan: Plan, key: GangClass) -> Plan | None:
    """The plan, unless its choice is another one since the catalogue offers fewer specs."""
    if plan.choice >= len(key.choices):
        return None
    specs = {need.spec for need in key.choices[plan.choice].needs}
    return plan if specs == {part.spec for part in plan.parts} else None


def class_of(task: Task, catalog: Catalog) -> GangClass:
    """The class of equal tasks that this one waits in."""
    spec = spec_of(task)
    choices = choices_of(spec, catalog)
    missing = missing_of(spec, task, catalog)
    return GangClass(
        project=task.project_id,
        pool=task.pool,
        resource_type=ResourceType(task.resource_type),
        priority=task.priority,
        choices=choices or (Choice(()),),
        guarantee=task.guarantee,
        idle_supplement=spec.idle_supplement,
        max_run_seconds=spec.max_run_seconds,
        spec_patience_seconds=spec.spec_patience_seconds,
        excluded=frozenset(json.loads(task.excluded_nodes)),
        held=None if choices and not missing else GangWait.MISCONFIGURED,
        missing=missing,
    )


def choices_of(spec: TaskSpec, catalog: Catalog) -> tuple[Choice, ...]:
    """Every way to fill the wish list of which the pool still offers the specs (C22)."""
    pool = None if spec.pool is None else catalog.pool(spec.pool)
    found = []
    for choice in spec.choices():
        known = {name: catalog.spec(name) for name in (choice.spec, choice.head)}
        if all(is_offered(name, catalog, pool) for name in known):
            found.append(Choice(tuple(_need(group, known.get(group.spec)) for group in spec.roles(choice))))
    return tuple(found)


def _need(group: RoleGroup, spec: InstanceSpec | None) -> ReplicaNeed:
    if spec is None:
        amounts = Amounts(cpus=SUBMITTER_CPUS, memory_mb=SUBMITTER_MEMORY_MB)
        return ReplicaNeed(group.role, group.count, group.spec, group.units, amounts, None, group.charged)
    model = spec.gpu_model if spec.gpus else None
    amounts = spec.amounts(group.units)
    return ReplicaNeed(group.role, group.count, group.spec, group.units, amounts, model, group.charged)
