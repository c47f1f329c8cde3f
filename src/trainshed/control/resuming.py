"""Resuming: the Checkpoint that a Trial goes on from, found and held when the Trial is accepted.

From the acceptance on the Trial uses the Checkpoint, until it has ended; so long nobody can delete it.
"""

from __future__ import annotations

from collections.abc import Mapping

from trainshed.model.errors import Fault, FaultList, Refusal
from trainshed.model.runner import RunnerDefinition
from trainshed.model.submission import TrialRequest
from trainshed.store import checkpoints
from trainshed.store.database import Connection


def freeze_checkpoint(
    connection: Connection,
    project_id: str,
    request: TrialRequest,
    definition: RunnerDefinition | None,
    faults: FaultList,
) -> str | None:
    """The id of the Checkpoint that a Trial asks to resume from; ``definition`` is its Runner's, if known.

    Adds faults: ``UNSUPPORTED_RESUME`` where the Runner does not declare that its program can, and
    ``CHECKPOINT_NOT_FOUND`` for one that is unknown, deleted or another project's.
    """
    wanted = request.resume_from
    if wanted is None:
        return None
    path = f"{request.path}.resume_from"
    if definition is not None and not definition.checkpoints.resume:
        said = f"the Runner {request.selector} does not declare that it can resume from a Checkpoint"
        faults.add(path, "UNSUPPORTED_RESUME", said)
    found = checkpoints.find_checkpoint(connection, project_id, wanted.checkpoint_id)
    if found is None or wanted.job_id not in {None, found.job_id}:
        faults.faults += checkpoints.not_found(wanted.checkpoint_id, path=path).faults
        return None
    return found.id


def hold_checkpoints(connection: Connection, wanted: Mapping[str, str]) -> None:
    """Make sure, in the transaction that inserts their Trials, that these Checkpoints are still there.

    ``wanted`` says for each id where it stands in the request. Raises `Refusal` ``CHECKPOINT_NOT_FOUND`` for
    those that were deleted since they were found.
    """
    if not wanted:
        return
    gone = sorted(wanted.keys() - checkpoints.hold(connection, wanted.keys()))
    found: list[Fault] = []
    for checkpoint_id in gone:
        found += checkpoints.not_found(checkpoint_id, path=wanted[checkpoint_id]).faults
    if found:
        raise Refusal(found)
