"""Quotas at work: what a task may take now, out of whose units, and what it could take at most (C23, c3).

The own units of a quota are its project's. Quotas of one cohort (with one resource type, pool and spec) lend
each other what they do not use: `lendable` units each, of which a project may borrow `borrowing_limit` above
its own. With ``lendable`` of every member in one pot, and what each member uses above its other units taken
out of it, no instant can have more in use than there is (P5).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from math import inf

from trainshed.model.training.catalog import ANY, Quota
from trainshed.model.training.spec import ResourceType
from trainshed.policy.gangs.snapshot import (
    Choice,
    GangClass,
    GangReason,
    GangWait,
    LineKey,
    Running,
    SourceUnits,
)
from trainshed.policy.gangs.usage import line_key

CohortKey = tuple[str, ResourceType, str, str]
"""Cohort, resource type, pool, spec."""
_MANY_CLASSES = 20_000
"""With more of them known all are forgotten: most have gone long ago."""


class QuotaTable:
    """The rows of the catalogue, found by what they count. Immutable."""

    def __init__(self, quotas: Iterable[Quota]) -> None:
        self.rows = tuple(quotas)
        self._rows = {(q.project, q.resource_type, q.pool, q.spec): q for q in self.rows}
        self._found: dict[LineKey, Quota | None] = {}
        self._members: dict[CohortKey, tuple[str, ...]] = {}
        self._most: dict[tuple[LineKey, bool], int] = {}
        self._unlent: dict[tuple[str, str], int] = {}
        self._numbers = count()
        self.claimed: dict[int, tuple[LineKey, bool]] = {}
        """What each claim is on, and whether it is a guaranteed one."""
        self._claims: dict[tuple[LineKey, bool], int] = {}
        self._kin: dict[tuple[str | None, LineKey | CohortKey], list[int]] = {}
        self._of_class: dict[GangClass, tuple[tuple[tuple[int, int], ...], ...]] = {}
        self.guests = any(q.project == ANY and q.cohort is not None for q in self.rows)
        """Whether projects without a row of their own may borrow."""
        self._projects = sorted({q.project for q in self.rows if q.project != ANY})

    def row(self, line: LineKey) -> Quota | None:
        """The row that counts: own project before `ANY`, then own spec before `ANY`."""
        if line not in self._found:
            project, kind, pool, spec = line
            keys = ((project, spec), (project, ANY), (ANY, spec), (ANY, ANY))
            rows = (self._rows.get((p, kind, pool, s)) for p, s in keys)
            self._found[line] = next((row for row in rows if row is not None), None)
        return self._found[line]

    def claim(self, line: LineKey, *, guarantee: bool) -> int:
        """A number for what a ledger says is left of a quota."""
        found = self._claims.get((line, guarantee))
        if found is None:
            # Several threads may ask one table: everything else about a number is there before the number.
            found = next(self._numbers)
            self.claimed[found] = (line, guarantee)
            self._kin.setdefault(self._kinship(line), []).append(found)
            found = self._claims.setdefault((line, guarantee), found)
        return found

    def kin(self, line: LineKey) -> Sequence[int]:
        """The claims on which it tells how much of a quota is used: those of its cohort."""
        return self._kin.get(self._kinship(line), ())

    def _kinship(self, line: LineKey) -> tuple[str | None, LineKey | CohortKey]:
        row = self.row(line)
        return (None, line) if row is None or row.cohort is None else (row.cohort, (row.cohort, *line[1:]))

    def claims(self, key: GangClass) -> tuple[tuple[tuple[int, int], ...], ...]:
        """For each choice of a class its claims, and units."""
        found = self._of_class.get(key)
        if found is None:
            if len(self._of_class) >= _MANY_CLASSES:
                self._of_class.clear()
            found = self._of_class[key] = tuple(
                tuple((self.claim(line, guarantee=key.guarantee), units) for line, units in lines)
                for lines in key.lines
            )
        return found

    def members(self, cohort: CohortKey) -> tuple[str, ...]:
        """The projects with a row of their own in a cohort: only these lend."""
        if cohort not in self._members:
            name, kind, pool, spec = cohort
            rows = ((p, self.row((p, kind, pool, spec))) for p in self._projects)
            self._members[cohort] = tuple(
                p for p, row in rows if row is not None and row.cohort == name and row.project != ANY
            )
        return self._members[cohort]

    def lends(self, line: LineKey) -> int:
        """Units that a project puts into the pot of its cohort."""
        row = self.row(line)
        return 0 if row is None or row.cohort is None or row.project == ANY else row.lendable

    def most(self, line: LineKey, *, guarantee: bool) -> int:
        """Units that a task can ever get; more is refused at the door (C23)."""
        known = self._most.get((line, guarantee))
        if known is None:
            known = self._most[line, guarantee] = self._find_most(line, guarantee=guarantee)
        return known

    def _find_most(self, line: LineKey, *, guarantee: bool) -> int:
        row = self.row(line)
        if row is None:
            return 0
        if guarantee or row.cohort is None:
            return row.units
        project, kind, pool, spec = line
        others = sum(
            self.lends((p, kind, pool, spec))
            for p in self.members((row.cohort, kind, pool, spec))
            if p != project
        )
        return row.units + int(min(others, inf if row.borrowing_limit is None else row.borrowing_limit))

    def unlent(self, pool: str, spec: str) -> int:
        """Reserved units of a pool that their owners lend to nobody: idle tasks keep off them (c3)."""
        known = self._unlent.get((pool, spec))
        if known is None:
            rows = (self.row((project, ResourceType.RESERVED, pool, spec)) for project in self._projects)
            known = sum(row.units - row.lendable for row in rows if row is not None and row.project != ANY)
            self._unlent[pool, spec] = known
        return known


@dataclass(slots=True)
class Promise:
    """Units that the first task of a queue waits for: later ones may only take what it can spare."""

    id: str
    at: float
    """When it can have them at the latest; infinite if nobody can say."""
    spare: int

    def allows(self, units: int, end: float) -> bool:
        return (self.at != inf and end <= self.at) or units <= self.spare

    def take(self, units: int, end: float) -> None:
        if self.at == inf or end > self.at:
            self.spare -= units


class Ledger:
    """Units in use at one instant of a pass."""

    __slots__ = ("_left", "_pots", "_shared", "lent", "table", "used")

    def __init__(self, table: QuotaTable, used: dict[LineKey, int], lent: dict[tuple[str, str], int]) -> None:
        self.table = table
        self.used = used
        self.lent = lent
        self._pots: dict[CohortKey, int] = {}
        self._left: list[int | None] = []
        """By claim, where it was worked out."""
        self._shared = False
        """Whether a copy uses the same `_pots` and `_left`: what one works out the other knows as well."""

    def copy(self) -> Ledger:
        other = Ledger(self.table, self.used.copy(), self.lent.copy())
        other._pots, other._left = self._pots, self._left
        self._shared = other._shared = True
        return other

    def add(self, line: LineKey, units: int) -> None:
        """Count ``units`` more, or less if negative."""
        if self._shared:
            self._pots, self._left, self._shared = self._pots.copy(), self._left.copy(), False
        before = self.used.get(line, 0)
        self.used[line] = before + units
        known = len(self._left)
        for claim in self.table.kin(line):
            if claim < known:
                self._left[claim] = None
        row = self.table.row(line)
        if row is not None and row.cohort is not None:
            cohort = (row.cohort, *line[1:])
            if cohort in self._pots:
                keeps = row.units - self.table.lends(line)
                self._pots[cohort] -= max(0, before + units - keeps) - max(0, before - keeps)

    def count(self, running: Running, sign: int) -> None:
        """Count a gang that runs (1) or take it out again (-1)."""
        if running.key.resource_type is not ResourceType.IDLE:
            for spec, units in running.units:
                self.add(line_key(running.key, spec), sign * units)
        for spec, units in running.supplement:
            self.add_lent(running.key.pool, spec, sign * units)

    def add_lent(self, pool: str, spec: str, units: int) -> None:
        self.lent[pool, spec] = self.lent.get((pool, spec), 0) + units

    def pot(self, cohort: CohortKey) -> int:
        """What a cohort has left to lend."""
        if cohort not in self._pots:
            left = 0
            _, kind, pool, spec = cohort
            lines = {(p, kind, pool, spec) for p in self.table.members(cohort)}
            if self.table.guests:
                lines |= {line for line in self.used if line[1:] == cohort[1:] and self._in(line, cohort[0])}
            for line in lines:
                row = self.table.row(line)
                if row is not None:
                    lends = self.table.lends(line)
                    left += lends - max(0, self.used.get(line, 0) - (row.units - lends))
            self._pots[cohort] = left
        return self._pots[cohort]

    def _in(self, line: LineKey, cohort: str) -> bool:
        row = self.table.row(line)
        return row is not None and row.cohort == cohort

    def own_left(self, line: LineKey) -> int:
        """Own units that the project does not use; negative if it borrows."""
        row = self.table.row(line)
        return (0 if row is None else row.units) - self.used.get(line, 0)

    def left(self, line: LineKey, *, guarantee: bool) -> int:
        """Units that a project may take now."""
        return self._at(self.table.claim(line, guarantee=guarantee))

    def _at(self, claim: int) -> int:
        left = self._left
        if claim >= len(left):
            left.extend([None] * (claim + 1 - len(left)))
        known = left[claim]
        if known is None:
            line, guarantee = self.table.claimed[claim]
            known = left[claim] = self._find_left(line, guarantee=guarantee)
        return known

    def _find_left(self, line: LineKey, *, guarantee: bool) -> int:
        row = self.table.row(line)
        if row is None:
            return 0
        used = self.used.get(line, 0)
        if guarantee or row.cohort is None:
            if row.cohort is None:
                return row.units - used
            return min(row.units - used, self._with_cohort(row, line, used))
        return self._with_cohort(row, line, used)

    def _with_cohort(self, row: Quota, line: LineKey, used: int) -> int:
        keeps = row.units - self.table.lends(line)
        left = max(0, keeps - used) + self.pot((str(row.cohort), *line[1:]))
        if row.borrowing_limit is not None:
            left = min(left, row.units + row.borrowing_limit - used)
        return left

    def has(self, key: GangClass, number: int) -> bool:
        """Whether the quotas have enough for a choice; the fast half of `check`, for tasks without idle."""
        return self.covers(self.table.claims(key)[number])

    def covers(self, claims: Iterable[tuple[int, int]]) -> bool:
        """Whether what is left of the quotas is enough for the units of each claim."""
        left = self._left
        there = len(left)
        for claim, units in claims:
            known = left[claim] if claim < there else None
            if units > (self._at(claim) if known is None else known):
                return False
        return True

    def check(
        self, key: GangClass, choice: Choice, capacity: dict[str, int]
    ) -> tuple[SourceUnits, ...] | GangReason:
        """Out of whose units a gang would run, or why it may not now.

        ``capacity`` has units of each spec that the whole pool could run at once, for idle tasks.
        """
        sources = []
        for spec, units in choice.units:
            found = self._source(key, spec, units, capacity)
            if isinstance(found, GangReason):
                return found
            sources.append(found)
        return tuple(sources)

    def _source(
        self, key: GangClass, spec: str, units: int, capacity: dict[str, int]
    ) -> SourceUnits | GangReason:
        if key.resource_type is ResourceType.IDLE:
            return self._idle(key, spec, units, 0, capacity)
        line = line_key(key, spec)
        if supplements(key):
            own = min(units, max(0, self.left(line, guarantee=True)))
            return (
                self._idle(key, spec, units, own, capacity) if own < units else SourceUnits(spec, own, 0, 0)
            )
        most = self.table.most(line, guarantee=key.guarantee)
        if units > most:
            return GangReason(GangWait.EXCEEDS_MAX_QUOTA, spec, units, limit=most, pool=key.pool)
        left = self.left(line, guarantee=key.guarantee)
        if units > left:
            return GangReason(
                GangWait.WAITING_FOR_QUOTA, spec, units, max(left, 0), limit=most, pool=key.pool
            )
        own = min(units, max(0, self.own_left(line)))
        return SourceUnits(spec, own, units - own, 0)

    def _idle(
        self, key: GangClass, spec: str, units: int, own: int, capacity: dict[str, int]
    ) -> SourceUnits | GangReason:
        unlent = self.table.unlent(key.pool, spec)
        if unlent and spec in capacity:
            most = capacity[spec] - unlent
            left = most - self.lent.get((key.pool, spec), 0)
            if units - own > left:
                code = GangWait.EXCEEDS_MAX_QUOTA if units - own > most else GangWait.WAITING_FOR_QUOTA
                return GangReason(code, spec, units - own, max(left, 0), limit=max(most, 0), pool=key.pool)
        return SourceUnits(spec, own, 0, units - own)

    def charge(self, key: GangClass, sources: Iterable[SourceUnits], sign: int = 1) -> None:
        """Count a gang."""
        for source in sources:
            if key.resource_type is not ResourceType.IDLE:
                self.add(line_key(key, source.spec), sign * (source.own + source.borrowed))
            if source.supplement:
                self.add_lent(key.pool, source.spec, sign * source.supplement)


def supplements(key: GangClass) -> bool:
    """Whether what is above the own quota may run as idle; a guaranteed task never does (c4)."""
    return key.idle_supplement and not key.guarantee and key.resource_type is ResourceType.RESERVED
