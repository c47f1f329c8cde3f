"""Places on this server's own machines: what the queue of Trials is told of script Jobs (P5, P11).

A script Job that was routed to this machine waits and is placed as every other Trial; here stands what it
needs, and what is recorded when it got its place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from trainshed.control.scripts.choosing import open_attempt
from trainshed.control.scripts.ground import look_at
from trainshed.control.scripts.reserving import about, longest_run
from trainshed.control.training.launching import limits_of
from trainshed.engines.providers.engine_runs import Room
from trainshed.model.resources import Amounts, Node
from trainshed.model.scripts.spec import LOCAL
from trainshed.policy.cluster import NO_GPU
from trainshed.store import access
from trainshed.store.database import Connection, Database
from trainshed.store.records import Allocation, Trial

_LEAST = Amounts(cpus=1, memory_mb=1024, storage_mb=1024, shm_mb=64)


class Places:
    """What script Jobs need of this machine. Used by the controller's one thread."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.nodes: Sequence[Node] = ()
        self.fresh: set[str] = set()
        """Attempts that this process opened and that nobody began to launch yet."""
        self._about: dict[str, str] = {}

    def fitted(self, trial: Trial) -> Trial:
        """The Trial with what it needs here: one GPU and its share of a machine, or a half of one without.

        Where its project has a budget, with the time that its next Attempt may take at most.
        """
        with self._database.read() as connection:
            look = look_at(connection, trial.id, trial.updated_at)
            project = access.find_project(connection, trial.project_id)
        assert look is not None  # noqa: S101 - a Trial of this kind has its row
        needs = fit(trial, look.script.gpu, self.nodes)
        limited = needs.gpus > 0 and project is not None and project.budget_gpu_seconds is not None
        self._about.pop(trial.id, None)
        if limited and (said := about(look)):
            self._about[trial.id] = said
        return replace(needs, timeout_seconds=longest_run(look) if limited else look.trial.timeout_seconds)

    def about(self, trial_id: str) -> str | None:
        """What to say beside that a Trial waits for its project's budget."""
        return self._about.get(trial_id)

    def opened(
        self,
        connection: Connection,
        placed: Sequence[tuple[Trial, Allocation]],
        numbers: Mapping[str, int],
        now: float,
    ) -> None:
        """Record the Attempts at the provider that is this machine, in the transaction that places them."""
        for trial, allocation in placed:
            look = look_at(connection, trial.id, now)
            assert look is not None  # noqa: S101 - it was placed
            gpu = look.script.gpu
            open_attempt(connection, look, allocation.attempt_id, LOCAL, gpu, numbers[trial.id])
            self.fresh.add(allocation.attempt_id)
            self._about.pop(trial.id, None)


def fit(trial: Trial, gpu: str | None, nodes: Sequence[Node]) -> Trial:
    """What a Trial needs to run beside others of its kind: of a node with N GPUs the N-th part."""
    if gpu is None:
        room = max((node.amounts for node in nodes), key=_size, default=_LEAST)
        need, kind = _part(room, 2), NO_GPU
    else:
        shared = [
            _part(node.amounts, len(node.gpus)) for node in nodes if any(g.model == gpu for g in node.gpus)
        ]
        need, kind = replace(min(shared, key=_size, default=_LEAST), gpus=1), gpu
    return replace(
        trial,
        gpu_type=kind,
        gpus=need.gpus,
        cpus=need.cpus,
        memory_mb=need.memory_mb,
        storage_mb=need.storage_mb,
        shm_mb=need.shm_mb,
    )


def room_of(
    allocation: Allocation, nodes: Sequence[Node], grace_seconds: float, *, pinned: bool = False
) -> Room:
    """What an Attempt may use on a node, by what it holds; ``pinned``: the engine is told which node."""
    here = next((node for node in nodes if node.name == allocation.node), None)
    gpus = tuple(gpu for gpu in (here.gpus if here else ()) if gpu.index in allocation.indices)
    limits = limits_of(allocation.amounts)
    node = allocation.node if pinned else ""
    return Room(gpus, limits, allocation.timeout_seconds, grace_seconds, node)


def _part(amounts: Amounts, parts: int) -> Amounts:
    return Amounts(
        0,
        max(_LEAST.cpus, amounts.cpus // parts),
        max(_LEAST.memory_mb, amounts.memory_mb // parts),
        max(_LEAST.storage_mb, amounts.storage_mb // parts),
        max(_LEAST.shm_mb, amounts.shm_mb // parts),
    )


def _size(amounts: Amounts) -> tuple[int, int]:
    return amounts.cpus, amounts.memory_mb
