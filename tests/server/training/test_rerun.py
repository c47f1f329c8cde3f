"""A task made again from its manifest: every field of both kinds, what the catalogue gives, who may."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from support.profiles import published
from support.site import Site
from trainshed.model.access import Permission
from trainshed.model.content import ContentKind
from trainshed.model.provenance import check_manifest, compare, rerun_request

CANARY = "canary-55d0c1"
BOTH: dict[str, Any] = {
    "labels": {"experiment": "one"},
    "public": True,
    "env": [
        {"name": "SEED", "value": "0"},
        {"name": "TOKEN", "value": CANARY, "hidden": True},
    ],
    "mounts": [
        {"type": "volume", "ref": "out", "mount_path": "/volume/out", "sub_path": "a"},
        {"type": "dataset", "ref": "words", "mount_path": "/mnt/words"},
    ],
    "workers": 1,
    "max_run_seconds": 3600,
    "priority": "low",
    "fault_tolerance": {"enabled": True, "max_resubmissions": 3},
    "alarms": [{"events": ["failed"], "channels": ["ops"]}],
}
PYTORCH = {
    **BOTH,
    "ssh": True,
    "exit_notice": {"enabled": True, "timeout_seconds": 60},
    "precheck": {"enabled": True, "env": [{"name": "PRE", "value": CANARY, "hidden": True}]},
}
RAY = {
    **BOTH,
    "kind": "ray",
    "instance": {"specs": ["c2m4"]},
    "head": {"instance": {"specs": ["c1m1"]}},
    "runtime_env_yaml": "env_vars: {A: b}\n",
    "debug": {"enabled": True, "retention_seconds": 60},
}
HIDDEN = {"pytorch": {"TOKEN": CANARY, "PRE": CANARY}, "ray": {"TOKEN": CANARY}}


def set_catalog(site: Site, words: str, region_name: str) -> None:
    document = site.get("/v1/catalog").json()["document"]
    document |= {
        "volumes": [{"id": "out", "path": str(site.data), "multi_writer": True}],
        "aliases": [{"id": "words", "type": "dataset", "ref": words}],
        "task_env": [{"project": "*", "name": "PLACE", "value": region_name}],
        "alarm_channels": [{"id": "ops", "type": "webhook", "url": f"https://hooks.example/{CANARY}"}],
    }
    answer = site.request("PUT", "/v1/catalog", {"document": document})
    assert answer.status_code == 200, answer.text


@pytest.fixture
def words(site: Site) -> str:
    """The digest of a Dataset that the catalogue calls `words`."""
    made = published(site, ContentKind.DATASETS, "team/words", {"a.txt": b"a"}, version="1")
    set_catalog(site, "team/words@1", "here")
    return made.manifest_sha256


def manifest(site: Site, job_id: str, key: str | None = None) -> dict[str, Any]:
    answer = site.get(f"/v1/jobs/{job_id}/manifest", key=key)
    assert answer.status_code == 200, answer.text
    assert CANARY not in answer.text
    return dict(check_manifest(answer.json()))


@pytest.mark.parametrize("fields", [PYTORCH, RAY], ids=["pytorch", "ray"])
def test_every_field_comes_back_and_content_stays_what_it_was(
    site: Site, words: str, submit: Callable[..., dict[str, Any]], fields: dict[str, Any]
):
    job = submit(**fields)
    before = manifest(site, job["job_id"])
    [trial] = before["trials"]
    places = {each["name"]: each for each in trial["task"]["spec"]["env"]}
    assert (places["PLACE"]["value"], places["PLACE"]["source"]) == ("here", "project")
    assert {each["role"]: each["manifest_sha256"] for each in trial["contents"]} == {
        "mount:/mnt/words": words
    }
    # The name means something else now, and the catalogue gives another value.
    published(site, ContentKind.DATASETS, "team/words", {"a.txt": b"b"}, version="2")
    set_catalog(site, "team/words@2", "there")
    hidden = HIDDEN[job["kind"]]
    answer = site.post("/v1/jobs", rerun_request(before, "again", hidden=hidden))
    assert answer.status_code == 201, answer.text
    assert answer.json()["name"] != job["name"]
    found = {each.path: each for each in compare(before, manifest(site, answer.json()["job_id"]))}
    assert {path: each.runs for path, each in found.items()} == {
        "trials[0].task.env[PLACE].value": True,
        "trials[0].task.mounts[/mnt/words].ref": False,
        "trials[0].task.catalog_revision": False,
    }
    place = found["trials[0].task.env[PLACE].value"]
    assert (place.before, place.after) == ("here", "there")
    twin = site.post("/v1/jobs", rerun_request(before, "again", hidden=hidden))
    assert (twin.status_code, twin.json()["job_id"]) == (200, answer.json()["job_id"])


def test_who_may_look_may_not_thereby_run_it_again(
    site: Site, submit: Callable[..., dict[str, Any]], person: Callable[..., str]
):
    owner, other = person("ada"), person("bob")
    mine = submit(owner)
    assert site.get(f"/v1/jobs/{mine['job_id']}/manifest", key=other).json()["code"] == "JOB_NOT_FOUND"
    before = manifest(site, mine["job_id"], owner)
    reader = person("cy", Permission.TRAINING_READ)
    refused = site.post("/v1/jobs", rerun_request(before, "cys"), key=reader)
    assert refused.json()["code"] == "PERMISSION_DENIED"
    made = site.post("/v1/jobs", rerun_request(before, "bobs"), key=other)
    assert made.status_code == 201, made.text
    [trial] = manifest(site, made.json()["job_id"], other)["trials"]
    assert trial["task"]["owner"] == "bob"
