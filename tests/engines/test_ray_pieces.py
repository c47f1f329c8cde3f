"""What travels to and from a node in pieces, at the node's end: lost answers, late pieces, long listings."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any

import pytest

from trainshed.engines.ray.carried import PIECE_BYTES, Arrivals, Leavings


def piece(data: bytes, at: int, size: int, path: str = "files/0") -> dict[str, Any]:
    coded = base64.b64encode(data).decode()
    return {"path": path, "size": size, "executable": False, "at": at, "data": coded}


def test_a_piece_that_comes_again_or_late_or_too_early_changes_nothing(tmp_path: Path) -> None:
    arrivals = Arrivals(tmp_path / "carried")
    place = tmp_path / "carried" / "files" / "0"
    assert arrivals.take([piece(b"abc", 0, 9)]) == [3]
    assert arrivals.take([piece(b"abc", 0, 9)]) == [3]
    assert arrivals.take([piece(b"ghi", 6, 9)]) == [3]
    assert arrivals.take([piece(b"def", 3, 9)]) == [6]
    assert arrivals.take([piece(b"abc", 0, 9), piece(b"ghi", 6, 9)]) == [6, 9]
    assert arrivals.take([piece(b"abc", 0, 9)]) == [9]
    assert place.read_bytes() == b"abcdefghi"
    assert arrivals.take([piece(b"xy", 0, 2)]) == [2]
    assert place.read_bytes() == b"xy"
    with pytest.raises(ValueError, match="no place"):
        arrivals.take([piece(b"x", 0, 1, "files/../../out")])
    arrivals.close()
    with pytest.raises(FileNotFoundError):
        arrivals.take([piece(b"x", 0, 1, "files/1")])


def all_pages(leavings: Leavings, names: list[str]) -> tuple[list[str], list[str], int]:
    files: list[str] = []
    skipped: list[str] = []
    after, pages = "", 0
    while True:
        page = leavings.listed(names, after)
        assert page is not None
        pages += 1
        files += [path for path, _, _ in page["files"]]
        skipped += page["skipped"]
        if page["more"] is None:
            return files, skipped, pages
        assert page["more"] > after or after == ""
        after = page["more"]


def test_long_listings_come_in_pages_that_miss_nothing_and_repeat_nothing(tmp_path: Path) -> None:
    work = tmp_path / "work"
    expected, links = set(), set()
    for folder in ("out", "out/a", "out/a.b", "out/a/c", "out/b/d/e", "out-side", "other"):
        (work / folder).mkdir(parents=True, exist_ok=True)
        for number in range(700):
            (work / folder / f"{number}").touch()
            if folder.split("/")[0] == "out":
                expected.add(f"{folder}/{number}")
        (work / folder / "link").symlink_to("/etc")
        if folder.split("/")[0] == "out":
            links.add(f"{folder}/link")
    leavings = Leavings(lambda: work)
    files, skipped, pages = all_pages(leavings, ["out"])
    assert pages > 1
    assert (len(files), set(files)) == (len(expected), expected)
    assert (len(skipped), set(skipped)) == (len(links), links)
    assert sorted(all_pages(leavings, ["out/a", "out/b/d"])[0]) == sorted(
        path for path in expected if path.startswith(("out/a/", "out/b/d/"))
    )
    leavings.close()
    assert leavings.listed(["out"], "") is None


def test_nothing_is_read_through_a_link_and_no_more_than_a_message_holds(tmp_path: Path) -> None:
    work = tmp_path / "work"
    (work / "out").mkdir(parents=True)
    (tmp_path / "secret").write_text("secret")
    (work / "out" / "link").symlink_to(tmp_path / "secret")
    (work / "away").symlink_to(tmp_path)
    os.mkfifo(work / "out" / "pipe")
    (work / "out" / "large").write_bytes(b"x" * (PIECE_BYTES + 5))
    (work / "out" / "small").write_bytes(b"small")
    leavings = Leavings(lambda: work)
    names = ["out/link", "away/secret", "out/pipe", "out/none", "out", "out/small", "out/large", "out/small"]
    answers = leavings.read([(name, 0) for name in names])
    assert answers is not None
    assert answers[:5] == [None] * 5
    small, large = (base64.b64decode(each[0]) for each in answers[5:] if each)
    assert small == b"small"
    assert large == b"x" * (PIECE_BYTES - 8)
    rest = leavings.read([("out/large", PIECE_BYTES)])
    assert rest is not None
    assert rest[0] is not None
    assert base64.b64decode(rest[0][0]) == b"x" * 5
    leavings.close()
    assert leavings.read([("out/small", 0)]) is None


def test_a_work_folder_that_was_exchanged_shows_nothing(tmp_path: Path) -> None:
    (tmp_path / "elsewhere" / "out").mkdir(parents=True)
    (tmp_path / "elsewhere" / "out" / "a").touch()
    (tmp_path / "work").symlink_to("elsewhere")
    leavings = Leavings(lambda: tmp_path / "work")
    assert all_pages(leavings, ["out"]) == ([], [], 1)
    assert leavings.read([("out/a", 0)]) == [None]
    assert not leavings.ask("out/b")
    assert [path.name for path in (tmp_path / "elsewhere" / "out").iterdir()] == ["a"]
