"""Datasets of a Job (G54 to G58, e.11)."""

from __future__ import annotations

import os

import pytest

from support.fake_server import FakeServer, Reply
from support.projects import Uploads, packed, refusal, warned, write
from trainshed.sdk.packing import prepare


def trees(found):
    """What each dataset holds, read back from what was uploaded."""
    server = Uploads()
    found.upload(server)
    return {
        item["mount"]: server.tree(item["manifest_sha256"]) for item in found.spec["data"] if not item["uri"]
    }


def test_G54_to_G56_a_folder_is_named_by_a_relative_or_absolute_path_or_a_name(make, tmp_path):
    place = make({".gitignore": "data\n"})
    write(place, {"data/Images/a.png": "1", "data/Images/deep/b.png": "2"})
    write(tmp_path / "big set", {"c": "3"})
    found = packed(place, data=["data/Images", f"{tmp_path}/big set", "n=data/Images/deep"])
    assert trees(found) == {
        "images": {"a.png": b"1", "deep/b.png": b"2"},
        "big-set": {"c": b"3"},
        "n": {"b.png": b"2"},
    }
    assert [(item["files"], item["bytes"]) for item in found.spec["data"]] == [(2, 2), (1, 1), (1, 1)]


def test_G54_paths_are_relative_to_the_folder_below_the_root(make):
    root = make({"app/x.py": "1", ".gitignore": "sets\n"})
    write(root, {"app/sets/a": "here", "sets/a": "not here"})
    assert trees(packed(root / "app", script="x.py", data=["sets"])) == {"sets": {"a": b"here"}}


def test_a_single_file_is_that_file(make):
    place = make({".gitignore": "*.CSV\n"})
    write(place, {"Train.CSV": "1"})
    found = packed(place, data=["Train.CSV"])
    (item,) = found.spec["data"]
    assert (item["mount"], item["single_file"], item["files"]) == ("train.csv", "Train.CSV", 1)
    assert trees(found) == {"train.csv": {"Train.CSV": b"1"}}


def test_G57_a_place_on_the_hub_is_kept_as_it_is(make):
    found = packed(make({}), data=["hf://datasets/org/set@abc123/train", "x=hf://datasets/org/other"])
    assert [(item["mount"], item["uri"]) for item in found.spec["data"]] == [
        ("train", "hf://datasets/org/set@abc123/train"),
        ("x", "hf://datasets/org/other"),
    ]


def test_G58_equal_content_is_named_alike_and_brought_once(make):
    place = make({".gitignore": "d*\n"})
    write(place, {"d1/a": "same", "d2/a": "same"})
    server = Uploads()
    first = prepare(server, place, {"script": "train.py", "data": ["d1"]})
    again = prepare(server, place, {"script": "train.py", "data": ["d2"]})
    assert first.spec["data"][0]["manifest_sha256"] == again.spec["data"][0]["manifest_sha256"]
    assert again.uploaded == 0
    write(place, {"d2/a": "Same"})
    changed = prepare(server, place, {"script": "train.py", "data": ["d2"]})
    assert changed.uploaded == 2
    assert server.sent == ["a", "the manifest"]


def test_data_ships_whatever_git_says_and_whole(make):
    place = make({".gitignore": "data\n"})
    write(place, {"data/build/a": "1", "data/x.pyc": "2", "data/.hidden": "3", "data/.git/config": "4"})
    assert trees(packed(place, data=["data"])) == {"data": {"build/a": b"1", "x.pyc": b"2", ".hidden": b"3"}}


def test_links_inside_data_ship_as_files_and_others_do_not(make, tmp_path):
    write(tmp_path / "set", {"blobs/1": "one"})
    (tmp_path / "set/a.bin").symlink_to("blobs/1")
    (tmp_path / "set/loop").symlink_to("loop")
    (tmp_path / "set/out").symlink_to("/etc/hostname")
    (tmp_path / "set/folder").symlink_to("blobs")
    found = packed(make({}), data=[f"{tmp_path}/set"])
    assert trees(found) == {"set": {"a.bin": b"one", "blobs/1": b"one"}}
    assert warned(found, "data set: 3 links")


def test_what_is_missing_is_told_all_at_once_before_anything_is_made(make, tmp_path):
    error = refusal(make({}), script="train.py", data=["x=nope", "y=/not/there"])
    assert error.code == "invalid_spec"
    assert "x: nope is not there" in error.message
    assert "y: /not/there is not there" in error.message
    assert not (tmp_path / "trainshed-home").exists()


def test_an_empty_folder_is_no_dataset(make, tmp_path):
    (tmp_path / "empty").mkdir()
    assert "no file" in refusal(make({}), script="train.py", data=[f"{tmp_path}/empty"]).message


def test_a_fifo_is_no_dataset(make, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert refusal(make({}), script="train.py", data=[f"{tmp_path}/pipe"]).code == "invalid_spec"


def test_data_that_gpu_yaml_takes_from_outside_the_project_is_told(make, tmp_path):
    write(tmp_path / "elsewhere", {"a": "1"})
    place = make({"gpu.yaml": f"data: [{{mount: x, path: {tmp_path}/elsewhere}}]\n"})
    assert warned(packed(place), "data x: gpu.yaml passes")
    assert "warnings" not in packed(place, data=[f"x={tmp_path}/elsewhere"]).summary


@pytest.mark.parametrize("name", ["a", "A" * 64, "0.x-y_z"])
def test_an_argument_wins_over_the_same_mount_of_the_file(make, name):
    place = make({".gitignore": "d*\n", "gpu.yaml": f"data: [{{mount: {name.lower()}, path: d1}}]\n"})
    write(place, {"d1/a": "file", "d2/a": "argument"})
    found = packed(place, data=[f"{name.lower()}=d2"])
    assert trees(found) == {name.lower(): {"a": b"argument"}}


COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize("given", ["hf://datasets/org/set/train", "hf://datasets/org/set@main/train"])
def test_G57_an_unpinned_revision_is_resolved_to_a_commit_at_the_submission(make, monkeypatch, given):
    place = make({})
    with FakeServer({"GET /api/datasets/org/set/revision/main": Reply(200, {"sha": COMMIT})}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        ready = prepare(Uploads(), place, {"script": "train.py", "data": [given]})
        again = prepare(Uploads(), place, {"script": "train.py", "data": [f"hf://datasets/org/set@{COMMIT}"]})
        dry = prepare(None, place, {"script": "train.py", "data": [given]})
        assert len(hub.seen) == 1
    (item,) = ready.spec["data"]
    assert (item["uri"], item["path"]) == (f"hf://datasets/org/set@{COMMIT}/train", given)
    assert again.spec["data"][0]["uri"] == f"hf://datasets/org/set@{COMMIT}"
    assert dry.spec["data"][0]["uri"] == given


def test_the_hub_of_this_environment_is_asked_without_a_token_and_never_one_of_gpu_yaml(make, monkeypatch):
    answer = {"GET /api/datasets/org/set/revision/main": Reply(200, {"sha": COMMIT})}
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "TRAINSHED_HUB_TOKEN"):
        monkeypatch.setenv(name, "the-token")
    with FakeServer(answer) as hub, FakeServer(answer) as other:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        place = make({"gpu.yaml": f"env: {{HF_ENDPOINT: '{other.url}'}}\n"})
        ready = prepare(Uploads(), place, {"script": "train.py", "data": ["hf://datasets/org/set"]})
        assert (len(hub.seen), len(other.seen)) == (1, 0)
        assert "the-token" not in str(hub.seen[0].headers)
    assert ready.spec["env"] == {"HF_ENDPOINT": other.url}
    assert COMMIT in ready.spec["data"][0]["uri"]


@pytest.mark.parametrize(
    "reply", [Reply(404, {}), Reply(200, {"sha": "../x"}), Reply(200, b"<html>"), Reply(200, [])]
)
def test_a_revision_that_cannot_be_asked_stays_and_is_told(make, monkeypatch, reply):
    with FakeServer({"GET /api/datasets/org/set/revision/main": reply}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        ready = prepare(Uploads(), make({}), {"script": "train.py", "data": ["hf://datasets/org/set"]})
    assert ready.spec["data"][0]["uri"] == "hf://datasets/org/set"
    assert "could not be pinned" in ready.bundle["warnings"][0]
