"""A server's application inside the test process, on a real database and blob store, without a controller.

What it accepts stays queued; `finish` moves a Trial through its life as a controller would.
"""

from __future__ import annotations

import contextlib
import io
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography.fernet import Fernet
from starlette.testclient import TestClient
from starlette.types import ASGIApp

from support.rows import IDS, allocation
from support.waiting import wait_until
from trainshed.content.blobs import FolderBlobStore
from trainshed.content.outputs import CollectedFile
from trainshed.content.registry import RegistryClient
from trainshed.control.accept import Acceptance
from trainshed.control.checkpoints import CheckpointFinder, register
from trainshed.control.fleet import encode_nodes
from trainshed.control.images import ImageFreezer
from trainshed.control.scripts.accept import ScriptAcceptance
from trainshed.control.scripts.approving import Approving
from trainshed.control.scripts.operations import ScriptOperations
from trainshed.control.scripts.secrets import SecretKeeper
from trainshed.control.sealing import Seal
from trainshed.control.training.accept import TaskAcceptance
from trainshed.control.training.catalogs import Catalogs
from trainshed.control.training.operations import TaskOperations
from trainshed.engines.local import log_files
from trainshed.jobkit.frames import EOF, header
from trainshed.model.access import Permission, key_hash
from trainshed.model.images import RegistryRules
from trainshed.model.resources import Amounts, Gpu, Node
from trainshed.model.states import AllocationState, State
from trainshed.policy.effective import ServerPolicy
from trainshed.server.app import create_app
from trainshed.server.config import ContentSettings
from trainshed.server.cursors import CursorSeal
from trainshed.server.first_start import prepare
from trainshed.server.follow import JobWatch
from trainshed.server.keys import KeyWatch
from trainshed.server.limits import DEFAULT_RATES, RateLimiter
from trainshed.server.metrics import HttpMetrics
from trainshed.server.outlook import OutlookReader
from trainshed.server.script_services import ScriptServices
from trainshed.server.services import BodyLimits, Machine, Services
from trainshed.server.signed_urls import SignedUrls, ensure_secret
from trainshed.server.storage import open_uploads
from trainshed.server.waiting import QueueReader
from trainshed.store import access, attempts, jobs, moves, settings
from trainshed.store.attempts import End, Start
from trainshed.store.database import Connection, Database
from trainshed.store.moves import Move
from trainshed.store.records import Key, Project, Trial

PROVIDERS = ("colab", "kaggle", "local")


@dataclass
class Clock:
    """Unix seconds that tests may move."""

    now: float = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Site:
    """One deployment inside this process, and a client of it."""

    services: Services
    app: ASGIApp
    client: TestClient
    owner_key: str
    clock: Clock
    data: Path
    woken: list[bool] = field(default_factory=list)

    def request(self, method: str, path: str, body: Any = None, *, key: str | None = None, **kwargs: Any):
        headers = {"Authorization": f"Bearer {self.owner_key if key is None else key}"}
        headers |= kwargs.pop("headers", {})
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        return self.client.request(method, path, content=content, headers=headers, **kwargs)

    def get(self, path: str, **kwargs: Any):
        return self.request("GET", path, **kwargs)

    def post(self, path: str, body: Any = None, **kwargs: Any):
        return self.request("POST", path, body, **kwargs)

    def submit(self, request_id: str = "r", key: str | None = None, **spec: Any) -> dict[str, Any]:
        document = submission(request_id, **spec)
        answer = self.post("/v1/jobs", document, key=key)
        assert answer.status_code in {200, 201}, answer.text
        return answer.json()

    def add_project(self, project_id: str) -> None:
        row = Project(project_id, project_id, 0, None, None, 0.0, self.clock())
        self.services.database.write(lambda c: access.create_project(c, row))

    def add_key(self, project_id: str = "default", *permissions: Permission, **values: Any) -> str:
        """A key with these permissions (all but ``admin`` if none are named)."""
        granted = permissions or tuple(p for p in Permission if p is not Permission.ADMIN)
        text = f"tsk_{IDS.ulid()}"
        facts = {"kind": "service", "label": "test", "user": None, "owner": False, "expires_at": None}
        row = Key(
            id=IDS.key(),
            hash=key_hash(text),
            project_id=project_id,
            permissions=json.dumps(sorted(granted)),
            created_at=self.clock(),
            created_by="human:test",
            revoked_at=None,
            **{**facts, **values},
        )
        self.services.database.write(lambda c: access.insert_key(c, row))
        return text


def submission(request_id: str = "r", **spec: Any) -> dict[str, Any]:
    resources = {"gpu_type": "H100", "gpus": 1}
    return {
        "type": "train",
        "request_id": request_id,
        "spec": {"runner": "envloop/bash@main", "resources": resources, **spec},
    }


def nodes(gpus: int = 8) -> tuple[Node, ...]:
    found = tuple(Gpu(index, "H100", f"SIMULATED-{index}", 81920, simulated=True) for index in range(gpus))
    return (Node("n1", found, Amounts(gpus, 128, 2_000_000, 4_000_000, 500_000)),)


@contextlib.contextmanager
def open_site(
    database: Database,
    data: Path,
    *,
    limiter: RateLimiter | None = None,
    bodies: BodyLimits | None = None,
    policy: ServerPolicy | None = None,
    registries: RegistryClient | None = None,
    alone: bool = False,
    public_url: str | None = None,
    personal: bool | None = None,
) -> Iterator[Site]:
    """A site; with ``registries`` its engine is one that runs images.

    ``personal``: whether a yes to a question needs a code; by default on SQLite, as in a real server.
    """
    clock = Clock()
    data.mkdir(exist_ok=True)
    blobs = FolderBlobStore(data / "content")
    uploads = open_uploads(ContentSettings(), data / "content", blobs, database, clock)
    instance = prepare(database, blobs, data / "owner.key", clock, IDS)
    text = encode_nodes(nodes())
    database.write(lambda c: settings.put(c, settings.NODES, text))
    if registries is not None:
        database.write(lambda c: settings.put(c, settings.MACHINE, json.dumps({"images": None})))
    images = None if registries is None else ImageFreezer(database, registries)
    freezer = images or ImageFreezer(database, RegistryClient(RegistryRules()))
    seal = Seal(Fernet.generate_key().decode())
    catalogs = Catalogs(database, seal)
    rules = policy or ServerPolicy()
    woken: list[bool] = []
    services = Services(
        database=database,
        blobs=blobs,
        uploads=uploads,
        accept=Acceptance(database, blobs, rules, clock, IDS, images).accept,
        tasks=TaskAcceptance(database, blobs, catalogs, seal, freezer, clock, IDS, key=seal.digest_key),
        task_operations=TaskOperations(database),
        catalogs=catalogs,
        outlook=OutlookReader(catalogs, rules),
        scripts=ScriptServices(
            accept=ScriptAcceptance(database, blobs, lambda: PROVIDERS, clock, IDS),
            operations=ScriptOperations(database, clock),
            approving=Approving(
                database, clock, personal=database.dialect == "sqlite" if personal is None else personal
            ),
            secrets=SecretKeeper(database, seal, clock),
        ),
        log_files=lambda attempt_id: log_files(data / "local", attempt_id),
        wake=lambda: woken.append(True),
        machine=Machine("all", data),
        seal=CursorSeal(instance),
        urls=SignedUrls(ensure_secret(database), 900.0, public_url),
        watch=JobWatch(database, alone=alone),
        keys=KeyWatch(database, clock),
        queue=QueueReader(),
        limiter=limiter or RateLimiter(DEFAULT_RATES),
        http_metrics=HttpMetrics(),
        clock=clock,
        ids=IDS,
        bodies=bodies or BodyLimits(),
    )
    key = (data / "owner.key").read_text().strip()
    app = create_app(services)
    with TestClient(app) as client, contextlib.closing(uploads):
        yield Site(services, app, client, key, clock, data, woken)


def put_output(site: Site, attempt_id: str, frames: Sequence[tuple[int, bytes]], *, end: bool = True) -> None:
    """Write an Attempt's log file: ``(stream, payload)`` in order, one millisecond apart."""
    files = site.services.log_files(attempt_id)
    files.frames.parent.mkdir(parents=True, exist_ok=True)
    at = int(site.clock() * 1e9)
    with files.frames.open("wb") as file:
        for number, (stream, payload) in enumerate(frames):
            file.write(header(len(payload), stream, 0, at + number * 1_000_000) + payload)
        if end:
            file.write(header(0, EOF, 0, at + len(frames) * 1_000_000))


def start(site: Site, trial: Trial) -> str:
    """Move a queued Trial to ``running``; answers its Attempt's id."""
    attempt_id = place(site, trial)
    started(site, trial, attempt_id)
    return attempt_id


def place(site: Site, trial: Trial) -> str:
    """Move a queued Trial to ``preparing``; answers its Attempt's id."""
    held = allocation(trial, node="n1")
    at = site.clock()

    def change(connection: Connection) -> None:
        attempts.open_all(connection, [(held, 1)])
        first = [Move(trial, State.QUEUED, State.PREPARING, "PLACED", "Placed on n1.")]
        moves.apply(connection, first, at=at, actor="controller")

    site.services.database.write(change)
    return held.attempt_id


def started(site: Site, trial: Trial, attempt_id: str, begun: float | None = None) -> None:
    """Move a Trial that is being prepared to ``running``: its program was seen to have been started then."""
    at = site.clock() if begun is None else begun

    def change(connection: Connection) -> None:
        attempts.start_all(connection, [Start(attempt_id, at, {})])
        values = {"user_code_started": True, "started_at": at}
        second = [Move(trial, State.PREPARING, State.RUNNING, "STARTED", "Started.", values)]
        moves.apply(connection, second, at=at, actor="controller")

    site.services.database.write(change)


def finish(
    site: Site,
    trial: Trial,
    attempt_id: str,
    *,
    exit_code: int = 0,
    artifacts: Mapping[str, bytes] | None = None,
    usage: Mapping[str, float] | None = None,
) -> None:
    """End a running Trial: outputs stored and Checkpoints among them registered, everything released."""
    at = site.clock()
    rows = []
    files = []
    for name, content in (artifacts or {}).items():
        blob = site.services.blobs.put(io.BytesIO(content))
        files.append(CollectedFile(name, blob.size, blob.sha256))
        rows.append(
            {
                "id": IDS.artifact(),
                "trial_id": trial.id,
                "name": name,
                "size": blob.size,
                "sha256": blob.sha256,
                "upload_state": "uploaded",
                "created_at": at,
            }
        )
    last = State.SUCCEEDED if exit_code == 0 else State.FAILED
    values: dict[str, Any] = {"exit_code": exit_code, "output_status": "complete" if rows else "none"}
    if exit_code:
        values |= {"error_code": "EXIT_CODE", "error_message": f"exit code {exit_code}"}

    findings = CheckpointFinder(site.services.database, site.services.blobs).look(trial, files, lambda: False)

    def change(connection: Connection) -> None:
        attempts.end_all(connection, [End(attempt_id, at, "exit", exit_code=exit_code, usage=usage)])
        ended = [Move(trial, State.RUNNING, State.COLLECTING, "ENDED", "The program ended.")]
        moves.apply(connection, ended, at=at, actor="controller")
        moves.put_artifacts(connection, trial.id, rows)
        stored = [Move(trial, State.COLLECTING, last, last.upper(), "Ended.", values)]
        moves.apply(connection, stored, at=at, actor="controller")
        if findings is not None:
            register(connection, trial, attempt_id, findings, IDS, at=at)
        held = jobs.allocations_of(connection, [trial.id])[trial.id][-1]
        released = {"released_at": at, "evidence": "{}"}
        attempts.set_allocation(connection, held.id, AllocationState.RELEASED, released)

    site.services.database.write(change)


def trials(site: Site, job_id: str) -> list[Trial]:
    with site.services.database.read() as connection:
        return jobs.trials_of(connection, [job_id])[job_id]


@contextlib.contextmanager
def once_followed(site: Site, job_id: str, act: Callable[[], None]) -> Iterator[None]:
    """Act as soon as somebody follows the Job: whoever asks has been let in by then."""

    def wait_and_act() -> None:
        wait_until(lambda: site.services.watch._followers.get(job_id), 20)
        act()

    thread = threading.Thread(target=wait_and_act)
    thread.start()
    yield
    thread.join()
