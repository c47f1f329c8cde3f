"""What a deployment must look like from outside, said once more and without the code under test.

The model knows what people did and what the engine's world shows. From that it derives which Jobs there are,
how each Trial may move, what its end must be, and that nothing is handed out twice. It shares the words of
the states with the program, and no rule.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainshed.engines.fake.engine import World
from trainshed.store.records import Allocation, Event, Trial

MAX_STARTS = 5
END = frozenset({"succeeded", "failed", "cancelled"})
NEXT = {
    None: {"queued"},
    "queued": {"preparing", "failed", "stopping"},
    "preparing": {"running", "queued", "failed", "stopping"},
    "running": {"collecting", "stopping"},
    "collecting": {"succeeded", "failed", "stopping"},
    "stopping": {"cancelled"},
}


@dataclass
class Program:
    """What the model remembers of one Trial."""

    job: str
    stopped: bool = False  # before it had ended
    last_seen: Any = None  # everything about it, once it has ended
    attempts: int = 0


@dataclass
class Submitted:
    project: str
    body: Any
    trials: list[str]
    stopped: bool = False


@dataclass
class Model:
    """One deployment with one node."""

    gpus: int
    max_gpus: Mapping[str, int]
    budget: Mapping[str, int]
    jobs: dict[str, Submitted] = field(default_factory=dict)
    names: dict[tuple[str, str], str] = field(default_factory=dict)
    programs: dict[str, Program] = field(default_factory=dict)
    readable: dict[str, bool] = field(default_factory=dict)

    # What people do

    def expects(self, project: str, request: str, body: Any) -> str:
        """``new``, ``replay`` or the code of the refusal."""
        known = self.names.get((project, request))
        if known is not None and self.jobs[known].body != body:
            return "JOB_REQUEST_CONFLICT"
        if not self.readable.get(project, True):
            return "RUNNER_NOT_FOUND"
        return "new" if known is None else "replay"

    def submitted(self, project: str, request: str, body: Any, job: str, trials: Sequence[Trial]) -> None:
        if (project, request) in self.names:
            assert self.names[project, request] == job, "one request id names one Job"
            return
        assert job not in self.jobs
        self.names[project, request] = job
        self.jobs[job] = Submitted(project, body, [trial.id for trial in trials])
        for trial in trials:
            self.programs[trial.id] = Program(job)

    def stopped(self, job: str, only: str | None, states: Mapping[str, str]) -> None:
        """A stop was accepted while the Trials were in these states."""
        live = [each for each in self.jobs[job].trials if states[each] not in END]
        if only is None and live:
            self.jobs[job].stopped = True
        for each in live:
            if only in {None, each}:
                self.programs[each].stopped = True

    # What must hold at every moment

    def check(
        self,
        trials: Sequence[Trial],
        statuses: Mapping[str, str],
        events: Mapping[str, Sequence[Event]],
        allocations: Sequence[Allocation],
        used: Mapping[str, float],
        world: World,
    ) -> None:
        assert {trial.id for trial in trials} == self.programs.keys(), "exactly what was accepted is there"
        by_job: dict[str, list[str]] = {}
        for trial in trials:
            by_job.setdefault(trial.job_id, []).append(str(trial.state))
            self._check_trial(trial, events[trial.id])
        for job, states in by_job.items():
            assert statuses[job] == self.status(job, states)
        self._check_access(trials, allocations)
        self._check_amounts(trials, [a for a in allocations if a.state != "released"], used)
        self._check_starts(allocations, world)

    def status(self, job: str, states: Sequence[str]) -> str:
        """Contract E b12."""
        stopped = self.jobs[job].stopped
        if not set(states) <= END:
            if stopped:
                return "stopping"
            return "queued" if set(states) == {"queued"} else "running"
        if stopped:
            return "cancelled"
        if "failed" in states:
            return "failed"
        return "cancelled" if "cancelled" in states else "completed"

    def _check_trial(self, trial: Trial, events: Sequence[Event]) -> None:
        at: str | None = None
        for event in events:
            if event.after is not None:
                assert event.before == at, "no move is missing"
                assert event.after in NEXT[at], f"{at} -> {event.after}"
                at = event.after
        assert at == trial.state, "the last event says where it is"
        assert [e.id for e in events] == sorted(e.id for e in events)
        if self.programs[trial.id].stopped:
            assert trial.state in {"stopping", "cancelled"}
        if trial.state in END:
            program = self.programs[trial.id]
            program.last_seen = program.last_seen or trial
            assert trial == program.last_seen, "terminal is terminal"

    def _check_access(self, trials: Sequence[Trial], allocations: Sequence[Allocation]) -> None:
        """Reading A2: nothing is opened for a project that may not read the Runner any more."""
        for trial in trials:
            opened = sum(allocation.trial_id == trial.id for allocation in allocations)
            program = self.programs[trial.id]
            assert opened == program.attempts or self.readable.get(trial.project_id, True)
            program.attempts = opened

    def _check_amounts(
        self, trials: Sequence[Trial], held: Sequence[Allocation], used: Mapping[str, float]
    ) -> None:
        """Promise P5: nothing is handed out twice, no limit is exceeded."""
        indices = [index for allocation in held for index in json.loads(allocation.gpu_indices)]
        assert len(indices) == len(set(indices)), "no GPU is held twice"
        assert set(indices) <= set(range(self.gpus))
        for project, most in self.max_gpus.items():
            assert sum(a.gpus for a in held if a.project_id == project) <= most
        for project, budget in self.budget.items():
            active = [t for t in trials if t.project_id == project and t.state not in END | {"queued"}]
            assert used[project] + sum(t.gpus * t.timeout_seconds for t in active) <= budget

    def _check_starts(self, allocations: Sequence[Allocation], world: World) -> None:
        """Promises P3 and P6, by the world's own evidence."""
        starts: dict[str, int] = {}
        for allocation in allocations:
            attempt = world.attempts.get(allocation.attempt_id)
            gone = attempt is None or attempt.released
            if allocation.state == "released":
                assert gone, "released only when the engine says so"
            if attempt is not None and has_started(world, allocation.attempt_id):
                starts[allocation.trial_id] = starts.get(allocation.trial_id, 0) + 1
        assert all(count == 1 for count in starts.values()), "user code starts at most once"
        known = {a.attempt_id for a in allocations if a.state != "released"}
        assert {name for name, a in world.attempts.items() if not a.released} <= known, "no strangers"

    # What the end must be

    def end_of(self, trial: Trial, attempts: Sequence[str], world: World) -> tuple[str, str | None]:
        """State and error code of a Trial, from what was done to it and what its programs did."""
        if self.programs[trial.id].stopped:
            return "cancelled", None
        started = [attempt for attempt in attempts if has_started(world, attempt)]
        if not started:
            return "failed", "LAUNCH_FAILED" if len(attempts) == MAX_STARTS else "RUNNER_NOT_FOUND"
        script = world.attempts[started[0]].script
        unwritten = self.jobs[self.programs[trial.id].job].body["outputs"] and not script.files
        if script.lost_after is not None:
            return "failed", "EXECUTION_LOST"
        if script.code or script.signal:
            return "failed", "NONZERO_EXIT"
        return ("failed", "OUTPUT_COLLECTION_FAILED") if unwritten else ("succeeded", None)


def has_started(world: World, attempt_id: str) -> bool:
    """Whether user code of an Attempt began, by its script and the clock alone."""
    attempt = world.attempts.get(attempt_id)
    if attempt is None or attempt.script.not_started:
        return False
    start = attempt.launched_at + attempt.script.start_after
    return start <= world.now and (attempt.stopped_at is None or attempt.stopped_at >= start)
