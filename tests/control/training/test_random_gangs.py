"""P4, P5, P6: anything people, programs, nodes and crashes can do to gangs, in any order.

What must hold is added up here from the rows and from the engine's world, not by the code under test.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from sqlalchemy import create_engine, update

from support.deployment import Crash, crashing_at, fleet
from support.examples import examples
from support.gangs import POOL, GangDeployment, catalog, task
from support.scaling import head_says, leave, running, scaling_task
from trainshed.control.crashpoints import Point
from trainshed.control.training.operations import Change
from trainshed.engines.fake import Script
from trainshed.model.errors import Refusal
from trainshed.model.states import TERMINAL, State
from trainshed.model.training.catalog import ANY, Quota
from trainshed.model.training.spec import AutoscalingMode, ResourceType
from trainshed.store import gangs, queue, training_tables
from trainshed.store.database import Database
from trainshed.store.schema import migrate

T = TypeVar("T")

NODES = ("n1", "n2", "n3")
GPUS = 4
QUOTA = {ResourceType.RESERVED: 6, ResourceType.ONDEMAND: 5, ResourceType.SPOT: 9}
_FAST = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
_POINTS = sorted(point for point in Point if point.startswith("gang."))
_RUNS = examples(25)


class Gangs(RuleBasedStateMachine):
    """One deployment of three nodes; crashes are armed and then happen wherever their point is reached."""

    template: Path

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="trainshed-gangs-", dir=_FAST))
        shutil.copyfile(self.template, self.root / "database")
        self.database = Database(f"sqlite:///{self.root / 'database'}")
        self.patch = crashing_at(None)
        self.patch.__enter__()
        self.arming: Any = None
        quotas = [Quota(ANY, kind, POOL, ANY, units) for kind, units in QUOTA.items()]
        self.d = GangDeployment(
            self.database,
            self.root,
            nodes=[fleet(GPUS, name=name) for name in NODES],
            default=Script(start_after=2.0, run_seconds=None, saves_for=15.0),
            catalog_=catalog(quotas),
        )
        self.runner = self.d.publish(gpus=1, timeout_seconds=1000)
        self.jobs: list[str] = []
        self.sizes: dict[str, int] = {}
        self.scaling: list[str] = []
        self.ranges: dict[str, tuple[int, int]] = {}
        """Least and most members of those that scale."""

    def teardown(self) -> None:
        try:
            self.drain()
        finally:
            self.disarm()
            self.patch.__exit__(None, None, None)
            self.d.close()
            self.database.close()
            shutil.rmtree(self.root)

    # Crashes

    def disarm(self) -> None:
        if self.arming is not None:
            self.arming.__exit__(None, None, None)
            self.arming = None

    def survive(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except Crash as crash:
            note(f"crashed at {crash}")
            self.disarm()
            self.d.engine.close()
            self.d.boot()
            return work()

    @rule(point=st.sampled_from(_POINTS), time=st.integers(1, 2))
    def arm_a_crash(self, point: Point, time: int) -> None:
        self.disarm()
        self.arming = crashing_at(point, time=time)
        self.arming.__enter__()

    # What people do

    @rule(
        kind=st.sampled_from(list(ResourceType)),
        workers=st.integers(0, 4),
        spec=st.sampled_from(["h100x1", "h100x2", "h100x4"]),
        priority=st.integers(0, 3),
        tries=st.sampled_from([None, 1, 3, 3]),
        notice=st.sampled_from([None, 30]),
        replaces=st.booleans(),
        limit=st.sampled_from([None, 300]),
    )
    def create(self, kind, workers, spec, priority, tries, notice, replaces, limit) -> None:
        options: dict[str, Any] = {"tries": tries, "replace_node": replaces} if tries is not None else {}
        made = task(
            resource_type=kind,
            workers=workers,
            specs=[spec],
            notice=notice,
            max_run_seconds=limit,
            guarantee=kind is ResourceType.RESERVED and priority == 3,
            **options,
        )
        job = self.d.create(made, priority=priority)
        self.jobs.append(job)
        self.sizes[self.d.trial(job).id] = workers + 1
        self.survive(self.d.step)

    @rule(
        kind=st.sampled_from(list(ResourceType)),
        least=st.integers(0, 2),
        more=st.integers(0, 2),
        most=st.integers(0, 4),
        spec=st.sampled_from(["h100x1", "h100x2"]),
        mode=st.sampled_from(list(AutoscalingMode)),
        tries=st.sampled_from([None, 3]),
    )
    def create_one_that_scales(self, kind, least, more, most, spec, mode, tries) -> None:
        workers = least + more
        changes: dict[str, Any] = {"resource_type": kind, "specs": [spec], "mode": mode}
        if tries is not None:
            changes["tries"] = tries
        made = scaling_task(least, workers + most, workers=workers, **changes)
        job = self.d.create(made)
        self.jobs.append(job)
        self.scaling.append(job)
        self.ranges[self.d.trial(job).id] = (least + 2, workers + most + 2)
        self.survive(self.d.step)

    @rule(number=st.integers(0, 30), wanted=st.integers(0, 9), forged=st.booleans())
    def load_changes(self, number: int, wanted: int, *, forged: bool) -> None:
        if self.scaling:
            job = self.scaling[number % len(self.scaling)]
            if self.d.trial(job).state is State.RUNNING:
                head_says(self.d, job, wanted, [99, 1] if forged else running(self.d, job))

    @rule(number=st.integers(0, 30), code=st.sampled_from([0, 0, 1]))
    def a_worker_leaves(self, number: int, code: int) -> None:
        if self.scaling:
            job = self.scaling[number % len(self.scaling)]
            there = running(self.d, job) if self.d.trial(job).state is State.RUNNING else []
            if there:
                leave(self.d, job, there[-1], code=code)

    @rule(number=st.integers(0, 30))
    def stop(self, number: int) -> None:
        if self.jobs:
            self.d.stop(self.jobs[number % len(self.jobs)])

    @rule(number=st.integers(0, 30))
    def resubmit(self, number: int) -> None:
        if self.jobs:
            with _refused():
                self.d.resubmit(self.jobs[number % len(self.jobs)])

    @rule(number=st.integers(0, 30), priority=st.integers(0, 3))
    def change_priority(self, number: int, priority: int) -> None:
        if self.jobs:
            job, change = self.jobs[number % len(self.jobs)], Change(priority=(str(priority), priority))
            with _refused():
                self.d.operations.change(self.d.viewer(), job, change, at=self.d.now(), actor="human:ann")

    @rule()
    def submit_a_runner_trial(self) -> None:
        with _refused():  # while every node with GPUs is lost, nobody can say of which type one would be
            self.d.submit(self.runner)

    # What programs and machines do

    @rule(number=st.integers(0, 60), code=st.sampled_from([0, 1, 137]))
    def a_member_ends(self, number: int, code: int) -> None:
        live = sorted(self.d.engine.live())
        if live:
            unit = live[number % len(live)]
            self.d.engine.script(
                unit, replace(self.d.world.attempts[unit].script, run_seconds=0.0, code=code)
            )

    @rule(number=st.integers(0, 30), code=st.sampled_from([0, 0, 3]))
    def a_gang_ends(self, number: int, code: int) -> None:
        live = sorted({unit.rpartition(".")[0] for unit in self.d.engine.live()} - {""})
        if live:
            gang = live[number % len(live)]
            for unit in self.d.engine.live():
                if unit.startswith(gang):
                    script = self.d.world.attempts[unit].script
                    self.d.engine.script(unit, replace(script, run_seconds=0.0, code=code))

    @rule(number=st.integers(0, 60), deaf=st.booleans(), leaks=st.integers(0, 4))
    def a_member_is_odd(self, number: int, *, deaf: bool, leaks: int) -> None:
        live = sorted(self.d.engine.live())
        if live:
            unit = live[number % len(live)]
            self.d.engine.script(unit, replace(self.d.world.attempts[unit].script, deaf=deaf, leaks=leaks))

    @rule(node=st.sampled_from(NODES))
    def lose_a_node(self, node: str) -> None:
        self.d.engine.lose_node(node)

    @rule(node=st.sampled_from(NODES))
    def repair_a_node(self, node: str) -> None:
        self.d.engine.repair(node)
        self.clear_cordons()

    @rule(seconds=st.sampled_from([0.0, 1.0, 5.0, 20.0, 20.0, 100.0, 700.0]))
    def go_on(self, seconds: float) -> None:
        self.d.pass_time(seconds)
        self.survive(self.d.step)

    # What must hold

    @invariant()
    def P5_nothing_is_handed_out_twice_and_no_quota_is_exceeded(self) -> None:
        with self.database.read() as connection:
            held = queue.unreleased(connection)
            pairs = {gang.allocation.id: gang for gang in gangs.held(connection)}
        taken: Counter[tuple[str, int]] = Counter()
        used: Counter[tuple[str, str, str]] = Counter()
        for allocation in held:
            if allocation.parts is None:
                taken.update((allocation.node, index) for index in allocation.indices)
                continue
            kind = pairs[allocation.id].task.resource_type
            supplement = {each[0]: each[3] for each in json.loads(allocation.sources)}
            for part in json.loads(allocation.parts):
                taken.update((part["node"], index) for index in part["gpus"])
                used[allocation.project_id, kind, part["spec"]] += part["units"]
            for spec, units in supplement.items():
                used[allocation.project_id, kind, spec] -= units
        assert all(count == 1 for count in taken.values()), "no GPU is held twice"
        for (_, kind, _), units in used.items():
            assert kind == ResourceType.IDLE or units <= QUOTA[ResourceType(kind)], "quota"

    @invariant()
    def P4_a_gang_is_whole_or_nothing(self) -> None:
        with self.database.read() as connection:
            held = [gang for gang in gangs.held(connection) if gang.held]
            members = gangs.replicas_of(connection, [gang.attempt_id for gang in held])
        for gang in held:
            parts = json.loads(gang.allocation.parts or "[]")
            if gang.trial.id in self.ranges:
                least, most = self.ranges[gang.trial.id]
                assert least <= len(parts) <= most
                assert {part["rank"] for part in parts} <= {row.rank for row in members[gang.attempt_id]}
                continue
            assert len(members[gang.attempt_id]) == self.sizes[gang.trial.id]
            assert len(parts) == self.sizes[gang.trial.id]
        started: dict[str, set[float]] = {}
        for unit, attempt in self.d.world.attempts.items():
            gang = attempt.launch.gang
            if gang is None or gang.joins:
                continue
            seen = self.d.engine.observe([unit])[unit]
            if seen.started_at is not None:
                started.setdefault(gang.id, set()).add(seen.started_at)
        assert all(len(times) == 1 for times in started.values()), "members start together"

    @invariant()
    def a_task_has_one_live_gang_at_most(self) -> None:
        with self.database.read() as connection:
            owner = dict(connection.exec_driver_sql("SELECT id, trial_id FROM attempts").all())
            trials = [gang.trial.id for gang in gangs.held(connection) if gang.held]
        live: dict[str, set[str]] = {}
        for unit in self.d.engine.live():
            attempt_id = unit.partition(".")[0]
            assert attempt_id in owner, "no strangers"
            if self.d.world.attempts[unit].lost_at is None:
                live.setdefault(owner[attempt_id], set()).add(attempt_id)
        assert all(len(attempts) == 1 for attempts in live.values())
        assert len(trials) == len(set(trials))

    @invariant()
    def moves_are_complete(self) -> None:
        for job in self.jobs:
            facts = self.d.facts(job)
            at = None
            for event in facts.events:
                if event.after is not None:
                    assert event.before == at
                    at = event.after
            assert at == facts.trial.state
            if facts.trial.state is State.FAILED:
                assert facts.trial.error_code

    # The end

    def clear_cordons(self) -> None:
        table = training_tables.cordons
        self.database.write(
            lambda connection: connection.execute(update(table).values(cleared_at=self.d.now()))
        )

    def drain(self) -> None:
        """Once everything works again and everybody stops, all of it ends and is released."""
        self.disarm()
        for node in NODES:
            self.d.engine.repair(node)
        self.clear_cordons()
        for job in self.jobs:
            self.d.stop(job)
        self.d.run_until(
            lambda: (
                all(self.d.trial(job).state in TERMINAL for job in self.jobs)
                and not [a for a in self.d.unreleased() if a.parts is not None]
            ),
            pause=30.0,
        )
        self.P5_nothing_is_handed_out_twice_and_no_quota_is_exceeded()
        assert not [unit for unit in self.d.engine.live() if "." in unit]


class _refused:  # noqa: N801 - reads as a word
    """What people ask may be refused."""

    def __enter__(self) -> None:
        """Nothing to do."""

    def __exit__(self, kind: object, error: object, trace: object) -> bool:
        return isinstance(error, Refusal)


@pytest.fixture(scope="module", autouse=True)
def template(tmp_path_factory):
    path = tmp_path_factory.mktemp("gangs") / "migrated.sqlite"
    engine = create_engine(f"sqlite:///{path}")
    migrate(engine)
    with engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
    engine.dispose()
    Gangs.template = path


TestGangs = Gangs.TestCase
TestGangs.settings = settings(
    max_examples=_RUNS,
    stateful_step_count=60 if _RUNS > 25 else 30,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)
