"""Garbage collection between everybody else's steps, in random order: nothing needed is ever missing."""

from __future__ import annotations

import hashlib
import io
import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from support.databases import on_one_kind_of
from support.deployment import empty
from support.garbage import GRACE, PUBLISHER, REFUSED, Clock, rows, withdraw
from support.rows import IDS, add_checkpoint, add_job, add_project
from trainshed.content.blobs import Blob, FolderBlobStore
from trainshed.control.garbage import (
    Collector,
)
from trainshed.model.content import ContentKind
from trainshed.model.errors import Refusal
from trainshed.store import checkpoints, contents, garbage, jobs, moves, queue
from trainshed.store.contents import Release
from trainshed.store.database import Database
from trainshed.store.garbage import Marked


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
            if refusal.code not in REFUSED:
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


@on_one_kind_of("reused_database")  # what differs between the kinds are races, not steps
def test_nothing_needed_is_ever_missing(reused_database):
    @hypothesis_settings(max_examples=hypothesis_settings.default.max_examples // 2, deadline=None)
    @given(st.lists(st.sampled_from(_ACTIONS), min_size=40, max_size=80))
    def interleave(actions: list[str]) -> None:
        Interleavings(reused_database).run(actions)  # it asserts as it goes

    interleave()
