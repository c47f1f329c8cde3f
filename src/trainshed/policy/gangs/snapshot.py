"""What a pass over training tasks sees and what it answers: frozen values, nothing else.

A *gang* is every replica of a task; it is placed whole or not at all (C27). Times are Unix seconds, amounts
those of `model.resources`, units those of an instance spec (C20). Ids are the controller's and unique.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from types import MappingProxyType
from typing import Any

from trainshed.model.resources import Amounts, Node
from trainshed.model.training.catalog import Quota
from trainshed.model.training.spec import ResourceType, Role
from trainshed.policy.cluster import Held


class GangWait(StrEnum):
    """Why a task waits. The first that applies is shown, in this order (c2)."""

    MISCONFIGURED = "Misconfigured"
    """Its pool, or something that it names, is gone from the catalogue: an administrator must act."""
    NO_MATCHING_SPEC = "NoMatchingSpec"
    """No node of the pool that is up could serve a replica even if it were empty."""
    HELD = "Held"
    """The queue is stopped, or a resubmission waits for its back-off."""
    AWAITING_APPROVAL = "AwaitingApproval"
    EXCEEDS_MAX_QUOTA = "ExceedsMaxQuota"
    """More than the quota can ever give."""
    WAITING_FOR_QUOTA = "WaitingForQuota"
    """More than the quota has left now."""
    WAITING_FOR_RESOURCES = "WaitingForResources"
    """Too little is free, even in sum."""
    FRAGMENTED = "Fragmented"
    """Enough is free in sum, but the replicas do not fit node by node."""
    WAITING_FOR_PREEMPTED = "WaitingForPreempted"
    """Its victims are on their way out; what they leave is held for it."""
    BEHIND = "Behind"
    """It would fit now, but could delay a task that comes first."""
    PENDING_EVALUATION = "PendingEvaluation"
    """No pass has looked at it yet."""


class Source(StrEnum):
    """Whose units a replica runs on (c3)."""

    OWN = "own"
    BORROWED = "borrowed"
    SUPPLEMENT = "supplement"


@dataclass(frozen=True, slots=True)
class ReplicaNeed:
    """``count`` equal replicas, each on one node."""

    role: Role
    count: int
    spec: str
    units: int
    """Of the spec, per replica."""
    amounts: Amounts
    """Per replica."""
    gpu_model: str | None = None
    """A GPU type as people write it; ``None`` for replicas without GPUs."""
    charged: bool = True
    """False for platform overhead, which counts against no quota (C19)."""


LineKey = tuple[str, ResourceType, str, str]
"""Project, resource type, pool, spec: what a quota counts (C23)."""
Shape = tuple[int, int, int, int, int]
"""GPUs, CPU cores, memory, storage, shared memory of one replica, for arithmetic in inner loops."""


@dataclass(frozen=True, slots=True)
class Group:
    """Replicas of a gang that look the same to a node."""

    gpu_model: str | None
    shape: Shape
    amounts: Amounts
    count: int


@dataclass(frozen=True)
class Choice:
    """One entry of a resource priority list (C22): the whole gang under one choice of specs, by rank."""

    needs: tuple[ReplicaNeed, ...]

    @cached_property
    def _hash(self) -> int:
        return hash(self.needs)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def units(self) -> tuple[tuple[str, int], ...]:
        """``(spec, units)`` of the whole gang, same specs together, different ones apart (C23)."""
        sums: dict[str, int] = {}
        for need in self.needs:
            if need.charged and need.units:
                sums[need.spec] = sums.get(need.spec, 0) + need.units * need.count
        return tuple(sorted(sums.items()))

    @cached_property
    def amounts(self) -> Amounts:
        """Everything the gang takes."""
        return sum((need.amounts * need.count for need in self.needs), Amounts())

    @cached_property
    def replicas(self) -> int:
        return sum(need.count for need in self.needs)

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """Equal replicas together whatever their role, the largest first."""
        sums: dict[tuple[str | None, Amounts], int] = {}
        for need in self.needs:
            place = (need.gpu_model if need.amounts.gpus else None, need.amounts)
            sums[place] = sums.get(place, 0) + need.count
        found = [
            Group(model, (a.gpus, a.cpus, a.memory_mb, a.storage_mb, a.shm_mb), a, count)
            for (model, a), count in sums.items()
            if count
        ]
        return tuple(sorted(found, key=lambda group: group.shape, reverse=True))


@dataclass(frozen=True)
class GangClass:
    """What makes two waiting tasks equal to the scheduler. Hashable; the hash is kept."""

    project: str
    pool: str
    resource_type: ResourceType
    priority: int
    """Higher goes first (C29)."""
    choices: tuple[Choice, ...]
    """In descending preference; at least one."""
    guarantee: bool = False
    idle_supplement: bool = False
    """`reserved` only: what is above the own quota runs as idle (c3)."""
    max_run_seconds: int | None = None
    """An upper bound that is enforced; ``None``: nobody can say."""
    spec_patience_seconds: int = 0
    excluded: frozenset[str] = frozenset()
    """Nodes that must not be used (C34)."""
    held: GangWait | None = None
    """`MISCONFIGURED`, `HELD` or `AWAITING_APPROVAL`: waits until it is queued again without this."""
    missing: str = ""
    """What the catalogue lacks of what it names, in words, where it is `MISCONFIGURED`."""

    @cached_property
    def lines(self) -> tuple[tuple[tuple[LineKey, int], ...], ...]:
        """For each choice the quotas that count it, and units."""
        place = (self.project, self.resource_type, self.pool)
        return tuple(
            tuple(((*place, spec), units) for spec, units in choice.units) for choice in self.choices
        )

    @cached_property
    def _hash(self) -> int:
        place = (self.project, self.pool, self.resource_type, self.priority)
        return hash((*place, self.choices, self.guarantee, self.max_run_seconds, self.excluded, self.held))

    def __hash__(self) -> int:
        return self._hash


@dataclass(frozen=True, slots=True)
class Part:
    """One replica on its node."""

    rank: int
    role: Role
    node: str
    gpus: tuple[int, ...]
    """Indices on the node, ascending."""
    spec: str
    units: int
    amounts: Amounts

    def as_dict(self) -> dict[str, Any]:
        a = self.amounts
        return {
            "rank": self.rank,
            "role": self.role.value,
            "node": self.node,
            "gpus": list(self.gpus),
            "spec": self.spec,
            "units": self.units,
            "amounts": [a.gpus, a.cpus, a.memory_mb, a.storage_mb, a.shm_mb],
        }

    @staticmethod
    def of(fields: Mapping[str, Any]) -> Part:
        """The part of `as_dict`."""
        return Part(
            fields["rank"],
            Role(fields["role"]),
            fields["node"],
            tuple(fields["gpus"]),
            fields["spec"],
            fields["units"],
            Amounts(*fields["amounts"]),
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """Where a task will start once its victims are gone. What is free of it already is held for the task.

    The controller stores it beside the task (`as_dict`) and gives it back in `Waiting.plan`.
    """

    choice: int
    parts: tuple[Part, ...]
    victims: tuple[str, ...]
    """Ids of `Running` that must go first."""
    made_at: float
    until: float
    """When every victim should be gone; a pass after that plans anew, without those that would not go."""

    def as_dict(self) -> dict[str, Any]:
        return {
            "choice": self.choice,
            "parts": [part.as_dict() for part in self.parts],
            "victims": list(self.victims),
            "made_at": self.made_at,
            "until": self.until,
        }

    @staticmethod
    def of(fields: Mapping[str, Any]) -> Plan:
        """The plan of `as_dict`."""
        return Plan(
            fields["choice"],
            tuple(Part.of(part) for part in fields["parts"]),
            tuple(fields["victims"]),
            fields["made_at"],
            fields["until"],
        )


@dataclass(frozen=True, slots=True)
class Waiting:
    """A task that waits to be admitted."""

    id: str
    key: GangClass
    queued_at: float
    """Its first submission: kept over preemption and automatic resubmission (c5)."""
    since: float | None = None
    """When this wait began, for `spec_patience_seconds`; ``None``: ``queued_at``."""
    not_before: float | None = None
    """The end of a back-off (C33)."""
    plan: Plan | None = None


@dataclass(frozen=True, slots=True)
class Running:
    """A gang that holds its parts, from its admission until the release of every part is confirmed."""

    id: str
    key: GangClass
    parts: tuple[Part, ...]
    admitted_at: float
    queued_at: float
    trial_id: str = ""
    choice: int = 0
    expected_end: float | None = None
    """Latest end by ``max_run_seconds`` and grace; ``None`` if nobody can say."""
    supplement: tuple[tuple[str, int], ...] = ()
    """``(spec, units)`` above the own quota that run as idle."""
    checkpointed_at: float | None = None
    """When it last saved: what came after is lost by a preemption."""
    evicted_at: float | None = None
    """When its notice went out (C36); it will end, and is nobody's victim again."""
    evicted_for: str | None = None
    """The waiting task that gets its place."""
    gone_by: float | None = None
    """When its notice and grace are over."""

    @property
    def gpus(self) -> int:
        return sum(len(part.gpus) for part in self.parts)

    @property
    def units(self) -> tuple[tuple[str, int], ...]:
        """``(spec, units)`` that count against the quota (C23)."""
        supplement = dict(self.supplement)
        charged = ((spec, units - supplement.get(spec, 0)) for spec, units in self.all_units)
        return tuple((spec, units) for spec, units in charged if units)

    @property
    def all_units(self) -> tuple[tuple[str, int], ...]:
        return self.key.choices[self.choice].units

    def evicting(self, at: float, for_id: str, gone_by: float) -> Running:
        """The same gang once its notice went out."""
        return replace(self, evicted_at=at, evicted_for=for_id, gone_by=gone_by)


@dataclass(frozen=True, slots=True)
class Kept:
    """A node that something else may use from ``at`` on, and what is left beside it (backfill).

    From Runner Trials to a pass over gangs, and back: neither starves the other. A gang that was queued
    before ``queued_at`` need not respect it.
    """

    id: str
    node: str
    model: str
    """Full name of the GPU model that ``left.gpus`` counts."""
    at: float
    """Infinite if nobody can say."""
    left: Amounts
    queued_at: float


@dataclass(frozen=True, slots=True)
class GangRules:
    """What bounds a pass."""

    max_admissions: int = 1000
    min_run_seconds: float = 600.0
    """So long nobody becomes a victim after its admission (c4)."""
    notice_seconds: float = 660.0
    """How long a victim may take to go: notice (C36), SIGTERM, release; after that a plan is made anew."""
    overhead_seconds: float = 60.0
    """How long a gang may hold its nodes beyond ``max_run_seconds``."""
    unknown_start_seconds: float = 600.0
    """Where nobody can say when the first in line can start, it is taken not to start sooner than in so long:
    what ends by then may run before it. Once its start is known nothing delays it, so it waits no longer."""
    max_simulations: int = 8
    """Preemptions simulated in one pass."""
    simulate_again_seconds: float = 5.0
    """After a simulation that found nothing, so long the class is not simulated again."""
    max_reservations: int = 16
    explained: int = 1000
    """So many classes have their own reason; later ones get the general one."""


@dataclass(frozen=True, slots=True)
class PlaceNode:
    """A node of a pool; it is in one pool. ``rack`` only serves to keep gangs close together."""

    node: Node
    pool: str
    rack: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything a decision depends on, at one instant."""

    now: float
    nodes: tuple[PlaceNode, ...]
    cordoned: frozenset[str] = frozenset()
    """Nodes on which nothing may start."""
    quotas: tuple[Quota, ...] = ()
    running: tuple[Running, ...] = ()
    others: tuple[Held, ...] = ()
    """What Runner Trials hold on the same nodes."""
    waiting: tuple[Waiting, ...] = ()
    kept: tuple[Kept, ...] = ()
    rules: GangRules = GangRules()


@dataclass(frozen=True, slots=True)
class SourceUnits:
    """Where the units of one spec come from (c3). Kept on what is admitted, for people and for c4."""

    spec: str
    own: int
    borrowed: int
    supplement: int


@dataclass(frozen=True, slots=True)
class Admission:
    """A gang that starts now, on real nodes. Store it with the quota change in one transaction."""

    id: str
    key: GangClass
    choice: int
    parts: tuple[Part, ...]
    """By rank."""
    sources: tuple[SourceUnits, ...]
    passed_over: tuple[tuple[str, str], ...] = ()
    """``(spec, why)`` of every earlier choice, for the event `SPEC_CHOSEN` (C22)."""
    planned: bool = False
    """Whether it takes what its victims left."""

    @property
    def supplement(self) -> tuple[tuple[str, int], ...]:
        return tuple((s.spec, s.supplement) for s in self.sources if s.supplement)


@dataclass(frozen=True, slots=True)
class Eviction:
    """A gang that must go, whole, so that another can start."""

    id: str
    """Of the `Running`."""
    for_id: str
    message: str
    """Why, with ``for_id`` in it: whoever tells it to people puts a name there."""
    gone_by: float


@dataclass(frozen=True, slots=True)
class GangReason:
    """One code and its facts; `words.sentence` puts them in words."""

    code: GangWait
    spec: str = ""
    requested: int = 0
    """Units, GPUs or replicas of ``spec``, as the code says."""
    available: int = 0
    limit: int | None = None
    largest: int = 0
    """Replicas that fit now."""
    behind: str | None = None
    until: float | None = None
    """When what blocks is expected to be gone; ``None`` if nobody can say."""
    pool: str = ""
    note: str = ""
    """What else keeps it waiting, in words (`beside`); for readers alone."""


@dataclass(frozen=True, slots=True)
class GangReservation:
    """What the first task in line waits for: nothing may start there that delays it (EASY backfill)."""

    id: str
    key: GangClass
    choice: int
    parts: tuple[tuple[str, int], ...]
    """``(node, replicas)``."""
    at: float
    """When it can start at the latest; infinite if nobody can say."""
    kept: tuple[Kept, ...]
    """The same as holds for the pass over Runner Trials."""


@dataclass(frozen=True, slots=True)
class GangDecision:
    """The outcome of a pass. It becomes true when the controller has stored it."""

    at: float
    admissions: tuple[Admission, ...]
    evictions: tuple[Eviction, ...]
    plans: Mapping[str, Plan]
    """Waiting id -> plan, of every task that has one after this pass. Store them; forget the others."""
    reasons: Mapping[GangClass, GangReason]
    """Why the first waiting task of each class waits."""
    own_reasons: Mapping[str, GangReason]
    """The same for single tasks: those with a plan or a back-off."""
    rest: GangReason | None
    """For classes that were not visited; ``None`` if all were."""
    reservations: tuple[GangReservation, ...]
    holds: tuple[Held, ...]
    """What plans hold on nodes now, for the pass over Runner Trials."""
    more: bool
    """Whether ``max_admissions`` ended the pass: run another one at once."""
    next_at: float | None
    """When time alone may change the decision: look again then; ``None`` if it cannot."""
    growths: tuple[Admission, ...] = ()
    """One replica more for gangs that run, by the id of their `Growing` (C51)."""
    growth_reasons: Mapping[str, GangReason] = field(default_factory=lambda: MappingProxyType({}))
    """Why the others of them do not grow now."""

    def reason(self, waiting: Waiting) -> GangReason:
        """Why a task waits (P10): every one has a reason."""
        own = self.own_reasons.get(waiting.id)
        if own is not None:
            return own
        found = self.reasons.get(waiting.key, self.rest)
        return found or GangReason(GangWait.PENDING_EVALUATION, pool=waiting.key.pool)


NO_PLANS: Mapping[str, Plan] = MappingProxyType({})
