"""The folder and the archive that a provider is given (e.8, e.9)."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import tarfile
from dataclasses import replace

import pytest

from trainshed.control.scripts.bundles import Bundles
from trainshed.model.scripts.spec import Bundle, DataItem, Deps, DepsKind, ScriptSpec

SPEC = ScriptSpec(
    project_dir="/home/ada/proj",
    bundle=Bundle("0" * 64, 3, 9, included=("data (1 file)",), warnings=("w",), source="git", untracked=1),
    name="mine",
    script="train.py",
    args=("--x",),
    hours=0.5,
    env={"PLAIN": "value-of-plain"},
    secrets=("WANDB_API_KEY",),
    deps=Deps(DepsKind.PYPROJECT, "pyproject.toml", ("numpy",), ">=3.9"),
    data=(DataItem("d", uri="hf://datasets/a/b@c"), DataItem("e", manifest_sha256="1" * 64)),
)
FILES = {"train.py": b"1", "run.sh": b"#!/bin/sh\n", 'sub/\u00fc "q".txt': b"2", "sub/same.txt": b"1"}


def code(place, *, linked):
    """A shipped tree; with ``linked`` equal files are one file with several names, as blobs are."""
    for name, content in FILES.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (place / "run.sh").chmod(0o700)
    (place / "train.py").chmod(0o600)
    if linked:
        (place / "sub/same.txt").unlink()
        os.link(place / "train.py", place / "sub/same.txt")
    return place


@pytest.fixture
def archives(tmp_path):
    """The archives of the same tree, made twice in different ways."""
    found = []
    for number, linked in enumerate((True, False)):
        bundles = Bundles(tmp_path / f"bundles{number}")
        tree = code(tmp_path / f"code{number}", linked=linked)
        if not linked:
            for path in tree.rglob("*"):
                os.utime(path, (5, 5))
        bundles.make("a1", SPEC, tree)
        found.append(bundles.archive("a1")())
    return found


def test_the_same_tree_has_the_same_archive_wherever_and_however_it_was_laid_out(archives):
    one, other = (hashlib.sha256(path.read_bytes()).hexdigest() for path in archives)
    assert one == other


def test_an_archive_is_sorted_and_holds_no_times_owners_or_odd_modes(archives):
    data = archives[0].read_bytes()
    assert data[4:8] == b"\0\0\0\0"
    assert not data[3] & 0x08, "a name in the gzip header"
    with tarfile.open(archives[0]) as archive:
        members = archive.getmembers()
    names = [member.name for member in members]
    assert names[-1] == "manifest.json"
    assert names[:-1] == sorted(names[:-1], key=str.encode)
    assert {name.partition("/")[0] for name in names} == {"code", "gpu_runner", "manifest.json"}
    assert {f"code/{name}" for name in FILES} <= set(names)
    facts = {(m.mtime, m.uid, m.gid, m.uname, m.gname, m.linkname, m.isreg()) for m in members}
    assert facts == {(0, 0, 0, "", "", "", True)}
    modes = {member.name: member.mode for member in members}
    assert modes.pop("code/run.sh") == 0o755
    assert set(modes.values()) == {0o644}


def test_the_manifest_says_what_is_run_and_holds_no_secret_and_no_variable(archives):
    with tarfile.open(archives[0]) as archive:
        text = archive.extractfile("manifest.json").read()
    manifest = json.loads(text)
    assert {
        *("manifest_version", "name", "entrypoint", "deps", "estimate", "files", "checkpoint_interval_min"),
        *("runner", "warnings"),
    } <= manifest.keys()
    assert manifest["files"] == {
        "count": 3,
        "bytes": 9,
        "source": "git",
        "tree_sha256": "0" * 64,
        "untracked": 1,
        "included": ["data (1 file)"],
    }
    assert manifest["entrypoint"] == {"script": "train.py", "command": None, "args": ["--x"], "workdir": ""}
    assert manifest["deps"]["packages"] == ["numpy"]
    whole = gzip.decompress(archives[0].read_bytes())
    assert b"value-of-plain" not in whole
    assert b"/home/ada" not in whole


def test_another_spec_is_another_archive(tmp_path):
    bundles = Bundles(tmp_path / "bundles")
    tree = code(tmp_path / "code", linked=True)
    bundles.make("a1", SPEC, tree)
    bundles.make("a2", replace(SPEC, args=("--y",)), tree)
    assert bundles.archive("a1")().read_bytes() != bundles.archive("a2")().read_bytes()
