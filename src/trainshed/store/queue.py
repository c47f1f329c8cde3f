"""What the controller reads: who waits, who is active, what is held.

The queue is that of Runners and of script Jobs that were routed to this server's own machines; gangs have
their own (`trainshed.store.gangs`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BindParameter, Connection, and_, bindparam, func, insert, or_, select, update

from trainshed.model.errors import Refusal
from trainshed.model.scripts.spec import LOCAL
from trainshed.model.states import ACTIVE, AllocationState, State
from trainshed.store.jobs import allocation_of, trial_of
from trainshed.store.moves import RUNNER
from trainshed.store.possession import prove
from trainshed.store.records import Allocation, Trial
from trainshed.store.script_tables import scripts
from trainshed.store.scripts import SCRIPT
from trainshed.store.tables import allocations, attempts, blobs, events, projects, trials

_ACTIVE = tuple(str(state) for state in ACTIVE)
_WANTED: BindParameter[Any] = bindparam("wanted", expanding=True)

# Who waits for a place here; a script Job may have been routed to a cluster instead.
_QUEUED_HERE = (
    trials.c.state == State.QUEUED,
    or_(
        trials.c.kind == RUNNER,
        and_(
            trials.c.kind == SCRIPT,
            trials.c.id.in_(select(scripts.c.trial_id).where(scripts.c.provider == LOCAL)),
        ),
    ),
)

# Statements are built once: building one costs several times what running it does.
_NEWEST_EVENT = select(func.max(events.c.id))
_RECENT = (events.c.id > bindparam("past"), events.c.id <= bindparam("newest"))
_ARRIVED = (
    select(trials)
    .where(
        trials.c.id.in_(select(events.c.trial_id).where(*_RECENT, events.c.after == State.QUEUED)),
        trials.c.state == State.QUEUED,
        trials.c.kind == RUNNER,
    )
    .order_by(trials.c.id)
)
_STOPPED = select(events.c.trial_id).where(*_RECENT, events.c.code == "STOP_ACCEPTED")
_ALL_ACTIVE = select(trials).where(trials.c.state.in_(_ACTIVE))
_PROJECT_ACTIVE = _ALL_ACTIVE.where(trials.c.project_id == bindparam("project"))
_BY_ID = select(trials).where(trials.c.id.in_(_WANTED))
_JOBS_OF = select(trials.c.id, trials.c.job_id).where(trials.c.id.in_(_WANTED))
# Named one by one: an index finds these states, but not "any but released".
_HOLDING = tuple(str(state) for state in AllocationState if state is not AllocationState.RELEASED)
_UNRELEASED = select(allocations).where(allocations.c.state.in_(_HOLDING))
_ATTEMPTS = (
    select(attempts.c.trial_id, attempts.c.id, attempts.c.number)
    .where(attempts.c.trial_id.in_(_WANTED))
    .order_by(attempts.c.number)
)
_BLOBS = select(blobs.c.sha256, blobs.c.size, blobs.c.touched_at, blobs.c.deleting_at).where(
    blobs.c.sha256.in_(_WANTED)
)
_CORRECT_SIZE = update(blobs).where(blobs.c.sha256 == bindparam("name")).values(size=bindparam("proved"))
_USABLE_BLOBS = select(blobs.c.sha256).where(blobs.c.sha256.in_(_WANTED), blobs.c.deleting_at.is_(None))
_TOUCH_BLOBS = (
    update(blobs)
    .where(blobs.c.sha256.in_(_WANTED), blobs.c.deleting_at.is_(None))
    .values(touched_at=bindparam("at"))
)

TOUCH_SECONDS = 60.0
"""How exactly the last use of a blob is known."""


def queued_after(connection: Connection, trial_id: str, limit: int) -> list[Trial]:
    """Trials that wait for a place here with an id greater than ``trial_id``, by id."""
    rows = connection.execute(
        select(trials).where(*_QUEUED_HERE, trials.c.id > trial_id).order_by(trials.c.id).limit(limit),
    )
    return [trial_of(row) for row in rows]


def newest_event(connection: Connection) -> int:
    return int(connection.execute(_NEWEST_EVENT).scalar_one() or 0)


@dataclass(frozen=True, slots=True)
class QueueChanges:
    """What entered and left the queue after an event."""

    queued: list[Trial]
    """Trials that were queued since, and still are."""
    stopped: set[str]
    """Trials for which a stop was accepted since."""
    newest: int
    """The newest event looked at."""


def changes_since(connection: Connection, event_id: int) -> QueueChanges:
    """How the queue changed after an event.

    In the order of events, not of Trial ids: a Trial's id is made before its acceptance is committed, so a
    smaller id may appear after a greater one.
    """
    newest = newest_event(connection)
    if newest <= event_id:
        return QueueChanges([], set(), event_id)
    recent = {"past": event_id, "newest": newest}
    rows = connection.execute(_ARRIVED, recent)
    stopped = connection.execute(_STOPPED, recent)
    return QueueChanges([trial_of(row) for row in rows], set(stopped.scalars()), newest)


def active(connection: Connection, project_id: str | None = None) -> list[Trial]:
    """Trials that may hold something, of one project or of all."""
    if project_id is None:
        return [trial_of(row) for row in connection.execute(_ALL_ACTIVE)]
    return [trial_of(row) for row in connection.execute(_PROJECT_ACTIVE, {"project": project_id})]


def by_id(connection: Connection, trial_ids: Collection[str]) -> dict[str, Trial]:
    """These Trials as they are now."""
    rows = connection.execute(_BY_ID, {"wanted": list(trial_ids)})
    return {row.id: trial_of(row) for row in rows}


def jobs_of(connection: Connection, trial_ids: Collection[str]) -> dict[str, str]:
    """The Job of each of these Trials."""
    rows = connection.execute(select(trials.c.id, trials.c.job_id).where(trials.c.id.in_(list(trial_ids))))
    return dict(rows.all())


def unreleased(connection: Connection) -> list[Allocation]:
    """Allocations whose release is not confirmed yet."""
    return [allocation_of(row) for row in connection.execute(_UNRELEASED)]


def newest_attempts(connection: Connection, trial_ids: Collection[str]) -> dict[str, tuple[str, int]]:
    """The id and number of the newest Attempt of each of these Trials."""
    if not trial_ids:
        return {}
    rows = connection.execute(_ATTEMPTS, {"wanted": list(trial_ids)})
    return {trial_id: (attempt_id, number) for trial_id, attempt_id, number in rows}


def charge(connection: Connection, project_id: str, gpu_seconds: float) -> None:
    """Add to a project's used GPU-seconds."""
    connection.execute(
        update(projects)
        .where(projects.c.id == project_id)
        .values(used_gpu_seconds=projects.c.used_gpu_seconds + gpu_seconds),
    )


def put_blobs(
    connection: Connection, sizes: Mapping[str, int], *, at: float, sender: str | None = None
) -> None:
    """Record stored blobs, SHA-256 -> size, as used now; collecting garbage leaves them alone for a while.

    The sizes are those of bytes that were hashed and read back: where a row says otherwise, it was written
    by somebody who had only looked (`trainshed.store.garbage.adopt`), and is corrected.

    ``sender`` is the project that sent every byte of them: from now on it may name them. What a program or
    this server made was sent by nobody.

    Raises `Refusal` ``BLOB_BEING_DELETED`` where the bytes of one are being removed: what was stored just now
    may go with them, so it has to be stored again.
    """
    usable, going = _use_blobs(connection, list(sizes), at)
    if going:
        raise blob_being_deleted(min(going))
    new = [
        {"sha256": sha256, "size": size, "created_at": at, "touched_at": at}
        for sha256, size in sizes.items()
        if sha256 not in usable
    ]
    if new:
        connection.execute(insert(blobs), new)
    if wrong := sorted(sha256 for sha256, size in usable.items() if size != sizes[sha256]):
        connection.execute(_CORRECT_SIZE, [{"name": sha256, "proved": sizes[sha256]} for sha256 in wrong])
    if sender is not None:
        prove(connection, sender, sizes)


def touch_blobs(connection: Connection, names: Collection[str], *, at: float) -> set[str]:
    """Note that these blobs are about to be used; answers those that may be counted on.

    The others are not recorded, or their bytes are being removed. What was touched less than
    `TOUCH_SECONDS` ago is left as it is: a blob that thousands use costs one write a minute.
    """
    return set(_use_blobs(connection, list(names), at)[0])


def untouched_blobs(connection: Connection, names: Collection[str], *, at: float) -> tuple[set[str], bool]:
    """What `touch_blobs` would answer now, and whether it would write anything. Writes nothing."""
    rows = connection.execute(_BLOBS, {"wanted": list(names)}).all()
    usable = {row.sha256: row.touched_at or 0.0 for row in rows if row.deleting_at is None}
    return set(usable), any(touched < at - TOUCH_SECONDS for touched in usable.values())


def _use_blobs(connection: Connection, names: list[str], at: float) -> tuple[dict[str, int], set[str]]:
    """Touch what may be counted on; those with their recorded sizes, and those that are being removed."""
    rows = connection.execute(_BLOBS, {"wanted": names}).all()
    usable = {row.sha256: row.size for row in rows if row.deleting_at is None}
    going = {row.sha256 for row in rows} - usable.keys()
    stale = [
        row.sha256 for row in rows if (row.touched_at or 0.0) < at - TOUCH_SECONDS and row.sha256 in usable
    ]
    if stale and connection.execute(_TOUCH_BLOBS, {"wanted": stale, "at": at}).rowcount < len(stale):
        # A collector marked some of them since they were read.
        still = set(connection.execute(_USABLE_BLOBS, {"wanted": stale}).scalars())
        going |= set(stale) - still
        usable = {sha256: size for sha256, size in usable.items() if sha256 not in going}
    return usable, going


def going_blobs(connection: Connection, names: Collection[str]) -> set[str]:
    """Those of these blobs whose bytes are being removed."""
    rows = connection.execute(_BLOBS, {"wanted": list(names)})
    return {row.sha256 for row in rows if row.deleting_at is not None}


def blob_being_deleted(sha256: str) -> Refusal:
    """The refusal of whoever would use a blob in the moment in which it goes."""
    refusal = Refusal.of("BLOB_BEING_DELETED", f"blob {sha256} is being removed", path="sha256")
    refusal.retry_after = 1
    return refusal


def expired_logs(connection: Connection, ended_before: float, limit: int = 100) -> list[str]:
    """Attempts whose log is past its retention."""
    rows = connection.execute(
        select(attempts.c.id)
        .join(allocations, allocations.c.attempt_id == attempts.c.id)
        .where(
            attempts.c.ended_at < ended_before,
            attempts.c.log_deleted_at.is_(None),
            allocations.c.state == AllocationState.RELEASED,
        )
        .limit(limit),
    )
    return list(rows.scalars())


def mark_log_deleted(connection: Connection, attempt_id: str, *, at: float) -> None:
    connection.execute(update(attempts).where(attempts.c.id == attempt_id).values(log_deleted_at=at))


def queue_length(connection: Connection) -> int:
    return int(
        connection.execute(select(func.count()).select_from(trials).where(*_QUEUED_HERE)).scalar_one(),
    )


def queued_ids(connection: Connection) -> set[str]:
    """Every Trial that waits for a place here now."""
    queued = select(trials.c.id).where(*_QUEUED_HERE)
    return set(connection.execute(queued).scalars())
