"""What is needed is derived from what names it, on both databases, also while others begin to name it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import text, update

from support.rows import IDS, add_checkpoint, add_job, add_project
from trainshed.model.access import KeyKind, Permission, Principal
from trainshed.model.content import ContentKind
from trainshed.model.errors import Refusal
from trainshed.store import contents, garbage, jobs, manifests, moves, queue, runners
from trainshed.store.contents import Release
from trainshed.store.database import Database
from trainshed.store.tables import (
    checkpoints,
    manifest_blobs,
)

OLD, NOW = 1_000.0, 100_000.0
CUTOFF = NOW - 3_600.0
WHOLE = ("", "g" * 64)
PUBLISHER = Principal("key", "p", KeyKind.HUMAN, frozenset(Permission), label="somebody")


def digest(word: str) -> str:
    return hashlib.sha256(word.encode()).hexdigest()


def record(database: Database, *words: str, at: float = OLD) -> list[str]:
    names = [digest(word) for word in words]
    database.write(lambda c: queue.put_blobs(c, dict.fromkeys(names, 10), at=at))
    return names


def release(version: str, held: Sequence[str], manifest: str | None = None) -> Release:
    sha256 = manifest or digest(f"manifest of {sorted(held)}")
    return Release(ContentKind.DATASETS, "team/data", version, sha256, 10, "{}", len(held), 10, held)


def publish(
    database: Database, version: str, held: Sequence[str], *, at: float = OLD, manifest: str | None = None
) -> str:
    """Publish a Dataset of these blobs; its manifest's digest."""
    wanted = release(version, held, manifest)

    def store(connection: Any) -> None:
        queue.put_blobs(connection, {wanted.manifest_sha256: 10}, at=at)
        contents.publish(connection, PUBLISHER, wanted, None, at=at)

    database.write(store)
    return wanted.manifest_sha256


def withdraw(database: Database, version: str, *, at: float = OLD) -> None:
    database.write(lambda c: contents.withdraw(c, ContentKind.DATASETS, "team/data", version, at=at))


def unneeded(database: Database, *, cutoff: float = CUTOFF) -> set[str]:
    with database.read() as connection:
        return set(garbage.unneeded_blobs(connection, *WHOLE, cutoff=cutoff))


def dead(database: Database, *, cutoff: float = CUTOFF) -> list[str]:
    with database.read() as connection:
        return garbage.dead_manifests(connection, *WHOLE, cutoff=cutoff)


def let_go(database: Database, *names: str) -> int:
    count = database.write(lambda c: garbage.let_go(c, names, cutoff=CUTOFF, at=NOW))
    while database.write(lambda c: garbage.drop_rows(c, 1)):
        pass
    return count


def mark(database: Database, names: Sequence[str], *, cutoff: float = CUTOFF) -> set[str]:
    return set(database.write(lambda c: garbage.mark(c, names, cutoff=cutoff, at=NOW)).sizes)


def consume(database: Database, manifest: str, request_id: str = "consumer") -> None:
    _, [trial] = add_job(database, request_id)
    row = {
        "trial_id": trial.id,
        "role": "input:data",
        "kind": "datasets",
        "name": "team/data",
        "version": "1",
        "manifest_sha256": manifest,
    }
    database.write(lambda c: jobs.insert_contents(c, [row]))


@pytest.fixture(autouse=True)
def project(database):
    add_project(database)


def test_a_blob_is_needed_by_what_names_it_and_by_nothing_else(database):
    a, b, c, d, e = record(database, "a", "b", "c", "d", "e")
    manifest = publish(database, "1", [a])
    _, [trial] = add_job(database)
    rows = [
        {
            "id": IDS.artifact(),
            "trial_id": trial.id,
            "name": name,
            "size": 10,
            "sha256": sha256,
            "upload_state": state,
            "created_at": OLD,
        }
        for name, sha256, state in (("kept", b, "uploaded"), ("failed", c, "failed"))
    ]
    database.write(lambda connection: moves.put_artifacts(connection, trial.id, rows))
    checkpoint = database.write(lambda connection: add_checkpoint(connection, trial, [d]))
    # The manifest's own bytes are a blob too; they were used when it was published.
    assert unneeded(database) == {c, e}

    database.write(
        lambda connection: connection.execute(
            update(checkpoints).where(checkpoints.c.id == checkpoint).values(deleted_at=OLD)
        )
    )
    assert unneeded(database) == {c, d, e}
    withdraw(database, "1")
    assert unneeded(database) == {c, d, e}, "a manifest keeps its blobs until it is let go"
    assert let_go(database, *dead(database)) == 1
    assert unneeded(database) == {a, c, d, e, manifest}


def test_a_checkpoint_deleted_a_moment_ago_still_counts(database):
    [a] = record(database, "a")
    _, [trial] = add_job(database)
    checkpoint = database.write(lambda connection: add_checkpoint(connection, trial, [a]))
    deleted = update(checkpoints).where(checkpoints.c.id == checkpoint).values(deleted_at=CUTOFF + 1)
    database.write(lambda connection: connection.execute(deleted))
    assert unneeded(database) == set()
    assert mark(database, [a]) == set()
    assert unneeded(database, cutoff=CUTOFF + 2) == {a}


def test_what_was_used_a_moment_ago_is_left_alone(database):
    [a] = record(database, "a")
    record(database, "a", at=NOW)  # somebody stored it again
    assert unneeded(database) == set()
    assert mark(database, [a]) == set()
    assert unneeded(database, cutoff=NOW + 1) == {a}


def test_a_manifest_is_named_by_versions_trials_and_revisions(database):
    held = record(database, "a", "b", "c")
    first = publish(database, "1", held[:1])
    publish(database, "2", held[:1])
    second = publish(database, "3", held[1:2])
    third = publish(database, "4", held[2:])
    for version in ("1", "3", "4"):
        withdraw(database, version)
    consume(database, second)
    assert dead(database) == [third], "the first has another version, the second a Trial"
    assert let_go(database, first, second, third) == 1, "it is asked again when it is done"
    withdraw(database, "2")
    assert dead(database) == [first]

    revision = {
        "runner": "team/run",
        "revision": "a" * 40,
        "snapshot_sha256": first,
        "manifest": "{}",
        "definition": "{}",
        "source_ref": None,
        "published_at": OLD,
        "published_by": "somebody",
        "withdrawn_at": OLD,
    }

    def add(connection: Any) -> None:
        from trainshed.model.access import Visibility  # noqa: PLC0415

        runners.claim(connection, PUBLISHER, "team/run", Visibility.PROJECT, at=OLD)
        runners.insert_revision(connection, revision)

    database.write(add)
    assert dead(database) == [], "a Revision keeps its files for good: Jobs ran it"


def test_a_withdrawal_can_be_taken_back_for_a_while(database):
    held = record(database, "a")
    manifest = publish(database, "1", held)
    withdraw(database, "1", at=NOW - 60)
    assert dead(database) == []
    assert let_go(database, manifest) == 0
    publish(database, "1", held, at=NOW)
    assert dead(database, cutoff=NOW + 1e9) == []


def test_a_manifest_that_was_let_go_comes_back_with_all_its_blobs(database):
    held = record(database, "a", "b", "c")
    manifest = publish(database, "1", held)
    withdraw(database, "1")
    database.write(lambda c: garbage.let_go(c, [manifest], cutoff=CUTOFF, at=NOW))
    database.write(lambda c: garbage.drop_rows(c, 2))  # a crash comes half way
    with database.read() as connection:
        assert contents.same_manifest(connection, ContentKind.DATASETS, manifest) is None
    publish(database, "1", held, at=NOW)
    with database.read() as connection:
        kept = set(
            connection.execute(manifest_blobs.select().with_only_columns(manifest_blobs.c.sha256)).scalars()
        )
        assert contents.same_manifest(connection, ContentKind.DATASETS, manifest) is not None
    assert kept == {*held, manifest}
    assert database.write(lambda c: garbage.drop_rows(c, 100)) == 0
    assert unneeded(database, cutoff=NOW + 1e9) == set()


def test_who_knew_it_and_did_not_read_it_is_told_to_try_again(database):
    held = record(database, "a")
    manifest = publish(database, "1", held)
    withdraw(database, "1")
    let_go(database, manifest)
    known = Release(ContentKind.DATASETS, "team/data", "2", manifest, 10, "{}", 1, 10, ())
    with pytest.raises(Refusal) as refused:
        database.write(lambda c: contents.publish(c, PUBLISHER, known, None, at=NOW))
    assert (refused.value.code, refused.value.retry_after) == ("BLOB_BEING_DELETED", 1)


def test_publishing_again_after_its_blobs_went_says_which_are_missing(database):
    held = record(database, "a", "b")
    manifest = publish(database, "1", held)
    withdraw(database, "1")
    let_go(database, manifest)
    marked = database.write(lambda c: garbage.mark(c, [*held, manifest], cutoff=CUTOFF, at=NOW))
    assert set(marked.sizes) == {*held, manifest}
    with pytest.raises(Refusal) as refused:
        publish(database, "1", held, at=NOW)
    assert refused.value.code == "BLOB_BEING_DELETED"
    assert database.write(lambda c: garbage.forget(c, marked, list(marked.sizes))) == 3
    record(database, "b", at=NOW)
    with pytest.raises(Refusal) as refused:
        publish(database, "1", held, at=NOW)
    assert refused.value.code == "BLOB_NOT_FOUND"
    assert refused.value.extra["missing"] == [held[0]]


def test_a_trial_is_refused_content_that_was_collected_since_it_was_looked_up(database):
    manifest = publish(database, "1", record(database, "a"))
    withdraw(database, "1")
    let_go(database, manifest)
    with pytest.raises(Refusal) as refused:
        consume(database, manifest)
    assert refused.value.code == "CONTENT_NOT_FOUND"
    assert "datasets team/data@1" in refused.value.message


def test_a_mark_is_taken_over_only_when_it_is_old_and_lost_where_the_blob_is_needed(database):
    a, b = record(database, "a", "b")
    assert mark(database, [a, b]) == {a, b}
    with pytest.raises(Refusal) as refused:
        record(database, "a", at=NOW)
    assert refused.value.code == "BLOB_BEING_DELETED"
    taken = database.write(lambda c: garbage.take_over(c, cutoff=CUTOFF, before=NOW, at=NOW + 1, count=10))
    assert taken.sizes == {}
    # Something names it all the same: a repair marks what is needed.
    database.write(lambda c: manifests.put_manifest(c, digest("m"), "runners", 1, [b], at=NOW))
    taken = database.write(
        lambda c: garbage.take_over(c, cutoff=CUTOFF, before=NOW + 1, at=NOW + 2, count=10)
    )
    assert taken.sizes == {a: 10}
    late = garbage.Marked(NOW, {a: 10})
    assert database.write(lambda c: garbage.forget(c, late, [a])) == 0, "that mark is not there any more"
    assert database.write(lambda c: garbage.forget(c, taken, [a])) == 1
    assert record(database, "b", at=NOW) == [b]


def test_windows_cover_everything_once(database):
    names = sorted(record(database, *map(str, range(25))))
    with database.read() as connection:
        after, seen = "", []
        while (last := garbage.blob_window(connection, after, 10)) is not None:
            seen += garbage.unneeded_blobs(connection, after, last, cutoff=CUTOFF)
            after = last
        assert seen == names
        assert garbage.manifest_window(connection, "", 10) is None


def test_what_somebody_works_with_is_left_to_the_next_pass(database):
    """On PostgreSQL transactions run beside each other; SQLite has one writer."""
    if database.dialect == "sqlite":
        pytest.skip("one writer")
    held = record(database, "a")
    manifest = publish(database, "1", held)
    withdraw(database, "1")
    with database.engine.begin() as busy:
        assert manifests.hold(busy, [manifest]) == {manifest}
        assert let_go(database, manifest) == 0
    assert let_go(database, manifest) == 1
    with database.engine.begin() as busy:
        queue.touch_blobs(busy, held, at=NOW)
        assert mark(database, held) == set()
    assert mark(database, held) == set(), "it was touched"
    assert mark(database, held, cutoff=NOW + 1) == set(held)


def test_no_question_reads_a_whole_table_for_each_row(database):
    """A million Artifacts must not make it slow: every lookup goes by an index."""
    if database.dialect != "sqlite":
        pytest.skip("SQLite tells its plan in words that can be compared")
    record(database, "a")
    with database.read() as connection:
        for query in (garbage._UNNEEDED, garbage._DEAD_MANIFESTS, garbage._LEFT):
            values = dict.fromkeys(("after", "last", "cutoff", "before", "count"), 1)
            compiled = query.compile(connection, compile_kwargs={"render_postcompile": True})
            asked = {name: values.get(name, compiled.params[name]) for name in compiled.params}
            sql = f"EXPLAIN QUERY PLAN {compiled}"
            plan = [
                row[3]
                for row in connection.exec_driver_sql(
                    sql, tuple(asked[name] for name in compiled.positiontup)
                )
            ]
            assert plan
            assert not [step for step in plan if step.startswith("SCAN")], plan


def test_bytes_without_a_row_get_one(database):
    [a] = record(database, "a")
    stray = digest("stray")
    with database.read() as connection:
        assert garbage.unrecorded(connection, [a, stray]) == {stray}
    assert database.write(lambda c: garbage.adopt(c, {a: 10, stray: 5}, at=NOW)) == 1
    assert unneeded(database) == {a}
    with database.read() as connection:
        sizes = dict(connection.execute(text("SELECT sha256, size FROM blobs")).all())
    assert sizes == {a: 10, stray: 5}
    assert unneeded(database, cutoff=NOW + 1) == {a, stray}
