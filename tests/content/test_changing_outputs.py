"""Collecting outputs that change meanwhile, and many small ones together."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from trainshed.content.blobs import StoreFull
from trainshed.content.outputs import CollectedFile, Collection, ProblemCode, collect
from trainshed.model.globs import OutputPatterns

EVERYTHING = OutputPatterns(["outputs/**"])


@pytest.fixture
def work(tmp_path: Path) -> Path:
    place = tmp_path / "work"
    (place / "outputs").mkdir(parents=True)
    return place


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def codes(collection: Collection) -> dict[str, ProblemCode]:
    return {problem.name: problem.code for problem in collection.problems}


def names(collection: Collection) -> list[str]:
    return [file.name for file in collection.files]


class Meddling:
    """Calls ``meddle`` with the number of the try in the middle of every reading of a file of the tree."""

    def __init__(self, patched: pytest.MonkeyPatch, tree: Path) -> None:
        self.meddle, self.tries = lambda _: None, 0
        real = os.preadv

        def preadv(fd: int, buffers: list[memoryview], offset: int) -> int:
            if not Path(f"/proc/self/fd/{fd}").readlink().is_relative_to(tree):
                return real(fd, buffers, offset)
            count = real(fd, [buffers[0][: max(1, len(buffers[0]) // 2)]], offset)
            if count:
                self.tries += 1
                self.meddle(self.tries)
            return count

        patched.setattr(os, "preadv", preadv)


@pytest.fixture
def meddling(work, monkeypatch):
    with monkeypatch.context() as patched:
        yield Meddling(patched, work)


@pytest.fixture(params=[10, 70_000])
def size(request):
    """Small files are stored together, large ones each by itself."""
    return request.param


@pytest.mark.parametrize("change", ["grow", "shrink", "overwrite"])
def test_a_file_that_never_stops_changing_is_named_and_nothing_of_it_is_stored(
    work, store, meddling, size, change
):
    target = work / "outputs" / "log"
    target.write_bytes(b"0" * size)

    def meddle(count: int) -> None:
        if change == "grow":
            with target.open("ab") as file:
                file.write(b"+")
        elif change == "shrink":
            os.truncate(target, size // 2 if count % 2 else size)
        else:
            target.write_bytes(b"%10d" % count * (size // 10))

    meddling.meddle = meddle
    result = collect(work, EVERYTHING, {}, store)
    assert codes(result) == {"outputs/log": ProblemCode.CHANGED}
    assert not [path for path in store.root.rglob("*") if path.is_file()]


def test_a_file_that_changes_once_is_read_again(work, store, meddling, size):
    target = work / "outputs" / "log"
    target.write_bytes(b"0" * size)

    def meddle(count: int) -> None:
        if count == 1:
            target.write_bytes(b"settled")

    meddling.meddle = meddle
    result = collect(work, EVERYTHING, {}, store)
    assert result.files == (CollectedFile("outputs/log", 7, sha256(b"settled")),)


def test_a_file_that_disappears_is_named(work, store, meddling):
    (work / "outputs" / "a").write_bytes(b"aaaaa")
    (work / "outputs" / "b").write_bytes(b"bbbbb")
    meddling.meddle = lambda count: (work / "outputs" / "b").unlink() if count == 1 else None
    result = collect(work, EVERYTHING, {}, store)
    assert names(result) == ["outputs/a"]
    assert codes(result) == {"outputs/b": ProblemCode.CHANGED}


def test_small_and_large_files_are_reported_in_the_order_of_their_names(work, store, monkeypatch):
    monkeypatch.setattr("trainshed.content.outputs._BUNDLE_FILES", 3)
    monkeypatch.setattr("trainshed.content.outputs._HELD_BYTES", 30_000)
    contents = {f"outputs/{n:03}": b"%d" % n * (20_000 if n % 7 == 3 else n % 2) for n in range(60)}
    for name, content in contents.items():
        (work / name).write_bytes(content)
    result = collect(work, EVERYTHING, {}, store)
    assert {file.name: file.sha256 for file in result.files} == {n: sha256(c) for n, c in contents.items()}
    assert names(result) == list(contents)
    assert all(store.verify(file.sha256).size == file.size for file in result.files)


def test_where_several_cannot_be_stored_together_each_is_tried_by_itself(work, store, monkeypatch):
    for n in range(5):
        (work / "outputs" / f"f{n}").write_bytes(b"%d" % n)
    real = store.put

    def put_many(_: object) -> None:
        raise StoreFull("not so many")

    def put(source, **promised):
        if promised["sha256"] == sha256(b"3"):
            raise StoreFull("no room")
        return real(source, **promised)

    monkeypatch.setattr(store, "put_many", put_many)
    monkeypatch.setattr(store, "put", put)
    result = collect(work, EVERYTHING, {}, store)
    assert names(result) == ["outputs/f0", "outputs/f1", "outputs/f2", "outputs/f4"]
    assert codes(result) == {"outputs/f3": ProblemCode.STORE_FULL}
