"""Answers that stand: tasks that a try would tell only what an equal one was told before in the same pass."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from trainshed.model.training.spec import ResourceType
from trainshed.policy.gangs.passing import Pass
from trainshed.policy.gangs.planning import Plans
from trainshed.policy.gangs.queue import GangLine
from trainshed.policy.gangs.snapshot import GangReason, GangWait, Waiting

FULL = (GangWait.WAITING_FOR_RESOURCES, GangWait.FRAGMENTED)
"""What keeps a task from starting although its quota would let it."""


class Notes(NamedTuple):
    """What is known of a class, kept with its line for as long as ``origin`` lasts."""

    origin: tuple[object, object]
    looks: int
    kinds: tuple[int, ...]
    claims: tuple[tuple[int, int], ...]
    plain: bool
    """Whether it runs on units of its quota alone, never as idle."""


class Standing:
    """The answers of one pass."""

    def __init__(self, state: Pass, plans: Plans) -> None:
        self.state = state
        self.plans = plans
        self._origin = (state.cluster.known, state.real.table)
        self._possible: dict[tuple[str, int], bool] = {}

    def reason(self, line: GangLine, waiting: Waiting) -> GangReason | None:
        """Why a task waits, where trying it would change nothing; ``None``: it must be tried.

        An equal task found no room, its quota is not what it lacks, nobody could make room, and what it waits
        for is reserved already.
        """
        key, state = line.key, self.state
        if key.held is not None or len(key.choices) != 1:
            return None
        notes = line.notes
        if notes is None or notes.origin != self._origin:
            notes = line.notes = self._notes(line)
        known = state.failed.get(notes.looks)
        if known is None or known[1] > waiting.queued_at:
            return None
        limit = key.max_run_seconds
        end = inf if limit is None else state.end_of(key)
        if known[0] > end or self._lacks_units(notes, waiting, end):
            return None
        reason = known[2]
        if reason.code in FULL and self._may_plan(line):
            return None
        if reason.code is GangWait.BEHIND or len(state.reservations) >= state.rules.max_reservations:
            return reason
        return None if state.reserved_kinds.isdisjoint(notes.kinds) else reason

    def _lacks_units(self, notes: Notes, waiting: Waiting, end: float) -> bool:
        state = self.state
        if state.future is state.real and notes.plain:
            if not state.real.covers(notes.claims):
                return True
        elif state.no_units(waiting.key, 0) is not None:
            return True
        if not state.promises:
            return False
        promised = state.promised_claims
        if state.pots_promised or any(claim in promised for claim, _ in notes.claims):
            return state.promised(waiting, 0, end) is not None
        return False

    def _may_plan(self, line: GangLine) -> bool:
        """Whether anybody could make room; depends on the pool and the resource type alone."""
        place = (line.key.pool, line.place[0])
        found = self._possible.get(place)
        if found is None:
            found = self._possible[place] = self.plans.possible(line.key)
        return found

    def _notes(self, line: GangLine) -> Notes:
        key = line.key
        facts = self.state.cluster.facts(key)
        plain = key.resource_type is not ResourceType.IDLE and not key.idle_supplement
        claims = self.state.real.table.claims(key)[0]
        return Notes(self._origin, facts.looks[0], facts.kinds[0], claims, plain)
