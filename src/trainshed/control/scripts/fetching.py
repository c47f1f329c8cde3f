"""What runs wrote, in a folder of this machine: where it lies already, or brought here (g.8, i)."""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import structlog

from trainshed.control.crashpoints import Point, reach
from trainshed.control.scripts.ground import Ground, run_of
from trainshed.engines.providers.contract import Provider, ProviderError, RemoteNotFound, Run
from trainshed.jobkit import tree as folders
from trainshed.model.scripts.spec import RAY
from trainshed.policy.migration import DELIVERY_PAUSES
from trainshed.store.script_records import ScriptAttempt

_CLUSTER_PAUSES = (*DELIVERY_PAUSES, *(300.0,) * 35)
"""Three hours: the release removes what lies on a cluster, so nobody could bring it later."""
_NEVER = float("inf")

log = structlog.get_logger(__name__)


@runtime_checkable
class OnThisMachine(Protocol):
    """A provider whose runs write to a folder here, so that nothing is fetched."""

    def folder(self, run: Run) -> Path:
        """The work folder of a run."""
        ...


@runtime_checkable
class BringsCheckpoints(Protocol):
    """A provider that can bring checkpoints alone while a run goes on, and of them what is new."""

    def fetch_checkpoints(self, run: Run, into: Path) -> object:
        """Bring ``checkpoints/`` below ``into``."""
        ...


@dataclass(frozen=True, slots=True)
class Written:
    """Where a run's files lie on this machine."""

    root: Path
    """Holds ``outputs``."""
    checkpoints: Path


class Fetcher:
    """Brings files of runs here, those of one run one at a time. Thread-safe.

    Remembers failures of this process.
    """

    def __init__(self, ground: Ground, folder: Path) -> None:
        self._ground = ground
        self._folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._failed: dict[str, tuple[int, float]] = {}
        self._guard = threading.Lock()
        self._under_way: dict[str, threading.Lock] = {}

    def here(self, attempt: ScriptAttempt) -> Written | None:
        """The files of a run that lie here without being fetched."""
        provider: object = self._ground.providers.get(attempt.provider)
        run = run_of(attempt)
        if run is None or not isinstance(provider, OnThisMachine):
            return None
        work = provider.folder(run)
        return Written(work, work / "checkpoint_store")

    def files_of(self, attempt: ScriptAttempt, *, live: bool = False) -> Written | None:
        """The files of a run, fetched if need be; ``None`` if they cannot be had now, or ever.

        A failure is followed by a pause; `next_try` says until when. ``live``: checkpoints are enough, and
        nobody waits for them while files of the run are brought already.
        """
        if (there := self.here(attempt)) is not None:
            return there
        provider, run = self._ground.providers.get(attempt.provider), run_of(attempt)
        if provider is None or run is None or not provider.capabilities().fetch:
            self._fail(attempt, lasting=True)
            return None
        if self.next_try(attempt.attempt_id) > self._ground.clock():
            return None
        with self._guard:
            way = self._under_way.setdefault(attempt.attempt_id, threading.Lock())
        if not way.acquire(blocking=not live):
            return None
        try:
            return self._fetch(provider, run, attempt, live=live)
        finally:
            way.release()

    def _fetch(self, provider: Provider, run: Run, attempt: ScriptAttempt, *, live: bool) -> Written | None:
        into = self._folder / attempt.attempt_id
        reach(Point.SCRIPT_BEFORE_FETCH)
        try:
            into.mkdir(mode=0o700, exist_ok=True)
            if live and isinstance(provider, BringsCheckpoints):
                provider.fetch_checkpoints(run, into)
            else:
                provider.fetch(run, into)
        except RemoteNotFound:
            self._fail(attempt, lasting=True)
            return None
        except (ProviderError, OSError) as error:
            log.warning("what a run wrote cannot be fetched now", run=run.ref, reason=str(error))
            self._fail(attempt, lasting=False)
            return None
        reach(Point.SCRIPT_AFTER_FETCH)
        with self._guard:
            self._failed.pop(attempt.attempt_id, None)
        return Written(into, into / "checkpoints")

    def next_try(self, attempt_id: str) -> float:
        """When it may be tried again (Unix seconds)."""
        with self._guard:
            at = self._failed.get(attempt_id, (0, 0.0))[1]
        return 0.0 if at == _NEVER else at

    def gave_up(self, attempt_id: str, *, patient: bool = False) -> bool:
        """Whether no further try is worth it; ``patient``: also where it takes hours."""
        with self._guard:
            tries, at = self._failed.get(attempt_id, (0, 0.0))
        return at == _NEVER or (not patient and tries > len(DELIVERY_PAUSES))

    def again(self, attempt_id: str) -> None:
        """Try once more, whatever failed before."""
        with self._guard:
            self._failed.pop(attempt_id, None)

    def remove(self, attempt_id: str) -> None:
        """Let go of what was fetched; repeatable."""
        folders.remove(self._folder / attempt_id)
        self.again(attempt_id)

    def remove_others(self, known: Collection[str]) -> None:
        """Let go of what was fetched for Attempts that hold nothing any more."""
        for entry in list(self._folder.iterdir()):
            if entry.name not in known:
                self.remove(entry.name)
        with self._guard:
            for gone in self._under_way.keys() - set(known):
                if not self._under_way[gone].locked():
                    del self._under_way[gone]

    def _fail(self, attempt: ScriptAttempt, *, lasting: bool) -> None:
        pauses = _CLUSTER_PAUSES if attempt.provider == RAY else DELIVERY_PAUSES
        with self._guard:
            tries = self._failed.get(attempt.attempt_id, (0, 0.0))[0] + 1
            over = lasting or tries > len(pauses)
            at = _NEVER if over else self._ground.clock() + pauses[tries - 1]
            self._failed[attempt.attempt_id] = tries, at
