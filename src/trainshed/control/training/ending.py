"""The end of an Attempt as one transaction: moves, ledger, cordons, what is released and charged."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trainshed.control.training.holding import parts_of
from trainshed.control.training.judging import Judgement
from trainshed.control.training.observing import View
from trainshed.control.training.suspecting import ACTOR, Fault, close, note_faults
from trainshed.engines.contract import Phase
from trainshed.model.states import OutputStatus, State
from trainshed.store import attempts, events, gangs, moves, queue
from trainshed.store.database import Connection
from trainshed.store.events import NewEvent
from trainshed.store.gangs import Gang, GangEnd
from trainshed.store.moves import Move

_LEVELS = {State.FAILED: "error", State.QUEUED: "warning"}


@dataclass(frozen=True, slots=True)
class GangEnded:
    """An Attempt that is over."""

    gang: Gang
    view: View | None
    """``None``: no member was ever launched."""
    judgement: Judgement
    faults: Sequence[Fault] = ()
    log_tail: str = ""
    single_machine: bool = False


def store_ends(connection: Connection, ended: Sequence[GangEnded], now: float) -> list[Move]:
    """Close these Attempts; a task that somebody else moved meanwhile is left as it is."""
    moves.lock_jobs(connection, {each.gang.trial.job_id for each in ended})
    there = gangs.of_trials(connection, [each.gang.trial.id for each in ended])
    mine = [e for e in ended if there[e.gang.trial.id][0].state is e.gang.trial.state]
    told: list[NewEvent] = []
    ends: list[GangEnd] = []
    planned: list[Move] = []
    for each in mine:
        planned += _moves(each, now)
        ends.append(_end(each, now))
        told += _faulty(connection, each, now)
        _members(connection, each)
        if each.view is not None and each.view.started_at is not None:
            enforced = next((seen.enforcement for seen in each.view.seen if seen.enforcement), {})
            gangs.start_attempt(connection, each.gang.attempt_id, each.view.started_at, enforced)
        _change_task(connection, each)
        if seconds := _charged(each, now):
            queue.charge(connection, each.gang.trial.project_id, seconds)
    events.record(connection, told)
    made = moves.apply(connection, planned, at=now, actor=ACTOR)
    gangs.end_all(connection, ends)
    attempts.let_go(connection, [each.gang.allocation.id for each in mine])
    return made


def _moves(ended: GangEnded, now: float) -> list[Move]:
    trial, judged, view = ended.gang.trial, ended.judgement, ended.view
    started = view is not None and view.has_started
    state, found = trial.state, []
    if state is State.PREPARING and started and view is not None:
        found.append(started_move(ended.gang, view, now))
        state = State.RUNNING
    values = _values(ended, started=started)
    level = _LEVELS.get(judged.state, "info")
    match judged.state:
        case State.QUEUED if state is State.PREPARING:
            # Nothing of the members ran, but they may still be on their way out: placing waits for that.
            found.append(Move(trial, state, State.QUEUED, judged.code, judged.message, values, level=level))
        case State.QUEUED:
            found.append(
                Move(trial, state, State.MIGRATING, judged.code, judged.message, values, level=level)
            )
        case State.FAILED if state is State.PREPARING:
            found.append(Move(trial, state, State.FAILED, judged.code, judged.message, values, level=level))
        case State.CANCELLED:
            found.append(
                Move(trial, state, State.CANCELLED, judged.code, judged.message, values, level=level)
            )
        case _:
            if state is not State.COLLECTING:
                words = "Every replica ended; the rest of the logs is being stored."
                found.append(Move(trial, state, State.COLLECTING, "ENDED", words))
            found.append(
                Move(trial, State.COLLECTING, judged.state, judged.code, judged.message, values, level=level)
            )
    return found


def started_move(gang: Gang, view: View, now: float) -> Move:
    """PREPARING -> RUNNING: user code of every member was let go."""
    many = len(view.seen)
    message = "Started." if many == 1 else f"Started all {many} replicas together."
    if view.started_at is None:
        message = "Whether user code started cannot be told any more: it counts as started."
    values = {"user_code_started": True, "started_at": view.started_at or now}
    return Move(gang.trial, State.PREPARING, State.RUNNING, "STARTED", message, values, view.started_at)


def _values(ended: GangEnded, *, started: bool) -> dict[str, Any]:
    judged = ended.judgement
    values: dict[str, Any] = {"output_status": OutputStatus.NONE}
    if judged.state is State.QUEUED:
        failures = ended.gang.trial.launch_failures + (not started)
        return values | {
            "not_before": judged.not_before,
            "started_at": None,
            "launch_failures": failures,
            "error_message": judged.message,
        }
    message = judged.message
    if judged.state is State.FAILED and ended.log_tail:
        message = f"{message}\n{ended.log_tail}"
    values |= {
        "exit_code": judged.exit_code,
        "exit_signal": judged.exit_signal,
        "error_code": judged.error,
        "error_message": message if judged.state is State.FAILED else None,
    }
    if started and ended.view is not None and ended.gang.trial.state is State.STOPPING:
        begun = ended.view.started_at or ended.gang.trial.started_at
        values |= {"user_code_started": True, "started_at": begun}
    if ended.view is not None and ended.view.ended_at is not None:
        values["finished_at"] = ended.view.ended_at
    return values


def _end(ended: GangEnded, now: float) -> GangEnd:
    judged, view = ended.judgement, ended.view
    at = view.ended_at if view is not None and view.ended_at is not None else now
    return GangEnd(
        ended.gang.attempt_id,
        at,
        judged.ended_by,
        judged.exit_class.value if judged.exit_class is not None else None,
        judged.message,
        _usage(view),
        judged.failed_rank,
        ended.log_tail or None,
    )


def _usage(view: View | None) -> dict[str, float]:
    """Of all members together: the most memory of one, the sum of everything else."""
    found: dict[str, float] = {}
    for seen in view.seen if view is not None else ():
        for name, value in (seen.exit.usage if seen.exit is not None else {}).items():
            largest = name.startswith("max_")
            found[name] = max(found.get(name, 0.0), value) if largest else found.get(name, 0.0) + value
    return found


def _members(connection: Connection, ended: GangEnded) -> None:
    if ended.view is None:
        return
    view = ended.view
    for rank, seen, state in zip(view.ranks, view.seen, view.states(leaving=False), strict=True):
        done = seen.exit
        values: dict[str, Any] = {"state": state, "started_at": seen.started_at}
        if seen.phase in {Phase.EXITED, Phase.LOST}:
            values["detail"] = seen.detail or (done.detail if done is not None else "") or None
        if done is not None:
            values |= {"ended_at": done.finished_at, "exit_code": done.code}
        gangs.change_replica(connection, ended.gang.attempt_id, rank, values)


def _change_task(connection: Connection, ended: GangEnded) -> None:
    task, values = ended.gang.task, dict(ended.judgement.task)
    excluded = values.pop("excluded", None)
    if excluded is not None:
        nodes = json.loads(task.excluded_nodes)
        values["excluded_nodes"] = json.dumps(sorted({*nodes, excluded}))
    values |= {"stage": None, "plan": None}
    gangs.change_task(connection, task.trial_id, values)


def _charged(ended: GangEnded, now: float) -> float:
    """GPU-seconds from the start of user code to the end of the last member, retention included (C50)."""
    view, held = ended.view, ended.gang.allocation
    if view is None or view.started_at is None:
        return 0.0
    end = view.ended_at if view.ended_at is not None else now
    if not view.optional:
        return float(held.gpus * max(0, math.ceil(end - view.started_at)))
    gpus = {part.rank: len(part.gpus) for part in parts_of(held)}
    return sum(gpu_seconds(gpus.get(rank, 0), view, rank, end) for rank in view.ranks)


def gpu_seconds(gpus: int, view: View, rank: int, end: float) -> float:
    """What one member of a gang that grew or shrank costs: from its own start to the end of what it holds."""
    begun = view.of(rank).started_at if rank in view.optional else view.started_at
    return 0.0 if begun is None else float(gpus * max(0, math.ceil(end - begun)))


def _faulty(connection: Connection, ended: GangEnded, now: float) -> list[NewEvent]:
    """Say what was found broken, and close it (C34); the whole node where the task goes on elsewhere (c9)."""
    gang, node, single = ended.gang, ended.judgement.cordon_node, ended.single_machine
    told = note_faults(connection, gang, ended.faults, now, single_machine=single)
    if node is not None and not single:
        told += close(connection, gang, node, None, ended.judgement.message, now)
    return told
