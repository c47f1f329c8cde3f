"""Training tasks as people send them to a site of the server's tests."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

from support.rows import allocation
from support.site import Site, trials
from trainshed.control.training.frozen import choices_of, spec_of
from trainshed.model.states import AllocationState, State
from trainshed.policy.gangs.snapshot import Part
from trainshed.store import attempts, gangs, moves
from trainshed.store.database import Connection
from trainshed.store.gangs import GangEnd, NewGang, NewMember
from trainshed.store.moves import Move

_NUMBERS = itertools.count(1)


def task_document(**changes: Any) -> dict[str, Any]:
    """A task that the site accepts; keywords replace fields of its spec, `None` removes one."""
    spec = {
        "kind": "pytorch",
        "name_prefix": "sft",
        "image": "host",
        "cmd": "torchrun train.py",
        "resource_type": "ondemand",
        "instance": {"specs": ["h100x1"]},
    }
    spec = {key: value for key, value in {**spec, **changes}.items() if value is not None}
    return {"type": "train", "request_id": f"task-{next(_NUMBERS)}", "spec": spec}


def place(site: Site, task: dict[str, Any], *, node: str = "n1", start: bool = True) -> list[str]:
    """Give a queued task its nodes, and let its members run, as a controller would; their units by rank."""
    (trial,) = trials(site, task["job_id"])
    at = site.clock()

    def change(connection: Connection) -> list[str]:
        _, found = gangs.of_trials(connection, [trial.id])[trial.id]
        _, catalog = site.services.catalogs.current(connection)
        needs = choices_of(spec_of(found), catalog)[0].needs
        parts, gpu = [], itertools.count()
        for need in needs:
            for _ in range(need.count):
                gpus = tuple(itertools.islice(gpu, need.amounts.gpus))
                parts.append(Part(len(parts), need.role, node, gpus, need.spec, need.units, need.amounts))
        held = allocation(
            trial, node="", engine="local", gpu_indices="[]", parts=json.dumps([p.as_dict() for p in parts])
        )
        number = len(site.get(f"/v1/tasks/{task['name']}").json()["attempts"]) + 1
        members = tuple(NewMember(part.rank, part.role.value, part.node, part.gpus) for part in parts)
        gangs.open_all(connection, [NewGang(held, number, found.next_cause, members)])
        first = Move(trial, State.QUEUED, State.PREPARING, "PLACED", f"Placed {len(parts)} replicas.")
        moves.apply(connection, [first], at=at, actor="controller")
        if start:
            gangs.start_attempt(connection, held.attempt_id, at, {})
            for part in parts:
                running = {"state": "Running", "started_at": at, "address": "127.0.0.1"}
                gangs.change_replica(connection, held.attempt_id, part.rank, running)
            second = Move(
                trial,
                State.PREPARING,
                State.RUNNING,
                "STARTED",
                "Started.",
                {"started_at": at, "user_code_started": True},
            )
            moves.apply(connection, [second], at=at, actor="controller")
        return [gangs.unit_id(held.attempt_id, part.rank) for part in parts]

    return site.services.database.write(change)


def fail(site: Site, task: dict[str, Any], *, rank: int = 0, lines: Sequence[str] = ()) -> None:
    """End a running task: one member failed, and everything is released."""
    (trial,) = trials(site, task["job_id"])
    at = site.clock()

    def change(connection: Connection) -> None:
        (gang,) = [each for each in gangs.held(connection) if each.trial.id == trial.id]
        gangs.end_all(
            connection,
            [
                GangEnd(
                    gang.attempt_id,
                    at,
                    "exit",
                    "user",
                    "replica ended with exit code 3",
                    None,
                    rank,
                    "\n".join(lines),
                )
            ],
        )
        gangs.change_replica(
            connection, gang.attempt_id, rank, {"state": "Failed", "ended_at": at, "exit_code": 3}
        )
        ended = Move(trial, State.RUNNING, State.COLLECTING, "ENDED", "Every replica ended.")
        values = {
            "exit_code": 3,
            "error_code": "NONZERO_EXIT",
            "error_message": "replica ended with exit code 3",
        }
        failed = Move(
            trial, State.COLLECTING, State.FAILED, "FAILED", "Replica ended with exit code 3.", values
        )
        moves.apply(connection, [ended, failed], at=at, actor="controller")
        released = {"released_at": at, "evidence": "{}"}
        attempts.set_allocation(connection, gang.allocation.id, AllocationState.RELEASED, released)

    site.services.database.write(change)
