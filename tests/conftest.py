"""Fixtures that several rooms' tests ask for by name, and the check that nothing is left running."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest
from sqlalchemy import create_engine

from support import postgres as private_postgres
from support.databases import KINDS, left_out
from support.docker import DockerRefused, missing_docker, running_docker
from support.order import in_order
from support.postgres import PrivateCluster
from support.processes import kill_programs, strangers_of
from support.registry import Registry, missing_programs, running_registry
from support.s3 import S3Server
from support.server import ServerProcess
from support.waiting import wait_until
from trainshed.store.database import Database
from trainshed.store.schema import migrate

hypothesis.settings.register_profile("default", deadline=None, max_examples=100)
hypothesis.settings.register_profile("ci", deadline=None, max_examples=40, derandomize=True, print_blob=True)
hypothesis.settings.register_profile("soak", deadline=None, max_examples=2000, print_blob=True)
hypothesis.settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "default"),
)

_LEAVE_SECONDS = 60.0
_ROOM_BYTES = 256 << 20
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # So does a shell start what runs in its background; what tests start would inherit it, and ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)  # of what `-k` and `-m` left, so that they can ask for a kind of database
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if twins := left_out(items):
        config.hook.pytest_deselected(items=twins)
        needless = {id(item) for item in twins}
        items[:] = [item for item in items if id(item) not in needless]
    items[:] = in_order(items)


@pytest.fixture(scope="session", autouse=True)
def _nothing_left_running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fail the run if a server, a shim or a program of a Trial is still there at its end (promise P6).

    The first fixture of the session, so the last one to be torn down.
    """
    folder = tmp_path_factory.getbasetemp()
    yield
    wait_until(lambda: not strangers_of(folder), _LEAVE_SECONDS, f"the end of {strangers_of(folder)}")


@pytest.fixture(scope="session")
def postgres() -> Iterator[PrivateCluster]:
    """A private PostgreSQL cluster of this test process."""
    programs = private_postgres.find_programs()
    if programs is None:
        pytest.fail("PostgreSQL's programs are missing: run scripts/install-postgresql")
    cluster = PrivateCluster(programs)
    yield cluster
    cluster.stop()


@pytest.fixture(scope="session")
def registry() -> Iterator[Registry]:
    """A real image registry on loopback, and a builder of images, that the tests of this process share."""
    if os.environ.get("TRAINSHED_TEST_IMAGES") == "no":
        pytest.skip("TRAINSHED_TEST_IMAGES=no")  # who runs them asked for it; CI does not
    if missing := missing_programs():
        pytest.fail(f"{', '.join(missing)} missing: run scripts/install-containers")
    with running_registry() as running:
        yield running


@pytest.fixture(scope="session")
def docker_host(registry: Registry) -> Iterator[str]:
    """The address of a docker daemon of this test process, which ``DOCKER_HOST`` names from here on."""
    del registry  # who leaves out the tests of images has neither
    if os.geteuid() == 0 and (missing := missing_docker()):
        pytest.fail(f"{', '.join(missing)} missing: run scripts/install-containers")
    with contextlib.ExitStack() as stack:
        try:
            host = stack.enter_context(running_docker())
        except DockerRefused as refused:
            pytest.skip(str(refused))  # a right that the machine withholds; CI has it
        stack.enter_context(pytest.MonkeyPatch.context()).setenv("DOCKER_HOST", host)
        yield host


@pytest.fixture(scope="session")
def seaweedfs() -> Iterator[S3Server]:
    """A real object store with S3's protocol."""
    running = S3Server("seaweedfs")
    yield running
    running.stop()


@pytest.fixture(scope="session")
def moto() -> Iterator[S3Server]:
    """Another one, which shares no code with the first and starts faster."""
    running = S3Server("moto")
    yield running
    running.stop()


@pytest.fixture(scope="session")
def _migrated_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "migrated.sqlite"
    engine = create_engine(f"sqlite:///{path}")
    migrate(engine)
    engine.dispose()
    return path


@pytest.fixture(scope="session")
def _migrated_postgres(postgres: PrivateCluster) -> str:
    url = postgres.create_database("migrated")
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    migrate(engine)
    engine.dispose()
    return "migrated"


@pytest.fixture(scope="session")
def quick_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where small files lie in memory, if that is possible: on a disk each commit of SQLite waits for it."""
    memory = Path("/dev/shm")
    if not memory.is_dir() or shutil.disk_usage(memory).free < _ROOM_BYTES:
        yield tmp_path_factory.mktemp("quick")
        return
    with tempfile.TemporaryDirectory(prefix="trainshed-test-", dir=memory) as folder:
        yield Path(folder)


@pytest.fixture
def sqlite_file(quick_folder: Path, _migrated_sqlite: Path) -> Iterator[Path]:
    """A database of SQLite with the newest schema and no rows."""
    folder = quick_folder / uuid.uuid4().hex
    folder.mkdir()
    yield Path(shutil.copyfile(_migrated_sqlite, folder / "database.sqlite"))
    shutil.rmtree(folder)


@pytest.fixture(params=KINDS)
def empty_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a database without any table, of each kind in turn."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'empty.sqlite'}"
        return
    cluster: PrivateCluster = request.getfixturevalue("postgres")
    name = f"test_{uuid.uuid4().hex}"
    yield cluster.create_database(name)
    cluster.drop_database(name)


@pytest.fixture(params=KINDS)
def database_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a database with the newest schema and no rows, of each kind in turn."""
    if request.param == "sqlite":
        yield f"sqlite:///{request.getfixturevalue('sqlite_file')}"
        return
    cluster: PrivateCluster = request.getfixturevalue("postgres")
    template = request.getfixturevalue("_migrated_postgres")
    name = cluster.lend(template)
    yield cluster.url(name)
    cluster.bring_back(name, template)


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """An open database of each kind in turn."""
    opened = Database(database_url)
    yield opened
    opened.close()


@pytest.fixture
def new_server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., ServerProcess]]:
    """Makes servers that are not started yet; each is stopped with the test, its log shown on failure."""
    made: list[ServerProcess] = []

    def make(name: str = "server", **options: object) -> ServerProcess:
        server = ServerProcess(tmp_path / name, **options)
        made.append(server)
        return server

    yield make
    _finish(request, made)


@pytest.fixture
def server(new_server: Callable[..., ServerProcess]) -> ServerProcess:
    """A running server of this test alone: embedded database, eight simulated H100."""
    return new_server().start()


@pytest.fixture(scope="module")
def module_server(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[ServerProcess]:
    """A running server that the tests of one module share."""
    name = re.sub(r"\W+", "-", request.module.__name__)
    running = ServerProcess(tmp_path_factory.mktemp(name) / "server").start()
    yield running
    _finish(request, [running])


def _finish(request: pytest.FixtureRequest, servers: list[ServerProcess]) -> None:
    failed = request.session.testsfailed
    for server in servers:
        if failed and server.log.exists():
            print(f"--- log of the server in {server.data} ---\n{server.tail()}")  # noqa: T201
        if server.running:
            server.stop()
        if failed:
            kill_programs(server.data)  # whoever broke off left them; they are not what the run fails for
