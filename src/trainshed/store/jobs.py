"""Jobs and Trials: inserting what was accepted, and reading it back."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import BindParameter, Connection, bindparam, func, insert, select, tuple_

from trainshed.model.errors import Refusal
from trainshed.model.states import E_TRIAL_WORDS, WAITING, AllocationState, OutputStatus, State
from trainshed.store import manifests
from trainshed.store.events import NewEvent, record
from trainshed.store.job_digits import with_digits
from trainshed.store.records import Allocation, Artifact, Attempt, Job, Trial, TrialContent
from trainshed.store.tables import allocations, artifacts, attempts, jobs, trial_contents, trials
from trainshed.store.visibility import Viewer, is_hidden, shown

_ALL_JOBS = select(jobs)
_ALL_TRIALS = select(trials)
_WAITING = tuple(str(state) for state in WAITING)
_FEW = frozenset({"preparing", "running", "stopping"})
"""Words for Trials that hold something: never more than fit on the machines, so found by state first."""
_WANTED: BindParameter[Any] = bindparam("wanted", expanding=True)

# Statements are built once: building one costs several times what running it does.
_INSERT_JOB, _INSERT_TRIALS = insert(jobs), insert(trials)
_INSERT_CONTENTS = insert(trial_contents)
_CONTENTS_OF = (
    select(trial_contents).where(trial_contents.c.trial_id.in_(_WANTED)).order_by(trial_contents.c.role)
)
_JOB = _ALL_JOBS.where(jobs.c.id == bindparam("job"))
_PROJECT_JOB = _JOB.where(jobs.c.project_id == bindparam("project"))
_REQUESTED_JOB = _ALL_JOBS.where(
    jobs.c.project_id == bindparam("project"), jobs.c.request_id == bindparam("request")
)
_TRIALS_OF = _ALL_TRIALS.where(trials.c.job_id.in_(_WANTED)).order_by(trials.c.job_id, trials.c.position)
_PROJECT_TRIAL = _ALL_TRIALS.where(
    trials.c.id == bindparam("trial"), trials.c.project_id == bindparam("project")
)
_ATTEMPTS_OF = select(attempts).where(attempts.c.trial_id.in_(_WANTED)).order_by(attempts.c.number)
_ALLOCATIONS_OF = select(allocations).where(allocations.c.trial_id.in_(_WANTED)).order_by(allocations.c.id)
_BEFORE_IN_QUEUE = (
    select(func.count())
    .select_from(trials)
    .where(
        trials.c.state == State.QUEUED,
        trials.c.kind == "runner",
        tuple_(trials.c.queue_rank, trials.c.id) < tuple_(bindparam("rank"), bindparam("trial")),
    )
)


def trial_of(row: Any) -> Trial:
    """A row of ``trials`` as a `Trial`."""
    values = list(row)
    values[_STATE] = State(values[_STATE])
    values[_OUTPUT] = OutputStatus(values[_OUTPUT])
    return Trial(*values)


def allocation_of(row: Any) -> Allocation:
    """A row of ``allocations`` as an `Allocation`."""
    values = list(row)
    values[_HELD] = AllocationState(values[_HELD])
    return Allocation(*values)


_HELD = allocations.c.keys().index("state")
_STATE = trials.c.keys().index("state")
_OUTPUT = trials.c.keys().index("output_status")


def find_by_request(connection: Connection, project_id: str, request_id: str) -> Job | None:
    """The Job that a request id names in a project (promise P2)."""
    row = connection.execute(_REQUESTED_JOB, {"project": project_id, "request": request_id}).first()
    return Job(*row) if row else None


def insert_job(connection: Connection, job: Job, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert a Job with its Trials (columns of ``trials``) and its first events."""
    job = with_digits(connection, job)
    connection.execute(_INSERT_JOB, {column.name: getattr(job, column.name) for column in jobs.c})
    connection.execute(_INSERT_TRIALS, list(rows))
    accepted = NewEvent(
        job.id,
        None,
        job.created_at,
        job.submitted_by,
        "ACCEPTED",
        f"Accepted {len(rows)} Trial{'s' * (len(rows) > 1)} under request id {job.request_id}.",
    )
    frozen = [
        NewEvent(
            job.id,
            row["id"],
            job.created_at,
            job.submitted_by,
            "QUEUED",
            f"Queued {row['name']}: {row['runner']}@{row['revision'][:12]} "
            f"on {row['gpus']} x {row['gpu_type']}.",
            None,
            State.QUEUED,
        )
        for row in rows
    ]
    record(connection, [accepted, *frozen])


def insert_contents(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert what Trials consume (columns of ``trial_contents``), and keep it from being collected.

    Raises `Refusal` ``CONTENT_NOT_FOUND`` for what was withdrawn and collected since it was looked up.
    """
    if not rows:
        return
    held = manifests.hold(connection, {row["manifest_sha256"] for row in rows})
    for row in rows:
        if row["manifest_sha256"] not in held:
            said = f"{row['kind']} {row['name']}@{row['version']} was withdrawn and its files are gone"
            raise Refusal.of("CONTENT_NOT_FOUND", said, path=row["role"])
    connection.execute(_INSERT_CONTENTS, list(rows))


def contents_of(connection: Connection, trial_ids: Collection[str]) -> dict[str, list[TrialContent]]:
    """What each of these Trials consumes, by role; Trials without any are missing."""
    found: dict[str, list[TrialContent]] = {}
    for row in connection.execute(_CONTENTS_OF, {"wanted": list(trial_ids)}):
        found.setdefault(row.trial_id, []).append(TrialContent(*row))
    return found


def find_job(connection: Connection, project_id: str | None, job_id: str) -> Job | None:
    """A Job of a project (of any project when ``project_id`` is ``None``)."""
    if project_id is None:
        row = connection.execute(_JOB, {"job": job_id}).first()
    else:
        row = connection.execute(_PROJECT_JOB, {"job": job_id, "project": project_id}).first()
    return Job(*row) if row else None


def get_job(connection: Connection, project_id: str, job_id: str, *, viewer: Viewer | None = None) -> Job:
    """The Job; raises `Refusal` ``JOB_NOT_FOUND``, also for other projects' ids.

    With a ``viewer`` the same for tasks that they may not see (contract C5).
    """
    job = find_job(connection, project_id, job_id)
    if job is None or (viewer is not None and is_hidden(connection, viewer, job_id)):
        raise Refusal.of("JOB_NOT_FOUND", f"there is no Job `{job_id[:80]}` in this project", path="job_id")
    return job


def list_jobs(
    connection: Connection,
    project_id: str,
    *,
    status: str | None = None,
    before: str | None = None,
    limit: int = 25,
    viewer: Viewer | None = None,
) -> list[Job]:
    """Jobs of a project, newest first, past the id ``before``; with a ``viewer`` what they may see."""
    query = _ALL_JOBS.where(jobs.c.project_id == project_id)
    if viewer is not None:
        query = query.where(shown(jobs.c.id, viewer))
    if status is not None:
        query = query.where(jobs.c.status == status)
    if before is not None:
        query = query.where(jobs.c.id < before)
    return [Job(*row) for row in connection.execute(query.order_by(jobs.c.id.desc()).limit(limit))]


def trials_of(connection: Connection, job_ids: Collection[str]) -> dict[str, list[Trial]]:
    """The Trials of these Jobs, in order, by Job id."""
    found: dict[str, list[Trial]] = {job_id: [] for job_id in job_ids}
    if job_ids:
        for row in connection.execute(_TRIALS_OF, {"wanted": list(job_ids)}):
            trial = trial_of(row)
            found[trial.job_id].append(trial)
    return found


def get_trial(
    connection: Connection, project_id: str, trial_id: str, *, viewer: Viewer | None = None
) -> Trial:
    """The Trial; raises `Refusal` ``TRIAL_NOT_FOUND``, also for other projects' ids.

    With a ``viewer`` the same for tasks that they may not see (contract C5).
    """
    row = connection.execute(_PROJECT_TRIAL, {"trial": trial_id, "project": project_id}).first()
    hidden = row is not None and viewer is not None and is_hidden(connection, viewer, row.job_id)
    if row is None or hidden:
        raise Refusal.of(
            "TRIAL_NOT_FOUND", f"there is no Trial `{trial_id[:80]}` in this project", path="trial_id"
        )
    return trial_of(row)


def list_trials(
    connection: Connection,
    project_id: str,
    *,
    job_id: str | None = None,
    status: str | None = None,
    before: str | None = None,
    limit: int = 25,
    viewer: Viewer | None = None,
) -> list[Trial]:
    """Trials of a project, newest first; ``status`` is a word of contract E b12.

    With a ``viewer`` those that they may see.
    """
    query = _ALL_TRIALS.where(trials.c.project_id == project_id)
    if viewer is not None:
        query = query.where(shown(trials.c.job_id, viewer))
    if job_id is not None:
        # A Job has few Trials, but a planner that sees the order and the limit walks the whole project.
        members = select(trials.c.id).where(trials.c.job_id == job_id)
        query = query.where(trials.c.id.in_(connection.execute(members).scalars().all()))
    if status is not None:
        states = [state for state, word in E_TRIAL_WORDS.items() if word == status]
        query = query.where(trials.c.state.in_(states))
        if status in _FEW:
            active = select(trials.c.id).where(trials.c.state.in_(states))
            query = query.where(trials.c.id.in_(connection.execute(active).scalars().all()))
    if before is not None:
        query = query.where(trials.c.id < before)
    return [trial_of(row) for row in connection.execute(query.order_by(trials.c.id.desc()).limit(limit))]


def attempts_of(connection: Connection, trial_ids: Collection[str]) -> dict[str, list[Attempt]]:
    """Attempts of these Trials, oldest first, by Trial id."""
    found: dict[str, list[Attempt]] = {trial_id: [] for trial_id in trial_ids}
    if trial_ids:
        for row in connection.execute(_ATTEMPTS_OF, {"wanted": list(trial_ids)}):
            found[row.trial_id].append(Attempt(*row))
    return found


def allocations_of(connection: Connection, trial_ids: Collection[str]) -> dict[str, list[Allocation]]:
    """Allocations of these Trials, oldest first, by Trial id."""
    found: dict[str, list[Allocation]] = {trial_id: [] for trial_id in trial_ids}
    if trial_ids:
        for row in connection.execute(_ALLOCATIONS_OF, {"wanted": list(trial_ids)}):
            found[row.trial_id].append(allocation_of(row))
    return found


def places_in_queue(connection: Connection, waiting: Collection[Trial]) -> dict[str, int]:
    """How many queued Trials go before each of these, plus one, by Trial id (promise P10)."""
    ordered = sorted(waiting, key=lambda trial: (trial.queue_rank, trial.id))
    if len(ordered) > 1:
        first, last = _place(connection, ordered[0]), _place(connection, ordered[-1])
        if last - first == len(ordered) - 1:
            # Nobody stands between them, as between the Trials of one Job: no need to count for each.
            return {trial.id: place for place, trial in enumerate(ordered, start=first)}
    return {trial.id: _place(connection, trial) for trial in ordered}


def _place(connection: Connection, trial: Trial) -> int:
    at = {"rank": trial.queue_rank, "trial": trial.id}
    return 1 + int(connection.execute(_BEFORE_IN_QUEUE, at).scalar_one())


def queue_order(connection: Connection) -> list[str]:
    """Ids of all queued Trials, the next one first."""
    rows = connection.execute(
        select(trials.c.id)
        .where(trials.c.state == State.QUEUED, trials.c.kind == "runner")
        .order_by(trials.c.queue_rank, trials.c.id),
    )
    return list(rows.scalars())


def count_by_state(connection: Connection) -> dict[str, int]:
    """How many Trials are in each non-terminal state (metrics)."""
    rows = connection.execute(
        select(trials.c.state, func.count())
        .where(trials.c.state.in_([*_WAITING, "preparing", "running", "collecting", "stopping"]))
        .group_by(trials.c.state),
    )
    return dict(rows.all())


def list_artifacts(
    connection: Connection, trial_id: str, *, after: str | None = None, limit: int = 100
) -> list[Artifact]:
    """Artifacts of a Trial by id, past the id ``after``."""
    query = select(artifacts).where(artifacts.c.trial_id == trial_id)
    if after is not None:
        query = query.where(artifacts.c.id > after)
    return [Artifact(*row) for row in connection.execute(query.order_by(artifacts.c.id).limit(limit))]


def get_artifact(connection: Connection, trial_id: str, artifact_id: str) -> Artifact:
    """The Artifact; raises `Refusal` ``ARTIFACT_NOT_FOUND``."""
    row = connection.execute(
        select(artifacts).where(artifacts.c.trial_id == trial_id, artifacts.c.id == artifact_id),
    ).first()
    if row is None:
        raise Refusal.of(
            "ARTIFACT_NOT_FOUND", f"the Trial has no artifact `{artifact_id[:80]}`", path="artifact_id"
        )
    return Artifact(*row)
