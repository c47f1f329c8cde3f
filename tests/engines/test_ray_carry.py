"""What an attempt needs comes to its node on a real Ray cluster, and what it wrote is copied from there."""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from engines.conformance import SETTLED, Behaviour, written
from engines.rays import RayHarness
from support.ray_cluster import RayCluster
from support.waiting import wait_until
from trainshed.engines import EndedBy, EngineError, Launch, Mount, Phase, TreeFile
from trainshed.engines.ray.mirror import HANDED, Mirror

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.timeout(600)]
MIB = 1 << 20


@pytest.fixture
def harness(tmp_path: Path, ray_cluster: RayCluster) -> Iterator[RayHarness]:
    harness = RayHarness(tmp_path, ray_cluster)
    yield harness
    harness.close()


def carried(
    harness: RayHarness, text: str, files: dict[str, Path] | None = None, mounts: tuple[Mount, ...] = ()
) -> Launch:
    return replace(
        harness.launch("attempt-1", Behaviour.SUCCEEDS),
        argv=("bash", "-ec", f'echo started >> "$STARTS"; {text}'),
        files=[TreeFile(path, source) for path, source in (files or {}).items()],
        mounts=mounts,
        paths={"DATA": "data"} if mounts else {},
        node=harness.cluster.nodes[1],
        carry=True,
    )


def large(tmp_path: Path, size: int = 150 * MIB) -> dict[str, Path]:
    """A file that takes seconds to send."""
    source = tmp_path / "large"
    with source.open("wb") as file:
        file.truncate(size)
    return {"large": source}


def sending(harness: RayHarness) -> None:
    """Wait until some of it is on the node."""
    while harness.observe("attempt-1").stage != "sending":
        harness.pass_time()


def is_handed(tmp_path: Path) -> bool:
    return Mirror(tmp_path / "engine" / "attempts" / "attempt-1").has(HANDED)


def said(harness: RayHarness, text: bytes) -> None:
    log = harness.engine.logs("attempt-1").frames
    wait_until(lambda: log.exists() and text in written(log), 60, f"{text!r} in the log")


def exit_code(harness: RayHarness) -> int | None:
    ended = harness.until("attempt-1", SETTLED).exit
    assert ended is not None, harness.observe("attempt-1")
    return ended.code


def all_goes_with_the_release(harness: RayHarness) -> None:
    assert harness.engine.release("attempt-1").confirmed
    assert harness.left() == []
    assert not harness.node_folder("attempt-1").exists()


def test_files_and_mounts_come_to_the_node_however_many_bytes(harness: RayHarness, tmp_path: Path) -> None:
    blocks = os.urandom(MIB)
    files = {}
    for number, count in enumerate([41, 29, 0]):
        source = tmp_path / f"blob-{number}"
        source.write_bytes(blocks[number:] * count)
        files[f"src/{number}.bin"] = source
    for number in range(450):
        source = tmp_path / f"small-{number}"
        source.write_text(f"{number}\n")
        files[f"many/{number}"] = source
    sums = "".join(f"{hashlib.sha256(files[path].read_bytes()).hexdigest()}  {path}\n" for path in files)
    data = tmp_path / "data"
    for folder in ("bin", "deep/er", "empty"):
        (data / folder).mkdir(parents=True)
    (data / "bin" / "tool").write_text("#!/bin/sh\necho the tool runs\n")
    (data / "bin" / "tool").chmod(0o555)
    (data / "deep" / "er" / "x").write_bytes(blocks)
    (data / "link").symlink_to("/etc/passwd")
    (tmp_path / "sums").write_text(f"{sums}{hashlib.sha256(blocks).hexdigest()}  data/x\n")
    text = (
        'ln -s "$DATA/one/deep/er" data; sha256sum --quiet -c sums; "$DATA/one/bin/tool"; '
        'test -d "$DATA/one/empty"; ! test -e "$DATA/one/link"; ! test -L "$DATA/one/link"; '
        '! test -x "$DATA/one/deep/er/x"; cat "$DATA/two"'
    )
    (tmp_path / "two").write_text("a file alone\n")
    mounts = (Mount(data, "data/one"), Mount(tmp_path / "two", "data/two"))
    launch = carried(harness, text, {**files, "sums": tmp_path / "sums"}, mounts)
    harness.engine.launch(launch)
    sending(harness)
    assert "MB are on the node" in harness.observe("attempt-1").detail
    assert exit_code(harness) == 0, written(harness.engine.logs("attempt-1").frames, 2)
    assert written(harness.engine.logs("attempt-1").frames) == b"the tool runs\na file alone\n"
    all_goes_with_the_release(harness)


def test_P14_a_restart_while_it_is_sent_goes_on_with_it(harness: RayHarness, tmp_path: Path) -> None:
    harness.engine.launch(carried(harness, "stat -c %s large", large(tmp_path)))
    sending(harness)
    harness.engine.close()
    assert not is_handed(tmp_path)
    harness.reopen()
    assert exit_code(harness) == 0
    assert written(harness.engine.logs("attempt-1").frames) == b"%d\n" % (150 * MIB)
    assert harness.starts("attempt-1") == 1


def test_a_host_that_vanishes_while_it_is_sent_is_followed_by_another(
    harness: RayHarness, tmp_path: Path
) -> None:
    harness.engine.launch(carried(harness, "stat -c %s large", large(tmp_path)))
    sending(harness)
    harness.lose("attempt-1")
    assert not is_handed(tmp_path)
    assert exit_code(harness) == 0
    assert written(harness.engine.logs("attempt-1").frames) == b"%d\n" % (150 * MIB)
    assert harness.starts("attempt-1") == 1


def test_C27_members_of_a_gang_begin_when_all_have_what_they_need(
    harness: RayHarness, tmp_path: Path
) -> None:
    files = [TreeFile(path, source) for path, source in large(tmp_path, MIB).items()]
    launches = [replace(each, files=files, carry=True) for each in harness.gang(["test -s large"] * 2)]
    assert harness.engine.launch_many(launches) == {}
    ends = [harness.until(each.attempt_id, SETTLED).exit for each in launches]
    assert [end.code for end in ends if end] == [0, 0]


def test_P3_a_stop_while_it_is_sent_means_that_it_never_starts(harness: RayHarness, tmp_path: Path) -> None:
    harness.engine.launch(carried(harness, "true", large(tmp_path)))
    sending(harness)
    harness.engine.stop("attempt-1")
    seen = harness.observe("attempt-1")
    assert seen.exit is not None
    assert (seen.exit.ended_by, seen.exit.code) == (EndedBy.STOP, None)
    assert not is_handed(tmp_path)
    all_goes_with_the_release(harness)
    assert harness.starts("attempt-1") == 0


def test_a_source_that_is_gone_ends_it_with_the_reason(harness: RayHarness, tmp_path: Path) -> None:
    harness.engine.launch(carried(harness, "true", {"a": tmp_path / "never-was"}))
    ended = harness.until("attempt-1", SETTLED).exit
    assert ended is not None
    assert (ended.ended_by, ended.code) == (EndedBy.NOT_STARTED, None)
    assert "never-was" in ended.detail
    all_goes_with_the_release(harness)


def test_what_a_program_may_change_is_not_carried(harness: RayHarness, tmp_path: Path) -> None:
    volume = Mount(tmp_path, "data", target="/mnt/volume", writable=True)
    with pytest.raises(EngineError) as refusal:
        harness.engine.launch(carried(harness, "true", mounts=(volume,)))
    assert refusal.value.code == "LAUNCH_INVALID"
    assert harness.observe("attempt-1").phase is Phase.ABSENT


_WRITES = """
mkdir -p outputs/deep .gpu other; echo one > outputs/deep/one; echo kept > outputs/kept; echo x > other/x
ln -s /etc outputs/folder; ln -s /etc/passwd outputs/file; mkfifo outputs/pipe; ln -s outputs linked
ln -s "$PWD/other" .gpu/away; echo first
until [ -e .gpu/go ]; do sleep 0.05; done
test ! -e other/asked; rm outputs/deep/one; echo two > outputs/two; echo changed > outputs/changed
head -c 70000000 /dev/zero > outputs/big; echo end >> outputs/big
"""


def test_what_it_writes_is_copied_while_it_runs_and_after_its_end(
    harness: RayHarness, tmp_path: Path
) -> None:
    harness.engine.launch(carried(harness, _WRITES))
    said(harness, b"first\n")
    into = tmp_path / "copy"
    names = ["outputs", "missing", "linked", "../work"]
    links = ["../work", "linked", "outputs/file", "outputs/folder", "outputs/pipe"]
    assert list(harness.engine.pull("attempt-1", names, into)) == links
    outputs = into / "outputs"
    assert {path.relative_to(into).as_posix() for path in into.rglob("*") if not path.is_dir()} == {
        "outputs/deep/one",
        "outputs/kept",
    }
    assert (outputs / "deep" / "one").read_text() == "one\n"
    kept = (outputs / "kept").stat()

    assert not harness.engine.ask("attempt-1", ".gpu/away/asked")
    assert not harness.engine.ask("attempt-1", ".gpu/not/there")
    assert not harness.engine.ask("attempt-1", "../out")
    assert harness.engine.ask("attempt-1", ".gpu/go")
    assert exit_code(harness) == 0
    assert not harness.engine.work_directory("attempt-1").exists()

    (outputs / ".0.part").write_text("of a copy that was cut")
    assert list(harness.engine.pull("attempt-1", names, into)) == links
    assert sorted(path.name for path in outputs.iterdir()) == ["big", "changed", "kept", "two"]
    assert (outputs / "big").stat().st_size == 70_000_004
    assert (outputs / "big").read_bytes().endswith(b"\0end\n")
    now = (outputs / "kept").stat()
    assert (now.st_ino, now.st_mtime_ns) == (kept.st_ino, kept.st_mtime_ns)

    all_goes_with_the_release(harness)
    with pytest.raises(EngineError) as refusal:
        harness.engine.pull("attempt-1", names, into)
    assert (refusal.value.code, refusal.value.retryable) == ("ATTEMPT_GONE", False)
    assert (outputs / "two").exists()
    assert not harness.engine.ask("attempt-1", ".gpu/go")


def test_a_node_that_does_not_answer_is_told_from_one_that_has_nothing_any_more(
    harness: RayHarness, tmp_path: Path
) -> None:
    harness.engine.launch(carried(harness, "mkdir outputs; echo a > outputs/a; echo first; exec sleep 1000"))
    said(harness, b"first\n")
    host = harness.host_pid("attempt-1")
    os.kill(host, signal.SIGSTOP)
    try:
        with pytest.raises(EngineError) as refusal:
            harness.engine.pull("attempt-1", ["outputs"], tmp_path / "copy")
    finally:
        os.kill(host, signal.SIGCONT)
    assert (refusal.value.code, refusal.value.retryable) == ("ENGINE_UNREACHABLE", True)
    assert list(harness.engine.pull("attempt-1", ["outputs"], tmp_path / "copy")) == []
    harness.lose("attempt-1")
    assert harness.until("attempt-1", SETTLED).phase is Phase.LOST
    with pytest.raises(EngineError) as refusal:
        harness.engine.pull("attempt-1", ["outputs"], tmp_path / "copy")
    assert (refusal.value.code, refusal.value.retryable) == ("ATTEMPT_GONE", False)
    assert (tmp_path / "copy" / "outputs" / "a").read_text() == "a\n"
