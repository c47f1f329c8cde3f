"""The conformance suite over every engine there is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from engines.conformance import HELLO, LIMITS, Behaviour, EngineConformance, Harness
from engines.containers import ImageGround, image_way
from engines.gang_conformance import GangConformance
from engines.joining_conformance import JoiningConformance
from engines.machinery import IsolatedHarness, LocalHarness
from trainshed.engines import Launch
from trainshed.engines.fake import FakeEngine, Script

_SCRIPTS = {
    Behaviour.SUCCEEDS: Script(output=HELLO, files={"out/result.txt": b"done"}),
    Behaviour.EXITS_WITH_3: Script(code=3),
    Behaviour.KILLED_BY_SIGNAL_9: Script(signal=9),
    Behaviour.RUNS_UNTIL_STOPPED: Script(run_seconds=None),
    Behaviour.IGNORES_SIGTERM: Script(run_seconds=None, heeds_sigterm=False),
    Behaviour.SAVES_WHEN_TOLD: Script(run_seconds=None, saves_for=0.3),
    Behaviour.SHOWS_ITS_INPUTS: Script(shows=("INPUTS",)),
    Behaviour.CANNOT_BE_EXECUTED: Script(not_started="It cannot execute 'no-such-program'."),
}


class FakeHarness(Harness):
    engine: FakeEngine

    def __init__(self, root: Path) -> None:
        self._root = root
        self.engine = FakeEngine(root)

    def launch(
        self, attempt_id: str, behaviour: Behaviour, *, timeout: int = 60, grace: float = 30.0
    ) -> Launch:
        if attempt_id not in self.engine.world.attempts:
            self.engine.script(attempt_id, _SCRIPTS[behaviour])
        return Launch(attempt_id, ("program",), {}, (), (), LIMITS, timeout, grace)

    def pass_time(self) -> set[str]:
        self.engine.advance(0.1)
        return set()

    def reopen(self) -> None:
        self.engine = FakeEngine(self._root, world=self.engine.world)

    def lose(self, attempt_id: str) -> None:
        self.engine.lose(attempt_id)

    def starts(self, attempt_id: str) -> int:
        return int(self.observe(attempt_id).started_at is not None)

    def close(self) -> None:
        self.engine.close()


class TestFakeEngine(EngineConformance, GangConformance, JoiningConformance):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> Harness:
        return FakeHarness(tmp_path)


class TestLocalEngine(EngineConformance, GangConformance, JoiningConformance):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> Iterator[Harness]:
        harness = LocalHarness(tmp_path)
        yield harness
        harness.close()


class TestIsolatedGangs(GangConformance):
    """On the machine's network: members with networks of their own could not meet."""

    @pytest.fixture
    def harness(self, tmp_path: Path) -> Iterator[Harness]:
        harness = IsolatedHarness(tmp_path, network=False)
        yield harness
        harness.close()


class TestIsolatedLocalEngine(EngineConformance):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> Iterator[Harness]:
        harness = IsolatedHarness(tmp_path)
        yield harness
        harness.close()


class TestPodman(EngineConformance, GangConformance):
    @pytest.fixture
    def harness(self, tmp_path: Path, image_ground: ImageGround) -> Iterator[Harness]:
        yield from image_way(tmp_path, image_ground)


class TestDocker(EngineConformance, GangConformance):
    @pytest.fixture
    def harness(self, tmp_path: Path, docker_ground: ImageGround) -> Iterator[Harness]:
        yield from image_way(tmp_path, docker_ground)
