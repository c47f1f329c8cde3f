"""What a run on this server's own GPUs may come to, where its project has a budget of GPU-hours (P5).

A budget is kept by reserving the worst case before a run starts, so a run needs an end. Its declared hours
give one, with the room that overrun has (c.4); without hours it is `UNKNOWN_HOURS`. At that end the run goes
on in another Attempt, from its checkpoint and with a reservation of its own, as where a session ends.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from trainshed.control.scripts.ground import Look
from trainshed.model.states import AllocationState
from trainshed.policy import approval
from trainshed.policy.budget import RunningTrial
from trainshed.policy.migration import ASK_SECONDS
from trainshed.store import jobs, script_work
from trainshed.store.database import Connection
from trainshed.store.records import Trial

UNKNOWN_HOURS = 12.0
"""What is reserved for one Attempt that declares no hours: as long as sessions elsewhere commonly last."""
_HOUR = 3600.0
_TO_END_SECONDS = 60.0
"""From the moment when a run was asked to save for the last time until it is stopped."""


def longest_run(look: Look) -> int:
    """Seconds after which the next Attempt on this server's own GPUs ends, where its project has a budget.

    An enforced overrun stops it before that, so that it is asked about and not merely cut off.
    """
    hours = look.spec.declared_hours
    if hours is None:
        return round(UNKNOWN_HOURS * _HOUR)
    allowed = approval.allowed_seconds(look.policy, hours)
    left = allowed - look.script.ran_seconds
    if left < look.policy.overrun_grace_hours * _HOUR or left <= 0:
        left = allowed  # it used up what it declared, and may go on all the same
    return math.ceil(left + ASK_SECONDS + _TO_END_SECONDS)


def about(look: Look) -> str | None:
    """What to know of this number while waiting for the budget; ``None``: it is what was declared."""
    if look.spec.declared_hours is not None:
        return None
    return f"it declares no hours, so {UNKNOWN_HOURS:g} h are counted; with `hours` it may need less"


def reservations(connection: Connection, trials: Sequence[Trial], now: float) -> list[RunningTrial]:
    """What active script Jobs hold of their project's budget: their runs on this server's own GPUs.

    One that began before there was a budget has no end; what it ran for counts, as of a training task.
    """
    held = [
        allocation
        for allocations in jobs.allocations_of(connection, [trial.id for trial in trials]).values()
        for allocation in allocations
        if allocation.state is AllocationState.HELD and allocation.gpus
    ]
    attempts = script_work.attempts_by_id(connection, [each.attempt_id for each in held])
    rows = {trial.id: trial for trial in trials}
    found = []
    for allocation in held:
        attempt = attempts.get(allocation.attempt_id)
        began = attempt.started_at if attempt else None
        longest = allocation.timeout_seconds
        if longest >= rows[allocation.trial_id].timeout_seconds:
            longest = math.ceil(max(0.0, now - (began or now)))
        found.append(RunningTrial(allocation.gpus, longest, began))
    return found
