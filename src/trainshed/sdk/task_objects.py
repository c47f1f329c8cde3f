"""What the server answers about training tasks, as typed values (contract "Create Training" c1, c2, C55).

Every value keeps the answer it was made from in ``raw``. Times are aware ``datetime`` objects, memory is GiB,
and states are the page's words: `Queuing`, `Running`, `Succeeded` and so on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from trainshed.sdk.answers import Raw, mapping, moment, required, text

TASK_ENDS = frozenset({"Succeeded", "Failed", "Stopped"})
"""The words of a task that has ended; one that is resubmitted by hand leaves them again."""


@dataclass(frozen=True, slots=True)
class TaskWarning:
    """Something about a task that is allowed and may not be meant."""

    code: str
    path: str
    message: str


@dataclass(frozen=True, slots=True)
class SubmittedTask:
    """What a submission came to (C55)."""

    job_id: str
    trial_id: str
    task_uuid: str
    name: str
    """The final name: the prefix with a suffix that is unique for ever (C3)."""
    kind: str
    state: str
    position: int | None
    """Its place in its queue, from 1; ``None`` until it is known."""
    warnings: tuple[TaskWarning, ...]
    request_id: str
    """What names the submission: sending it again under this id finds the same task (C56)."""
    accepted_before: bool
    """Its request id named this task already, so nothing new was made."""
    raw: Raw = field(repr=False)


@dataclass(frozen=True, slots=True)
class TaskReplica:
    """One replica of one Attempt (c1)."""

    rank: int
    role: str
    index: int
    """Its number within its role, from 0."""
    state: str
    """Pending, Pulling, Starting, Ready, Running, Succeeded, Failed, Lost or Terminating."""
    node: str
    address: str
    gpu_indices: tuple[int, ...]
    started_at: datetime | None
    ended_at: datetime | None
    exit_code: int | None
    detail: str
    restarts: int
    raw: Raw = field(repr=False)


@dataclass(frozen=True, slots=True)
class TaskAttempt:
    """One run of the whole gang, and why there was one (C33)."""

    number: int
    cause: str
    """initial, auto_failure (the only one that counts), manual, preempted, node_replaced or platform."""
    state: str
    started_at: datetime | None
    ended_at: datetime | None
    exit_class: str
    """user, oom, machine, platform, image or preempted; empty while it runs (C35)."""
    detail: str
    replicas: tuple[TaskReplica, ...]
    raw: Raw = field(repr=False)


@dataclass(frozen=True, slots=True)
class TaskFailure:
    """Why a task failed (c1)."""

    code: str
    exit_class: str
    replica: int | None
    """The rank of the one whose failure ended the task."""
    exit_code: int | None
    message: str
    last_lines: tuple[str, ...]
    """The end of the log, at most 50 lines."""


@dataclass(frozen=True, slots=True)
class TaskAlarm:
    """One alarm to one channel, and what became of it (C40)."""

    subject: str
    """The event, with what tells it from others of its kind."""
    channel: str
    title: str
    created_at: datetime | None
    delivered_at: datetime | None
    """``None``: not delivered so far."""
    tries: int
    next_at: datetime | None
    """When it is tried again; ``None`` once it was delivered or given up."""
    last_error: str
    raw: Raw = field(repr=False)


@dataclass(frozen=True, slots=True)
class Estimate:
    """When a task is expected to start; a bound that nobody can give is ``None``."""

    earliest: datetime | None
    latest: datetime | None


@dataclass(frozen=True, slots=True)
class TaskReason:
    """Why a task waits: the word of c2 and a sentence with numbers."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Task:
    """A training task as it is now. Items of lists lack what only `get` answers."""

    job_id: str
    trial_id: str
    task_uuid: str
    name: str
    kind: str
    """`pytorch` or `ray`."""
    state: str
    sub_state: str
    detail: str
    owner: str
    public: bool
    project: str
    region: str
    cluster: str
    pool: str
    resource_type: str
    guarantee: bool
    priority: str
    replicas: int
    gpus: int
    chosen_spec: str
    """The instance spec it runs on; empty while it waits (C22)."""
    labels: Mapping[str, str]
    submitted_at: datetime | None
    queued_at: datetime | None
    """Since when it waits in the queue; kept over preemption and automatic resubmission (c5)."""
    started_at: datetime | None
    finished_at: datetime | None
    resubmissions: int
    """Automatic ones after failures; at most ``max_resubmissions`` (C33)."""
    max_resubmissions: int
    position: int | None
    reason: TaskReason | None
    estimated_start: Estimate | None
    failure: TaskFailure | None
    attempts: tuple[TaskAttempt, ...]
    shares: tuple[str, ...]
    spec: Mapping[str, Any]
    """The effective spec, with every default; hidden values are ``None`` (C9)."""
    totals: Mapping[str, Any]
    raw: Raw = field(repr=False)

    @property
    def ended(self) -> bool:
        return self.state in TASK_ENDS

    @property
    def succeeded(self) -> bool:
        return self.state == "Succeeded"


@dataclass(frozen=True, slots=True)
class TaskEvent:
    """Something that happened to a task (c2). Events are kept for good."""

    id: int
    at: datetime | None
    actor: str
    level: str
    code: str
    message: str
    replica: int | None
    """The rank that it concerns."""
    raw: Raw = field(repr=False)


@dataclass(frozen=True, slots=True)
class Why:
    """What blocks a task, who is ahead of it, and what would let it start (P10)."""

    code: str
    """Empty where it does not wait."""
    message: str
    position: int | None
    position_in_project: int | None
    queue_length: int | None
    ahead: tuple[Mapping[str, Any], ...]
    """Tasks ahead by priority: ``{priority, tasks}``."""
    blocked_by: Mapping[str, Any]
    unblock: tuple[str, ...]
    """Sentences, each of something that would let it start."""
    estimated_start: Estimate | None
    passed_over: tuple[Mapping[str, Any], ...]
    """Specs of the list that it cannot have now: ``{spec, why}`` (C22)."""
    raw: Raw = field(repr=False)


@dataclass(frozen=True, slots=True)
class Validation:
    """What a task would come to if it were submitted now (C16)."""

    effective_spec: Mapping[str, Any]
    totals: Mapping[str, Any]
    quota: tuple[Mapping[str, Any], ...]
    """By spec: ``{spec, resource_type, requested, limit, used, free}`` in units."""
    would_start: bool
    """Whether it fits now. No reservation: what changes meanwhile counts (C24)."""
    reason: TaskReason | None
    position: int | None
    estimated_start: Estimate | None
    warnings: tuple[TaskWarning, ...]
    raw: Raw = field(repr=False)


@dataclass(frozen=True, slots=True)
class TaskSample:
    """Measurements of one replica at one moment (C37)."""

    at: datetime | None
    replica: int | None
    attempt: int
    endpoint: str
    """The program's own endpoint they were read from; empty for those of the platform."""
    values: Mapping[str, float]
    raw: Raw = field(repr=False)


def submitted_task(raw: Any, *, request_id: str, accepted_before: bool) -> SubmittedTask:
    """Read the answer to a submission; raises `InvalidAnswer` without an id, name or state."""
    document = mapping(raw, "a training task")
    return SubmittedTask(
        job_id=required(document, "job_id"),
        trial_id=text(document, "trial_id"),
        task_uuid=required(document, "task_uuid"),
        name=required(document, "name"),
        kind=text(document, "kind"),
        state=required(document, "state"),
        position=_number(document, "position"),
        warnings=_warnings(document),
        request_id=request_id,
        accepted_before=accepted_before,
        raw=document,
    )


def task(raw: Any) -> Task:
    """Read a task, whole or as in a list; raises `InvalidAnswer` without an id, name or state."""
    document = mapping(raw, "a training task")
    return Task(
        job_id=required(document, "job_id"),
        trial_id=text(document, "trial_id"),
        task_uuid=required(document, "task_uuid"),
        name=required(document, "name"),
        kind=text(document, "kind"),
        state=required(document, "state"),
        sub_state=text(document, "sub_state"),
        detail=text(document, "detail"),
        owner=text(document, "owner"),
        public=document.get("public") is True,
        project=text(document, "project"),
        region=text(document, "region"),
        cluster=text(document, "cluster"),
        pool=text(document, "pool"),
        resource_type=text(document, "resource_type"),
        guarantee=document.get("guarantee") is True,
        priority=str(document.get("priority") or ""),
        replicas=_number(document, "replicas") or 0,
        gpus=_number(document, "gpus") or 0,
        chosen_spec=text(document, "chosen_spec"),
        labels=_object(document, "labels"),
        submitted_at=moment(document, "submitted_at"),
        queued_at=moment(document, "queued_at"),
        started_at=moment(document, "started_at"),
        finished_at=moment(document, "finished_at"),
        resubmissions=_number(document, "resubmissions") or 0,
        max_resubmissions=_number(document, "max_resubmissions") or 0,
        position=_number(document, "position"),
        reason=_reason(document),
        estimated_start=_estimate(document),
        failure=_failure(document),
        attempts=tuple(_attempt(each) for each in _objects(document, "attempts")),
        shares=tuple(str(each) for each in _list(document, "shares")),
        spec=_object(document, "spec"),
        totals=_object(document, "totals"),
        raw=document,
    )


def task_event(raw: Any) -> TaskEvent:
    """Read an event of a task."""
    document = mapping(raw, "an event")
    return TaskEvent(
        id=_number(document, "id") or 0,
        at=moment(document, "at"),
        actor=text(document, "actor"),
        level=text(document, "level"),
        code=text(document, "code"),
        message=text(document, "message"),
        replica=_number(document, "replica"),
        raw=document,
    )


def why(raw: Any) -> Why:
    """Read why a task waits."""
    document = mapping(raw, "an explanation")
    return Why(
        code=text(document, "code"),
        message=text(document, "message"),
        position=_number(document, "position"),
        position_in_project=_number(document, "position_in_project"),
        queue_length=_number(document, "queue_length"),
        ahead=_objects(document, "ahead"),
        blocked_by=_object(document, "blocked_by"),
        unblock=tuple(str(each) for each in _list(document, "unblock")),
        estimated_start=_estimate(document),
        passed_over=_objects(document, "passed_over"),
        raw=document,
    )


def validation(raw: Any) -> Validation:
    """Read the answer to `validate`."""
    document = mapping(raw, "a validation")
    return Validation(
        effective_spec=_object(document, "effective_spec"),
        totals=_object(document, "totals"),
        quota=_objects(document, "quota"),
        would_start=document.get("would_start") is True,
        reason=_reason(document),
        position=_number(document, "position"),
        estimated_start=_estimate(document),
        warnings=_warnings(document),
        raw=document,
    )


def task_sample(raw: Any) -> TaskSample:
    """Read measurements of a replica."""
    document = mapping(raw, "a sample")
    values = _object(document, "values")
    return TaskSample(
        at=moment(document, "at"),
        replica=_number(document, "replica"),
        attempt=_number(document, "attempt") or 0,
        endpoint=text(document, "endpoint"),
        values={name: float(each) for name, each in values.items() if isinstance(each, int | float)},
        raw=document,
    )


def _attempt(document: Raw) -> TaskAttempt:
    return TaskAttempt(
        number=_number(document, "number") or 0,
        cause=text(document, "cause"),
        state=text(document, "state"),
        started_at=moment(document, "started_at"),
        ended_at=moment(document, "ended_at"),
        exit_class=text(document, "exit_class"),
        detail=text(document, "detail"),
        replicas=tuple(_replica(each) for each in _objects(document, "replicas")),
        raw=document,
    )


def _replica(document: Raw) -> TaskReplica:
    indices = _list(document, "gpu_indices")
    return TaskReplica(
        rank=_number(document, "rank") or 0,
        role=text(document, "role"),
        index=_number(document, "index") or 0,
        state=text(document, "state"),
        node=text(document, "node"),
        address=text(document, "address"),
        gpu_indices=tuple(each for each in indices if isinstance(each, int)),
        started_at=moment(document, "started_at"),
        ended_at=moment(document, "ended_at"),
        exit_code=_number(document, "exit_code"),
        detail=text(document, "detail"),
        restarts=_number(document, "restarts") or 0,
        raw=document,
    )


def task_alarm(raw: Any) -> TaskAlarm:
    document = mapping(raw, "an alarm")
    return TaskAlarm(
        subject=text(document, "subject"),
        channel=required(document, "channel"),
        title=text(document, "title"),
        created_at=moment(document, "created_at"),
        delivered_at=moment(document, "delivered_at"),
        tries=_number(document, "tries") or 0,
        next_at=moment(document, "next_at"),
        last_error=text(document, "last_error"),
        raw=document,
    )


def _failure(document: Raw) -> TaskFailure | None:
    found = document.get("failure")
    if not isinstance(found, dict):
        return None
    return TaskFailure(
        code=text(found, "code"),
        exit_class=text(found, "class"),
        replica=_number(found, "replica"),
        exit_code=_number(found, "exit_code"),
        message=text(found, "message"),
        last_lines=tuple(str(each) for each in _list(found, "last_lines")),
    )


def _reason(document: Raw) -> TaskReason | None:
    found = document.get("reason")
    return TaskReason(text(found, "code"), text(found, "message")) if isinstance(found, dict) else None


def _estimate(document: Raw) -> Estimate | None:
    found = document.get("estimated_start")
    return Estimate(moment(found, "earliest"), moment(found, "latest")) if isinstance(found, dict) else None


def _warnings(document: Raw) -> tuple[TaskWarning, ...]:
    return tuple(
        TaskWarning(text(each, "code"), text(each, "path"), text(each, "message"))
        for each in _objects(document, "warnings")
    )


def _number(document: Raw, key: str) -> int | None:
    value = document.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _object(document: Raw, key: str) -> Mapping[str, Any]:
    value = document.get(key)
    return value if isinstance(value, dict) else {}


def _list(document: Raw, key: str) -> list[Any]:
    value = document.get(key)
    return value if isinstance(value, list) else []


def _objects(document: Raw, key: str) -> tuple[Mapping[str, Any], ...]:
    return tuple(each for each in _list(document, key) if isinstance(each, dict))
