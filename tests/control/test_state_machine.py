"""Anything people, programs and crashes can do, in any order, against the model."""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from sqlalchemy import create_engine, select

from control.model import END, Model, has_started
from support.deployment import Crash, FakeDeployment, crashing_at, fleet, person
from support.examples import examples
from trainshed.control.crashpoints import Point
from trainshed.engines.contract import EngineError
from trainshed.engines.fake import Script
from trainshed.model.access import Principal, Visibility
from trainshed.model.errors import Refusal
from trainshed.policy.effective import ServerPolicy
from trainshed.store import access, jobs, runners, tables
from trainshed.store.database import Database
from trainshed.store.records import Trial
from trainshed.store.schema import migrate

T = TypeVar("T")

GPUS, TIMEOUT = 4, 100_000
LIMITED = "limited"
PROJECTS = ["default", LIMITED]
MAX_GPUS, BUDGET = 3, 5 * TIMEOUT
RUNNER = "team/run"
_RUNS = examples(25)
_FAST = Path("/dev/shm") if Path("/dev/shm").is_dir() else None


class Platform(RuleBasedStateMachine):
    """One deployment in virtual time; crashes are armed and then happen wherever their point is reached."""

    template: Path

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="trainshed-machine-", dir=_FAST))
        shutil.copyfile(self.template, self.root / "database")
        self.database = Database(f"sqlite:///{self.root / 'database'}")
        self.patch = crashing_at(None)
        self.patch.__enter__()
        self.armed: Point | None = None
        self.arming: Any = None
        self.d = FakeDeployment(
            self.database,
            self.root,
            nodes=[fleet(GPUS)],
            default=Script(start_after=5.0, run_seconds=None),
            policy=ServerPolicy(stop_grace_seconds=5.0),
        )
        self.d.add_project(LIMITED, max_gpus=MAX_GPUS, budget_gpu_seconds=float(BUDGET), priority=1)
        self.selectors = {
            promised: self.d.publish(
                "true\n" if promised else "false\n",
                name=RUNNER,
                outputs=["result"] if promised else [],
                timeout_seconds=TIMEOUT,
                visibility=Visibility.PROJECTS,
            )
            for promised in (False, True)
        }
        self.model = Model(GPUS, {LIMITED: MAX_GPUS}, {LIMITED: BUDGET})
        self.grant(readable=True)

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
        """Do it; after a crash, start over on the rows that are there, and do it again."""
        try:
            return work()
        except Crash as crash:
            note(f"crashed at {crash}")
            self.disarm()
            self.d.engine.close()
            self.d.boot()
            return work()

    @rule(
        point=st.sampled_from([point for point in Point if not point.startswith("gang.")]),
        time=st.integers(1, 2),
    )
    def arm_a_crash(self, point: Point, time: int) -> None:
        self.disarm()
        self.arming = crashing_at(point, time=time)
        self.arming.__enter__()

    @rule()
    def kill_and_restart(self) -> None:
        self.d.engine.close()
        self.survive(self.d.boot)

    # What people do

    @rule(
        project=st.sampled_from(PROJECTS),
        request=st.sampled_from("abcd"),
        trials=st.integers(1, 3),
        gpus=st.integers(1, 3),
        outputs=st.booleans(),
    )
    def submit(self, project: str, request: str, trials: int, gpus: int, *, outputs: bool) -> None:
        body = {"trials": trials, "gpus": gpus, "outputs": outputs}
        expected = self.model.expects(project, request, body)
        spec = {"runner": self.selectors[outputs], "resources": {"gpus": gpus}}
        document = {
            "type": "train",
            "request_id": request,
            "trials": [{"name": f"t{number}", "spec": spec} for number in range(trials)],
        }
        answer = self.survive(lambda: self.answer(person(project), document))
        if isinstance(answer, Refusal):
            # A budget may be used up for good; whatever else is refused must be expected.
            assert answer.code == expected or (answer.code == "INSUFFICIENT_BALANCE" and project == LIMITED)
            return
        assert expected in {"new", "replay"}
        self.model.submitted(project, request, body, answer, self.d.facts(answer).trials)

    def answer(self, principal: Principal, document: Any) -> str | Refusal:
        try:
            return self.d.acceptance.accept(principal, document)[0]
        except Refusal as refusal:
            return refusal

    @precondition(lambda self: self.model.jobs)
    @rule(data=st.data(), whole=st.booleans())
    def stop(self, data: Any, *, whole: bool) -> None:
        job = data.draw(st.sampled_from(sorted(self.model.jobs)))
        trials = self.d.facts(job).trials
        trial = None if whole else trials[data.draw(st.integers(0, len(trials) - 1))]
        states = {t.id: str(t.state) for t in trials}
        self.survive(lambda: self.d.stop(job, trial))
        self.model.stopped(job, trial and trial.id, states)

    @rule(readable=st.booleans())
    def grant(self, *, readable: bool) -> None:
        granted = [LIMITED] if readable else []
        self.database.write(
            lambda connection: runners.set_visibility(connection, RUNNER, Visibility.PROJECTS, granted)
        )
        self.model.readable[LIMITED] = readable

    # What programs and the engine do

    def launched(self) -> list[tuple[Trial, str]]:
        """Trials whose newest Attempt the engine holds and whose program has not ended."""
        return [
            (trial, attempt)
            for trial in self.trials()
            if trial.state not in END
            for attempt in self.attempts(trial)[-1:]
            if (known := self.d.world.attempts.get(attempt))
            and known.script.run_seconds is None
            and known.script.lost_after is None
            and not known.script.not_started
        ]

    @precondition(lambda self: self.launched())
    @rule(
        data=st.data(),
        code=st.sampled_from([0, 0, 1, 255]),
        signal=st.sampled_from([None, None, 9]),
        written=st.booleans(),
        late=st.sampled_from([0.0, 7.0]),
    )
    def a_program_ends(self, data: Any, code: int, signal: int | None, late: float, *, written: bool) -> None:
        launched = self.launched()
        trial, attempt = launched[data.draw(st.integers(0, len(launched) - 1))]
        known = self.d.world.attempts[attempt]
        ran = max(0.0, self.d.world.now - known.launched_at - known.script.start_after)
        files = {"result": b"x"} if written else {}
        self.d.script(trial, run_seconds=ran, code=code, signal=signal, files=files, reported_after=late)

    @precondition(lambda self: any(has_started(self.d.world, a) for _, a in self.launched()))
    @rule(data=st.data())
    def a_program_is_lost(self, data: Any) -> None:
        running = [a for _, a in self.launched() if has_started(self.d.world, a)]
        self.d.engine.lose(data.draw(st.sampled_from(running)))

    @precondition(lambda self: any(not has_started(self.d.world, a) for _, a in self.launched()))
    @rule()
    def starts_fail(self) -> None:
        for trial, attempt in self.launched():
            if not has_started(self.d.world, attempt):
                self.d.script(trial, not_started="no room in the work directory")

    @rule(refuses=st.booleans(), leaks=st.sampled_from([0, 0, 1, 4]))
    def the_engine_changes_its_mood(self, leaks: int, *, refuses: bool) -> None:
        refusals = (EngineError("ENGINE_DISK", "no room", retryable=True),) if refuses else ()
        self.d.default = Script(start_after=5.0, run_seconds=None, refusals=refusals, leaks=leaks)
        self.d.engine._default = self.d.default

    @rule(seconds=st.sampled_from([0.0, 1.0, 6.0, 30.0]))
    def the_controller_looks(self, seconds: float) -> None:
        self.d.pass_time(seconds)
        self.survive(self.d.step)

    @rule(seconds=st.sampled_from([6.0, 30.0]))
    def time_passes_unseen(self, seconds: float) -> None:
        self.d.pass_time(seconds)

    # What must hold

    def trials(self) -> list[Trial]:
        with self.database.read() as connection:
            found = jobs.trials_of(connection, sorted(self.model.jobs))
        return [trial for each in found.values() for trial in each]

    def attempts(self, trial: Trial) -> list[str]:
        with self.database.read() as connection:
            return [attempt.id for attempt in jobs.attempts_of(connection, [trial.id])[trial.id]]

    @invariant()
    def it_looks_as_the_model_says(self) -> None:
        with self.database.read() as connection:
            count = len(connection.execute(select(tables.jobs.c.id)).all())
            used = {p.id: p.used_gpu_seconds for p in access.list_projects(connection)}
        assert count == len(self.model.jobs)
        facts = [self.d.facts(job) for job in self.model.jobs]
        self.model.check(
            [trial for each in facts for trial in each.trials],
            {each.job.id: each.job.status for each in facts},
            {t.id: [e for e in each.events if e.trial_id == t.id] for each in facts for t in each.trials},
            [a for each in facts for held in each.allocations.values() for a in held],
            used,
            self.d.world,
        )

    def drain(self) -> None:
        """Let every program end and everything be released; then look at the ends."""
        self.disarm()
        self.the_engine_changes_its_mood(leaks=0, refuses=False)
        idle = 0
        for _ in range(400):
            if all(trial.state in END for trial in self.trials()) and not self.d.unreleased():
                break
            for trial, attempt in self.launched():
                if has_started(self.d.world, attempt):
                    ran = self.d.world.now - self.d.world.attempts[attempt].launched_at - 5.0
                    self.d.script(trial, run_seconds=ran, files={"result": b"x"})
            self.d.pass_time(30.0)
            self.d.step()
            self.it_looks_as_the_model_says()
            idle = 0 if self.d.unreleased() else idle + 1
            if idle > 3:
                self._cancel_what_waits_for_budget()
        assert not self.d.unreleased()
        assert not self.d.engine.live()
        used = dict.fromkeys(PROJECTS, 0)
        for trial in self.trials():
            attempts = self.attempts(trial)
            assert (str(trial.state), trial.error_code) == self.model.end_of(trial, attempts, self.d.world)
            used[trial.project_id] += trial.gpus * self._ran(attempts)
        for project, seconds in used.items():
            assert self.d.project(project).used_gpu_seconds == seconds
        self.it_looks_as_the_model_says()

    def _ran(self, attempts: list[str]) -> int:
        """Begun seconds of user code, by the engine's own record of its end, or by ours where it was lost."""
        total = 0
        for attempt in attempts:
            seen = self.d.engine.observe([attempt])[attempt]
            if seen.started_at is None:
                continue
            with self.database.read() as connection:
                row = connection.execute(
                    select(tables.attempts.c.ended_at).where(tables.attempts.c.id == attempt)
                ).one()
            ended = seen.exit.finished_at if seen.exit else row.ended_at
            total += math.ceil(ended - seen.started_at)
        return total

    def _cancel_what_waits_for_budget(self) -> None:
        """It may be used up for good."""
        for trial in self.trials():
            assert trial.state in END or trial.project_id == LIMITED, "only the limited project may wait"
            if trial.state not in END:
                self.model.stopped(trial.job_id, trial.id, {t.id: str(t.state) for t in self.trials()})
                self.d.stop(trial.job_id, trial)


@pytest.fixture(scope="module", autouse=True)
def template(tmp_path_factory):
    path = tmp_path_factory.mktemp("machine") / "migrated.sqlite"
    engine = create_engine(f"sqlite:///{path}")
    migrate(engine)
    with engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
    engine.dispose()
    Platform.template = path


TestPlatform = Platform.TestCase
TestPlatform.settings = settings(
    max_examples=_RUNS,
    stateful_step_count=80 if _RUNS > 60 else 40,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)
