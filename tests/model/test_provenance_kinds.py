"""Packed projects and training tasks in manifests: what a rerun asks for, and where two of them differ."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from trainshed.model.provenance import ManifestFault, check_manifest, compare, job_manifest, rerun_request
from trainshed.model.provenance_kinds import HiddenValuesWanted

OLD, NEW = "a" * 64, "b" * 64
TRIAL: dict[str, Any] = {
    "name": "t",
    "runner": {"name": "", "revision": "", "snapshot_sha256": "", "selector": "", "source_ref": None},
    "entrypoint": "",
    "command": "true",
    "params": {},
    "outputs": [],
    "tags": {},
    "image": {"requested": "torch", "resolved": "docker.io/a/b@sha256:1", "digest": "sha256:1"},
    "profile": None,
    "contents": [
        {
            "role": "mount:/mnt/d",
            "kind": "datasets",
            "name": "a/d",
            "version": "v1",
            "manifest_sha256": OLD,
        }
    ],
    "resources": dict.fromkeys(("gpu_type", "gpus", "cpus", "memory_mb", "storage_mb", "shm_mb"), 0),
    "timeout_seconds": 1,
    "resume_from": None,
    "task": {
        "spec": {
            "kind": "pytorch",
            "project": "team",
            "image": "example/torch:2",
            "workers": 1,
            "labels": {"a": "b"},
            "env": [
                {"name": "MINE", "value": "x", "hidden": False, "source": "task"},
                {"name": "KEY", "value": None, "hidden": True, "source": "task"},
                {"name": "THEIRS", "value": None, "hidden": True, "source": "project"},
            ],
            "mounts": [
                {"type": "dataset", "ref": "alias", "mount_path": "/mnt/d"},
                {"type": "volume", "ref": "vol", "mount_path": "/volume/v"},
            ],
            "precheck": {"env": [{"name": "KEY", "value": None, "hidden": True}]},
        },
        "totals": {"replicas": 2},
        "catalog_revision": 3,
    },
}


def frozen(**changes: Any) -> dict[str, Any]:
    """The frozen part of a task's manifest, with changes to its effective spec."""
    trial = copy.deepcopy(TRIAL)
    trial["task"]["spec"].update(changes)
    return made([trial])


def made(trials: list[dict[str, Any]]) -> dict[str, Any]:
    job = {"job_id": "job_1", "type": "train", "platform_version": "1"}
    document = job_manifest({"job": job, "request": {}, "runner_files": {}, "trials": trials}, {})
    return dict(check_manifest(document))


def test_a_task_is_submitted_again_with_image_and_content_by_digest():
    before = frozen()
    kept = copy.deepcopy(before)
    request = rerun_request(before, "again", hidden={"env.KEY": "one", "precheck.env.KEY": "two"})
    assert before == kept
    assert (request["type"], request["request_id"]) == ("train", "again")
    spec = request["spec"]
    assert "project" not in spec
    assert spec["image"] == "docker.io/a/b@sha256:1"
    assert [mount["ref"] for mount in spec["mounts"]] == [f"a/d@{OLD}", "vol"]
    assert spec["env"] == [
        {"name": "MINE", "value": "x", "hidden": False},
        {"name": "KEY", "value": "one", "hidden": True},
    ]
    assert spec["precheck"]["env"] == [{"name": "KEY", "value": "two", "hidden": True}]


def test_one_value_is_for_every_hidden_variable_of_its_name():
    spec = rerun_request(frozen(), "again", hidden={"KEY": "both"})["spec"]
    assert [spec["env"][1]["value"], spec["precheck"]["env"][0]["value"]] == ["both", "both"]


@pytest.mark.parametrize(
    ("hidden", "missing", "unknown"),
    [
        ({}, ["env.KEY", "precheck.env.KEY"], []),
        ({"env.KEY": "1"}, ["precheck.env.KEY"], []),
        ({"KEY": "1", "THEIRS": "2", "MINE": "3"}, [], ["THEIRS", "MINE"]),
    ],
)
def test_hidden_values_that_lack_or_that_nothing_needs_are_named(hidden, missing, unknown):
    with pytest.raises(HiddenValuesWanted) as caught:
        rerun_request(frozen(), "again", hidden=hidden)
    assert (caught.value.missing, caught.value.unknown) == (missing, unknown)


def test_differences_of_tasks_say_which_of_them_run():
    after = frozen(workers=2, labels={"a": "c"}, project="other", image="docker.io/a/b@sha256:1")
    after["trials"][0]["name"] = "another-name"
    after["trials"][0]["contents"][0]["manifest_sha256"] = NEW
    after["trials"][0]["task"]["catalog_revision"] = 4
    found = {each.path.removeprefix("trials[0]."): each.runs for each in compare(frozen(), after)}
    assert found == {
        "task.workers": True,
        "contents[mount:/mnt/d].manifest_sha256": True,
        "task.labels.a": False,
        "task.project": False,
        "task.image": False,
        "task.catalog_revision": False,
    }


def test_a_project_that_lies_elsewhere_or_was_packed_otherwise_runs_the_same():
    spec: dict[str, Any] = {
        "kind": "script",
        "project_dir": "/home/ada/p",
        "host": "one",
        "name": "n",
        "bundle": {"manifest_sha256": OLD, "included": ["a"], "warnings": [], "source": "git"},
        "data": [{"mount": "d", "manifest_sha256": OLD, "path": "d"}],
        "args": ["--lr", "1"],
        "env": {"A": "b"},
    }
    plain = {key: value for key, value in TRIAL.items() if key != "task"}
    before = made([{**plain, "script": {"spec": spec, "source": "user"}}])
    assert rerun_request(before, "again")["spec"] == spec
    elsewhere = {**spec, "project_dir": "/x", "host": "two", "name": "m"}
    elsewhere["bundle"] = {"manifest_sha256": OLD, "included": [], "warnings": ["w"], "source": "walk"}
    elsewhere["data"] = [{"mount": "d", "manifest_sha256": OLD, "path": "/y"}]
    found = compare(before, made([{**plain, "script": {"spec": elsewhere, "source": "agent"}}]))
    assert found
    assert not any(each.runs for each in found)
    other = {**spec, "args": ["--lr", "2"], "env": {}}
    other["data"] = [{"mount": "d", "manifest_sha256": NEW, "path": "d"}]
    found = compare(before, made([{**plain, "script": {"spec": other, "source": "user"}}]))
    assert {each.path.removeprefix("trials[0].script."): each.runs for each in found} == {
        "args[1]": True,
        "env.A": True,
        "env": True,
        "data[d].manifest_sha256": True,
    }


def test_a_project_or_task_beside_other_trials_is_no_manifest():
    with pytest.raises(ManifestFault, match=r"`trials\[0\]` is a task, which is a Job by itself"):
        made([TRIAL, TRIAL])
