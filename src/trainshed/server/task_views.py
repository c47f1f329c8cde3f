"""From rows of training tasks to the shapes of the API."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from trainshed.control.training.frozen import spec_of
from trainshed.control.training.holding import parts_of
from trainshed.control.training.scaling import bounds_of, scaling_of, workers_of
from trainshed.model.errors import Refusal
from trainshed.model.states import WAITING, AllocationState, State
from trainshed.model.training.spec import ResourceType
from trainshed.model.training.words import Detail, shown_state
from trainshed.policy.gangs.growth import Scaling
from trainshed.policy.gangs.queue import TIERS
from trainshed.policy.gangs.snapshot import GangReason, GangWait
from trainshed.policy.gangs.words import sentence
from trainshed.policy.retry import Ending
from trainshed.server.outlook import Answer, OutlookReader
from trainshed.server.shapes import tasks as shapes
from trainshed.server.shapes.common import Reason, iso, iso_or_none
from trainshed.store import jobs, tasks
from trainshed.store.database import Connection
from trainshed.store.records import Allocation, Attempt, Event, Replica, Task, Trial
from trainshed.store.tasks import Standing
from trainshed.store.visibility import Viewer

LAST_LINES = 50
_SEVERAL = 2
_TASK_TYPES: Mapping[str, Any] = {"pytorch": "PyTorchJob", "ray": "RayJob"}
_DETAILS = {
    "pulling": Detail.PULLING,
    "prechecking": Detail.PRECHECK,
    "runtime_env": Detail.RUNTIME_ENV,
    "retaining": Detail.RETENTION,
}
_AGAIN = {
    "preempted": "Preempted, queued again",
    "node_replaced": "A node is replaced, queued again",
    "platform": "Lost through no fault of its own, queued again",
    "manual": "Resubmitted by a person",
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a task stands (c2)."""

    in_queue: int
    in_project: int
    queue_length: int
    ahead: Mapping[int, int]

    @property
    def ahead_of(self) -> list[shapes.AheadOf]:
        order = sorted(self.ahead.items(), reverse=True)
        return [shapes.AheadOf(priority=priority, tasks=count) for priority, count in order if count]


def place_among(rows: Sequence[Standing], pool: str, resource_type: str, priority: int) -> Place:
    """A task's place among the queued ones of its project, counted from 1."""
    mine = (TIERS[ResourceType(resource_type)], -priority)
    in_project = length = 0
    ahead: dict[int, int] = {}
    for row in rows:
        there = (TIERS[ResourceType(row.resource_type)], -row.priority)
        before = row.tasks if there < mine else row.older if there == mine else 0
        in_project += before
        if (row.pool, row.resource_type) == (pool, resource_type):
            length += row.tasks
            ahead[row.priority] = ahead.get(row.priority, 0) + before
    return Place(sum(ahead.values()) + 1, in_project + 1, length, ahead)


@dataclass(frozen=True, slots=True)
class Shown:
    """A task's state in the page's words (c1)."""

    word: str
    sub_state: str | None
    detail: str | None


def shown(task: Task, trial: Trial, held: Sequence[Allocation], now: float) -> Shown:
    """The one source of what lists, pages and Jobs say about a task's state (C59)."""
    stage = None if task.stage is None else _DETAILS.get(task.stage)
    detail = None
    match trial.state:
        case State.QUEUED:
            detail = _queued_again(task)
        case State.STOPPING:
            until = max((each.notice_until or 0.0 for each in held if each.released_at is None), default=0.0)
            if until > now:
                stage = Detail.NOTICE
                detail = f"Its program saves; {ceil(until - now)} s are left for that"
        case State.COLLECTING if task.retained_until is not None:
            stage, detail = Detail.RETENTION, f"Kept until {iso(task.retained_until)}"
        case State.FAILED:
            detail = (trial.error_message or trial.error_code or "").partition("\n")[0] or None
    word = shown_state(trial.state, stage)
    told = stage if shown_state(trial.state) != word else None
    sub_state = str(told) if told is not None else task.stage if trial.state is State.PREPARING else None
    return Shown(str(word), sub_state, detail)


def _queued_again(task: Task) -> str | None:
    if task.next_cause == "auto_failure":
        return f"Resubmitting ({task.resubmissions} of {spec_of(task).fault_tolerance.max_resubmissions})"
    return _AGAIN.get(task.next_cause)


class TaskViews:
    """Builds tasks as callers see them, on one connection at one time."""

    def __init__(
        self, connection: Connection, outlook: OutlookReader, now: float, viewer: Viewer | None = None
    ) -> None:
        """Without a ``viewer`` no other task is named (C5)."""
        self._connection = connection
        self._outlook = outlook
        self._now = now
        self._viewer = viewer
        self._names: dict[str, str | None] = {}

    def summaries(self, rows: Sequence[tuple[Task, Trial]]) -> list[shapes.TaskSummary]:
        labels = tasks.labels_of(self._connection, [task.trial_id for task, _ in rows])
        held = self.held([trial for _, trial in rows])
        return [
            shapes.TaskSummary(**self._summary(task, trial, labels[task.trial_id], held.get(trial.id, ())))
            for task, trial in rows
        ]

    def task(self, task: Task, trial: Trial) -> shapes.Task:
        """Everything about a task."""
        labels = tasks.labels_of(self._connection, [trial.id])[trial.id]
        held = jobs.allocations_of(self._connection, [trial.id])[trial.id]
        attempts = jobs.attempts_of(self._connection, [trial.id])[trial.id]
        place, found = self.standing(task, trial)
        reason = None if found is None else reason_words(found)
        return shapes.Task(
            **self._summary(task, trial, labels, held),
            spec=json.loads(task.spec),
            totals=totals_view(json.loads(task.totals)),
            attempts=self._attempts(attempts),
            reason=reason,
            position=None if place is None else place.in_queue,
            position_in_project=None if place is None else place.in_project,
            ahead=[] if place is None else place.ahead_of,
            estimated_start=self.estimate(found),
            failure=_failure(trial, attempts),
            shares=tasks.shares_of(self._connection, trial.id),
            retained_until=iso_or_none(task.retained_until),
            scaling=scaling_view(task, trial, held),
            events_url=f"/v1/tasks/{task.name}/events",
            logs_url=f"/v1/tasks/{task.name}/logs",
        )

    def why(self, task: Task, trial: Trial) -> shapes.Why:
        """Why it waits, with numbers."""
        place, found = self.standing(task, trial)
        if place is None or found is None:
            held = jobs.allocations_of(self._connection, [trial.id])[trial.id]
            word = shown(task, trial, held, self._now).word
            more = scaling_view(task, trial, held)
            waits = None if more is None else more.waits_for
            said = f"{task.name} does not wait: it is {word}."
            return shapes.Why(
                code=None if waits is None else waits.code,
                message=said if waits is None else f"{said} {waits.message}",
                position=None,
                position_in_project=None,
                queue_length=None,
                ahead=[],
                blocked_by={},
                unblock=[],
                estimated_start=None,
                passed_over=[],
            )
        reason = found.reason or GangReason(GangWait.PENDING_EVALUATION, pool=task.pool)
        blocked, unblock = sentence(found.key, reason)
        return shapes.Why(
            code=reason.code.value,
            message=f"{_capital(blocked)}.",
            position=place.in_queue,
            position_in_project=place.in_project,
            queue_length=place.queue_length,
            ahead=place.ahead_of,
            blocked_by=_numbers(reason),
            unblock=[f"{_capital(unblock)}."],
            estimated_start=self.estimate(found),
            passed_over=self._passed_over(task, trial),
        )

    def standing(self, task: Task, trial: Trial) -> tuple[Place | None, Answer | None]:
        """The place and the reason of a queued task; ``None`` for any other."""
        if trial.state not in WAITING:
            return None, None
        rows = tasks.standing(self._connection, task.project_id, task.queued_at, task.trial_id)
        place = place_among(rows, task.pool, task.resource_type, task.priority)
        return place, self.told(self._outlook.read(self._connection, self._now).answer(trial, task))

    def told(self, found: Answer) -> Answer:
        """An answer that names another task only to those who may see it (C5)."""
        first = None if found.reason is None else found.reason.behind
        if found.reason is None or first is None:
            return found
        if first not in self._names:
            self._names[first] = self._name_of(first)
        return replace(found, reason=replace(found.reason, behind=self._names[first]))

    def _name_of(self, trial_id: str) -> str | None:
        """What the viewer knows a task or a Runner Trial as; ``None`` for what they may not see."""
        if self._viewer is None:
            return None
        seen = tasks.find(self._connection, self._viewer, trial_id)
        if seen is not None:
            return seen[0].name
        try:
            jobs.get_trial(self._connection, self._viewer.project_id, trial_id, viewer=self._viewer)
        except Refusal:
            return None
        return f"Trial {trial_id}"

    def estimate(self, found: Answer | None) -> shapes.EstimatedStart | None:
        """The interval in which it should start; ``None``: nobody can say."""
        if found is None or found.latest_start is None:
            return None
        latest = max(found.latest_start, self._now)
        return shapes.EstimatedStart(earliest=iso(self._now), latest=iso(latest))

    def held(self, rows: Collection[Trial]) -> dict[str, list[Allocation]]:
        """What those hold whose word depends on it."""
        return jobs.allocations_of(
            self._connection, [trial.id for trial in rows if trial.state is State.STOPPING]
        )

    def _passed_over(self, task: Task, trial: Trial) -> list[shapes.PassedOver]:
        outlook = self._outlook.read(self._connection, self._now)
        found = outlook.choices(trial, task)
        if len(found) < _SEVERAL:
            return []
        return [
            shapes.PassedOver(spec=spec, why=answer.reason.code.value)
            for spec, answer in found
            if answer.reason is not None
        ]

    def _summary(
        self, task: Task, trial: Trial, labels: Mapping[str, str], held: Sequence[Allocation]
    ) -> dict[str, Any]:
        now = shown(task, trial, held, self._now)
        sums = json.loads(task.totals)
        return {
            "job_id": task.job_id,
            "trial_id": task.trial_id,
            "task_uuid": task.task_uuid,
            "name": task.name,
            "kind": task.kind,
            "task_type": _TASK_TYPES[task.kind],
            "state": now.word,
            "sub_state": now.sub_state,
            "internal_state": str(trial.state),
            "owner": task.owner,
            "public": task.public,
            "project": task.project_id,
            "region": task.region,
            "cluster": task.cluster,
            "pool": task.pool,
            "resource_type": task.resource_type,
            "guarantee": task.guarantee,
            "priority": task.priority_class,
            "priority_value": task.priority,
            "replicas": int(sums.get("replicas", 0)),
            "gpus": int(sums.get("gpus", 0)),
            "chosen_spec": task.chosen_spec,
            "labels": dict(labels),
            "submitted_at": iso(task.submitted_at),
            "queued_at": iso(task.queued_at),
            "started_at": iso_or_none(trial.started_at),
            "finished_at": iso_or_none(trial.finished_at),
            "resubmissions": task.resubmissions,
            "max_resubmissions": _most_resubmissions(task),
            "detail": now.detail,
        }

    def _attempts(self, rows: Sequence[Attempt]) -> list[shapes.TaskAttempt]:
        members = tasks.replicas_of(self._connection, [row.id for row in rows])
        return [_attempt(row, members[row.id]) for row in rows]


def scaling_view(task: Task, trial: Trial, held: Sequence[Allocation]) -> shapes.TaskScaling | None:
    """The size of a cluster that follows its load (C51)."""
    bounds = bounds_of(spec_of(task))
    if bounds is None:
        return None
    now = next((each for each in held if each.state is AllocationState.HELD), None)
    there = frozenset() if now is None else workers_of(parts_of(now))
    known = scaling_of(task.scaling) if now is not None else Scaling()
    waits = None
    if known.waits and trial.state is State.RUNNING:
        message = f"Its load wants {known.wanted} workers; one more has to wait: {known.why}."
        waits = Reason(code=known.waits, message=message)
    return shapes.TaskScaling(
        min=bounds.least,
        max=bounds.most,
        workers=None if now is None else len(there),
        joined=None if known.wanted is None else len(there & known.joined),
        wanted=known.wanted,
        waits_for=waits,
    )


def reason_words(found: Answer) -> Reason:
    """Why a task waits: what blocks it, and what would unblock it."""
    reason = found.reason
    if reason is None:
        reason = GangReason(GangWait.PENDING_EVALUATION, pool=found.key.pool)
    blocked, unblock = sentence(found.key, reason)
    return Reason(code=reason.code.value, message=f"{_capital(blocked)}. It would start with: {unblock}.")


def totals_view(sums: Mapping[str, Any]) -> shapes.TaskTotals | None:
    """What `model.training.totals` wrote."""
    if not sums:
        return None
    roles = [
        shapes.RoleTotal(
            role=row["role"],
            count=row["replicas"],
            spec=row["spec"],
            units=row["units"],
            gpus=row["gpus"],
            cpus=row["cpus"],
            memory_gib=row["memory_gib"],
            charged=row["charged"],
        )
        for row in sums["roles"]
    ]
    prices = sums["price_per_hour"]
    return shapes.TaskTotals(
        replicas=sums["replicas"],
        pods=sum(row.count for row in roles if row.charged),
        units=sums["units"],
        gpus=sums["gpus"],
        cpus=sums["cpus"],
        memory_gib=sums["memory_gib"],
        roles=roles,
        price_per_hour=None if prices is None else [shapes.Price(**price) for price in prices],
    )


def task_event(row: Event) -> shapes.TaskEvent:
    level: Any = row.level
    return shapes.TaskEvent(
        id=row.id,
        at=iso(row.at),
        actor=row.actor,
        level=level,
        code=row.code,
        message=row.message,
        replica=row.replica,
        state=str(shown_state(State(row.after))) if row.after else None,
    )


def _most_resubmissions(task: Task) -> int:
    rule = spec_of(task).fault_tolerance
    return rule.max_resubmissions if rule.enabled else 0


def _attempt(row: Attempt, members: Sequence[Replica]) -> shapes.TaskAttempt:
    cause: Any = row.cause
    seen: dict[str, int] = {}
    replicas = []
    for member in members:
        index = seen[member.role] = seen.get(member.role, -1) + 1
        replica = _replica(member, index, restarts=row.number - 1)
        if row.exit_class == "preempted" and replica.state == "Succeeded":
            # It saved and left because it was told to: its work is not done.
            replica = replica.model_copy(update={"state": "Terminating"})
        replicas.append(replica)
    return shapes.TaskAttempt(
        attempt_id=row.id,
        number=row.number,
        cause=cause,
        state=_attempt_state(row),
        started_at=iso_or_none(row.started_at),
        ended_at=iso_or_none(row.ended_at),
        ended_by=row.ended_by,
        exit_class=row.exit_class,
        detail=row.detail,
        replicas=replicas,
    )


def _attempt_state(row: Attempt) -> Any:
    if row.ended_at is None:
        return "Starting" if row.started_at is None else "Running"
    if row.exit_class is not None:
        return "Preempted" if row.exit_class == "preempted" else "Failed"
    return "Stopped" if row.ended_by == Ending.STOP else "Succeeded"


def _replica(row: Replica, index: int, *, restarts: int) -> shapes.TaskReplica:
    role: Any = row.role
    return shapes.TaskReplica(
        rank=row.rank,
        role=role,
        index=index,
        state=row.state or "Pending",
        node=row.node,
        address=row.address,
        gpu_indices=json.loads(row.gpu_indices or "[]"),
        started_at=iso_or_none(row.started_at),
        ended_at=iso_or_none(row.ended_at),
        exit_code=row.exit_code,
        detail=row.detail,
        restarts=restarts,
    )


def _failure(trial: Trial, attempts: Sequence[Attempt]) -> shapes.TaskFailure | None:
    if trial.state is not State.FAILED:
        return None
    last = attempts[-1] if attempts else None
    lines = (last.log_tail or "").splitlines()[-LAST_LINES:] if last is not None else []
    message = trial.error_message or trial.error_code or "failed"
    if last is not None and last.log_tail:
        message = message.removesuffix(last.log_tail).rstrip("\n")
    return shapes.TaskFailure(
        **{"class": last.exit_class if last is not None else None},
        code=trial.error_code or "FAILED",
        replica=last.failed_rank if last is not None else None,
        exit_code=trial.exit_code,
        message=message,
        last_lines=lines,
    )


def _numbers(reason: GangReason) -> dict[str, int | str | None]:
    """The facts behind a reason."""
    return {
        "spec": reason.spec or None,
        "requested": reason.requested,
        "available": reason.available,
        "limit": reason.limit,
        "largest": reason.largest,
        "pool": reason.pool or None,
        "until": iso_or_none(reason.until),
    }


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
