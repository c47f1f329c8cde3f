"""Doors into a training task that runs: which replica somebody may reach into, and how many do (C50).

A door leads to a replica that this process's engine says runs, for the task's owner or an admin: what is
behind it can do all that the program can. Nothing that a program says about itself is believed here.
"""

from __future__ import annotations

import json
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainshed.control.training.operations import require, require_owner
from trainshed.engines.contract import Engine, EngineError, Phase
from trainshed.model.errors import Fault, Refusal
from trainshed.model.states import AllocationState, State
from trainshed.server.task_views import shown
from trainshed.store import jobs, tasks
from trainshed.store.events import NewEvent, record
from trainshed.store.records import Allocation, Replica, Task

if TYPE_CHECKING:
    from trainshed.server.endpoints import Call

_OPEN = frozenset({State.RUNNING, State.CHECKPOINTING})
_REMEMBERED = 4096


@dataclass(frozen=True, slots=True)
class DoorLimits:
    """How much may go through doors. Seconds."""

    shells_of_task: int = 8
    shells: int = 64
    requests_of_task: int = 64
    """To a dashboard, at once; an open WebSocket is one."""
    requests: int = 256
    idle_seconds: float = 3600.0
    """After so long without a byte either way a shell, or a WebSocket of a dashboard, is closed."""
    answer_seconds: float = 60.0
    """How long a dashboard may take to begin an answer, and to go on with it."""


class DoorsInUse:
    """What is open in this process. Used on the event loop only."""

    def __init__(self) -> None:
        self._open: Counter[tuple[str, str]] = Counter()
        self._told: OrderedDict[tuple[str, str], None] = OrderedDict()

    @contextmanager
    def use(self, kind: str, task: Task, most_of_task: int, most: int) -> Iterator[None]:
        """Count one. Raises `Refusal` ``RATE_LIMITED`` where that is one too many."""
        key = (kind, task.job_id)
        total = sum(count for (each, _), count in self._open.items() if each == kind)
        if self._open[key] >= most_of_task or total >= most:
            whose = f"{task.name} has {self._open[key]}" if total < most else f"this server has {total}"
            refusal = Refusal.of("RATE_LIMITED", f"{whose} {kind} open at once; close one first")
            refusal.retry_after = 1
            raise refusal
        self._open[key] += 1
        try:
            yield
        finally:
            self._open[key] -= 1
            if not self._open[key]:
                del self._open[key]

    def is_first(self, attempt_id: str, actor: str) -> bool:
        """Whether this person had not looked at this Attempt before, as far as is remembered."""
        key = (attempt_id, actor)
        if key in self._told:
            return False
        self._told[key] = None
        if len(self._told) > _REMEMBERED:
            self._told.popitem(last=False)
        return True


@dataclass(frozen=True, slots=True)
class Door:
    """One replica that runs now."""

    engine: Engine
    task: Task
    allocation: Allocation
    replica: Replica
    unit: str
    """How the engine calls it."""
    index: int
    """Within its role."""


def find_door(call: Call, ref: str, code: str, role: str | None = None, index: int | None = None) -> Door:
    """The door to a replica, of the master or the head by default. Blocks.

    Raises `Refusal`: ``JOB_NOT_FOUND`` and ``PERMISSION_DENIED``; ``INVALID_REQUEST`` for a role that the
    task does not have, and ``code`` where nothing can be reached now.
    """
    with call.services.database.read() as connection:
        task, trial = require(connection, call.viewer, ref)
        require_owner(call.viewer, task)
        allocations = jobs.allocations_of(connection, [trial.id])[trial.id]
        attempts = jobs.attempts_of(connection, [trial.id])[trial.id]
        members = tasks.replicas_of(connection, [each.id for each in attempts])
    retained = trial.state is State.COLLECTING and task.retained_until is not None
    held = next((each for each in allocations if each.state is not AllocationState.RELEASED), None)
    if held is None or not (retained or trial.state in _OPEN):
        word = shown(task, trial, allocations, call.now).word
        raise Refusal.of(code, f"{task.name} is {word}; this is for a task that is Running or Retaining")
    replica, number = _member(task, members.get(held.attempt_id, ()), role, index)
    engine = call.services.engine
    if engine is None:
        said = "this server process runs nothing: ask the one that has the controller"
        raise Refusal.of(code, said)
    if held.engine != engine.name:
        said = f"{task.name} runs on {held.engine}, a cluster that others share: its replicas are not reached"
        faults = [Fault("", code, said), Fault("cluster", "NOT_SUPPORTED_BY_ENGINE", said)]
        raise Refusal(faults)
    unit = replica.unit_id or held.attempt_id
    phase = engine.observe([unit])[unit].phase
    if phase is not Phase.RUNNING:
        said = f"{replica.role} {number} of {task.name} does not run here: it is {phase}"
        raise Refusal.of(code, said, path="role")
    return Door(engine, task, held, replica, unit, number)


def _member(
    task: Task, members: Sequence[Replica], role: str | None, index: int | None
) -> tuple[Replica, int]:
    wanted = role or ("head" if task.kind == "ray" else "master")
    found = sorted((each for each in members if each.role == wanted), key=lambda each: each.rank)
    number = index or 0
    if number >= len(found):
        there = f"{len(found)} of role {wanted}" if found else f"no {wanted}"
        raise Refusal.of(
            "INVALID_REQUEST",
            f"{task.name} has {there} now, so none with index {number}",
            path="index" if found else "role",
            hint=f"`trainshed train get {task.name}` lists its replicas.",
        )
    return found[number], number


def dashboard_address(door: Door) -> tuple[str, int]:
    """Where the head's dashboard listens: what was allotted to this Attempt before its user code began.

    Raises `Refusal` ``DASHBOARD_UNAVAILABLE`` for an Attempt to which nothing was.
    """
    meeting = json.loads(door.allocation.meeting or "{}")
    port = meeting.get("dashboard_port", 0)
    if not port:
        said = f"no port was kept for the dashboard of {door.task.name} when it started"
        raise Refusal.of("DASHBOARD_UNAVAILABLE", said, hint="Resubmit it: a new Attempt has one.")
    return str(meeting["hosts"][door.replica.rank][1]), int(port)


def refusal_of_engine(error: EngineError, code: str) -> Refusal:
    """What a caller is told of an engine that could not open a door."""
    faults = [Fault("", code, error.message)]
    if error.code != code:
        faults.append(Fault("cluster", error.code, error.message))
    return Refusal(faults)


def tell(call: Call, door: Door, code: str, message: str) -> None:
    """Record who reached in. Blocks until it is durable."""
    event = NewEvent(
        door.task.job_id,
        door.task.trial_id,
        call.now,
        call.principal.actor,
        code,
        message,
        replica=door.replica.rank,
    )
    call.services.database.write(lambda connection: record(connection, [event]))
