"""Where each unit of a gang goes on a Ray cluster: bundles of a placement group, and where members meet."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainshed.engines.contract import EngineError, Host, Launch, Meeting, Role
from trainshed.model.resources import Amounts, Gpu, Node

Json = dict[str, Any]
MODEL_LABEL, SIMULATED_LABEL = "trainshed-gpu-model", "trainshed-simulated"
"""Labels of a node (``ray start --labels``): its GPUs' model, and whether they are made up."""
_MIB = 1 << 20
_STORAGE_MB = 1 << 20
"""Ray knows nothing of disks: what a replica asks for is watched by its shim."""
_START_SECONDS, _CARRY_SECONDS = 600.0, 3600.0
_NODE_SHARE = 0.001
_PORTS = range(20_000, 32_000)
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_ROOT = "/tmp/trainshed-ray"  # noqa: S108 - on a node; folders in it are made for us alone


@dataclass(frozen=True, slots=True)
class Group:
    """The place of one unit."""

    gang: str
    rank: int
    size: int
    node: str
    """Address of the node; empty: wherever there is room."""
    ray: bool
    """Whether it is a member of a Ray task: Ray's own tasks then use its bundle (X8)."""
    start_seconds: float
    at: float
    """When it was launched (Unix seconds)."""


def check_id(attempt_id: str) -> str:
    if not _ID.fullmatch(attempt_id):
        raise EngineError("ATTEMPT_ID_INVALID", f"{attempt_id!r} is no attempt id", retryable=False)
    return attempt_id


def group_of(launch: Launch, *, is_ray: bool, now: float) -> Group:
    """A launch without a gang is a gang of one. Raises `EngineError` for what cannot be done here."""
    if not launch.argv:
        raise EngineError("LAUNCH_INVALID", "there is nothing to execute", retryable=False)
    if launch.image is not None:
        raise EngineError("IMAGES_UNAVAILABLE", NO_IMAGES, retryable=False)
    if launch.ssh is not None:
        message = "replicas on one node of a shared Ray cluster share its network: no login of their own"
        raise EngineError("NOT_SUPPORTED_BY_ENGINE", message, retryable=False)
    if launch.carry and any(mount.writable for mount in launch.mounts):
        message = "what is brought to a node is a copy: nothing that a program may change can be"
        raise EngineError("LAUNCH_INVALID", message, retryable=False)
    gang = launch.gang
    if gang is None:
        seconds = _CARRY_SECONDS if launch.carry else _START_SECONDS
        return Group(launch.attempt_id, 0, 1, launch.node, is_ray, seconds, now)
    seconds = _CARRY_SECONDS if launch.carry else gang.start_seconds
    return Group(gang.id, gang.rank, gang.size, gang.node, is_ray, seconds, now)


NO_IMAGES = (
    "programs run in the environment of the cluster's own nodes: a shared Ray cluster is not set up for "
    "image_uri; use `image: host`"
)


def is_ray_task(launches: Collection[Launch]) -> frozenset[str]:
    """The gangs among these that are Ray tasks: those with a head."""
    return frozenset(each.gang.id for each in launches if each.gang and each.gang.role is Role.HEAD)


def member(unit: str, group: Group, launch: Mapping[str, Any], instance: str) -> Json:
    """What the helper needs to know of one unit."""
    resources: dict[str, float] = {"CPU": launch["limits"]["cpus"]}
    if launch["gpus"]:
        resources["GPU"] = len(launch["gpus"])
    resources["memory"] = launch["limits"]["memory_mb"] * _MIB
    if group.node:
        resources[f"node:{group.node}"] = _NODE_SHARE
    submitter = group.ray and group.rank == group.size - 1
    return {
        "unit": unit,
        "gang": group.gang,
        "rank": group.rank,
        "size": group.size,
        "node": group.node,
        "root": root(unit, instance),
        # The submitter holds nothing: it sits beside the head (C19).
        "bundle": 0 if submitter else group.rank,
        "resources": resources,
    }


def root(unit: str, instance: str) -> str:
    """The folder of a unit on its node."""
    return f"{_ROOT}-{instance}/{unit}"


def node_of(said: Mapping[str, Any]) -> Node:
    """A node of the cluster as the accounting sees it, named by its address."""
    resources, labels = said["resources"], said["labels"]
    kinds = [name.partition(":")[2] for name in resources if name.startswith("accelerator_type:")]
    model = labels.get(MODEL_LABEL) or labels.get("ray.io/accelerator-type") or (kinds or ["GPU"])[0]
    simulated = str(labels.get(SIMULATED_LABEL, "")).lower() == "true"
    count = int(resources.get("GPU", 0))
    gpus = tuple(Gpu(index, model, f"{said['id']}-{index}", 0, simulated) for index in range(count))
    memory = int(resources.get("memory", 0)) // _MIB
    amounts = Amounts(count, int(resources.get("CPU", 0)), memory, _STORAGE_MB, memory)
    return Node(said["address"], gpus, amounts)


def meeting(gang_id: str, nodes: Sequence[str], slots: Sequence[int], taken: Collection[int]) -> Meeting:
    """Where a gang meets: the nodes' own addresses, and a port that no other gang of ours has."""
    if not nodes or len(nodes) != len(slots):
        message = f"a gang needs a node and slots for each member, not {len(nodes)} and {len(slots)}"
        raise EngineError("LAUNCH_INVALID", message, retryable=False)
    first = int.from_bytes(hashlib.sha256(gang_id.encode()).digest()[:4])
    for step in range(len(_PORTS)):
        port = _PORTS[(first + step) % len(_PORTS)]
        if port not in taken:
            break
    else:
        raise EngineError("NO_FREE_PORT", "gangs of ours have every port", retryable=True)
    hosts = tuple(Host(node, node, max(1, count)) for node, count in zip(nodes, slots, strict=True))
    return Meeting(hosts, port)
