"""Outputs on their way home: to project folders of this machine, by themselves or when asked (i, a.4)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial

from trainshed.control.background import Background
from trainshed.control.scripts.delivering import Deliverer, Undelivered
from trainshed.control.scripts.ending import Ender
from trainshed.control.scripts.fetching import Fetcher
from trainshed.control.scripts.ground import Ground, Look, look_at
from trainshed.policy.migration import DELIVERY_PAUSES
from trainshed.store import script_work, scripts
from trainshed.store.database import Connection

WINDOW_SECONDS = 3600.0
"""After a restart, outputs of Jobs that ended so recently are delivered."""


class Homing:
    """Which outputs are still to be delivered. `step` is called by the controller's thread."""

    def __init__(self, ground: Ground, ender: Ender, fetcher: Fetcher, background: Background) -> None:
        self._ground = ground
        self._ender = ender
        self._fetcher = fetcher
        self._background = background
        self._deliverer = Deliverer(ground)
        self._guard = threading.Lock()
        self._waiting: dict[str, tuple[int, float]] = {}
        """Trial -> tries so far, and when the next one is due."""

    def recover(self, connection: Connection, now: float) -> None:
        """Find what was not delivered when the last process ended."""
        work = self._ground.work
        if work.deliver:
            found = script_work.undelivered(connection, work.host, since=now - WINDOW_SECONDS)
            with self._guard:
                self._waiting |= dict.fromkeys(found, (0, now))

    def ended(self, look: Look) -> None:
        """Take in a Job that has ended."""
        wanted = look.script.outputs_count is not None and self._deliverer.wanted(look.script.host)
        if wanted and _began(look) and not look.script.outputs_fetched:
            with self._guard:
                self._waiting[look.trial.id] = 0, look.now

    def step(self, asked: Sequence[str], now: float) -> list[str]:
        """Begin what is due, and what somebody ``asked`` for; the Trials of which something was begun."""
        with self._guard:
            due = [trial_id for trial_id, (_, at) in self._waiting.items() if at <= now]
        begun = [trial_id for trial_id in due if self._begin(trial_id, self._deliver)]
        return begun + [trial_id for trial_id in asked if self._begin(trial_id, self._fetch)]

    def due(self) -> dict[str, float]:
        """When time alone makes something due (Unix seconds), by the key of that work in the background."""
        with self._guard:
            return {_key(trial_id): at for trial_id, (_, at) in self._waiting.items()}

    def _begin(self, trial_id: str, work: Callable[[str], bool]) -> bool:
        key = _key(trial_id)
        if not self._background.offers(key):
            return False
        self._background.start(key, partial(work, trial_id))
        return True

    def _fetch(self, trial_id: str) -> bool:
        """Bring outputs that somebody asked for, of a run that goes on too (a.4)."""
        with self._ground.database.snapshot() as connection:
            look = look_at(connection, trial_id, self._ground.clock())
        if look is None:
            return True
        if look.last is not None:
            self._fetcher.again(look.last.attempt_id)
        count = self._ender.gather(look)
        if count is None:
            return False
        if self._deliverer.wanted(look.script.host):
            try:
                if count or _began(look):
                    self._deliverer.deliver(trial_id)
                else:
                    self._deliverer.note_nothing(trial_id)
            except Undelivered as problem:
                self._deliverer.note_failure(trial_id, str(problem))
        done = {"fetch_requested_at": None, "outputs_count": count}
        self._ground.database.write(lambda connection: scripts.change(connection, trial_id, done))
        return True

    def _deliver(self, trial_id: str) -> bool:
        with self._guard:
            tries = self._waiting.get(trial_id, (0, 0.0))[0]
        try:
            self._deliverer.deliver(trial_id)
        except Undelivered as problem:
            if tries < len(DELIVERY_PAUSES):
                with self._guard:
                    self._waiting[trial_id] = tries + 1, self._ground.clock() + DELIVERY_PAUSES[tries]
                return True
            self._deliverer.note_failure(trial_id, str(problem))
        with self._guard:
            self._waiting.pop(trial_id, None)
        return True


def _began(look: Look) -> bool:
    """Whether any Attempt ran, so that something may have been written."""
    return any(each.started_at is not None for each in look.attempts)


def _key(trial_id: str) -> str:
    return f"outputs {trial_id}"
