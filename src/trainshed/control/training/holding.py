"""Gangs that hold nodes, in the words of ``policy``, and what they leave free."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from trainshed.control.training.frozen import spec_of
from trainshed.model.resources import Amounts, Node
from trainshed.model.states import AllocationState, State
from trainshed.model.training.spec import ResourceType, Role, TaskSpec
from trainshed.policy.cluster import Held
from trainshed.policy.gangs.snapshot import (
    Choice,
    GangClass,
    Part,
    ReplicaNeed,
    Running,
    SourceUnits,
)
from trainshed.store.gangs import Gang
from trainshed.store.records import Allocation

OVERDUE_SECONDS = 30.0
"""How long after its grace a gang may still run before it is killed past its own watchers."""
RELEASE_SECONDS = 60.0
"""How long a release takes at most, as long as nothing is wrong."""


def parts_of(allocation: Allocation) -> tuple[Part, ...]:
    """What each member of a gang holds, by rank; none once everything was given back."""
    return tuple(Part.of(part) for part in json.loads(allocation.parts or "[]"))


def sources_of(allocation: Allocation) -> tuple[SourceUnits, ...]:
    return tuple(SourceUnits(*each) for each in json.loads(allocation.sources or "[]"))


def notice_seconds(spec: TaskSpec) -> float:
    """How long the programs of a task may take to save before they must go (C36)."""
    return float(spec.exit_notice.timeout_seconds) if spec.exit_notice.enabled else 0.0


def run_seconds(spec: TaskSpec) -> int | None:
    """How long an Attempt may run (seconds); ``None``: as long as it likes."""
    return spec.max_run_seconds


def running_of(gang: Gang, grace_seconds: float) -> Running:
    """A gang as a placement pass sees it, from its admission until its release is confirmed."""
    held, task, trial = gang.allocation, gang.task, gang.trial
    parts, spec = parts_of(held), spec_of(task)
    sources = sources_of(held)
    evicted_at, gone_by = held.evicted_at, None
    if held.evicted_at is not None:
        gone_by = (held.notice_until or held.evicted_at) + grace_seconds + OVERDUE_SECONDS
    elif not gang.held or trial.state is State.STOPPING:
        # On its way out already: nobody's victim any more.
        evicted_at = trial.stop_accepted_at or trial.updated_at
        gone_by = evicted_at + notice_seconds(spec) + grace_seconds + OVERDUE_SECONDS
    limit = run_seconds(spec)
    end = None if limit is None else held.held_at + limit + grace_seconds + RELEASE_SECONDS
    if not gang.held:
        end = None if held.state is AllocationState.LEAKED else trial.updated_at + RELEASE_SECONDS
    return Running(
        id=held.id,
        key=GangClass(
            project=task.project_id,
            pool=task.pool,
            resource_type=ResourceType(task.resource_type),
            priority=task.priority,
            choices=(_choice(parts, held.gpu_model or None),),
            guarantee=task.guarantee,
            idle_supplement=spec.idle_supplement,
            max_run_seconds=limit,
        ),
        parts=parts,
        admitted_at=held.held_at,
        queued_at=task.queued_at,
        trial_id=trial.id,
        expected_end=end,
        supplement=tuple((each.spec, each.supplement) for each in sources if each.supplement),
        evicted_at=evicted_at,
        evicted_for=held.evicted_for,
        gone_by=gone_by,
    )


def _choice(parts: Sequence[Part], gpu_model: str | None) -> Choice:
    def alike(part: Part) -> tuple[Role, str, int, Amounts]:
        return (part.role, part.spec, part.units, part.amounts)

    return Choice(
        tuple(
            ReplicaNeed(
                role,
                len(list(group)),
                spec,
                units,
                amounts,
                gpu_model if amounts.gpus else None,
                charged=role is not Role.SUBMITTER,
            )
            for (role, spec, units, amounts), group in groupby(parts, alike)
        )
    )


def runner_held(allocation: Allocation, expected_end: float | None) -> Held:
    """What a Runner Trial holds."""
    return Held(
        id=allocation.id,
        trial_id=allocation.trial_id,
        project=allocation.project_id,
        node=allocation.node,
        gpus=allocation.indices,
        amounts=allocation.amounts,
        expected_end=expected_end,
    )


def members_held(allocation: Allocation, expected_end: float | None) -> list[Held]:
    """What each member of a gang holds, for the pass over Runner Trials."""
    return [
        Held(
            id=f"{allocation.id}.{part.rank}",
            trial_id=allocation.trial_id,
            project=allocation.project_id,
            node=part.node,
            gpus=part.gpus,
            amounts=part.amounts,
            expected_end=expected_end,
        )
        for part in parts_of(allocation)
    ]


class Occupancy:
    """What is taken of each node by rows of one moment: a gang is checked against it once more (P5)."""

    def __init__(self, nodes: Sequence[Node], held: Iterable[Allocation]) -> None:
        self._free = {node.name: node.amounts for node in nodes}
        self._gpus = {node.name: {gpu.index for gpu in node.gpus} for node in nodes}
        for allocation in held:
            if allocation.parts is None:
                self._take(allocation.node, allocation.indices, allocation.amounts)
            else:
                for part in parts_of(allocation):
                    self._take(part.node, part.gpus, part.amounts)

    def _take(self, node: str, gpus: Iterable[int], amounts: Amounts) -> None:
        if node in self._free:
            self._free[node] -= amounts
            self._gpus[node] -= set(gpus)

    def take(self, parts: Sequence[Part]) -> bool:
        """Take all parts of a gang; ``False``, and nothing is taken, unless all are free."""
        free: dict[str, Amounts] = {}
        gpus: dict[str, set[int]] = {}
        for part in parts:
            if part.node not in self._free:
                return False
            here = gpus.setdefault(part.node, set(self._gpus[part.node]))
            room = free.setdefault(part.node, self._free[part.node])
            if not set(part.gpus) <= here or not replace(part.amounts, gpus=0).fits_in(replace(room, gpus=0)):
                return False
            here -= set(part.gpus)
            free[part.node] = room - part.amounts
        self._free.update(free)
        self._gpus.update(gpus)
        return True


def gpu_words(parts: Sequence[Part], nodes: Mapping[str, Node]) -> tuple[str, bool]:
    """The models of a gang's GPUs, and whether any of them is simulated."""
    models, simulated = set(), False
    for part in parts:
        for gpu in nodes[part.node].gpus if part.node in nodes else ():
            if gpu.index in part.gpus:
                models.add(gpu.model)
                simulated |= gpu.simulated
    return ", ".join(sorted(models)), simulated
