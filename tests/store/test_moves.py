"""Trials move only as the table allows, with their events, and a Job's status follows from its Trials."""

from __future__ import annotations

import itertools
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.examples import examples
from support.rows import add_job, add_project, allocation, job_of, trials_of
from trainshed.model.states import ACTIVE, MOVES, TERMINAL, WAITING, ImpossibleMove, OutputStatus, State
from trainshed.store import attempts, events, jobs, moves, queue, tables
from trainshed.store.attempts import End, Start
from trainshed.store.moves import Move

S = State


def move(trial, after, **values):
    return Move(trial, trial.state, after, "TEST", f"{trial.name} goes on to {after}.", values)


def make(database, trial, *states, at=50.0):
    """Move a Trial through ``states``; the Trial as it is then."""
    for state in states:
        [made] = database.write(
            lambda c, t=trial, s=state: moves.apply(c, [move(t, s)], at=at, actor="controller")
        )
        trial = replace(made.trial, state=made.after)
    return trial


def test_a_move_changes_the_trial_and_its_job_and_leaves_an_event(database):
    add_project(database)
    job, [trial] = add_job(database)
    made = database.write(
        lambda c: moves.apply(c, [move(trial, S.PREPARING, launch_failures=2)], at=60.0, actor="controller")
    )
    assert [m.after for m in made] == [S.PREPARING]
    [now] = trials_of(database, job)
    assert (now.state, now.updated_at, now.launch_failures) == (S.PREPARING, 60.0, 2)
    assert job_of(database, job).status == "running"
    with database.read() as connection:
        *_, last = events.of_job(connection, job.id)
    assert (last.trial_id, last.before, last.after, last.actor, last.code) == (
        trial.id,
        "queued",
        "preparing",
        "controller",
        "TEST",
    )


def test_a_move_from_a_state_that_the_trial_left_is_not_made(database):
    """The second of two that decided from the same row loses and changes nothing."""
    add_project(database)
    job, [trial] = add_job(database)
    make(database, trial, S.PREPARING)
    late = database.write(lambda c: moves.apply(c, [move(trial, S.FAILED)], at=70.0, actor="controller"))
    assert late == []
    [now] = trials_of(database, job)
    assert (now.state, now.updated_at) == (S.PREPARING, 50.0)
    with database.read() as connection:
        assert events.count_of_job(connection, job.id) == 3


def test_of_many_concurrent_moves_from_one_state_exactly_one_is_made(database):
    add_project(database)
    _, [trial] = add_job(database)
    barrier = threading.Barrier(8)

    def race(number: int) -> int:
        barrier.wait(20)
        after = S.PREPARING if number % 2 else S.FAILED
        made = database.write(lambda c: moves.apply(c, [move(trial, after)], at=60.0, actor=f"c{number}"))
        return len(made)

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(race, range(8))) == 1


def test_an_impossible_move_is_refused_before_anything_changes(database):
    add_project(database)
    job, [first, second] = add_job(database, trials=2)
    with pytest.raises(ImpossibleMove):
        database.write(
            lambda c: moves.apply(
                c, [move(first, S.PREPARING), move(second, S.SUCCEEDED)], at=60.0, actor="controller"
            )
        )
    assert [t.state for t in trials_of(database, job)] == [S.QUEUED, S.QUEUED]


def test_events_of_a_job_are_read_in_the_order_in_which_they_happened_under_concurrency(database):
    """Whoever saw event N has seen all before it: ids follow the order of commits within a Job."""
    add_project(database)
    job, trials = add_job(database, trials=8)
    seen: list[int] = []
    done = threading.Event()

    def follow() -> None:
        while True:
            last = done.is_set()
            with database.read() as connection:
                seen.extend(e.id for e in events.of_job(connection, job.id, after=seen[-1] if seen else 0))
            if last:
                return

    with ThreadPoolExecutor(9) as pool:
        reader = pool.submit(follow)
        try:
            list(pool.map(lambda t: make(database, t, S.PREPARING, S.RUNNING, S.COLLECTING), trials))
        finally:
            done.set()
        reader.result(20)
    with database.read() as connection:
        everything = [event.id for event in events.of_job(connection, job.id)]
    assert seen == everything == sorted(everything)
    assert len(everything) == 1 + 8 + 8 * 3


def test_finished_at_is_the_time_of_the_last_trial_and_stays(database):
    add_project(database)
    job, [first, second] = add_job(database, trials=2)
    make(database, first, S.FAILED, at=70.0)
    assert job_of(database, job).finished_at is None
    make(database, second, S.FAILED, at=80.0)
    assert job_of(database, job).finished_at == 80.0
    stopped = database.write(lambda c: moves.accept_stop(c, job.id, trial_id=None, at=90.0, actor="human:me"))
    assert stopped == job_of(database, job)
    assert (stopped.status, stopped.finished_at, stopped.updated_at) == ("failed", 80.0, 80.0)


# Stopping


def stop(database, job, trial=None, at=65.0):
    return database.write(
        lambda c: moves.accept_stop(c, job.id, trial_id=trial.id if trial else None, at=at, actor="human:me")
    )


def test_E76_stopping_a_job_cancels_what_waits_and_asks_what_runs_to_end(database):
    add_project(database)
    job, [_, running, done] = add_job(database, trials=3)
    make(database, running, S.PREPARING, S.RUNNING)
    make(database, done, S.PREPARING, S.RUNNING, S.COLLECTING, S.SUCCEEDED)
    answered = stop(database, job)
    assert answered.status == "stopping"
    now = trials_of(database, job)
    assert [t.state for t in now] == [S.CANCELLED, S.STOPPING, S.SUCCEEDED]
    assert now[0].output_status is OutputStatus.NONE
    assert now[0].finished_at == 65.0
    make(database, replace(running, state=S.STOPPING), S.CANCELLED)
    assert job_of(database, job).status == "cancelled"


def test_a_second_stop_changes_nothing(database):
    add_project(database)
    job, [_, running] = add_job(database, trials=2)
    make(database, running, S.PREPARING, S.RUNNING)
    stop(database, job)
    trials, count = trials_of(database, job), _events(database, job)
    again = stop(database, job, at=99.0)
    assert again.stop_accepted_at == 65.0
    assert trials_of(database, job) == trials
    assert _events(database, job) == count


def test_A14_stopping_one_trial_leaves_its_siblings_and_the_job_alone(database):
    add_project(database)
    job, [first, second] = add_job(database, trials=2)
    answered = stop(database, job, first)
    assert [t.state for t in trials_of(database, job)] == [S.CANCELLED, S.QUEUED]
    assert (answered.status, answered.stop_accepted_at) == ("running", None)
    make(database, second, S.PREPARING, S.RUNNING, S.COLLECTING, S.SUCCEEDED)
    assert job_of(database, job).status == "cancelled"


def test_a_stop_that_meets_a_start_lets_exactly_one_of_them_go_first(database):
    """Either the Trial never held anything, or it is stopping with what it holds."""
    add_project(database)
    for attempt in range(10):
        job, [trial] = add_job(database, f"r-{attempt}")
        barrier = threading.Barrier(2)

        def start(trial=trial, barrier=barrier):
            barrier.wait(20)
            return database.write(
                lambda c: moves.apply(c, [move(trial, S.PREPARING)], at=66.0, actor="controller")
            )

        def halt(job=job, barrier=barrier):
            barrier.wait(20)
            return stop(database, job)

        with ThreadPoolExecutor(2) as pool:
            started, stopped = pool.submit(start), pool.submit(halt)
            made, _ = started.result(30), stopped.result(30)
        [now] = trials_of(database, job)
        assert now.state is (S.STOPPING if made else S.CANCELLED)


def _events(database, job):
    with database.read() as connection:
        return events.count_of_job(connection, job.id)


# The Job's word, against a model


def word(states, stopped):
    """Contract E b12, written once more from its text."""
    if not all(state in TERMINAL for state in states):
        if stopped:
            return "stopping"
        return "queued" if all(state in WAITING for state in states) else "running"
    if stopped:
        return "cancelled"
    if any(state is S.FAILED for state in states):
        return "failed"
    if any(state in {S.CANCELLED, S.DENIED} for state in states):
        return "cancelled"
    return "completed"


ACTIONS = st.lists(
    st.tuples(
        st.integers(0, 2), st.one_of(st.sampled_from(list(State)), st.just("stop"), st.just("stop job"))
    ),
    max_size=25,
)
numbers = iter(range(10**9))


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions=ACTIONS)
def test_the_status_of_a_job_follows_from_its_trials_whatever_happens(database, actions):
    with database.read() as connection:
        known = connection.execute(tables.projects.select()).first()
    if not known:
        add_project(database)
    job, _ = add_job(database, f"h-{next(numbers)}", trials=3)
    states, stopped, expected_events = [S.QUEUED] * 3, False, 4
    for number, action in actions:
        trials = trials_of(database, job)
        if action in {"stop", "stop job"}:
            targets = range(3) if action == "stop job" else [number]
            live = [n for n in targets if states[n] not in TERMINAL]
            stopped = stopped or (action == "stop job" and bool(live))
            for n in live:
                if states[n] is not S.STOPPING:
                    held = states[n] in ACTIVE
                    states[n] = S.STOPPING if held else S.CANCELLED
                    expected_events += 1 if held else 2
            stop(database, job, None if action == "stop job" else trials[number])
        elif action in MOVES[states[number]]:
            make(database, trials[number], action)
            states[number] = action
            expected_events += 1
        now = job_of(database, job)
        assert [t.state for t in trials_of(database, job)] == states
        assert now.status == word(states, stopped)
        assert (now.finished_at is not None) == all(s in TERMINAL for s in states)
    with database.read() as connection:
        story = events.of_job(connection, job.id)
    assert len(story) == expected_events
    for trial, state in zip(trials_of(database, job), states, strict=True):
        chain = [e for e in story if e.trial_id == trial.id]
        assert chain[0].after == "queued"
        assert all(a.after == b.before for a, b in itertools.pairwise(chain))
        assert chain[-1].after == state


# Attempts, allocations, artifacts


def test_an_attempt_its_replica_and_its_allocation_are_recorded_together(database):
    add_project(database)
    _, [trial] = add_job(database)
    held = allocation(trial)
    database.write(lambda c: attempts.open_all(c, [(held, 1)]))
    with database.read() as connection:
        assert jobs.allocations_of(connection, [trial.id])[trial.id] == [held]
        [attempt] = jobs.attempts_of(connection, [trial.id])[trial.id]
        assert queue.newest_attempts(connection, [trial.id]) == {trial.id: (held.attempt_id, 1)}
        assert queue.unreleased(connection) == [held]
    assert (attempt.id, attempt.number, attempt.started_at) == (held.attempt_id, 1, None)


def test_the_first_report_of_an_end_stays(database):
    add_project(database)
    _, [trial] = add_job(database)
    held = allocation(trial)
    database.write(lambda c: attempts.open_all(c, [(held, 1)]))
    database.write(lambda c: attempts.start_all(c, [Start(held.attempt_id, 21.0, {})]))

    def end(at, ended_by, code):
        database.write(lambda c: attempts.end_all(c, [End(held.attempt_id, at, ended_by, exit_code=code)]))

    end(30.0, "exit", 3)
    end(31.0, "stop", 143)
    with database.read() as connection:
        [attempt] = jobs.attempts_of(connection, [trial.id])[trial.id]
        replica = connection.execute(tables.replicas.select()).mappings().one()
    assert (attempt.started_at, attempt.ended_at, attempt.ended_by) == (21.0, 30.0, "exit")
    assert (replica["started_at"], replica["ended_at"], replica["exit_code"]) == (21.0, 30.0, 3)


def test_collecting_twice_leaves_one_artifact_a_name_with_its_first_id(database):
    add_project(database)
    _, [trial] = add_job(database)

    def put(artifact_id, state, sha256):
        row = {
            "id": artifact_id,
            "trial_id": trial.id,
            "name": "out/model.bin",
            "size": 7,
            "sha256": sha256,
            "upload_state": state,
            "created_at": 1.0,
        }
        database.write(lambda c: moves.put_artifacts(c, trial.id, [row]))

    put("art_1", "uploading", None)
    put("art_2", "uploaded", "c" * 64)
    with database.read() as connection:
        [artifact] = jobs.list_artifacts(connection, trial.id)
    assert (artifact.id, artifact.upload_state, artifact.sha256) == ("art_1", "uploaded", "c" * 64)


def test_charging_adds_up_under_concurrency(database):
    add_project(database)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: database.write(lambda c: queue.charge(c, "p", 2.5)), range(40)))
    with database.read() as connection:
        assert connection.execute(tables.projects.select()).mappings().one()["used_gpu_seconds"] == 100.0


def test_the_queue_knows_who_waits_who_runs_and_who_comes_before(database):
    add_project(database)
    _, [first, second, third] = add_job(database, trials=3)
    make(database, second, S.PREPARING)
    with database.read() as connection:
        assert [t.id for t in queue.queued_after(connection, "", 10)] == [first.id, third.id]
        assert [t.id for t in queue.queued_after(connection, first.id, 10)] == [third.id]
        assert [t.id for t in queue.active(connection)] == [second.id]
        assert queue.active(connection, "other") == []
        assert jobs.places_in_queue(connection, [first, third]) == {first.id: 1, third.id: 2}
        assert queue.queue_length(connection) == 2
        assert jobs.count_by_state(connection) == {"queued": 2, "preparing": 1}
        assert json.loads(first.tags) == first.tag_map
