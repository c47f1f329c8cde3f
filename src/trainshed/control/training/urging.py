"""Having gangs go: the exit notice (C36), the stop, and force where neither is heeded."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial

import structlog

from trainshed.control.background import Background
from trainshed.control.crashpoints import Point, reach
from trainshed.control.training.frozen import spec_of
from trainshed.control.training.holding import OVERDUE_SECONDS, notice_seconds
from trainshed.control.training.observing import View, failed_since
from trainshed.engines.contract import Engine, EngineError, Phase
from trainshed.model.states import State
from trainshed.model.training.spec import Kind
from trainshed.store.gangs import Gang, unit_id

FAILURE_PATIENCE_SECONDS = 15.0
"""So long the engine may take to end the others by itself when a member failed (c8: 60 s in all)."""
RETENTION_SLACK_SECONDS = 2.0
RAY_MARGIN_SECONDS = 60.0
"""A Ray task's submitter ends driver and cluster in order; so much longer it may take."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Wish:
    """That a gang ends."""

    reason: str
    """``stop``, ``deletion``, ``preemption``, ``machine``, ``failure`` or ``retention``."""
    since: float
    """Unix seconds."""
    notice: bool = False
    """Whether the programs may save first."""
    until: float = 0.0
    """Until when they may."""

    def overdue_at(self, grace_seconds: float) -> float:
        return max(self.since, self.until) + grace_seconds + OVERDUE_SECONDS


def wish_of(gang: Gang, view: View, now: float, broken_since: float | None = None) -> Wish | None:
    """Why the gang has to end, if it has to.

    ``broken_since``: what it holds broke then, and it shall go on without that (C34).
    """
    trial, held, spec = gang.trial, gang.allocation, spec_of(gang.task)
    allowed = notice_seconds(spec)
    noticed = spec.exit_notice.enabled and view.has_started
    if trial.state is State.STOPPING:
        reason = "stop" if gang.task.deleted_at is None else "deletion"
        since = trial.stop_accepted_at or now
        until = held.notice_until if held.notice_until is not None else since + allowed
        return Wish(reason, since, noticed, until if noticed else since)
    if held.evicted_at is not None:
        until = held.notice_until if held.notice_until is not None else held.evicted_at + allowed
        # What is only kept for people to look at (C50) has nothing to save.
        noticed = noticed and trial.state is not State.COLLECTING
        return Wish("preemption", held.evicted_at, noticed, until if noticed else held.evicted_at)
    if trial.state is State.COLLECTING and gang.task.retained_until is not None:
        # By itself it ends in time; a person may have cut it short.
        over = now >= gang.task.retained_until + RETENTION_SLACK_SECONDS
        return Wish("retention", gang.task.retained_until) if over else None
    if broken_since is not None and view.alive:
        return Wish("machine", broken_since)
    culprits = view.culprits
    if culprits and view.alive:
        at = failed_since(view, culprits)
        if now >= (at if at is not None else now) + FAILURE_PATIENCE_SECONDS:
            return Wish("failure", (at if at is not None else now) + FAILURE_PATIENCE_SECONDS)
    return None


class Urger:
    """Tells engines what gangs are wished to do. Used by the controller's one thread."""

    def __init__(self, clock: Callable[[], float], grace_seconds: float, releasing: Background) -> None:
        self._clock = clock
        self._grace = grace_seconds
        self._releasing = releasing
        self._told: dict[str, set[str]] = {}

    def forget_all_but(self, attempt_ids: Collection[str]) -> None:
        self._told = {key: said for key, said in self._told.items() if key in attempt_ids}

    def was_told(self, gang: Gang) -> bool:
        return bool(self._told.get(gang.attempt_id))

    def urge(self, gang: Gang, view: View, engine: Engine, wish: Wish) -> None:
        """Tell every member once; again after a failure. Kills what is overdue."""
        now, said = self._clock(), self._told.setdefault(gang.attempt_id, set())
        kind = "notice" if wish.notice else "stop"
        if kind not in said:
            try:
                self._tell(gang, view, engine, wish)
            except (EngineError, OSError) as error:
                log.warning("a gang could not be told to end; again", gang=gang.attempt_id, error=str(error))
                return
            said.add(kind)
            reach(Point.GANG_NOTICE_AFTER_ENGINE)
        grace = self._grace + (RAY_MARGIN_SECONDS if view.kind is Kind.RAY else 0.0)
        if now > wish.overdue_at(grace) and "stop" not in said:
            for rank in view.alive:
                engine.stop(unit_id(gang.attempt_id, rank), grace_seconds=self._grace)
            said.add("stop")
        if now > wish.overdue_at(grace):
            self.kill(gang, view, engine)

    def kill(self, gang: Gang, view: View, engine: Engine) -> None:
        """End by force what runs although it had to end."""
        ranks = [rank for rank in view.alive if view.of(rank).phase is Phase.RUNNING]
        if ranks:
            self._releasing.start(gang.allocation.id, partial(self._kill, gang, ranks, engine))

    def _tell(self, gang: Gang, view: View, engine: Engine, wish: Wish) -> None:
        ranks = view.ranks
        if view.kind is Kind.RAY and wish.reason != "failure" and view.seen[-1].phase is Phase.RUNNING:
            # It ends the driver, collects the logs, then ends the cluster.
            ranks = ranks[-1:]
        for rank in ranks:
            unit = unit_id(gang.attempt_id, rank)
            if wish.notice:
                engine.notify(unit, reason=wish.reason, deadline=wish.until)
            else:
                # Before the start marker too: a remembered stop keeps the program from ever starting.
                # A submitter has the driver's grace, and then what the end of its cluster takes.
                spare = RAY_MARGIN_SECONDS if view.kind is Kind.RAY else 0.0
                engine.stop(unit, grace_seconds=self._grace + spare)

    def _kill(self, gang: Gang, ranks: Collection[int], engine: Engine) -> bool:
        log.warning("nobody ended it in time; it is killed", gang=gang.attempt_id, ranks=list(ranks))
        for rank in ranks:
            engine.kill(unit_id(gang.attempt_id, rank))
        units = [unit_id(gang.attempt_id, rank) for rank in ranks]
        return all(seen.phase is not Phase.RUNNING for seen in engine.observe(units).values())
