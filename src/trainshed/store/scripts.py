"""Script Jobs: inserting what was accepted, finding, listing, and what happened to them (contract G).

A script Job has one Trial; its moves are made by `trainshed.store.moves`, which calls `record_moves` here so
that the words of section b and their events are written in the same transaction. Every change that people may
wait for also leaves a row in ``events``, which wakes whoever follows the Job.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import BindParameter, Connection, Select, bindparam, func, insert, select, update

from trainshed.model.scripts.states import (
    REASONS,
    TERMINAL_WORDS,
    Note,
    Phase,
    Reason,
    Word,
    check_transition,
    word_of,
)
from trainshed.model.states import State
from trainshed.store import events
from trainshed.store.events import NewEvent
from trainshed.store.job_digits import with_digits
from trainshed.store.jobs import insert_contents, trial_of
from trainshed.store.records import Job, Trial
from trainshed.store.script_records import Script, ScriptEvent
from trainshed.store.script_tables import script_attempts, script_events, scripts
from trainshed.store.tables import jobs, trials

if TYPE_CHECKING:
    from trainshed.store.moves import Move

SCRIPT = "script"
"""The kind of Trials that this module is about."""
APPROVED = "APPROVED"
"""The code of the move with which an approved Job leaves ``awaiting_approval``; it shows no word of its own:
the Job says so until it is placed or has to wait (section b)."""
ACTIVE_WORDS = tuple(str(word) for word in Word if word not in TERMINAL_WORDS)

_WANTED: BindParameter[Any] = bindparam("wanted", expanding=True)
# Statements are built once: building one costs several times what running it does.
_OF_TRIALS = select(scripts).where(scripts.c.trial_id.in_(_WANTED))
_OF_JOBS = select(scripts).where(scripts.c.job_id.in_(_WANTED))
_WITH_STATE = (
    select(trials.c.state, scripts)
    .join(trials, trials.c.id == scripts.c.trial_id)
    .where(scripts.c.trial_id == bindparam("wanted"))
)
_ATTEMPT_NUMBERS = (
    select(script_attempts.c.trial_id, func.max(script_attempts.c.number))
    .where(script_attempts.c.trial_id.in_(_WANTED))
    .group_by(script_attempts.c.trial_id)
)
_TELL, _RECORD = insert(script_events), events.record
_R, _W = Reason, Word
_DEFAULTS: Mapping[tuple[Word, Word], Reason] = {
    (_W.QUEUED, _W.FAILED): _R.GAVE_UP,
    (_W.ROUTING, _W.FAILED): _R.GAVE_UP,
    (_W.AWAITING_APPROVAL, _W.FAILED): _R.GAVE_UP,
    (_W.AWAITING_APPROVAL, _W.DENIED): _R.DENIED,
    (_W.PROVISIONING, _W.QUEUED): _R.PROVIDER_UNAVAILABLE,
    (_W.MIGRATING, _W.FAILED): _R.GAVE_UP,
    (_W.CHECKPOINTING, _W.RUNNING): _R.CHECKPOINT_END,
    (_W.CANCELLING, _W.CANCELLED): _R.CANCELLED,
    **{
        (word, end): reason
        for word in (_W.PROVISIONING, _W.RUNNING, _W.CHECKPOINTING)
        for end, reason in (
            (_W.FAILED, _R.SCRIPT_FAILED),
            (_W.MIGRATING, _R.SESSION_LOST),
            (_W.CANCELLED, _R.REMOTE_CANCELLED),
        )
    },
}
"""Why, where a move's code is no reason of section b and several are possible."""
_ACTORS = {"controller": "engine", "agent": "agent"}
"""How G names who did something, by the first part of our own name; everybody else came by the API."""


def insert_script(
    connection: Connection,
    job: Job,
    trial: Mapping[str, Any],
    script: Script,
    contents: Sequence[Mapping[str, Any]],
    *,
    message: str,
    actor: str,
) -> Job:
    """Insert a script Job with its Trial (columns of ``trials``), what it consumes, and its first events.

    ``actor`` as G names who submitted it. The Job has its digits (`store.job_digits.with_digits`) or gets
    them here; answers it with them. Raises `Refusal` ``CONTENT_NOT_FOUND`` where what it consumes was
    collected meanwhile.
    """
    job = job if job.digits else with_digits(connection, job)
    connection.execute(insert(jobs), {column.name: getattr(job, column.name) for column in jobs.c})
    connection.execute(insert(trials), dict(trial))
    insert_contents(connection, contents)
    connection.execute(insert(scripts), {column.name: getattr(script, column.name) for column in scripts.c})
    queued = NewEvent(
        job.id, script.trial_id, job.created_at, job.submitted_by, "SUBMITTED", message, None, State.QUEUED
    )
    events.record(connection, [queued])
    _tell(
        connection,
        script.trial_id,
        (None, Word.QUEUED),
        Reason.SUBMITTED,
        message,
        at=job.created_at,
        actor=actor,
    )
    return job


def of_trials(connection: Connection, trial_ids: Collection[str]) -> dict[str, Script]:
    """The scripts of these Trials, by Trial id; others have none."""
    if not trial_ids:
        return {}
    rows = connection.execute(_OF_TRIALS, {"wanted": list(trial_ids)})
    return {row.trial_id: Script(*row) for row in rows}


def of_jobs(connection: Connection, job_ids: Collection[str]) -> dict[str, Script]:
    """The scripts of these Jobs, by Job id; Jobs of other kinds have none."""
    if not job_ids:
        return {}
    rows = connection.execute(_OF_JOBS, {"wanted": list(job_ids)})
    return {row.job_id: Script(*row) for row in rows}


def find(connection: Connection, project_id: str, job_id: str) -> tuple[Job, Trial, Script] | None:
    """A script Job of a project by its id; ``None`` where there is none or it is of another kind."""
    row = connection.execute(_joined(project_id).where(jobs.c.id == job_id)).first()
    return None if row is None else _triple(row)


def list_scripts(
    connection: Connection,
    project_id: str,
    *,
    active: bool | None = None,
    project_dir: str | None = None,
    since: float | None = None,
    before: str | None = None,
    limit: int = 25,
) -> list[tuple[Job, Trial, Script]]:
    """Script Jobs of a project, newest first, past the Job id ``before``.

    ``active``: only those that have not ended, or only those that have. ``since``: of those that have, only
    what ended later (Unix seconds).
    """
    query = _joined(project_id)
    if active is not None:
        is_active = scripts.c.word.in_(ACTIVE_WORDS)
        query = query.where(is_active if active else ~is_active)
    if since is not None:
        query = query.where((jobs.c.finished_at.is_(None)) | (jobs.c.finished_at > since))
    if project_dir is not None:
        # A folder of outputs lies in the project's own: `<project_dir>/runs/<id>`.
        beginning = project_dir.rstrip("/") + "/runs/"
        query = query.where(func.substr(scripts.c.outputs_dir, 1, len(beginning)) == beginning)
    if before is not None:
        query = query.where(jobs.c.id < before)
    rows = connection.execute(query.order_by(jobs.c.id.desc()).limit(limit))
    return [_triple(row) for row in rows]


def counts(connection: Connection, project_id: str) -> dict[str, int]:
    """How many script Jobs of a project stand at each word; words without any are missing."""
    rows = connection.execute(
        select(scripts.c.word, func.count())
        .where(scripts.c.project_id == project_id)
        .group_by(scripts.c.word)
    )
    return {word: int(number) for word, number in rows}


def active_with(connection: Connection, project_id: str, owner: str, spec_hash: str) -> Script | None:
    """The owner's newest Job with this spec that has not ended (a.1)."""
    row = connection.execute(
        _alike(select(scripts), project_id, owner, spec_hash)
        .where(scripts.c.word.in_(ACTIVE_WORDS))
        .order_by(scripts.c.job_id.desc())
        .limit(1)
    ).first()
    return None if row is None else Script(*row)


def count_with(connection: Connection, project_id: str, owner: str, spec_hash: str) -> int:
    """How many Jobs with this spec the owner ever had."""
    query = _alike(select(func.count()).select_from(scripts), project_id, owner, spec_hash)
    return int(connection.execute(query).scalar_one())


def _alike(query: Select[Any], project_id: str, owner: str, spec_hash: str) -> Select[Any]:
    return query.where(
        scripts.c.project_id == project_id, scripts.c.owner == owner, scripts.c.spec_hash == spec_hash
    )


def unfinished(connection: Connection) -> list[tuple[Trial, Script]]:
    """Every script Job that has not ended, oldest first: what the controller has to look after."""
    rows = connection.execute(
        select(trials, scripts)
        .join(scripts, scripts.c.trial_id == trials.c.id)
        .where(scripts.c.word.in_(ACTIVE_WORDS))
        .order_by(scripts.c.job_id)
    )
    return [(trial_of(row[:_TRIAL_COLUMNS]), Script(*row[_TRIAL_COLUMNS:])) for row in rows]


def change(connection: Connection, trial_id: str, values: Mapping[str, Any]) -> bool:
    """Set columns of a script that nobody waits for: progress, metrics, counters. Leaves no event."""
    changed = connection.execute(update(scripts).where(scripts.c.trial_id == trial_id).values(**values))
    return bool(changed.rowcount)


def set_phase(
    connection: Connection,
    trial_id: str,
    phase: Phase,
    reason: Reason,
    message: str,
    *,
    at: float,
    actor: str = "engine",
    values: Mapping[str, Any] | None = None,
) -> bool:
    """Bring a queued Trial to another phase, with the transition that G sees in it.

    ``values`` are further columns of ``scripts`` to set. ``False``, and nothing is changed, where the Trial
    is not queued any more. The caller holds the lock of its Job (`store.moves.lock_jobs`). Raises
    `ImpossibleTransition`.
    """
    row = connection.execute(_WITH_STATE, {"wanted": trial_id}).first()
    if row is None or row[0] != State.QUEUED:
        return False
    script = Script(*row[1:])
    before, after = Word(script.word), word_of(State.QUEUED, phase)
    changes = {"phase": str(phase), "word": str(after), "version": script.version + 1, **(values or {})}
    connection.execute(update(scripts).where(scripts.c.trial_id == trial_id).values(**changes))
    if before is not after:
        check_transition(before, after, reason)
        _tell(connection, trial_id, (before, after), reason, message, at=at, actor=actor)
        told = NewEvent(script.job_id, trial_id, at, _full(actor), str(reason).upper(), message)
        events.record(connection, [told])
    return True


def note(
    connection: Connection,
    trial_id: str,
    what: Note,
    message: str,
    *,
    at: float,
    actor: str = "engine",
    level: str = "info",
    values: Mapping[str, Any] | None = None,
) -> None:
    """Append a note, which leaves the state alone; ``values`` are columns of ``scripts`` to set with it."""
    changes = {"version": scripts.c.version + 1, **(values or {})}
    connection.execute(update(scripts).where(scripts.c.trial_id == trial_id).values(**changes))
    [script] = of_trials(connection, [trial_id]).values()
    row = {
        "trial_id": trial_id,
        "at": at,
        "kind": "note",
        "before": None,
        "after": None,
        "reason": str(what),
        "message": message,
        "actor": actor,
        "attempt": _attempt_numbers(connection, [trial_id]).get(trial_id),
    }
    connection.execute(_TELL, [row])
    told = NewEvent(script.job_id, trial_id, at, _full(actor), str(what).upper(), message, level=level)
    events.record(connection, [told])


def record_moves(
    connection: Connection, made: Sequence[Move], *, at: float, actor: str, channel: str | None = None
) -> None:
    """Write the words of script Trials that were moved, and their transitions.

    ``channel`` is how G names the actor where that is known better than from ``actor``. Raises
    `ImpossibleTransition` for what section b does not have; then nothing is moved.
    """
    mine = [move for move in made if move.trial.kind == SCRIPT]
    if not mine:
        return
    found = of_trials(connection, {move.trial.id for move in mine})
    numbers = _attempt_numbers(connection, list(found))
    words = {trial_id: (Word(script.word), Phase(script.phase)) for trial_id, script in found.items()}
    for move in mine:
        before, phase = words[move.trial.id]
        phase = _phase(move, phase)
        after = _word(move, before, phase)
        words[move.trial.id] = after, phase
        values: dict[str, Any] = {"word": str(after), "phase": str(phase), "version": scripts.c.version + 1}
        if move.after is State.STOPPING:
            values["cancel_requested_at"] = at
        connection.execute(update(scripts).where(scripts.c.trial_id == move.trial.id).values(**values))
        if before is after:
            continue
        reason = _reason(move.code, before, after)
        check_transition(before, after, reason)
        _tell(
            connection,
            move.trial.id,
            (before, after),
            reason,
            move.message,
            at=move.happened_at or at,
            actor=channel or as_g(actor),
            attempt=numbers.get(move.trial.id),
        )


def _phase(move: Move, phase: Phase) -> Phase:
    """Where a Trial that is queued again stands: what it left says so."""
    if move.after is State.MIGRATING:
        return Phase.RESUMING
    if move.after is State.QUEUED:
        if move.before is State.MIGRATING:
            return Phase.RESUMING
        return Phase.ROUTING if move.code == APPROVED else Phase.WAITING
    return phase


def _word(move: Move, before: Word, phase: Phase) -> Word:
    if move.after is State.COLLECTING:
        # What it was doing counts until its end is known; a late result ends a Job that is migrating.
        return before
    if move.after is State.STOPPING and move.before in {State.QUEUED, State.AWAITING_APPROVAL}:
        return before  # nothing is held: it is cancelled in the same transaction
    if move.after is State.QUEUED and move.code == APPROVED:
        return before
    return word_of(move.after, phase)


def _reason(code: str, before: Word, after: Word) -> Reason:
    possible = REASONS.get((before, after), frozenset())
    given = next((reason for reason in Reason if reason == code.lower()), None)
    if given in possible or (given is not None and given is not Reason.CANCELLED):
        return given  # one that is not possible is refused by `check_transition`
    if (default := _DEFAULTS.get((before, after))) is not None:
        return default
    if Reason.USER_CANCEL in possible:
        return Reason.USER_CANCEL
    return next(iter(possible)) if len(possible) == 1 else given or Reason.SUBMITTED


def events_of(
    connection: Connection,
    trial_id: str,
    *,
    after: int = 0,
    limit: int = 1000,
    newest: bool = False,
) -> list[ScriptEvent]:
    """Events of a script Job past the id ``after``, oldest first; with ``newest`` the last ``limit``."""
    query = select(script_events).where(script_events.c.trial_id == trial_id, script_events.c.id > after)
    order = script_events.c.id.desc() if newest else script_events.c.id
    rows = [ScriptEvent(*row) for row in connection.execute(query.order_by(order).limit(limit))]
    return rows[::-1] if newest else rows


def as_g(actor: str) -> str:
    """How G names who did something (section b); ``actor`` is our word: ``human:ada``, ``controller``."""
    known = actor in {"engine", "recovery", "agent", "api"} or actor.startswith("user:")
    return actor if known else _ACTORS.get(actor.partition(":")[0], "api")


def _full(actor: str) -> str:
    return "controller" if actor in {"engine", "recovery"} else actor


def _tell(
    connection: Connection,
    trial_id: str,
    words: tuple[Word | None, Word],
    reason: Reason,
    message: str,
    *,
    at: float,
    actor: str,
    attempt: int | None = None,
) -> None:
    before, after = words
    row = {
        "trial_id": trial_id,
        "at": at,
        "kind": "transition",
        "before": None if before is None else str(before),
        "after": str(after),
        "reason": str(reason),
        "message": message,
        "actor": actor,
        "attempt": attempt,
    }
    connection.execute(_TELL, [row])


def _attempt_numbers(connection: Connection, trial_ids: Sequence[str]) -> dict[str, int]:
    rows = connection.execute(_ATTEMPT_NUMBERS, {"wanted": list(trial_ids)})
    return {trial_id: int(number) for trial_id, number in rows}


_JOB_COLUMNS, _TRIAL_COLUMNS = len(jobs.c), len(trials.c)


def _joined(project_id: str) -> Select[Any]:
    return (
        select(jobs, trials, scripts)
        .join(scripts, scripts.c.job_id == jobs.c.id)
        .join(trials, trials.c.id == scripts.c.trial_id)
        .where(scripts.c.project_id == project_id)
    )


def _triple(row: Sequence[Any]) -> tuple[Job, Trial, Script]:
    middle = _JOB_COLUMNS + _TRIAL_COLUMNS
    return Job(*row[:_JOB_COLUMNS]), trial_of(row[_JOB_COLUMNS:middle]), Script(*row[middle:])
