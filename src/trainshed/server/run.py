"""The server process: checks, wiring, serving, and a clean end. ``trainshed serve`` calls `serve`."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import structlog
import uvicorn
from starlette.types import ASGIApp

from trainshed.content.blobs import StoreFull, StoreUnavailable
from trainshed.engines import EngineError
from trainshed.jobkit.apart import run_apart
from trainshed.server import config as configuration
from trainshed.server.data_folder import (
    DataFolder,
    FolderInUse,
    FolderUnusable,
    announce,
    check_database,
    open_folder,
    take,
    withdraw,
)
from trainshed.server.logging import configure_logging
from trainshed.server.protocol import MAX_MESSAGE_BYTES, BoundedProtocol, web_socket
from trainshed.server.wiring import Deployment, build
from trainshed.store.database import Database, DatabaseUnavailable
from trainshed.store.schema import SchemaTooNew, is_current, migrate

ROLES = ("all", "api", "controller")
EXIT_SETTINGS = 2
EXIT_FOLDER = 3
EXIT_IN_USE = 4
EXIT_PORT = 5
EXIT_DATABASE = 6
_BACKLOG = 2048
_KEEP_ALIVE_SECONDS = 75
_SWITCH_SECONDS = 0.001

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What the command line says. ``port`` 0 means any free one."""

    host: str
    port: int
    data_dir: Path
    database_url: str | None = None
    role: str = "all"
    simulate_gpus: Sequence[str] = ()
    config: Path | None = None
    hide: Sequence[Path] = ()
    """Folders beside the data folder that no isolated Trial sees."""
    door: Callable[[ASGIApp, Callable[[], str]], ASGIApp] | None = None
    """Puts a further door around the application; it is told where this server listens."""


class CannotServe(Exception):
    """The server cannot start; the message is for the operator."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def serve(options: ServeOptions) -> int:
    """Serve until SIGTERM or SIGINT; answers the exit status.

    0 after a clean end; 2 settings, 3 data folder, 4 another server uses it, 5 address or port, 6 database.
    """
    configure_logging()
    # Short turns: a request that waits for the interpreter must not wait 5 ms for each thread before it.
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        with contextlib.ExitStack() as stack:
            _serve(options, stack)
    except CannotServe as error:
        print(f"trainshed: {error}", file=sys.stderr)  # noqa: T201 - the operator's answer
        return error.status
    return 0


def _serve(options: ServeOptions, stack: contextlib.ExitStack) -> None:
    stop_requested = _note_signals()
    try:
        config = configuration.load(options.config)
    except configuration.ConfigFaults as error:
        raise CannotServe(f"the settings cannot be used:\n{error}", EXIT_SETTINGS) from error
    folder = _folder(options, stack)
    listener = stack.enter_context(_listen(options.host, options.port))
    deployment = _deployment(options, config, folder)
    stack.callback(deployment.close)
    deployment.start()
    # What was made until now stays: a full collection that visits all of it stops every request for 100 ms.
    gc.collect()
    gc.freeze()
    app = deployment.app
    if options.door is not None and options.role != "controller":
        app = options.door(app, lambda: _url(listener))
    server = _Server(
        uvicorn.Config(
            app,
            http=BoundedProtocol,
            log_config=None,
            access_log=False,
            ws=web_socket,  # type: ignore[arg-type]  # uvicorn only calls it
            ws_max_size=MAX_MESSAGE_BYTES,
            ws_per_message_deflate=False,
            lifespan="on",
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=max(1, round(config.http.shutdown_seconds)),
        ),
        ready=lambda: _ready(options, folder, listener),
        ending=lambda: _ending(deployment, folder),
        stop_requested=stop_requested,
    )
    if not stop_requested():
        server.run([listener])
    if not server.started and not stop_requested():
        raise CannotServe("the server did not come up; see its log", EXIT_DATABASE)


def _folder(options: ServeOptions, stack: contextlib.ExitStack) -> DataFolder:
    try:
        folder = open_folder(options.data_dir)
        sqlite = _database_url(options, folder).startswith("sqlite")
        stack.enter_context(take(folder, options.role, one_controller=sqlite))
        if options.database_url is None:
            check_database(folder)
    except FolderInUse as error:
        raise CannotServe(str(error), EXIT_IN_USE) from error
    except FolderUnusable as error:
        raise CannotServe(str(error), EXIT_FOLDER) from error
    return folder


def _database_url(options: ServeOptions, folder: DataFolder) -> str:
    return options.database_url or f"sqlite:///{folder.database}"


def _listen(host: str, port: int) -> socket.socket:
    """The listening socket; taken before anything else is started, so that a busy port costs nothing."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise CannotServe(f"cannot listen on {host}: {error.strerror}", EXIT_PORT) from error
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        said = "is in use by another program" if error.errno == errno.EADDRINUSE else error.strerror
        raise CannotServe(f"cannot listen on {host} port {port}: it {said}", EXIT_PORT) from error
    listener.set_inheritable(False)
    return listener


def _deployment(options: ServeOptions, config: configuration.Config, folder: DataFolder) -> Deployment:
    try:
        _prepare_database(_database_url(options, folder))
        return build(
            config=config,
            folder=folder,
            database_url=_database_url(options, folder),
            role=options.role,
            simulate_gpus=options.simulate_gpus,
            hide=options.hide,
        )
    except FolderUnusable as error:
        raise CannotServe(str(error), EXIT_FOLDER) from error
    except SchemaTooNew as error:
        raise CannotServe(str(error), EXIT_DATABASE) from error
    except DatabaseUnavailable as error:
        said = str(error).partition("\n")[0]
        raise CannotServe(f"the database does not answer: {said}", EXIT_DATABASE) from error
    except (StoreFull, StoreUnavailable) as error:
        what = "the data folder" if config.content.url is None else "the store of content.url"
        raise CannotServe(f"{what} cannot be used: {error}", EXIT_FOLDER) from error
    except OSError as error:
        said = f"the data folder {folder.root} cannot be used: {error.strerror}"
        raise CannotServe(said, EXIT_FOLDER) from error
    except (ValueError, EngineError) as error:
        raise CannotServe(str(error), EXIT_SETTINGS) from error


def _prepare_database(url: str) -> None:
    """Migrate in a child process: 10 MB that nothing needs afterwards. What it cannot do `build` tells of."""
    if not is_current(url):  # and SQLite has no connection open, which would not outlive a fork
        run_apart(lambda: migrate(Database(url).engine))


def _ready(options: ServeOptions, folder: DataFolder, listener: socket.socket) -> None:
    url = _url(listener)
    if options.role != "controller":
        try:
            announce(folder, url)
        except OSError as error:
            log.warning("cannot announce this server to clients of this machine", reason=error.strerror)
    with contextlib.suppress(OSError):  # whoever started it may not listen any more
        print(f"Trainshed serves {url}", flush=True)  # noqa: T201 - the one line for whoever started it
    log.info("ready", url=url, role=options.role, data_dir=str(folder.root), pid=os.getpid())


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}"


def _ending(deployment: Deployment, folder: DataFolder) -> None:
    withdraw(folder)
    deployment.end_streams()
    log.info("stopping")


def _note_signals() -> Callable[[], bool]:
    """Remember SIGTERM and SIGINT for the time in which uvicorn does not handle them."""
    seen: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        seen.append(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, note)
    return lambda: bool(seen)


class _Server(uvicorn.Server):
    """uvicorn with our moments: answering, and about to stop."""

    def __init__(
        self,
        config: uvicorn.Config,
        *,
        ready: Callable[[], None],
        ending: Callable[[], None],
        stop_requested: Callable[[], bool],
    ) -> None:
        super().__init__(config)
        self._ready = ready
        self._ending = ending
        self._stop_requested = stop_requested

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()
        if self._stop_requested():
            # The signal came after our last look and before uvicorn began to listen for signals.
            self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._ending()
        await super().shutdown(sockets)
