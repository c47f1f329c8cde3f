"""The gangs that may have to go for others, found fast by who asks, and kept so between passes (c4)."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from trainshed.model.training.spec import ResourceType
from trainshed.policy.gangs.quota import Ledger
from trainshed.policy.gangs.snapshot import GangClass, Running
from trainshed.policy.gangs.usage import line_key

_R = ResourceType
TIER = {_R.IDLE: 0, _R.SPOT: 1, _R.ONDEMAND: 2, _R.RESERVED: 3}


def tier(running: Running) -> int:
    """What a gang counts as for those above it; one with a supplement counts as idle, whole."""
    return 0 if running.supplement else TIER[running.key.resource_type]


def borrows(running: Running, ledger: Ledger) -> bool:
    """Whether a gang's project uses more than its own units of what the gang runs on."""
    return any(ledger.own_left(line_key(running.key, spec)) < 0 for spec, _ in running.units)


class Candidates:
    """The gangs of one pool that may be victims at a time. Not thread-safe."""

    def __init__(self, running: Iterable[Running], now: float, min_run_seconds: float) -> None:
        self.now = now
        self.min_run_seconds = min_run_seconds
        self._tiers: dict[int, dict[str, Running]] = {0: {}, 1: {}, 2: {}}
        self._reserved: dict[str, dict[str, Running]] = {}
        self._young: dict[str, tuple[float, Running]] = {}
        self._ripening: list[tuple[float, str]] = []
        for one in running:
            self.add(one)

    def add(self, one: Running) -> None:
        """A gang runs; it counts once it has run long enough."""
        if one.evicted_at is not None or (one.key.guarantee and not one.supplement):
            return
        ripe = one.admitted_at + self.min_run_seconds
        if ripe > self.now:
            self._young[one.id] = (ripe, one)
            heapq.heappush(self._ripening, (ripe, one.id))
        else:
            self._file(one)

    def discard(self, one: Running) -> None:
        """It ended, was told to go or changed; what was not added is ignored."""
        self._young.pop(one.id, None)
        of = tier(one)
        if of != TIER[_R.RESERVED]:
            self._tiers[of].pop(one.id, None)
            return
        project = self._reserved.get(one.key.project, {})
        if project.pop(one.id, None) is not None and not project:
            del self._reserved[one.key.project]

    def at(self, now: float) -> Candidates:
        """The same at a later time."""
        self.now = now
        while self._ripening and self._ripening[0][0] <= now:
            ripe, id_ = heapq.heappop(self._ripening)
            found = self._young.get(id_)
            if found is not None and found[0] == ripe:
                del self._young[id_]
                self._file(found[1])
        return self

    @property
    def next_at(self) -> float | None:
        """When the next one has run long enough."""
        while self._ripening:
            ripe, id_ = self._ripening[0]
            if id_ in self._young and self._young[id_][0] == ripe:
                return ripe
            heapq.heappop(self._ripening)
        return None

    def _file(self, one: Running) -> None:
        of = tier(one)
        if of == TIER[_R.RESERVED]:
            self._reserved.setdefault(one.key.project, {})[one.id] = one
        else:
            self._tiers[of][one.id] = one

    def has_below(self, key: GangClass) -> bool:
        """Whether there can be victims at all."""
        tiers = self._tiers
        match key.resource_type:
            case _R.IDLE:
                return False
            case _R.SPOT:
                return bool(tiers[0])
            case _R.ONDEMAND:
                return bool(tiers[0] or tiers[1] or tiers[2])
            case _:
                return bool(tiers[0] or tiers[1] or self._reserved)

    def below(self, key: GangClass, ledger: Ledger, *, reclaims: bool) -> list[Running]:
        """The possible victims of a task of this class; ``reclaims`` if it stays within its own units."""
        if key.resource_type is _R.IDLE:
            return []
        found = list(self._tiers[0].values())
        if key.resource_type is not _R.SPOT:
            found += self._tiers[1].values()
        if key.resource_type is _R.ONDEMAND:
            found += [one for one in self._tiers[2].values() if one.key.priority < key.priority]
        if key.resource_type is _R.RESERVED:
            for project, gangs in self._reserved.items():
                if project == key.project:
                    found += [one for one in gangs.values() if one.key.priority < key.priority]
                elif reclaims:
                    found += [one for one in gangs.values() if borrows(one, ledger)]
        return found
