"""The published client, unchanged, in its own virtual environment, against one real server."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.runners import definition, publish, repository
from support.server import ServerProcess

CLIENT = Path(__file__).parents[2] / ".venv-client"
VERSION = "1.7.0"

MAKES_FILES = """
set -eu
mkdir -p out/deep
printf 'first file' > out/one.txt
head -c 300000 /dev/zero | tr '\\0' 'x' > out/deep/large.bin
: > out/empty
echo written
"""


@dataclass(frozen=True, slots=True)
class Ran:
    """One run of the published program."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


@dataclass(frozen=True, slots=True)
class PublishedClient:
    """``el`` and the SDK of the published client, told about one server by its environment only."""

    environment: Mapping[str, str]

    def el(self, *arguments: str, expect: int = 0, text: str | None = None, cwd: Path | None = None) -> Ran:
        ran = self.run([str(CLIENT / "bin" / "el"), *arguments], text=text, cwd=cwd)
        assert ran.status == expect, f"el {arguments}: {ran}"
        return ran

    def sdk(self, program: str, **values: Any) -> Any:
        """Run ``program`` with ``client`` and ``values``; what it leaves in ``answer``."""
        source = (
            "import json, sys\n"
            "from envloop import Client\n"
            "client = Client.remote()\n"
            "globals().update(json.load(sys.stdin))\n"
            f"{program}\n"
            "print(json.dumps(answer))\n"
        )
        ran = self.run([str(CLIENT / "bin" / "python"), "-c", source], text=json.dumps(values))
        assert ran.status == 0, ran.err
        return json.loads(ran.out.splitlines()[-1])

    def run(self, command: Sequence[str], text: str | None = None, cwd: Path | None = None) -> Ran:
        done = subprocess.run(
            command,
            input=text if text is not None else "",
            capture_output=True,
            text=True,
            env=dict(self.environment),
            cwd=cwd,
            check=False,
            timeout=120,
        )
        return Ran(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="session", autouse=True)
def _installed() -> None:
    python = CLIENT / "bin" / "python"
    if not python.exists():
        pytest.fail(f"the published client is not installed in {CLIENT}: run `make test`, which does it")
    program = "import importlib.metadata; print(importlib.metadata.version('envloop-cli'))"
    done = subprocess.run([str(python), "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == VERSION


def client_of(server: ServerProcess, home: Path, *, key: str | None = None) -> PublishedClient:
    home.mkdir(mode=0o700, exist_ok=True)
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(home),
        "ENVLOOP_HOME": str(home / "envloop"),
        "ENVLOOP_BASE_URL": server.url,
        "ENVLOOP_API_KEY": server.key if key is None else key,
    }
    (home / "envloop").mkdir(mode=0o700, exist_ok=True)
    return PublishedClient({name: value for name, value in environment.items() if value})


@pytest.fixture
def client(module_server: ServerProcess, tmp_path: Path) -> PublishedClient:
    """A fresh user of the published client with the server's owner key."""
    return client_of(module_server, tmp_path / "user")


@pytest.fixture(scope="module")
def module_client(module_server: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> PublishedClient:
    """As `client`, for what a module does once."""
    return client_of(module_server, tmp_path_factory.mktemp("users") / "user")


@pytest.fixture(scope="module")
def files_runner(module_server: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Runner that writes three files below ``out`` and declares them; its selector by commit."""
    folder = tmp_path_factory.mktemp("files-runner")
    repository(folder, {"runner.toml": definition(outputs=("out/**",)), "main.sh": MAKES_FILES})
    return str(publish(module_server, folder, "tests/files")["selector"])


@pytest.fixture
def new_user(module_server: ServerProcess, tmp_path: Path) -> Callable[..., PublishedClient]:
    """Makes further users of the published client, with other keys."""

    def make(name: str, *, key: str | None = None) -> PublishedClient:
        return client_of(module_server, tmp_path / name, key=key)

    return make
