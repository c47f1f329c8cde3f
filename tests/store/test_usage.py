"""What projects hold, and the quota that publishing is held to, also when two publish at once."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from support.rows import IDS, add_checkpoint, add_job, add_project
from trainshed.model.access import KeyKind, Permission, Principal, Visibility
from trainshed.model.content import ContentKind
from trainshed.model.errors import Refusal
from trainshed.store import access, contents, manifests, moves, queue, runners, usage
from trainshed.store.contents import Release
from trainshed.store.database import Database
from trainshed.store.usage import Held

PUBLISHER = Principal("key", "p", KeyKind.HUMAN, frozenset(Permission), label="somebody")


def digest(word: str) -> str:
    return hashlib.sha256(word.encode()).hexdigest()


def publish(
    database: Database,
    version: str,
    files: dict[str, int],
    *,
    name: str = "team/data",
    kind: ContentKind = ContentKind.DATASETS,
    by: Principal = PUBLISHER,
) -> None:
    """Publish files, word -> size."""
    held = {digest(word): size for word, size in files.items()}
    manifest = digest(f"manifest {kind} {sorted(files)}")
    release = Release(kind, name, version, manifest, 1, "{}", len(held), sum(held.values()), held.keys())

    def store(connection: Any) -> None:
        queue.put_blobs(connection, {**held, manifest: 1}, at=1.0)
        contents.publish(connection, by, release, None, at=1.0)

    database.write(store)


def limit(database: Database, size: int | None) -> None:
    database.write(lambda c: access.update_project(c, "p", {"max_content_bytes": size}))


def counted(database: Database) -> int:
    with database.read() as connection:
        return usage.counted_bytes(connection, "p")


@pytest.fixture(autouse=True)
def project(database):
    add_project(database)


def test_every_manifest_counts_once_at_its_full_size_until_it_is_withdrawn(database):
    publish(database, "1", {"a": 60, "b": 40})
    publish(database, "one", {"a": 60, "b": 40})
    publish(database, "1", {"a": 60, "b": 40}, name="team/copy")
    assert counted(database) == 101, "the same files under three names, and the manifest's own size"
    publish(database, "2", {"a": 60, "c": 5})
    assert counted(database) == 167, "shared files count in both"
    database.write(lambda c: contents.withdraw(c, ContentKind.DATASETS, "team/data", "2", at=2.0))
    assert counted(database) == 101
    with database.read() as connection:
        assert usage.counted_bytes(connection, "another") == 0


def test_what_was_sent_and_nothing_names_counts_where_there_is_a_quota(database):
    free = usage.ALWAYS_SENT_BYTES

    def send(word: str, size: int) -> None:
        reserve(database, word, size)
        record(database, word, size)

    send("unlimited", 10 * free)
    limit(database, 11 * free)
    send("room", free - 1)
    with pytest.raises(Refusal) as refused:
        send("too much", 2)
    assert refused.value.code == "CONTENT_QUOTA_EXCEEDED"
    assert refused.value.extra == {
        "max_content_bytes": 11 * free,
        "content_bytes": 0,
        "unnamed_bytes": 11 * free - 1,
        "sending_bytes": 0,
        "wanted_bytes": 2,
    }
    send("room", free - 1)
    publish(database, "1", {"unlimited": 10 * free, "room": free - 2})
    send("a Runner, though the quota is full", free)
    with pytest.raises(Refusal):
        send("more", 2)
    database.write(lambda c: contents.withdraw(c, ContentKind.DATASETS, "team/data", "1", at=2.0))
    send("more", 2)


def reserve(
    database: Database, word: str, size: int, *, name: str = "", at: float = 1.0, seconds: float = 60.0
) -> None:
    """Reserve room for a blob; under its own name unless one is given."""
    sent = digest(word)
    database.write(
        lambda c: usage.reserve(c, "p", name or word, {sent: size}, sent=sent, at=at, seconds=seconds)
    )


def record(database: Database, word: str, size: int, *, name: str = "", at: float = 1.0) -> None:
    """Store what was reserved."""

    def store(connection: Any) -> None:
        usage.settle(connection, "p", name or word, {digest(word): size}, sent=digest(word), at=at)
        queue.put_blobs(connection, {digest(word): size}, at=at, sender="p")

    database.write(store)


FREE = usage.ALWAYS_SENT_BYTES


def test_what_is_being_sent_counts_until_it_is_stored_or_given_back(database):
    reserve(database, "without a quota", 100 * FREE)
    limit(database, 2 * FREE)
    reserve(database, "a", FREE)
    reserve(database, "b", FREE)
    with pytest.raises(Refusal) as refused:
        reserve(database, "c", 1)
    assert refused.value.code == "CONTENT_QUOTA_EXCEEDED"
    assert refused.value.extra["sending_bytes"] == 2 * FREE
    assert "is sending" in refused.value.message
    database.write(lambda c: usage.give_back(c, "b"))
    reserve(database, "c", FREE)
    record(database, "a", FREE)
    with pytest.raises(Refusal) as refused:
        reserve(database, "d", 1)
    assert (refused.value.extra["unnamed_bytes"], refused.value.extra["sending_bytes"]) == (FREE, FREE)
    reserve(database, "c", FREE)
    reserve(database, "a", FREE)


def refused(call: Callable[[], None]) -> str:
    with pytest.raises(Refusal) as refusal:
        call()
    return refusal.value.code


def test_each_of_several_who_send_the_same_counts_and_there_is_room_again_when_one_ends(database):
    limit(database, 2 * FREE)
    for name in ("one", "again, after a lost connection"):
        reserve(database, "a", FREE, name=name)
    assert refused(lambda: reserve(database, "b", 1)) == "CONTENT_QUOTA_EXCEEDED"
    assert refused(lambda: reserve(database, "a", FREE, name="third")) == "UPLOAD_BUSY"
    record(database, "a", FREE, name="one")
    assert refused(lambda: reserve(database, "b", 1)) == "CONTENT_QUOTA_EXCEEDED", (
        "one still lies on the disk"
    )
    record(database, "a", FREE, name="again, after a lost connection")
    reserve(database, "b", FREE)


def test_what_the_project_sent_itself_counts_once_more_only_while_others_send_it_too(database):
    limit(database, FREE)
    reserve(database, "a", FREE)
    record(database, "a", FREE)
    reserve(database, "a", FREE, name="heals it")
    assert refused(lambda: reserve(database, "a", FREE, name="also")) == "UPLOAD_BUSY"
    assert refused(lambda: reserve(database, "a", FREE + 1, name="longer")) == "CONTENT_QUOTA_EXCEEDED"
    record(database, "a", FREE, name="heals it")
    reserve(database, "a", FREE, name="also")


@pytest.mark.parametrize("stored_by", [None, "another", "its manifest"])
def test_what_may_be_sent_does_not_depend_on_what_others_have(database, stored_by):
    add_project(database, "another")
    other = replace(PUBLISHER, project_id="another")
    if stored_by is not None:
        database.write(lambda c: queue.put_blobs(c, {digest("a"): 2 * FREE}, at=1.0, sender="another"))
    if stored_by == "its manifest":
        publish(database, "1", {"a": 2 * FREE}, name="others/data", by=other)
    limit(database, 2 * FREE)
    assert refused(lambda: reserve(database, "a", 100 * FREE)) == "CONTENT_QUOTA_EXCEEDED"
    reserve(database, "a", 2 * FREE)
    record(database, "a", 2 * FREE)
    with pytest.raises(Refusal) as refusal:
        reserve(database, "b", 1)
    assert (refusal.value.extra["unnamed_bytes"], refusal.value.extra["content_bytes"]) == (2 * FREE, 0)


def test_manifests_count_before_they_are_published_and_after(database):
    limit(database, 2 * FREE)
    sizes = {digest("manifest"): FREE}
    for name in ("manifest", "second"):
        reserve(database, name, FREE)
        record(database, name, FREE)
    assert refused(lambda: reserve(database, "third", 1)) == "CONTENT_QUOTA_EXCEEDED"
    release = Release(ContentKind.DATASETS, "team/data", "1", *sizes, FREE, "{}", 0, 0, ())
    database.write(lambda c: contents.publish(c, PUBLISHER, release, None, at=1.0))
    assert counted(database) == FREE
    assert refused(lambda: reserve(database, "third", 1)) == "CONTENT_QUOTA_EXCEEDED"
    limit(database, FREE)
    more = replace(release, version="2", manifest_sha256=digest("second"))
    assert (
        refused(lambda: database.write(lambda c: contents.publish(c, PUBLISHER, more, None, at=1.0)))
        == "CONTENT_QUOTA_EXCEEDED"
    )
    database.write(lambda c: contents.withdraw(c, ContentKind.DATASETS, "team/data", "1", at=2.0))
    database.write(lambda c: contents.publish(c, PUBLISHER, more, None, at=3.0))


def test_files_of_a_runner_are_named_by_it(database):
    limit(database, FREE)
    for word in ("main.sh", "lib.sh"):
        reserve(database, word, FREE // 2)
        record(database, word, FREE // 2)
    assert refused(lambda: reserve(database, "c", 1)) == "CONTENT_QUOTA_EXCEEDED"
    publish_runner(database, {"main.sh": FREE // 2, "lib.sh": FREE // 2})
    reserve(database, "c", FREE)


def test_what_a_killed_server_reserved_expires_and_who_was_only_slow_is_asked_once_more(database):
    limit(database, FREE)
    reserve(database, "slow", FREE, seconds=10.0)
    with pytest.raises(Refusal):
        reserve(database, "b", 1, at=10.9)
    reserve(database, "b", 1, at=11.0)
    with pytest.raises(Refusal):
        record(database, "slow", FREE, at=12.0)
    database.write(lambda c: usage.give_back(c, "b"))
    record(database, "slow", FREE, at=12.0)


def test_who_stores_more_than_was_reserved_is_asked_once_more(database):
    limit(database, FREE)
    reserve(database, "a", 1)
    reserve(database, "b", FREE - 1)
    with pytest.raises(Refusal):
        record(database, "a", 2)
    record(database, "a", 1)


def test_reservations_of_processes_that_are_gone_end_at_once(database):
    limit(database, FREE)
    for name in ("request 1", "request_2", "upload"):
        reserve(database, name, 1)
    assert database.write(lambda c: usage.give_back_all(c, "request ")) == 1
    with database.read() as connection:
        left = [usage.is_reserved(connection, name) for name in ("request 1", "request_2", "upload")]
    assert left == [False, True, True]


def test_of_many_at_once_no_more_get_room_than_there_is(database):
    limit(database, 3 * FREE)
    ready = threading.Barrier(8)
    answers: list[str] = []

    def one(number: int) -> None:
        ready.wait()
        try:
            reserve(database, str(number), FREE)
        except Refusal as refusal:
            answers.append(refusal.code)
        else:
            record(database, str(number), FREE)
            answers.append("stored")

    threads = [threading.Thread(target=one, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == ["CONTENT_QUOTA_EXCEEDED"] * 5 + ["stored"] * 3


def test_what_would_exceed_the_quota_is_refused_with_the_numbers(database):
    limit(database, 102)
    publish(database, "1", {"a": 60})
    with pytest.raises(Refusal) as refused:
        publish(database, "2", {"b": 41})
    assert refused.value.code == "CONTENT_QUOTA_EXCEEDED"
    assert refused.value.extra == {"max_content_bytes": 102, "content_bytes": 61, "wanted_bytes": 42}
    assert "may hold 102 bytes" in refused.value.message
    publish(database, "2", {"b": 40})
    publish(database, "two", {"b": 40})
    publish(database, "1", {"a": 60})
    assert counted(database) == 102
    database.write(lambda c: contents.withdraw(c, ContentKind.DATASETS, "team/data", "1", at=2.0))
    publish(database, "3", {"c": 60})
    with pytest.raises(Refusal):
        publish(database, "1", {"a": 60})
    limit(database, None)
    publish(database, "1", {"a": 60})


def test_a_quota_below_what_is_held_withdraws_nothing(database):
    publish(database, "1", {"a": 60})
    limit(database, 10)
    publish(database, "same", {"a": 60})
    with pytest.raises(Refusal):
        publish(database, "2", {"b": 1})
    limit(database, 0)
    with pytest.raises(Refusal):
        publish(database, "3", {"c": 1})
    with pytest.raises(Refusal):
        publish(database, "nothing", {"empty": 0})


def test_whoever_publishes_the_namespace_s_project_pays(database):
    publish(database, "1", {"a": 60})
    add_project(database, "other")
    limit(database, 100)
    owner = Principal("key", "other", KeyKind.HUMAN, frozenset(Permission), owner=True, label="owner")
    with pytest.raises(Refusal) as refused:
        publish(database, "2", {"b": 60}, by=owner)
    assert "project `p`" in refused.value.message


def test_two_publishers_at_once_cannot_exceed_it_together(database):
    limit(database, 100)
    for round_ in range(5):
        ready = threading.Barrier(3)
        answers: list[str] = []

        def one(number: int, round_: int = round_, ready: Any = ready, answers: list[str] = answers) -> None:
            ready.wait()
            try:
                publish(database, f"{round_}-{number}", {f"{round_} {number}": 60}, name=f"team/d{number}")
            except Refusal as refusal:
                answers.append(refusal.code)
            else:
                answers.append("published")

        threads = [threading.Thread(target=one, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(answers) == ["CONTENT_QUOTA_EXCEEDED", "CONTENT_QUOTA_EXCEEDED", "published"]
        assert counted(database) == 61
        for number in range(3):
            version = f"{round_}-{number}"
            database.write(
                lambda c, n=number, v=version: contents.withdraw(
                    c, ContentKind.DATASETS, f"team/d{n}", v, at=2.0
                )
            )


def held(database: Database, project: str | None = None) -> dict[str, Held]:
    with database.read() as connection:
        return {f"{each.project_id} {each.kind}": each for each in usage.usage(connection, project)}


def test_usage_by_project_and_kind(database):
    add_project(database, "other")
    publish(database, "1", {"a": 60, "b": 40})
    publish(database, "2", {"a": 60, "c": 5})
    publish(database, "gone", {"z": 1000})
    database.write(lambda c: contents.withdraw(c, ContentKind.DATASETS, "team/data", "gone", at=2.0))
    publish(database, "1", {"w": 7}, name="team/model", kind=ContentKind.MODELS)
    publish_runner(database, {"main.sh": 3, "a": 60})
    _, [trial] = add_job(database)
    add_artifacts(database, trial, {"x": ("a", 60), "y": ("a", 60), "z": ("o", 9)})
    database.write(lambda c: queue.put_blobs(c, {digest("ck"): 10}, at=1.0))
    database.write(lambda c: add_checkpoint(c, trial, [digest("ck")]))
    # A published manifest's own bytes count too: one each.
    assert held(database) == {
        "p datasets": Held("p", "datasets", 2, 167, 107),
        "p models": Held("p", "models", 1, 8, 8),
        "p runners": Held("p", "runners", 1, 63, 63),
        "p artifacts": Held("p", "artifacts", 3, 129, 69),
        "p checkpoints": Held("p", "checkpoints", 1, 10, 10),
    }
    assert held(database, "other") == {}
    assert held(database, "p") == held(database)


def publish_runner(database: Database, files: dict[str, int]) -> None:
    sizes = {digest(word): size for word, size in files.items()}
    row = {
        "runner": "team/run",
        "revision": "a" * 40,
        "snapshot_sha256": digest("snapshot"),
        "manifest": "{}",
        "definition": "{}",
        "source_ref": None,
        "published_at": 1.0,
        "published_by": "somebody",
    }

    def store(connection: Any) -> None:
        queue.put_blobs(connection, sizes, at=1.0)
        manifests.put_manifest(connection, digest("snapshot"), "runners", 2, sizes, at=1.0)
        runners.claim(connection, PUBLISHER, "team/run", Visibility.PROJECT, at=1.0)
        runners.insert_revision(connection, row)

    database.write(store)


def add_artifacts(database: Database, trial: Any, files: dict[str, tuple[str, int]]) -> None:
    rows: Sequence[dict[str, Any]] = [
        {
            "id": IDS.artifact(),
            "trial_id": trial.id,
            "name": name,
            "size": size,
            "sha256": digest(word),
            "upload_state": "uploaded",
            "created_at": 1.0,
        }
        for name, (word, size) in files.items()
    ]

    def store(connection: Any) -> None:
        queue.put_blobs(connection, {row["sha256"]: row["size"] for row in rows}, at=1.0)
        moves.put_artifacts(connection, trial.id, rows)

    database.write(store)
