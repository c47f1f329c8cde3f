"""A deployment with providers in memory, in virtual time: script Jobs without a server or a network."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.deployment import Deployment, FakeDeployment, LocalDeployment, fleet, person
from support.scripts import add_script, script_spec
from trainshed.content.logs import LogReader
from trainshed.control.scripts.approving import Answer, Approving
from trainshed.control.scripts.callers import Caller
from trainshed.control.scripts.ground import Look, ScriptWork, look_at
from trainshed.control.scripts.peers import Peer
from trainshed.engines.fake import Script as LocalCourse
from trainshed.engines.providers.contract import Capabilities, GpuOffer
from trainshed.engines.providers.fake import Course, FakeProvider, RemoteWorld
from trainshed.model.content import ContentFile, ContentKind, make_manifest
from trainshed.model.scripts.spec import Bundle, DataItem, ScriptSpec
from trainshed.model.states import AllocationState
from trainshed.store import jobs, manifests, queue, script_attempts, scripts, tables
from trainshed.store.database import Database
from trainshed.store.script_records import ScriptAttempt, ScriptCheckpoint, ScriptEvent

CLOUD = "cloud"
HOST = "this-host"
CODE = {"train.py": b"print('hello')\n", "lib/util.py": b"x = 1\n"}


@dataclass(frozen=True)
class Tale:
    """Everything the rows say of one script Job."""

    look: Look
    events: Sequence[ScriptEvent]
    checkpoints: Sequence[ScriptCheckpoint]

    @property
    def word(self) -> str:
        return self.look.script.word

    @property
    def words(self) -> list[str]:
        """The words it went through."""
        return [str(each.after) for each in self.events if each.kind == "transition"]

    @property
    def reasons(self) -> list[str]:
        return [each.reason for each in self.events if each.kind == "transition"]

    @property
    def notes(self) -> list[str]:
        return [each.reason for each in self.events if each.kind == "note"]

    @property
    def attempts(self) -> Sequence[ScriptAttempt]:
        return self.look.attempts


class WithScripts(Deployment):
    """What people do with script Jobs, and what there is then."""

    clouds: dict[str, RemoteWorld]
    has_local = True
    script_options: Mapping[str, Any] = {}

    def __init__(self, *args: Any, **options: Any) -> None:
        self.secrets: dict[str, str] = {}
        self._submitted = 0
        super().__init__(*args, **options)

    def boot(self) -> None:
        self.options["scripts"] = ScriptWork(
            folder=self.root / "scripts",
            logs=self.root / "engines",
            open_secrets=lambda _connection, _script, names: {
                name: self.secrets[name] for name in names if name in self.secrets
            },
            host=HOST,
            providers={name: FakeProvider(name, world, self.now) for name, world in self.clouds.items()},
            local=self.has_local,
            deliver=True,
            grants={},
            **self.script_options,
        )
        super().boot()

    # What people do

    def bundle(self, files: Mapping[str, bytes] = CODE) -> Bundle:
        """Store a packed project."""
        digest = self.store_tree(files)
        return Bundle(digest, len(files), sum(map(len, files.values())))

    def store_tree(self, files: Mapping[str, bytes]) -> str:
        stored = {path: self.blobs.put(io.BytesIO(data)) for path, data in files.items()}
        listed = [ContentFile(path, blob.size, blob.sha256) for path, blob in stored.items()]
        manifest = make_manifest(ContentKind.DATASETS, listed)
        data = manifest.encode()
        blobs = {b.sha256: b.size for b in [*stored.values(), self.blobs.put(io.BytesIO(data))]}

        def store(connection: Any) -> None:
            queue.put_blobs(connection, blobs, at=self.now())
            manifests.put_manifest(
                connection, manifest.sha256, "datasets", len(data), sorted(blobs), at=self.now()
            )

        self.database.write(store)
        return manifest.sha256

    def dataset(self, mount: str, files: Mapping[str, bytes]) -> DataItem:
        size = sum(map(len, files.values()))
        return DataItem(mount, self.store_tree(files), files=len(files), bytes=size, path=mount)

    def pack(self, source: str = "user", **spec: Any) -> str:
        """Submit a script Job; answers its Trial."""
        self._submitted += 1
        values = {"bundle": self.bundle(), "host": HOST, "project_dir": str(self.root / "project"), **spec}
        (self.root / "project").mkdir(exist_ok=True)
        wanted: ScriptSpec = script_spec(**values)
        _, script = add_script(
            self.database,
            f"s-{self._submitted}",
            project_id="default",
            source=source,
            spec=wanted,
            at=self.now(),
        )
        return script.trial_id

    def answer(self, trial_id: str, answer: str) -> None:
        """A person of the team answers the open question; one that has this answer stays as it is."""
        [*_, asked] = self.tale(trial_id).look.asked
        door = Approving(self.database, self.now, personal=False)
        said = Answer(approve=answer == "approved")
        door.answer(Caller(person("default", owner=True)), Peer(here=False), asked.id, said)

    def cancel(self, trial_id: str) -> None:
        self.stop(self.tale(trial_id).look.job.id)

    # What is there

    def tale(self, trial_id: str) -> Tale:
        with self.database.snapshot() as connection:
            look = look_at(connection, trial_id, self.now())
            assert look is not None
            return Tale(
                look,
                scripts.events_of(connection, trial_id),
                script_attempts.checkpoints_of(connection, trial_id),
            )

    def until(self, trial_id: str, word: str, *, pause: float = 5.0, steps: int = 3000) -> Tale:
        """Let time pass until the Job says ``word``."""
        self.run_until(lambda: self.tale(trial_id).word == word, steps=steps, pause=pause)
        return self.tale(trial_id)

    def rest(self, trial_id: str, *, pause: float = 5.0) -> Tale:
        """Let time pass until the Job has ended and holds nothing."""

        def over() -> bool:
            with self.database.read() as connection:
                held = jobs.allocations_of(connection, [trial_id])[trial_id]
            ended = self.tale(trial_id).word in {"done", "failed", "cancelled", "denied"}
            return ended and all(each.state is AllocationState.RELEASED for each in held)

        self.run_until(over, pause=pause)
        return self.tale(trial_id)

    def outputs(self, trial_id: str) -> dict[str, bytes]:
        """The Artifacts, by name."""
        with self.database.read() as connection:
            listed = jobs.list_artifacts(connection, trial_id)
        return {each.name: self.blobs.open(each.sha256 or "").read() for each in listed}

    def delivered(self, trial_id: str) -> dict[str, bytes]:
        """What lies in the project's folder."""
        top = Path(self.tale(trial_id).look.script.outputs_dir)
        return {
            path.relative_to(top).as_posix(): path.read_bytes() for path in top.rglob("*") if path.is_file()
        }


class CloudDeployment(WithScripts, FakeDeployment):
    """A controller with one provider elsewhere, and this machine where ``local`` says so."""

    def __init__(self, database: Database, root: Path, *, local: bool = False, **options: Any) -> None:
        known = RemoteWorld(
            capabilities=Capabilities(max_concurrency=4, poll_interval_s=5.0),
            offers=(GpuOffer("T4", 16.0), GpuOffer("P100", 16.0)),
        )
        self.clouds = {CLOUD: known} if (given := options.pop("clouds", None)) is None else given
        self.has_local = local
        options.setdefault("nodes", (fleet(2),))
        super().__init__(database, root, **options)

    @property
    def cloud(self) -> RemoteWorld:
        return self.clouds[CLOUD]


class LocalScripts(WithScripts, LocalDeployment):
    """Packed projects as real programs on this machine, in real time."""

    def __init__(self, database: Database, root: Path, **options: Any) -> None:
        self.clouds = {}
        super().__init__(database, root, **{"gpus": 1, **options})

    def log(self, trial_id: str) -> list[str]:
        """What the newest Attempt printed, the runner's lines among it."""
        attempt = self.tale(trial_id).attempts[-1].attempt_id
        with LogReader(self.engine.logs(attempt)) as reader:
            return [record.data.decode() for record in reader.records()]


def runs(seconds: float | None = 60.0, **course: Any) -> Course:
    """A run that takes its time and writes one file."""
    return Course(
        **{"start_after": 5.0, "run_seconds": seconds, "outputs": {"model.bin": b"weights"}, **course}
    )


def wire(kind: str, /, **fields: Any) -> str:
    """A line of the runner."""
    return "::gpu:: " + json.dumps({"t": kind, **fields})


def store_files(number: int, at: float, files: Mapping[str, bytes], step: int | None) -> dict[str, bytes]:
    """A checkpoint store with one checkpoint, as the runner leaves it in a work folder."""
    listed = [
        {"path": path, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for path, data in sorted(files.items())
    ]
    manifest = json.dumps(
        {"version": 1, "n": number, "created_at": at, "step": step, "files": listed}
    ).encode()
    return {
        f"checkpoint_store/{number}/manifest.json": manifest,
        **{f"checkpoint_store/{number}/files/{path}": data for path, data in files.items()},
    }


__all__ = [
    "CloudDeployment",
    "Course",
    "LocalCourse",
    "LocalScripts",
    "Tale",
    "runs",
    "store_files",
    "tables",
    "wire",
]
Make = Callable[..., CloudDeployment]
