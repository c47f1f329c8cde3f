"""What is not wrong with a task, and its owner should know all the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trainshed.model.training.catalog import Engine
from trainshed.model.training.runtime_env import runtime_env
from trainshed.model.training.spec import Kind, MountType, TaskSpec


@dataclass(frozen=True, slots=True)
class Notice:
    """A warning of `validate` and of creation."""

    code: str
    path: str
    message: str

    def as_dict(self) -> dict[str, str]:
        return {"code": self.code, "path": self.path, "message": self.message}


def notices_of(task: TaskSpec, engine: Engine) -> Iterator[Notice]:
    """The warnings about a task whose fields are filled in."""
    if not _writes_somewhere(task):
        said = (
            "nothing that it writes outlives it: no volume is mounted for writing, and local disks are "
            "cleared after a restart"
        )
        yield Notice("NO_WRITABLE_VOLUME", "spec.mounts", said)
    if engine is Engine.LOCAL and task.fault_tolerance.replace_node:
        said = "there is one machine: a faulty GPU is cordoned, and the task goes on with others of it"
        yield Notice("NODE_REPLACEMENT_LIMITED", "spec.fault_tolerance.replace_node", said)
    yield from _not_enabled(task)
    if task.kind is Kind.RAY:
        yield from _overrides(task)


def _writes_somewhere(task: TaskSpec) -> bool:
    """C14."""
    kept = task.shared_storage is not None and not task.shared_storage.cleanup
    return kept or any(mount.type is MountType.VOLUME and not mount.read_only for mount in task.mounts)


def _not_enabled(task: TaskSpec) -> Iterator[Notice]:
    settings = {
        "precheck": bool(task.precheck.env) and not task.precheck.enabled,
        "metrics": bool(task.metrics.endpoints) and not task.metrics.enabled,
        "autoscaling": task.autoscaling is not None and not task.autoscaling.enabled,
        "fault_tolerance": task.fault_tolerance.replace_node and not task.fault_tolerance.enabled,
    }
    for field, idle in settings.items():
        if idle:
            said = f"`{field}` has settings but is not enabled; they have no effect"
            yield Notice("OPTION_NOT_ENABLED", f"spec.{field}.enabled", said)


def _overrides(task: TaskSpec) -> Iterator[Notice]:
    """C47. Names only: values may be secrets."""
    own = {each.name: each.value for each in task.env}
    given = runtime_env(task.runtime_env_yaml).get("env_vars") or {}
    for name, value in given.items():
        if name in own and own[name] != value:
            said = f"{name} has another value in `env`; inside Ray workers the runtime environment wins"
            yield Notice("RUNTIME_ENV_OVERRIDES", f"spec.runtime_env_yaml.env_vars.{name}", said)
