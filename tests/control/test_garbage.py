"""Collecting garbage: what a Job or a name needs stays, whatever happens meanwhile; the rest goes."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from support.deployment import Crash, FakeDeployment, crashing_at
from support.garbage import GRACE, PUBLISHER, REFUSED, Clock, publish, put, rows, withdraw
from support.rows import add_project
from trainshed.content.blobs import FolderBlobStore, StoreUnavailable
from trainshed.control.crashpoints import Point
from trainshed.control.garbage import (
    MIN_GRACE_SECONDS,
    TAKE_OVER_SECONDS,
    Collector,
    Found,
    Stopped,
    request_of,
)
from trainshed.engines.fake import Script
from trainshed.model.content import ContentKind
from trainshed.model.errors import Refusal
from trainshed.model.states import State
from trainshed.store import contents, garbage, queue, settings
from trainshed.store.contents import Release
from trainshed.store.database import Database, DatabaseUnavailable


@pytest.fixture
def blobs(tmp_path) -> FolderBlobStore:
    return FolderBlobStore(tmp_path / "content")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def collector(database, blobs, clock) -> Collector:
    add_project(database)
    return Collector(database, blobs, clock, grace_seconds=GRACE)


def test_only_what_nothing_needs_goes_and_only_after_the_grace(database, blobs, clock, collector):
    kept = publish(database, blobs, "1", [b"a", b"shared"], at=clock())
    gone = publish(database, blobs, "2", [b"b", b"shared"], at=clock())
    idle = put(database, blobs, b"never used", clock())
    withdraw(database, "2", at=clock())
    assert collector.run() == Found(looked_at=1)
    clock.now += GRACE + 1
    found = collector.run()
    assert (found.manifests, found.blobs) == (1, 3)
    size = len(b"b") + len(b"never used") + blobs.size(kept)
    assert found.bytes == size, "both manifests are equally long"
    assert rows(database) == {name.sha256 for name in blobs.names()}
    assert not blobs.exists(gone)
    assert not blobs.exists(idle)
    assert {blobs.open(name.sha256).read() for name in blobs.names()} >= {b"a", b"shared"}
    assert collector.run(sweep=True) == Found(looked_at=1)


def test_bytes_without_a_row_go_after_the_grace_unless_they_are_used(database, blobs, clock, collector):
    left, used = (blobs.put(io.BytesIO(content)).sha256 for content in (b"left by a crash", b"used again"))
    assert collector.run().adopted == 0, "looking through the store is for a sweep"
    assert collector.run(sweep=True).adopted == 2
    clock.now += GRACE + 1
    database.write(lambda c: queue.touch_blobs(c, [used], at=clock()))
    assert collector.run(sweep=True) == Found(looked_at=1, blobs=1, bytes=15)
    assert not blobs.exists(left)
    assert blobs.exists(used)


class Stubborn(FolderBlobStore):
    """A store that cannot delete for a while."""

    broken = True

    def delete(self, sha256: str) -> bool:
        if self.broken:
            raise StoreUnavailable("no answer")
        return super().delete(sha256)


def test_a_store_that_cannot_delete_leaves_marks_that_are_finished_later(database, tmp_path, clock):
    add_project(database)
    blobs = Stubborn(tmp_path / "content")
    collector = Collector(database, blobs, clock, grace_seconds=GRACE)
    name = put(database, blobs, b"unneeded", clock())
    clock.now += GRACE + 1
    with pytest.raises(StoreUnavailable):
        collector.run()
    with pytest.raises(Refusal) as refused:
        put(database, blobs, b"unneeded", clock())
    assert refused.value.code == "BLOB_BEING_DELETED"
    blobs.broken = False
    assert collector.finish_left().blobs == 1
    assert rows(database) == set()
    assert put(database, blobs, b"unneeded", clock()) == name
    assert blobs.exists(name)


class Slow(FolderBlobStore):
    """A store whose first deletion waits until the test lets it go on."""

    def __init__(self, root: Any) -> None:
        super().__init__(root)
        self.begun, self.go = threading.Event(), threading.Event()

    def delete(self, sha256: str) -> bool:
        self.begun.set()
        assert self.go.wait(30)
        return super().delete(sha256)


def test_of_two_collectors_none_removes_under_the_others_mark(database, tmp_path, clock):
    """A controller that lost the lead without noticing is still at work when the next one begins."""
    add_project(database)
    slow, quick = Slow(tmp_path / "content"), FolderBlobStore(tmp_path / "content")
    old = Collector(database, slow, clock, grace_seconds=GRACE)
    new = Collector(database, quick, clock, grace_seconds=GRACE)
    name = put(database, quick, b"unneeded", clock())
    clock.now += GRACE + 1
    thread = threading.Thread(target=old.run)
    thread.start()
    assert slow.begun.wait(30)
    if database.dialect == "postgresql":
        assert new.run().blobs == 0
        with pytest.raises(Refusal):
            put(database, quick, b"unneeded", clock())
    slow.go.set()
    thread.join(30)
    assert name not in rows(database)
    assert put(database, quick, b"unneeded", clock()) == name
    assert new.run().blobs == 0
    assert quick.exists(name)


def test_marks_of_a_process_that_died_are_taken_over(database, blobs, clock, collector):
    name = put(database, blobs, b"unneeded", clock())
    clock.now += GRACE + 1
    with crashing_at(Point.GARBAGE_AFTER_MARK), pytest.raises(Crash):
        collector.run()
    following = Collector(database, blobs, clock, grace_seconds=GRACE)
    if database.dialect == "postgresql":
        # The other process may still live; it stops long before this.
        assert following.run().blobs == 0
        clock.now += TAKE_OVER_SECONDS + 1
    assert following.run().blobs == 1
    assert not blobs.exists(name)


@pytest.mark.parametrize("point", [point for point in Point if point.startswith("garbage.")])
def test_a_crash_between_any_two_steps_is_finished_by_the_next_pass(database, blobs, clock, point):
    add_project(database)
    kept = publish(database, blobs, "1", [b"a", b"shared"], at=clock())
    publish(database, blobs, "2", [b"b", b"shared"], at=clock())
    withdraw(database, "2", at=clock())
    blobs.put(io.BytesIO(b"stray"))
    clock.now += GRACE + 1
    with crashing_at(point), pytest.raises(Crash):
        Collector(database, blobs, clock, grace_seconds=GRACE).run(sweep=True)
    clock.now += TAKE_OVER_SECONDS + 1
    Collector(database, blobs, clock, grace_seconds=GRACE).run(sweep=True)
    clock.now += GRACE + 1
    Collector(database, blobs, clock, grace_seconds=GRACE).run(sweep=True)
    assert {blobs.open(name.sha256).read() for name in blobs.names()} == {
        b"a",
        b"shared",
        blobs.open(kept).read(),
    }
    assert rows(database) == {name.sha256 for name in blobs.names()}


def test_it_ends_soon_when_the_process_ends(database, blobs, clock):
    add_project(database)
    put(database, blobs, b"unneeded", clock())
    clock.now += GRACE + 1
    stopping = threading.Event()
    stopping.set()
    with pytest.raises(Stopped):
        Collector(database, blobs, clock, grace_seconds=GRACE, stopping=stopping).run()
    assert len(rows(database)) == 1


def test_the_grace_is_never_so_short_that_a_transaction_could_miss_it(database, blobs, clock):
    add_project(database)
    collector = Collector(database, blobs, clock, grace_seconds=0.0)
    put(database, blobs, b"just stored", clock())
    clock.now += MIN_GRACE_SECONDS - 1
    assert collector.run().blobs == 0


class Ages:
    """A clock that jumps over the grace, but not within a step of somebody: no transaction takes an hour."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._changed = threading.Condition()
        self._steps = 0
        self._jumps = False

    @contextlib.contextmanager
    def step(self) -> Iterator[float]:
        """One call of a door; the time at which it is made."""
        with self._changed:
            self._changed.wait_for(lambda: not self._jumps)
            self._steps += 1
        try:
            yield self.clock()
        finally:
            with self._changed:
                self._steps -= 1
                self._changed.notify_all()

    def jump(self) -> None:
        with self._changed:
            self._jumps = True
            self._changed.wait_for(lambda: not self._steps)
            self.clock.now += GRACE + 1
            self._jumps = False
            self._changed.notify_all()


def publish_in_steps(
    database: Database, blobs: FolderBlobStore, ages: Ages, name: str, files: list[bytes]
) -> str:
    """As a client does: each file, the manifest, then the name. Raises `Refusal`."""
    held = []
    for content in files:
        with ages.step() as at:
            held.append(put(database, blobs, content, at))
    manifest = json.dumps(sorted(set(held))).encode()
    with ages.step() as at:
        digest = put(database, blobs, manifest, at)
    wanted = Release(ContentKind.DATASETS, name, digest, digest, len(manifest), "{}", len(held), 1, held)
    with ages.step() as at:
        # As the door does: somebody may have recorded one of them without its bytes a moment ago, whom his
        # own look then tells to send it again.
        if gone := blobs.missing([*held, digest]):
            raise queue.blob_being_deleted(gone[0])
        database.write(lambda c: contents.publish(c, PUBLISHER, wanted, None, at=at))
    return digest


def publish_and_withdraw(database: Database, blobs: FolderBlobStore, ages: Ages, seed: int) -> int:
    """Again and again, with files that others publish too; how often some of it was collected before its end.

    What was published is there, always.
    """
    chosen, name, refused = random.Random(seed), f"team/data-{seed}", 0
    for _ in range(10):
        files = [f"file {chosen.randrange(6)}".encode() for _ in range(3)]
        while True:
            try:
                manifest = publish_in_steps(database, blobs, ages, name, files)
            except Refusal as refusal:
                if refusal.code not in REFUSED:
                    raise
                refused += 1
            else:
                break
        for content in files:
            assert blobs.open(hashlib.sha256(content).hexdigest()).read() == content
        assert blobs.exists(manifest)
        with ages.step() as at:
            withdraw(database, manifest, at=at, name=name)
    return refused


def test_publishing_while_collecting(database, blobs, clock, collector):
    ages, removed = Ages(clock), 0
    with ThreadPoolExecutor() as pool:
        publishers = [pool.submit(publish_and_withdraw, database, blobs, ages, seed) for seed in range(3)]
        while not all(each.done() for each in publishers):
            ages.jump()
            removed += collector.run(sweep=True).blobs
    for each in publishers:
        each.result()
    assert removed


# In a deployment


def _settle(d: FakeDeployment, job: str) -> Any:
    return d.settle(job)


def test_outputs_that_are_the_garbage_of_a_moment_ago_are_collected_again(fake):
    """The collector of outputs finds old bytes of the same name being removed, and begins anew (E105)."""
    d = fake(default=Script(run_seconds=5.0, files={"out/a": b"the same", "out/b": b"other"}))
    name = put(d.database, d.blobs, b"the same", d.now())
    d.pass_time(86_400.0 * 2)
    cutoff, at = d.now() - 86_400.0, d.now()
    marked = d.database.write(lambda c: garbage.mark(c, [name], cutoff=cutoff, at=at))
    assert list(marked.sizes) == [name]
    job = d.submit(d.publish(outputs=["out/*"]), "r")
    d.run_until(lambda: d.facts(job).trial.state is State.COLLECTING)
    d.step()
    assert d.facts(job).trial.state is State.COLLECTING
    d.blobs.delete(name)
    d.database.write(lambda c: garbage.forget(c, marked, [name]))
    facts = d.settle(job)
    assert facts.trial.state is State.SUCCEEDED
    assert [a.name for a in facts.artifacts[facts.trial.id]] == ["out/a", "out/b"]
    for artifact in facts.artifacts[facts.trial.id]:
        assert d.blobs.verify(artifact.sha256).size == artifact.size


def test_outputs_whose_bytes_went_between_storing_and_recording_are_collected_again(fake, monkeypatch):
    d = fake(default=Script(run_seconds=5.0, files={"out/a": b"the same"}))
    lost: list[str] = []
    put_blobs = queue.put_blobs

    def lose_first(connection: Any, sizes: Any, *, at: float) -> None:
        put_blobs(connection, sizes, at=at)
        name = hashlib.sha256(b"the same").hexdigest()
        if not lost and name in sizes:
            lost.append(name)
            d.blobs.delete(name)

    job = d.submit(d.publish(outputs=["out/*"]), "r")
    monkeypatch.setattr(queue, "put_blobs", lose_first)
    facts = d.settle(job)
    assert lost
    assert d.blobs.verify(lost[0]).size == len(b"the same")
    assert facts.trial.state is State.SUCCEEDED


def test_the_controller_collects_by_itself_and_when_asked(fake):
    d = fake(gc_grace_hours=1.0)
    d.submit(d.publish(), "r")
    old = put(d.database, d.blobs, b"old", d.now())
    d.pass_time(7200.0)
    d.step()
    assert d.blobs.exists(old), "the next regular pass is an hour away"
    request = json.dumps({"request_id": "gc-1"})
    d.database.write(lambda c: settings.put(c, settings.GARBAGE_REQUEST, request))
    d.step()
    assert not d.blobs.exists(old)
    with d.database.read() as connection:
        report = request_of(settings.get(connection, settings.GARBAGE_REPORT))
    assert (report["request_id"], report["state"], report["blobs"]) == ("gc-1", "done", 1)
    older = put(d.database, d.blobs, b"older", d.now())
    d.pass_time(7200.0)
    d.step()
    assert d.blobs.exists(older), "one request, one pass"
    d.boot()
    assert not d.blobs.exists(older), "a new controller begins with a pass"


def test_a_request_that_a_dead_process_began_is_served_by_the_next_one(fake):
    d = fake(gc_grace_hours=1.0)
    old = put(d.database, d.blobs, b"old", d.now())
    d.pass_time(7200.0)
    request = {"request_id": "gc-1"}
    d.database.write(lambda c: settings.put(c, settings.GARBAGE_REQUEST, json.dumps(request)))
    running = json.dumps({**request, "state": "running"})
    d.database.write(lambda c: settings.put(c, settings.GARBAGE_REPORT, running))
    d.boot()
    assert not d.blobs.exists(old)
    with d.database.read() as connection:
        assert request_of(settings.get(connection, settings.GARBAGE_REPORT))["state"] == "done"


def test_a_pass_that_lost_the_database_is_begun_again(fake, monkeypatch):
    d = fake(gc_grace_hours=1.0)
    old = put(d.database, d.blobs, b"old", d.now())
    d.pass_time(7200.0)
    request = json.dumps({"request_id": "gc-1"})
    d.database.write(lambda c: settings.put(c, settings.GARBAGE_REQUEST, request))

    def lost(*_: Any, **__: Any) -> None:
        raise DatabaseUnavailable("gone")

    with monkeypatch.context() as patched:
        patched.setattr(garbage, "unneeded_blobs", lost)
        d.step()
    assert d.blobs.exists(old)
    d.pass_time(60.0)
    d.step()
    assert not d.blobs.exists(old)


def test_a_controller_that_shall_not_collect_finishes_what_was_begun_and_serves_requests(fake):
    d = fake(gc=False, gc_grace_hours=1.0)
    first, second = (put(d.database, d.blobs, content, d.now()) for content in (b"first", b"second"))
    d.pass_time(7200.0)
    cutoff, at = d.now() - 3600.0, d.now()
    d.database.write(lambda c: garbage.mark(c, [first], cutoff=cutoff, at=at))
    d.pass_time(TAKE_OVER_SECONDS + 1)
    d.boot()
    assert not d.blobs.exists(first)
    assert d.blobs.exists(second)
    d.database.write(lambda c: settings.put(c, settings.GARBAGE_REQUEST, '{"request_id": "x"}'))
    d.step()
    assert not d.blobs.exists(second)
