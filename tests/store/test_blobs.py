"""Which blobs are recorded, when they were last used, and which may not be counted on."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import select, update

from trainshed.model.errors import Refusal
from trainshed.store import garbage, queue
from trainshed.store.tables import blobs

A, B, C = "a" * 64, "b" * 64, "c" * 64
LATER = queue.TOUCH_SECONDS + 2.0


@pytest.fixture
def stored(database):
    database.write(lambda c: queue.put_blobs(c, {A: 1, B: 2}, at=1.0))
    return database


def rows(database):
    with database.read() as connection:
        found = connection.execute(select(blobs.c.sha256, blobs.c.created_at, blobs.c.touched_at))
        return {sha256: (created, touched) for sha256, created, touched in found}


def mark(database, *names):
    going = update(blobs).where(blobs.c.sha256.in_(names)).values(deleting_at=5.0)
    database.write(lambda c: c.execute(going))


def test_storing_and_asking_touch_what_was_not_used_for_a_while(stored):
    assert stored.write(lambda c: queue.touch_blobs(c, [A, C], at=2.0)) == {A}
    assert rows(stored) == {A: (1.0, 1.0), B: (1.0, 1.0)}
    assert stored.write(lambda c: queue.touch_blobs(c, [A, C], at=LATER)) == {A}
    stored.write(lambda c: queue.put_blobs(c, {B: 2, C: 3}, at=LATER + 1))
    assert rows(stored) == {A: (1.0, LATER), B: (1.0, LATER + 1), C: (LATER + 1, LATER + 1)}


def test_nobody_may_count_on_a_blob_that_is_being_removed(stored):
    mark(stored, B)
    assert stored.write(lambda c: queue.touch_blobs(c, [A, B], at=LATER)) == {A}
    with pytest.raises(Refusal) as refused:
        stored.write(lambda c: queue.put_blobs(c, {A: 1, B: 2, C: 3}, at=LATER))
    assert (refused.value.code, refused.value.status, refused.value.retry_after) == (
        "BLOB_BEING_DELETED",
        503,
        1,
    )
    assert set(rows(stored)) == {A, B}


def test_E105_bytes_that_were_proved_correct_a_row_that_says_another_size(stored):
    stored.write(lambda c: garbage.adopt(c, {C: 7}, at=1.0))
    stored.write(lambda c: queue.put_blobs(c, {A: 1, B: 20, C: 30}, at=2.0))
    with stored.read() as connection:
        sizes = dict(connection.execute(select(blobs.c.sha256, blobs.c.size)).all())
    assert sizes == {A: 1, B: 20, C: 30}


def test_it_can_be_asked_first_whether_there_is_anything_to_write(stored):
    mark(stored, B)
    with stored.read() as connection:
        assert queue.untouched_blobs(connection, [A, B, C], at=2.0) == ({A}, False)
        assert queue.untouched_blobs(connection, [A, B, C], at=LATER) == ({A}, True)
        assert queue.untouched_blobs(connection, [], at=LATER) == (set(), False)


def test_ten_thousand_are_asked_for_at_once(stored):
    many = [f"{n:064x}" for n in range(10_000)]
    stored.write(lambda c: queue.put_blobs(c, dict.fromkeys(many, 1), at=1.0))
    assert stored.write(lambda c: queue.touch_blobs(c, [*many, C], at=LATER)) == set(many)


def test_P2_the_same_blob_recorded_by_many_at_once_is_one_row(database):
    with ThreadPoolExecutor(8) as pool:
        puts = [
            pool.submit(database.write, lambda c: queue.put_blobs(c, {A: 1, B: 2}, at=1.0)) for _ in range(8)
        ]
        for put in puts:
            put.result()
    assert rows(database) == {A: (1.0, 1.0), B: (1.0, 1.0)}
