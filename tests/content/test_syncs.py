"""Syncs of a whole file system: who asks is answered by one that began after it asked."""

from __future__ import annotations

import errno
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from trainshed.content import syncs
from trainshed.content.syncs import Syncs


def test_P1_whoever_asks_is_answered_by_a_sync_that_began_later(tmp_path, monkeypatch):
    guard = threading.Lock()
    begun: list[int] = []
    ended: list[int] = []

    def sync_all(_: int) -> int:
        with guard:
            begun.append(len(begun))
            mine = begun[-1]
        with guard:
            ended.append(mine)
        return 0

    monkeypatch.setattr(syncs, "_sync_all", sync_all)
    shared = Syncs(tmp_path)

    def ask(_: int) -> bool:
        with guard:
            before = len(begun)
        shared.sync()
        with guard:
            return any(each >= before for each in ended)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask, range(400)))
    assert len(begun) <= 400


def test_P1_who_waits_behind_a_sync_that_failed_is_not_answered_well(tmp_path, monkeypatch):
    answers = iter([errno.EIO, 0, 0])
    monkeypatch.setattr(syncs, "_sync_all", lambda _: next(answers))
    shared = Syncs(tmp_path)
    # The second may have written what the first one's error was about; the third begins afresh.
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output error"):
            shared.sync()
    shared.sync()


@pytest.mark.parametrize(
    ("files", "mib", "expected"), [(1, 0, False), (2, 1, True), (2, 2, False), (200, 99, True)]
)
def test_one_sync_of_all_pays_off_where_little_else_is_to_be_written(
    tmp_path, monkeypatch, files, mib, expected
):
    monkeypatch.setattr(syncs, "_dirty_bytes", lambda: mib << 20)
    assert Syncs(tmp_path).pay_off(files) is expected


def test_without_the_system_call_each_is_synced_by_itself(tmp_path, monkeypatch):
    monkeypatch.setattr(syncs, "_SYNCFS", None)
    assert not Syncs(tmp_path).pay_off(1000)


def test_a_real_sync_returns_and_one_of_nothing_fails(tmp_path):
    (tmp_path / "file").write_bytes(b"x")
    Syncs(tmp_path).sync()
    with pytest.raises(OSError, match="No such file"):
        Syncs(tmp_path / "missing").sync()
