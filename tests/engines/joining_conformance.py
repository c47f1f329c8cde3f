"""Rule 19 of the engine contract: members that join a gang that has begun, and those that may leave it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from engines.conformance import SETTLED, Behaviour, Harness
from engines.gang_conformance import gang, running, settled, starts
from trainshed.engines import EndedBy, EngineError, Gang, Launch, Phase, Role


def loose(launches: Sequence[Launch], ranks: Sequence[int]) -> list[Launch]:
    """The same gang, of which these members may leave."""
    found = []
    for each in launches:
        assert each.gang is not None
        found.append(replace(each, gang=replace(each.gang, optional=tuple(ranks))))
    return found


def joining(harness: Harness, launches: Sequence[Launch], rank: int, behaviour: Behaviour) -> Launch:
    """A launch that joins the gang of these."""
    one = launches[0].gang
    assert one is not None
    host = harness.engine.join(one.id, rank, 1)
    place = Gang(one.id, rank, one.size, Role.WORKER, one.node, one.meeting, optional=one.optional, host=host)
    return replace(harness.launch(f"{one.id}.{rank}", behaviour), gang=place)


class JoiningConformance:
    """The rule. A subclass provides the ``harness`` fixture."""

    def test_C51_where_one_joins_is_decided_once_and_is_nobody_elses(self, harness: Harness) -> None:
        node = harness.engine.nodes()[0].name
        met = harness.engine.meet("gang-1", [node] * 2, [1, 1])
        first = harness.engine.join("gang-1", 2, 1)
        assert harness.engine.join("gang-1", 2, 1) == first
        harness.reopen()
        assert harness.engine.join("gang-1", 2, 1) == first
        other = harness.engine.meet("gang-2", [node], [1])
        third = harness.engine.join("gang-1", 3, 1)
        taken = [each.address for each in (*met.hosts, *other.hosts, first, third)]
        assert len(set(taken)) == len(taken)

    @pytest.mark.parametrize(("gang_id", "rank"), [("gang-1", 1), ("gang-2", 5)])
    def test_C51_nobody_joins_a_gang_that_never_met_or_as_one_of_it(
        self, harness: Harness, gang_id: str, rank: int
    ) -> None:
        node = harness.engine.nodes()[0].name
        harness.engine.meet("gang-1", [node] * 2, [1, 1])
        with pytest.raises(EngineError) as refused:
            harness.engine.join(gang_id, rank, 1)
        assert refused.value.code == "LAUNCH_INVALID"

    def test_C51_one_that_joins_waits_for_the_start_and_nobody_waits_for_it(self, harness: Harness) -> None:
        launches = gang(harness, [Behaviour.RUNS_UNTIL_STOPPED] * 2)
        late = joining(harness, launches, 2, Behaviour.RUNS_UNTIL_STOPPED)
        harness.engine.launch_many([late, launches[0]])
        for _ in range(5):
            harness.pass_time()
        assert harness.observe(late.attempt_id).phase is Phase.PREPARING
        harness.engine.launch(launches[1])
        running(harness, [*launches, late])
        harness.reopen()
        harness.engine.launch(late)
        for each in (*launches, late):
            harness.engine.stop(each.attempt_id)
        settled(harness, [*launches, late])
        assert starts(harness, [*launches, late]) == [1, 1, 1]

    def test_C51_the_end_of_one_that_joined_or_may_leave_ends_nobody(self, harness: Harness) -> None:
        behaviours = [Behaviour.RUNS_UNTIL_STOPPED, Behaviour.RUNS_UNTIL_STOPPED, Behaviour.EXITS_WITH_3]
        launches = loose(gang(harness, behaviours), [1, 2])
        harness.engine.launch_many(launches)
        running(harness, launches[:2])
        fails = joining(harness, launches, 3, Behaviour.EXITS_WITH_3)
        lost = joining(harness, launches, 4, Behaviour.RUNS_UNTIL_STOPPED)
        harness.engine.launch_many([fails, lost])
        harness.running(lost.attempt_id)
        harness.lose(lost.attempt_id)
        harness.lose(launches[1].attempt_id)
        assert harness.until(lost.attempt_id, SETTLED).phase is Phase.LOST
        assert harness.until(launches[1].attempt_id, SETTLED).phase is Phase.LOST
        for each in (fails, launches[2]):
            ended = harness.until(each.attempt_id, SETTLED).exit
            assert ended is not None
            assert (ended.code, ended.ended_by) == (3, EndedBy.EXIT)
        for _ in range(5):
            harness.pass_time()
        assert harness.observe(launches[0].attempt_id).phase is Phase.RUNNING
        harness.engine.stop(launches[0].attempt_id)
        harness.until(launches[0].attempt_id, SETTLED)

    def test_C51_one_that_joined_is_ended_with_its_gang(self, harness: Harness) -> None:
        launches = loose(gang(harness, [Behaviour.RUNS_UNTIL_STOPPED] * 2), [1])
        late = joining(harness, launches, 2, Behaviour.RUNS_UNTIL_STOPPED)
        harness.engine.launch_many([*launches, late])
        running(harness, [*launches, late])
        harness.lose(launches[0].attempt_id)
        for each in (launches[1], late):
            ended = harness.until(each.attempt_id, SETTLED).exit
            assert ended is not None
            assert ended.ended_by is EndedBy.GANG
        for each in (*launches, late):
            assert harness.engine.release(each.attempt_id).confirmed

    def test_C51_nobody_joins_a_gang_that_does_not_start(self, harness: Harness) -> None:
        launches = gang(harness, [Behaviour.SUCCEEDS] * 2)
        late = joining(harness, launches, 2, Behaviour.SUCCEEDS)
        harness.engine.launch_many([launches[0], late])
        harness.engine.stop(launches[0].attempt_id)
        ended = harness.until(late.attempt_id, SETTLED).exit
        assert ended is not None
        assert (ended.code, ended.ended_by) == (None, EndedBy.GANG)
        assert starts(harness, [late]) == [0]
