"""Looking for paths and names in a stored manifest of any length, without reading it whole."""

from __future__ import annotations

import io
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainshed.content import trees
from trainshed.content.blobs import FolderBlobStore
from trainshed.content.trees import StoredTree
from trainshed.model.content import ContentFile, ContentKind, make_manifest

PARTS = st.sampled_from(["a", "a-", "a.b", "a0", "b", "ü", "z"])
PATHS = st.lists(PARTS, min_size=1, max_size=3).map("/".join)


def tree_of(store: FolderBlobStore, paths: Iterable[str]) -> StoredTree:
    files = [ContentFile(path, 1, "0" * 64) for path in paths]
    manifest = make_manifest(ContentKind.DATASETS, files, {"configs": {}, "type": "data"})
    return StoredTree(store, store.put(io.BytesIO(manifest.encode())).sha256)


def plain(paths: set[str]) -> set[str]:
    """Those that can be together: no file is also a folder."""
    return {path for path in paths if not any(other.startswith(f"{path}/") for other in paths)}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> FolderBlobStore:
    return FolderBlobStore(tmp_path_factory.mktemp("trees"))


@given(st.sets(PATHS, min_size=1, max_size=30).map(plain), PATHS)
def test_C11_a_path_is_there_if_it_is_a_file_or_a_folder_and_only_then(
    shared: FolderBlobStore, paths: set[str], wanted: str
):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(trees, "_WINDOW", 600)  # so that even these are found by halving
        tree = tree_of(shared, paths)
        assert tree.has(wanted) is any(path == wanted or path.startswith(f"{wanted}/") for path in paths)
        file = tree.find(wanted)
        assert (file is not None and file.path == wanted) is (wanted in paths)


@given(st.sets(PATHS, min_size=1, max_size=30).map(plain), st.just("") | PATHS, st.integers(1, 9))
def test_the_names_of_a_folder_are_those_right_below_it(
    shared: FolderBlobStore, paths: set[str], folder: str, limit: int
):
    before = f"{folder}/" if folder else ""
    below = [path.removeprefix(before) for path in paths if path.startswith(before)]
    names = {f"{name}{slash}" for name, slash, _ in (path.partition("/") for path in below)}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(trees, "_WINDOW", 600)
        found = tree_of(shared, paths).names(folder, limit)
    assert len(found) == min(limit, len(names))
    assert set(found) <= names
    assert len(set(found)) == len(found)


def test_what_lies_below_a_folder_is_jumped_over(tmp_path, monkeypatch: pytest.MonkeyPatch):
    store = FolderBlobStore(tmp_path)
    tree = tree_of(store, [f"{folder}/{n:06}.txt" for folder in "abc" for n in range(10_000)] + ["d.txt"])
    reads: list[int] = []
    read = StoredTree._read
    monkeypatch.setattr(StoredTree, "_read", lambda self, *args: reads.append(1) or read(self, *args))
    assert tree.names("", 50) == ["a/", "b/", "c/", "d.txt"]
    assert tree.has("b/009999.txt")
    assert tree.has("c")
    assert not tree.has("b/01")
    assert len(reads) < 100
