"""Collecting garbage: what a Job or a name needs stays, whatever happens meanwhile; the rest goes."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

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
from trainshed.store.database import Database
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
_CONTENTS = st.integers(0, len(_CONTENT) - 1)
_HELD_ROWS = """
    SELECT manifest_sha256, manifest_blobs.sha256 FROM manifest_blobs
    JOIN manifests ON manifests.sha256 = manifest_sha256 WHERE let_go_at IS NULL
"""
_REFUSED = {"BLOB_BEING_DELETED", "BLOB_NOT_FOUND", "CONTENT_NOT_FOUND"}


class Interleavings(RuleBasedStateMachine):
    """Everything that begins to need something, and everything that a collector does, step by step.

    A step is what happens between two points at which another process may come between. What is refused is
    not done, and nothing is needed for it; whatever was not refused has to be there from then on.
    """

    database: Database

    def __init__(self) -> None:
        super().__init__()
        empty(self.database)
        add_project(self.database)
        self.clock = Clock()
        self.blobs = Memory()
        self.model = Model()
        self.serial = 0
        self.crash()
        self.stored: list[str] = []
        self.resolved: list[tuple[str, str]] = []
        self.manifests: dict[str, tuple[str, frozenset[str]]] = {}

    def write(self, work: Callable[[Any], Any]) -> bool:
        """Whether the transaction was not refused."""
        try:
            self.database.write(work)
        except Refusal as refusal:
            if refusal.code not in _REFUSED:
                raise
            return False
        return True

    # Those who need something

    @rule(number=_CONTENTS)
    def store(self, number: int) -> None:
        self.stored.append(self.blobs.put(io.BytesIO(_CONTENT[number])).sha256)

    @precondition(lambda self: self.stored)
    @rule(data=st.data())
    def record(self, data: st.DataObject) -> None:
        """What a door does after storing. It may happen any time later, or never."""
        name = data.draw(st.sampled_from(sorted(set(self.stored))))
        self.stored.remove(name)
        size, at = len(_CONTENT[_NAMES.index(name)]), self.clock()
        if self.write(lambda c: queue.put_blobs(c, {name: size}, at=at)) and self.blobs.missing([name]):
            self.stored.append(self.blobs.put(io.BytesIO(_CONTENT[_NAMES.index(name)])).sha256)

    def told_present(self, name: str) -> bool:
        """Whether the door answers that the blob need not be sent; if not, it is sent at once."""
        at, found = self.clock(), set()
        self.database.write(lambda c: found.update(queue.touch_blobs(c, [name], at=at)))
        return name in found and self.blobs.exists(name)

    def send(self, name: str) -> bool:
        content = _CONTENT[_NAMES.index(name)]
        self.blobs.put(io.BytesIO(content))
        at = self.clock()
        recorded = self.write(lambda c: queue.put_blobs(c, {name: len(content)}, at=at))
        return recorded and not self.blobs.missing([name])

    @rule(version=st.sampled_from("xyz"), numbers=st.sets(_CONTENTS, min_size=1, max_size=3))
    def publish(self, version: str, numbers: set[int]) -> None:
        held = frozenset(_NAMES[number] for number in numbers)
        if not all(self.told_present(name) or self.send(name) for name in sorted(held)):
            return
        digest = hashlib.sha256(json.dumps(sorted(held)).encode()).hexdigest()
        manifest = json.dumps(sorted(held)).encode()
        if self.manifests.get(version, (digest, held))[0] != digest:
            return  # a version never changes
        self.blobs.put(io.BytesIO(manifest))
        at = self.clock()
        if not self.write(lambda c: queue.put_blobs(c, {digest: len(manifest)}, at=at)):
            return
        if self.blobs.missing([digest]):
            return
        wanted = Release(
            ContentKind.DATASETS, "team/data", version, digest, len(manifest), "{}", len(held), 1, held
        )
        if self.write(lambda c: contents.publish(c, PUBLISHER, wanted, None, at=at)):
            self.manifests[version] = digest, held
            self.model.versions[version] = held | {digest}

    @rule(version=st.sampled_from("xyz"))
    def withdraw(self, version: str) -> None:
        withdraw(self.database, version, at=self.clock())
        self.model.versions.pop(version, None)

    @rule(version=st.sampled_from("xyz"))
    def resolve(self, version: str) -> None:
        """Acceptance looks a content up; its transaction comes later."""
        if version in self.model.versions:
            self.resolved.append((version, self.manifests[version][0]))

    @precondition(lambda self: self.resolved)
    @rule()
    def accept(self) -> None:
        version, digest = self.resolved.pop()
        self.serial += 1
        _, [trial] = add_job(self.database, f"r{self.serial}")
        row = {
            "trial_id": trial.id,
            "role": "input:data",
            "kind": "datasets",
            "name": "team/data",
            "version": version,
            "manifest_sha256": digest,
        }
        if self.write(lambda c: jobs.insert_contents(c, [row])):
            self.model.trials.append(self.manifests[version][1] | {digest})

    @rule(number=_CONTENTS)
    def collect_output(self, number: int) -> None:
        """A Trial's output becomes an Artifact."""
        self.serial += 1
        _, [trial] = add_job(self.database, f"r{self.serial}")
        blob = self.blobs.put(io.BytesIO(_CONTENT[number]))
        at = self.clock()
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

    @rule(number=_CONTENTS)
    def register_checkpoint(self, number: int) -> None:
        self.serial += 1
        _, [trial] = add_job(self.database, f"r{self.serial}")
        blob = self.blobs.put(io.BytesIO(_CONTENT[number]))
        at = self.clock()

        def store(connection: Any) -> None:
            queue.put_blobs(connection, {blob.sha256: blob.size}, at=at)
            add_checkpoint(connection, trial, [blob.sha256])

        if self.write(store) and not self.blobs.missing([blob.sha256]):
            self.model.checkpoints[f"ckpt-{trial.id}"] = frozenset({blob.sha256})

    @precondition(lambda self: self.model.checkpoints)
    @rule(data=st.data())
    def delete_checkpoint(self, data: st.DataObject) -> None:
        chosen = data.draw(st.sampled_from(sorted(self.model.checkpoints)))
        at = self.clock()
        self.database.write(lambda c: checkpoints.mark_deleted(c, chosen, at=at, by="somebody"))
        del self.model.checkpoints[chosen]

    # The collector

    @rule()
    def crash(self) -> None:
        """The collector's process dies; the next one knows nothing."""
        self.unneeded: list[str] = []
        self.dead: list[str] = []
        self.strange: dict[str, int] = {}
        self.marked: list[tuple[Marked, list[str]]] = []
        self.cutoff = 0.0

    @rule(seconds=st.sampled_from([1.0, 100.0, MIN_GRACE_SECONDS, GRACE, 2 * GRACE]))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule()
    def look(self) -> None:
        self.cutoff = self.clock() - GRACE
        with self.database.read() as connection:
            whole = ("", "g" * 64)
            self.unneeded = garbage.unneeded_blobs(connection, *whole, cutoff=self.cutoff)
            self.dead = garbage.dead_manifests(connection, *whole, cutoff=self.cutoff)
            names = {blob.sha256: blob.size for blob in self.blobs.names()}
            self.strange = {name: names[name] for name in garbage.unrecorded(connection, names)}

    @precondition(lambda self: self.dead)
    @rule()
    def let_go(self) -> None:
        dead, at = self.dead, self.clock()
        self.dead = []
        self.database.write(lambda c: garbage.let_go(c, dead, cutoff=self.cutoff, at=at))

    @rule()
    def drop_a_row(self) -> None:
        self.database.write(lambda c: garbage.drop_rows(c, 1))

    @precondition(lambda self: self.unneeded)
    @rule()
    def mark(self) -> None:
        names, at = self.unneeded, self.clock()
        self.unneeded = []
        marked = self.database.write(lambda c: garbage.mark(c, names, cutoff=self.cutoff, at=at))
        self.marked.append((marked, []))

    @rule()
    def take_over(self) -> None:
        """Only a process that follows a dead one does this: on what is left no one works any more."""
        self.crash()
        at = self.clock() + 1e-3
        marked = self.database.write(
            lambda c: garbage.take_over(c, before=at, cutoff=at - GRACE, at=at, count=10)
        )
        self.marked.append((marked, []))

    @precondition(lambda self: any(len(done) < len(m.sizes) for m, done in self.marked))
    @rule()
    def remove(self) -> None:
        marked, done = next((m, done) for m, done in self.marked if len(done) < len(m.sizes))
        name = min(set(marked.sizes) - set(done))
        self.blobs.delete(name)
        done.append(name)

    @precondition(lambda self: self.marked)
    @rule()
    def forget(self) -> None:
        marked, done = self.marked.pop(0)
        self.database.write(lambda c: garbage.forget(c, marked, done))

    @precondition(lambda self: self.strange)
    @rule()
    def adopt(self) -> None:
        left = {name: size for name, size in self.strange.items() if self.blobs.exists(name)}
        self.strange = {}
        at = self.clock()
        self.database.write(lambda c: garbage.adopt(c, left, at=at))

    @rule()
    def whole_pass(self) -> None:
        self.crash()
        Collector(self.database, self.blobs, self.clock, grace_seconds=GRACE).run(sweep=True)

    # What must hold

    @invariant()
    def nothing_needed_is_missing(self) -> None:
        needed = self.model.needed()
        with self.database.read() as connection:
            usable = queue.untouched_blobs(connection, sorted(needed), at=self.clock())[0]
            held = self.model.trials + list(self.model.versions.values())
            kept = set(connection.exec_driver_sql(_HELD_ROWS).all())
        assert needed <= usable, "a needed blob has a row that may be counted on"
        for manifest, blobs in self.manifests.values():
            if blobs | {manifest} in held:
                assert {(manifest, blob) for blob in blobs | {manifest}} <= kept, "a manifest keeps its blobs"
        assert not self.blobs.missing(needed)

    def teardown(self) -> None:
        """Once all is over and the grace is past, only what is needed is left."""
        if hasattr(self, "model"):
            for _ in range(2):
                self.clock.now += 2 * GRACE
                self.whole_pass()
            kept = self.model.needed()
            assert set(self.blobs.held) == kept
            assert rows(self.database) == kept


def test_nothing_needed_is_ever_missing(reused_database):
    machine = type("OnDatabase", (Interleavings,), {"database": reused_database})
    # On a disk each step waits for it, and what differs between the databases are races, not steps.
    times = (
        hypothesis_settings.default.max_examples // 100 * (20 if reused_database.dialect == "sqlite" else 4)
    )
    run_state_machine_as_test(
        machine,
        settings=hypothesis_settings(max_examples=times, stateful_step_count=60, deadline=None),
    )
