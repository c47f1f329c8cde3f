"""A project's limits at work inside one pass: GPUs, Trials and budget, with reservations of its own.

The limits of a project are a resource like GPUs of a node. The project's first Trial that must wait keeps
its share of them: a later Trial of the project may go first only if it has given its share back in time, or
leaves enough. Without that, a project's big Trial could wait for ever behind its own small ones (P11).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from trainshed.policy.budget import Account, ProjectLimits, worst_case
from trainshed.policy.cluster import Held, likely_end
from trainshed.policy.waiting import TrialClass
from trainshed.policy.words import WaitCode, WaitReason


@dataclass(slots=True)
class _Promise:
    """What the project must have left for one of its Trials, from ``at`` on."""

    trial_id: str
    at: float
    spare_gpus: float
    spare_trials: float
    budget: int

    def allows(self, gpus: int, end: float) -> bool:
        in_time = self.at != inf and end <= self.at
        return in_time or (gpus <= self.spare_gpus and self.spare_trials >= 1)


class Gate:
    """One project in one pass."""

    def __init__(self, limits: ProjectLimits, account: Account, held: Iterable[Held], now: float) -> None:
        self._max_gpus = inf if limits.max_gpus is None else limits.max_gpus
        self._max_trials = inf if limits.max_active_trials is None else limits.max_active_trials
        self._left: float = inf if account.left is None else account.left
        self._attainable: float = inf if account.attainable is None else account.attainable
        self._ends = [(likely_end(one, now), one.amounts.gpus) for one in held]
        self._gpus = sum(gpus for _, gpus in self._ends)
        self._now = now
        self._promises: list[_Promise] = []

    def check(self, trial_id: str, key: TrialClass, end: float) -> WaitReason | None:
        """Why the project's limits hold the Trial back now, or ``None``; keeps a promise if it must."""
        gpus, cost = key.amounts.gpus, worst_case(key.amounts.gpus, key.timeout_seconds)
        if gpus > self._max_gpus:
            return WaitReason(WaitCode.PROJECT_GPU_LIMIT, have=int(self._max_gpus), never=True)
        if self._max_trials < 1:
            return WaitReason(WaitCode.PROJECT_TRIAL_LIMIT, have=0, never=True)
        if cost > self._attainable:
            return WaitReason(WaitCode.PROJECT_BUDGET, have=int(self._left), never=True)
        for promise in self._promises:
            if not promise.allows(gpus, end) or self._left - cost < promise.budget:
                until = None if promise.at == inf else promise.at
                return WaitReason(WaitCode.BEHIND_OTHERS, behind=promise.trial_id, until=until, own=True)
        reason = None
        if self._gpus + gpus > self._max_gpus:
            reason = WaitReason(WaitCode.PROJECT_GPU_LIMIT, have=int(self._max_gpus - self._gpus))
        elif len(self._ends) + 1 > self._max_trials:
            reason = WaitReason(WaitCode.PROJECT_TRIAL_LIMIT, have=int(self._max_trials))
        elif cost > self._left:
            reason = WaitReason(WaitCode.PROJECT_BUDGET, have=int(self._left))
        if reason is None or self._promises:
            return reason
        # Nobody can say how much of the budget comes back, and when.
        at = inf if reason.code is WaitCode.PROJECT_BUDGET else self._earliest(gpus)
        self.reserve(trial_id, key, at)
        return WaitReason(reason.code, have=reason.have, until=None if at == inf else at)

    def reserve(self, trial_id: str, key: TrialClass, at: float) -> None:
        """Keep the Trial's share of every limit from ``at`` on."""
        staying = [gpus for end, gpus in self._ends if end > at or end == inf]
        self._promises.append(
            _Promise(
                trial_id,
                at,
                spare_gpus=self._max_gpus - sum(staying) - key.amounts.gpus,
                spare_trials=self._max_trials - len(staying) - 1,
                budget=worst_case(key.amounts.gpus, key.timeout_seconds) if self._left != inf else 0,
            )
        )

    def start(self, key: TrialClass, end: float) -> None:
        """Account for a Trial that starts now."""
        self._gpus += key.amounts.gpus
        self._left -= worst_case(key.amounts.gpus, key.timeout_seconds)
        self._ends.append((end, key.amounts.gpus))
        for promise in self._promises:
            if promise.at == inf or end > promise.at:
                promise.spare_gpus -= key.amounts.gpus
                promise.spare_trials -= 1

    def _earliest(self, gpus: int) -> float:
        """When enough of the project's Trials have ended for the GPU and Trial limits."""
        held, count = self._gpus, len(self._ends)
        for end, returned in sorted(self._ends):
            if held + gpus <= self._max_gpus and count + 1 <= self._max_trials:
                return self._now
            held, count = held - returned, count - 1
            if held + gpus <= self._max_gpus and count + 1 <= self._max_trials:
                return end
        return self._now
