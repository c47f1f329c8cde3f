"""The thread that keeps the mirror and a Ray cluster in step, on a real cluster."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from engines.conformance import SETTLED, Behaviour
from engines.rays import RayHarness
from support.ray_cluster import RayCluster
from trainshed.engines import Phase, TreeFile
from trainshed.engines.ray import units
from trainshed.engines.ray.mirror import GROUP, INTENT, Mirror

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.timeout(600)]


@pytest.fixture
def harness(tmp_path: Path, ray_cluster: RayCluster) -> Iterator[RayHarness]:
    harness = RayHarness(tmp_path, ray_cluster)
    yield harness
    harness.close()


def code(harness: RayHarness, attempt_id: str) -> int | None:
    ended = harness.until(attempt_id, SETTLED).exit
    assert ended is not None
    return ended.code


def test_P3_a_launch_that_is_half_recorded_is_waited_for_and_holds_nobody_up(
    harness: RayHarness, tmp_path: Path
) -> None:
    half = harness.launch("half", Behaviour.SUCCEEDS)
    mirror = Mirror(tmp_path / "engine" / "attempts" / "half")
    mirror.write(GROUP, asdict(units.group_of(half, is_ray=False, now=0.0)))
    with capture_logs() as told:
        # Another one from its launch to its end: the keeper has seen the half of the first all that time.
        harness.engine.launch(harness.launch("whole", Behaviour.SUCCEEDS))
        assert code(harness, "whole") == 0
    assert [each for each in told if each["log_level"] == "error"] == []
    assert harness.engine.observe(["half"])["half"].phase is Phase.ABSENT
    harness.engine.launch(half)
    assert code(harness, "half") == 0


def test_what_nobody_expected_of_one_attempt_is_not_the_end_of_others(
    harness: RayHarness, tmp_path: Path
) -> None:
    mirror = Mirror(tmp_path / "engine" / "attempts" / "broken")
    broken = harness.launch("broken", Behaviour.SUCCEEDS)
    mirror.write(GROUP, asdict(units.group_of(broken, is_ray=False, now=0.0)))
    with capture_logs() as told:
        mirror.write(INTENT, {"of": "another version"})
        harness.engine.launch(harness.launch("whole", Behaviour.SUCCEEDS))
        assert code(harness, "whole") == 0
    assert [each["reason"] for each in told if each["log_level"] == "error"] == ["KeyError: 'limits'"]
    assert harness.engine.release("broken").confirmed


def test_a_launch_has_as_many_bytes_of_files_as_a_runner_may(harness: RayHarness, tmp_path: Path) -> None:
    source = tmp_path / "source"
    with source.open("wb") as file:
        file.truncate(60 << 20)
    launch = harness.launch("attempt-1", Behaviour.SUCCEEDS)
    launch = replace(launch, argv=("test", "-s", "large"), files=[TreeFile("large", source)])
    harness.engine.launch(launch)
    assert code(harness, "attempt-1") == 0
