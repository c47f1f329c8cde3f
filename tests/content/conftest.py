"""Small disks, stores and registries for the tests of content."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.fake_server import FakeServer
from support.s3 import SECRET_KEY
from support.scripted_registry import serving
from trainshed.content.blobs import FolderBlobStore
from trainshed.content.registry import RegistryClient
from trainshed.model.images import RegistryRules


@pytest.fixture
def store(tmp_path: Path) -> FolderBlobStore:
    return FolderBlobStore(tmp_path / "blobs")


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the S3 servers of the tests let in."""
    for name, value in (("ACCESS_KEY_ID", "AKIATRAINSHEDTESTS"), ("SECRET_ACCESS_KEY", SECRET_KEY)):
        monkeypatch.setenv(f"AWS_{name}", value)


@pytest.fixture
def mount_tmpfs(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts a tmpfs with the given options (``size=1m``); needs root."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")  # as CI is; nothing that is installed replaces it
    mounted: list[Path] = []

    def mount(options: str) -> Path:
        place = tmp_path / f"disk{len(mounted)}"
        place.mkdir()
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)],
            check=False,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            # As in a container without that right, which nothing that is installed gives.
            pytest.skip(f"this machine lets nobody mount a tmpfs: {done.stderr.strip()}")
        mounted.append(place)
        return place

    yield mount
    for place in mounted:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.fixture
def scripted() -> Iterator[FakeServer]:
    """A registry of one image whose answers a test may change."""
    with FakeServer(serving()) as server:
        yield server


@pytest.fixture
def new_client() -> Iterator[Callable[..., RegistryClient]]:
    """Makes clients of registries that ask once, unless told otherwise."""
    made: list[RegistryClient] = []

    def make(rules: RegistryRules | None = None, **options: Any) -> RegistryClient:
        client = RegistryClient(rules or RegistryRules(), **{"attempts": 1, **options})
        made.append(client)
        return client

    yield make
    for client in made:
        client.close()


@pytest.fixture
def client(new_client: Callable[..., RegistryClient]) -> RegistryClient:
    return new_client()
