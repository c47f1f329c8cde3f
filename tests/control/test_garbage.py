"""Collecting garbage: what a Job or a name needs stays, whatever happens meanwhile; the rest goes."""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import json
import random
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from support.deployment import Crash, FakeDeployment, crashing_at, empty
from support.rows import IDS, add_checkpoint, add_job, add_project
from trainshed.content.blobs import Blob, FolderBlobStore, StoreUnavailable
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
from trainshed.model.access import KeyKind, Permission, Principal
from trainshed.model.content import ContentKind
from trainshed.model.errors import Refusal
from trainshed.model.states import State
from trainshed.store import checkpoints, contents, garbage, jobs, moves, queue, settings
from trainshed.store.contents import Release
from trainshed.store.database import Database, DatabaseUnavailable
from trainshed.store.garbage import Marked

PUBLISHER = Principal("key", "p", KeyKind.HUMAN, frozenset(Permission), label="somebody")
GRACE = 3600.0


@dataclass
class Clock:
    now: float = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def put(database: Database, blobs: Any, content: bytes, at: float) -> str:
    """Store and record bytes as every door does: once the row is there, look whether the bytes still are."""
    blob = blobs.put(io.BytesIO(content))
    database.write(lambda c: queue.put_blobs(c, {blob.sha256: blob.size}, at=at))
    if blobs.missing([blob.sha256]):
        raise queue.blob_being_deleted(blob.sha256)
    return str(blob.sha256)


def publish(
    database: Database, blobs: Any, version: str, files: list[bytes], *, at: float, name: str = "team/data"
) -> str:
    """Publish a Dataset of these files; the digest of its manifest."""
    held = [put(database, blobs, content, at) for content in files]
    manifest = json.dumps(sorted(held)).encode()
    digest = put(database, blobs, manifest, at)
    wanted = Release(ContentKind.DATASETS, name, version, digest, len(manifest), "{}", len(held), 1, held)
    database.write(lambda c: contents.publish(c, PUBLISHER, wanted, None, at=at))
    return digest


def withdraw(database: Database, version: str, *, at: float, name: str = "team/data") -> None:
    database.write(lambda c: contents.withdraw(c, ContentKind.DATASETS, name, version, at=at))


def rows(database: Database) -> set[str]:
    with database.read() as connection:
        return set(connection.exec_driver_sql("SELECT sha256 FROM blobs").scalars())


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
                if refusal.code not in _REFUSED:
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


# Random interleavings


class Memory:
    """Where bytes lie, without a disk: what the steps below do to it is what counts."""

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}

    def put(self, source: Any) -> Blob:
        content = source.read()
        name = hashlib.sha256(content).hexdigest()
        self.held[name] = content
        return Blob(name, len(content))

    def exists(self, name: str) -> bool:
        return name in self.held

    def missing(self, names: Any) -> list[str]:
        return [name for name in names if name not in self.held]

    def delete(self, name: str) -> bool:
        return self.held.pop(name, None) is not None

    def names(self) -> Iterator[Blob]:
        yield from [Blob(name, len(content)) for name, content in self.held.items()]


@dataclass
class Model:
    """What has to be there: what each name, Trial, Artifact and Checkpoint holds."""

    versions: dict[str, frozenset[str]] = field(default_factory=dict)
    trials: list[frozenset[str]] = field(default_factory=list)
    artifacts: list[str] = field(default_factory=list)
    checkpoints: dict[str, frozenset[str]] = field(default_factory=dict)

    def needed(self) -> set[str]:
        held = [*self.versions.values(), *self.trials, *self.checkpoints.values()]
        return set().union(*held, self.artifacts)


_CONTENT = [b"zero", b"one", b"two", b"three", b"four"]
_NAMES = [hashlib.sha256(content).hexdigest() for content in _CONTENT]
_VERSIONS = {"x": (0, 1), "y": (1, 2)}
"""What each version of the one Dataset holds."""
_PASS = [
    "age",
    "look",
    "let_go",
    "drop_rows",
    "drop_rows",
    "look",
    "mark",
    "remove",
    "remove",
    "remove",
    "forget",
    "adopt",
]
"""What a collector does, over and over; between any two of its steps others come."""
_WEIGHTS = {
    "collect": 24,
    "crash": 1,
    "wait": 1,
    "publish x": 3,
    "publish y": 1,
    "withdraw x": 3,
    "withdraw y": 1,
    "resolve x": 3,
    "accept": 2,
    "output 0": 1,
    "output 3": 1,
    "checkpoint 1": 1,
    "checkpoint 4": 1,
    "delete_checkpoint": 1,
    "store 2": 1,
    "store 3": 1,
    "record": 2,
}
_ACTIONS = [action for action, weight in _WEIGHTS.items() for _ in range(weight)]
_HELD_ROWS = """
    SELECT manifest_sha256, manifest_blobs.sha256 FROM manifest_blobs
    JOIN manifests ON manifests.sha256 = manifest_sha256 WHERE let_go_at IS NULL
"""
_REFUSED = {"BLOB_BEING_DELETED", "BLOB_NOT_FOUND", "CONTENT_NOT_FOUND"}


class Interleavings:
    """Everything that begins to need something, and everything that a collector does, step by step.

    A step is what happens between two points at which another process may come between. What is refused is
    not done, and nothing is needed for it; whatever was not refused has to be there from then on.
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        empty(database)
        add_project(database)
        self.clock = Clock()
        self.blobs = Memory()
        self.model = Model()
        self.serial = 0
        self.stored: list[int] = []
        self.resolved: list[str] = []
        self.held: dict[str, frozenset[str]] = {}
        self.crash()

    def run(self, actions: list[str]) -> None:
        for action in actions:
            name, _, argument = action.partition(" ")
            step = getattr(self, name)
            step(*[int(argument) if argument.isdigit() else argument] if argument else [])
            self.check()
        # Once all is over and the grace is past, only what is needed is left.
        for _ in range(2):
            self.age()
            self.whole_pass()
        kept = self.model.needed()
        assert set(self.blobs.held) == kept
        assert rows(self.database) == kept

    def check(self) -> None:
        needed = self.model.needed()
        with self.database.read() as connection:
            usable = queue.untouched_blobs(connection, sorted(needed), at=self.clock())[0]
            kept = set(connection.exec_driver_sql(_HELD_ROWS).all())
        assert needed <= usable, "a needed blob has a row that may be counted on"
        assert not self.blobs.missing(needed)
        for held in [*self.model.versions.values(), *self.model.trials]:
            [manifest] = held - set(_NAMES)
            assert {(manifest, blob) for blob in held} <= kept, "a manifest keeps its blobs"

    def write(self, work: Callable[[Any], Any]) -> bool:
        """Whether the transaction was not refused."""
        try:
            self.database.write(work)
        except Refusal as refusal:
            if refusal.code not in _REFUSED:
                raise
            return False
        return True

    def new_trial(self) -> Any:
        self.serial += 1
        return add_job(self.database, f"r{self.serial}")[1][0]

    # Those who need something

    def store(self, number: int) -> None:
        """The first half of a door's work; the second may come any time later, or never."""
        self.blobs.put(io.BytesIO(_CONTENT[number]))
        self.stored.append(number)

    def record(self) -> None:
        if self.stored:
            number = self.stored.pop(0)
            size, at = len(_CONTENT[number]), self.clock()
            self.write(lambda c: queue.put_blobs(c, {_NAMES[number]: size}, at=at))

    def told_present(self, name: str) -> bool:
        """Whether the door answers that the blob need not be sent."""
        at, found = self.clock(), set()
        self.database.write(lambda c: found.update(queue.touch_blobs(c, [name], at=at)))
        return name in found and self.blobs.exists(name)

    def send(self, content: bytes) -> bool:
        blob, at = self.blobs.put(io.BytesIO(content)), self.clock()
        recorded = self.write(lambda c: queue.put_blobs(c, {blob.sha256: blob.size}, at=at))
        return recorded and not self.blobs.missing([blob.sha256])

    def publish(self, version: str) -> None:
        held = [_NAMES[number] for number in _VERSIONS[version]]
        for number in _VERSIONS[version]:
            if not self.told_present(_NAMES[number]) and not self.send(_CONTENT[number]):
                return
        manifest = json.dumps(held).encode()
        if not self.send(manifest):
            return
        digest, at = hashlib.sha256(manifest).hexdigest(), self.clock()
        wanted = Release(
            ContentKind.DATASETS, "team/data", version, digest, len(manifest), "{}", len(held), 1, held
        )
        if self.write(lambda c: contents.publish(c, PUBLISHER, wanted, None, at=at)):
            self.held[version] = self.model.versions[version] = frozenset({*held, digest})

    def withdraw(self, version: str) -> None:
        withdraw(self.database, version, at=self.clock())
        self.model.versions.pop(version, None)

    def resolve(self, version: str) -> None:
        """Acceptance looks a content up; its transaction comes later."""
        if version in self.model.versions:
            self.resolved.append(version)

    def accept(self) -> None:
        if not self.resolved:
            return
        version, trial = self.resolved.pop(), self.new_trial()
        [digest] = self.held[version] - set(_NAMES)
        row = {
            "trial_id": trial.id,
            "role": "input:data",
            "kind": "datasets",
            "name": "team/data",
            "version": version,
            "manifest_sha256": digest,
        }
        if self.write(lambda c: jobs.insert_contents(c, [row])):
            self.model.trials.append(self.held[version])

    def output(self, number: int) -> None:
        """A Trial's output becomes an Artifact."""
        trial, at = self.new_trial(), self.clock()
        blob = self.blobs.put(io.BytesIO(_CONTENT[number]))
        artifact = {
            "id": IDS.artifact(),
            "trial_id": trial.id,
            "name": "out",
            "size": blob.size,
            "sha256": blob.sha256,
            "upload_state": "uploaded",
            "created_at": at,
        }

        def store(connection: Any) -> None:
            queue.put_blobs(connection, {blob.sha256: blob.size}, at=at)
            moves.put_artifacts(connection, trial.id, [artifact])

        if self.write(store) and not self.blobs.missing([blob.sha256]):
            self.model.artifacts.append(blob.sha256)

    def checkpoint(self, number: int) -> None:
        trial, at = self.new_trial(), self.clock()
        blob = self.blobs.put(io.BytesIO(_CONTENT[number]))

        def store(connection: Any) -> None:
            queue.put_blobs(connection, {blob.sha256: blob.size}, at=at)
            add_checkpoint(connection, trial, [blob.sha256])

        if self.write(store) and not self.blobs.missing([blob.sha256]):
            self.model.checkpoints[f"ckpt-{trial.id}"] = frozenset({blob.sha256})

    def delete_checkpoint(self) -> None:
        if self.model.checkpoints:
            chosen, at = min(self.model.checkpoints), self.clock()
            self.database.write(lambda c: checkpoints.mark_deleted(c, chosen, at=at, by="somebody"))
            del self.model.checkpoints[chosen]

    # Time, and the collector

    def age(self) -> None:
        self.clock.now += 2 * GRACE

    def wait(self) -> None:
        self.clock.now += 100.0

    def collect(self) -> None:
        """The collector's next step."""
        getattr(self, next(self.steps))()

    def crash(self) -> None:
        """The collector's process dies; the next one knows nothing and finishes what is marked first."""
        first = ["take_over", "remove", "remove", "remove", "forget"]
        self.steps = itertools.chain(first, itertools.cycle(_PASS))
        self.unneeded: list[str] = []
        self.dead: list[str] = []
        self.strange: dict[str, int] = {}
        self.marked: list[tuple[Marked, list[str]]] = []
        self.cutoff = 0.0

    def look(self) -> None:
        self.cutoff = self.clock() - GRACE
        with self.database.read() as connection:
            whole = ("", "g" * 64)
            self.unneeded = garbage.unneeded_blobs(connection, *whole, cutoff=self.cutoff)
            self.dead = garbage.dead_manifests(connection, *whole, cutoff=self.cutoff)
            names = {blob.sha256: blob.size for blob in self.blobs.names()}
            self.strange = {name: names[name] for name in garbage.unrecorded(connection, names)}

    def let_go(self) -> None:
        dead, at = self.dead, self.clock()
        self.dead = []
        self.database.write(lambda c: garbage.let_go(c, dead, cutoff=self.cutoff, at=at))

    def drop_rows(self) -> None:
        self.database.write(lambda c: garbage.drop_rows(c, 2))

    def mark(self) -> None:
        names, at = self.unneeded, self.clock()
        self.unneeded = []
        self.marked.append(
            (self.database.write(lambda c: garbage.mark(c, names, cutoff=self.cutoff, at=at)), [])
        )

    def take_over(self) -> None:
        at = self.clock() + 1e-3
        marked = self.database.write(
            lambda c: garbage.take_over(c, before=at, cutoff=at - GRACE, at=at, count=10)
        )
        self.marked.append((marked, []))

    def remove(self) -> None:
        for marked, done in self.marked:
            if left := sorted(set(marked.sizes) - set(done)):
                self.blobs.delete(left[0])
                done.append(left[0])
                return

    def forget(self) -> None:
        if self.marked:
            marked, done = self.marked.pop(0)
            self.database.write(lambda c: garbage.forget(c, marked, done))

    def adopt(self) -> None:
        left = {name: size for name, size in self.strange.items() if self.blobs.exists(name)}
        self.strange = {}
        at = self.clock()
        self.database.write(lambda c: garbage.adopt(c, left, at=at))

    def whole_pass(self) -> None:
        self.crash()
        Collector(self.database, self.blobs, self.clock, grace_seconds=GRACE).run(sweep=True)


@pytest.fixture
def quick_database(reused_database: Database, _migrated_sqlite: Path, request: Any) -> Iterator[Database]:
    """Each step is a transaction, and on a disk each waits for it; SQLite's file lies in memory here."""
    memory = Path("/dev/shm")
    if reused_database.dialect == "postgresql" or not memory.is_dir():
        yield reused_database
        return
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        file = Path(folder) / "database.sqlite"
        shutil.copyfile(_migrated_sqlite, file)
        opened = Database(f"sqlite:///{file}")
        yield opened
        opened.close()


def test_nothing_needed_is_ever_missing(quick_database):
    # What differs between the databases are races, not steps.
    times = hypothesis_settings.default.max_examples // (2 if quick_database.dialect == "sqlite" else 20)

    @hypothesis_settings(max_examples=times, deadline=None)
    @given(st.lists(st.sampled_from(_ACTIONS), min_size=40, max_size=80))
    def interleave(actions: list[str]) -> None:
        Interleavings(quick_database).run(actions)

    interleave()
