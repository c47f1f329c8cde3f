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
LOST_WORKERS = "RAY_WORKERS_LOST"
"""Begins the detail of a head whose cluster lost more workers than it may (C51)."""
_NOT_ITS_OWN = frozenset({EndedBy.GANG, EndedBy.STOP})
"""A member that ended so did because of something else."""


@dataclass(frozen=True, slots=True)
class View:
    """All members of a gang at one moment, by rank; kind ray: the submitter last."""

    kind: Kind
    seen: tuple[Observation, ...]
    driver_code: int | None = None
    """Kind ray: what the driver ended with, by the head's own report; its cluster may be kept after it."""
    numbers: tuple[int, ...] = ()
    """The rank of each in ``seen``; empty: they are counted from 0."""
    optional: frozenset[int] = frozenset()
    """Ranks of members that may leave (C51): the others are the gang."""
    least: int = 0
    """So many of these must stay."""

    @property
    def ranks(self) -> tuple[int, ...]:
        return self.numbers or tuple(range(len(self.seen)))

    def of(self, rank: int) -> Observation:
        """One member; raises `ValueError` for a rank that is not there."""
        return self.seen[self.ranks.index(rank)]

    @property
    def core(self) -> tuple[Observation, ...]:
        """The members that may not leave."""
        pairs = zip(self.ranks, self.seen, strict=True)
        return tuple(each for rank, each in pairs if rank not in self.optional)

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
        # What was never launched of a gang that is over never will be.
        gone = _OVER | {Phase.ABSENT} if all(e.phase in _OVER for e in self.core) else _OVER
        return tuple(
            rank
            for rank, each in zip(self.ranks, self.seen, strict=True)
            if each.phase not in (gone if rank in self.optional else _OVER)
        )

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
            return self.ranks[-1]
        found = [(*_blame(each), rank) for rank, each in self.blamed() if _is_failure(each)]
        return min(found)[2] if found else None

    def blamed(self) -> tuple[tuple[int, Observation], ...]:
        """The members whose ends can be why the gang ended, with their ranks.

        One that may leave is among them only if too few were left.
        """
        pairs = tuple(zip(self.ranks, self.seen, strict=True))
        if not self.optional:
            return pairs
        own = [each for rank, each in pairs if rank not in self.optional and _fell_by_itself(each)]
        if own and not any(_lost_workers(each) for each in own):
            return tuple(pair for pair in pairs if pair[0] not in self.optional)
        fallen = any(rank in self.optional and _is_failure(each) for rank, each in pairs)
        # The head only says what happened.
        return tuple(pair for pair in pairs if not (fallen and _lost_workers(pair[1])))

    @property
    def culprits(self) -> tuple[int, ...]:
        """Ranks of members whose end has to end the others: failures, and the end of a Ray driver."""
        ended = [
            (rank, each) for rank, each in zip(self.ranks, self.seen, strict=True) if each.phase in _OVER
        ]
        strict = [r for r, each in ended if r not in self.optional and (self._drives(r) or _is_failure(each))]
        fallen = [r for r, each in ended if r in self.optional and _is_failure(each)]
        there = sum(rank in self.optional for rank in self.ranks) - len(
            [r for r, _ in ended if r in self.optional]
        )
        return tuple(strict) if there >= self.least else (*strict, *fallen)

    def _drives(self, rank: int) -> bool:
        return self.kind is Kind.RAY and rank == self.ranks[-1]

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


def _lost_workers(seen: Observation) -> bool:
    return seen.exit is not None and seen.exit.detail.startswith(f"{LOST_WORKERS}:")


def _fell_by_itself(seen: Observation) -> bool:
    return _is_failure(seen) and _blame(seen)[0] == 0


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
    ends = [view.of(rank).exit for rank in ranks]
    return min((end.finished_at for end in ends if end is not None), default=None)
