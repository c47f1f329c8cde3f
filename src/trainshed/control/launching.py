"""What the engine is told to start, built from what was frozen (promise P7)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from trainshed.content.blobs import FolderBlobStore
from trainshed.engines.contract import Launch, Limits, TreeFile
from trainshed.model.resources import Gpu, Node
from trainshed.model.runner_tree import RunnerFile
from trainshed.policy.effective import ServerPolicy
from trainshed.store.records import Allocation, Trial

INTERPRETERS: Mapping[str, str] = {"main.sh": "bash", "main.py": "python3"}
"""The Revision's own entrypoint always runs, whatever its mode bits say (E10)."""


class GpusMissing(Exception):
    """The node no longer has a GPU that was handed out on it."""


def assigned_gpus(allocation: Allocation, nodes: Sequence[Node]) -> tuple[Gpu, ...]:
    """The GPUs of an allocation, as the node knows them now. Raises `GpusMissing`."""
    here = next((node for node in nodes if node.name == allocation.node), None)
    known = {gpu.index: gpu for gpu in (here.gpus if here else ())}
    if gone := [str(index) for index in allocation.indices if index not in known]:
        raise GpusMissing(f"{allocation.node} no longer has the GPU {', '.join(gone)} that was handed out")
    return tuple(known[index] for index in allocation.indices)


def build_launch(
    trial: Trial,
    allocation: Allocation,
    files: Sequence[RunnerFile],
    *,
    blobs: FolderBlobStore,
    gpus: tuple[Gpu, ...],
    policy: ServerPolicy,
) -> Launch:
    """The launch of one Attempt; the same rows always give the same launch."""
    return Launch(
        attempt_id=allocation.attempt_id,
        argv=(INTERPRETERS[trial.entrypoint], trial.entrypoint),
        env={
            **json.loads(trial.params),
            "TRAINSHED_JOB_ID": trial.job_id,
            "TRAINSHED_TRIAL_ID": trial.id,
            "TRAINSHED_TRIAL_NAME": trial.name,
        },
        files=tuple(TreeFile(file.path, blobs.path(file.sha256), file.executable) for file in files),
        gpus=gpus,
        limits=Limits(
            cpus=trial.cpus,
            memory_mb=trial.memory_mb,
            storage_mb=trial.storage_mb,
            shm_mb=trial.shm_mb,
        ),
        timeout_seconds=trial.timeout_seconds,
        stop_grace_seconds=policy.stop_grace_seconds,
    )
