"""The catalogue changes under tasks that wait: they are `Misconfigured`, never admitted and never retried."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from support.gangs import POOL, SPECS, catalog, task
from trainshed.control.training.frozen import choices_of, class_of, spec_of, waiting_of
from trainshed.engines.fake import Script
from trainshed.model.states import State
from trainshed.model.training.catalog import ANY, ContentAlias, Pool, Volume
from trainshed.model.training.spec import Mount, MountType, ResourceType
from trainshed.policy.gangs.snapshot import GangReason, GangWait, Part, Plan
from trainshed.policy.gangs.words import sentence

NAMES = tuple(spec.name for spec in SPECS)


def _whole(tmp_path):
    alias = ContentAlias("corpus", MountType.DATASET, "ns/corpus@1")
    made = catalog(volumes=[Volume("scratch", (ANY,), str(tmp_path), multi_writer=True)])
    return replace(made, aliases=(alias,))


def _pool(**changes):
    return lambda whole: replace(whole, pools=(replace(whole.pools[0], **changes),))


MOUNTS = (
    Mount(MountType.VOLUME, "scratch", "/volume/out"),
    Mount(MountType.DATASET, "corpus", "/volume/in"),
)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param(_pool(specs=NAMES[1:]), "pool default no longer offers the spec h100x1", id="spec"),
        pytest.param(
            lambda whole: replace(whole, instance_specs=SPECS[1:], pools=(Pool(POOL, "local", NAMES[1:]),)),
            "pool default no longer offers the spec h100x1",
            id="spec-of-the-catalogue",
        ),
        pytest.param(
            _pool(resource_types=(ResourceType.IDLE,)), "pool default no longer offers ondemand", id="type"
        ),
        pytest.param(_pool(id="other"), "there is no pool default in cluster local any more", id="pool"),
        pytest.param(lambda w: replace(w, volumes=()), "there is no volume scratch", id="volume"),
        pytest.param(lambda w: replace(w, aliases=()), "there is no dataset corpus", id="alias"),
        pytest.param(
            lambda w: replace(w, allow_host_image=()), "`host` is not allowed on cluster local", id="image"
        ),
    ],
)
def test_c2_a_waiting_task_whose_catalogue_went_is_misconfigured_and_says_what_is_gone(
    site, tmp_path, change, said
):
    d = site(default=Script(run_seconds=1.0), catalog_=_whole(tmp_path))
    blocker = [d.create(task(specs=["h100x4"])) for _ in range(2)]
    d.step()
    d.members(blocker[0], run_seconds=None)
    d.members(blocker[1], run_seconds=None)
    job = d.create(task(mounts=MOUNTS))
    d.step()
    whole = d.catalog
    d.change_catalog(change(whole))
    for each in blocker:
        d.stop(each)
        d.settle(each)
    for _ in range(5):
        d.step()
    assert d.trial(job).state is State.QUEUED
    assert d.attempts(job) == []
    key = class_of(d.task(job), d.catalog)
    blocked, unblock = sentence(key, GangReason(GangWait.MISCONFIGURED))
    assert key.held is GangWait.MISCONFIGURED
    assert said in blocked
    assert "puts it back" in unblock
    d.change_catalog(whole)
    assert class_of(d.task(job), d.catalog).held is None


def test_c2_once_the_catalogue_has_it_again_the_task_starts(site, tmp_path):
    d = site(default=Script(run_seconds=1.0))
    whole = d.catalog
    d.change_catalog(replace(whole, pools=(Pool(POOL, "local", NAMES[1:]),)))
    job = d.create()
    d.step()
    assert d.attempts(job) == []
    d.change_catalog(whole)
    assert d.settle(job).trial.state is State.SUCCEEDED


def test_C22_a_task_goes_on_with_those_of_its_specs_that_are_left_and_without_an_old_plan(site):
    d = site()
    job = d.create(task(specs=["h100x1", "h100x2"]))
    spec, found, whole = spec_of(d.task(job)), d.task(job), d.catalog
    part = Part(0, choices_of(spec, whole)[0].needs[0].role, "n1", (0,), "h100x1", 1, SPECS[0].amounts())
    planned = replace(found, plan=json.dumps(Plan(0, (part,), (), 0.0, 1.0).as_dict()))
    assert waiting_of(d.trial(job), planned, whole).plan is not None
    fewer = replace(whole, pools=(Pool(POOL, "local", NAMES[1:]),))
    after = waiting_of(d.trial(job), planned, fewer)
    assert after.key.held is None
    assert [choice.needs[0].spec for choice in after.key.choices] == ["h100x2"]
    assert after.plan is None


def test_c2_a_volume_that_goes_while_its_task_starts_is_no_endless_retry(site, tmp_path):
    place = tmp_path / "not-there"
    d = site(catalog_=catalog(volumes=[Volume("scratch", (ANY,), str(place), multi_writer=True)]))
    job = d.create(task(mounts=MOUNTS[:1]))
    d.step()
    assert d.trial(job).state is State.QUEUED
    assert "(1 of 20 in a row)" in d.trial(job).error_message
    d.change_catalog(replace(d.catalog, volumes=()))
    later = d.now() + 60.0
    d.run_until(lambda: d.now() > later, pause=5.0)
    assert len(d.attempts(job)) == 1
    assert class_of(d.task(job), d.catalog).held is GangWait.MISCONFIGURED
