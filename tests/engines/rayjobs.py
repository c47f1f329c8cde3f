"""Launches of Ray tasks: on a cluster of their own by the local engine, or on one that is shared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from support.ray_cluster import PYTHON
from trainshed.control.training.ray_roles import GRACE_MARGIN_SECONDS, RayTask, member_files, ray_part
from trainshed.engines import Engine, Gang, Launch, Limits
from trainshed.model.resources import Amounts, Gpu

REPLICA = Amounts(gpus=1, cpus=1, memory_mb=1500, shm_mb=100)
ENVIRONMENT = {"PATH": f"{PYTHON.parent}:/usr/local/bin:/usr/bin:/bin", "TASK_UUID": "task-1"}


def ray_launches(
    engine: Engine,
    folder: Path,
    cmd: str,
    nodes: Sequence[str],
    *,
    gang_id: str = "ray-1",
    gpus: Sequence[Gpu] = (),
    env: Mapping[str, str] = ENVIRONMENT,
    secrets: Mapping[str, str] | None = None,
    **settings: object,
) -> list[Launch]:
    """Head, a worker on each of ``nodes`` but the first, submitter. One GPU for each worker, if given."""
    placed = [*nodes, nodes[0]]
    meeting = engine.meet(gang_id, placed, [1] * len(placed))
    task = RayTask(
        attempt_id=gang_id,
        submission_id=f"rl-{gang_id}",
        token="0123456789abcdef-of-this-test",
        meeting=meeting,
        nodes=placed,
        cmd=cmd,
        head=Amounts(cpus=1, memory_mb=1500, shm_mb=100),
        workers=REPLICA if gpus else Amounts(cpus=1, memory_mb=1500, shm_mb=100),
        start_seconds=240.0,
        grace_seconds=10.0,
        **settings,  # type: ignore[arg-type]
    )
    launches = []
    for rank, node in enumerate(placed):
        part = ray_part(task, rank)
        launches.append(
            Launch(
                f"{gang_id}.{rank}",
                part.argv,
                {**env, **part.env},
                member_files(folder / str(rank), part),
                (gpus[rank - 1],) if gpus and part.role == "worker" else (),
                Limits(cpus=1, memory_mb=4000, storage_mb=2000, shm_mb=100),
                600,
                task.grace_seconds + GRACE_MARGIN_SECONDS,
                mounts=part.mounts,
                gang=Gang(
                    gang_id,
                    rank,
                    len(placed),
                    part.role,
                    node,
                    meeting,
                    240.0,
                    # As the server does: workers of a cluster that follows its load may leave.
                    tuple(range(1, len(placed) - 1)) if task.scaling else (),
                ),
                secrets=secrets or {},
            )
        )
    return launches
