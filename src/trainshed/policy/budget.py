"""GPU time of a project: what was used, what running Trials may still use, what is left.

The unit is the GPU-second, a whole number: one GPU for one begun second of user code. A Trial is charged
for the time its user code ran, never more than its timeout, so the worst case is known before it starts.
While it runs, that worst case is reserved; what it did not use comes back when it ends. The budget can
therefore never be exceeded (promise P5), whatever crashes. Waiting, preparing and collecting cost nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

SECONDS_PER_HOUR = 3600


@dataclass(frozen=True, slots=True)
class ProjectLimits:
    """What one project may hold and use; ``None`` means no limit."""

    max_gpus: int | None = None
    """GPUs held at one instant, by Trials of all Jobs together (E35, E36)."""
    max_active_trials: int | None = None
    """Trials that hold an allocation at one instant."""
    budget_gpu_seconds: int | None = None
    """GPU-seconds in total, until an admin raises it."""


@dataclass(frozen=True, slots=True)
class RunningTrial:
    """A Trial that holds GPUs now, as far as the budget is concerned."""

    gpus: int
    timeout_seconds: int
    started_at: float | None
    """Unix seconds at which user code started; ``None`` before that."""
    finished_at: float | None = None
    """Unix seconds at which user code ended, while outputs are still being collected."""


@dataclass(frozen=True, slots=True)
class Account:
    """The GPU-seconds of one project at one instant."""

    budget: int | None
    used: int
    """Charged for Trials that have ended."""
    spent: int
    """Already used by Trials that hold an allocation now; it cannot come back."""
    reserved: int
    """Worst case of the Trials that hold an allocation now; includes ``spent``."""

    @property
    def left(self) -> int | None:
        """What a Trial that starts now may use at most; ``None`` without a budget. May be negative."""
        return None if self.budget is None else self.budget - self.used - self.reserved

    @property
    def attainable(self) -> int | None:
        """What could be left at best, if every running Trial ended this instant."""
        return None if self.budget is None else self.budget - self.used - self.spent


UNLIMITED = Account(budget=None, used=0, spent=0, reserved=0)


def gpu_seconds(gpu_hours: float) -> int:
    """GPU-hours, the unit that people set and read, as whole GPU-seconds."""
    return round(gpu_hours * SECONDS_PER_HOUR)


def gpu_hours_text(seconds: int) -> str:
    """GPU-seconds for a sentence: ``2.5 GPU-hours``, or ``12 GPU-seconds`` below a hundredth hour."""
    if 0 < abs(seconds) < SECONDS_PER_HOUR // 100:
        return f"{seconds} GPU-seconds"
    return f"{seconds / SECONDS_PER_HOUR:,.2f}".rstrip("0").rstrip(".") + " GPU-hours"


def worst_case(gpus: int, timeout_seconds: int) -> int:
    """The most GPU-seconds that one Trial can be charged."""
    return gpus * timeout_seconds


def charge(gpus: int, timeout_seconds: int, started_at: float | None, ended_at: float) -> int:
    """What a Trial is charged whose user code ran from ``started_at`` to ``ended_at`` (Unix seconds).

    Never more than `worst_case`; nothing if user code never started, or if a clock went backwards.
    """
    if started_at is None:
        return 0
    ran = min(timeout_seconds, max(0, math.ceil(ended_at - started_at)))
    return gpus * ran


def account(
    limits: ProjectLimits,
    used: int,
    running: Iterable[RunningTrial],
    *,
    now: float,
) -> Account:
    """The project's account at ``now``; ``used`` is the sum of `charge` over its ended Trials."""
    spent = reserved = 0
    for trial in running:
        end = now if trial.finished_at is None else trial.finished_at
        so_far = charge(trial.gpus, trial.timeout_seconds, trial.started_at, end)
        spent += so_far
        ended = trial.finished_at is not None and trial.started_at is not None
        reserved += so_far if ended else worst_case(trial.gpus, trial.timeout_seconds)
    return Account(limits.budget_gpu_seconds, used, spent, reserved)
