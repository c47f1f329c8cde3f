"""A deployment of gangs on the local engine: real programs on this machine, in real time."""

from __future__ import annotations

import time

from support.deployment import GPU_MODEL
from support.gangs import GangDeployment
from support.waiting import wait_until
from trainshed.content.logs import LogReader
from trainshed.engines.local import LocalEngine


class LocalGangs(GangDeployment):
    """The deployment of gangs on real programs."""

    engine: LocalEngine

    def now(self) -> float:
        return time.time()

    def new_engine(self) -> LocalEngine:
        return LocalEngine(self.root / "engine", simulate_gpus={GPU_MODEL: 4})

    def pass_time(self, seconds: float) -> None:
        self.engine.changed(min(seconds, 0.05))

    def output(self, unit: str) -> bytes:
        with LogReader(self.engine.logs(unit)) as reader:
            return b"".join(record.raw() for record in reader.records())

    def settled(self, job: str, seconds: float = 90) -> None:
        """Within some seconds of real time."""

        def done() -> bool:
            self.controller.step()
            self.pass_time(1.0)
            return self.facts(job).settled

        wait_until(done, seconds)
