"""What the parts of script Jobs share: what they work with, and one look at one Job."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainshed.content.blobs import BlobStore
from trainshed.content.local import LocalContent
from trainshed.control.training.placing import ReadCatalog
from trainshed.engines.providers.contract import Provider, Run
from trainshed.model.errors import FaultList
from trainshed.model.ids import IdFactory
from trainshed.model.scripts.document import from_document
from trainshed.model.scripts.spec import ScriptSpec
from trainshed.model.scripts.states import LIVE_ATTEMPTS, AttemptState
from trainshed.model.states import AllocationState, State
from trainshed.policy import approval
from trainshed.policy.effective import ServerPolicy
from trainshed.policy.migration import RETRY_SECONDS
from trainshed.policy.routing import Weights
from trainshed.store import approvals, jobs, moves, policies, queue, script_attempts, scripts
from trainshed.store.database import Connection, Database
from trainshed.store.moves import Move
from trainshed.store.records import Allocation, Job, Trial
from trainshed.store.script_records import Approval, Script, ScriptAttempt

ACTOR = "controller"
OpenSecrets = Callable[[Connection, Script, Sequence[str]], Mapping[str, str]]
"""The values of somebody's secrets by name; those that are not there are missing."""


@dataclass(frozen=True, slots=True)
class ScriptWork:
    """What the controller needs for script Jobs beside what it has for Runner Trials."""

    folder: Path
    """For what Attempts keep here while they are made and brought back; readable by us alone."""
    logs: Path
    """Below it lie the logs of runs that are elsewhere, as ``PROVIDER/attempts/ATTEMPT``."""
    open_secrets: OpenSecrets
    host: str = ""
    """This machine, as `ScriptSpec.host` names it."""
    providers: Mapping[str, Provider] = field(default_factory=dict)
    """Those that are elsewhere; this machine is added by the controller."""
    local: bool = True
    """Whether packed projects may run on this machine."""
    ray: bool = False
    """Whether they may run on a Ray cluster of the catalogue."""
    ray_cluster: str | None = None
    """Which one; ``None``: the only one that there is."""
    read_catalog: ReadCatalog | None = None
    """The catalogue that counts; needed with ``ray``."""
    deliver: bool = False
    """Whether outputs are written into folders of projects on this machine (an embedded server's)."""
    env_cache: Path | None = None
    """Where installed packages are kept for all Jobs of this machine."""
    retry_seconds: float = RETRY_SECONDS
    """How long a Job waits after its first loss (`backoff`)."""
    weights: Weights = field(default_factory=Weights)
    grants: Mapping[str, tuple[float, float]] | None = None
    """See `trainshed.control.scripts.routing.GRANTS`, which stands where nothing is said."""


@dataclass(frozen=True, slots=True)
class Ground:
    """What every part works with."""

    database: Database
    clock: Callable[[], float]
    ids: IdFactory
    blobs: BlobStore
    content: LocalContent
    policy: ServerPolicy
    work: ScriptWork
    providers: Mapping[str, Provider]
    """By name, this machine among them."""
    home: str
    """The name of the server's own engine, which Allocations of this machine have."""
    closing: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True, slots=True)
class Look:
    """A script Job as the rows say it is now."""

    job: Job
    trial: Trial
    script: Script
    spec: ScriptSpec
    attempts: Sequence[ScriptAttempt]
    """Oldest first."""
    held: Allocation | None
    """What its newest Attempt holds, until that is due for release."""
    asked: Sequence[Approval]
    """Every question about it, oldest first."""
    policy: approval.Policy
    now: float

    @property
    def live(self) -> ScriptAttempt | None:
        """The Attempt that may still run."""
        return next((each for each in self.attempts if each.state in LIVE_ATTEMPTS), None)

    @property
    def last(self) -> ScriptAttempt | None:
        """The newest Attempt, whatever became of it."""
        return self.attempts[-1] if self.attempts else None

    @property
    def approved(self) -> bool:
        """Whether a person said yes to this spec."""
        return any(
            each.answer == "approved" and each.spec_hash == self.script.spec_hash for each in self.asked
        )

    def approved_by(self, rule: approval.Rule) -> list[Approval]:
        """The answers that said yes to one rule."""
        return [each for each in self.asked if each.answer == "approved" and rule in each.rule_names]

    @property
    def done_fraction(self) -> float:
        """How far it got, by its newest checkpoint's step; 0 where nobody can say."""
        progress = json.loads(self.script.progress or "{}")
        step, total = progress.get("step"), progress.get("total")
        return min(1.0, step / total) if step and total else 0.0


def look_at(connection: Connection, trial_id: str, now: float) -> Look | None:
    """Read everything about one script Job; ``None`` for another Trial."""
    trial = queue.by_id(connection, [trial_id]).get(trial_id)
    script = scripts.of_trials(connection, [trial_id]).get(trial_id)
    if trial is None or script is None:
        return None
    job = jobs.find_job(connection, None, trial.job_id)
    assert job is not None  # noqa: S101 - a Trial has a Job
    held = [
        a for a in jobs.allocations_of(connection, [trial_id])[trial_id] if a.state is AllocationState.HELD
    ]
    rules = approval.read(policies.document(connection, trial.project_id), FaultList())
    return Look(
        job=job,
        trial=trial,
        script=script,
        spec=from_document(json.loads(script.spec)),
        attempts=script_attempts.attempts_of(connection, [trial_id])[trial_id],
        held=held[-1] if held else None,
        asked=approvals.of_jobs(connection, [job.id]).get(job.id, []),
        policy=rules,
        now=now,
    )


def locked_look(connection: Connection, trial_id: str, now: float) -> Look | None:
    """`look_at`, while nobody else can move the Trial until this transaction ends."""
    trial = queue.by_id(connection, [trial_id]).get(trial_id)
    if trial is None:
        return None
    moves.lock_jobs(connection, [trial.job_id])
    return look_at(connection, trial_id, now)


def run_of(attempt: ScriptAttempt) -> Run | None:
    """The remote run, where its name is known."""
    return None if attempt.remote_ref is None else Run(attempt.remote_ref, attempt.url)


def move(
    connection: Connection,
    look: Look,
    *steps: tuple[State, State, str, str],
    values: Mapping[str, Any] | None = None,
    at: float,
    happened_at: float | None = None,
) -> bool:
    """Make moves of a Trial in order: from, to, code, sentence. ``values`` go with the last of them.

    Whether all of them were made; none is where somebody moved the Trial meanwhile.
    """
    made = moves.apply(
        connection,
        [
            Move(look.trial, before, after, code, message, (values or {}) if last else {}, happened_at)
            for last, (before, after, code, message) in zip(
                [False] * (len(steps) - 1) + [True], steps, strict=True
            )
        ],
        at=at,
        actor=ACTOR,
    )
    return len(made) == len(steps)


def close_attempt(
    connection: Connection, attempt: ScriptAttempt, state: AttemptState, *, at: float, **values: Any
) -> None:
    """Note how an Attempt ended; what was noted first stays."""
    if attempt.state in LIVE_ATTEMPTS:
        script_attempts.change_attempt(
            connection, attempt.attempt_id, {"state": str(state), "ended_at": at, **values}
        )
