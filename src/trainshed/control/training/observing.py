"""What one look at the members of a gang means: states of replicas, the stage, who failed first (c1, c8)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from trainshed.engines.contract import EndedBy, Observation, Phase
from trainshed.model.training.spec import Kind

PENDING, PULLING, STARTING, READY = "Pending", "Pulling", "Starting", "Ready"
RUNNING, SUCCEEDED, FAILED, LOST, TERMINATING = "Running", "Succeeded", "Failed", "Lost", "Terminating"
_OVER = frozenset({Phase.EXITED, Phase.LOST})
_STAGE_STATES = {"pulling": PULLING, "starting": STARTING, "ready": READY, "prechecking": READY}
_NOT_ITS_OWN = frozenset({EndedBy.GANG, EndedBy.STOP})
"""A member that ended so did because of something else."""


@dataclass(frozen=True, slots=True)
class View:
    """All members of a gang at one moment, by rank."""

    kind: Kind
    seen: tuple[Observation, ...]
    driver_code: int | None = None
    """Kind ray: what the driver ended with, by the head's own report; its cluster may be kept after it."""

    @property
    def absent(self) -> bool:
        """Whether the engine lacks a member: the launch has to be made, or made again."""
        return any(each.phase is Phase.ABSENT for each in self.seen)

    @property
    def unknown(self) -> bool:
        """Whether the engine holds no member at all."""
        return all(each.phase is Phase.ABSENT for each in self.seen)

    @property
    def alive(self) -> tuple[int, ...]:
        """Ranks of members that have not ended."""
        return tuple(rank for rank, each in enumerate(self.seen) if each.phase not in _OVER)

    @property
    def over(self) -> bool:
        """Whether no member runs, or will."""
        return not self.alive

    @property
    def noticed(self) -> bool:
        return any(each.noticed for each in self.seen)

    @property
    def started_at(self) -> float | None:
        """When the first member's user code began (Unix seconds)."""
        found = [each.started_at for each in self.seen if each.started_at is not None]
        return min(found, default=None)

    @property
    def has_started(self) -> bool:
        """Whether user code of a member began, or that cannot be excluded."""
        lost = any(each.phase is Phase.LOST for each in self.seen)
        return lost or any(each.started_at is not None for each in self.seen)

    @property
    def ended_at(self) -> float | None:
        """When the last member ended; ``None`` if that is not known of any."""
        found = [each.exit.finished_at for each in self.seen if each.exit is not None]
        return max(found, default=None)

    @property
    def succeeded(self) -> bool:
        """Kind pytorch: every member exited with 0; kind ray: the submitter did (c8)."""
        if self.driver_code is not None:
            return self.driver_code == 0
        wanted = self.seen[-1:] if self.kind is Kind.RAY else self.seen
        return all(each.exit is not None and each.exit.code == 0 for each in wanted)

    @property
    def failed(self) -> int | None:
        """The member whose failure came first; ``None`` while nobody failed.

        A member that was ended, because of its gang or by a stop, is named only if nobody failed by itself.
        """
        if self.driver_code:
            return len(self.seen) - 1
        found = [(*_blame(each), rank) for rank, each in enumerate(self.seen) if _is_failure(each)]
        return min(found)[2] if found else None

    def stage(self) -> str | None:
        """How far a gang that prepares got: the least advanced of its members (c1)."""
        words = [each.stage or "starting" for each in self.seen if each.phase is Phase.PREPARING]
        if not words:
            return None
        if "prechecking" in words:
            return "prechecking"
        return next((word for word in ("pulling", "starting", "ready") if word in words), "starting")

    def states(self, *, leaving: bool) -> tuple[str, ...]:
        """The state of each replica as people see it; ``leaving``: they were asked to end."""
        return tuple(_state(each, leaving=leaving) for each in self.seen)


def _is_failure(seen: Observation) -> bool:
    if seen.phase is Phase.LOST:
        return True
    return seen.phase is Phase.EXITED and (seen.exit is None or seen.exit.code != 0)


def _blame(seen: Observation) -> tuple[int, float]:
    if seen.exit is None:
        return (0, inf)
    return (1 if seen.exit.ended_by in _NOT_ITS_OWN else 0, seen.exit.finished_at)


def _state(seen: Observation, *, leaving: bool) -> str:
    match seen.phase:
        case Phase.ABSENT:
            return PENDING
        case Phase.PREPARING:
            return _STAGE_STATES.get(seen.stage, STARTING)
        case Phase.RUNNING:
            return TERMINATING if leaving or seen.noticed else RUNNING
        case Phase.LOST:
            return LOST
        case Phase.EXITED:
            return FAILED if _is_failure(seen) else SUCCEEDED


def failed_since(view: View, ranks: Sequence[int]) -> float | None:
    """When the first of ``ranks`` ended (Unix seconds), as far as that is known."""
    ends = [view.seen[rank].exit for rank in ranks]
    return min((end.finished_at for end in ends if end is not None), default=None)
