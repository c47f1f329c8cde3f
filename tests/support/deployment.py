"""A whole deployment without a server: rows, blobs, one engine, and a controller driven step by step.

Everything runs in the calling thread, so a test decides what happens between any two steps, and a *crash* is
an exception that nothing catches: the controller is thrown away where it stood, and a new one starts on the
same rows and the same engine, as after a power cut.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from trainshed.content.blobs import FolderBlobStore
from trainshed.content.local import LocalContent
from trainshed.control import stopping
from trainshed.control.accept import Acceptance
from trainshed.control.controller import Controller
from trainshed.control.crashpoints import Point
from trainshed.engines.contract import Engine
from trainshed.engines.fake import FakeEngine, Script
from trainshed.engines.fake.engine import World
from trainshed.engines.local import LocalEngine
from trainshed.model.about import read_about
from trainshed.model.access import KeyKind, Permission, Principal, Visibility
from trainshed.model.content import ContentFile, ContentKind, make_manifest
from trainshed.model.ids import IdFactory
from trainshed.model.resources import Amounts, Gpu, Node, simulated_share
from trainshed.model.runner import parse_definition
from trainshed.model.runner_tree import RunnerFile, snapshot_sha256, tree_manifest
from trainshed.model.states import TERMINAL, AllocationState, State
from trainshed.model.strict_json import canonical_json
from trainshed.policy.effective import ServerPolicy
from trainshed.store import access, contents, events, jobs, manifests, queue, runners
from trainshed.store.database import Database
from trainshed.store.records import Allocation, Artifact, Event, Job, Project, Trial
from trainshed.store.tables import metadata

T = TypeVar("T")

GPU_MODEL = "H100"


class Crash(BaseException):
    """The process died here. Not an `Exception`: no code under test may survive it."""


class Inline(Executor):
    """Runs work at once in the caller's thread; a `Crash` in it goes on to the caller."""

    def submit(self, work: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(work(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - an executor hands every error on
            future.set_exception(error)
        return future


@contextmanager
def crashing_at(point: Point | None, *, time: int = 1) -> Iterator[list[Point]]:
    """Crash when ``point`` is reached for the ``time``-th time; answers all points reached so far."""
    reached: list[Point] = []

    def reach(here: Point) -> None:
        reached.append(here)
        if here is point and reached.count(point) == time:
            raise Crash(point)

    rooms = [module for name, module in sys.modules.items() if name.startswith("trainshed.control.")]
    with pytest.MonkeyPatch.context() as patched:
        for module in rooms:
            if hasattr(module, "reach"):
                patched.setattr(module, "reach", reach)
        yield reached


def fleet(gpus: int, *, name: str = "fake", model: str = GPU_MODEL) -> Node:
    """A node with simulated GPUs and what they bring along."""
    made = tuple(Gpu(i, model, f"{name}-{i}", 80_000, simulated=True) for i in range(gpus))
    return Node(name, made, simulated_share(gpus) + Amounts(cpus=4, memory_mb=16_384, storage_mb=65_536))


def person(project: str = "default", *, owner: bool = False) -> Principal:
    permissions = frozenset(Permission) - {Permission.ADMIN}
    return Principal(f"key-{project}", project, KeyKind.HUMAN, permissions, owner, "somebody")


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything the rows say about one Job at one moment."""

    job: Job
    trials: list[Trial]
    events: list[Event]
    allocations: dict[str, list[Allocation]]
    artifacts: dict[str, list[Artifact]]

    @property
    def trial(self) -> Trial:
        [only] = self.trials
        return only

    def codes(self, trial: Trial | None = None) -> list[str]:
        wanted = (trial or self.trial).id
        return [event.code for event in self.events if event.trial_id == wanted]

    @property
    def settled(self) -> bool:
        """Whether nothing will happen any more: all ended, all released."""
        held = [a for each in self.allocations.values() for a in each]
        ended = all(trial.state in TERMINAL for trial in self.trials)
        return ended and all(a.state is AllocationState.RELEASED for a in held)


class Deployment(ABC):
    """See the module's description. Subclasses bring the engine and its time."""

    engine: Engine

    def __init__(
        self, database: Database, root: Path, policy: ServerPolicy | None = None, **options: Any
    ) -> None:
        self.database = database
        self.root = root
        self.policy = policy or ServerPolicy(stop_grace_seconds=5.0)
        self.options = options
        self.blobs = FolderBlobStore(root / "blobs")
        self.add_project("default")
        self.boot()

    # To be said by the kind of engine

    @abstractmethod
    def now(self) -> float: ...

    @abstractmethod
    def new_engine(self) -> Engine: ...

    def new_ids(self) -> IdFactory:
        return IdFactory(self.now)

    @abstractmethod
    def pass_time(self, seconds: float) -> None: ...

    # The process

    def boot(self) -> None:
        """A new process on the rows and the engine's evidence, as they are."""
        self.ids = self.new_ids()
        self.engine = self.new_engine()
        self.acceptance = Acceptance(self.database, self.blobs, self.policy, self.now, self.ids)
        self.controller = Controller(
            self.database,
            self.engine,
            self.blobs,
            self.policy,
            self.now,
            self.ids,
            content=self.content(),
            **{"executor": lambda _: Inline(), **self.options},
        )
        self.controller.step()

    def content(self) -> LocalContent:
        """What a new process makes of the content on this machine."""
        return LocalContent(self.root / "cache", self.blobs, clock=self.now)

    def close(self) -> None:
        self.engine.close()

    def surviving(self, scenario: Callable[[], T]) -> T:
        """Do ``scenario``, again from its beginning after each crash, as a client without an answer would."""
        while True:
            try:
                return scenario()
            except Crash:
                self.engine.close()
            while True:
                try:
                    self.boot()
                except Crash:
                    self.engine.close()
                else:
                    break

    def step(self) -> None:
        """Let the controller look until nothing follows at once."""
        for _ in range(200):
            if not self.controller.step():
                return
        raise AssertionError("the controller does not come to rest")

    def run_until(self, condition: Callable[[], T], steps: int = 2000, pause: float = 1.0) -> T:
        """Steps and passing time until ``condition`` answers something true."""
        for _ in range(steps):
            self.step()
            if answer := condition():
                return answer
            self.pass_time(pause)
        raise AssertionError(f"not in {steps} steps; last answer: {answer!r}")

    def settle(self, job_id: str, pause: float = 1.0) -> Facts:
        """Run until the Job has ended and everything it held is released."""
        self.run_until(lambda: self.facts(job_id).settled, pause=pause)
        return self.facts(job_id)

    # What people do

    def add_project(self, project_id: str, **values: Any) -> None:
        made = Project(
            **{
                "id": project_id,
                "name": project_id,
                "priority": 0,
                "max_gpus": None,
                "budget_gpu_seconds": None,
                "used_gpu_seconds": 0.0,
                "created_at": 1.0,
                **values,
            }
        )
        self.database.write(lambda connection: access.create_project(connection, made))

    def change_project(self, project_id: str, **values: Any) -> None:
        self.database.write(lambda connection: access.update_project(connection, project_id, values))

    def withdraw(self, selector: str) -> None:
        """Make a Revision unreadable for everybody."""
        name, revision = selector.split("@")
        self.database.write(lambda connection: runners.withdraw(connection, name, revision, at=self.now()))

    def publish(
        self,
        script: str = "true\n",
        *,
        name: str = "team/run",
        outputs: Sequence[str] = (),
        gpus: int = 1,
        timeout_seconds: int = 600,
        entrypoint: str = "main.sh",
        files: Mapping[str, bytes] | None = None,
        visibility: Visibility = Visibility.PUBLIC,
        ref: str | None = None,
        by: Principal | None = None,
        tables: str = "",
        abis: Sequence[str] = (),
    ) -> str:
        """Publish a Runner without git; answers its pinned selector. ``tables`` ends its definition."""
        definition = (
            f'abi = {json.dumps(list(abis))}\n[execution]\nentrypoint = "{entrypoint}"\n'
            f"outputs = {json.dumps(list(outputs))}\n"
            f"timeout_seconds = {timeout_seconds}\n[resources]\ngpus = {gpus}\n[params.run_command]\n{tables}"
        ).encode()
        tree = {"runner.toml": definition, entrypoint: script.encode(), **(files or {})}
        stored = {path: self.blobs.put(io.BytesIO(content)) for path, content in sorted(tree.items())}
        listed = [RunnerFile(path, "100644", blob.size, blob.sha256) for path, blob in stored.items()]
        snapshot = snapshot_sha256(listed)
        revision = hashlib.sha1(snapshot.encode()).hexdigest()
        row = {
            "runner": name,
            "revision": revision,
            "snapshot_sha256": snapshot,
            "manifest": tree_manifest(listed).decode(),
            "definition": json.dumps(dict(parse_definition(definition).raw)),
            "source_ref": ref,
            "published_at": self.now(),
            "published_by": "somebody",
        }

        held = {blob.sha256: blob.size for blob in stored.values()}

        def store(connection: Any) -> None:
            queue.put_blobs(connection, held, at=self.now())
            manifests.put_manifest(connection, snapshot, "runners", len(row["manifest"]), held, at=self.now())
            runners.claim(connection, by or person(), name, visibility, at=self.now())
            if runners.find_revision(connection, name, revision) is None:
                runners.insert_revision(connection, row)
            if ref is not None:
                runners.move_ref(connection, name, ref, revision, at=self.now())

        self.database.write(store)
        return f"{name}@{revision}"

    def publish_content(
        self,
        kind: ContentKind,
        name: str,
        files: Mapping[str, bytes],
        *,
        by: Principal | None = None,
    ) -> dict[str, str]:
        """Publish a Dataset, Model, Recipe or Plugin; answers how a Job Profile names it."""
        stored = {path: self.blobs.put(io.BytesIO(data)) for path, data in files.items()}
        listed = [ContentFile(path, blob.size, blob.sha256) for path, blob in stored.items()]
        manifest = make_manifest(kind, listed, read_about(kind, list(files), files.get))
        data = manifest.encode()
        blobs = {blob.sha256: blob.size for blob in [*stored.values(), self.blobs.put(io.BytesIO(data))]}
        release = contents.Release(
            kind=kind,
            name=name,
            version=manifest.sha256,
            manifest_sha256=manifest.sha256,
            manifest_bytes=len(data),
            about=canonical_json(dict(manifest.about)),
            files=len(files),
            bytes=manifest.total_bytes,
            blobs=list(blobs),
        )

        def store(connection: Any) -> None:
            queue.put_blobs(connection, blobs, at=self.now())
            contents.publish(connection, by or person(), release, Visibility.PROJECT, at=self.now())

        self.database.write(store)
        return {"uri": f"envloop://{kind}/{name}@{manifest.sha256}", "manifest_sha256": manifest.sha256}

    def submit(
        self,
        selector: str,
        request_id: str | None = None,
        *,
        trials: int = 1,
        project: str = "default",
        **spec: Any,
    ) -> str:
        """Submit equal Trials; answers the Job's id."""
        one = {"runner": selector, **spec}
        document = {
            "type": "train",
            "request_id": request_id or os.urandom(8).hex(),
            "trials": [{"name": f"t{number}", "spec": one} for number in range(trials)],
        }
        return self.acceptance.accept(person(project), document)[0]

    def stop(self, job_id: str, trial: Trial | None = None) -> Job:
        return stopping.accept_stop(
            self.database, job_id, trial_id=trial.id if trial else None, at=self.now(), actor="human:somebody"
        )

    # What is there

    def facts(self, job_id: str) -> Facts:
        with self.database.snapshot() as connection:
            job = jobs.find_job(connection, None, job_id)
            assert job is not None
            trials = jobs.trials_of(connection, [job_id])[job_id]
            ids = [trial.id for trial in trials]
            return Facts(
                job,
                trials,
                list(events.of_job(connection, job_id)),
                jobs.allocations_of(connection, ids),
                {trial_id: jobs.list_artifacts(connection, trial_id) for trial_id in ids},
            )

    def unreleased(self) -> list[Allocation]:
        with self.database.read() as connection:
            return queue.unreleased(connection)

    def project(self, project_id: str = "default") -> Project:
        with self.database.read() as connection:
            return access.get_project(connection, project_id)


class FakeDeployment(Deployment):
    """On the fake engine: virtual time, ends by script."""

    engine: FakeEngine

    def __init__(
        self,
        database: Database,
        root: Path,
        *,
        nodes: Sequence[Node] = (fleet(4),),
        default: Script | None = None,
        policy: ServerPolicy | None = None,
        **options: Any,
    ) -> None:
        self.nodes = nodes
        self.default = default or Script(run_seconds=10.0)
        self.world = World()
        self._serial = itertools.count(1)
        super().__init__(database, root, policy, **options)

    def now(self) -> float:
        return self.world.now

    def new_engine(self) -> FakeEngine:
        return FakeEngine(self.root / "engine", nodes=self.nodes, default=self.default, world=self.world)

    def pass_time(self, seconds: float) -> None:
        self.engine.advance(seconds)

    def new_ids(self) -> IdFactory:
        """Ids that are the same in every run: the order of equal Trials depends on them."""
        return IdFactory(self.now, lambda _bits: next(self._serial) << 32)

    def script(self, trial: Trial, **changes: Any) -> None:
        """Change from now on what the Trial's newest Attempt does."""
        attempt_id = self.attempt(trial)
        known = self.world.attempts[attempt_id].script
        self.engine.script(attempt_id, replace(known, **changes))

    def attempt(self, trial: Trial) -> str:
        with self.database.read() as connection:
            return jobs.attempts_of(connection, [trial.id])[trial.id][-1].id

    def starts(self) -> dict[str, int]:
        """How many Attempts of each Trial started user code, by the engine's own evidence."""
        with self.database.read() as connection:
            attempts = connection.exec_driver_sql("SELECT id, trial_id FROM attempts").all()
        counts: dict[str, int] = {}
        for attempt_id, trial_id in attempts:
            if self.engine.observe([attempt_id])[attempt_id].started_at is not None:
                counts[trial_id] = counts.get(trial_id, 0) + 1
        return counts


class LocalDeployment(Deployment):
    """On the local engine: real programs on this machine, simulated GPUs."""

    engine: LocalEngine

    def __init__(
        self,
        database: Database,
        root: Path,
        *,
        gpus: int = 4,
        policy: ServerPolicy | None = None,
        **options: Any,
    ) -> None:
        self.gpus = gpus
        super().__init__(database, root, policy, **options)

    def now(self) -> float:
        return time.time()

    def new_engine(self) -> LocalEngine:
        return LocalEngine(self.root / "engine", simulate_gpus={GPU_MODEL: self.gpus})

    def pass_time(self, seconds: float) -> None:
        """Wait for news of a program, at most a moment."""
        self.engine.changed(min(seconds, 0.05))


def states(facts: Facts) -> list[State]:
    return [trial.state for trial in facts.trials]


def empty(database: Database) -> None:
    """Delete all that a deployment wrote, so that another one can begin."""

    def delete(connection: Any) -> None:
        for table in reversed(metadata.sorted_tables):
            if table.name != "trial_moves":
                connection.execute(table.delete())

    database.write(delete)
