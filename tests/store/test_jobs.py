"""Jobs in the database: one for a request id, read back as they were accepted, page by page."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from sqlalchemy.exc import IntegrityError

from support.rows import IDS, add_job, add_project, as_row, job_of, new_job, trial_row
from trainshed.model.errors import Refusal
from trainshed.model.scripts.refs import SHORTEST
from trainshed.model.states import State
from trainshed.store import events, jobs, moves, tables


def accept(database, request_id, project_id="p"):
    """What every acceptance does: look, then insert, in one transaction."""
    job = new_job(request_id, project_id)
    rows = [trial_row(job)]

    def work(connection):
        there = jobs.find_by_request(connection, project_id, request_id)
        if there is not None:
            return there.id
        jobs.insert_job(connection, job, rows)
        return job.id

    return database.write(work)


def test_P2_one_request_id_names_one_job_however_many_submit_at_once(database):
    add_project(database)
    barrier = threading.Barrier(12)

    def submit(_):
        barrier.wait(20)
        return accept(database, "same")

    with ThreadPoolExecutor(12) as pool:
        ids = set(pool.map(submit, range(12)))
    assert len(ids) == 1
    with database.read() as connection:
        assert len(connection.execute(tables.jobs.select()).all()) == 1
        assert len(connection.execute(tables.trials.select()).all()) == 1


def test_P2_the_database_itself_refuses_a_second_job_under_a_request_id(database):
    add_project(database)
    add_job(database, "once")
    with pytest.raises(IntegrityError):
        add_job(database, "once")
    with database.read() as connection:
        assert len(connection.execute(tables.jobs.select()).all()) == 1


def test_the_same_request_id_in_another_project_is_another_job(database):
    add_project(database, "p")
    add_project(database, "q")
    assert accept(database, "same", "p") != accept(database, "same", "q")


def test_a_job_is_read_back_as_it_was_accepted(database):
    add_project(database)
    job, trials = add_job(database, "r", trials=16, canonical='{"a":"\\u00e9\\ud800"}')
    read = job_of(database, job)
    assert replace(read, digits="", short_id="") == job
    assert re.fullmatch(r"[0-9a-f]{12}", read.digits)
    assert read.digits.startswith(read.short_id)
    assert len(read.short_id) >= SHORTEST
    assert [trial.position for trial in trials] == list(range(16))
    assert {trial.state for trial in trials} == {State.QUEUED}
    with database.read() as connection:
        row = as_row(connection, tables.trials, id=trials[3].id)
    assert row["name"] == "trial-4"


def test_acceptance_is_the_first_thing_that_a_job_tells(database):
    add_project(database)
    job, trials = add_job(database, "r", trials=2)
    with database.read() as connection:
        first, *rest = events.of_job(connection, job.id)
    assert (first.code, first.trial_id, first.actor) == ("ACCEPTED", None, "human:test")
    assert [(e.code, e.trial_id, e.before, e.after) for e in rest] == [
        ("QUEUED", trial.id, None, "queued") for trial in trials
    ]


@pytest.mark.parametrize("number", [0, 1, 7])
def test_jobs_are_listed_newest_first_page_by_page_without_gaps_or_repeats(database, number):
    add_project(database)
    made = [add_job(database, f"r-{n}")[0].id for n in range(number)]
    walked: list[str] = []
    with database.read() as connection:
        before = None
        while page := jobs.list_jobs(connection, "p", before=before, limit=3):
            walked += [job.id for job in page]
            before = page[-1].id
        assert jobs.list_jobs(connection, "q") == []
    assert walked == made[::-1]


def test_jobs_and_trials_are_filtered_by_the_words_of_the_wire(database):
    add_project(database)
    _, [first, second] = add_job(database, "r-1", trials=2)
    add_job(database, "r-2")
    database.write(
        lambda c: moves.apply(
            c,
            [moves.Move(first, State.QUEUED, State.PREPARING, "X", "x")],
            at=1.0,
            actor="controller",
        )
    )
    with database.read() as connection:
        assert [j.request_id for j in jobs.list_jobs(connection, "p", status="running")] == ["r-1"]
        assert [j.request_id for j in jobs.list_jobs(connection, "p", status="queued")] == ["r-2"]
        assert [t.id for t in jobs.list_trials(connection, "p", status="preparing")] == [first.id]
        waiting = jobs.list_trials(connection, "p", status="queued", job_id=first.job_id)
        assert [t.id for t in waiting] == [second.id]


def test_other_projects_jobs_and_trials_are_not_there(database):
    add_project(database, "p")
    add_project(database, "q")
    job, [trial] = add_job(database, "r")
    with database.read() as connection:
        with pytest.raises(Refusal) as refused:
            jobs.get_job(connection, "q", job.id)
        assert refused.value.code == "JOB_NOT_FOUND"
        with pytest.raises(Refusal) as refused:
            jobs.get_trial(connection, "q", trial.id)
        assert refused.value.code == "TRIAL_NOT_FOUND"
        assert jobs.list_trials(connection, "q") == []


def test_artifacts_are_listed_page_by_page_and_found_only_with_their_trial(database):
    add_project(database)
    _, [trial, other] = add_job(database, "r", trials=2)
    rows = [
        {
            "id": IDS.artifact(),
            "trial_id": trial.id,
            "name": f"out/{n}",
            "size": 2**40 + n,
            "sha256": "0" * 64,
            "upload_state": "uploaded",
            "created_at": 1.0,
        }
        for n in range(5)
    ]
    database.write(lambda c: moves.put_artifacts(c, trial.id, rows))
    with database.read() as connection:
        first = jobs.list_artifacts(connection, trial.id, limit=3)
        rest = jobs.list_artifacts(connection, trial.id, after=first[-1].id)
        assert [a.name for a in first + rest] == [f"out/{n}" for n in range(5)]
        assert jobs.get_artifact(connection, trial.id, first[0].id).size == 2**40
        with pytest.raises(Refusal) as refused:
            jobs.get_artifact(connection, other.id, first[0].id)
    assert refused.value.code == "ARTIFACT_NOT_FOUND"


def test_events_are_paged_newest_first(database):
    add_project(database)
    job, _ = add_job(database, "r", trials=5)
    with database.read() as connection:
        page = events.newest_of_job(connection, job.id, limit=4)
        rest = events.newest_of_job(connection, job.id, before=page[-1].id, limit=4)
        assert [e.id for e in (*page, *rest)] == sorted((e.id for e in (*page, *rest)), reverse=True)
        assert len(page) + len(rest) == events.count_of_job(connection, job.id) == 6
