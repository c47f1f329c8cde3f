"""What each engine can do for a task: one table; requests are refused by it, clusters described (c9)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from trainshed.model.training.catalog import Engine
from trainshed.model.training.runtime_env import runtime_env
from trainshed.model.training.spec import BOTH_KINDS, DEFAULT_IMAGE_PULL_RETRIES, HOST_IMAGE, Kind, TaskSpec

Kinds = frozenset[Kind]
_NEITHER: Kinds = frozenset()
_PYTORCH: Kinds = frozenset({Kind.PYTORCH})
_RAY: Kinds = frozenset({Kind.RAY})


@dataclass(frozen=True, slots=True)
class Capability:
    """Whether an engine honours a field, for which kinds, and what should be known about it."""

    field: str
    kinds: Kinds
    note: str = ""

    def as_dict(self) -> dict[str, object]:
        return {"field": self.field, "kinds": sorted(self.kinds), "note": self.note}


def _table(**fields: tuple[Kinds, str]) -> Mapping[str, Capability]:
    everything = {
        "image": (BOTH_KINDS, ""),
        "env": (BOTH_KINDS, ""),
        "mounts": (BOTH_KINDS, ""),
        "precheck": (_PYTORCH, ""),
        "fault_tolerance": (BOTH_KINDS, ""),
        "replace_node": (_PYTORCH, ""),
        "exit_notice": (_PYTORCH, ""),
        "metrics": (BOTH_KINDS, ""),
        "image_pull_retries": (BOTH_KINDS, ""),
        "ssh": (BOTH_KINDS, ""),
        "head": (_RAY, ""),
        "runtime_env_yaml": (_RAY, ""),
        "shared_storage": (_RAY, ""),
        "debug": (_RAY, ""),
        "autoscaling": (_RAY, ""),
    }
    found = {**everything, **fields}
    names = {"replace_node": "fault_tolerance.replace_node"}
    return MappingProxyType(
        {
            names.get(key, key): Capability(names.get(key, key), kinds, note)
            for key, (kinds, note) in found.items()
        }
    )


_SHARED = "the Ray cluster is shared with other tasks"
_OWN_IMAGE = (
    "replicas run in the cluster's own environment: `host`, or for kind ray an image that `image_uri` of the "
    "runtime environment names"
)
CAPABILITIES: Mapping[Engine, Mapping[str, Capability]] = MappingProxyType(
    {
        Engine.LOCAL: _table(
            replace_node=(_PYTORCH, "there is one machine: the faulty GPU is cordoned instead"),
            mounts=(BOTH_KINDS, "bind mounts where the system has namespaces, else symbolic links"),
        ),
        Engine.RAY: _table(
            image=(BOTH_KINDS, _OWN_IMAGE),
            image_pull_retries=(_NEITHER, "Ray pulls images itself and does not count"),
            env=(BOTH_KINDS, "kind ray: hidden values reach the driver, not its remote tasks"),
            ssh=(_NEITHER, f"{_SHARED}: replicas have no network of their own to log in to"),
            head=(_NEITHER, f"{_SHARED}: there is no head of its own"),
            shared_storage=(_NEITHER, f"{_SHARED}: nothing can be mounted at its /tmp/ray"),
            debug=(_NEITHER, f"{_SHARED}: it is not kept for one of them"),
            autoscaling=(_NEITHER, f"{_SHARED}: its size is not a task's to change"),
        ),
        Engine.KUBERNETES: _table(),
        Engine.SLURM: _table(
            shared_storage=(_RAY, "needs a container runtime or a private /tmp"),
            image_pull_retries=(BOTH_KINDS, "counted from the output of Pyxis or apptainer"),
        ),
    }
)
"""By engine and field. What is not in it works everywhere."""


def unsupported(task: TaskSpec, engine: Engine) -> Iterator[tuple[str, str]]:
    """Fields (without `spec.`) of a task that the engine cannot honour, each with a sentence why."""
    able = CAPABILITIES[engine]
    for field in _used(task):
        capability = able[field]
        if task.kind not in capability.kinds:
            yield field, f"engine {engine} cannot honour `{field}`: {capability.note}"
    if engine is Engine.RAY and task.image not in {"", HOST_IMAGE} and not _image_uri(task):
        yield "image", f"engine {engine} cannot honour `image`: {able['image'].note}"


def _image_uri(task: TaskSpec) -> bool:
    return task.kind is Kind.RAY and runtime_env(task.runtime_env_yaml).get("image_uri") == task.image


def _used(task: TaskSpec) -> Iterator[str]:
    """Fields that ask an engine for something."""
    asked = {
        "env": task.env,
        "mounts": task.mounts,
        "precheck": task.precheck.enabled,
        "fault_tolerance": task.fault_tolerance.enabled,
        "fault_tolerance.replace_node": task.fault_tolerance.replace_node,
        "exit_notice": task.exit_notice.enabled,
        "metrics": task.metrics.enabled,
        "image_pull_retries": task.image_pull_retries != DEFAULT_IMAGE_PULL_RETRIES,
        "ssh": task.ssh,
        "head": task.head.instance,
        "runtime_env_yaml": task.runtime_env_yaml.strip(),
        "shared_storage": task.shared_storage,
        "debug": task.debug.enabled,
        "autoscaling": task.autoscales,
    }
    return (field for field, wanted in asked.items() if wanted)
