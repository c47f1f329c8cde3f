"""Digests are remembered for files that were not touched since, and for no others."""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainshed.sdk.home import Home
from trainshed.sdk.scan import LocalFile, Tree, hash_files, look
from trainshed.sdk.stat_cache import Known, StatCache

SECOND = 1_000_000_000
MANIFEST = "a" * 64


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path / "home", tmp_path / "home")


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "tree"
    folder.mkdir()
    for name in ("a", "b", "c"):
        place = folder / name
        place.write_text(name)
        os.utime(place, ns=(SECOND + 5, SECOND + 5))
    return folder


def remember(home: Home, root: Path, *, later: int = 10 * SECOND, manifest: str = MANIFEST) -> Tree:
    """Remember the folder as read ``later`` nanoseconds after the last change in it, whenever that was."""
    tree = look(root)
    changed = max(max(file.mtime_ns, file.ctime_ns) for file in tree.files)
    cache = StatCache(home, root, "datasets")
    cache.remember(tree, hash_files(tree.files), manifest, changed + later)
    return tree


def test_an_unchanged_tree_is_known_by_its_manifest(home, root):
    remember(home, root)
    cache = StatCache(home, root, "datasets")
    assert cache.unchanged(look(root)) == Known(MANIFEST, 3, 3)
    assert cache.digests(look(root).files) == [hashlib.sha256(n.encode()).hexdigest() for n in "abc"]
    assert StatCache(home, root, "models").unchanged(look(root)) is None


def test_only_touched_files_are_read_again(home, root):
    remember(home, root)
    (root / "b").write_text("B")
    os.utime(root / "b", ns=(SECOND + 5, SECOND + 5))
    (root / "d").write_text("d")
    cache = StatCache(home, root, "datasets")
    assert cache.unchanged(look(root)) is None
    assert [digest is None for digest in cache.digests(look(root).files)] == [False, True, False, True]


def test_what_was_written_just_before_it_was_read_is_read_again(home, root):
    """A second write within the same tick leaves the same times, as git's index knows."""
    remember(home, root, later=0)
    cache = StatCache(home, root, "datasets")
    assert cache.unchanged(look(root)) is None
    assert cache.digests(look(root).files) == [None, None, None]


@given(
    age=st.integers(-SECOND, 20 * SECOND),
    coarse=st.booleans(),
    newest=st.sampled_from(["mtime", "ctime"]),
)
def test_a_digest_counts_only_if_the_file_was_older_than_a_grain(tmp_path_factory, age, coarse, newest):
    folder = tmp_path_factory.mktemp("cache")
    read_ns = 1_000 * SECOND + 7
    at = read_ns - age
    if coarse:
        at -= at % SECOND
    times = {"mtime": at, "ctime": at - SECOND} if newest == "mtime" else {"mtime": at - SECOND, "ctime": at}
    file = LocalFile("a", "/a", 1, times["mtime"], times["ctime"], 1, executable=False)
    tree = Tree(folder)
    tree._files = [file]
    cache = StatCache(Home(folder, folder), folder, "datasets")
    cache.remember(tree, ["d" * 64], MANIFEST, read_ns)
    kept = cache.digests([file]) == ["d" * 64]
    grain = 4 * SECOND if at % SECOND == 0 else SECOND // 10
    assert kept == (read_ns - at >= grain)


def test_a_tree_of_old_files_stays_known_when_it_is_remembered_again(home, root):
    remember(home, root)
    remember(home, root, later=0)
    cache = StatCache(home, root, "datasets")
    assert cache.unchanged(look(root)) is None, "its ctime is as young as the reading"
    remember(home, root)
    assert cache.unchanged(look(root)) is not None


@pytest.mark.parametrize(
    "text", ["", "x", "{}", "[]\n[]", '{"format": 2}\n{}', "\xff", '{"format": 1}\n{"a": 3}']
)
def test_a_damaged_cache_is_no_cache(home, root, text):
    remember(home, root)
    (file,) = (home.data / "trees").glob("*.json")
    file.write_text(text)
    cache = StatCache(home, root, "datasets")
    assert cache.unchanged(look(root)) is None
    assert cache.digests(look(root).files) == [None, None, None]


def test_the_cache_is_this_users_alone_and_bounded(home, root, monkeypatch):
    monkeypatch.setattr("trainshed.sdk.stat_cache._KEPT_TREES", 2)
    for kind in ("datasets", "models", "recipes"):
        tree = look(root)
        StatCache(home, root, kind).remember(tree, hash_files(tree.files), MANIFEST, time.time_ns())
    kept = list((home.data / "trees").iterdir())
    assert len(kept) == 2
    assert all(path.stat().st_mode & 0o077 == 0 for path in (home.data / "trees", *kept))
    head = json.loads(kept[0].read_text().splitlines()[0])
    assert head["root"] == str(root)


def test_a_home_that_cannot_be_written_costs_only_time(tmp_path, root):
    (tmp_path / "home").write_text("no folder")
    home = Home(tmp_path / "home", tmp_path / "home")
    remember(home, root)
    assert StatCache(home, root, "datasets").unchanged(look(root)) is None
