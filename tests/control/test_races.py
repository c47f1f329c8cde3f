"""People at other processes act while the controller's own threads run: nobody waits for anybody's cache."""

from __future__ import annotations

import random
import threading
from itertools import pairwise

import pytest

from support.deployment import FakeDeployment, person
from support.waiting import wait_until
from trainshed.control.accept import Acceptance
from trainshed.control.controller import Controller
from trainshed.control.stopping import accept_stop
from trainshed.engines.local import LocalEngine
from trainshed.model.ids import IdFactory
from trainshed.model.states import MOVES, TERMINAL, AllocationState, State
from trainshed.policy.effective import ServerPolicy
from trainshed.store.database import Database

pytestmark = pytest.mark.every_database
_POLICY = ServerPolicy(stop_grace_seconds=0.2)


@pytest.fixture
def elsewhere(database_url):
    """The same database as another process sees it: nothing tells the controller of its writes."""
    opened = Database(database_url)
    yield opened
    opened.close()


@pytest.fixture
def running(database, tmp_path):
    """Rows and content, and a controller on real programs with its own threads."""
    d = FakeDeployment(database, tmp_path)
    engine = LocalEngine(tmp_path / "local", simulate_gpus={"H100": 8})
    controller = Controller(database, engine, d.blobs, _POLICY, content=d.content(), poll_seconds=0.1)
    controller.start()
    assert controller.ready.wait(20)
    yield d
    controller.stop()
    engine.close()
    d.close()


def test_stops_from_another_process_at_any_moment_end_every_trial_once(running, elsewhere):
    """Before the placement, during the launch, while it runs, while outputs are collected, after the end."""
    d, chance = running, random.Random(11)
    script = 'mkdir out; echo x > out/f; eval "$TRAINSHED_PARAM_RUN_COMMAND"\n'
    selector = d.publish(script, outputs=["out/*"])
    ids = IdFactory()
    acceptance = Acceptance(elsewhere, d.blobs, _POLICY, ids._clock, ids)
    jobs: list[str] = []
    pause = threading.Event()

    def person_at_work(number: int) -> None:
        for turn in range(8):
            spec = {"runner": selector, "command": f"sleep 0.{chance.randrange(4)}"}
            document = {
                "type": "train",
                "request_id": f"{number}-{turn}",
                "trials": [{"name": name, "spec": spec} for name in "ab"],
            }
            job, _ = acceptance.accept(person(), document)
            jobs.append(job)
            pause.wait(chance.random() * 0.2)  # so that the stop meets every stage of a Trial's life
            accept_stop(elsewhere, job, trial_id=None, at=ids._clock(), actor="human:other")

    people = [threading.Thread(target=person_at_work, args=[number]) for number in range(4)]
    for each in people:
        each.start()
    for each in people:
        each.join(120)
    assert len(jobs) == 32
    wait_until(lambda: all(d.facts(job).settled for job in jobs), 60)
    for job in jobs:
        _one_life_each(d.facts(job))


def _one_life_each(facts):
    for trial in facts.trials:
        told = [event for event in facts.events if event.trial_id == trial.id]
        moved = [event for event in told if event.after is not None]
        assert moved[0].before is None
        for before, after in pairwise(moved):
            assert after.before == before.after
            assert State(after.after) in MOVES[State(after.before)]
        assert trial.state in TERMINAL
        held = facts.allocations[trial.id]
        assert len(held) <= 1
        assert all(one.state is AllocationState.RELEASED for one in held)
        assert [event.code for event in told].count("RELEASED") == len(held)
    assert facts.job.status in {"cancelled", "completed"}


def test_submissions_from_many_threads_and_processes_are_all_run_without_a_reload(running, elsewhere):
    """Trials are committed out of the order of their ids; none is overlooked, none runs twice."""
    d = running
    selector = d.publish("exit 0\n")
    doors = [
        Acceptance(each, d.blobs, _POLICY, ids._clock, ids)
        for each, ids in ((d.database, IdFactory()), (elsewhere, IdFactory()))
    ]
    jobs: list[str] = []

    def submit(number: int) -> None:
        for turn in range(10):
            document = {"type": "train", "request_id": f"{number}-{turn}", "spec": {"runner": selector}}
            jobs.append(doors[number % 2].accept(person(), document)[0])

    people = [threading.Thread(target=submit, args=[number]) for number in range(6)]
    for each in people:
        each.start()
    for each in people:
        each.join(120)
    assert len(jobs) == 60
    wait_until(lambda: all(d.facts(job).settled for job in jobs), 60)
    for job in jobs:
        facts = d.facts(job)
        _one_life_each(facts)
        assert facts.trial.state is State.SUCCEEDED
