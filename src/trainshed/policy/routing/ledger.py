"""What is left of a provider's allowance: its own word while it is fresh, else with our history (g.6)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trainshed.policy.routing.snapshot import Quota

FRESH_SECONDS = 1800.0
_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Reading:
    """What a provider said of its allowance at one moment."""

    used: float | None
    limit: float | None
    resets_at: float | None
    observed_at: float


@dataclass(frozen=True, slots=True)
class Usage:
    """One Attempt of ours: when it held the provider's GPU, in Unix seconds; ``None``: it does still."""

    started_at: float
    ended_at: float | None
    gpus: int = 1

    def hours(self, since: float, now: float) -> float:
        """GPU-hours within ``since`` and ``now``."""
        end = now if self.ended_at is None else min(self.ended_at, now)
        return max(0.0, end - max(self.started_at, since)) / _HOUR * self.gpus


@dataclass(frozen=True, slots=True)
class Ledger:
    """The allowance as it is reckoned now."""

    used: float
    limit: float | None
    resets_at: float | None
    source: str
    """``live`` or ``estimate``."""
    detail: str
    observed_at: float | None

    def quota(self) -> Quota | None:
        """For routing; ``None`` where no limit is known."""
        if self.limit is None:
            return None
        left = max(0.0, self.limit - self.used)
        return Quota(left, self.limit, self.resets_at, live=self.source == "live")


def reckon(
    readings: Sequence[Reading],
    usage: Iterable[Usage],
    now: float,
    *,
    limit: float | None,
    period_seconds: float | None,
) -> Ledger:
    """The allowance at ``now``.

    ``readings`` are what the provider said, in any order; ``limit`` and ``period_seconds`` are what is
    commonly granted (GPU-hours in a period), for a provider that does not say.
    """
    newest = max(
        (each for each in readings if each.used is not None), key=lambda r: r.observed_at, default=None
    )
    if newest is not None and newest.resets_at is not None and newest.resets_at <= now:
        newest = None  # it was renewed since
    if newest is None:
        since = now - period_seconds if period_seconds is not None else float("-inf")
        used = sum(each.hours(since, now) for each in usage)
        said = "reckoned from what ran through here"
        return Ledger(used, limit, None, "estimate", said, None)
    base, granted = newest.used or 0.0, newest.limit if newest.limit is not None else limit
    if now - newest.observed_at < FRESH_SECONDS:
        return Ledger(base, granted, newest.resets_at, "live", "as the provider says", newest.observed_at)
    since_then = sum(each.hours(newest.observed_at, now) for each in usage)
    minutes = (now - newest.observed_at) / 60
    said = f"the provider's word of {minutes:.0f} min ago, and what ran through here since"
    return Ledger(base + since_then, granted, newest.resets_at, "estimate", said, newest.observed_at)
