"""Tasks of kind ray: head, workers and submitter as one gang, retention, shared storage (C19, C48-C50)."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from support.gangs import catalog, task
from trainshed.control.training import releasing
from trainshed.engines.contract import Report, Role
from trainshed.engines.fake import Script
from trainshed.model.states import AllocationState, State
from trainshed.model.training.catalog import ANY, Volume
from trainshed.model.training.spec import Debug, Kind, ResourceType, SharedStorage

FOREVER = Script(run_seconds=None)


def _ray(**changes):
    return task(kind=Kind.RAY, cmd="python main.py", workers=1, **changes)


@pytest.fixture
def stored(site, tmp_path):
    """A deployment with a shared volume, and the folder of that."""
    folder = tmp_path / "shared"
    folder.mkdir()
    volumes = [Volume("vol", (ANY,), str(folder), multi_writer=True)]
    return site(default=FOREVER, catalog_=catalog(volumes=volumes)), folder


def _driver_ends(d, job, code, until=None):
    said = [Report(0, 0.0, "DRIVER_ENDED", f"The driver ended with {code}.", data={"exit_code": code})]
    if until is not None:
        data = {"until": until, "exit_code": code, "url": "http://127.0.0.1:8265"}
        said.append(Report(0, 0.0, "RETAINING", "The cluster is kept.", data=data))
    d.members(job, [0], reports=tuple(said))


def test_C19_head_workers_and_submitter_are_one_gang(site):
    d = site(default=Script(run_seconds=5.0))
    job = d.create(_ray())
    d.step()
    assert [replica.role for replica in d.replicas(job)] == ["head", "worker", "submitter"]
    assert [part["units"] for part in d.parts(job)] == [1, 1, 0]
    launches = [d.world.attempts[unit].launch for unit in d.units(job)]
    assert [launch.gang.role for launch in launches] == [Role.HEAD, Role.WORKER, Role.SUBMITTER]
    for launch in launches:
        assert launch.env["TASK_UUID"] == d.task(job).task_uuid
        assert "MASTER_ADDR" not in launch.env
    facts = d.settle(job)
    assert facts.trial.state is State.SUCCEEDED
    assert not (d.root / "gangs").exists() or not any((d.root / "gangs").iterdir())


def test_c8_the_driver_decides(site):
    d = site(default=FOREVER)
    job = d.create(_ray())
    d.until(job, State.RUNNING)
    _driver_ends(d, job, 3)
    d.members(job, [2], run_seconds=0.0, code=3)
    facts = d.settle(job)
    assert (facts.trial.state, facts.trial.exit_code) == (State.FAILED, 3)
    assert d.attempts(job)[0].failed_rank == 2


@pytest.mark.parametrize("code", [0, 4])
def test_C50_the_cluster_is_kept_and_charged_for_a_while(site, code):
    d = site(default=FOREVER)
    job = d.create(_ray(debug=Debug(enabled=True, retention_seconds=600)))
    d.until(job, State.RUNNING)
    begun = d.now()
    _driver_ends(d, job, code, until=begun + 600.0)
    d.until(job, State.COLLECTING)
    assert (d.task(job).stage, d.task(job).retained_until) == ("retaining", begun + 600.0)
    assert "RETAINING" in d.facts(job).codes()
    d.pass_time(590.0)
    d.step()
    assert d.trial(job).state is State.COLLECTING
    assert d.unreleased()[0].state is AllocationState.HELD
    facts = d.settle(job)
    assert facts.trial.state is (State.FAILED if code else State.SUCCEEDED)
    assert d.project().used_gpu_seconds >= 600.0 * 2


def test_C50_a_stop_ends_it_at_once_and_the_result_stays(site):
    d = site(default=FOREVER)
    job = d.create(_ray(debug=Debug(enabled=True)))
    d.until(job, State.RUNNING)
    begun = d.now()
    _driver_ends(d, job, 0, until=begun + 600.0)
    d.until(job, State.COLLECTING)
    d.operations.stop(d.viewer(), job, at=d.now(), actor="human:ann")
    assert d.settle(job).trial.state is State.SUCCEEDED
    assert d.now() - begun < 120.0


def test_C50_who_needs_the_place_of_a_kept_cluster_gets_it_and_the_result_stays(site):
    d = site(default=FOREVER)
    spot = {"resource_type": ResourceType.SPOT, "specs": ["h100x4"]}
    job = d.create(_ray(debug=Debug(enabled=True, retention_seconds=80_000), **spot))
    d.until(job, State.RUNNING)
    _driver_ends(d, job, 0, until=d.now() + 80_000.0)
    d.until(job, State.COLLECTING)
    d.pass_time(700.0)
    winner = d.create(task(resource_type=ResourceType.RESERVED, specs=["h100x4"]))
    d.until(winner, State.RUNNING)
    assert d.facts(job).trial.state is State.SUCCEEDED
    assert "PREEMPTED" in d.facts(job).codes()


def test_C50_a_deletion_ends_it_at_once(site):
    d = site(default=FOREVER)
    job = d.create(_ray(debug=Debug(enabled=True)))
    d.until(job, State.RUNNING)
    begun = d.now()
    _driver_ends(d, job, 0, until=begun + 600.0)
    d.until(job, State.COLLECTING)
    d.delete(job)
    d.run_until(lambda: not d.engine.live())
    assert d.now() - begun < 120.0


def test_C49_only_this_tasks_data_is_deleted_after_everything_else(stored):
    d, folder = stored
    job = d.create(_ray(shared_storage=SharedStorage("vol", cleanup=True)))
    kept = d.create(_ray(shared_storage=SharedStorage("vol", cleanup=False)))
    d.until(kept, State.RUNNING)
    mine, other = (folder / "ray" / d.task(each).task_uuid for each in (job, kept))
    (mine / "deep").mkdir(parents=True)
    (mine / "deep" / "data").write_text("x")
    (mine / "out").symlink_to(other)
    (other / "data").write_text("y")
    for each in (job, kept):
        d.members(each, [2], run_seconds=0.0)
    facts = d.settle(job)
    d.settle(kept)
    assert not mine.exists()
    assert (other / "data").read_text() == "y"
    codes = facts.codes()
    assert codes.index("FINISHED") < codes.index("CLEANED")
    assert "CLEANED" not in d.facts(kept).codes()


def test_C49_a_failed_cleanup_is_tried_again_and_holds_no_gpu(stored, monkeypatch):
    d, _ = stored
    job = d.create(_ray(shared_storage=SharedStorage("vol", cleanup=True)))
    d.until(job, State.RUNNING)
    failing = [True]
    clean = releasing.ray_roles.clean_shared_folder

    def cleaning(volume, uuid):
        if failing[0]:
            raise OSError("the volume does not answer")
        clean(volume, uuid)

    monkeypatch.setattr(releasing.ray_roles, "clean_shared_folder", cleaning)
    d.members(job, [2], run_seconds=0.0)
    d.run_until(lambda: "CLEANUP_FAILED" in d.facts(job).codes())
    for _ in range(5):
        d.pass_time(60.0)
        d.step()
    [held] = d.unreleased()
    assert held.state is not AllocationState.RELEASED
    assert json.loads(held.parts) == []
    other = d.create(task(workers=1, specs=["h100x4"]))
    d.until(other, State.RUNNING)
    failing[0] = False
    d.run_until(lambda: d.facts(job).settled, pause=60.0)
    assert d.facts(job).codes().count("CLEANUP_FAILED") == 1
    assert d.facts(job).codes()[-2:] == ["CLEANED", "RELEASED"]


def test_C33_a_ray_task_is_resubmitted_as_a_whole(site):
    d = site(default=Script(run_seconds=None))
    job = d.create(_ray(tries=1))
    d.until(job, State.RUNNING)
    unit = d.units(job)[1]
    d.engine.script(unit, replace(d.world.attempts[unit].script, run_seconds=100.0, code=1))
    d.run_until(lambda: len(d.attempts(job)) == 2, pause=10.0)
    assert [a.cause for a in d.attempts(job)] == ["initial", "auto_failure"]
    assert len(d.replicas(job)) == 3
