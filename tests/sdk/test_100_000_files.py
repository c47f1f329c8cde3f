"""A tree of 100,000 files, whole: published, listed page by page, published again, read in part."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.server import ServerProcess
from trainshed import Client
from trainshed.sdk import stat_cache

FILES = 100_000
A_FOLDER = 1_000
CONTENTS = 50
"""Few, so that the looking, the manifest and the listing take the time, not a hundred thousand uploads."""
_ROOM = 2 << 30
_MEMORY = Path("/dev/shm")


@pytest.fixture
def quick(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory, if that has room: a disk may take a minute to make and remove so many files."""
    if _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > _ROOM:
        with tempfile.TemporaryDirectory(prefix="trainshed-", dir=_MEMORY) as folder:
            yield Path(folder)
        return
    yield tmp_path


def path_of(number: int) -> str:
    return f"{number // A_FOLDER:03}/{number:06}.txt"


def text_of(number: int) -> str:
    return f"{number % CONTENTS}\n"


@pytest.mark.starts_first
@pytest.mark.timeout(600)
def test_100_000_files_are_published_listed_and_published_again(quick, new_server, tmp_path, monkeypatch):
    monkeypatch.setenv("TRAINSHED_HOME", str(tmp_path / "home"))
    # The files were made a moment ago; they count as older than a tick of the clock.
    monkeypatch.setattr(stat_cache, "_FINE_GRAIN_NS", -(10**12))
    tree = quick / "tree"
    for number in range(FILES):
        if number % A_FOLDER == 0:
            (tree / path_of(number)).parent.mkdir(parents=True)
        (tree / path_of(number)).write_text(text_of(number))
    server: ServerProcess = new_server().start()
    with Client(server.url, server.key) as client:
        done = client.datasets.publish(tree, name="sdk/many", version="1")
        assert (done.hashed, done.uploaded, done.version.files) == (FILES, CONTENTS, FILES)
        where = f"/v1/content/datasets/sdk/many/versions/{done.version.manifest_sha256}/files?limit=100"
        page = server.http().get(where).json
        listed = [row["path"] for row in page["items"]]
        while page["next_cursor"] is not None:
            page = server.http().get(f"{where}&cursor={page['next_cursor']}").json
            listed += [row["path"] for row in page["items"]]
        assert listed == [path_of(number) for number in range(FILES)]

        again = client.datasets.publish(tree, name="sdk/many", version="1")
        assert (again.hashed, again.uploaded, again.published_before) == (0, 0, True)
        (tree / path_of(70_000)).write_text("changed\n")
        changed = client.datasets.publish(tree, name="sdk/many", version="2")
        assert (changed.hashed, changed.uploaded, changed.version.files) == (1, 1, FILES)
        for version, text in (("1", text_of(70_000)), ("2", "changed\n")):
            content = client.datasets.read_file(f"sdk/many@{version}", path_of(70_000))
            assert b"".join(content).decode() == text
