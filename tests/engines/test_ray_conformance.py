"""The rules of engines on a Ray cluster: those in which being elsewhere makes a difference."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from engines.conformance import EngineConformance
from engines.rays import RayHarness
from support.ray_cluster import RayCluster

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.timeout(600)]


@pytest.fixture
def harness(tmp_path: Path, ray_cluster: RayCluster) -> Iterator[RayHarness]:
    harness = RayHarness(tmp_path, ray_cluster)
    yield harness
    harness.close()


class TestRayEngine:
    """Each job costs seconds; the rest of the suite is the local engine's code, which hosts run."""

    test_1 = EngineConformance.test_P3_a_repeated_launch_starts_user_code_once
    test_1_restarted = EngineConformance.test_P3_a_launch_after_a_restart_starts_nothing_again
    test_5 = (
        EngineConformance.test_P3_a_started_attempt_whose_watcher_vanished_is_lost_and_never_launched_again
    )
    test_6 = EngineConformance.test_a_stop_is_sigterm_for_a_program_that_heeds_it
    test_6_before = EngineConformance.test_P3_a_stop_before_the_launch_means_that_it_never_starts
    test_7_before = EngineConformance.test_P3_what_was_released_before_it_started_never_starts
    test_8 = EngineConformance.test_P6_a_sweep_ends_strangers_and_spares_the_known
    test_9 = EngineConformance.test_outputs_stay_until_release_and_the_log_until_forget
    test_9_held = EngineConformance.test_a_held_attempt_cannot_be_forgotten
    test_10 = EngineConformance.test_P6_a_kill_settles_a_running_attempt_and_keeps_its_outputs
    test_11 = EngineConformance.test_a_program_that_cannot_be_executed_did_not_start
    test_12 = EngineConformance.test_C13_mounts_show_their_sources_and_are_gone_after_the_release
    test_interrupt = EngineConformance.test_interrupt_ends_a_wait_for_changes
