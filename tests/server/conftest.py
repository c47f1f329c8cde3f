"""Sites for the server's tests (see `support.site`)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.profiles import World
from support.rows import IDS
from support.site import Site, open_site
from trainshed.store.database import Database


@pytest.fixture
def site(database: Database, tmp_path: Path) -> Iterator[Site]:
    """A site on each kind of database in turn."""
    with open_site(database, tmp_path / "data") as opened:
        yield opened


@pytest.fixture
def sqlite_site(tmp_path: Path, sqlite_file: Path) -> Iterator[Site]:
    """A site on SQLite, for what does not depend on the database."""
    database = Database(f"sqlite:///{sqlite_file}")
    with open_site(database, tmp_path / "data") as opened:
        yield opened
    database.close()


@pytest.fixture
def make_site(tmp_path: Path, _migrated_sqlite: Path) -> Iterator[Callable[..., Site]]:
    """Sites on SQLite with their own limits or policy."""
    with contextlib.ExitStack() as stack:

        def make(**options: Any) -> Site:
            path = tmp_path / f"site-{IDS.ulid()}"
            path.mkdir()
            file = path / "site.sqlite"
            file.write_bytes(_migrated_sqlite.read_bytes())
            database = Database(f"sqlite:///{file}")
            stack.callback(database.close)
            return stack.enter_context(open_site(database, path / "data", **options))

        yield make


@pytest.fixture(scope="module")
def module_site(tmp_path_factory: pytest.TempPathFactory, _migrated_sqlite: Path) -> Iterator[Site]:
    """One site on SQLite for a whole module of requests that change nothing."""
    folder = tmp_path_factory.mktemp("site")
    path = folder / "site.sqlite"
    path.write_bytes(_migrated_sqlite.read_bytes())
    database = Database(f"sqlite:///{path}")
    with open_site(database, folder / "data") as opened:
        yield opened
    database.close()


@pytest.fixture(scope="module")
def world(module_site: Site, tmp_path_factory: pytest.TempPathFactory) -> World:
    """The seed's Profile, published on one site for a module; what its tests change is their own."""
    module_site.add_project("other")
    return World.on(module_site, tmp_path_factory.mktemp("world"))


@pytest.fixture
def name() -> str:
    """A name of a content that no other test has."""
    return f"envloop/c{IDS.ulid().lower()}"
