"""A private PostgreSQL cluster: its own folder and port, loopback only, gone with the tests."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import psycopg

from support.waiting import wait_until

_USER = "postgres"


def find_programs() -> Path | None:
    """The folder with ``initdb``: Debian keeps it off the PATH, one folder a version."""
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda p: int(p.parts[-3]))
    if installed:
        return installed[-1].parent
    found = shutil.which("initdb")
    return Path(found).parent if found else None


class PrivateCluster:
    """A running cluster with its production settings for durability; ``stop`` removes all of it.

    The server refuses to run as root, so root runs it as the user ``postgres``. It dies with this process
    (parent-death signal), whatever happens to the tests.
    """

    def __init__(self, programs: Path) -> None:
        self._programs = programs
        self._folder = Path(tempfile.mkdtemp(prefix="trainshed-postgres-"))
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
