"""What is free of each pool, sampled: how steady idle units are follows from it (C25, c6)."""

from __future__ import annotations

from collections.abc import Callable

from trainshed.control.training.placing import GangPlacer
from trainshed.policy.gangs.figures import DAY_SECONDS, free_units, shape_of
from trainshed.store import gangs
from trainshed.store.database import Connection, Database

SAMPLE_SECONDS = 300.0
_KEPT_SECONDS = 2 * DAY_SECONDS


class IdleSampler:
    """Counts free units every five minutes. Used by the controller's one thread."""

    def __init__(self, database: Database, placer: GangPlacer, clock: Callable[[], float]) -> None:
        self._database = database
        self._placer = placer
        self._clock = clock
        self._due: float | None = None

    def look(self) -> None:
        """Take a sample if one is due; costs nothing otherwise."""
        now = self._clock()
        if self._due is None:
            with self._database.read() as connection:
                newest = gangs.newest_idle_sample(connection)
            self._due = now if newest is None else newest + SAMPLE_SECONDS
        if now < self._due:
            return
        self._due = now + SAMPLE_SECONDS
        units = self.count()

        def store(connection: Connection) -> None:
            gangs.put_idle_samples(connection, now, units)
            gangs.forget_idle_samples(connection, now - _KEPT_SECONDS)

        if units:
            self._database.write(store)

    def count(self) -> dict[tuple[str, str], int]:
        """Free units by pool and spec."""
        catalog, found = self._placer.catalog, {}
        for yard in self._placer.yards.values():
            for pool in catalog.pools:
                if pool.cluster not in yard.site.clusters:
                    continue
                for name in pool.specs:
                    spec = catalog.spec(name)
                    if spec is not None:
                        model = spec.gpu_model if spec.gpus else None
                        shape = shape_of(spec.amounts())
                        found[pool.id, name] = free_units(yard.cluster, pool.id, shape, model)
        return found
