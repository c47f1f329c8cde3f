"""Training tasks (contract C)."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from trainshed.server.shapes.common import Reason, Shape, Time
from trainshed.server.shapes.jobs import Job

KindWord = Literal["pytorch", "ray"]
TypeWord = Literal["PyTorchJob", "RayJob"]
ResourceWord = Literal["reserved", "ondemand", "spot", "idle"]
LevelWord = Literal["info", "warning", "error"]
RoleWord = Literal["master", "worker", "head", "submitter"]
CauseWord = Literal["initial", "auto_failure", "manual", "preempted", "node_replaced", "platform"]


class Warned(Shape):
    """Something about a task that is allowed and may not be meant."""

    code: str
    path: str
    message: str


class SubmittedTask(Job):
    """What the submission of a training task answers (C55): its Job, and what is new about it."""

    trial_id: str
    task_uuid: str
    kind: KindWord
    position: int | None = Field(description="Its place in its queue, from 1; null once it has started.")
    warnings: list[Warned]


class TaskReplica(Shape):
    """One member of an Attempt (C53, c1)."""

    rank: int
    role: RoleWord
    index: int = Field(description="Its number within its role, from 0.")
    state: str = Field(
        description="Pending, Pulling, Starting, Ready, Running, Succeeded, Failed, Lost, Terminating."
    )
    node: str
    address: str | None
    gpu_indices: list[int]
    started_at: Time | None
    ended_at: Time | None
    exit_code: int | None
    detail: str | None
    restarts: int = Field(description="How often the gang was started anew before this Attempt.")


class TaskAttempt(Shape):
    """One try: the whole gang, started and ended together (C33)."""

    attempt_id: str
    number: int
    cause: CauseWord
    state: Literal["Starting", "Running", "Succeeded", "Failed", "Stopped", "Preempted"]
    started_at: Time | None
    ended_at: Time | None
    ended_by: str | None
    exit_class: str | None = Field(description="user, oom, machine, platform, image or preempted (C35).")
    detail: str | None
    replicas: list[TaskReplica]


class AheadOf(Shape):
    """How many tasks of a priority are tried earlier; whose they are is not told (C5)."""

    priority: int
    tasks: int


class EstimatedStart(Shape):
    """Between when and when a task should start, if what runs ends by its limit."""

    earliest: Time
    latest: Time


class TaskFailure(Shape):
    """Why a task failed (c1)."""

    code: str
    class_: str | None = Field(alias="class", description="Whose fault it was (C35).")
    replica: int | None = Field(description="The rank of the member whose failure ended it.")
    exit_code: int | None
    message: str
    last_lines: list[str] = Field(description="Of that member's log; 50 at most.")


class TaskSummary(Shape):
    """A task in a list. Its state here and on its own page come from one place (C59)."""

    job_id: str
    trial_id: str
    task_uuid: str
    name: str
    kind: KindWord
    task_type: TypeWord
    state: str = Field(description="The page's word (c1).", examples=["Queuing"])
    sub_state: str | None = Field(description="How far within its state.")
    internal_state: str
    owner: str
    public: bool
    project: str
    region: str
    cluster: str
    pool: str
    resource_type: ResourceWord
    guarantee: bool
    priority: str = Field(description="The class, or a number.")
    priority_value: int
    replicas: int
    gpus: int
    chosen_spec: str | None = Field(description="The instance spec that it runs on (C22).")
    labels: dict[str, str]
    submitted_at: Time
    queued_at: Time = Field(description="Its place in the queue; kept over preemption (c5).")
    started_at: Time | None
    finished_at: Time | None
    resubmissions: int = Field(description="Automatic ones after a failure (C33).")
    max_resubmissions: int
    detail: str | None


class RoleTotal(Shape):
    """Equal replicas and what all of them take."""

    role: RoleWord
    count: int
    spec: str | None
    units: int
    gpus: int
    cpus: int
    memory_gib: float
    charged: bool = Field(description="False for platform overhead (C19).")


class Price(Shape):
    """Money, exact."""

    amount: str = Field(examples=["32.00"])
    currency: str


class TaskTotals(Shape):
    """What a task comes to (C21)."""

    replicas: int
    pods: int = Field(description="Those that are charged: of kind ray the head and N workers.")
    units: int
    gpus: int
    cpus: int
    memory_gib: float
    roles: list[RoleTotal]
    price_per_hour: list[Price] | None


class TaskScaling(Shape):
    """How many workers a Ray task has that follows its load, and how many that calls for (C51)."""

    min: int
    max: int
    workers: int | None = Field(description="That hold something now; null while it does not run.")
    joined: int | None = Field(description="Of these, in its cluster as its head said last.")
    wanted: int | None = Field(description="That the load calls for; null until its head says so.")
    waits_for: Reason | None = Field(description="Why there is not one more although the load wants that.")


class Task(TaskSummary):
    """A task as it is now."""

    spec: dict[str, Any] = Field(description="The effective spec; hidden values are null (C9).")
    totals: TaskTotals | None
    attempts: list[TaskAttempt]
    reason: Reason | None = Field(description="Why it waits (P10); null unless it is queued.")
    position: int | None
    position_in_project: int | None
    ahead: list[AheadOf]
    estimated_start: EstimatedStart | None
    failure: TaskFailure | None
    shares: list[str]
    retained_until: Time | None
    scaling: TaskScaling | None = Field(description="Null unless its cluster follows the load (C51).")
    events_url: str
    logs_url: str


class DeletedTask(Shape):
    """A task that nobody sees any more."""

    job_id: str
    deleted: Literal[True] = True


class PassedOver(Shape):
    """A choice of specs that is not taken now, and why."""

    spec: str
    why: str


class Why(Shape):
    """Why a task waits, with numbers, and what would unblock it (P10, c2)."""

    code: str | None = Field(description="Null where it does not wait.")
    message: str
    position: int | None
    position_in_project: int | None
    queue_length: int | None
    ahead: list[AheadOf]
    blocked_by: dict[str, int | str | None]
    unblock: list[str]
    estimated_start: EstimatedStart | None
    passed_over: list[PassedOver]


class TaskEvent(Shape):
    """One thing that happened; kept for good (c2)."""

    id: int
    at: Time
    actor: str
    level: LevelWord
    code: str
    message: str
    replica: int | None
    state: str | None = Field(description="The page's word after it, where it changed one.")


class TaskEvents(Shape):
    """Events of a task, oldest first."""

    items: list[TaskEvent]
    next_after: int | None = Field(description="Give this as `after` to read on; null at the end.")


class QuotaLine(Shape):
    """What a task asks of one quota, and what that has (C23)."""

    spec: str
    resource_type: ResourceWord
    requested: int
    limit: int | None = Field(description="The most that the project may ever hold; null: no limit.")
    used: int
    free: int | None = Field(description="What is left of the limit now; null: no limit.")


class ValidatedTask(Shape):
    """Everything but creating (C16)."""

    effective_spec: dict[str, Any]
    totals: TaskTotals
    quota: list[QuotaLine]
    would_start: bool = Field(description="Whether the next pass would start it.")
    reason: Reason | None
    position: int | None
    position_in_project: int | None
    ahead: list[AheadOf]
    estimated_start: EstimatedStart | None
    warnings: list[Warned]


class MetricSample(Shape):
    """Values that were measured together."""

    at: Time
    replica: int
    attempt: int
    endpoint: str = Field(description="Empty: measured by the platform; else where it was scraped (C37).")
    values: dict[str, float]


class MetricSamples(Shape):
    """Samples of a task, oldest first."""

    items: list[MetricSample]
    next_after: float | None = Field(description="Give this as `after` to read on; null where none came.")


class AlarmDelivery(Shape):
    """One alarm to one channel (C40)."""

    id: int
    task: str
    subject: str
    channel: str
    title: str
    body: str
    created_at: Time
    delivered_at: Time | None
    tries: int
    next_at: Time | None
    last_error: str | None
