"""Where a packed project runs: filters and scores as pure functions, with a sentence for each (section g)."""

from trainshed.policy.routing.decide import decide
from trainshed.policy.routing.ledger import Ledger, reckon
from trainshed.policy.routing.snapshot import (
    Candidate,
    Decision,
    Need,
    Offer,
    Outcome,
    ProviderView,
    Quota,
    Rejection,
    Weights,
)

__all__ = [
    "Candidate",
    "Decision",
    "Ledger",
    "Need",
    "Offer",
    "Outcome",
    "ProviderView",
    "Quota",
    "Rejection",
    "Weights",
    "decide",
    "reckon",
]
