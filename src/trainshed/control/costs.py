"""Asking a person before a costly Runner Job or training task starts: the team's rules (contract G, c; P13).

They are judged when the Job is queued, in the transaction that queues it, so it is never placed before the
question. What it may come to at worst counts: every GPU for as long as it may run. An answer is taken by the
one mechanism for Jobs of every kind (`trainshed.control.scripts.approving`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from decimal import Decimal

from trainshed.control.scripts import approving
from trainshed.control.training.frozen import spec_of
from trainshed.model.errors import FaultList
from trainshed.model.states import State
from trainshed.model.training.spec import TaskSpec
from trainshed.policy import approval
from trainshed.policy.approval import Cost
from trainshed.store import jobs, moves, policies
from trainshed.store.database import Connection
from trainshed.store.records import Job, Task, Trial

AGENT, USER = "agent", "user"
_HOUR = 3600.0


def ask_if_costly(connection: Connection, job: Job, cost: Cost, *, at: float) -> bool:
    """Have the queued Trials of a Job wait for a person where the project's rules say so; whether they do."""
    document = policies.document(connection, job.project_id)
    if not document:
        return False  # by default nothing but script Jobs asks
    verdict = approval.judge_cost(cost, approval.read(document, FaultList()))
    if not verdict.ask:
        return False
    moves.lock_jobs(connection, [job.id])
    waiting = [t for t in jobs.trials_of(connection, [job.id])[job.id] if t.state is State.QUEUED]
    if not waiting:
        return False
    approving.ask(connection, waiting, approving.spec_hash_of(connection, job), verdict, at=at)
    return True


def runner_cost(source: str, trials: Iterable[tuple[int, float]]) -> Cost:
    """What Runner Trials may come to: GPUs and seconds of each."""
    return Cost(source, gpu_hours=sum(gpus * seconds for gpus, seconds in trials) / _HOUR)


def task_cost(
    source: str, gpus: int, seconds: float | None, price_per_hour: Mapping[str, Decimal] | None
) -> Cost:
    """What a training task may come to; ``seconds`` is ``None`` where nothing ends it.

    Of several currencies the greatest amount counts: nobody set a rate between them.
    """
    dearest = max((float(price) for price in (price_per_hour or {}).values()), default=None)
    if seconds is None:
        money = None if dearest is None else math.inf if dearest else 0.0
        return Cost(source, gpu_hours=None if gpus else 0.0, money=money)
    hours = seconds / _HOUR
    return Cost(source, gpu_hours=gpus * hours, money=None if dearest is None else dearest * hours)


def worst_seconds(spec: TaskSpec) -> float | None:
    """How long a task may hold what it has, with every automatic resubmission; ``None``: it has no end."""
    if spec.max_run_seconds is None:
        return None
    attempts = 1 + (spec.fault_tolerance.budget if spec.fault_tolerance is not None else 0)
    kept = spec.debug.retention_seconds if spec.debug is not None and spec.debug.enabled else 0
    return attempts * (spec.max_run_seconds + kept)


def cost_of(task: Task, trial: Trial, source: str) -> Cost:
    """The same of a task that was accepted before, by what was frozen of it."""
    sums = json.loads(task.totals)
    sums = sums.get("largest", sums)
    prices = {each["currency"]: Decimal(each["amount"]) for each in sums.get("price_per_hour") or ()}
    gpus = sums.get("gpus", trial.gpus)
    return task_cost(source, gpus, worst_seconds(spec_of(task)), prices)


def dearness(cost: Cost) -> tuple[float, float]:
    """By what the dearest of several costs is found; one without an end is dearer than any other."""
    return math.inf if cost.gpu_hours is None else cost.gpu_hours, cost.money or 0.0
