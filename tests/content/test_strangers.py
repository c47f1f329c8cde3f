"""What lies among a store's blobs and is none: passed over, told of, never read and never removed."""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path

import pytest
from obstore.store import MemoryStore

from trainshed.content.blobs import Blob, BlobNotFound, FolderBlobStore, ReadBackMismatch
from trainshed.content.objects import ObjectBlobStore

DATA = b"some bytes\n"
NAME = hashlib.sha256(DATA).hexdigest()
BLOB = Blob(NAME, len(DATA))


def name_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def litter(folder: Path) -> list[str]:
    """Leave things among the blobs as people and programs do; their places, in order."""
    elsewhere = name_of(b"in another shard")
    wrong = "00" if not elsewhere.startswith("00") else "01"
    for place in (".DS_Store", "notes.txt", "aa/Thumbs.db", f"{wrong}/{elsewhere}"):
        (folder / place).write_bytes(b"not ours")
    (folder / "lost+found").mkdir()
    (folder / "bb" / ("b" * 64)).mkdir()
    os.mkfifo(folder / "cc" / ("c" * 64))
    return sorted(
        (
            ".DS_Store",
            "notes.txt",
            "lost+found",
            "aa/Thumbs.db",
            f"{wrong}/{elsewhere}",
            f"bb/{'b' * 64}",
            f"cc/{'c' * 64}",
        )
    )


def test_what_is_no_blob_is_passed_over_and_told(store):
    store.put(io.BytesIO(DATA))
    assert list(store.strangers()) == []
    places = litter(store.root / "sha256")
    assert list(store.names()) == [BLOB]
    assert list(store.strangers()) == places
    (store.root / "sha256" / "dd").rmdir()
    (store.root / "sha256" / "dd").write_bytes(b"")
    assert list(store.names()) == [BLOB]
    assert set(store.strangers()) - set(places) == {"dd"}


def test_a_store_opens_whatever_lies_in_its_folders(store):
    for folder in ("incoming", "batches"):
        (store.root / folder / ".DS_Store").write_bytes(b"")
        (store.root / folder / "somebody's" / "below").mkdir(parents=True)
    again = FolderBlobStore(store.root)
    assert (store.root / "batches" / ".DS_Store").exists()
    assert again.put(io.BytesIO(DATA)) == BLOB


@pytest.mark.parametrize("kind", ["folder", "full folder", "fifo"])
def test_what_is_in_a_blob_s_place_and_no_file_is_damage_and_storing_again_heals(store, kind):
    place = store.root / "sha256" / NAME[:2] / NAME
    others = {Blob(name_of(b"%d" % n), 1): b"%d" % n for n in range(9)}

    def spoil() -> None:
        place.unlink(missing_ok=True)
        os.mkfifo(place) if kind == "fifo" else place.mkdir()
        if kind == "full folder":
            (place / "of somebody").write_bytes(b"kept")

    spoil()
    for call in (store.open, store.size, store.verify):
        with pytest.raises(ReadBackMismatch, match="no file"):
            call(NAME)
    with pytest.raises(BlobNotFound):
        store.path(NAME)
    assert not store.exists(NAME)
    assert store.missing([NAME]) == store.unlike({NAME: len(DATA)}) == [NAME]
    assert NAME in store.missing([*(blob.sha256 for blob in others), NAME])
    store.put(io.BytesIO(DATA))
    assert store.verify(NAME) == BLOB
    spoil()
    store.put_many({**others, BLOB: DATA})
    assert store.verify(NAME) == BLOB
    spoil()
    assert store.delete(NAME)
    assert not store.delete(NAME)
    if kind == "full folder":
        kept = sorted(path.read_bytes() for path in (store.root / "aside").rglob("*") if path.is_file())
        assert kept == [b"kept"] * 3


def test_objects_that_are_no_blobs_are_passed_over_and_told(tmp_path):
    memory = MemoryStore()
    store = ObjectBlobStore(memory, tmp_path / "spool", "memory")
    store.put(io.BytesIO(DATA))
    wrong = f"sha256/00/{'1' * 64}"
    for key in ("sha256/notes.txt", wrong, "other/x"):
        memory.put(key, b"not ours")
    assert list(store.names()) == [BLOB]
    assert list(store.strangers()) == [f"00/{'1' * 64}", "notes.txt"]
    store.close()
