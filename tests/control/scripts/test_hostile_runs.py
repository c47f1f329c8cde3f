"""What a run leaves in its folders to do harm: passed over and told, never followed, never fatal (g.9, i)."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass

import pytest

from trainshed.content.blobs import Blob, FolderBlobStore
from trainshed.control.scripts.checkpoints import newest_in
from trainshed.control.scripts.delivering import write_outputs

NEVER = float("-inf")


def saved(store, number=1, **values):
    """A checkpoint in a store; ``values`` replace what its manifest says."""
    folder = store / str(number)
    (folder / "files").mkdir(parents=True)
    data = b"weights"
    (folder / "files" / "w.bin").write_bytes(data)
    listed = [{"path": "w.bin", "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}]
    document = {"n": number, "created_at": 100.0 + number, "step": 5, "files": listed, **values}
    (folder / "manifest.json").write_text(json.dumps(document))
    return folder


@pytest.fixture
def store(tmp_path):
    place = tmp_path / "work" / "checkpoint_store"
    place.mkdir(parents=True)
    return place


@pytest.fixture
def secret(tmp_path):
    """A file of somebody else, whose bytes a hostile program knows the digest of."""
    place = tmp_path / "elsewhere"
    place.mkdir()
    (place / "w.bin").write_bytes(b"weights")
    return place


def found_in(store):
    told = []
    return newest_in(store, NEVER, told.append), told


@pytest.mark.parametrize(
    "values",
    [
        {"created_at": float("nan")},
        {"created_at": float("inf")},
        {"created_at": 10**400},
        {"created_at": -5},
        {"created_at": 1e300},
        {"n": float("inf")},
        {"n": 10**30},
        {"n": 7},
        {"files": [{"path": "w.bin", "bytes": float("inf"), "sha256": "0" * 64}]},
        {"files": [{"path": "../../../etc/hosts", "bytes": 1, "sha256": "0" * 64}]},
        {"files": [{"path": "\ud800", "bytes": 1, "sha256": "0" * 64}]},
        {"files": [{"path": "a\0b", "bytes": 1, "sha256": "0" * 64}]},
        {"files": [7]},
        {"files": 7},
    ],
)
def test_g9_a_manifest_that_makes_no_sense_is_passed_over(store, values):
    saved(store, 1)
    saved(store, 2, **values)
    found, told = found_in(store)
    assert found is not None
    assert (found.number, len(told)) == (1, 1)


@pytest.mark.parametrize("step", [10**30, -1, True, "5", float("nan")])
def test_g9_a_step_that_is_none_is_left_out(store, step):
    saved(store, 1, step=step)
    found, told = found_in(store)
    assert (found.step, told) == (None, [])


def test_g9_no_link_is_followed_wherever_it_is(store, secret, tmp_path):
    file = saved(store, 1) / "files" / "w.bin"
    file.unlink()
    file.symlink_to(secret / "w.bin")
    folder = saved(store, 2)
    (folder / "files" / "w.bin").unlink()
    (folder / "files").rmdir()
    (folder / "files").symlink_to(secret)
    other = saved(tmp_path / "other", 3)
    (store / "3").symlink_to(other)
    manifest = saved(store, 4) / "manifest.json"
    manifest.rename(tmp_path / "m.json")
    manifest.symlink_to(tmp_path / "m.json")
    found, told = found_in(store)
    assert found is None
    assert len(told) >= 3


def test_g9_the_store_of_another_run_is_not_taken_for_its_own(store, tmp_path):
    other = tmp_path / "other-work" / "checkpoint_store"
    saved(other, 1)
    store.rmdir()
    store.symlink_to(other)
    assert found_in(store) == (None, [])


def test_g9_what_is_no_file_is_not_waited_for(store):
    folder = saved(store, 1)
    (folder / "files" / "w.bin").unlink()
    os.mkfifo(folder / "files" / "w.bin")
    found, told = found_in(store)
    assert (found, len(told)) == (None, 1)


@dataclass(frozen=True)
class Output:
    name: str
    sha256: str
    size: int


def test_i1_names_as_long_as_names_can_be_are_delivered(tmp_path):
    blobs = FolderBlobStore(tmp_path / "blobs")
    data = b"x"
    blob = Blob(hashlib.sha256(data).hexdigest(), len(data))
    blobs.put_many({blob: data})
    names = ["\N{SNOWMAN}" * 85, "a" * 255]
    listed = [Output(f"outputs/{name}", blob.sha256, blob.size) for name in names]
    target = tmp_path / "project" / "runs" / "abcdef"
    (tmp_path / "project").mkdir()
    assert write_outputs(target, listed, blobs).files == len(names)
    assert sorted(path.name for path in target.iterdir()) == sorted(names)
