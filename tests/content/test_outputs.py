"""Collecting outputs from trees that a hostile program left behind."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.examples import examples
from trainshed.content.blobs import FolderBlobStore
from trainshed.content.outputs import (
    MAX_PROBLEMS,
    CollectedFile,
    Collection,
    CollectionCancelled,
    CollectLimits,
    ProblemCode,
    collect,
)
from trainshed.jobkit.walk import MAX_DEPTH, Kind, open_below, walk
from trainshed.model.globs import OutputPatterns

EVERYTHING = OutputPatterns(["outputs/**"])


@pytest.fixture
def work(tmp_path: Path) -> Path:
    place = tmp_path / "work"
    (place / "outputs").mkdir(parents=True)
    return place


@pytest.fixture
def gather(work, store):
    def gather(patterns: OutputPatterns = EVERYTHING, baseline=None, **more) -> Collection:
        limits = CollectLimits(**{k: more.pop(k) for k in list(more) if k in CollectLimits.__slots__})
        return collect(work, patterns, baseline or {}, store, limits, **more)

    return gather


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def codes(collection: Collection) -> dict[str, ProblemCode]:
    return {problem.name: problem.code for problem in collection.problems}


def names(collection: Collection) -> list[str]:
    return [file.name for file in collection.files]


def test_E73_declared_files_are_stored_with_size_and_digest_and_others_are_not(work, store, gather):
    (work / "outputs" / "deep" / "er").mkdir(parents=True)
    (work / "outputs" / "model.bin").write_bytes(b"weights")
    (work / "outputs" / "deep" / "er" / "curve.json").write_bytes(b"{}")
    (work / "secret.txt").write_bytes(b"undeclared")
    seen = []
    result = gather(on_file=seen.append)
    assert result.status == "complete"
    assert (
        list(result.files)
        == seen
        == [
            CollectedFile("outputs/deep/er/curve.json", 2, sha256(b"{}")),
            CollectedFile("outputs/model.bin", 7, sha256(b"weights")),
        ]
    )
    assert store.open(sha256(b"weights")).read() == b"weights"
    assert not store.exists(sha256(b"undeclared"))


def test_no_declared_outputs_are_status_none_without_a_look_at_the_tree(tmp_path, store):
    result = collect(tmp_path / "absent", OutputPatterns([]), {}, store)
    assert (result.status, result.problems) == ("none", ())


def test_a_glob_may_match_nothing_and_a_literal_may_not(gather, work):
    assert gather().status == "none"
    (work / "logs").mkdir()
    result = gather(OutputPatterns(["outputs/**", "model.bin", "logs"]))
    assert result.status == "failed"
    assert codes(result) == {"model.bin": ProblemCode.MISSING, "logs": ProblemCode.MISSING}
    assert "declare `logs/**`" in result.problems[0].message


def test_E73_the_runners_own_files_are_outputs_only_if_the_program_changed_them(work, gather):
    baseline = {}
    for name in ("same", "other-bytes", "longer"):
        (work / "outputs" / name).write_bytes(b"original")
        baseline[f"outputs/{name}"] = (8, sha256(b"original"))
    (work / "outputs" / "other-bytes").write_bytes(b"ORIGINAL")
    (work / "outputs" / "longer").write_bytes(b"original and more")
    result = gather(baseline=baseline)
    assert names(result) == ["outputs/longer", "outputs/other-bytes"]
    assert result.status == "complete"
    literal = gather(OutputPatterns(["outputs/same"]), baseline)
    assert codes(literal) == {"outputs/same": ProblemCode.MISSING}
    assert "Runner's own" in literal.problems[0].message


def test_links_are_named_and_never_followed(work, store, gather, tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(b"host secret")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "f").write_bytes(b"folder secret")
    (work / "outputs" / "file-link").symlink_to(secret)
    (work / "outputs" / "folder-link").symlink_to(tmp_path / "folder")
    (work / "outputs" / "dangling").symlink_to("nowhere")
    (work / "outputs" / "inside").symlink_to("real")
    (work / "outputs" / "real").write_bytes(b"real")
    result = gather()
    assert names(result) == ["outputs/real"]
    assert codes(result) == {
        f"outputs/{name}": ProblemCode.IS_LINK for name in ("file-link", "folder-link", "dangling", "inside")
    }
    assert result.status == "partial"
    assert not store.exists(sha256(b"host secret"))


def test_a_declared_directory_that_became_a_link_is_named(work, gather, tmp_path):
    (work / "outputs").rmdir()
    (work / "outputs").symlink_to(tmp_path)
    assert codes(gather()) == {"outputs": ProblemCode.IS_LINK}


def test_a_link_that_only_lies_below_a_double_star_is_no_problem(work, gather):
    (work / "lib64").symlink_to("outputs")
    assert gather(OutputPatterns(["**/*.json"])).status == "none"


def test_the_trial_directory_itself_may_not_be_a_link(work, gather, tmp_path):
    work.rename(tmp_path / "moved")
    work.symlink_to(tmp_path / "moved")
    assert codes(gather()) == {".": ProblemCode.UNREADABLE}


def test_a_trial_directory_that_the_program_deleted_is_a_failed_collection(work, gather):
    (work / "outputs").rmdir()
    work.rmdir()
    result = gather()
    assert result.status == "failed"
    assert codes(result) == {".": ProblemCode.MISSING}


def test_special_files_are_named_and_never_opened(work, gather):
    os.mkfifo(work / "outputs" / "fifo")
    with socket.socket(socket.AF_UNIX) as server:
        here = os.open(work / "outputs", os.O_RDONLY)
        try:
            server.bind(f"/proc/self/fd/{here}/socket")
        finally:
            os.close(here)
    expected = {"outputs/fifo", "outputs/socket"}
    if os.geteuid() == 0:
        os.mknod(work / "outputs" / "zero", 0o20666, os.makedev(1, 5))
        expected.add("outputs/zero")
    result = gather()
    assert codes(result) == dict.fromkeys(expected, ProblemCode.NOT_A_FILE)


def test_names_that_no_client_could_write_are_escaped_and_named(work, gather):
    folder = os.fsencode(work / "outputs")
    for name in (b"back\\slash", b"new\nline", b"not-utf8-\xff", b"del\x7f", b"fine \xc3\xbc"):
        Path(os.fsdecode(folder + b"/" + name)).write_bytes(b"x")
    (work / "C:drive").write_bytes(b"x")
    result = gather(OutputPatterns(["**"]))
    assert names(result) == ["outputs/fine ü"]
    assert codes(result) == dict.fromkeys(
        [
            "C:drive",
            "outputs/back\\slash",
            "outputs/new\\x0aline",
            "outputs/not-utf8-\\xff",
            "outputs/del\\x7f",
        ],
        ProblemCode.BAD_NAME,
    )


def test_a_name_longer_than_the_limit_is_named(work, gather):
    folder = work / "outputs"
    for _ in range(5):
        folder /= "d" * 250
        folder.mkdir()
    (folder / "f").write_bytes(b"x")
    (problem,) = gather().problems
    assert problem.code == ProblemCode.BAD_NAME
    assert "1024" in problem.message


def test_nesting_beyond_what_a_path_can_hold_is_named_at_the_limit(work, gather):
    fd = os.open(work / "outputs", os.O_RDONLY)
    try:
        for _ in range(1200):
            os.mkdir("dddddd", dir_fd=fd)
            deeper = os.open("dddddd", os.O_RDONLY, dir_fd=fd)
            os.close(fd)
            fd = deeper
    finally:
        os.close(fd)
    result = gather()
    assert [problem.code for problem in result.problems] == [ProblemCode.TOO_DEEP]
    assert result.problems[0].name.count("/") == MAX_DEPTH
    subprocess.run(["rm", "-rf", work / "outputs"], check=True)


def test_a_hard_link_to_outside_is_refused_and_one_within_is_stored(work, store, gather, tmp_path):
    outside = tmp_path / "outside"
    outside.write_bytes(b"host secret")
    os.link(outside, work / "outputs" / "stolen")
    (work / "cache").mkdir()
    (work / "cache" / "step-9").write_bytes(b"weights")
    os.link(work / "cache" / "step-9", work / "outputs" / "latest")
    result = gather()
    assert names(result) == ["outputs/latest"]
    assert codes(result) == {"outputs/stolen": ProblemCode.HARD_LINK}
    assert not store.exists(sha256(b"host secret"))


UNPRIVILEGED = """
import json, sys
from pathlib import Path
from trainshed.content.blobs import FolderBlobStore
from trainshed.content.outputs import collect
from trainshed.model.globs import OutputPatterns

found = collect(Path(sys.argv[1]), OutputPatterns(["outputs/**"]), {}, FolderBlobStore(Path(sys.argv[2])))
print(json.dumps([[file.name for file in found.files], {each.name: each.code for each in found.problems}]))
"""


def test_unreadable_files_and_directories_are_named(work, store):
    (work / "outputs" / "file").write_bytes(b"x")
    (work / "outputs" / "file").chmod(0)
    (work / "outputs" / "folder").mkdir(mode=0)
    (work / "outputs" / "fine").write_bytes(b"y")
    # Root reads everything unless it gives up the capabilities to.
    drop = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    command = [*drop, sys.executable, "-c", UNPRIVILEGED, str(work), str(store.root)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert json.loads(done.stdout) == [
        ["outputs/fine"],
        {"outputs/file": ProblemCode.UNREADABLE, "outputs/folder": ProblemCode.UNREADABLE},
    ]


def test_a_directory_swapped_for_a_link_during_the_walk_leads_nowhere(tmp_path, work):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "f").write_bytes(b"secret")
    (work / "outputs" / "dir").mkdir()

    def swap_when_asked(path: str) -> bool:
        if path == "outputs/dir":
            (work / "outputs" / "dir").rename(work / "elsewhere")
            (work / "outputs" / "dir").symlink_to(outside)
        return True

    found = [(entry.path, entry.kind) for entry in walk(work, swap_when_asked, lambda: None)]
    assert found == [
        ("outputs", Kind.DIRECTORY),
        ("outputs/dir", Kind.DIRECTORY),
        ("outputs/dir", Kind.UNREADABLE),
    ]


def test_a_second_look_at_a_file_follows_no_link_either(tmp_path, work):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "f").write_bytes(b"secret")
    (work / "outputs" / "dir").symlink_to(tmp_path / "outside")
    (work / "outputs" / "f").symlink_to(tmp_path / "outside" / "f")
    for path in ("outputs/dir/f", "outputs/f"):
        with pytest.raises(OSError):
            open_below(work, path)
    (work / "outputs" / "real").write_bytes(b"fine")
    fd = open_below(work, "outputs/real")
    assert os.read(fd, 9) == b"fine"
    os.close(fd)


def test_E77_a_sparse_file_counts_with_its_full_size(work, gather):
    with (work / "outputs" / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    with (work / "outputs" / "small").open("wb") as file:
        file.truncate(1 << 20)
    result = gather(max_bytes=1 << 30)
    assert names(result) == ["outputs/small"]
    assert codes(result) == {"outputs/sparse": ProblemCode.TOO_LARGE}


def test_E77_the_bounds_on_bytes_and_files_hold(work, gather):
    for n in range(10):
        (work / "outputs" / f"f{n}").write_bytes(b"x" * 10)
    by_bytes = gather(max_bytes=35)
    assert by_bytes.total_bytes == 30
    assert len(by_bytes.problems) == 7
    by_files = gather(max_files=4)
    assert len(by_files.files) == 4
    assert codes(by_files) == {"outputs/f4": ProblemCode.TOO_MANY}
    exactly = gather(max_files=10, max_bytes=100)
    assert exactly.status == "complete"


def test_E77_the_bound_on_time_holds_in_the_middle_of_a_file(tmp_path, work, store):
    with (work / "outputs" / "huge").open("wb") as file:
        file.truncate(1 << 40)
    start = time.monotonic()
    result = collect(work, EVERYTHING, {}, store, CollectLimits(max_bytes=1 << 41, deadline_seconds=0.2))
    assert time.monotonic() - start < 20
    assert codes(result) == {".": ProblemCode.OUT_OF_TIME}
    assert not [path for path in store.root.rglob("*") if path.is_file()]


def test_E77_the_bound_on_entries_holds(work, gather):
    for n in range(50):
        (work / "outputs" / f"f{n}").touch()
    assert codes(gather(OutputPatterns(["**/*.json"]), max_entries=40)) == {".": ProblemCode.TOO_MANY}


def test_a_hundred_thousand_names_are_walked_and_bounded(work, gather):
    # Names of two files: much faster to make than files, and every one needs its links counted.
    for letter in "ab":
        (work / "outputs" / letter).write_bytes(letter.encode())
        for n in range(50_000):
            os.link(work / "outputs" / letter, work / "outputs" / f"{letter}{n:05}")
    start = time.monotonic()
    result = gather(max_files=100)
    assert names(result) == ["outputs/a", *(f"outputs/a{n:05}" for n in range(99))]
    assert codes(result) == {"outputs/a00099": ProblemCode.TOO_MANY}
    assert time.monotonic() - start < 30
    subprocess.run(["rm", "-rf", work / "outputs"], check=True)


def test_many_problems_are_counted_and_not_all_kept(work, gather):
    for n in range(MAX_PROBLEMS + 7):
        (work / "outputs" / f"l{n}").symlink_to("x")
    result = gather()
    assert len(result.problems) == MAX_PROBLEMS
    assert result.problems_not_shown == 7


def test_a_cancelled_collection_stops_and_what_was_reported_is_stored(work, gather, store):
    for n in range(5):
        (work / "outputs" / f"f{n}").write_bytes(b"%d" % n)
    seen = []
    with pytest.raises(CollectionCancelled):
        gather(on_file=seen.append, cancelled=lambda: len(seen) == 2)
    assert [file.name for file in seen] == ["outputs/f0", "outputs/f1"]
    assert all(store.exists(file.sha256) for file in seen)


def test_a_crash_in_the_middle_and_a_second_try_give_the_same_answer(work, gather):
    for n in range(5):
        (work / "outputs" / f"f{n}").write_bytes(b"%d" % n)
    (work / "outputs" / "link").symlink_to("f0")

    class Crash(OSError):
        pass

    def crash(file: CollectedFile) -> None:
        if file.name.endswith("f3"):
            raise Crash

    with pytest.raises(Crash):
        gather(on_file=crash)
    first = gather()
    assert gather() == first
    assert len(first.files) == 5


def test_a_full_store_is_named_and_worth_another_try(work, mount_tmpfs):
    (work / "outputs" / "a").write_bytes(b"small")
    (work / "outputs" / "b").write_bytes(os.urandom(4 << 20))
    (work / "outputs" / "c").write_bytes(b"later")
    store = FolderBlobStore(mount_tmpfs("size=1m") / "blobs")
    result = collect(work, EVERYTHING, {}, store)
    assert "outputs/a" in names(result)
    assert "outputs/b" not in names(result)
    assert codes(result) == {"outputs/b": ProblemCode.STORE_FULL}
    assert result.store_failed


def test_no_file_descriptor_is_left_behind(work, gather):
    (work / "outputs" / "a" / "b").mkdir(parents=True)
    (work / "outputs" / "a" / "b" / "f").write_bytes(b"x")
    gather()
    with pytest.raises(CollectionCancelled):
        gather(cancelled=lambda: True)
    assert not [place for place in opened() if place.startswith(str(work))]


def opened() -> list[str]:
    """Where the open descriptors lead. How many there are in all is also a matter of earlier tests."""
    found = []
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the one that reads the folder
            found.append(str(each.readlink()))
    return found


def test_collections_of_several_trials_may_run_at_once(tmp_path, store):
    results: list[Collection] = []

    def one(number: int) -> None:
        place = tmp_path / f"w{number}" / "outputs"
        place.mkdir(parents=True)
        for n in range(20):
            (place / f"f{n}").write_bytes(b"%d" % n)
        results.append(collect(place.parent, EVERYTHING, {}, store))

    threads = [threading.Thread(target=one, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(results) == 4
    assert len({result.files for result in results}) == 1


relative = st.lists(st.sampled_from(["a", "b", "c.json", "d"]), min_size=1, max_size=3).map("/".join)


@given(
    st.dictionaries(relative, st.binary(max_size=8), max_size=8),
    st.sampled_from(["**", "a/*", "**/*.json", "a"]),
)
@settings(
    max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
def test_a_collection_is_exactly_the_declared_files_of_the_tree(tmp_path_factory, store, tree, pattern):
    root = tmp_path_factory.mktemp("tree")
    written = {}
    for path, data in tree.items():
        if any((root / above).is_file() for above in Path(path).parents) or (root / path).is_dir():
            continue
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
        written[path] = data
    patterns = OutputPatterns([pattern])
    result = collect(root, patterns, {}, store)
    expected = {path: sha256(data) for path, data in written.items() if patterns.match(path)}
    assert {file.name: file.sha256 for file in result.files} == expected
    assert all(store.open(file.sha256).read() == written[file.name] for file in result.files)
