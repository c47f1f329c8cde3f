"""RELEASE for gangs: every member, with evidence, and what a task leaves behind (C49, promise P6)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from trainshed.content.local import LocalContent
from trainshed.control import metrics
from trainshed.control.crashpoints import Point, reach
from trainshed.control.finishing import LEAKED_AFTER_TRIES
from trainshed.control.training import ray_roles
from trainshed.control.training.frozen import spec_of
from trainshed.control.training.holding import parts_of
from trainshed.control.training.keys import AttemptFolders
from trainshed.control.training.preparing import VolumeMissing, volume_path
from trainshed.engines.contract import Engine, Release, Report
from trainshed.model.states import TERMINAL, AllocationState, State
from trainshed.model.training.catalog import Catalog
from trainshed.policy.words import iso
from trainshed.store import attempts, events, gangs, moves
from trainshed.store.database import Connection, Database
from trainshed.store.events import NewEvent
from trainshed.store.gangs import Gang, unit_id
from trainshed.store.moves import Move

ACTOR = "controller"

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class GangReleased:
    """One try to release everything a gang held."""

    gang: Gang
    members: Mapping[int, Release]
    """By rank."""
    cleanup: str | None = None
    """What became of its data in the shared storage: empty for removed, else why not; ``None`` without."""
    late: Mapping[int, Sequence[Report]] = field(default_factory=dict)
    """What members said that is no event yet."""

    @property
    def gone(self) -> bool:
        """Whether no member holds anything."""
        return all(each.confirmed for each in self.members.values())

    @property
    def confirmed(self) -> bool:
        return self.gone and not self.cleanup

    @property
    def state(self) -> AllocationState:
        if self.confirmed:
            return AllocationState.RELEASED
        tries = self.gang.allocation.tries + 1
        return AllocationState.LEAKED if tries >= LEAKED_AFTER_TRIES else AllocationState.RELEASING

    def checks(self) -> dict[str, str]:
        """Each check made and what it saw, member by member."""
        found = {
            f"replica {rank}: {name}": saw
            for rank, release in self.members.items()
            for name, saw in release.checks.items()
        }
        if self.cleanup is not None:
            found["shared storage"] = self.cleanup or "this task's data removed"
        return found

    def values(self, now: float) -> dict[str, Any]:
        killed = sum(each.killed for each in self.members.values())
        before = json.loads(self.gang.allocation.evidence or "{}")
        if self.members:
            # Of members that left before, nothing is asked any more (C51).
            mine = tuple(f"replica {rank}: " for rank in self.members)
            others = (item for item in before.items() if item[0].startswith("replica "))
            before = {name: saw for name, saw in others if not name.startswith(mine)}
        values: dict[str, Any] = {
            "tries": self.gang.allocation.tries + 1,
            "evidence": json.dumps({**before, **self.checks(), "killed": killed + before.get("killed", 0)}),
            "released_at": now if self.confirmed else None,
        }
        if self.gone and not self.confirmed:
            # What is left to do holds no node: its GPUs are for others.
            values["parts"] = "[]"
        return values


class GangReleaser:
    """Releases gangs in an executor; `store` records it in the controller's thread."""

    def __init__(
        self,
        database: Database,
        content: LocalContent,
        folders: AttemptFolders,
        clock: Callable[[], float],
    ) -> None:
        self._database = database
        self._content = content
        self._folders = folders
        self._clock = clock

    def release(self, gang: Gang, engine: Engine, catalog: Catalog) -> GangReleased:
        """Try once. Repeatable."""
        ranks = [part.rank for part in parts_of(gang.allocation)]
        members = {rank: engine.release(unit_id(gang.attempt_id, rank)) for rank in ranks}
        late = self._late(gang, engine, ranks)
        reach(Point.GANG_RELEASE_AFTER_ENGINE)
        released = GangReleased(gang, members, None, late)
        if not released.gone:
            return released
        self._content.release(gang.attempt_id)
        self._folders.remove(gang.attempt_id)
        cleanup = self._clean(gang, catalog)
        reach(Point.GANG_RELEASE_AFTER_CLEANUP)
        return GangReleased(gang, members, cleanup, late)

    def _late(self, gang: Gang, engine: Engine, ranks: Sequence[int]) -> dict[int, Sequence[Report]]:
        """Reports that came after the last look: they are kept too."""
        with self._database.read() as connection:
            known = gangs.replicas_of(connection, [gang.attempt_id])[gang.attempt_id]
        told = {replica.rank: replica.reports for replica in known}
        found = {r: engine.reports(unit_id(gang.attempt_id, r), told.get(r, 0)) for r in ranks}
        return {rank: said for rank, said in found.items() if said}

    @staticmethod
    def _clean(gang: Gang, catalog: Catalog) -> str | None:
        """Delete the task's data in its shared storage once the task has ended (C49)."""
        storage = spec_of(gang.task).shared_storage
        if storage is None or not storage.cleanup or gang.trial.state not in TERMINAL:
            return None
        try:
            ray_roles.clean_shared_folder(volume_path(catalog, storage.ref), gang.task.task_uuid)
        except (OSError, VolumeMissing, ValueError) as error:
            return f"not removed: {error}"
        return ""

    def store(self, group: Sequence[GangReleased]) -> None:
        """Record the outcome of these tries in one transaction; tasks that wait for it are queued again."""
        now = self._clock()

        def store(connection: Connection) -> int:
            moves.lock_jobs(connection, {each.gang.trial.job_id for each in group})
            there = gangs.of_trials(connection, {each.gang.trial.id for each in group})
            told: list[NewEvent] = []
            again: list[Move] = []
            confirmed = 0
            for each in group:
                held = each.gang.allocation
                if not attempts.set_allocation(connection, held.id, each.state, each.values(now)):
                    continue
                confirmed += each.confirmed
                told += self._told(connection, each, now)
                trial, task = there[each.gang.trial.id]
                if each.confirmed and trial.state is State.MIGRATING:
                    words = f"Queued again with its place of {iso(task.queued_at)}: what it held is released."
                    again.append(Move(trial, State.MIGRATING, State.QUEUED, "QUEUED", words))
            events.record(connection, told)
            moves.apply(connection, again, at=now, actor=ACTOR)
            reach(Point.GANG_RELEASE_BEFORE_COMMIT)
            return confirmed

        metrics.releases.inc(self._database.write(store))
        reach(Point.GANG_RELEASE_AFTER_COMMIT)

    def _told(self, connection: Connection, released: GangReleased, now: float) -> list[NewEvent]:
        gang, held = released.gang, released.gang.allocation
        found = []
        for rank, said in released.late.items():
            first, last = said[0].number - 1, said[-1].number
            if gangs.take_reports(connection, gang.attempt_id, rank, after=first, upto=last):
                found += [report_event(gang, rank, report) for report in said]
        if released.cleanup == "":
            found.append(_event(gang, now, "CLEANED", "This task's data in the shared storage is deleted."))
        elif released.cleanup and not gangs.count_events(
            connection, gang.trial.id, "CLEANUP_FAILED", since=held.held_at
        ):
            said_ = f"This task's data in the shared storage is {released.cleanup}; it is tried again."
            found.append(_event(gang, now, "CLEANUP_FAILED", said_, "warning"))
        leaks = released.state is AllocationState.LEAKED and held.state is not AllocationState.LEAKED
        if released.confirmed:
            many = len(released.members)
            words = f"Released everything that {many} replicas held." if many != 1 else "Released."
            found.append(_event(gang, now, "RELEASED", words))
        elif leaks and not released.gone:
            bad = [str(rank) for rank, each in released.members.items() if not each.confirmed]
            words = (
                f"The release of replica {', '.join(bad)} is not confirmed after {held.tries + 1} tries"
                " and goes on."
            )
            found.append(_event(gang, now, "LEAKED", words, "error"))
        return found


def report_event(gang: Gang, rank: int, report: Report) -> NewEvent:
    """What the watcher of a member said, as an event of the task (c2)."""
    return NewEvent(
        gang.trial.job_id,
        gang.trial.id,
        report.at,
        f"replica:{rank}",
        report.code,
        report.message,
        level=report.level,
        replica=rank,
    )


def _event(gang: Gang, at: float, code: str, message: str, level: str = "info") -> NewEvent:
    return NewEvent(gang.trial.job_id, gang.trial.id, at, ACTOR, code, message, level=level)
