"""Many small files at once: each proved before it has its name, whatever the server has of the others."""

from __future__ import annotations

import hashlib
import os
import re

import pytest

from trainshed import Client
from trainshed.sdk import Conflict, IntegrityError, LocalFileError, RetryPolicy, UnsafeName

QUICK = RetryPolicy(attempts=2, first=0.01, longest=0.02)


@pytest.fixture(scope="module")
def client(module_server):
    with Client(module_server.url, module_server.key, retry=QUICK) as opened:
        yield opened


@pytest.fixture
def published(client, tmp_path, monkeypatch, request):
    """A tree of more files than one request or one group brings: some empty, some equal, one executable."""
    monkeypatch.setenv("TRAINSHED_HOME", str(tmp_path / "home"))
    root = tmp_path / "tree"
    for number in range(300):
        place = root / f"d{number % 3}" / ("deep" if number % 2 else "") / f"{number}.txt"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(b"" if number % 50 == 0 else f"{request.node.name} {number // 2}".encode())
    (root / "large.bin").write_bytes(os.urandom(70_000))
    (root / "d0/0.txt").chmod(0o755)
    name = f"small/{re.sub(r'[^a-z-]', '-', request.node.name)[:40].strip('-')}-{len(request.node.name)}"
    client.datasets.publish(root, name=name, version="1")
    return root, f"{name}@1"


def bytes_of(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def stored(server, content: bytes):
    digest = hashlib.sha256(content).hexdigest()
    [place] = server.data.rglob(digest)
    place.chmod(0o600)
    return place


def test_every_file_arrives_with_its_bytes_and_its_mode(client, published, tmp_path):
    root, name = published
    told = []
    out = tmp_path / "out"
    client.datasets.download(name, out, files_progress=lambda *state: told.append(state))
    assert bytes_of(out) == bytes_of(root)
    assert os.access(out / "d0/0.txt", os.X_OK)
    assert not os.access(out / "d1/4.txt", os.X_OK)
    assert told == [(number, 301) for number in range(1, 302)]


def test_what_is_there_is_kept_and_what_is_in_the_way_is_replaced_when_asked(client, published, tmp_path):
    root, name = published
    out = tmp_path / "out"
    client.datasets.download(name, out)
    (out / "d1/4.txt").unlink()
    (out / "d2/2.txt").write_bytes(b"mine")
    kept = (out / "d2/8.txt").stat().st_ino
    with pytest.raises(LocalFileError, match="exists with other content"):
        client.datasets.download(name, out)
    assert (out / "d2/2.txt").read_bytes() == b"mine"
    client.datasets.download(name, out, overwrite=True)
    assert bytes_of(out) == bytes_of(root)
    assert (out / "d2/8.txt").stat().st_ino == kept


@pytest.mark.parametrize("damage", [b"", b"other bytes"])
def test_what_is_damaged_never_has_its_name(client, module_server, published, tmp_path, damage):
    root, name = published
    victim = root / "d1/deep/1.txt"
    stored(module_server, victim.read_bytes()).write_bytes(damage or victim.read_bytes()[::-1])
    out = tmp_path / "out"
    with pytest.raises((IntegrityError, Conflict)) as refused:
        client.datasets.download(name, out)
    assert "d1/deep/1.txt" in str(refused.value)
    assert "content verify" in refused.value.hint
    there = bytes_of(out)
    assert "d1/deep/1.txt" not in there
    assert all(bytes_of(root)[path] == data for path, data in there.items() if not path.endswith(".part"))


def test_a_link_leads_nothing_elsewhere(client, published, tmp_path):
    _, name = published
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    out.mkdir()
    elsewhere.mkdir()
    (out / "d1").symlink_to(elsewhere)
    with pytest.raises(UnsafeName):
        client.datasets.download(name, out)
    assert list(elsewhere.iterdir()) == []


def test_no_part_is_left_where_writing_fails(client, published, tmp_path, monkeypatch):
    _, name = published

    def full(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("trainshed.sdk.small_files.os.fsync", full)
    out = tmp_path / "out"
    with pytest.raises(LocalFileError, match="No space left"):
        client.datasets.download(name, out)
    left = bytes_of(out)
    assert [path for path in left if path != "large.bin" and ".part" not in path] == []
