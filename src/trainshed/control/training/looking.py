"""What a look at a gang found, as changes of rows: states of replicas, events, the stage (c1, c2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from trainshed.control.crashpoints import Point, reach
from trainshed.control.training.observing import View
from trainshed.control.training.releasing import report_event
from trainshed.control.training.scaling import asked_of
from trainshed.engines.contract import Engine, EngineError, Observation, Report
from trainshed.model.states import State
from trainshed.store import events, gangs, moves
from trainshed.store.database import Connection
from trainshed.store.events import NewEvent
from trainshed.store.gangs import Gang, unit_id
from trainshed.store.moves import Move
from trainshed.store.records import Replica

ACTOR = "controller"
_RETAINING = "RETAINING"

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Look:
    """What is new of one gang."""

    gang: Gang
    view: View
    replicas: Sequence[Replica]
    reports: dict[int, Sequence[Report]] = field(default_factory=dict)
    """By rank."""
    states: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Columns of ``replicas``, by rank."""
    moves: list[Move] = field(default_factory=list)
    task: dict[str, Any] = field(default_factory=dict)
    """Columns of ``tasks``."""

    def __bool__(self) -> bool:
        return any((self.reports, self.states, self.moves, self.task))

    def note_members(self, engine: Engine, *, leaving: bool) -> None:
        """How each member is, and what it says."""
        states = self.view.states(leaving=leaving)
        there = {replica.rank: replica for replica in self.replicas}
        for rank, seen, state in zip(self.view.ranks, self.view.seen, states, strict=True):
            replica = there[rank]
            if values := _changed(replica, seen, state):
                self.states[replica.rank] = values
            if seen.reports > replica.reports:
                self._note_reports(engine, replica)

    def _note_reports(self, engine: Engine, replica: Replica) -> None:
        unit = unit_id(self.gang.attempt_id, replica.rank)
        try:
            said = engine.reports(unit, replica.reports)
        except EngineError as error:
            log.warning("reports cannot be read; again", unit=unit, error=error.message)
            return
        if said:
            self.reports[replica.rank] = said
        if replica.rank == 0 and (asked := asked_of(self.gang, said)) is not None:
            self.task["scaling"] = asked
        for report in said:
            if report.code == _RETAINING and self.gang.trial.state is State.RUNNING:
                # The cluster of a Ray task is kept for people to look at (C50).
                self.task |= {"stage": "retaining", "retained_until": report.data.get("until")}
                words = "The driver ended; its cluster is kept for a while."
                self.moves.append(Move(self.gang.trial, State.RUNNING, State.COLLECTING, "ENDED", words))


def _changed(replica: Replica, seen: Observation, state: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    if replica.state != state:
        values["state"] = state
    if replica.started_at != seen.started_at and seen.started_at is not None:
        values["started_at"] = seen.started_at
    if seen.exit is not None and replica.ended_at is None:
        values |= {"ended_at": seen.exit.finished_at, "exit_code": seen.exit.code}
    return values


def store_looks(connection: Connection, looks: Sequence[Look], now: float) -> list[Move]:
    """Store them in one transaction; each report becomes an event exactly once."""
    moves.lock_jobs(connection, {look.gang.trial.job_id for look in looks})
    told: list[NewEvent] = []
    for look in looks:
        told += _take(connection, look)
        for rank, values in look.states.items():
            gangs.change_replica(connection, look.gang.attempt_id, rank, values)
        if look.task:
            gangs.change_task(connection, look.gang.trial.id, look.task)
        if look.view.started_at is not None and look.moves:
            enforced = next((seen.enforcement for seen in look.view.seen if seen.enforcement), {})
            gangs.start_attempt(connection, look.gang.attempt_id, look.view.started_at, enforced)
    events.record(connection, told)
    made = moves.apply(connection, [m for look in looks for m in look.moves], at=now, actor=ACTOR)
    reach(Point.GANG_LOOK_BEFORE_COMMIT)
    return made


def _take(connection: Connection, look: Look) -> list[NewEvent]:
    told = []
    for rank, said in look.reports.items():
        first, last = said[0].number - 1, said[-1].number
        if gangs.take_reports(connection, look.gang.attempt_id, rank, after=first, upto=last):
            told += [report_event(look.gang, rank, report) for report in said]
    return told
