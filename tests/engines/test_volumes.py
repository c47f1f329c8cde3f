"""Volumes (C11-C13): mounts that may be written, at absolute paths that need not exist on the machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from engines.conformance import SETTLED, written
from engines.gangs import codes, gang, settled
from engines.machinery import WAYS, LocalHarness, each_way
from trainshed.engines import Mount
from trainshed.jobkit import frames, linux

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
