"""The log of a Job over HTTP: what is asked for, where the sources are, pages in contract E b5's words."""

from __future__ import annotations

import asyncio
import base64
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from trainshed.content.log_pages import (
    Cursor,
    CursorExpired,
    Item,
    Output,
    OutputRecord,
    Page,
    Place,
    SystemRecord,
    forward,
    tail,
)
from trainshed.content.logs import Position
from trainshed.jobkit.frames import STREAM_NAMES
from trainshed.model.errors import Refusal
from trainshed.model.states import TERMINAL, State
from trainshed.model.training.words import ReplicaState
from trainshed.policy.retry import Ending
from trainshed.server.cursors import CursorFault, CursorSeal
from trainshed.server.follow import RECHECK_SECONDS, Follower
from trainshed.server.growth import file_size
from trainshed.server.pages import bounded_number
from trainshed.server.services import Services
from trainshed.server.shapes.common import iso
from trainshed.store import events
from trainshed.store import jobs as store
from trainshed.store.moves import RUNNER
from trainshed.store.records import Attempt, Event, Replica, Trial, decoded
from trainshed.store.scripts import SCRIPT
from trainshed.store.tasks import replicas_of
from trainshed.store.visibility import Viewer

SOURCES = ("all", "system", "runtime")
DEFAULT_LIMIT = 200
MAX_LIMIT = 1000
MAX_WAIT_SECONDS = 30
_NANOSECONDS = 1_000_000_000
_WARNINGS = frozenset({"CANCELLED", "STOP_ACCEPTED", "START_RETRY", "LEAKED"})


@dataclass(frozen=True, slots=True)
class MemberFilter:
    """Which replicas of a training task are read (C52); ``None`` leaves all."""

    role: str | None = None
    index: int | None = None
    """Within the role, from 0."""
    attempt: int | None = None

    def takes(self, role: str, index: int, attempt: int) -> bool:
        return self.role in {None, role} and self.index in {None, index} and self.attempt in {None, attempt}


EVERYBODY = MemberFilter()


@dataclass(frozen=True, slots=True)
class LogQuery:
    """What a caller wants to read."""

    source: str
    limit: int
    tail: int | None
    cursor: Cursor | None
    wait: int
    trial: str | None
    members: MemberFilter = EVERYBODY

    @classmethod
    def parse(cls, query: Mapping[str, str], seal: CursorSeal, job_id: str) -> LogQuery:
        """Raises `Refusal` ``INVALID_LOG_SOURCE``, ``INVALID_LOG_QUERY`` or ``LOG_CURSOR_INVALID``."""
        source = query.get("source", "all")
        if source not in SOURCES:
            raise Refusal.of("INVALID_LOG_SOURCE", f"`source` is one of {', '.join(SOURCES)}", path="source")
        code = "INVALID_LOG_QUERY"
        limit = bounded_number(query, "limit", 1, MAX_LIMIT, code)
        last = bounded_number(query, "tail", 1, MAX_LIMIT, code)
        wait = bounded_number(query, "wait", 0, MAX_WAIT_SECONDS, code)
        text = query.get("cursor")
        if last is not None and text is not None:
            raise Refusal.of(code, "`tail` and `cursor` exclude each other", path="tail")
        cursor = None if text is None else open_log_cursor(seal, job_id, text)
        return cls(source, limit or DEFAULT_LIMIT, last, cursor, wait or 0, query.get("trial"))


def open_log_cursor(seal: CursorSeal, job_id: str, text: str) -> Cursor:
    """Raises `Refusal` ``LOG_CURSOR_INVALID``."""
    try:
        value = seal.open(f"logs:{job_id}", text)
    except CursorFault as fault:
        raise Refusal.of("LOG_CURSOR_INVALID", f"`cursor` is {fault}", path="cursor") from None
    places = {
        key: Place(Position(frame, inside), dropped) for key, (frame, inside, dropped) in value[1].items()
    }
    return Cursor(value[0], places)


def seal_log_cursor(seal: CursorSeal, job_id: str, cursor: Cursor) -> str:
    places = {key: [*place.position, place.dropped] for key, place in cursor.outputs.items()}
    return seal.seal(f"logs:{job_id}", [cursor.system, places])


class JobLog:
    """One reader of one Job's log. Not thread-safe; its methods but ``changed`` block."""

    def __init__(self, services: Services, viewer: Viewer, job_id: str, query: LogQuery) -> None:
        self._services = services
        self._viewer = viewer
        self._job_id = job_id
        self._query = query
        self._names: dict[str, str] = {}
        self._trial_id: str | None = None
        self._outputs: list[Output] = []
        self._job_ended = False
        self._new_rows = True
        self._sizes: tuple[int, ...] = ()
        self._delivered = False
        self._looked_at = 0.0

    def refresh(self) -> None:
        """Read where the sources are and what has ended. Raises `Refusal` for an unknown Job or Trial."""
        with self._services.database.read() as connection:
            store.get_job(connection, self._viewer.project_id, self._job_id, viewer=self._viewer)
            trials = store.trials_of(connection, [self._job_id])[self._job_id]
            attempts = store.attempts_of(connection, [trial.id for trial in trials])
            gangs = [
                each.id
                for trial in trials
                if trial.kind not in {RUNNER, SCRIPT}
                for each in attempts[trial.id]
            ]
            members = replicas_of(connection, gangs)
        self._job_ended = all(trial.state in TERMINAL for trial in trials)
        self._names = {trial.id: trial.name for trial in trials}
        if (wanted := self._query.trial) is not None:
            trials = [trial for trial in trials if wanted in {trial.id, trial.name}]
            if not trials:
                raise Refusal.of("TRIAL_NOT_FOUND", f"the Job has no Trial `{wanted[:80]}`", path="trial")
            self._trial_id = trials[0].id
        self._outputs = [
            output
            for trial in trials
            for attempt in attempts[trial.id]
            for output in (
                self._output_of_gang(trial, attempt, members[attempt.id])
                if attempt.id in members
                else [self._output(trial, attempt)]
            )
        ]
        self._new_rows = True

    def page(self, cursor: Cursor | None) -> Page:
        """The next page from ``cursor`` on; without one, from the first record or the tail that is asked for.

        Raises `Refusal` ``LOG_CURSOR_EXPIRED``, ``LOG_STORAGE_UNAVAILABLE``.
        """
        self._sizes = self._stat()
        outputs = [] if self._query.source == "system" else self._outputs
        try:
            if cursor is None and self._query.tail is not None:
                page = tail(outputs, self._newest_system(self._query.tail), count=self._query.tail)
            else:
                read = None if self._query.source == "runtime" else self._read_system
                page = forward(outputs, read, cursor or Cursor(), limit=self._query.limit)
        except CursorExpired as expired:
            raise Refusal.of(
                "LOG_CURSOR_EXPIRED", f"the output of `{expired}` was deleted by retention", path="cursor"
            ) from None
        except OSError as error:
            raise Refusal.of("LOG_STORAGE_UNAVAILABLE", f"cannot read the log: {error.strerror}") from error
        self._new_rows = page.has_more
        self._delivered = page.delivered
        return page

    def eof(self, page: Page) -> bool:
        """Whether everything there will ever be was delivered."""
        return self._job_ended and page.delivered

    async def changed(self, follower: Follower, seconds: float) -> bool:
        """Wait until a file has grown or rows may have changed, at most ``seconds``; whether either is so.

        Files are looked at with ``stat``, once for all their readers. The database is looked at only after a
        commit that concerns the Job, or when it was not for `JobWatch.recheck_seconds`.
        """
        watch, loop = self._services.watch, asyncio.get_running_loop()
        self._looked_at = self._looked_at or loop.time()
        with watch.growth.watching([str(output.files.frames) for output in self._outputs], follower.grew):
            # What grew since the page was read is not waited for: nobody tells of it any more.
            if self._stat() != self._sizes:
                return True
            announced = await follower.wait(seconds)
        # The last output is delivered, or the last release observed, without an event that announces it.
        patience = RECHECK_SECONDS if self._job_ended and not self._delivered else watch.recheck_seconds
        if announced or loop.time() - self._looked_at >= patience:
            self._looked_at = loop.time()
            await asyncio.to_thread(self.refresh)
            return True
        return self._stat() != self._sizes

    def document(self, page: Page) -> dict[str, Any]:
        """The page as JSON values."""
        eof = self.eof(page)
        sources = [
            {
                "name": state.output.trial_name,
                "trial_id": state.output.trial_id,
                **_member(state.output),
                "collection_status": state.status,
                "truncated": state.dropped_bytes > 0,
                "dropped_bytes": state.dropped_bytes,
                "missing_reason": state.missing_reason,
            }
            for state in page.sources
        ]
        return {
            "items": [item_document(item) for item in page.items],
            "next_cursor": seal_log_cursor(self._services.seal, self._job_id, page.cursor),
            "has_more": page.has_more,
            "eof": eof,
            "collection_status": page.status if self._job_ended else "collecting",
            "truncated": page.dropped_bytes > 0,
            "dropped_bytes": page.dropped_bytes,
            "missing_reason": page.missing_reason,
            "sources": sources,
        }

    def _output(self, trial: Trial, attempt: Attempt) -> Output:
        usage = decoded(attempt.usage) or {}
        suffix = f".{attempt.number}" if attempt.number > 1 else ""
        return Output(
            key=f"{trial.position}{suffix}",
            trial_id=trial.id,
            trial_name=trial.name,
            files=self._services.log_files(attempt.id),
            started=attempt.started_at is not None,
            ended=attempt.ended_at is not None or trial.state in TERMINAL,
            deleted=attempt.log_deleted_at is not None,
            dropped_bytes=int(usage.get("dropped_log_bytes", 0)),
            file_bytes=_whole(usage.get("log_file_bytes")),
            # A program writes before anybody has seen that it was started; what is seen first is told first.
            held=trial.kind == RUNNER and trial.state is State.PREPARING and attempt.started_at is None,
            lost=attempt.ended_by == Ending.LOST,
        )

    def _output_of_gang(self, trial: Trial, attempt: Attempt, members: Sequence[Replica]) -> list[Output]:
        """What its members wrote, each by itself."""
        found, seen = [], Counter[str]()
        for member in members:
            index = seen[member.role]
            seen[member.role] += 1
            if not self._query.members.takes(member.role, index, attempt.number):
                continue
            over = member.ended_at is not None or attempt.ended_at is not None
            found.append(
                Output(
                    key=f"{trial.position}.{attempt.number}.{member.rank}",
                    trial_id=trial.id,
                    trial_name=trial.name,
                    files=self._services.log_files(member.unit_id or attempt.id),
                    started=member.started_at is not None,
                    ended=over or trial.state in TERMINAL,
                    deleted=attempt.log_deleted_at is not None,
                    lost=member.state == ReplicaState.LOST,
                    replica=member.rank,
                    role=member.role,
                    attempt=attempt.number,
                )
            )
        return found

    def _stat(self) -> tuple[int, ...]:
        return tuple(file_size(str(output.files.frames)) for output in self._outputs)

    def _read_system(self, after: int, limit: int) -> Sequence[SystemRecord]:
        if not self._new_rows:
            return ()
        with self._services.database.read() as connection:
            rows = events.of_job(connection, self._job_id, after=after, limit=limit, trial_id=self._trial_id)
        return [self._system_record(row) for row in rows]

    def _newest_system(self, count: int) -> Sequence[SystemRecord] | None:
        if self._query.source == "runtime":
            return None
        with self._services.database.read() as connection:
            rows = events.newest_of_job(connection, self._job_id, limit=count, trial_id=self._trial_id)
        return [self._system_record(row) for row in reversed(rows)]

    def _system_record(self, row: Event) -> SystemRecord:
        failed = row.after == State.FAILED
        level = "error" if failed else "warning" if row.code in _WARNINGS else row.level
        return SystemRecord(
            id=row.id,
            at_ns=int(row.at * _NANOSECONDS),
            content=row.message,
            level=level,
            code=row.code,
            phase=row.after,
            trial_id=row.trial_id,
            trial_name=self._names.get(row.trial_id or ""),
        )


@lru_cache(maxsize=256)
def _iso_ns(nanoseconds: int) -> str:
    """Records that came from the program together share one time."""
    return iso(nanoseconds / _NANOSECONDS)


def item_document(item: Item) -> dict[str, Any]:
    """One record as JSON values; keys without a value are left out."""
    if isinstance(item, SystemRecord):
        document = {
            "id": f"s-{item.id}",
            "content": item.content,
            "at": _iso_ns(item.at_ns),
            "source": "system",
            "level": item.level,
            "code": item.code,
            "phase": item.phase,
            "trial_id": item.trial_id,
            "trial_name": item.trial_name,
        }
        return {key: value for key, value in document.items() if value is not None}
    return _output_document(item)


def _output_document(item: OutputRecord) -> dict[str, Any]:
    record, output = item.record, item.output
    document: dict[str, Any] = {
        "id": f"{output.key}-{record.frame}-{record.inside}",
        "at": _iso_ns(record.time_ns),
        "trial_id": output.trial_id,
        "trial_name": output.trial_name,
        **_member(output),
    }
    if item.is_gap:
        said = f"{record.dropped} bytes of output are missing here: they could not be kept."
        return document | {
            "source": "system",
            "level": "warning",
            "code": "OUTPUT_DROPPED",
            "content": said,
        }
    document |= {"source": "runtime", "stream": STREAM_NAMES[record.stream]}
    try:
        document["content"] = record.data.decode()
    except UnicodeDecodeError:
        document["content"] = record.data.decode(errors="replace")
        document["content_base64"] = base64.b64encode(record.data).decode()
    if record.partial:
        document["partial"] = True
    return document


def _member(output: Output) -> dict[str, Any]:
    """Whose output it is, of a gang."""
    if output.replica is None:
        return {}
    return {"replica": output.replica, "role": output.role, "attempt": output.attempt}


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
