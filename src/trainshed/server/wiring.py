"""Putting a server together: database, content, engine, controller and application, as the role asks."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog
from starlette.types import ASGIApp

from trainshed.content.blobs import FolderBlobStore
from trainshed.content.registry import RegistryClient
from trainshed.control.accept import Acceptance
from trainshed.control.controller import Controller
from trainshed.control.images import ImageFreezer
from trainshed.engines.local import Isolation, LocalEngine, describe, log_files
from trainshed.model.ids import IdFactory
from trainshed.model.images import machine_architecture
from trainshed.server.app import create_app
from trainshed.server.config import Config
from trainshed.server.cursors import CursorSeal
from trainshed.server.data_folder import DataFolder, write_fault
from trainshed.server.first_start import prepare
from trainshed.server.follow import JobWatch
from trainshed.server.hosting import ControllerHost
from trainshed.server.keys import KeyWatch
from trainshed.server.limits import RateLimiter
from trainshed.server.metrics import HttpMetrics, gpu_metrics
from trainshed.server.services import Machine, Services
from trainshed.server.waiting import QueueReader
from trainshed.store import settings
from trainshed.store.database import Database, DatabaseFull
from trainshed.store.leadership import Leadership
from trainshed.store.schema import migrate

_STORAGE_CHECK_SECONDS = 1.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Deployment:
    """A server that is put together. ``start`` begins controlling; ``close`` ends everything but the Jobs."""

    app: ASGIApp
    services: Services
    host: ControllerHost | None
    resources: contextlib.ExitStack

    def start(self) -> None:
        if self.host is not None:
            self.host.start()

    def end_streams(self) -> None:
        """Make open streams and long polls end soon. Called on the event loop."""
        self.services.watch.end_streams()

    def close(self) -> None:
        self.resources.close()


def build(
    *,
    config: Config,
    folder: DataFolder,
    database_url: str,
    role: str,
    simulate_gpus: Sequence[str],
    hide: Sequence[Path] = (),
) -> Deployment:
    """Put a server together; nothing runs yet. Raises what the database, the folder and the engine raise.

    ``hide`` are folders beside the data folder that no isolated Trial sees.
    """
    with contextlib.ExitStack() as stack:
        database = Database(database_url)
        stack.callback(database.close)
        migrate(database.engine)
        blobs = FolderBlobStore(folder.content)
        clock, ids = time.time, IdFactory()
        instance = prepare(database, blobs, folder.owner_key, clock, ids)
        policy = config.policy
        registries = RegistryClient(
            config.registries,
            timeout_seconds=config.images.timeout_seconds,
            attempts=config.images.attempts,
        )
        stack.callback(registries.close)
        images = ImageFreezer(database, registries)
        engine = None
        host = None
        if role != "api":
            isolation = config.isolation((folder.root, *hide))
            engine = LocalEngine(folder.engine, simulate_gpus=simulate_gpus or None, isolation=isolation)
            stack.callback(engine.close)
            _publish_machine(database, engine, isolation)
            host = _host(config, database, engine, blobs, ids)
            stack.callback(host.stop)
        services = Services(
            database=database,
            blobs=blobs,
            accept=Acceptance(database, blobs, policy, clock, ids, images).accept,
            log_files=lambda attempt_id: log_files(folder.engine, attempt_id),
            wake=host.wake if host else _nobody_to_wake,
            machine=Machine(role=role, data_dir=folder.root),
            seal=CursorSeal(instance),
            watch=JobWatch(database, alone=role == "all" and database.dialect == "sqlite"),
            keys=KeyWatch(database, clock),
            queue=QueueReader(),
            limiter=RateLimiter(config.limits),
            http_metrics=HttpMetrics(),
            clock=clock,
            ids=ids,
            bodies=config.bodies,
            run_grants_stop=config.access.run_grants_stop,
            ready_checks=_ReadyChecks(folder, host),
            extra_metrics=gpu_metrics if engine else str,
        )
        app = create_app(services, public_only=role == "controller")
        return Deployment(app, services, host, stack.pop_all())


def _host(
    config: Config, database: Database, engine: LocalEngine, blobs: FolderBlobStore, ids: IdFactory
) -> ControllerHost:
    def make() -> Controller:
        engine.warm()
        return Controller(
            database,
            engine,
            blobs,
            config.policy,
            ids=ids,
            log_retention_days=config.logs.retention_days,
        )

    return ControllerHost(Leadership(database), make)


def _publish_machine(database: Database, engine: LocalEngine, isolation: Isolation | None) -> None:
    """Tell the API processes how Trials are confined where the controller runs."""
    facts = {
        "enforcement": dict(engine.enforcement()),
        "isolation": describe(isolation),
        "images": engine.images(),
        "architecture": machine_architecture(),
    }
    text = json.dumps(facts, sort_keys=True)
    with database.read() as connection:
        if settings.get(connection, settings.MACHINE) == text:
            return
    try:
        database.write(lambda connection: settings.put(connection, settings.MACHINE, text))
    except DatabaseFull as error:
        log.warning("the disk is full: what this machine enforces is not told", reason=str(error))


class _ReadyChecks:
    """What ``/readyz`` asks besides the database. Anybody may ask, so the disk is tried once a second."""

    def __init__(self, folder: DataFolder, host: ControllerHost | None) -> None:
        self._folder = folder
        self._host = host
        self._guard = threading.Lock()
        self._storage = "ok"
        self._tried_at = float("-inf")

    def __call__(self) -> Mapping[str, str]:
        with self._guard:
            now = time.monotonic()
            if now - self._tried_at >= _STORAGE_CHECK_SECONDS:
                fault = write_fault(self._folder)
                self._storage = "ok" if fault is None else f"cannot be written: {fault}"
                self._tried_at = now
            checks = {"storage": self._storage}
        return checks if self._host is None else {**checks, "controller": self._host.state()}


def _nobody_to_wake() -> None:
    """The controller runs in another process and looks by itself."""
