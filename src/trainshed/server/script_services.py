"""What the handlers of script Jobs, approvals and providers work with (contract G)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from trainshed.control.scripts.accept import ScriptAcceptance
from trainshed.control.scripts.approving import Approving
from trainshed.control.scripts.operations import ScriptOperations
from trainshed.control.scripts.routing import RoutePlanner
from trainshed.control.scripts.secrets import SecretKeeper
from trainshed.engines.providers.contract import Provider


def _none() -> Mapping[str, Provider]:
    return {}


@dataclass(frozen=True, slots=True)
class ScriptServices:
    """Collaborators of these handlers."""

    accept: ScriptAcceptance
    operations: ScriptOperations
    approving: Approving
    secrets: SecretKeeper
    planner: RoutePlanner = field(default_factory=RoutePlanner)
    providers: Callable[[], Mapping[str, Provider]] = _none
    """Those that this process can ask itself; none where another one controls."""
