"""LAUNCH for gangs: one `Launch` a member, from what was frozen (C15, C41-C45, promise P7)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from trainshed.control.launching import GpusMissing
from trainshed.control.training import ray_roles
from trainshed.control.training.frozen import spec_of
from trainshed.control.training.holding import parts_of
from trainshed.control.training.keys import Keys
from trainshed.control.training.preparing import GangPrepared, volume_path
from trainshed.engines.contract import (
    Endpoint,
    ExitNotice,
    Gang,
    Host,
    Launch,
    Limits,
    Meeting,
    Mount,
    Precheck,
    Role,
    TreeFile,
)
from trainshed.model.resources import (
    GPU_SHARE_SHM_MB,
    GPU_SHARE_STORAGE_MB,
    Amounts,
    Gpu,
    Node,
)
from trainshed.model.training.catalog import Catalog
from trainshed.model.training.runtime_env import runtime_env
from trainshed.model.training.spec import EnvVar, Kind, TaskSpec
from trainshed.model.training.spec import Role as TaskRole
from trainshed.policy.gangs.snapshot import Part
from trainshed.store.gangs import Gang as HeldGang
from trainshed.store.gangs import unit_id
from trainshed.store.records import Task

SAMPLE_SECONDS = 15.0
"""How often resources and endpoints are measured (C37)."""
START_SECONDS = 600.0
"""How long members wait for one another."""
_SUFFIX_FROM = 2


@dataclass(frozen=True, slots=True)
class Frame:
    """What all members of one Attempt have in common."""

    gang: HeldGang
    number: int
    """Of the Attempt, from 1."""
    meeting: Meeting
    prepared: GangPrepared
    secrets: Mapping[str, str]
    """Hidden values by variable (C9)."""
    check_secrets: Mapping[str, str]
    """Hidden values of the check before training (C32)."""
    keys: Keys
    folder: Path
    """Of the Attempt; for files that the engine copies."""
    catalog: Catalog
    nodes: Sequence[Node]
    grace_seconds: float
    joining: Mapping[int, Host] = field(default_factory=dict)
    """Where those are reached that join the gang later, by rank (C51)."""


def slots_of(part: Part) -> int:
    """Processes that a member is meant for: its GPUs, 1 on CPU specs (C39)."""
    return len(part.gpus) or 1


def build_launches(frame: Frame) -> list[Launch]:
    """The launches of a gang by rank; the same rows give the same launches. Raises `GpusMissing`."""
    spec, parts = spec_of(frame.gang.task), parts_of(frame.gang.allocation)
    if spec.kind is Kind.RAY:
        return _ray(frame, spec, parts)
    argv = ("bash", "-c", spec.cmd)
    return [_launch(frame, spec, part, argv, _rendezvous(frame, spec, part), (), ()) for part in parts]


def build_joins(frame: Frame, hosts: Mapping[int, Host]) -> list[Launch]:
    """Launches of workers of a Ray task that join its gang, by rank; likewise (C51). Raises `GpusMissing`."""
    spec, parts = spec_of(frame.gang.task), parts_of(frame.gang.allocation)
    frame = replace(frame, joining=hosts)
    return _ray(frame, spec, [part for part in parts if part.rank == 0 or part.rank in hosts])


def meeting_of(gang: HeldGang) -> Meeting:
    """Where a gang that was launched met."""
    said = json.loads(gang.allocation.meeting or '{"hosts": [], "port": 0}')
    hosts = tuple(Host(*host) for host in said["hosts"])
    return Meeting(hosts, said["port"], said.get("dashboard_port", 0))


def _launch(
    frame: Frame,
    spec: TaskSpec,
    part: Part,
    argv: tuple[str, ...],
    own: Mapping[str, str],
    files: Sequence[TreeFile],
    mounts: tuple[Mount, ...],
    extra_grace: float = 0.0,
) -> Launch:
    gang, size = frame.gang, len(frame.meeting.hosts)
    pool = frame.catalog.pool(gang.task.pool)
    check = None
    if spec.precheck.enabled:
        thresholds = pool.precheck if pool is not None else None
        wanted = {
            "min_tflops": thresholds.gemm_tflops if thresholds else 0.0,
            "min_bus_gbps": thresholds.allreduce_gb_per_second if thresholds else 0.0,
        }
        check = Precheck(
            env=_shown(spec.precheck.env),
            secrets=frame.check_secrets,
            thresholds={name: value for name, value in wanted.items() if value > 0},
            timeout_seconds=float(thresholds.timeout_seconds if thresholds else 600),
        )
    notice = spec.exit_notice
    ends = spec.metrics.endpoints if spec.metrics.enabled else ()
    return Launch(
        attempt_id=unit_id(gang.attempt_id, part.rank),
        argv=argv,
        # Low to high (C10): what the platform suggests, the task's own, what is injected.
        env={"PYTHONUNBUFFERED": "1", **_shown(spec.env), **own, **context(frame)},
        files=files,
        gpus=_gpus(part, frame.nodes),
        limits=limits_of(part.amounts),
        timeout_seconds=gang.allocation.timeout_seconds,
        stop_grace_seconds=frame.grace_seconds + extra_grace,
        image=gang.trial.image_resolved,
        mounts=(*frame.prepared.mounts, *mounts),
        gang=Gang(
            id=gang.attempt_id,
            rank=part.rank,
            size=size,
            role=Role(part.role.value),
            node=part.node,
            meeting=frame.meeting,
            start_seconds=START_SECONDS,
            # Workers that begin together have the ranks from 1.
            optional=tuple(range(1, size - 1)) if spec.autoscales else (),
            host=frame.joining.get(part.rank),
        ),
        secrets=frame.secrets,
        notice=ExitNotice(float(notice.timeout_seconds), notice.signal.value) if notice.enabled else None,
        precheck=check,
        endpoints=tuple(Endpoint(end.port, end.path) for end in ends),
        sample_seconds=SAMPLE_SECONDS,
        # Keys were made for those that begin together.
        ssh=frame.keys.ssh if part.rank < size else None,
    )


def context(frame: Frame) -> dict[str, str]:
    """C45: in both kinds, on every member, in checks as well; never empty."""
    task, catalog = frame.gang.task, frame.catalog
    return {
        "X_USER_NAME": task.owner,
        "X_ORG_NAME": catalog.organization,
        "X_TENANT_ID": catalog.tenant,
        "X_REGION": task.region,
        "X_CLUSTER": task.cluster,
        "TASK_UUID": task.task_uuid,
        "TRAINSHED_ATTEMPT": str(frame.number),
        "TRAINSHED_RESUBMISSION": str(task.resubmissions),
    }


def _rendezvous(frame: Frame, spec: TaskSpec, part: Part) -> dict[str, str]:
    """C41-C44: the page's `torchrun` line works unchanged, and so does a bare `torchrun train.py`.

    A process a GPU, simulated ones included, and one process on CPU specs: torchrun's own ``auto`` looks at
    the machine, not at what a member holds of it.
    """
    address, port = frame.meeting.hosts[0].address, str(frame.meeting.port)
    size, rank = str(len(frame.meeting.hosts)), str(part.rank)
    found = {
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
        "WORLD_SIZE": size,
        "RANK": rank,
        "PET_MASTER_ADDR": address,
        "PET_MASTER_PORT": port,
        "PET_NNODES": size,
        "PET_NODE_RANK": rank,
        "PET_NPROC_PER_NODE": str(slots_of(part)),
    }
    if spec.exit_notice.enabled:
        # torchrun kills its workers 30 s after a SIGTERM of its own unless told otherwise (C36).
        found["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] = str(spec.exit_notice.timeout_seconds)
    return found


def _ray(frame: Frame, spec: TaskSpec, parts: Sequence[Part]) -> list[Launch]:
    task, storage, scaling = frame.gang.task, spec.shared_storage, spec.autoscaling
    joining = frame.joining
    shared = None
    if storage is not None:
        volume = volume_path(frame.catalog, storage.ref)
        shared = ray_roles.make_shared_folder(volume, task.task_uuid)
    whole = ray_roles.RayTask(
        attempt_id=frame.gang.attempt_id,
        submission_id=engine_name(task, frame.number),
        token=frame.keys.token,
        meeting=frame.meeting,
        nodes={part.rank: part.node for part in parts},
        cmd=spec.cmd,
        head=_shared_memory(parts[0].amounts),
        # A head and workers, or with all of a gang its submitter after them; without workers nobody asks.
        workers=_shared_memory(_worker_amounts(frame, spec, parts)),
        joined={rank: host.address for rank, host in joining.items()},
        scaling=ray_roles.RayScaling(scaling.min, scaling.max, float(scaling.idle_timeout_seconds))
        if scaling is not None and scaling.enabled
        else None,
        runtime_env=runtime_env(spec.runtime_env_yaml),
        metadata={"project": task.project_id, "name": task.name},
        shared_storage=shared,
        retention_seconds=spec.debug.retention_seconds if spec.debug.enabled else 0,
        start_seconds=START_SECONDS,
        grace_seconds=frame.grace_seconds,
    )
    launches = []
    for part in parts:
        if joining and part.rank not in joining:
            continue
        role = ray_roles.ray_part(whole, part.rank)
        files = ray_roles.member_files(frame.folder / str(part.rank), role)
        extra = ray_roles.GRACE_MARGIN_SECONDS
        launches.append(_launch(frame, spec, part, role.argv, role.env, files, role.mounts, extra))
    return launches


def _worker_amounts(frame: Frame, spec: TaskSpec, parts: Sequence[Part]) -> Amounts:
    found = next((part.amounts for part in parts if part.role is TaskRole.WORKER), None)
    if found is None and spec.autoscales:
        offered = frame.catalog.spec(spec.instance.specs[0])
        found = None if offered is None else offered.amounts(spec.instance.count_per_node)
    return parts[0].amounts if found is None else found


def engine_name(task: Task, number: int) -> str:
    """How engines call an Attempt of a task (C3)."""
    first = f"t-{task.name}" if task.name[:1].isdigit() else task.name
    return first if number < _SUFFIX_FROM else f"{first}-a{number}"


def _shown(variables: Sequence[EnvVar]) -> dict[str, str]:
    return {each.name: each.value for each in variables if not each.hidden}


def limits_of(amounts: Amounts) -> Limits:
    """Specs say nothing of scratch and shared memory: a fair share of a node for each GPU (C14)."""
    shares = max(1, amounts.gpus)
    return Limits(
        cpus=amounts.cpus,
        memory_mb=amounts.memory_mb,
        storage_mb=amounts.storage_mb or GPU_SHARE_STORAGE_MB * shares,
        shm_mb=amounts.shm_mb or min(GPU_SHARE_SHM_MB * shares, amounts.memory_mb),
    )


def _shared_memory(amounts: Amounts) -> Amounts:
    """The same with what a member may use of shared memory: Ray's object store lies there."""
    return replace(amounts, shm_mb=limits_of(amounts).shm_mb)


def _gpus(part: Part, nodes: Sequence[Node]) -> tuple[Gpu, ...]:
    here = next((node for node in nodes if node.name == part.node), None)
    known = {gpu.index: gpu for gpu in (here.gpus if here else ())}
    if gone := [str(index) for index in part.gpus if index not in known]:
        raise GpusMissing(f"{part.node} no longer has the GPU {', '.join(gone)} that was handed out")
    return tuple(known[index] for index in part.gpus)
