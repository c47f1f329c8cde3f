"""Packed projects on Ray clusters where something changes or fails while they wait or run."""

from __future__ import annotations

import shutil
import threading
from dataclasses import replace

import pytest

from support.cloud import runs
from support.clusters import far_catalog
from support.deployment import Crash, crashing_at
from trainshed.control.crashpoints import Point
from trainshed.control.training import placing
from trainshed.engines.contract import EngineError
from trainshed.engines.fake import Script
from trainshed.engines.providers.contract import Run
from trainshed.engines.providers.fake import RemoteWorld
from trainshed.engines.providers.ray import RayProvider
from trainshed.model.scripts.spec import RAY
from trainshed.model.states import AllocationState, State
from trainshed.model.training.catalog import Cluster, Engine
from trainshed.store import gangs, scripts

FOREVER = Script(run_seconds=None)
ELSEWHERE = "10.0.0.2:6379"


def moved():
    """The catalogue whose cluster is at another address."""
    known = far_catalog()
    far = Cluster("far", "local", Engine.RAY, ELSEWHERE)
    return replace(known, clusters=(known.clusters[0], far))


def without_far():
    known = far_catalog()
    return replace(known, clusters=known.clusters[:1], pools=known.pools[:1], quotas=known.quotas[:1])


def with_second():
    known = far_catalog()
    other = Cluster("other", "local", Engine.RAY, ELSEWHERE)
    return replace(known, clusters=(*known.clusters, other))


CHANGES = {"moved": moved, "gone": without_far, "not the only one": with_second}


@pytest.mark.parametrize("change", CHANGES)
def test_P5_what_runs_stays_with_the_cluster_that_it_runs_on_whatever_the_catalogue_becomes(ray, change):
    d = ray()
    job = d.pack()
    d.until(job, "running")
    d.change_catalog(CHANGES[change]())
    d.step()
    d.pass_time(5.0)
    d.step()
    assert d.tale(job).word == "running"
    tale = d.rest(job)
    assert (tale.word, len(tale.attempts)) == ("done", 1)
    assert d.outputs(job) == {"outputs/model.bin": b"weights"}
    assert d.held_there() == []
    assert not d.far.live()


@pytest.mark.parametrize("change", CHANGES)
def test_P6_a_stop_reaches_the_cluster_where_it_runs(ray, change):
    d = ray(course=FOREVER)
    job = d.pack()
    d.until(job, "running")
    d.change_catalog(CHANGES[change]())
    d.step()
    d.cancel(job)
    assert d.rest(job).word == "cancelled"
    assert not d.far.live()


def test_P6_where_nobody_can_ask_the_cluster_any_more_nothing_counts_as_released(ray):
    d = ray(course=FOREVER)
    job = d.pack()
    d.until(job, "running")
    d.catalog = moved()
    d.revision += 1
    d.boot()
    d.cancel(job)
    d.run_until(lambda: d.held_there()[0].state is AllocationState.LEAKED, pause=30.0)
    assert d.tale(job).word == "cancelled"
    d.change_catalog(far_catalog())
    d.run_until(lambda: not d.held_there(), pause=30.0)


@pytest.mark.parametrize("unknown", [True, False], ids=["no nodes yet", "does not answer"])
def test_it_never_starts_without_the_gpu_that_it_holds(ray, monkeypatch, unknown):
    d = ray(gpus=1)
    job = d.pack(gpu="H100")
    with crashing_at(Point.GANG_PLACE_AFTER_COMMIT), pytest.raises(Crash):
        d.rest(job)
    opened = d._open

    def open_blind(cluster):
        engine = opened(cluster)
        if unknown:
            monkeypatch.setattr(engine, "nodes", lambda: ())
        else:
            monkeypatch.setattr(engine, "nodes", fails)
        return engine

    def fails():
        raise EngineError("ENGINE_UNREACHABLE", "no answer", retryable=True)

    monkeypatch.setattr(d, "_open", open_blind)
    d.options["training"] = replace(d.options["training"], open_engine=open_blind)
    d.boot()
    for _ in range(5):
        d.pass_time(10.0)
        d.step()
    assert d.far.launched == {}
    monkeypatch.undo()
    tale = d.rest(job)
    assert tale.word == "done"
    assert all(len(launch.gpus) == 1 for launch in d.far.launched.values())


def cordon(d, node, gpu=None):
    d.database.write(
        lambda c: gangs.cordon(
            c, cluster="far", node=node, gpu=gpu, reason="hw", trial_id=None, at=d.now(), by="ann"
        )
    )


@pytest.mark.parametrize("gpu", [None, 0])
def test_a_cordoned_node_is_waited_for(ray, gpu):
    d = ray(gpus=1)
    d.step()
    cordon(d, "far1", gpu)
    d.step()
    d.pass_time(1000.0)
    d.step()
    job = d.pack(gpu="H100")
    d.step()
    d.pass_time(100.0)
    d.step()
    tale = d.tale(job)
    assert tale.look.trial.state is State.QUEUED, tale.look.script.message
    d.database.write(
        lambda c: [gangs.clear_cordon(c, each.id, at=d.now(), by="ann") for each in gangs.standing_cordons(c)]
    )
    assert d.rest(job, pause=30.0).word == "done"


@pytest.mark.parametrize("how", ["gone", "silent"])
def test_a_node_that_went_away_is_waited_for(ray, monkeypatch, how):
    d = ray(gpus=1, course=FOREVER)
    first = d.pack(gpu="H100")
    d.until(first, "running")

    def nodes():
        if how == "silent":
            raise EngineError("ENGINE_UNREACHABLE", "no answer", retryable=True)
        return ()

    monkeypatch.setattr(d.far, "nodes", nodes)
    if how == "gone":
        d.far.lose(d.tale(first).attempts[-1].attempt_id)
    for _ in range(30):
        d.pass_time(60.0)
        d.step()
    second = d.pack(gpu="H100")
    for _ in range(10):
        d.pass_time(30.0)
        d.step()
    monkeypatch.undo()
    assert d.tale(second).look.trial.state is State.QUEUED
    d.cancel(second)
    d.until(first, "running", pause=30.0)


def test_P10_one_that_waits_for_a_cluster_that_is_not_connected_says_so(ray):
    d = ray(gpus=1, course=FOREVER)
    first, second = d.pack(), d.pack()
    d.until(first, "running")
    d.step()
    assert d.tale(second).look.script.provider == RAY
    d.connected = False
    d.boot()
    for _ in range(10):
        d.pass_time(30.0)
        d.step()
    tale = d.tale(second)
    assert "not connected" in (tale.look.script.message or ""), tale.look.script.message
    assert d.tale(first).word == "running"
    d.connected = True
    d.cancel(first)
    d.until(second, "running", pause=30.0)


def test_a_first_start_without_the_cluster_waits_for_it(ray):
    d = ray()
    d.connected = False
    d.boot()
    job = d.pack(gpu="H100")
    d.step()
    d.pass_time(5.0)
    d.step()
    assert d.tale(job).look.trial.state is State.QUEUED, d.tale(job).look.script.message
    d.connected = True
    assert d.rest(job, pause=30.0).word == "done"


def test_P6_where_the_provider_is_switched_off_its_runs_count_as_lost_in_the_end_and_hold_what_they_have(ray):
    d = ray(course=FOREVER, catalog_=far_catalog(2, ondemand=10))
    job = d.pack()
    d.until(job, "running")
    d.provider = False
    d.boot()
    d.controller._swept = float("-inf")
    d.step()
    assert d.far.live(), "a sweep ends nothing that a row knows"
    d.run_until(lambda: len(d.tale(job).attempts) and d.tale(job).word != "running", pause=60.0)
    tale = d.tale(job)
    assert tale.attempts[0].state == "abandoned"
    assert "no provider ray any more" in " ".join(each.message for each in tale.events)
    d.run_until(lambda: d.held_there()[0].state is AllocationState.LEAKED, pause=60.0)
    small, task = d.far_task(), d.far_task()
    d.until_running(small)
    assert d.trial(task).state is State.QUEUED, "one of the GPUs is not proven free"
    d.cancel(job)
    d.provider = True
    d.boot()
    d.run_until(lambda: d.trial(task).state is State.RUNNING, pause=60.0)


def test_one_whose_data_takes_long_to_its_node_is_not_given_up_before_the_engine_does(ray):
    d = ray(course=Script(start_after=3500.0, run_seconds=60.0))
    job = d.pack()
    tale = d.rest(job, pause=60.0)
    assert (tale.word, len(tale.attempts)) == ("done", 1)


def _brought(top):
    return {
        path.relative_to(top).as_posix(): path.read_bytes()
        for name in ("outputs", "checkpoints")
        for path in (top / name).rglob("*")
        if path.is_file()
    }


def test_what_is_brought_is_what_lies_there_now_whatever_an_earlier_copy_left(ray, tmp_path):
    d = ray(course=FOREVER)
    job = d.pack()
    d.until(job, "running")
    run = Run(d.tale(job).attempts[-1].attempt_id)
    provider = RayProvider(None, lambda: d.far, lambda _: pytest.fail("asked for a room"), d.far.nodes)
    work, into = d.far.work_directory(run.ref), tmp_path / "into"
    into.mkdir()

    def write(**files):
        for name in ("outputs", "checkpoint_store"):
            shutil.rmtree(work / name, ignore_errors=True)
        for path, data in files.items():
            place = work / path.replace("__", "/")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)

    write(outputs__a__b=b"1", outputs__c=b"2", checkpoint_store__s1__x=b"3", outputs__checkpoints=b"4")
    provider.fetch(run, into)
    first = {"outputs/a/b": b"1", "outputs/c": b"2", "checkpoints/s1/x": b"3", "outputs/checkpoints": b"4"}
    assert _brought(into) == first
    # A folder becomes a file and a file a folder, and somebody put a file of their own there.
    write(outputs__a=b"5", outputs__c__d=b"6")
    (into / "outputs" / "mine").write_bytes(b"mine")
    provider.fetch_checkpoints(run, into)
    assert "checkpoints/s1/x" not in _brought(into)
    assert _brought(into)["outputs/c"] == b"2", "outputs are brought when they are asked for"
    fetched = provider.fetch(run, into)
    assert _brought(into) == {"outputs/a": b"5", "outputs/c/d": b"6", "outputs/mine": b"mine"}
    assert (fetched.files, fetched.bytes) == (2, 2)


def test_a_server_that_dies_while_files_are_brought_leaves_nothing_of_an_older_copy(
    ray, tmp_path, monkeypatch
):
    d = ray(course=FOREVER)
    job = d.pack()
    d.until(job, "running")
    run = Run(d.tale(job).attempts[-1].attempt_id)
    provider = RayProvider(None, lambda: d.far, lambda _: pytest.fail("asked for a room"), d.far.nodes)
    outputs, into = d.far.work_directory(run.ref) / "outputs", tmp_path / "into"
    into.mkdir()
    outputs.mkdir()
    (outputs / "old").write_bytes(b"1")
    provider.fetch(run, into)
    (outputs / "old").unlink()
    (outputs / "new").write_bytes(b"2")
    with monkeypatch.context() as dying:
        # The copy is complete, and nothing was made of it.
        dying.setattr("trainshed.engines.providers.ray._let_go", lambda *_: (_ for _ in ()).throw(Crash()))
        with pytest.raises(Crash):
            provider.fetch(run, into)
    provider.fetch(run, into)
    assert _brought(into) == {"outputs/new": b"2"}


def test_files_of_a_run_are_brought_by_one_at_a_time_and_checkpoints_do_not_wait(ray, monkeypatch):
    d = ray(course=FOREVER)
    job = d.pack()
    d.until(job, "running")
    attempt, fetcher = d.tale(job).attempts[-1], d.controller._scripts._fetcher
    entered, go, pulls = threading.Event(), threading.Event(), []

    def pull(_attempt, names, _into):
        pulls.append(list(names))
        entered.set()
        assert go.wait(60)
        return ()

    monkeypatch.setattr(d.far, "pull", pull)
    whole = threading.Thread(target=fetcher.files_of, args=(attempt,))
    whole.start()
    assert entered.wait(60)
    assert fetcher.files_of(attempt, live=True) is None
    go.set()
    whole.join(60)
    assert fetcher.files_of(attempt, live=True) is not None
    assert pulls == [["outputs", "checkpoint_store"], ["checkpoint_store"]]


def test_what_runs_elsewhere_keeps_no_task_and_no_packed_project_from_a_cluster(ray):
    d = ray(
        course=FOREVER,
        clouds={"kaggle": RemoteWorld(course=runs(None))},
        catalog_=far_catalog(2, ondemand=10),
    )
    there = d.pack(provider="kaggle")
    d.run_until(lambda: d.tale(there).attempts)
    here, task = d.pack(provider="ray"), d.far_task()
    d.until(here, "running")
    d.until_running(task)
    assert d.tale(there).word in {"provisioning", "running"}, "it holds its place at Kaggle meanwhile"
    assert d.tale(here).word == "running"
    assert d.trial(task).state is State.RUNNING


def test_P5_one_that_was_routed_elsewhere_since_the_pass_looked_is_not_placed(ray, monkeypatch):
    d = ray(course=FOREVER)
    decide, rerouted = placing.decide, []

    def late(*known, **options):
        decided = decide(*known, **options)
        for admission in decided.admissions if not rerouted else ():
            rerouted.append(admission.id)
            d.database.write(lambda c, job=admission.id: scripts.change(c, job, {"provider": "elsewhere"}))
        return decided

    monkeypatch.setattr(placing, "decide", late)
    job = d.pack()
    d.run_until(lambda: rerouted)
    assert rerouted == [job]
    assert (d.tale(job).attempts, d.held_there()) == ([], [])


def test_P5_a_pass_that_did_not_know_what_holds_nodes_is_made_again(ray, monkeypatch):
    d = ray(course=FOREVER, catalog_=far_catalog(2, ondemand=10))
    d.until(d.pack(), "running")
    decide, forgot = placing.decide, []

    def forgetful(*known, **options):
        if not forgot:
            forgot.append(True)
            d.controller._gangs._placer.guests.held.clear()
        return decide(*known, **options)

    monkeypatch.setattr(placing, "decide", forgetful)
    d.until_running(d.far_task())
    assert forgot


def test_the_hours_that_one_waited_in_the_clusters_queue_do_not_end_it_once_it_is_routed_anew(ray):
    d = ray(gpus=1, course=FOREVER, catalog_=far_catalog(1))
    d.until(d.pack(), "running")
    d.connected = False
    d.boot()
    d.step()
    job = d.pack(gpu="H100")
    d.step()
    d.pass_time(120.0)
    d.step()
    assert d.tale(job).look.script.waiting_since is not None
    d.connected = True
    d.run_until(lambda: d.tale(job).look.script.provider == RAY, pause=30.0)
    d.pass_time(7 * 3600.0)
    d.change_catalog(far_catalog(0))
    d.run_until(lambda: d.tale(job).look.script.provider is None, pause=10.0)
    d.pass_time(10.0)
    d.step()
    assert d.tale(job).look.trial.state is State.QUEUED, d.tale(job).look.script.message


@pytest.mark.parametrize("gpu", [None, "H100"])
def test_a_project_without_quota_waits_for_one_and_is_told_so_whatever_gpu_it_asks_for(ray, gpu):
    d = ray(catalog_=far_catalog(0))
    d.step()
    job = d.pack(gpu=gpu)
    d.step()
    tale = d.tale(job)
    assert tale.look.trial.state is State.QUEUED
    assert tale.look.script.message == "waits: ray: this project has no quota of its own on cluster far"
    d.change_catalog(far_catalog(1))
    assert d.rest(job, pause=30.0).word == "done"


def test_outputs_are_waited_for_while_the_cluster_does_not_answer(ray, monkeypatch):
    d = ray()
    job = d.pack()
    d.until(job, "running")

    def silent(*_):
        raise EngineError("ENGINE_UNREACHABLE", "no answer", retryable=True)

    monkeypatch.setattr(d.far, "pull", silent)
    for _ in range(20):
        d.pass_time(60.0)
        d.step()
    tale = d.tale(job)
    assert tale.look.trial.state is State.COLLECTING
    assert d.held_there()
    d.boot()
    assert d.rest(job, pause=30.0).word == "done"
    assert d.outputs(job) == {"outputs/model.bin": b"weights"}


def test_outputs_that_nobody_can_have_end_the_wait_at_once(ray, monkeypatch):
    d = ray()
    job = d.pack()
    d.until(job, "running")

    def gone(*_):
        raise EngineError("ATTEMPT_GONE", "its node is gone", retryable=False)

    monkeypatch.setattr(d.far, "pull", gone)
    d.pass_time(60.0)
    d.step()
    d.step()
    assert d.tale(job).word == "done"
    assert d.outputs(job) == {}


def test_who_stops_a_job_does_not_wait_for_hours_for_what_it_wrote(ray, monkeypatch):
    d = ray(course=FOREVER)
    job = d.pack()
    d.until(job, "running")

    def silent(*_):
        raise EngineError("ENGINE_UNREACHABLE", "no answer", retryable=True)

    monkeypatch.setattr(d.far, "pull", silent)
    asked = d.now()
    d.cancel(job)
    assert d.rest(job).word == "cancelled"
    assert d.now() - asked < 600
