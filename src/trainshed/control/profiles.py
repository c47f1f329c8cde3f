"""Freezing Job Profiles: every reference is checked for permission and digest (E91-E104)."""

from __future__ import annotations

from trainshed.control.frozen import FrozenProfile
from trainshed.model.access import Principal
from trainshed.model.errors import FaultList
from trainshed.model.runner import RunnerDefinition
from trainshed.model.submission import TrialRequest
from trainshed.store.database import Connection


class ProfileFreezer:
    """Turns a Trial's profile into the snapshot that its Runner is handed. Thread-safe."""

    def freeze(
        self,
        connection: Connection,  # noqa: ARG002 - what is read comes with the kinds of content
        principal: Principal,  # noqa: ARG002 - as above
        request: TrialRequest,
        definition: RunnerDefinition,  # noqa: ARG002 - as above
        faults: FaultList,
    ) -> FrozenProfile | None:
        """The frozen profile, or ``None`` where there is none or ``faults`` were added."""
        if request.profile is not None:
            faults.add(
                f"{request.path}.profile",
                "PROFILE_RUNNER_UNSUPPORTED",
                f"the Runner {request.selector} does not take a Job Profile on this server",
            )
        return None
