"""Checkpoints: registering what a Trial saved, keeping and deleting them (contract E74, E106-E109, A13).

What a Trial's stored outputs hold is looked at when they were collected, outside of any transaction, and
written in the one transaction that ends the Trial: a Checkpoint is there exactly if its Trial has ended, and
a crash before it makes the next controller collect, look and write again.

Deleting marks its row and those of the Artifacts that are its files; the bytes go when nothing names them
any more.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from trainshed.content.blobs import BlobStore
from trainshed.content.lora import (
    METRICS,
    TRAINER_STATE,
    Adapters,
    LoraAdapter,
    adapter_folders,
    find_adapters,
)
from trainshed.content.outputs import CollectedFile
from trainshed.model.checkpoints import LORA, CheckpointRules
from trainshed.model.errors import Fault, FaultList
from trainshed.model.ids import IdFactory
from trainshed.model.runner import definition_from_document
from trainshed.policy.retention import Candidate, newest_first, superseded
from trainshed.store import artifacts, events, moves, runners
from trainshed.store import checkpoints as store
from trainshed.store.database import Connection, Database
from trainshed.store.events import NewEvent
from trainshed.store.records import Checkpoint, Operation, Trial

DELETE_KIND = "checkpoint.delete"
MAX_REJECTIONS_SHOWN = 20
MAX_METRICS_SHOWN = 12
_DELETED_AT_ONCE = 100
_ACTOR = "controller"

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Findings:
    """What a Trial's outputs hold that may become Checkpoints, and the rules to keep them by."""

    adapters: Adapters = field(default_factory=Adapters)
    rules: CheckpointRules = field(default_factory=CheckpointRules)


class CheckpointFinder:
    """Looks for Checkpoints among collected outputs. Thread-safe."""

    def __init__(self, database: Database, blobs: BlobStore) -> None:
        self._database = database
        self._blobs = blobs

    def look(
        self, trial: Trial, files: Sequence[CollectedFile], cancelled: Callable[[], bool]
    ) -> Findings | None:
        """What these stored files hold; ``None``, at no cost, where no name says that there is anything.

        Raises `CollectionCancelled`, and `BlobError` where the store fails.
        """
        if not adapter_folders(files):
            return None
        rules = self._rules(trial)
        metric = rules.best.metric if rules.best else None
        return Findings(find_adapters(files, self._blobs, metric=metric, cancelled=cancelled), rules)

    def _rules(self, trial: Trial) -> CheckpointRules:
        with self._database.read() as connection:
            revision = runners.find_revision(connection, trial.runner, trial.revision)
        if revision is None:
            return CheckpointRules()
        return definition_from_document(json.loads(revision.definition)).checkpoints


def register(
    connection: Connection, trial: Trial, attempt_id: str, findings: Findings, ids: IdFactory, *, at: float
) -> None:
    """Write the Checkpoints of a Trial that ends in this transaction, and why other folders are none."""
    adapters, rules = findings.adapters, findings.rules
    candidates = {each.folder: Candidate(each.folder, each.step, each.value) for each in adapters.found}
    reasons = superseded(list(candidates.values()), rules)
    by_folder = {each.folder: each for each in adapters.found}
    missing = _missing_metric(adapters.found, rules)
    rows: list[dict[str, Any]] = []
    files: list[dict[str, Any]] = []
    news: list[NewEvent] = []
    # The oldest first, so that ids, and with them every list, are in the order of training.
    for candidate in reversed(newest_first(list(candidates.values()))):
        adapter = by_folder[candidate.folder]
        checkpoint_id = ids.checkpoint()
        rows.append(
            {
                "id": checkpoint_id,
                "project_id": trial.project_id,
                "job_id": trial.job_id,
                "trial_id": trial.id,
                "attempt_id": attempt_id,
                "folder": adapter.folder,
                "checkpoint_type": LORA,
                "base_model": adapter.base_model,
                "lora_rank": adapter.rank,
                "step": adapter.step,
                "parent_id": trial.resume_from,
                "metric": rules.best.metric if rules.best and adapter.value is not None else None,
                "metric_value": adapter.value,
                "pinned": False,
                "superseded": reasons.get(adapter.folder),
                "created_at": at,
                "metric_fault": adapter.metric_fault or missing,
            }
        )
        files += [
            {"checkpoint_id": checkpoint_id, "name": file.name, "size": file.size, "sha256": file.sha256}
            for file in adapter.files
        ]
        news.append(_event(trial, at, "CHECKPOINT_REGISTERED", _registered(checkpoint_id, adapter)))
        if adapter.metric_fault is not None:
            said = f"The metric of {_place(adapter.folder)} is not known from it: {adapter.metric_fault}."
            news.append(_event(trial, at, "CHECKPOINT_METRIC_UNREADABLE", said))
    if missing is not None:
        news.append(_event(trial, at, "CHECKPOINT_METRIC_MISSING", f"{missing[0].upper()}{missing[1:]}."))
    store.insert_checkpoints(connection, rows, files)
    events.record(
        connection, news + [_event(trial, at, _NOT_REGISTERED, said) for said in _rejected(adapters)]
    )


_NOT_REGISTERED = "CHECKPOINT_NOT_REGISTERED"


def _missing_metric(found: Sequence[LoraAdapter], rules: CheckpointRules) -> str | None:
    """Where ``best`` judges by a metric that nothing declares, that, in a sentence without its full stop.

    A misspelt name would otherwise keep everything and say nothing.
    """
    unknown = [each for each in found if each.value is None and each.metric_fault is None]
    if rules.best is None or not unknown or any(each.value is not None for each in found):
        return None
    metric = rules.best.metric
    said = f"none of {len(found)} Checkpoints has {metric}"
    if len(found) == 1:
        said = f"the Checkpoint has no {metric}"
    declared = sorted({name for each in unknown for name in each.metrics})
    if not declared:
        return f"{said}, and nothing beside the adapter declares a metric in {METRICS} or {TRAINER_STATE}"
    shown = ", ".join(declared[:MAX_METRICS_SHOWN])
    more = f" and {len(declared) - MAX_METRICS_SHOWN} more" if len(declared) > MAX_METRICS_SHOWN else ""
    near = difflib.get_close_matches(metric, declared, n=1)
    meant = f"; perhaps {near[0]} is meant" if near else ""
    return f"{said}; {METRICS} or {TRAINER_STATE} has {shown}{more}{meant}"


def _event(trial: Trial, at: float, code: str, message: str) -> NewEvent:
    return NewEvent(trial.job_id, trial.id, at, _ACTOR, code, message)


def _registered(checkpoint_id: str, adapter: LoraAdapter) -> str:
    step = "" if adapter.step is None else f" at step {adapter.step}"
    size = sum(file.size for file in adapter.files)
    return (
        f"Registered {_place(adapter.folder)}{step} as Checkpoint {checkpoint_id}: "
        f"LoRA of rank {adapter.rank} for {adapter.base_model}, {len(adapter.files)} files, {size} bytes."
    )


def _rejected(adapters: Adapters) -> list[str]:
    shown = adapters.rejected[:MAX_REJECTIONS_SHOWN]
    said = [f"{_place(each.folder)} is not registered as a Checkpoint: {each.reason}." for each in shown]
    if more := len(adapters.rejected) - len(shown):
        said.append(f"{more} more folders are not registered as Checkpoints.")
    if adapters.not_looked_at:
        said.append(f"{adapters.not_looked_at} more folders were not looked at for Checkpoints.")
    return said


def _place(folder: str) -> str:
    return f"{folder}/" if folder else "the top of the outputs"


def delete_checkpoint(
    database: Database, ids: IdFactory, project_id: str, checkpoint_id: str, *, at: float, actor: str
) -> Operation:
    """Delete a Checkpoint; answers the receipt, the same one when asked again.

    Raises `Refusal`: ``CHECKPOINT_NOT_FOUND``, and ``RESOURCE_IN_USE`` while it is pinned or a Trial that
    has not ended resumes from it.
    """

    def delete(connection: Connection) -> Operation:
        row = _locked(connection, project_id, checkpoint_id)
        if row.deleted_at is not None:
            receipt = store.newest_operation(connection, DELETE_KIND, row.id)
            if receipt is None:
                raise store.not_found(checkpoint_id)
            return receipt
        FaultList(_uses(connection, row)).raise_if_any()
        gone = _delete(connection, row, at=at, actor=actor, why=f"by {actor}")
        receipt = Operation(ids.operation(), project_id, DELETE_KIND, row.id, "SUCCEEDED", "[]", at, at)
        store.insert_operation(connection, receipt)
        _record(connection, row, at, actor, "CHECKPOINT_DELETED", f"Deleted Checkpoint {row.id}{gone}.")
        return receipt

    return database.write(delete)


def pin_checkpoint(
    database: Database, project_id: str, checkpoint_id: str, *, pinned: bool, at: float, actor: str
) -> Checkpoint:
    """Keep a Checkpoint from every deletion, or no longer; repeatable. Answers it as it is then.

    Raises `Refusal` ``CHECKPOINT_NOT_FOUND``.
    """

    def pin(connection: Connection) -> Checkpoint:
        row = _locked(connection, project_id, checkpoint_id)
        if row.deleted_at is None and row.pinned != pinned:
            store.set_pinned(connection, row.id, pinned=pinned)
            word = "Pinned" if pinned else "Unpinned"
            _record(connection, row, at, actor, f"CHECKPOINT_{word.upper()}", f"{word} Checkpoint {row.id}.")
        return store.get_checkpoint(connection, project_id, checkpoint_id)

    return database.write(pin)


class CheckpointRetention:
    """Deletes the Checkpoints that their Runners' rules do not keep, once nothing else does."""

    def __init__(self, database: Database, clock: Callable[[], float]) -> None:
        self._database = database
        self._clock = clock

    def run(self) -> bool:
        """Delete some that are due; whether there may be more."""
        with self._database.read() as connection:
            due = store.due_for_deletion(connection, _DELETED_AT_ONCE)
        if due:
            self._database.write(lambda connection: self._delete(connection, due))
        return len(due) == _DELETED_AT_ONCE

    def _delete(self, connection: Connection, due: Sequence[Checkpoint]) -> None:
        at = self._clock()
        moves.lock_jobs(connection, {each.job_id for each in due})
        for each in due:
            row = store.locked(connection, each.project_id, each.id)
            # Since it was read, somebody may have pinned it, begun to use it or deleted it.
            if row is None or row.deleted_at is not None or _uses(connection, row):
                continue
            rule = str(row.superseded)
            gone = _delete(connection, row, at=at, actor=_ACTOR, why=f"by rule: {_inside(rule)}")
            said = f"Deleted Checkpoint {row.id} of {_place(row.folder)}{gone}. {rule}"
            _record(connection, row, at, _ACTOR, "CHECKPOINT_SUPERSEDED", said)


def _delete(connection: Connection, row: Checkpoint, *, at: float, actor: str, why: str) -> str:
    """Delete a locked Checkpoint and the Artifacts that are its files; answers how that is told.

    Both name the same bytes: either alone would keep them for ever.
    """
    store.mark_deleted(connection, row.id, at=at, by=actor)
    why = f"deleted with Checkpoint {row.id} {why}"
    count, size = artifacts.delete_files_of(connection, row, at=at, why=why)
    return f" and the {count} Artifacts that are its files ({size} bytes)" if count else ""


def _inside(sentence: str) -> str:
    """A sentence as part of another one."""
    return sentence.removesuffix(".")


def _locked(connection: Connection, project_id: str, checkpoint_id: str) -> Checkpoint:
    """The Checkpoint, its Job and it locked in this order, as everywhere."""
    found = store.find_any(connection, project_id, checkpoint_id)
    if found is not None:
        moves.lock_jobs(connection, [found.job_id])
        found = store.locked(connection, project_id, checkpoint_id)
    if found is None:
        raise store.not_found(checkpoint_id)
    return found


def _uses(connection: Connection, row: Checkpoint) -> list[Fault]:
    """What keeps a Checkpoint that is locked from being deleted."""
    found = []
    if row.pinned:
        said = f"the Checkpoint `{row.id}` is pinned; unpin it first"
        found.append(Fault("checkpoint_id", "RESOURCE_IN_USE", said))
    if users := store.users_of(connection, row.id):
        named = ", ".join(users[:5]) + (f" and {len(users) - 5} more" if len(users) > 5 else "")  # noqa: PLR2004 - enough to find them
        said = (
            f"the Checkpoint `{row.id}` is what {named} resumes from; wait until that has ended, or stop it"
        )
        found.append(Fault("checkpoint_id", "RESOURCE_IN_USE", said))
    return found


def _record(connection: Connection, row: Checkpoint, at: float, actor: str, code: str, message: str) -> None:
    events.record(connection, [NewEvent(row.job_id, row.trial_id, at, actor, code, message)])
