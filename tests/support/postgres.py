"""A private PostgreSQL cluster: its own folder and port, loopback only, gone with the tests."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psycopg

from support.waiting import wait_until

_USER = "postgres"
_TABLES = (
    "SELECT oid::regclass::text FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
)
_DISCONNECT_OTHERS = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
# TRUNCATE would be slower: it makes new files, also for every table that refers to a truncated one.
_EMPTY = f"""
DO $$
DECLARE
    seeded text[] := string_to_array(current_setting('test.seeded'), ' ');
    one text;
BEGIN
    SET LOCAL session_replication_role = replica;
    FOR one IN {_TABLES} LOOP
        IF NOT one = ANY(seeded) THEN EXECUTE format('DELETE FROM %s', one); END IF;
    END LOOP;
    PERFORM setval(seqrelid, seqstart, false) FROM pg_sequence;
END $$
"""
_SCHEMA = """
    SELECT (SELECT count(*) FROM pg_class), (SELECT count(*) FROM pg_attribute),
        (SELECT count(*) FROM pg_constraint), (SELECT count(*) FROM pg_proc),
        (SELECT count(*) FROM pg_trigger WHERE tgenabled = 'O')
"""


def find_programs() -> Path | None:
    """The folder with ``initdb``: Debian keeps it off the PATH, one folder a version."""
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda p: int(p.parts[-3]))
    if installed:
        return installed[-1].parent
    found = shutil.which("initdb")
    return Path(found).parent if found else None


@dataclass(frozen=True, slots=True)
class _Shape:
    """What tells whether a database is as it was made: its schema in numbers, its tables that have rows."""

    schema: tuple[int, ...]
    seeds: tuple[tuple[str, int], ...]


def _shape(connection: psycopg.Connection) -> _Shape:
    [schema] = connection.execute(_SCHEMA).fetchall()
    tables = [name for (name,) in connection.execute(_TABLES).fetchall()]
    counts = " UNION ALL ".join(f"SELECT '{name}', count(*) FROM {name}" for name in sorted(tables))
    return _Shape(schema, tuple(row for row in connection.execute(counts).fetchall() if row[1]))


class PrivateCluster:
    """A running cluster; ``stop`` removes all of it.

    The tests kill our processes, never this one, and it does not outlive them: it need not sync its files.
    Databases of one template are lent again and again, because dropping one costs a checkpoint.

    The server refuses to run as root, so root runs it as the user ``postgres``. It dies with this process
    (parent-death signal), whatever happens to the tests.
    """

    def __init__(self, programs: Path) -> None:
        self._programs = programs
        self._folder = Path(tempfile.mkdtemp(prefix="trainshed-postgres-"))
        self._spare: dict[str, list[str]] = {}
        self._blank: dict[str, _Shape] = {}
        self._prefix = ["setpriv", "--pdeathsig=INT"] if shutil.which("setpriv") else []
        if os.geteuid() == 0:
            account = pwd.getpwnam(_USER)
            os.chown(self._folder, account.pw_uid, account.pw_gid)
            self._prefix += [f"--reuid={_USER}", f"--regid={_USER}", "--clear-groups"]
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        try:
            self._initialise()
            self._server = self._start()
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise

    @property
    def admin_url(self) -> str:
        return self.url("postgres")

    def url(self, database: str) -> str:
        return f"postgresql://trainshed@127.0.0.1:{self.port}/{database}"

    def create_database(self, name: str, template: str = "template0") -> str:
        """Create a database and answer its URL."""
        with psycopg.connect(self.admin_url, autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        return self.url(name)

    def drop_database(self, name: str) -> None:
        with psycopg.connect(self.admin_url, autocommit=True) as connection:
            connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def lend(self, template: str) -> str:
        """The name of a database that is as ``template`` is; bring it back when nothing needs it."""
        if self._spare.get(template):
            return self._spare[template].pop()
        if template not in self._blank:
            with psycopg.connect(self.url(template), autocommit=True) as connection:
                self._blank[template] = _shape(connection)
        name = f"lent_{uuid.uuid4().hex}"
        self.create_database(name, template)
        return name

    def bring_back(self, name: str, template: str) -> None:
        """End what is connected to the database and empty it. One whose schema was changed is dropped."""
        seeded = [table for table, _ in self._blank[template].seeds]
        with psycopg.connect(self.url(name), autocommit=True) as connection:
            connection.execute(_DISCONNECT_OTHERS)
            connection.execute("SELECT set_config('test.seeded', %s, false)", [" ".join(seeded)])
            connection.execute(_EMPTY)
            same = _shape(connection) == self._blank[template]
        if same:
            self._spare.setdefault(template, []).append(name)
        else:
            self.drop_database(name)

    def stop(self) -> None:
        self._server.send_signal(signal.SIGINT)
        try:
            self._server.wait(timeout=30)
        finally:
            self._server.kill()
            self._server.wait()
            shutil.rmtree(self._folder)

    def _initialise(self) -> None:
        options = ["-D", str(self._data), "-A", "trust", "-U", "trainshed", "-E", "UTF8", "--locale=C"]
        subprocess.run(
            [*self._prefix, str(self._programs / "initdb"), "--no-sync", *options],
            check=True,
            capture_output=True,
            cwd="/",
            env=self._environment,
        )

    def _start(self) -> subprocess.Popen[bytes]:
        settings = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "port": str(self.port),
            "max_connections": "200",
            "shared_buffers": "32MB",
            "fsync": "off",
            "full_page_writes": "off",
        }
        arguments = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with (self._folder / "log").open("wb") as log:
            server = subprocess.Popen(
                [*self._prefix, str(self._programs / "postgres"), "-D", str(self._data), *arguments],
                stdout=log,
                stderr=log,
                cwd="/",
                env=self._environment,
            )

        def answers() -> bool:
            if server.poll() is not None:
                raise AssertionError((self._folder / "log").read_text(errors="replace"))
            try:
                psycopg.connect(self.url("postgres"), connect_timeout=2).close()
            except psycopg.OperationalError:
                return False
            return True

        try:
            wait_until(answers, 30, "PostgreSQL to answer")
        except BaseException:
            server.kill()
            server.wait()
            raise
        return server

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    @property
    def _environment(self) -> Mapping[str, str]:
        return {"PATH": os.environ["PATH"], "HOME": "/tmp", "LC_ALL": "C"}
