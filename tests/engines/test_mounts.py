"""Mounts (rule 12, C11-C13): what a program finds, what a hostile one can do to it, and what is left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from engines.conformance import SETTLED, written
from engines.machinery import WAYS, LocalHarness, each_way, public_interpreter
from trainshed.content.blobs import FolderBlobStore
from trainshed.content.outputs import ProblemCode, collect
from trainshed.engines import EndedBy, EngineError, Mount, Phase
from trainshed.jobkit import folder, frames, linux, mounts, tree
from trainshed.model.globs import OutputPatterns

RIGHTS = pytest.mark.skipif(not linux.may_mount(), reason="needs the right to mount")


@pytest.fixture(params=[*WAYS, "links"])
def way(request: pytest.FixtureRequest) -> str:
    if request.param == "none" and not linux.may_mount():
        pytest.skip("needs the right to mount")
    return str(request.param)


@pytest.fixture
def local(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHarness]:
    """An engine of each way: binds of one's own, a sandbox, and links where nobody may mount."""
    if way == "links":
        monkeypatch.setattr(linux, "may_mount", lambda: False)
    yield from each_way("bubblewrap" if way == "bubblewrap" else "none", tmp_path)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A read-only tree as the content room makes them."""
    top = tmp_path / "content" / "trees" / "data"
    (top / "deep").mkdir(parents=True)
    for name, text in (("a.txt", "one"), ("deep/b.txt", "two")):
        (top / name).write_text(text)
        (top / name).chmod(0o444)
    for each in (top / "deep", top):
        each.chmod(0o555)
    return top


@pytest.fixture
def note(tmp_path: Path) -> Path:
    place = tmp_path / "content" / "profile.json"
    place.parent.mkdir(exist_ok=True)
    place.write_text("{}")
    place.chmod(0o444)
    return place


def facts(top: Path) -> dict[str, tuple[object, ...]]:
    """Everything about a tree that a program could change."""
    found = {}
    for place in [top, *top.rglob("*")]:
        status = place.lstat()
        content = place.read_bytes() if place.is_file() else b""
        found[str(place)] = (status.st_ino, status.st_mode, status.st_uid, status.st_mtime_ns, content)
    return found


def names(place: Path | str) -> list[str]:
    return sorted(each.name for each in Path(place).iterdir())


def run(local: LocalHarness, text: str, *shown: Mount, attempt: str = "attempt-1", **paths: str) -> str:
    """What a program that sees ``shown`` prints, errors included."""
    launch = local.program(attempt, ["bash", "-c", text], mounts=shown, paths=paths)
    local.engine.launch(launch)
    seen = local.until(attempt, SETTLED)
    assert seen.exit is not None, seen
    assert seen.started_at is not None, seen.exit
    log = local.engine.logs(attempt).frames
    return (written(log) + written(log, frames.STDERR)).decode()


# What a program finds


def test_C13_a_program_finds_its_inputs_by_its_variables_without_a_copy(local, data, note):
    said = run(
        local,
        'cat "$INPUTS/data/a.txt" "$INPUTS/data/deep/b.txt" "$PROFILE" "$DATA/a.txt"; '
        'echo; stat -c %i "$INPUTS/data/a.txt"',
        Mount(data, "inputs/data"),
        Mount(note, "profile.json"),
        INPUTS="inputs",
        DATA="inputs/data",
        PROFILE="profile.json",
    )
    assert said == f"onetwo{{}}one\n{(data / 'a.txt').stat().st_ino}\n"


def test_an_attempt_says_how_its_inputs_are_kept(local, way, data):
    run(local, "true", Mount(data, "d"))
    expected = mounts.LINKS if way == "links" else mounts.MOUNT
    assert local.observe("attempt-1").enforcement["mounts"] == expected


HOSTILE = """
cd "$DATA" || exit 9
echo x > a.txt; echo x >> deep/b.txt; : > new; mkdir newdir; rm -f a.txt; rm -rf deep
mv a.txt b.txt; ln a.txt linked; ln -s / link; truncate -s 0 a.txt; cp /bin/sh a.txt
touch -d 2001-01-01 a.txt; sed -i s/one/two/ a.txt
cd ..; mv data gone; rmdir data; : > "$DATA/../new"
ln "$DATA/a.txt" "$OLDPWD/hard" ; echo over
"""


def test_C13_a_program_that_writes_deletes_and_renames_changes_nothing(local, way, data):
    if way == "links" and os.geteuid() == 0:
        pytest.skip("root writes whatever permissions say; where it may not mount, nothing keeps it")
    before = facts(data)
    assert "over\n" in run(local, HOSTILE, Mount(data, "inputs/data"), DATA="inputs/data")
    assert facts(data) == before
    assert local.engine.release("attempt-1").confirmed
    assert facts(data) == before


def test_C13_modes_and_owners_cannot_be_changed_through_a_mount(local, way, data):
    if way == "links":
        pytest.skip("whoever owns a file may change its mode; only a mount forbids it")
    before = facts(data)
    text = (
        'chmod -R u+w "$DATA"; chown -R 12345 "$DATA"; touch "$DATA/a.txt"; setfattr -n user.x "$DATA/a.txt"'
    )
    run(local, text, Mount(data, "inputs/data"), DATA="inputs/data")
    assert facts(data) == before


def test_the_folder_of_mounts_itself_cannot_be_written(local, way, data):
    if way == "links" and os.geteuid() == 0:
        pytest.skip("root writes whatever permissions say")
    said = run(local, ': > "$INPUTS/new" || echo refused', Mount(data, "inputs/data"), INPUTS="inputs")
    assert said.startswith("refused\n") or "refused\n" in said


def test_what_is_shown_counts_for_no_disk_limit_and_is_no_output(local, data, tmp_path):
    run(local, 'cp -rL "$DATA" copy; ln -s "$DATA" link; true', Mount(data, "data"), DATA="data")
    path = local.folder("attempt-1")
    assert tree.used_bytes(path / folder.CONTENT) < 64 << 10
    found = collect(
        local.engine.work_directory("attempt-1"),
        OutputPatterns(("**",)),
        {},
        FolderBlobStore(tmp_path / "store"),
    )
    assert [file.name for file in found.files] == ["copy/a.txt", "copy/deep/b.txt"]
    assert [(each.name, each.code) for each in found.problems] == [("link", ProblemCode.IS_LINK)]


# What is left


def test_P6_after_the_release_nothing_is_mounted_and_the_folder_is_gone(local, data):
    run(local, "true", Mount(data, "inputs/data"), DATA="inputs/data")
    path = local.folder("attempt-1")
    assert mounts.mounted_below(str(path)) == [], "nobody else ever saw it"
    release = local.engine.release("attempt-1")
    assert release.confirmed
    assert not (path / folder.CONTENT).exists()
    assert (data / "a.txt").read_text() == "one"
    assert local.engine.release("attempt-1").confirmed


def test_P6_a_running_program_keeps_its_inputs_when_their_names_are_taken_away(local, way, data, tmp_path):
    if way == "links":
        pytest.skip("a link leads to a name")
    text = 'echo ready; until [ -e go ]; do sleep 0.01; done; cat "$DATA/a.txt"'
    launch = local.program(
        "attempt-1", ["bash", "-c", text], mounts=(Mount(data, "data"),), paths={"DATA": "data"}
    )
    local.engine.launch(launch)
    local.until("attempt-1", {Phase.RUNNING})
    data.rename(tmp_path / "moved")
    (local.engine.work_directory("attempt-1") / "go").touch()
    local.until("attempt-1", SETTLED)
    assert b"one" in written(local.engine.logs("attempt-1").frames)


@RIGHTS
def test_P6_what_a_program_mounts_for_everybody_is_unmounted_before_anything_is_removed(tmp_path, data):
    """A program with all rights can do that; removing must not reach into what it mounted."""
    attempt = tmp_path / "attempt"
    place = attempt / folder.CONTENT / "in puts"
    place.mkdir(parents=True)
    subprocess.run(["mount", "--bind", str(data), str(place)], check=True)
    assert mounts.clear(str(attempt)) == "none left"
    assert not (attempt / folder.CONTENT).exists()
    assert (data / "a.txt").read_text() == "one"


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A folder of the machine, of the same file system as the attempts."""
    top = tmp_path / "victim"
    (top / "deep" / "er").mkdir(parents=True)
    for name in ("a.txt", "deep/b.txt", "deep/er/c.txt"):
        (top / name).write_text("precious")
    return top


@RIGHTS
@pytest.mark.parametrize("way", ["none"], indirect=True)
@pytest.mark.parametrize("place", ["m", "deep/in it", ".", "../tmp/m"])
def test_P6_a_release_never_removes_through_a_mount_that_a_program_left(local, victim, place):
    before = facts(victim)
    text = (
        f'mkdir -p "{place}"; exec nsenter --mount=/proc/{os.getpid()}/ns/mnt '
        f'mount --bind {victim} "$PWD/{place}"'
    )
    run(local, text)
    path = local.folder("attempt-1")
    assert len(mounts.mounted_below(str(path))) == 1, "the program could mount it"
    release = local.engine.release("attempt-1")
    assert release.confirmed, release.checks
    assert release.checks["mounts"] == "none left"
    assert mounts.mounted_below(str(path)) == []
    assert not (path / folder.WORK).exists()
    assert facts(victim) == before


@RIGHTS
def test_P6_unmounting_a_shared_mount_leaves_the_original_and_what_is_mounted_in_it(tmp_path):
    shared = tmp_path / "shared"
    inner = shared / "inner"
    for place in (shared, inner):
        place.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(place)], check=True)
        subprocess.run(["mount", "--make-shared", str(place)], check=True)
    try:
        (inner / "a.txt").write_text("precious")
        place = tmp_path / "attempt" / folder.WORK / "m"
        place.mkdir(parents=True)
        subprocess.run(["mount", "--rbind", str(shared), str(place)], check=True)
        with (place / "inner" / "a.txt").open():
            assert mounts.clear(str(tmp_path / "attempt")) == "none left"
        assert mounts.mounted_below(str(tmp_path / "attempt")) == []
        assert (inner / "a.txt").read_text() == "precious"
    finally:
        subprocess.run(["umount", str(inner), str(shared)], check=True)


@RIGHTS
@pytest.mark.parametrize("where", [".", "m", "deep/m", "file"])
def test_P6_a_tree_with_a_mount_in_it_is_not_removed_through_it(tmp_path, victim, where):
    before = facts(victim)
    top = tmp_path / "top"
    place = top / where
    source = victim / "a.txt" if where == "file" else victim
    top.mkdir()
    if where == "file":
        place.touch()
    else:
        place.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "--bind", str(source), str(place)], check=True)
    try:
        with pytest.raises(OSError, match=r"mounted|busy"):
            tree.remove(top)
        assert facts(victim) == before
    finally:
        subprocess.run(["umount", str(place)], check=True)
    tree.remove(top)
    assert not top.exists()


@RIGHTS
def test_P6_a_mount_that_cannot_be_removed_keeps_the_release_from_being_confirmed(local, victim, monkeypatch):
    run(local, "true")
    place = local.folder("attempt-1") / folder.WORK / "m"
    place.mkdir(parents=True)
    subprocess.run(["mount", "--bind", str(victim), str(place)], check=True)
    with monkeypatch.context() as broken:
        broken.setattr(linux, "unmount", lambda _: None)
        release = local.engine.release("attempt-1")
    assert not release.confirmed
    assert "mounted" in release.checks["mounts"]
    assert local.engine.release("attempt-1").confirmed
    assert (victim / "a.txt").read_text() == "precious"


@RIGHTS
def test_what_a_mount_shows_is_a_problem_and_no_output(tmp_path, victim):
    work = tmp_path / "work"
    (work / "out" / "m").mkdir(parents=True)
    (work / "out" / "own.txt").write_text("mine")
    (work / "out" / "file").touch()
    pairs = ((victim, work / "out" / "m"), (victim / "a.txt", work / "out" / "file"))
    for source, place in pairs:
        subprocess.run(["mount", "--bind", str(source), str(place)], check=True)
    try:
        found = collect(work, OutputPatterns(("out/**",)), {}, FolderBlobStore(tmp_path / "store"))
    finally:
        for _, place in pairs:
            subprocess.run(["umount", str(place)], check=True)
    assert [each.name for each in found.files] == ["out/own.txt"]
    assert {(each.name, each.code) for each in found.problems} == {
        ("out/m", ProblemCode.UNREADABLE),
        ("out/file", ProblemCode.UNREADABLE),
    }


# What cannot be mounted


def test_a_source_that_is_gone_is_a_start_that_failed_before_user_code(local, way, data):
    missing = data.parent / "missing"
    local.engine.launch(local.program("attempt-1", ["true"], mounts=(Mount(missing, "x/y"),)))
    seen = local.until("attempt-1", SETTLED)
    if way == "links":
        pytest.skip("a link may lead nowhere; content is checked before it is launched")
    assert seen.started_at is None
    assert seen.exit is not None
    assert seen.exit.ended_by is EndedBy.NOT_STARTED
    assert "missing" in seen.exit.detail
    assert local.engine.release("attempt-1").confirmed


@pytest.mark.parametrize(
    ("mount", "paths", "reason"),
    [
        (Mount(Path("/x"), "../up"), {}, "no place"),
        (Mount(Path("/x"), "/up"), {}, "no place"),
        (Mount(Path("/x"), ""), {}, "no place"),
        (Mount(Path("x"), "up"), {}, "no place"),
        (Mount(Path("/x"), "a"), {"X": "b"}, "nothing is mounted"),
        (Mount(Path("/x"), "ab"), {"X": "a"}, "nothing is mounted"),
        (Mount(Path("/x"), "a", "relative"), {}, "plain absolute"),
        (Mount(Path("/x"), "a", "/mnt/../etc"), {}, "plain absolute"),
        (Mount(Path("/x"), "a", "/"), {}, "plain absolute"),
        (Mount(Path("/x"), "a", "/usr/lib"), {}, "hide what programs need"),
        (Mount(Path("/x"), "a", "/proc/self"), {}, "hide what programs need"),
    ],
)
def test_C12_a_mount_that_makes_no_sense_is_refused_at_once(local, mount, paths, reason):
    with pytest.raises(EngineError, match=reason) as error:
        local.engine.launch(local.program("attempt-1", ["true"], mounts=(mount,), paths=paths))
    assert (error.value.code, error.value.retryable) == ("LAUNCH_INVALID", False)
    assert local.observe("attempt-1").phase is Phase.ABSENT


def test_C11_mounts_inside_each_other_are_refused(local, way, data):
    shown = (Mount(data, "a"), Mount(data, "a/b"))
    with pytest.raises(EngineError, match="at or below"):
        local.engine.launch(local.program("attempt-1", ["true"], mounts=shown))
    if way == "links":
        return
    shown = (Mount(data, "a", "/mnt/x"), Mount(data, "b", "/mnt/x/y"))
    with pytest.raises(EngineError, match="at or below"):
        local.engine.launch(local.program("attempt-1", ["true"], mounts=shown))


def test_C12_the_servers_own_folder_is_not_hidden(local):
    above = "/" + local.root.parts[1]
    with pytest.raises(EngineError, match=r"own folder|hide what programs need"):
        local.engine.launch(local.program("attempt-1", ["true"], mounts=(Mount(Path("/x"), "a", above),)))


# Absolute paths


def test_C12_without_the_right_to_mount_absolute_paths_are_refused_with_the_reason(local, way, data):
    if way != "links":
        pytest.skip("it may mount")
    with pytest.raises(EngineError, match="CAP_SYS_ADMIN") as error:
        local.engine.launch(local.program("attempt-1", ["true"], mounts=(Mount(data, "a", "/mnt/x"),)))
    assert error.value.code == "MOUNT_IMPOSSIBLE"


@pytest.fixture
def mountable(local: LocalHarness, way: str) -> LocalHarness:
    if way == "links":
        pytest.skip("nobody may mount")
    return local


@pytest.mark.parametrize("target", ["/mnt/trainshed-test/data", "/volume-trainshed-test/a/b", "/mnt"])
def test_C12_a_program_finds_a_mount_at_an_absolute_path_that_need_not_exist(mountable, data, target):
    """A folder of the machine that is in the way is covered, one that is missing appears to it alone."""
    roots = names("/")
    below = names("/mnt")
    said = run(
        mountable,
        f'cat {target}/a.txt; echo; cat "$DATA/a.txt"; echo; pwd; ls -d /usr /etc; readlink /bin; '
        f"ls -A / | wc -l; echo x > {target}/a.txt",
        Mount(data, "data", target),
        DATA="data",
    )
    lines = said.splitlines()
    assert lines[:5] == ["one", "one", mountable.directory("attempt-1"), "/etc", "/usr"]
    assert not Path("/bin").is_symlink() or lines[5] == str(Path("/bin").readlink())
    assert int(lines[6]) >= len(roots)
    assert "Read-only file system" in said
    assert names("/") == roots, "nothing is left on the machine, or ever was there"
    assert names("/mnt") == below
    assert (data / "a.txt").read_text() == "one"
    assert mountable.engine.release("attempt-1").confirmed


def test_C12_what_a_covered_folder_held_is_still_there(mountable, data, way, tmp_path):
    """The nearest folder above is covered by an empty one, and its entries are shown again."""
    if way == "bubblewrap":
        pytest.skip("the test's folders are hidden from a sandbox")
    shelf = tmp_path / "shelf"
    (shelf / "inner").mkdir(parents=True)
    (shelf / "inner" / "kept").write_text("kept")
    (shelf / "file").write_text("file")
    (shelf / "link").symlink_to("file")
    entries: list[mounts.Entry] = [(str(data), "data", str(shelf / "new" / "er"), False)]
    attempt = tmp_path / "attempt"
    attempt.mkdir()
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            linux.own_mounts()
            mounts.bind(str(attempt), entries)
            seen = [
                (shelf / "inner" / "kept").read_text(),
                (shelf / "link").read_text(),
                (shelf / "new" / "er" / "a.txt").read_text(),
                *names(shelf),
            ]
            (shelf / "inner" / "kept").write_text("changed")
            os.write(writer, " ".join(seen).encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(pid, 0)
    assert os.read(reader, 1000).decode() == "kept file one file inner link new"
    os.close(reader)
    assert (shelf / "inner" / "kept").read_text() == "changed", "what is shown again is the machine's own"
    assert names(shelf) == ["file", "inner", "link"]


ORDINARY = """
import json, os, sys
from pathlib import Path
sys.path.insert(0, "tests")
from engines.conformance import LIMITS, written
from engines.test_mounts import HOSTILE, facts
from trainshed.engines import Launch, Mount, Phase
from trainshed.engines.local import LocalEngine
os.setgroups([]); os.setresgid(4321, 4321, 4321); os.setresuid(4321, 4321, 4321)
root, sys.executable = Path(sys.argv[1]), sys.argv[2]
data = root / "content" / "data"
(data / "deep").mkdir(parents=True)
for name in ("a.txt", "deep/b.txt"):
    (data / name).write_text("one")
    (data / name).chmod(0o444)
for each in (data / "deep", data):
    each.chmod(0o555)
def bytes_of():
    return {path: (inode, mode, content) for path, (inode, mode, _, _, content) in facts(data).items()}
before = bytes_of()
engine = LocalEngine(root / "engine")
mounts, paths = (Mount(data, "inputs/data"),), {"DATA": "inputs/data", "INPUTS": "inputs"}
text = 'cat "$DATA/a.txt"; echo; : > "$INPUTS/new" || echo refused;' + HOSTILE
launch = Launch("attempt-1", ("bash", "-c", text), {}, (), (), LIMITS, 60, mounts=mounts, paths=paths)
engine.launch(launch)
for _ in range(300):
    seen = engine.observe(["attempt-1"])["attempt-1"]
    if seen.phase is Phase.EXITED:
        break
    engine.changed(0.1)
said = written(engine.logs("attempt-1").frames).decode()
how = seen.enforcement["mounts"]
confirmed = engine.release("attempt-1").confirmed
print(json.dumps([said, how, confirmed, bytes_of() == before]))
engine.close()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming an ordinary user takes root")
def test_C13_a_server_of_an_ordinary_user_shows_links_that_permissions_guard():
    """Where nobody may mount, a program that does not change modes first can change times, and no more."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="trainshed-ordinary-") as place:
        os.chown(place, 4321, 4321)
        done = subprocess.run(
            [sys.executable, "-c", ORDINARY, place, public_interpreter()],
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    said, how, confirmed, unchanged = json.loads(done.stdout)
    assert said.splitlines() == ["one", "refused", "over"]
    assert (how, confirmed, unchanged) == (mounts.LINKS, True, True)
