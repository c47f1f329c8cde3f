"""One placement pass: which waiting Trials start now, on which GPUs, and why the others wait.

The rules, in their order of weight:

1.  Whole Trials only, on one node, with GPUs of one model (E34); nothing is ever handed out twice and no
    limit of a node, a project or the server is exceeded, whatever may come back later (P4, P5).
2.  In the order of the queue (`trainshed.policy.waiting`). A Trial that its own project's limits hold back
    does not hold up other projects.
3.  The first Trial that finds no room gets a *reservation*: the node and the time at which it can start at
    the latest, by the expected ends of what runs. Later Trials may fill gaps only if they are gone by then
    or leave enough beside them (EASY backfill), so the first one never starts later because of them (P11).
    Every group of GPU types that share no model has its own first Trial.
4.  The same holds inside a project that has limits: its first Trial that must wait cannot be overtaken for
    ever by smaller Trials of the same project.
5.  Best fit: the node with the fewest free GPUs that suffice, so that whole nodes stay whole; the lowest
    indices on it. The same snapshot always gives the same decision.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from trainshed.model.resources import Amounts
from trainshed.policy.budget import UNLIMITED, Account, ProjectLimits
from trainshed.policy.cluster import Cluster, Free, Held, Pool
from trainshed.policy.gangs.snapshot import Kept
from trainshed.policy.gates import Gate
from trainshed.policy.reservations import Reservation, Spare, earliest
from trainshed.policy.waiting import Line, Queue, TrialClass
from trainshed.policy.words import WaitCode, WaitReason

_REMEMBERED_FAILURES = 32
_ALWAYS_EXPLAINED = 1000
"""So many classes get their own reason even when no GPU at all is free."""


@dataclass(frozen=True, slots=True)
class Project:
    """A project as a pass sees it: its limits, and its account before the pass."""

    limits: ProjectLimits = field(default_factory=ProjectLimits)
    account: Account = UNLIMITED


@dataclass(frozen=True, slots=True)
class PassRules:
    """What bounds a pass."""

    max_placements: int = 1000
    max_active_trials: int | None = None
    """Allocations at one instant, all projects together."""
    overhead_seconds: float = 60.0
    """How long a Trial may hold its GPUs beyond its timeout: start, grace, collection, release."""


@dataclass(frozen=True, slots=True)
class Placement:
    """One Trial that starts now."""

    trial_id: str
    key: TrialClass
    node: str
    model: str
    gpus: tuple[int, ...]
    """Indices on the node, ascending."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The outcome of a pass. It becomes true when the controller has stored the placements."""

    at: float
    placements: tuple[Placement, ...]
    reasons: Mapping[TrialClass, WaitReason]
    """Why the first waiting Trial of each class visited waits."""
    rest: WaitReason | None
    """The same for classes that were not visited; ``None`` if all were."""
    reservations: tuple[Reservation, ...]
    pools: Mapping[str, Pool]
    """What is left after the placements, by GPU type waited for."""
    more: bool
    """Whether ``max_placements`` ended the pass: run another one at once."""
    kept: tuple[Kept, ...] = ()
    """The reservations, for the pass over gangs on the same nodes."""

    def reason(self, key: TrialClass) -> WaitReason | None:
        """Why Trials of a class wait; ``None`` if none of them has to."""
        return self.reasons.get(key, self.rest)


def place(
    cluster: Cluster,
    queue: Queue,
    projects: Mapping[str, Project],
    *,
    now: float,
    rules: PassRules | None = None,
    kept: Sequence[Kept] = (),
) -> Decision:
    """Decide; changes none of its arguments. A project that is not in ``projects`` has no limits.

    ``kept`` is what gangs on the same nodes have reserved: Trials that were queued later respect it.
    """
    return _Pass(cluster, queue, projects, now, rules or PassRules(), kept).run()


class _Pass:
    """The working state of one pass."""

    def __init__(
        self,
        cluster: Cluster,
        queue: Queue,
        projects: Mapping[str, Project],
        now: float,
        rules: PassRules,
        kept: Sequence[Kept],
    ) -> None:
        self.cluster = cluster
        self.queue = queue
        self.projects = projects
        self.now = now
        self.rules = rules
        self.free: Free = cluster.free.copy()
        self.active = len(cluster)
        self.placements: list[Placement] = []
        self.reasons: dict[TrialClass, WaitReason] = {}
        self.reservations: list[Reservation] = []
        self.spares: dict[int, list[Spare]] = {}
        self.kept: list[Kept] = []
        for one in kept:
            if one.node in cluster.numbers:
                model = cluster.models.index(one.model) if one.model in cluster.models else -1
                # Not by its id: readers of a Runner Trial may not know of the task (C5).
                spare = Spare("", model, one.at, one.left, one.queued_at)
                self.spares.setdefault(cluster.numbers[one.node], []).append(spare)
        self.started: dict[int, list[Held]] = {}
        self.gates: dict[str, Gate | None] = {}
        self.failures: dict[tuple[int, ...], list[tuple[Amounts, float, WaitReason]]] = {}
        self.returned: list[tuple[float, str, Line, int]] = []

    def run(self) -> Decision:
        rest = more = None
        for _, trial_id, line, number in self._in_order():
            if len(self.placements) >= self.rules.max_placements:
                more, rest = True, WaitReason(WaitCode.NEXT_TURN)
                break
            if self._server_is_full():
                rest = WaitReason(WaitCode.SERVER_TRIAL_LIMIT, have=self.rules.max_active_trials)
                break
            if len(self.reasons) >= _ALWAYS_EXPLAINED and not any(self.free.gpus):
                rest = WaitReason(WaitCode.GPUS_BUSY)
                break
            reason = self._try(trial_id, line.key)
            if reason is not None:
                self.reasons[line.key] = reason
            elif number + 1 < len(line.entries):
                self._again(line, number + 1)
        kinds = {key.gpu_type for key in self.reasons} | {p.key.gpu_type for p in self.placements}
        return Decision(
            at=self.now,
            placements=tuple(self.placements),
            reasons=self.reasons,
            rest=rest,
            reservations=tuple(self.reservations),
            pools={kind: self.cluster.pool(kind, self.free) for kind in sorted(kinds)},
            more=bool(more),
            kept=tuple(self.kept),
        )

    def _in_order(self) -> Iterator[tuple[float, str, Line, int]]:
        """Heads of classes in their order; a class whose head was placed comes again with its next Trial."""
        for place, trial_id, line in self.queue.heads:
            while self.returned and self.returned[0][:2] < (place, trial_id):
                yield heapq.heappop(self.returned)
            yield place, trial_id, line, 0
        while self.returned:
            yield heapq.heappop(self.returned)

    def _again(self, line: Line, number: int) -> None:
        heapq.heappush(self.returned, (*line.entries[number], line, number))

    def _server_is_full(self) -> bool:
        most = self.rules.max_active_trials
        # One slot stays free for each reservation: gaps are filled beside the first Trial, not before it.
        return most is not None and self.active + len(self.reservations) >= most

    def _try(self, trial_id: str, key: TrialClass) -> WaitReason | None:
        """Place the Trial, or say why not."""
        models = self.cluster.meaning(key.gpu_type)
        if not self.cluster.ever_fits(models, key.amounts):
            return WaitReason(WaitCode.NO_NODE)
        end = self.now + key.timeout_seconds + self.rules.overhead_seconds
        gate = self._gate(key.project)
        if gate is not None and (reason := gate.check(trial_id, key, end)):
            return reason
        if key.amounts.gpus > self.free.largest(models):
            return self._wait(trial_id, key, models, WaitReason(WaitCode.GPUS_BUSY))
        for amounts, until, reason in self.failures.get(models, ()):
            if until <= end and amounts.fits_in(key.amounts):
                if reason.behind is not None and self.free.find(models, key.amounts) is None:
                    continue
                return self._wait(trial_id, key, models, reason)
        rank = self.queue.rank_of(trial_id)
        spot = self.free.find(
            models, key.amounts, lambda node, model: self._allowed(node, model, key, end, rank)
        )
        if spot is None:
            reason, until = self._hindrance(models, key, end, rank)
            self._remember_failure(models, key.amounts, until, reason)
            return self._wait(trial_id, key, models, reason)
        self._start(trial_id, key, spot, end)
        if gate is not None:
            gate.start(key, end)
        return None

    def _start(self, trial_id: str, key: TrialClass, spot: tuple[int, int], end: float) -> None:
        node, model = spot
        mask = self.free.take(node, model, key.amounts)
        name = self.cluster.nodes[node].name
        gpus = tuple(index for index in range(mask.bit_length()) if mask >> index & 1)
        for spare in self.spares.get(node, ()):
            spare.take(model, key.amounts, end)
        self.active += 1
        self.placements.append(Placement(trial_id, key, name, self.cluster.models[model], gpus))
        held = Held(trial_id, trial_id, key.project, name, gpus, key.amounts, end)
        self.started.setdefault(node, []).append(held)

    def _allowed(self, node: int, model: int, key: TrialClass, end: float, rank: float) -> bool:
        """Whether a Trial on ``node`` delays no reservation there that comes before it."""
        return all(
            rank < spare.rank or spare.allows(model, key.amounts, end) for spare in self.spares.get(node, ())
        )

    def _wait(self, trial_id: str, key: TrialClass, models: Sequence[int], reason: WaitReason) -> WaitReason:
        """Reserve for the Trial if it is the first of its GPUs that has to wait."""
        if reason.behind is not None or any(
            not set(models).isdisjoint(taken.models) for taken in self.reservations
        ):
            return reason
        found = earliest(self.cluster, self.free, self.started, models, key.amounts, self.now)
        if found is None:
            return reason
        node, model, at, spare = found
        reservation = Reservation(trial_id, key, tuple(models), self.cluster.nodes[node].name, at)
        self.reservations.append(reservation)
        self.spares.setdefault(node, []).append(Spare(trial_id, model, at, spare))
        rank, name = self.queue.rank_of(trial_id), self.cluster.models[model]
        self.kept.append(Kept(trial_id, reservation.node, name, at, spare, rank))
        gate = self._gate(key.project)
        if gate is not None:
            gate.reserve(trial_id, key, at)
        return WaitReason(reason.code, have=reason.have, until=None if at == inf else at)

    def _hindrance(
        self, models: Sequence[int], key: TrialClass, end: float, rank: float
    ) -> tuple[WaitReason, float]:
        """Why enough free GPUs of one node were not enough, and from which end on that holds."""
        fitting = self.free.find(models, key.amounts)
        if fitting is not None:
            spares = self.spares[fitting[0]]
            first = next(s for s in spares if s.rank <= rank and not s.allows(fitting[1], key.amounts, end))
            until = None if first.at == inf else first.at
            return WaitReason(WaitCode.BEHIND_OTHERS, behind=first.trial_id, until=until), end
        return scarce(self.free, models, key.amounts), -inf

    def _remember_failure(
        self, models: tuple[int, ...], amounts: Amounts, until: float, reason: WaitReason
    ) -> None:
        """What fails now fails for the rest of the pass, and so does whatever wants at least as much."""
        known = self.failures.setdefault(models, [])
        known[:] = [f for f in known if not (until <= f[1] and amounts.fits_in(f[0]))]
        known.append((amounts, until, reason))
        if len(known) > _REMEMBERED_FAILURES:
            del known[0]

    def _gate(self, name: str) -> Gate | None:
        """The project's limits at work; ``None`` if it has none."""
        if name not in self.gates:
            project = self.projects.get(name)
            unlimited = project is None or (
                project.limits.max_gpus is None
                and project.limits.max_active_trials is None
                and project.account.budget is None
            )
            self.gates[name] = (
                None
                if unlimited or project is None
                else Gate(project.limits, project.account, self.cluster.of_project(name), self.now)
            )
        return self.gates[name]


def scarce(free: Free, models: Sequence[int], need: Amounts) -> WaitReason:
    """What is missing on the nodes that have enough free GPUs, judged by the node that lacks least."""
    rooms = [
        (free.cpus[node], free.memory_mb[node], free.storage_mb[node], free.shm_mb[node])
        for model in models
        for bucket in free.buckets[model][need.gpus :]
        for node in bucket
    ]
    wants = (need.cpus, need.memory_mb, need.storage_mb, need.shm_mb)
    codes = (WaitCode.CPU_BUSY, WaitCode.MEMORY_BUSY, WaitCode.DISK_BUSY, WaitCode.SHM_BUSY)
    lacks = [[which for which, want in enumerate(wants) if want > room[which]] for room in rooms]
    first = min(lacks, key=len)[0]
    return WaitReason(codes[first], have=max(room[first] for room in rooms if room[first] < wants[first]))
