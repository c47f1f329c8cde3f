"""Rules 14 to 18 of the engine contract, proved of every engine as those of ``conformance`` are."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import pytest

from engines.conformance import SETTLED, Behaviour, Harness
from trainshed.engines import (
    EndedBy,
    EngineError,
    ExitNotice,
    Gang,
    Launch,
    Observation,
    Phase,
    Role,
    Sample,
)


def gang(
    harness: Harness, behaviours: Sequence[Behaviour], *, gang_id: str = "gang-1", start_seconds: float = 60.0
) -> list[Launch]:
    """Launches of a gang whose members behave so, by rank, all on the engine's first node."""
    size, node = len(behaviours), harness.engine.nodes()[0].name
    meeting = harness.engine.meet(gang_id, [node] * size, [1] * size)
    return [
        replace(
            harness.launch(f"{gang_id}.{rank}", behaviour),
            gang=Gang(
                gang_id, rank, size, Role.WORKER if rank else Role.MASTER, node, meeting, start_seconds
            ),
        )
        for rank, behaviour in enumerate(behaviours)
    ]


def settled(harness: Harness, launches: Sequence[Launch]) -> list[Observation]:
    return [harness.until(each.attempt_id, SETTLED) for each in launches]


def running(harness: Harness, launches: Sequence[Launch]) -> None:
    for each in launches:
        harness.running(each.attempt_id)


def starts(harness: Harness, launches: Sequence[Launch]) -> list[int]:
    return [harness.starts(each.attempt_id) for each in launches]


def saving(harness: Harness, attempt_id: str = "attempt-1") -> Launch:
    """A program that saves when it is told to, and then ends well."""
    launch = harness.launch(attempt_id, Behaviour.SAVES_WHEN_TOLD)
    return replace(launch, notice=ExitNotice(600))


class GangConformance:
    """The rules. A subclass provides the ``harness`` fixture."""

    # Rule 14: together or not at all

    def test_C27_user_code_starts_after_all_have_reported(self, harness: Harness) -> None:
        launches = gang(harness, [Behaviour.SUCCEEDS] * 3)
        assert harness.engine.launch_many(launches) == {}
        ended = settled(harness, launches)
        assert [each.exit and each.exit.code for each in ended] == [0, 0, 0]
        ready = [harness.engine.reports(each.attempt_id, 0)[0] for each in launches]
        assert {each.code for each in ready} == {"READY"}
        latest = max(each.at for each in ready)
        assert all(each.started_at is not None and each.started_at >= latest for each in ended)

    def test_C27_a_part_of_a_gang_never_starts(self, harness: Harness) -> None:
        launches = gang(harness, [Behaviour.SUCCEEDS] * 3, start_seconds=0.5)
        harness.engine.launch_many(launches[:2])
        for ended in settled(harness, launches[:2]):
            assert ended.exit is not None
            assert (ended.exit.code, ended.exit.ended_by) == (None, EndedBy.GANG)
            assert ended.started_at is None
        assert starts(harness, launches) == [0, 0, 0]

    def test_C27_a_member_that_is_stopped_before_the_start_keeps_all_from_starting(
        self, harness: Harness
    ) -> None:
        launches = gang(harness, [Behaviour.SUCCEEDS] * 2)
        harness.engine.launch(launches[0])
        harness.engine.stop(launches[0].attempt_id)
        assert harness.until(launches[0].attempt_id, SETTLED).exit is not None
        harness.engine.launch(launches[1])
        ended = harness.until(launches[1].attempt_id, SETTLED).exit
        assert ended is not None
        assert (ended.code, ended.ended_by) == (None, EndedBy.GANG)
        assert starts(harness, launches) == [0, 0]

    def test_P3_C27_a_gang_launched_again_after_a_restart_starts_once(self, harness: Harness) -> None:
        launches = gang(harness, [Behaviour.RUNS_UNTIL_STOPPED] * 2)
        harness.engine.launch(launches[0])
        harness.reopen()
        harness.engine.launch_many(launches)
        running(harness, launches)
        harness.reopen()
        harness.engine.launch_many(launches)
        for each in launches:
            harness.engine.stop(each.attempt_id)
        assert {each.exit and each.exit.ended_by for each in settled(harness, launches)} == {EndedBy.STOP}
        assert starts(harness, launches) == [1, 1]

    # Rule 15: what fails of one ends all

    def test_c8_a_member_that_fails_ends_the_others(self, harness: Harness) -> None:
        launches = gang(harness, [Behaviour.RUNS_UNTIL_STOPPED, Behaviour.EXITS_WITH_3])
        harness.engine.launch_many(launches)
        first, second = (each.exit for each in settled(harness, launches))
        assert first is not None
        assert second is not None
        assert (second.code, second.ended_by) == (3, EndedBy.EXIT)
        assert (first.signal, first.ended_by) == (15, EndedBy.GANG)
        assert "rank 1 exited with 3" in first.detail
        # Each shim reads the clock on its own when it writes its record.
        assert abs(first.finished_at - second.finished_at) < 60

    def test_c8_a_member_that_is_lost_ends_the_others_also_after_a_restart(self, harness: Harness) -> None:
        launches = gang(harness, [Behaviour.RUNS_UNTIL_STOPPED] * 3)
        harness.engine.launch_many(launches)
        running(harness, launches)
        harness.reopen()
        harness.lose(launches[0].attempt_id)
        lost, *others = settled(harness, launches)
        assert lost.phase is Phase.LOST
        for each in others:
            assert each.exit is not None
            assert each.exit.ended_by is EndedBy.GANG
            assert "rank 0 is lost" in each.exit.detail

    def test_c8_a_member_that_succeeds_leaves_the_others_alone(self, harness: Harness) -> None:
        launches = gang(harness, [Behaviour.SUCCEEDS, Behaviour.RUNS_UNTIL_STOPPED])
        harness.engine.launch_many(launches)
        first = harness.until(launches[0].attempt_id, SETTLED).exit
        assert first is not None
        assert first.code == 0
        harness.pass_time()
        assert harness.observe(launches[1].attempt_id).phase is Phase.RUNNING

    # Rule 16: the exit notice

    def test_C36_a_notice_is_heard_and_the_program_saves(self, harness: Harness) -> None:
        harness.engine.launch(saving(harness))
        harness.running("attempt-1")
        deadline = self.now(harness) + 600
        for _ in range(2):
            harness.engine.notify("attempt-1", reason="preemption", deadline=deadline)
        assert harness.observe("attempt-1").noticed or harness.observe("attempt-1").phase is Phase.EXITED
        harness.reopen()
        ended = harness.until("attempt-1", SETTLED).exit
        assert ended is not None
        assert (ended.code, ended.ended_by) == (0, EndedBy.STOP)
        codes = [each.code for each in harness.engine.reports("attempt-1", 0)]
        assert codes == ["EXIT_NOTICE_SENT", "EXIT_NOTICE_HEARD"]

    def test_C36_nobody_who_hears_it_is_stopped_at_the_deadline(self, harness: Harness) -> None:
        launch = harness.launch("attempt-1", Behaviour.RUNS_UNTIL_STOPPED)
        harness.engine.launch(replace(launch, notice=ExitNotice(600)))
        harness.running("attempt-1")
        deadline = self.now(harness) + 1
        harness.engine.notify("attempt-1", reason="stop", deadline=deadline)
        ended = harness.until("attempt-1", SETTLED).exit
        assert ended is not None
        assert (ended.signal, ended.ended_by) == (15, EndedBy.STOP)
        assert ended.finished_at >= deadline - 0.01
        codes = [each.code for each in harness.engine.reports("attempt-1", 0)]
        assert codes == ["EXIT_NOTICE_SENT", "EXIT_NOTICE_UNHEARD"]

    def test_C36_without_a_notice_in_the_launch_it_is_a_stop(self, harness: Harness) -> None:
        harness.engine.launch(harness.launch("attempt-1", Behaviour.RUNS_UNTIL_STOPPED))
        harness.running("attempt-1")
        harness.engine.notify("attempt-1", reason="stop", deadline=self.now(harness) + 600)
        ended = harness.until("attempt-1", SETTLED).exit
        assert ended is not None
        assert (ended.signal, ended.ended_by) == (15, EndedBy.STOP)

    def test_C36_what_did_not_start_never_does(self, harness: Harness) -> None:
        harness.engine.notify("attempt-1", reason="stop", deadline=self.now(harness) + 600)
        harness.engine.launch(saving(harness))
        ended = harness.until("attempt-1", SETTLED).exit
        assert ended is not None
        assert (ended.code, ended.ended_by) == (None, EndedBy.STOP)
        assert harness.starts("attempt-1") == 0

    # Rule 17: reports and samples

    def test_c2_reports_are_numbered_and_stay_until_they_are_forgotten(self, harness: Harness) -> None:
        [launch] = gang(harness, [Behaviour.SAVES_WHEN_TOLD])
        harness.engine.launch(replace(launch, notice=ExitNotice(600)))
        harness.running("gang-1.0")
        harness.engine.notify("gang-1.0", reason="stop", deadline=self.now(harness) + 600)
        assert harness.until("gang-1.0", SETTLED).reports == 3
        said = list(harness.engine.reports("gang-1.0", 0))
        assert [each.number for each in said] == [1, 2, 3]
        assert [each.at for each in said] == sorted(each.at for each in said)
        assert list(harness.engine.reports("gang-1.0", 2)) == said[2:]
        harness.reopen()
        assert harness.engine.release("gang-1.0").confirmed
        assert list(harness.engine.reports("gang-1.0", 0)) == said
        harness.engine.forget("gang-1.0")
        assert list(harness.engine.reports("gang-1.0", 0)) == []

    def test_C37_samples_are_in_order_and_stay_until_they_are_forgotten(self, harness: Harness) -> None:
        launch = harness.launch("attempt-1", Behaviour.RUNS_UNTIL_STOPPED)
        harness.engine.launch(replace(launch, sample_seconds=0.1))
        harness.running("attempt-1")
        taken: list[Sample] = []
        while len(taken) < 3:
            harness.pass_time()
            taken = list(harness.engine.samples("attempt-1", 0))
        assert [each.at for each in taken] == sorted(each.at for each in taken)
        assert harness.engine.samples("attempt-1", taken[1].at)[0] == taken[2]
        harness.engine.stop("attempt-1", grace_seconds=0)
        harness.until("attempt-1", SETTLED)
        kept = list(harness.engine.samples("attempt-1", 0))
        harness.reopen()
        assert harness.engine.release("attempt-1").confirmed
        assert list(harness.engine.samples("attempt-1", 0)) == kept
        harness.engine.forget("attempt-1")
        assert list(harness.engine.samples("attempt-1", 0)) == []

    def test_an_attempt_that_nobody_knows_said_and_measured_nothing(self, harness: Harness) -> None:
        assert list(harness.engine.reports("attempt-1", 0)) == []
        assert list(harness.engine.samples("attempt-1", 0)) == []

    # Rule 18: where they meet

    def test_C41_a_meeting_is_decided_once(self, harness: Harness) -> None:
        node = harness.engine.nodes()[0].name
        first = harness.engine.meet("gang-1", [node] * 2, [8, 0])
        assert [each.slots for each in first.hosts] == [8, 1]
        assert harness.engine.meet("gang-1", [node] * 2, [8, 0]) == first
        harness.reopen()
        assert harness.engine.meet("gang-1", [node] * 2, [8, 0]) == first

    def test_C41_no_two_gangs_share_a_port_of_an_address(self, harness: Harness) -> None:
        node = harness.engine.nodes()[0].name
        meetings = [harness.engine.meet(f"gang-{number}", [node], [1]) for number in range(10)]
        assert len({(each.hosts[0].address, each.port) for each in meetings}) == 10

    def test_C41_a_meeting_of_nobody_is_refused(self, harness: Harness) -> None:
        for nodes, slots in (([], []), (["n"], [1, 1])):
            with pytest.raises(EngineError) as refused:
                harness.engine.meet("gang-1", nodes, slots)
            assert refused.value.code == "LAUNCH_INVALID"

    # Faults

    def test_C34_a_sound_machine_has_no_faults(self, harness: Harness) -> None:
        assert harness.engine.faults() == {}

    @staticmethod
    def now(harness: Harness) -> float:
        """The engine's time: it may be a virtual one."""
        return float(getattr(harness.engine, "now", time.time()))
