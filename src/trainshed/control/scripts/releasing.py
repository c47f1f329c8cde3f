"""RELEASE of runs that are elsewhere: cancelled until they have ended, then removed, with proof (P6)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import structlog

from trainshed.control.background import Background
from trainshed.control.crashpoints import Point, reach
from trainshed.control.finishing import Finisher, Released
from trainshed.control.scripts.ground import Ground, run_of
from trainshed.engines.contract import Release
from trainshed.engines.providers.contract import ENDED, Provider, ProviderError, RemoteNotFound, Run
from trainshed.model.scripts.states import AttemptState, Note
from trainshed.model.states import AllocationState
from trainshed.store import script_work, scripts
from trainshed.store.records import Allocation
from trainshed.store.script_records import ScriptAttempt

log = structlog.get_logger(__name__)


class Releaser:
    """Proves that runs elsewhere hold nothing any more. `step` is called by the controller's thread."""

    def __init__(self, ground: Ground, finisher: Finisher, background: Background) -> None:
        self._ground = ground
        self._finisher = finisher
        self._background = background
        self._busy = True

    @property
    def busy(self) -> bool:
        """Whether something was still to be released when it was looked at last."""
        return self._busy

    def step(self, unreleased: Sequence[Allocation]) -> None:
        """Try to release what is due."""
        due = [a for a in unreleased if self._is_elsewhere(a) and a.state is not AllocationState.HELD]
        self._busy = bool(due)
        for allocation in due:
            self._background.start(allocation.id, partial(self._release, allocation))

    def _is_elsewhere(self, allocation: Allocation) -> bool:
        return allocation.parts is None and allocation.engine != self._ground.home

    def _release(self, allocation: Allocation) -> bool:
        with self._ground.database.read() as connection:
            attempt = script_work.attempts_by_id(connection, [allocation.attempt_id]).get(
                allocation.attempt_id
            )
        if attempt is None:
            result = Release(confirmed=True, checks={"run": "never asked for"})
        else:
            result = self._look(attempt)
        if result.confirmed:
            self._ground.content.release(allocation.attempt_id)
        reach(Point.SCRIPT_RELEASE_AFTER_PROVIDER)
        self._finisher.store_releases([Released(allocation, result)])
        return result.confirmed

    def _look(self, attempt: ScriptAttempt) -> Release:
        provider = self._ground.providers.get(attempt.provider)
        if provider is None:
            said = f"this server has no provider {attempt.provider} any more"
            return Release(confirmed=False, checks={"provider": said})
        try:
            run = run_of(attempt)
            if run is None and provider.capabilities().lookup_by_key:
                run = provider.lookup_by_key(attempt.key)
            if run is None and provider.capabilities().named_by_attempt:
                run = Run(attempt.attempt_id)
            if run is None:
                return Release(confirmed=True, checks={"run": "the provider has none of this key"})
            return self._end(provider, attempt, run)
        except ProviderError as error:
            return Release(confirmed=False, checks={"provider": error.message})

    def _end(self, provider: Provider, attempt: ScriptAttempt, run: Run) -> Release:
        try:
            phase = provider.status(run).phase
        except RemoteNotFound:
            return Release(confirmed=True, checks={"run": "the provider does not know it any more"})
        killed = 0
        if phase not in ENDED:
            provider.cancel(run)
            killed = 1
            self._note_orphan(attempt)
            phase = provider.status(run).phase
        if phase not in ENDED:
            return Release(confirmed=False, checks={"run": f"still {phase}"}, killed=killed)
        gone = provider.release(run)
        said = "removed" if gone else "not removed yet"
        return Release(confirmed=gone, checks={"run": str(phase), "remains": said}, killed=killed)

    def _note_orphan(self, attempt: ScriptAttempt) -> None:
        """One that was given up and is there all the same is ended, and that is told."""
        if attempt.state != AttemptState.ABANDONED:
            return
        now = self._ground.clock()
        said = f"{attempt.key} was still there at {attempt.provider} and was cancelled."
        self._ground.database.write(
            lambda connection: scripts.note(
                connection, attempt.trial_id, Note.ORPHAN_CANCELLED, said, at=now, level="warning"
            )
        )
        log.warning("a run that was given up is cancelled", run=attempt.key, provider=attempt.provider)
