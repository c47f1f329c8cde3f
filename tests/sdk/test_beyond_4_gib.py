"""A file of more than 4 GiB, whole: hashed, sent, stored, named, and read behind its first 4 GiB."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.server import ServerProcess
from trainshed import Client

HOLE = 4 << 30
LAST = b"\x01"
SHA256 = "d6cba2fb80a815340cd82d98754730a8e86af2d14a136d3b20bbc1e13ece5c11"
"""Of 4 GiB of zeros and one byte 1."""
_ROOM = 7 << 30
_MEMORY = Path("/dev/shm")


@pytest.fixture
def roomy(tmp_path: Path) -> Iterator[Path]:
    """A folder with room for the file: in memory where there is enough of it, as a disk takes minutes."""
    memory = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if memory > _ROOM and _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > _ROOM:
        with tempfile.TemporaryDirectory(prefix="trainshed-", dir=_MEMORY) as folder:
            yield Path(folder)
        return
    if shutil.disk_usage(tmp_path).free < _ROOM:
        pytest.skip(f"{tmp_path} has less than {_ROOM >> 30} GiB free")
    yield tmp_path
    shutil.rmtree(tmp_path / "server")


@pytest.mark.starts_first
@pytest.mark.timeout(600)
def test_E105_a_sparse_file_of_4_gib_and_1_byte_is_published_and_its_digest_read_back(
    roomy, tmp_path, monkeypatch
):
    monkeypatch.setenv("TRAINSHED_HOME", str(tmp_path / "home"))
    tree = tmp_path / "tree"
    tree.mkdir()
    with (tree / "large.bin").open("wb") as file:
        file.seek(HOLE)
        file.write(LAST)
    server = ServerProcess(roomy / "server").start()
    try:
        with Client(server.url, server.key) as client:
            done = client.models.publish(tree, name="sdk/large", version="1")
            [row] = client.models.files("sdk/large@1")
        assert (done.version.files, row["path"], row["size"], row["sha256"]) == (
            1,
            "large.bin",
            HOLE + 1,
            SHA256,
        )
        where = f"/v1/content/models/sdk/large/versions/{done.version.manifest_sha256}/blobs/{SHA256}"
        answer = server.http().get(where, headers={"Range": f"bytes={HOLE - 2}-"})
        assert (answer.status, answer.body) == (206, b"\0\0" + LAST)
    finally:
        server.stop()
