"""The end of an Attempt: collect, decide the outcome, store it, release, prove it.

Every step may be repeated after a crash: collecting is a function of the work directory, which stays until
the release; the outcome is one transaction; a release of something already released is confirmed again.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from trainshed.content.blobs import BlobStore
from trainshed.content.local import LocalContent
from trainshed.content.outputs import (
    CollectedFile,
    Collection,
    CollectLimits,
    collect,
)
from trainshed.control import metrics
from trainshed.control.checkpoints import CheckpointFinder, Findings, register
from trainshed.control.crashpoints import Point, reach
from trainshed.engines.contract import EndedBy, Engine, Observation, Phase, Release
from trainshed.model.globs import OutputPatterns
from trainshed.model.ids import IdFactory
from trainshed.model.runner_tree import RunnerFile
from trainshed.model.states import AllocationState, OutputStatus, State
from trainshed.policy.budget import charge
from trainshed.policy.effective import EffectiveResources, ServerPolicy
from trainshed.policy.retry import Ending, Outcome, outcome
from trainshed.store import attempts, events, moves, queue
from trainshed.store.attempts import End, Start
from trainshed.store.database import Connection, Database
from trainshed.store.moves import Move
from trainshed.store.records import Allocation, Trial

LEAKED_AFTER_TRIES = 3
_ARTIFACT_BATCH = 200
_ACTOR = "controller"

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Ended:
    """A Trial whose Attempt ended, with the evidence of how."""

    trial: Trial
    allocation: Allocation
    observation: Observation
    collection: Collection = field(default_factory=Collection)
    checkpoints: Findings | None = None
    """What may become Checkpoints among the collected files."""


@dataclass(frozen=True, slots=True)
class Released:
    """One try to release an Allocation, and what the engine saw."""

    allocation: Allocation
    result: Release

    @property
    def tries(self) -> int:
        return self.allocation.tries + 1

    @property
    def state(self) -> AllocationState:
        if self.result.confirmed:
            return AllocationState.RELEASED
        return AllocationState.LEAKED if self.tries >= LEAKED_AFTER_TRIES else AllocationState.RELEASING

    @property
    def is_news(self) -> bool:
        """Whether somebody wants to read of it: the proof, or that it does not come."""
        leaks = self.state is AllocationState.LEAKED and self.allocation.state is not self.state
        return self.result.confirmed or leaks

    def values(self, now: float) -> dict[str, Any]:
        """Further columns of the Allocation."""
        evidence = json.dumps({**self.result.checks, "killed": self.result.killed})
        return {
            "tries": self.tries,
            "evidence": evidence,
            "released_at": now if self.result.confirmed else None,
        }

    def event(self, job_id: str, now: float) -> events.NewEvent:
        held = self.allocation
        checks = ", ".join(f"{name} {saw}" for name, saw in self.result.checks.items())
        message = (
            f"Released {held.gpus} x {held.gpu_model} on {held.node}: {checks}."
            if self.result.confirmed
            else f"The release is not confirmed after {self.tries} tries and goes on: {checks}."
        )
        return events.NewEvent(job_id, held.trial_id, now, _ACTOR, self.state.value.upper(), message)


class Finisher:
    """Turns ended Attempts into terminal Trials and released Allocations. Thread-safe."""

    def __init__(
        self,
        database: Database,
        engine: Engine,
        blobs: BlobStore,
        content: LocalContent,
        policy: ServerPolicy,
        clock: Callable[[], float],
        ids: IdFactory,
    ) -> None:
        self._database = database
        self._engine = engine
        self._blobs = blobs
        self._policy = policy
        self._clock = clock
        self._ids = ids
        self._content = content
        self._finder = CheckpointFinder(database, blobs)
        self.closing = threading.Event()

    def collect(
        self, ended: Ended, files: Sequence[RunnerFile], cancelled: Callable[[], bool] = lambda: False
    ) -> Ended:
        """Store the declared outputs (E73, E105); bounded after a stop (E77).

        Raises `CollectionCancelled` when ``cancelled`` says so or this process ends, and `Refusal`
        ``BLOB_BEING_DELETED`` where old bytes of one of them leave the store just now: collect again.
        """
        trial = ended.trial
        patterns = OutputPatterns(tuple(trial.output_patterns))
        stopped = trial.state is State.STOPPING
        limits = (
            CollectLimits(max_bytes=self._policy.collect_bytes, deadline_seconds=self._policy.collect_seconds)
            if stopped
            else CollectLimits()
        )
        batch = ArtifactBatch(self._database, self._blobs, self._ids, self._clock, trial)

        def ends() -> bool:
            return self.closing.is_set() or cancelled()

        def stored(file: CollectedFile) -> None:
            reach(Point.COLLECT_AFTER_BLOB)
            batch.add(file)

        found = collect(
            self._engine.work_directory(ended.allocation.attempt_id),
            patterns,
            {file.path: (file.size, file.sha256) for file in files},
            self._blobs,
            limits,
            on_file=stored,
            cancelled=ends,
        )
        batch.flush()
        reach(Point.COLLECT_AFTER_FILES)
        checkpoints = self._finder.look(trial, found.files, ends)
        return Ended(trial, ended.allocation, ended.observation, found, checkpoints)

    def finish(self, group: Sequence[Ended]) -> None:
        """Make these Trials terminal in one transaction, and their Allocations due for release.

        A Trial that was stopped meanwhile is left as it is: its end is another one now.
        """
        now = self._clock()
        outcomes = [(ended, self._outcome(ended)) for ended in group]

        def store(connection: Connection) -> list[Move]:
            made = moves.apply(connection, _closing_moves(outcomes, now), at=now, actor=_ACTOR)
            ending = {move.trial.id for move in made if move.after.value in _FINAL}
            over = [ended for ended, _ in outcomes if ended.trial.id in ending]
            _close(connection, over, now)
            for ended in over:
                if ended.checkpoints is not None:
                    register(
                        connection,
                        ended.trial,
                        ended.allocation.attempt_id,
                        ended.checkpoints,
                        self._ids,
                        at=now,
                    )
            reach(Point.FINISH_BEFORE_COMMIT)
            return made

        made = self._database.write(store)
        reach(Point.FINISH_AFTER_COMMIT)
        _count_ends(made, {ended.trial.id: ended for ended in group})

    def release(self, allocation: Allocation) -> Released:
        """Try once to release everything an Attempt held (E68, E78, P6); `store_releases` records it."""
        result = self._engine.release(allocation.attempt_id)
        if result.confirmed:
            self._content.release(allocation.attempt_id)
        reach(Point.RELEASE_AFTER_ENGINE)
        return Released(allocation, result)

    def store_releases(self, group: Sequence[Released]) -> None:
        """Record the outcome of these tries in one transaction."""
        now = self._clock()

        def store(connection: Connection) -> int:
            job_of = queue.jobs_of(connection, [each.allocation.trial_id for each in group])
            moves.lock_jobs(connection, set(job_of.values()))
            news, confirmed = [], 0
            for each in group:
                changed = attempts.set_allocation(
                    connection, each.allocation.id, each.state, each.values(now)
                )
                confirmed += changed and each.result.confirmed
                if changed and each.is_news:
                    news.append(each.event(job_of[each.allocation.trial_id], now))
            events.record(connection, news)
            reach(Point.RELEASE_BEFORE_COMMIT)
            return confirmed

        metrics.releases.inc(self._database.write(store))
        reach(Point.RELEASE_AFTER_COMMIT)
        for each in group:
            if not each.result.confirmed:
                log.warning(
                    "release not confirmed",
                    attempt=each.allocation.attempt_id,
                    tries=each.tries,
                    **each.result.checks,
                )

    @staticmethod
    def _outcome(ended: Ended) -> Outcome:
        seen, trial = ended.observation, ended.trial
        found = ended.collection
        stopped = trial.state is State.STOPPING
        ending = _ending(trial, seen)
        if ending is Ending.NOT_STARTED and not stopped:
            # The start was recorded, and only then it turned out that nothing can be executed.
            reason = seen.detail or "no reason was recorded"
            return Outcome(State.FAILED, "LAUNCH_FAILED", f"The program could not be executed: {reason}")
        return outcome(
            ending=ending,
            exit_code=seen.exit.code if seen.exit else None,
            exit_signal=seen.exit.signal if seen.exit else None,
            output_status=OutputStatus(found.status.value),
            stop_requested=stopped,
            limits=EffectiveResources(trial.gpu_type, trial.amounts, trial.timeout_seconds),
            detail=_first_problem(found) or seen.detail or "",
            outputs=len(found.files),
        )


def _first_problem(found: Collection) -> str:
    if not found.problems:
        return ""
    first = found.problems[0]
    others = len(found.problems) + found.problems_not_shown - 1
    more = f"; the Trial's `problems` tell {others} more" if others else ""
    return f"{first.name}: {first.message}{more}"


class ArtifactBatch:
    """Records artifacts as they are stored, many to a transaction."""

    def __init__(
        self,
        database: Database,
        blobs: BlobStore,
        ids: IdFactory,
        clock: Callable[[], float],
        trial: Trial,
    ) -> None:
        self._database = database
        self._blobs = blobs
        self._ids = ids
        self._clock = clock
        self._trial = trial
        self._files: list[CollectedFile] = []

    def add(self, file: CollectedFile) -> None:
        self._files.append(file)
        if len(self._files) >= _ARTIFACT_BATCH:
            self.flush()

    def flush(self) -> None:
        if not self._files:
            return
        now = self._clock()
        rows: list[dict[str, Any]] = [
            {
                "id": self._ids.artifact(),
                "trial_id": self._trial.id,
                "name": file.name,
                "size": file.size,
                "sha256": file.sha256,
                "upload_state": "uploaded",
                "created_at": now,
            }
            for file in self._files
        ]

        def store(connection: Connection) -> None:
            queue.put_blobs(connection, {row["sha256"]: row["size"] for row in rows}, at=now)
            moves.put_artifacts(connection, self._trial.id, rows)

        self._database.write(store)
        # Old bytes of the same name may have been collected between storing and recording. From here on the
        # row keeps the blob, so one look is enough.
        if gone := self._blobs.missing(row["sha256"] for row in rows):
            raise queue.blob_being_deleted(gone[0])
        self._files = []


_FINAL = frozenset({State.SUCCEEDED.value, State.FAILED.value, State.CANCELLED.value})


def _ending(trial: Trial, seen: Observation) -> Ending:
    started = trial.user_code_started or seen.started_at is not None or seen.phase is Phase.LOST
    if seen.exit is None:
        return Ending.LOST if started else Ending.NOT_STARTED
    return Ending(seen.exit.ended_by.value) if seen.exit.code is not None else Ending.NOT_STARTED


def _closing_moves(outcomes: Sequence[tuple[Ended, Outcome]], now: float) -> list[Move]:
    """The moves that lead each Trial from where it is to its end."""
    found = []
    for ended, result in outcomes:
        trial, seen = ended.trial, ended.observation
        started = trial.user_code_started or seen.started_at is not None or seen.phase is Phase.LOST
        state = trial.state
        if state is State.PREPARING:
            found.append(started_move(trial, seen, now))
            state = State.RUNNING
        if state is State.RUNNING:
            found.append(ended_move(trial, seen))
            state = State.COLLECTING
        values: dict[str, Any] = {
            "exit_code": seen.exit.code if seen.exit else None,
            "exit_signal": seen.exit.signal if seen.exit else None,
            "output_status": ended.collection.status.value,
            "output_problems": _problems(ended.collection),
            "error_code": result.error_code,
            "error_message": result.message if result.error_code else None,
        }
        if seen.exit is not None and started:
            values["finished_at"] = seen.exit.finished_at
        if state is State.STOPPING and started:
            values |= {"user_code_started": True, "started_at": seen.started_at or trial.started_at}
        found.append(
            Move(
                trial, state, result.state, result.error_code or result.state.upper(), result.message, values
            )
        )
    return found


def started_move(trial: Trial, seen: Observation, now: float) -> Move:
    """PREPARING -> RUNNING: user code was started, or that cannot be excluded (E79)."""
    message = (
        f"Started {trial.entrypoint}."
        if seen.started_at is not None
        else "Whether user code started cannot be told any more: it counts as started and is never replayed."
    )
    values = {"user_code_started": True, "started_at": seen.started_at or now}
    return Move(trial, State.PREPARING, State.RUNNING, "STARTED", message, values, seen.started_at)


def ended_move(trial: Trial, seen: Observation) -> Move:
    """RUNNING -> COLLECTING: the program is gone."""
    if seen.exit is None:
        message = f"Execution was lost: {seen.detail or 'nothing watches the program any more'}."
    else:
        how = f"signal {seen.exit.signal}" if seen.exit.signal is not None else f"exit code {seen.exit.code}"
        why = "" if seen.exit.ended_by is EndedBy.EXIT else f" ({seen.exit.ended_by})"
        message = f"The program ended with {how}{why}."
    status = OutputStatus.COLLECTING if trial.output_patterns else OutputStatus.NONE
    finished_at = seen.exit.finished_at if seen.exit else None
    values = {"output_status": status}
    return Move(trial, State.RUNNING, State.COLLECTING, "ENDED", message, values, finished_at)


def _problems(found: Collection) -> str | None:
    """What readers are shown, one by one, of outputs that could not be stored."""
    if not found.problems:
        return None
    listed = [{"name": p.name, "code": p.code.value, "message": p.message} for p in found.problems]
    if found.problems_not_shown:
        more = f"{found.problems_not_shown} more declared outputs have problems"
        listed.append({"name": "...", "code": "OUTPUT_MORE_PROBLEMS", "message": more})
    return json.dumps(listed)


def _close(connection: Connection, group: Sequence[Ended], now: float) -> None:
    """Record the ends of these Attempts, make what they held due for release, charge their GPU time."""
    starts, ends = [], []
    used: Counter[str] = Counter()
    for ended in group:
        trial, attempt_id, seen = ended.trial, ended.allocation.attempt_id, ended.observation
        if seen.started_at is not None:
            # A short program's start and end are seen in one look.
            starts.append(Start(attempt_id, seen.started_at, seen.enforcement))
        if seen.exit is None:
            end = End(attempt_id, now, seen.phase, seen.detail or "")
        else:
            done = seen.exit
            end = End(attempt_id, done.finished_at, done.ended_by, done.detail, done.code, done.usage)
        ends.append(end)
        used[trial.project_id] += charge(
            trial.gpus, trial.timeout_seconds, seen.started_at or trial.started_at, end.at
        )
    attempts.start_all(connection, starts)
    attempts.end_all(connection, ends)
    attempts.let_go(connection, [ended.allocation.id for ended in group])
    for project_id, gpu_seconds in used.items():
        if gpu_seconds:
            queue.charge(connection, project_id, gpu_seconds)


def count_start(move: Move) -> None:
    """Note in the metrics that a Trial's program started, and how long after its submission."""
    metrics.starts.inc()
    metrics.start_latency.observe(max(0.0, move.values["started_at"] - move.trial.created_at))


def _count_ends(made: Sequence[Move], group: dict[str, Ended]) -> None:
    for move in made:
        if move.after is State.RUNNING:
            count_start(move)
        if move.after.value not in _FINAL:
            continue
        ended = group[move.trial.id]
        metrics.ends.labels(status=move.after.value, code=move.code).inc()
        started = ended.observation.started_at
        if started is not None and ended.observation.exit is not None:
            took = max(0.0, ended.observation.exit.finished_at - started)
            metrics.durations.labels(status=move.after.value).observe(took)
