"""Training tasks: which gang starts now, on which nodes, who must go for it, and why the others wait.

Pure, as the whole room: the clock is an argument. The controller keeps a `GangCluster` and a `GangQueue` up
to date and calls `decide` with them; `decide_snapshot` builds both from a `Snapshot`.
"""

from trainshed.policy.gangs.cluster import GangCluster
from trainshed.policy.gangs.decide import decide, decide_snapshot
from trainshed.policy.gangs.growth import Growing
from trainshed.policy.gangs.queue import GangQueue, QueuePlace
from trainshed.policy.gangs.quota import QuotaTable
from trainshed.policy.gangs.snapshot import (
    Admission,
    Choice,
    Eviction,
    GangClass,
    GangDecision,
    GangReason,
    GangReservation,
    GangRules,
    GangWait,
    Kept,
    Part,
    PlaceNode,
    Plan,
    ReplicaNeed,
    Running,
    Snapshot,
    Source,
    SourceUnits,
    Waiting,
)

__all__ = [
    "Admission",
    "Choice",
    "Eviction",
    "GangClass",
    "GangCluster",
    "GangDecision",
    "GangQueue",
    "GangReason",
    "GangReservation",
    "GangRules",
    "GangWait",
    "Growing",
    "Kept",
    "Part",
    "PlaceNode",
    "Plan",
    "QueuePlace",
    "QuotaTable",
    "ReplicaNeed",
    "Running",
    "Snapshot",
    "Source",
    "SourceUnits",
    "Waiting",
    "decide",
    "decide_snapshot",
]
