"""How the gang of a Ray task with a cluster of its own grows and shrinks with its load (C51). Pure.

The head says how many workers the load wants. That is a request, which a program can forge: it is bounded by
the task's own range, and each worker more takes room and units like any other replica, one at a time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from trainshed.policy.gangs.snapshot import GangClass, SourceUnits, Waiting

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 10.0, 300.0
_MOST_DOUBLINGS = 10


@dataclass(frozen=True, slots=True)
class Bounds:
    """What an autoscaling task allows itself."""

    least: int
    most: int
    conservative: bool = False
    """Never more workers on their way than there are nodes in its cluster."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """What is known of the size of a running Ray cluster. Stored beside the task (`as_dict`)."""

    wanted: int | None = None
    """Workers, as the head said last; ``None``: it has not yet."""
    joined: frozenset[int] = frozenset()
    """Ranks of the workers that were in its cluster then."""
    failures: int = 0
    """Workers in a row that did not come to join."""
    not_before: float = 0.0
    """No other is started sooner (Unix seconds)."""
    waits: str = ""
    """The code of why it does not grow although the load wants that; empty while it need not, or does."""
    why: str = ""
    """The same in words."""

    def as_dict(self) -> dict[str, Any]:
        return {
            "wanted": self.wanted,
            "joined": sorted(self.joined),
            "failures": self.failures,
            "not_before": self.not_before,
            "waits": self.waits,
            "why": self.why,
        }

    @staticmethod
    def of(fields: Mapping[str, Any]) -> Scaling:
        """The scaling of `as_dict`."""
        return Scaling(**{**fields, "joined": frozenset(fields["joined"])})

    def asked(self, wanted: int, joined: Collection[int], bounds: Bounds) -> Scaling:
        """What the head says now; whoever joined since ends the pauses after those that failed."""
        target = min(max(wanted, bounds.least), bounds.most)
        fresh = frozenset(joined)
        known = self if target > len(fresh) else self.waiting()
        if fresh - self.joined:
            known = replace(known, failures=0, not_before=0.0)
        return replace(known, wanted=target, joined=fresh)

    def failed(self, now: float) -> Scaling:
        """One that was started ended before it joined: the next one waits for a while."""
        pause = _FIRST_PAUSE_SECONDS * 2 ** min(self.failures, _MOST_DOUBLINGS)
        later = now + min(_LONGEST_PAUSE_SECONDS, pause)
        return replace(self, failures=self.failures + 1, not_before=later)

    def waiting(self, code: str = "", why: str = "") -> Scaling:
        return replace(self, waits=code, why=why)

    def wants_more(self, workers: Collection[int], bounds: Bounds) -> bool:
        """Whether one more should be started beside the ``workers`` (ranks) that hold something now.

        Whom the head still counts although they are gone counts until it says otherwise: it knows best
        whether it needs another.
        """
        if self.wanted is None or len(workers) >= bounds.most:
            return False
        there = frozenset(workers)
        if min(self.wanted, bounds.most) <= len(there | self.joined):
            return False
        # Head and workers are the cluster; on their way are those that have not joined it.
        return not bounds.conservative or len(there - self.joined) < 1 + len(there & self.joined)


@dataclass(frozen=True, slots=True)
class Growing:
    """A gang that runs and would have one replica more."""

    id: str
    """Of its `Running`."""
    key: GangClass
    """With that one replica as its only choice."""

    def as_last(self) -> Waiting:
        """As a task that came after every other: it respects whatever is reserved."""
        return Waiting(self.id, self.key, inf)


def with_units(sources: Collection[SourceUnits], more: Collection[SourceUnits]) -> tuple[SourceUnits, ...]:
    """Out of whose units a gang runs that grew."""
    sums = {each.spec: each for each in sources}
    for each in more:
        there = sums.get(each.spec, SourceUnits(each.spec, 0, 0, 0))
        sums[each.spec] = SourceUnits(
            each.spec,
            there.own + each.own,
            there.borrowed + each.borrowed,
            there.supplement + each.supplement,
        )
    return tuple(sums[spec] for spec in sorted(sums))


def without_units(sources: Collection[SourceUnits], spec: str, units: int) -> tuple[SourceUnits, ...]:
    """The same after a replica left: what is lent goes back first."""
    found = []
    for each in sources:
        if each.spec != spec:
            found.append(each)
            continue
        left = units
        idle = min(left, each.supplement)
        left -= idle
        borrowed = min(left, each.borrowed)
        left -= borrowed
        found.append(
            SourceUnits(spec, max(0, each.own - left), each.borrowed - borrowed, each.supplement - idle)
        )
    return tuple(found)
