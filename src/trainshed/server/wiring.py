"""Putting a server together: database, content, engine, controller and application, as the role asks."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import structlog
from starlette.types import ASGIApp

from trainshed.content.blobs import BlobStore, FolderBlobStore
from trainshed.content.local import LocalContent
from trainshed.content.registry import RegistryClient
from trainshed.control.accept import Acceptance
from trainshed.control.controller import Controller
from trainshed.control.images import ImageFreezer
from trainshed.control.scripts.accept import ScriptAcceptance
from trainshed.control.scripts.approving import Approving
from trainshed.control.scripts.ground import ScriptWork
from trainshed.control.scripts.operations import ScriptOperations
from trainshed.control.scripts.routing import RoutePlanner, known_capabilities
from trainshed.control.scripts.secrets import SecretKeeper
from trainshed.control.sealing import Seal, read_or_create_keys
from trainshed.control.training.accept import TaskAcceptance
from trainshed.control.training.alarms import Alarms
from trainshed.control.training.catalogs import Catalogs
from trainshed.control.training.gangs import Training
from trainshed.control.training.operations import TaskOperations
from trainshed.control.training.sites import OpenEngine
from trainshed.engines.contract import Engine, EngineError
from trainshed.engines.local import Isolation, LocalEngine, describe, log_files, samples_in
from trainshed.model.ids import IdFactory
from trainshed.model.images import machine_architecture
from trainshed.model.logs import LogFiles
from trainshed.model.scripts.spec import LOCAL
from trainshed.model.training.catalog import Cluster
from trainshed.model.training.catalog import Engine as EngineKind
from trainshed.server.app import create_app
from trainshed.server.config import Config
from trainshed.server.cursors import CursorSeal
from trainshed.server.data_folder import DataFolder, FolderUnusable
from trainshed.server.first_start import prepare
from trainshed.server.follow import JobWatch
from trainshed.server.hosting import ControllerHost
from trainshed.server.keys import KeyWatch
from trainshed.server.limits import RateLimiter
from trainshed.server.metrics import HttpMetrics, gpu_metrics
from trainshed.server.outlook import OutlookReader
from trainshed.server.script_services import ScriptServices
from trainshed.server.script_wiring import asked_here, script_work
from trainshed.server.services import Machine, Services
from trainshed.server.signed_urls import SignedUrls, ensure_secret
from trainshed.server.storage import StorageChecks, open_blobs, open_uploads
from trainshed.server.waiting import QueueReader
from trainshed.store import settings
from trainshed.store.database import Database, DatabaseFull
from trainshed.store.leadership import Leadership
from trainshed.store.schema import migrate

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Deployment:
    """A server that is put together. ``start`` begins controlling; ``close`` ends everything but the Jobs."""

    app: ASGIApp
    services: Services
    host: ControllerHost | None
    alarms: Alarms | None
    resources: contextlib.ExitStack

    def start(self) -> None:
        if self.host is not None:
            self.host.start()
        if self.alarms is not None:
            self.alarms.start()

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
        blobs = open_blobs(config.content, folder.content, stack)
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
        seal = _seal(config, folder)
        catalogs = Catalogs(database, seal, config.training.rules(embedded=database.dialect == "sqlite"))
        engine = None
        host = None
        keeper = SecretKeeper(database, seal, clock)
        work: ScriptWork | None = None
        if role != "api":
            isolation = config.isolation((folder.root, *_folder_of(blobs), *hide))
            engine = LocalEngine(
                folder.engine,
                simulate_gpus=simulate_gpus or None,
                isolation=isolation,
                images=replace(
                    config.image_engine,
                    layers=lambda image: registries.layers(image, machine_architecture()),
                ),
            )
            stack.callback(engine.close)
            _publish_machine(database, engine, isolation)
            training = Training(
                catalogs.current, seal.open, folder.root / "gangs", _engine_opener(folder.root / "engines")
            )
            embedded = database.dialect == "sqlite"
            work = script_work(config, folder, keeper, catalogs.current, embedded=embedded)
            host = _host(config, folder, database, engine, blobs, ids, training, work)
            stack.callback(host.stop)
        files_of = partial(_log_files, folder)
        alarms = None
        if role != "api":
            alarms = Alarms(
                database,
                catalogs,
                clock,
                lambda unit, after: samples_in(files_of(unit), after),
                patience_seconds=config.http.shutdown_seconds,
            )
            stack.callback(alarms.stop)
        uploads = open_uploads(config.content, folder.content, blobs, database, clock)
        stack.callback(uploads.close)
        services = Services(
            database=database,
            blobs=blobs,
            uploads=uploads,
            accept=Acceptance(database, blobs, policy, clock, ids, images).accept,
            tasks=TaskAcceptance(database, blobs, catalogs, seal, images, clock, ids, key=seal.digest_key),
            task_operations=TaskOperations(database),
            catalogs=catalogs,
            outlook=OutlookReader(catalogs, policy),
            scripts=_scripts(config, database, blobs, keeper, clock, ids, work, catalogs),
            log_files=files_of,
            wake=host.wake if host else _nobody_to_wake,
            machine=Machine(role=role, data_dir=folder.root, content=config.content.address),
            seal=CursorSeal(instance),
            urls=SignedUrls(ensure_secret(database), config.http.download_url_seconds, config.http.base_url),
            watch=JobWatch(database, alone=role == "all" and database.dialect == "sqlite"),
            keys=KeyWatch(database, clock),
            queue=QueueReader(),
            limiter=RateLimiter(config.limits),
            http_metrics=HttpMetrics(),
            clock=clock,
            ids=ids,
            bodies=config.bodies,
            gc_grace_seconds=config.content.gc_grace_hours * 3600.0,
            run_grants_stop=config.access.run_grants_stop,
            engine=engine,
            ready_checks=_ready_checks(StorageChecks(folder, config.content.address, blobs), host),
            extra_metrics=gpu_metrics if engine else str,
        )
        app = create_app(services, public_only=role == "controller")
        return Deployment(app, services, host, alarms, stack.pop_all())


def _scripts(
    config: Config,
    database: Database,
    blobs: BlobStore,
    keeper: SecretKeeper,
    clock: Callable[[], float],
    ids: IdFactory,
    work: ScriptWork | None,
    catalogs: Catalogs,
) -> ScriptServices:
    # On SQLite it is one person's own server, where the key lies beside every program of theirs.
    personal = {"terminal": True, "key": False}.get(config.access.answers, database.dialect == "sqlite")
    return ScriptServices(
        accept=ScriptAcceptance(database, blobs, partial(_provider_names, config, database), clock, ids),
        operations=ScriptOperations(database, clock),
        approving=Approving(database, clock, personal=personal),
        secrets=keeper,
        planner=RoutePlanner(read_catalog=catalogs.current),
        providers=partial(asked_here, work),
    )


def _provider_names(config: Config, database: Database) -> set[str]:
    """Those that the controller has, and those that it is about to have by our own settings."""
    with database.read() as connection:
        return {LOCAL, *config.providers.use, *known_capabilities(connection)}


def _log_files(folder: DataFolder, unit: str) -> LogFiles:
    """Where the output of an Attempt or a replica lies: with this machine's engine, or another's here."""
    here = log_files(folder.engine, unit)
    if here.frames.parent.is_dir():
        return here
    others = (log_files(root, unit) for root in sorted((folder.root / "engines").glob("*")))
    return next((found for found in others if found.frames.parent.is_dir()), here)


def _seal(config: Config, folder: DataFolder) -> Seal:
    """Raises `FolderUnusable` where the keys cannot be read."""
    path = Path(config.secrets.key_file) if config.secrets.key_file else folder.secrets_key
    try:
        return Seal(*read_or_create_keys(path))
    except (OSError, ValueError) as error:
        raise FolderUnusable(f"the keys of hidden values in {path} cannot be used: {error}") from error


def _folder_of(blobs: BlobStore) -> list[Path]:
    return [blobs.root] if isinstance(blobs, FolderBlobStore) else []


def _host(
    config: Config,
    folder: DataFolder,
    database: Database,
    engine: LocalEngine,
    blobs: BlobStore,
    ids: IdFactory,
    training: Training,
    scripts: ScriptWork,
) -> ControllerHost:
    # Links reach no other file system, so the cache lies beside the blobs of a local store.
    [above] = _folder_of(blobs) or [folder.root]

    def make() -> Controller:
        engine.warm()
        return Controller(
            database,
            engine,
            blobs,
            config.policy,
            ids=ids,
            content=LocalContent(above / "cache", blobs, config.content.cache_bytes),
            pull_retries=config.images.pull_retries,
            log_retention_days=config.logs.retention_days,
            artifact_retention_days=config.artifacts.retention_days,
            gc=config.content.gc,
            gc_grace_hours=config.content.gc_grace_hours,
            training=training,
            scripts=scripts,
            store_patience_seconds=config.content.retry_seconds + config.content.timeout_seconds,
        )

    return ControllerHost(Leadership(database), make)


def _engine_opener(root: Path) -> OpenEngine:
    """Connects to the clusters of the catalogue that are not this machine (C1); their records lie below."""

    def open_engine(cluster: Cluster) -> Engine:
        if cluster.engine is not EngineKind.RAY:
            said = f"this server runs nothing on engine {cluster.engine}"
            raise EngineError("NOT_SUPPORTED_BY_ENGINE", said, retryable=False)
        # Imported where it is needed: few servers have a Ray cluster.
        from trainshed.engines.ray.engine import open_ray_engine  # noqa: PLC0415 - see above
        from trainshed.engines.ray.records import records_of  # noqa: PLC0415 - see above

        selector = dict(cluster.node_selector)
        try:
            place = records_of(root, cluster.id, cluster.address)
        except OSError as error:
            said = f"its records cannot be kept: {error}"
            raise EngineError("ENGINE_DISK", said, retryable=True) from error
        return open_ray_engine(cluster.id, cluster.address, place, node_selector=selector)

    return open_engine


def _publish_machine(database: Database, engine: LocalEngine, isolation: Isolation | None) -> None:
    """Tell the API processes how Trials are confined where the controller runs."""
    facts = {
        "enforcement": dict(engine.enforcement()),
        "isolation": describe(isolation),
        **engine.image_facts(),
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


def _ready_checks(storage: StorageChecks, host: ControllerHost | None) -> Callable[[], Mapping[str, str]]:
    """What ``/readyz`` asks besides the database."""
    return lambda: {**storage(), **({} if host is None else {"controller": host.state()})}


def _nobody_to_wake() -> None:
    """The controller runs in another process and looks by itself."""
