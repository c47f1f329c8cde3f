"""When waiting Trials will start, if every Trial runs for its whole timeout: an estimate to the safe side.

The first Trials of the queue are played through event by event. For those further back, the GPU-seconds of
work ahead are divided by the GPUs there are. Programs usually end before their timeout, so most Trials start
earlier than estimated; a restart, a failing node or more important Trials can make it later.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from types import MappingProxyType

from trainshed.model.resources import Amounts
from trainshed.policy.budget import worst_case
from trainshed.policy.cluster import Cluster, Free, likely_end
from trainshed.policy.placement import PassRules, Project
from trainshed.policy.waiting import Line, Queue, TrialClass

SIMULATED_TRIALS = 200
_MAX_STEPS = 20_000


@dataclass(frozen=True, slots=True)
class Backlog:
    """The work waiting for one group of GPUs at one priority."""

    gpu_types: tuple[str, ...]
    priority: int
    trials: int
    gpu_seconds: int


@dataclass(frozen=True, slots=True)
class Forecast:
    """What `forecast` found at ``at``."""

    at: float
    order: tuple[str, ...]
    """The first waiting Trials, in their order."""
    starts: Mapping[str, float]
    """Trial id -> estimated start (Unix seconds), of those in ``order`` that can start at all."""
    backlogs: tuple[Backlog, ...]
    gpus: Mapping[str, int]
    """GPU type -> how many such GPUs there are."""
    busy_gpu_seconds: Mapping[str, float]
    """GPU type -> GPU-seconds that what runs may still take."""


def forecast(
    cluster: Cluster,
    queue: Queue,
    projects: Mapping[str, Project],
    *,
    now: float,
    rules: PassRules | None = None,
    simulated: int = SIMULATED_TRIALS,
) -> Forecast:
    """Estimate starts; call it after the pass's placements are in ``cluster`` and out of ``queue``.

    It costs more than a pass (tens of milliseconds with a thousand nodes): run it about once a second.
    """
    overhead = (rules or PassRules()).overhead_seconds
    first = _first(queue, simulated)
    groups = _groups(cluster, queue)
    starts: dict[str, float] = {}
    for group in sorted(set(groups.values())):
        trials = [(trial_id, key) for trial_id, key in first if groups[key.gpu_type] == group]
        if trials:
            starts |= _Simulation(cluster, projects, now, overhead).run(trials)
    sums: dict[tuple[str, int], tuple[int, int]] = {}
    for line in queue.lines():
        place = (groups[line.key.gpu_type], line.key.priority)
        trials_before, work = sums.get(place, (0, 0))
        cost = worst_case(line.key.amounts.gpus, line.key.timeout_seconds) * len(line.entries)
        sums[place] = (trials_before + len(line.entries), work + cost)
    return Forecast(
        at=now,
        order=tuple(trial_id for trial_id, _ in first),
        starts=MappingProxyType(starts),
        backlogs=tuple(
            Backlog(tuple(sorted(kind for kind in groups if groups[kind] == group)), priority, *counted)
            for (group, priority), counted in sorted(sums.items())
        ),
        gpus={kind: cluster.pool(kind).total for kind in groups},
        busy_gpu_seconds=_busy(cluster, groups, now),
    )


def _first(queue: Queue, count: int) -> list[tuple[str, TrialClass]]:
    """The first ``count`` Trials of the queue, in their order."""
    ahead: list[tuple[float, str, Line, int]] = []
    found: list[tuple[str, TrialClass]] = []
    heads: Iterator[tuple[float, str, Line]] = iter(queue.heads)
    following = next(heads, None)
    while len(found) < count and (ahead or following):
        if following and (not ahead or following[:2] < ahead[0][:2]):
            _, trial_id, line = following
            number, following = 0, next(heads, None)
        else:
            _, trial_id, line, number = heapq.heappop(ahead)
        found.append((trial_id, line.key))
        if number + 1 < len(line.entries):
            heapq.heappush(ahead, (*line.entries[number + 1], line, number + 1))
    return found


def _groups(cluster: Cluster, queue: Queue) -> dict[str, str]:
    """GPU type -> name of its group; types that share a model are in one group."""
    groups: dict[str, str] = {}
    for kind in sorted({line.key.gpu_type for line in queue.lines()}):
        mine = set(cluster.meaning(kind))
        joined = {group for other, group in groups.items() if not mine.isdisjoint(cluster.meaning(other))}
        name = min(joined, default=kind)
        groups[kind] = name
        for other, group in groups.items():
            if group in joined:
                groups[other] = name
    return groups


def _busy(cluster: Cluster, groups: Mapping[str, str], now: float) -> dict[str, float]:
    remaining = [0.0] * len(cluster.models)
    for held in cluster:
        if held.node not in cluster.numbers:
            continue
        seconds = likely_end(held, now) - now
        for model, mask in cluster.masks_of(held):
            # What nobody expects back takes part as capacity that is gone, not as endless work.
            remaining[model] += mask.bit_count() * seconds if seconds != inf else 0.0
    return {kind: sum(remaining[model] for model in cluster.meaning(kind)) for kind in groups}


@dataclass(frozen=True, slots=True)
class _Running:
    """What comes back at the end of one Trial."""

    node: int
    masks: tuple[tuple[int, int], ...]
    """``(model, GPUs as a mask)``."""
    amounts: Amounts
    project: str


class _Simulation:
    """Plays the ends of what runs and starts what waits, strictly in order within one group of GPUs."""

    def __init__(
        self, cluster: Cluster, projects: Mapping[str, Project], now: float, overhead: float
    ) -> None:
        self.cluster = cluster
        self.projects = projects
        self.now = now
        self.overhead = overhead
        self.free: Free = cluster.free.copy()
        self.gpus: Counter[str] = Counter()
        self.trials: Counter[str] = Counter()
        self.cost: Counter[str] = Counter()
        self.ends: list[tuple[float, int, _Running]] = []
        self.count = 0
        for held in cluster:
            self.gpus[held.project] += held.amounts.gpus
            self.trials[held.project] += 1
            end = likely_end(held, now)
            if end != inf and held.node in cluster.numbers:
                node = cluster.numbers[held.node]
                masks = tuple(cluster.masks_of(held))
                self._push(end, _Running(node, masks, held.amounts, held.project))

    def run(self, trials: Iterable[tuple[str, TrialClass]]) -> dict[str, float]:
        """Trial id -> start, of those that start within the bounded number of steps."""
        starts: dict[str, float] = {}
        waiting = [(trial_id, key) for trial_id, key in trials if self._can_ever(key)]
        steps = 0
        while waiting and steps < _MAX_STEPS:
            steps += self._start_what_fits(waiting, starts)
            if not self.ends:
                break
            self.now = max(self.now, self.ends[0][0])
            while self.ends and self.ends[0][0] <= self.now:
                self._end(heapq.heappop(self.ends)[2])
                steps += 1
        return starts

    def _start_what_fits(self, waiting: list[tuple[str, TrialClass]], starts: dict[str, float]) -> int:
        """Start Trials up to the first that finds no room; returns how many were looked at."""
        kept: list[tuple[str, TrialClass]] = []
        for number, (trial_id, key) in enumerate(waiting):
            if not self._within_limits(key):
                kept.append((trial_id, key))
                continue
            spot = self.free.find(self.cluster.meaning(key.gpu_type), key.amounts)
            if spot is None:
                waiting[:number] = kept
                return number + 1
            node, model = spot
            mask = self.free.take(node, model, key.amounts)
            self.gpus[key.project] += key.amounts.gpus
            self.trials[key.project] += 1
            self.cost[key.project] += worst_case(key.amounts.gpus, key.timeout_seconds)
            end = self.now + key.timeout_seconds + self.overhead
            self._push(end, _Running(node, ((model, mask),), key.amounts, key.project))
            starts[trial_id] = self.now
        looked_at = len(waiting)
        waiting[:] = kept
        return looked_at

    def _end(self, running: _Running) -> None:
        self.gpus[running.project] -= running.amounts.gpus
        self.trials[running.project] -= 1
        for model, mask in running.masks:
            free = self.free.masks[model][running.node] | mask
            self.free.change_gpus(running.node, model, free)
        self.free.change_room(running.node, running.amounts, 1)

    def _push(self, end: float, running: _Running) -> None:
        self.count += 1
        heapq.heappush(self.ends, (end, self.count, running))

    def _within_limits(self, key: TrialClass) -> bool:
        project = self.projects.get(key.project)
        if project is None:
            return True
        limits, left = project.limits, project.account.left
        cost = worst_case(key.amounts.gpus, key.timeout_seconds)
        return (
            (limits.max_gpus is None or self.gpus[key.project] + key.amounts.gpus <= limits.max_gpus)
            and (limits.max_active_trials is None or self.trials[key.project] < limits.max_active_trials)
            and (left is None or self.cost[key.project] + cost <= left)
        )

    def _can_ever(self, key: TrialClass) -> bool:
        return self.cluster.ever_fits(self.cluster.meaning(key.gpu_type), key.amounts)
