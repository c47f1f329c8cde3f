"""What the engine is told to start, built from what was frozen (promise P7)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trainshed.engines.contract import Launch, Limits, Mount, TreeFile
from trainshed.model.resources import Gpu, Node
from trainshed.model.runner_tree import RunnerFile
from trainshed.policy.effective import ServerPolicy
from trainshed.store.records import Allocation, Trial

INTERPRETERS: Mapping[str, str] = {"main.sh": "bash", "main.py": "python3"}
"""The Revision's own entrypoint always runs, whatever its mode bits say (E10)."""
PROFILE, CHECKPOINT = "profile.json", "checkpoint"
_PLACES = {"recipe": "recipe", "input": "inputs", "plugin": "plugins", "dependency": "dependencies"}
"""Role of a content -> where the program finds it, or the folder that holds all of that role."""
_VARIABLES = {
    "TRAINSHED_PROFILE": PROFILE,
    "ENVLOOP_JOB_PROFILE": PROFILE,
    "TRAINSHED_RECIPE": "recipe",
    "TRAINSHED_INPUTS": "inputs",
    "TRAINSHED_PLUGINS": "plugins",
    "TRAINSHED_DEPENDENCIES": "dependencies",
    "TRAINSHED_RESUME_FROM": CHECKPOINT,
}
"""Variable -> what it leads to; it is set where that is there."""


class GpusMissing(Exception):
    """The node no longer has a GPU that was handed out on it."""


@dataclass(frozen=True, slots=True)
class Active:
    """A Trial with the Allocation it holds now."""

    trial: Trial
    allocation: Allocation


@dataclass(frozen=True, slots=True)
class FailedStart:
    """A start that certainly did not reach user code."""

    item: Active
    code: str
    detail: str
    retryable: bool


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a program finds beside its Runner, ready on this machine."""

    mounts: tuple[Mount, ...] = ()
    paths: Mapping[str, str] = field(default_factory=dict)


def content_mount(role: str, source: Path) -> Mount:
    """Where a program finds the content that it uses as ``role`` (``input:NAME``, ``mount:PATH`` …)."""
    kind, _, name = role.partition(":")
    if kind == "mount":
        return Mount(source, f"mounts{name}", target=name)
    return Mount(source, f"{_PLACES[kind]}/{name}" if name else _PLACES[kind])


def inputs_of(mounts: Iterable[Mount]) -> Inputs:
    """The mounts with the variables that lead to them."""
    made = tuple(mounts)
    there = {mount.place for mount in made} | {mount.place.partition("/")[0] for mount in made}
    return Inputs(made, {name: place for name, place in _VARIABLES.items() if place in there})


def assigned_gpus(allocation: Allocation, nodes: Sequence[Node]) -> tuple[Gpu, ...]:
    """The GPUs of an allocation, as the node knows them now. Raises `GpusMissing`."""
    here = next((node for node in nodes if node.name == allocation.node), None)
    known = {gpu.index: gpu for gpu in (here.gpus if here else ())}
    if gone := [str(index) for index in allocation.indices if index not in known]:
        raise GpusMissing(f"{allocation.node} no longer has the GPU {', '.join(gone)} that was handed out")
    return tuple(known[index] for index in allocation.indices)


def build_launch(
    item: Active,
    files: Sequence[RunnerFile],
    *,
    source: Callable[[RunnerFile], Path],
    gpus: tuple[Gpu, ...],
    policy: ServerPolicy,
    inputs: Inputs,
) -> Launch:
    """The launch of one Attempt; the same rows always give the same launch.

    ``source`` answers where the verified bytes of a Runner's file are.
    """
    trial = item.trial
    return Launch(
        attempt_id=item.allocation.attempt_id,
        argv=(INTERPRETERS[trial.entrypoint], trial.entrypoint),
        env={
            **json.loads(trial.params),
            "TRAINSHED_JOB_ID": trial.job_id,
            "TRAINSHED_TRIAL_ID": trial.id,
            "TRAINSHED_TRIAL_NAME": trial.name,
        },
        files=tuple(TreeFile(file.path, source(file), file.executable) for file in files),
        gpus=gpus,
        limits=Limits(
            cpus=trial.cpus,
            memory_mb=trial.memory_mb,
            storage_mb=trial.storage_mb,
            shm_mb=trial.shm_mb,
        ),
        timeout_seconds=trial.timeout_seconds,
        stop_grace_seconds=policy.stop_grace_seconds,
        image=trial.image_resolved,
        mounts=inputs.mounts,
        paths=inputs.paths,
    )
