"""Files that are read back while they are written: nothing unsynced is read, nothing damaged is believed."""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainshed.content import proofs
from trainshed.content.proofs import ChangedOnDevice, ProvedFile

STRETCH = 10_000
"""Not of whole pages: a stretch ends with the page that it reaches."""
starts = st.integers(0, 9000)
contents = st.lists(st.binary(min_size=1, max_size=50) | st.integers(1, 30_000).map(os.urandom), max_size=25)


@pytest.fixture(scope="module", autouse=True)
def _short_stretches() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(proofs, "_STRETCH_BYTES", STRETCH)
        yield


@pytest.fixture(scope="module")
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as threads:
        yield threads


@pytest.fixture(scope="module")
def fd() -> Iterator[int]:
    with tempfile.TemporaryFile(dir=Path.cwd()) as file:
        yield file.fileno()


class Device:
    """Notes what was written, synced and read, and may give back one bit of a byte wrong."""

    def __init__(self, patched: pytest.MonkeyPatch, damaged: int | None = None) -> None:
        self.unsynced: list[tuple[int, int]] = []
        self.read_unsynced: list[tuple[int, int]] = []
        self._guard = threading.Lock()
        self._damaged = damaged
        self._real = {name: getattr(os, name) for name in ("pwrite", "fdatasync", "preadv")}
        for name in self._real:
            patched.setattr(os, name, getattr(self, name))

    def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        # Less than asked, as a system may.
        count = int(self._real["pwrite"](fd, data[: max(1, len(data) * 2 // 3)], offset))
        with self._guard:
            self.unsynced.append((offset, offset + count))
        return count

    def fdatasync(self, fd: int) -> None:
        with self._guard:
            before = list(self.unsynced)
        self._real["fdatasync"](fd)
        with self._guard:
            self.unsynced = [each for each in self.unsynced if each not in before]

    def preadv(self, fd: int, buffers: list[memoryview], offset: int) -> int:
        count = int(self._real["preadv"](fd, buffers, offset))
        with self._guard:
            self.read_unsynced += [
                each for each in self.unsynced if each[0] < offset + count and each[1] > offset
            ]
        if self._damaged is not None and offset <= self._damaged < offset + count:
            buffers[0][self._damaged - offset] ^= 1
        return count


def write(pool: ThreadPoolExecutor, fd: int, start: int, pieces: list[bytes]) -> str:
    os.ftruncate(fd, 0)
    digest = hashlib.sha256()
    with ProvedFile(pool, fd, start, digest) as file:
        for piece in pieces:
            file.write(memoryview(piece))
        file.prove()
        assert file.place == start + sum(map(len, pieces))
    return digest.hexdigest()


@settings(deadline=None, max_examples=60)
@given(starts, contents)
def test_E105_what_is_read_back_was_synced_and_is_what_was_written(pool, fd, start, pieces):
    with pytest.MonkeyPatch.context() as patched:
        device = Device(patched)
        found = write(pool, fd, start, pieces)
    assert found == hashlib.sha256(b"".join(pieces)).hexdigest()
    assert device.unsynced == device.read_unsynced == []
    assert os.pread(fd, 1 << 20, start) == b"".join(pieces)


@settings(deadline=None, max_examples=60)
@given(starts, contents.filter(bool), st.data())
def test_E105_one_wrong_bit_anywhere_is_found(pool, fd, start, pieces, data):
    damaged = start + data.draw(st.integers(0, sum(map(len, pieces)) - 1), label="place of the bit")
    with pytest.MonkeyPatch.context() as patched:
        Device(patched, damaged)
        with pytest.raises(ChangedOnDevice) as failed:
            write(pool, fd, start, pieces)
    assert start <= failed.value.offset <= damaged


def test_E105_it_can_be_proved_more_than_once(pool, fd):
    os.ftruncate(fd, 0)
    digest = hashlib.sha256()
    with ProvedFile(pool, fd, 0, digest) as file:
        file.prove()
        for _ in range(3):
            file.write(memoryview(b"x" * 5000))
            file.prove()
    assert digest.hexdigest() == hashlib.sha256(b"x" * 15_000).hexdigest()


def test_a_device_that_fails_while_more_is_written_fails_the_whole(pool, fd, monkeypatch):
    def failing(_: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", failing)
    with pytest.raises(OSError, match="Input/output error"):
        write(pool, fd, 0, [os.urandom(STRETCH)] * 5)


def test_nothing_reads_from_the_file_once_the_context_was_left(pool, fd, monkeypatch):
    """Its descriptor may then be closed, and be that of another file."""
    reading, go_on, ended = threading.Event(), threading.Event(), threading.Event()
    real = os.fdatasync

    def slow(of: int) -> None:
        reading.set()
        go_on.wait(30)
        real(of)
        ended.set()

    monkeypatch.setattr(os, "fdatasync", slow)

    def leave() -> None:
        with ProvedFile(pool, fd) as file:
            file.write(memoryview(os.urandom(2 * STRETCH)))
            reading.wait(30)
            threading.Thread(target=go_on.set).start()
            raise ConnectionResetError("the sender went away")

    with pytest.raises(ConnectionResetError):
        leave()
    assert ended.is_set()
