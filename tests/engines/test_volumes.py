"""Volumes (C11-C13): mounts that may be written, at absolute paths that need not exist on the machine."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from engines.conformance import SETTLED, written
from engines.gangs import codes, gang, settled
from engines.machinery import WAYS, LocalHarness, each_way
from trainshed.engines import EndedBy, EngineError, Mount
from trainshed.jobkit import frames, linux, volumes

TARGET = "/volume/trainshed-test/out"


@pytest.fixture(params=WAYS)
def either(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalHarness]:
    if request.param == "none" and not linux.may_mount():
        pytest.skip("needs the right to mount")
    yield from each_way(request.param, tmp_path)


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    place = tmp_path / "volumes" / "out"
    place.mkdir(parents=True)
    place.chmod(0o777)
    (place / "old").write_text("old")
    (place / "old").chmod(0o666)
    return place


def test_C13_what_is_written_to_a_volume_stays(either: LocalHarness, volume: Path) -> None:
    text = f"cd {TARGET}; cat old; echo new > new; mkdir deep; echo x > deep/y; echo more >> old"
    launch = either.shell("attempt-1", text, mounts=(Mount(volume, "volumes/out", TARGET, writable=True),))
    either.engine.launch(launch)
    ended = either.until("attempt-1", SETTLED)
    assert ended.exit.code == 0, written(either.engine.logs("attempt-1").frames, frames.STDERR)
    assert either.engine.release("attempt-1").confirmed
    assert (volume / "new").read_text() == "new\n"
    assert (volume / "old").read_text() == "oldmore\n"
    assert (volume / "deep" / "y").read_text() == "x\n"
    assert not Path("/volume/trainshed-test").exists()


def test_C13_a_volume_and_what_is_only_read_lie_side_by_side(
    either: LocalHarness, volume: Path, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "a").write_text("a")
    data.chmod(0o777)
    text = f"cp /mnt/trainshed-data/a {TARGET}/copy; echo x > /mnt/trainshed-data/b"
    mounts = (
        Mount(data, "data", "/mnt/trainshed-data"),
        Mount(volume, "volumes/out", TARGET, writable=True),
    )
    either.engine.launch(either.shell("attempt-1", text, mounts=mounts))
    assert either.until("attempt-1", SETTLED).exit.code == 1
    assert (volume / "copy").read_text() == "a"
    assert [each.name for each in data.iterdir()] == ["a"]


def test_C13_members_of_a_gang_share_a_volume(local: LocalHarness, volume: Path) -> None:
    text = f"""echo $RANK > {TARGET}/$RANK
    while [ "$(ls {TARGET} | wc -l)" -lt 3 ]; do sleep 0.02; done"""
    mount = Mount(volume, "volumes/out", TARGET, writable=True)
    launches = gang(local, [text] * 2, shared={"mounts": (mount,)})
    local.engine.launch_many(launches)
    assert [each.exit.code for each in settled(local, launches)] == [0, 0]
    assert sorted(each.name for each in volume.iterdir()) == ["0", "1", "old"]


def test_C14_what_is_not_on_a_volume_is_gone(local: LocalHarness, volume: Path) -> None:
    text = f"echo x > here; echo x > {TARGET}/there"
    mount = Mount(volume, "volumes/out", TARGET, writable=True)
    local.engine.launch(local.shell("attempt-1", text, mounts=(mount,)))
    local.until("attempt-1", SETTLED)
    work = local.engine.work_directory("attempt-1")
    assert (work / "here").exists()
    local.engine.release("attempt-1")
    assert not work.exists()
    assert (volume / "there").exists()


def test_C13_where_nobody_may_mount_a_volume_is_below_the_content_and_a_report_says_so(
    local: LocalHarness, volume: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linux, "may_mount", lambda: False)
    local.reopen()
    mount = Mount(volume, "volumes/out", TARGET, writable=True)
    launch = local.shell("attempt-1", "echo new > $OUT/new", mounts=(mount,), paths={"OUT": "volumes/out"})
    local.engine.launch(launch)
    assert local.until("attempt-1", SETTLED).exit.code == 0
    assert (volume / "new").read_text() == "new\n"
    assert codes(local, "attempt-1") == ["MOUNT_ELSEWHERE"]
    assert TARGET in local.engine.reports("attempt-1", 0)[0].message
    assert local.engine.release("attempt-1").confirmed
    assert (volume / "new").exists()


def test_a_writable_mount_without_a_target_is_none(volume: Path) -> None:
    with pytest.raises(ValueError, match="needs a target"):
        replace(Mount(volume, "x"), writable=True)


# A part of a volume (`Mount.within`)

_EXCHANGE = 2
_HERE = -100  # AT_FDCWD


@pytest.fixture
def swapping(volume: Path, tmp_path: Path) -> Iterator[Path]:
    """A folder ``x`` of the volume, which is exchanged with a link to the outside again and again."""
    outside = tmp_path / "outside"
    for place in (outside, volume / "x"):
        place.mkdir()
        place.chmod(0o777)
    (outside / "secret").touch()
    (volume / "x" / "inside").touch()
    (volume / "link").symlink_to(outside)
    names = [os.fsencode(volume / name) for name in ("x", "link")]
    rename = ctypes.CDLL(None, use_errno=True).renameat2
    over = threading.Event()

    def swap() -> None:
        while not over.is_set():
            assert rename(_HERE, names[0], _HERE, names[1], _EXCHANGE) == 0

    thread = threading.Thread(target=swap)
    thread.start()
    yield outside
    over.set()
    thread.join()


def test_C13_a_part_of_a_volume_is_made_and_written(either: LocalHarness, volume: Path) -> None:
    (volume / "in").mkdir()
    (volume / "in" / "given").write_text("given\n")
    (volume / "deep").mkdir()
    for place in (volume / "deep" / "er", volume / "in"):
        place.mkdir(exist_ok=True)
        place.chmod(0o777)
    text = (
        f"cat /mnt/trainshed-in/given; echo new > {TARGET}/new; echo no > /mnt/trainshed-in/no; ls {TARGET}"
    )
    mounts = (
        Mount(volume, "volumes/out", TARGET, writable=True, within="deep/er"),
        Mount(volume, "volumes/in", "/mnt/trainshed-in", within="in"),
        Mount(volume, "volumes/made", "/mnt/trainshed-made", writable=True, within="made/here"),
    )
    either.engine.launch(either.shell("attempt-1", text, mounts=mounts))
    ended = either.until("attempt-1", SETTLED)
    log = either.engine.logs("attempt-1").frames
    assert ended.exit.code == 0, written(log, frames.STDERR)
    assert written(log, frames.STDOUT) == b"given\nnew\n"
    assert (volume / "deep" / "er" / "new").read_text() == "new\n"
    assert [each.name for each in (volume / "in").iterdir()] == ["given"]
    assert (volume / "made" / "here").is_dir()
    assert either.engine.release("attempt-1").confirmed
    assert not (either.folder("attempt-1") / "volumes").exists()
    assert (volume / "deep" / "er" / "new").exists()


@pytest.mark.parametrize("within", ["link", "link/deep", "in/link"])
def test_C11_a_link_on_the_way_to_a_part_of_a_volume_fails_the_start(
    either: LocalHarness, volume: Path, tmp_path: Path, within: str
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (volume / "in").mkdir()
    for place in (volume / "link", volume / "in" / "link"):
        place.symlink_to(outside)
    mount = Mount(volume, "volumes/out", TARGET, writable=True, within=within)
    either.engine.launch(either.shell("attempt-1", f"touch {TARGET}/new", mounts=(mount,)))
    ended = either.until("attempt-1", SETTLED)
    assert ended.exit.ended_by is EndedBy.NOT_STARTED
    assert "link" in ended.exit.detail
    assert list(outside.iterdir()) == []
    assert either.engine.release("attempt-1").confirmed


def test_C11_what_is_swapped_while_it_is_mounted_never_leads_out_of_its_volume(
    either: LocalHarness, volume: Path, swapping: Path
) -> None:
    mount = Mount(volume, "volumes/out", TARGET, writable=True, within="x")
    names = [f"attempt-{number}" for number in range(12)]
    text = f"ls {TARGET}; touch {TARGET}/new"
    either.engine.launch_many([either.shell(name, text, mounts=(mount,)) for name in names])
    for name in names:
        ended = either.until(name, SETTLED)
        if ended.exit.ended_by is EndedBy.EXIT:
            assert b"inside" in written(either.engine.logs(name).frames, frames.STDOUT)
        else:
            assert ended.exit.ended_by is EndedBy.NOT_STARTED
        assert either.engine.release(name).confirmed
    assert [each.name for each in swapping.iterdir()] == ["secret"]


@pytest.mark.usefixtures("swapping")
def test_C11_a_folder_is_opened_in_its_volume_or_not_at_all(volume: Path, tmp_path: Path) -> None:
    outside = (tmp_path / "outside").stat().st_ino
    for _ in range(3000):
        with contextlib.suppress(NotADirectoryError):
            fd = volumes.open_beneath(volume, "x", make=True)
            assert os.fstat(fd).st_ino != outside
            os.close(fd)


def test_C11_a_part_of_a_volume_is_refused_where_it_cannot_be_mounted_safely(
    volume: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linux, "may_mount", lambda: False)
    with contextlib.contextmanager(each_way)("bubblewrap", tmp_path) as harness:
        mount = Mount(volume, "volumes/out", TARGET, writable=True, within="x")
        with pytest.raises(EngineError, match="mount the whole volume") as refusal:
            harness.engine.launch(harness.shell("attempt-1", ":", mounts=(mount,)))
        assert refusal.value.code == "MOUNT_IMPOSSIBLE"
