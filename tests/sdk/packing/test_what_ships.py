"""Which files of a project are in the Job (G5 to G8, G15 to G18, G69 to G73, G81)."""

from __future__ import annotations

import os

import pytest

from support.projects import commit, git, packed, project, refusal, shipped, warned, write
from trainshed.sdk.packing import pack, selection


def test_G5_tracked_files_ship_as_they_are_now(make):
    place = make({"a.txt": "committed", "gone.txt": "x", "bin/tool": "#!/bin/sh\n"})
    write(place, {"a.txt": "changed and not committed"})
    (place / "gone.txt").unlink()
    (place / "bin/tool").chmod(0o755)
    found = packed(place)
    tree = shipped(found)
    assert tree["a.txt"] == b"changed and not committed"
    assert "gone.txt" not in tree
    assert sorted(tree) == ["a.txt", "bin/tool", "train.py"]
    assert found.spec["bundle"]["source"] == "git"


def test_G6_untracked_files_ship_and_are_named(make):
    place = make({})
    write(place, {"new/deep/x.py": "1", "y z.py": "2"})
    found = packed(place)
    assert {"new/deep/x.py", "y z.py"} <= shipped(found).keys()
    assert "new/deep/x.py" in warned(found, "2 files ship although git does not track them")
    assert found.spec["bundle"]["untracked"] == 2


def test_e3_a_virtual_environment_that_ships_is_named_with_what_to_do(make):
    place = make({})
    write(place, {"tools/.venv/pyvenv.cfg": "home = /usr", "tools/.venv/bin/activate": "x"})
    assert ".gitignore" in warned(packed(place), "the virtual environment tools/.venv ships")


def test_G7_ignored_files_do_not_ship(make):
    place = make({".gitignore": "data/\n*.bin\n/local.py\n", "src/.gitignore": "scratch\n"})
    write(place, {"data/x": "1", "w.bin": "2", "src/deep/w.bin": "3", "local.py": "4", "src/scratch": "5"})
    git(place, "config", "core.excludesFile", os.fspath(place.parent / "excludes"))
    write(place.parent, {"excludes": "*.global\n"})
    write(place, {"x.global": "6", ".git/info/exclude": "mine.txt\n", "mine.txt": "7"})
    assert sorted(shipped(packed(place))) == [".gitignore", "src/.gitignore", "train.py"]


def test_a_file_that_is_tracked_although_ignored_ships(make):
    place = make({".gitignore": "*.bin\n"})
    write(place, {"kept.bin": "1"})
    git(place, "add", "--force", "kept.bin")
    assert shipped(packed(place))["kept.bin"] == b"1"


def test_G8_G72_what_include_names_ships_and_adds_to_that_of_gpu_yaml(make):
    place = make({".gitignore": "a/\nb/\n", "gpu.yaml": "include: a/x\n"})
    write(place, {"a/x": "1", "a/y": "2", "b/z": "3"})
    assert {"a/x"} == {path for path in shipped(packed(place)) if "/" in path}
    found = packed(place, include=["b/z"])
    assert {"a/x", "b/z"} == {path for path in shipped(found) if "/" in path}
    assert found.summary["included"] == ["a/x (1 file)", "b/z (1 file)"]


def test_G69_a_directory_that_is_included_ships_whole_without_junk(make):
    place = make({".gitignore": "lib/\n"})
    write(place, {
        "lib/a.py": "1", "lib/deep/.gitignore": "*", "lib/deep/b.bin": "2", "lib/dist/c": "3",
        "lib/__pycache__/x.pyc": "-", "lib/x.pyc": "-", "lib/node_modules/y": "-", "lib/.hg/z": "-",
        "lib/my-env/pyvenv.cfg": "-", "lib/my-env/bin/python": "-", "lib/.mypy_cache/k": "-",
    })  # fmt: skip
    for pattern in ("lib", "lib/", "./lib", "lib/**"):
        tree = shipped(packed(place, include=[pattern]))
        assert sorted(path for path in tree if path.startswith("lib")) == [
            "lib/a.py",
            "lib/deep/.gitignore",
            "lib/deep/b.bin",
            "lib/dist/c",
        ]


def test_G70_a_nested_repository_is_named_and_ships_when_it_is_included(make):
    place = make({})
    project(place / "third_party/lib", {"a.py": "1", ".gitignore": "*.o\n"})
    write(place, {"third_party/lib/a.o": "2", "third_party/lib/new.py": "3"})
    found = packed(place)
    assert "third_party/lib/a.py" not in shipped(found)
    assert found.summary["left_out"] == ["third_party/lib/ (nested git repo)"]
    found = packed(place, include=["third_party/lib"])
    tree = shipped(found)
    assert tree["third_party/lib/a.py"] == b"1"
    assert not [path for path in tree if ".git/" in path]
    assert "left_out" not in found.summary


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("data/crops/*.png", {"data/crops/a.png", "data/crops/b.png"}),
        ("experiments/**/out", {"experiments/out/m", "experiments/1/out/deep/n"}),
        ("data/**/*.png", {"data/crops/a.png", "data/crops/b.png", "data/crops/x/c.png"}),
        ("data/crop[st]/?.png", {"data/crops/a.png", "data/crops/b.png"}),
        ("*/out/", {"experiments/out/m"}),
    ],
)
def test_G71_patterns_name_files_and_directories(make, pattern, expected):
    place = make({".gitignore": "data\nexperiments\n"})
    write(place, {
        "data/crops/a.png": "1", "data/crops/b.png": "2", "data/crops/c.txt": "3", "data/crops/x/c.png": "4",
        "experiments/out/m": "5", "experiments/1/out/deep/n": "6", "experiments/1/log": "7",
    })  # fmt: skip
    found = packed(place, include=[pattern])
    assert {path for path in shipped(found) if "/" in path} == expected
    assert not [text for text in found.summary.get("warnings", ()) if "include" in text]


@pytest.mark.parametrize("pattern", ["nothing/here", "*.nope", "data/x/"])
def test_G73_a_pattern_that_matches_nothing_is_told(make, pattern):
    place = make({".gitignore": "data\n"})
    write(place, {"data/x": "1"})
    assert f"`{pattern}`, which matches nothing" in warned(packed(place, include=[pattern]), "`include` has")


def test_a_pattern_that_names_what_ships_anyway_is_fine(make):
    place = make({"a/b.py": "1"})
    found = packed(place, include=["a", "a/b.py", "*.py"])
    assert "warnings" not in found.summary
    assert "included" not in found.summary


@pytest.mark.parametrize("pattern", [".git", ".git/", ".venv"])
def test_what_never_ships_cannot_be_included(make, pattern):
    place = make({".gitignore": ".venv\n"})
    write(place, {".venv/x": "1"})
    found = packed(place, include=[pattern])
    assert sorted(shipped(found)) == [".gitignore", "train.py"]
    assert warned(found, f"`include` has `{pattern}`")


def test_an_include_that_leads_through_too_many_files_says_to_use_data(make, monkeypatch):
    monkeypatch.setattr(selection, "MAX_INCLUDED", 5)
    place = make({".gitignore": "data\n"})
    write(place, {f"data/{number}": "x" for number in range(6)})
    error = refusal(place, script="train.py", include=["data"])
    assert error.code == "invalid_spec"
    assert "`data`" in error.message + error.hint


def test_G15_G16_an_ignored_folder_is_named_with_size_and_cause_and_there_is_a_hint(make):
    place = make({".gitignore": "data/\n__pycache__\n.venv/\nruns/\nwandb\n"})
    assert "left_out" not in packed(place).summary
    assert "hint" not in packed(place).summary
    junk = ("__pycache__/a.pyc", ".venv/bin/python", "runs/1/log", "wandb/x", ".env")
    write(place, {"data/a": "x" * 1500, "data/deep/b": "x" * 600, **dict.fromkeys(junk, "x")})
    found = packed(place).summary
    assert found["left_out"] == ["data/ (2.1 kB, ignored)"]
    assert "`include`" in found["hint"]
    assert "`data`" in found["hint"]


def test_G17_including_the_folder_ships_it_and_takes_it_out_of_left_out(make):
    place = make({".gitignore": "data/\n"})
    write(place, {"data/a": "1", "data/b": "2"})
    found = packed(place, include=["data"])
    assert {"data/a", "data/b"} <= shipped(found).keys()
    assert "left_out" not in found.summary
    assert "hint" not in found.summary
    part = packed(place, include=["data/a"])
    assert part.summary["left_out"] == ["data/ (2 B, ignored; part of it ships)"]
    assert packed(place, data=["data"]).summary["left_out"] == ["data/ (2 B, ignored; passed as data)"]


def test_more_than_eight_left_out_are_grouped_and_the_rest_is_counted(make):
    place = make({".gitignore": "*.bin\n", **{f"d{number}/kept": "x" for number in range(1, 11)}})
    write(place, {f"d{number}/{part}.bin": "x" * number for number in range(1, 11) for part in "ab"})
    found = packed(place).summary
    assert found["left_out"][0] == "d10/ (20 B, 2 left out in it)"
    assert len(found["left_out"]) == 8
    assert found["left_out_not_shown"] == 4


def test_a_very_large_ignored_folder_is_not_counted_to_its_end(make, monkeypatch):
    monkeypatch.setattr("trainshed.sdk.packing.left_out.MOST_IN_ONE", 3)
    place = make({".gitignore": "data/\n"})
    write(place, {f"data/{number}": "x" for number in range(9)})
    assert packed(place).summary["left_out"] == ["data/ (ignored, 3+ files)"]


def test_G81_the_whole_repository_ships_from_a_folder_below_its_root(make):
    root = make({"shared/__init__.py": "1", "apps/one/train.py": "2", "apps/one/cfg/a.yaml": "3"})
    found = packed(root / "apps/one")
    assert {"shared/__init__.py", "apps/one/train.py", "apps/one/cfg/a.yaml"} <= shipped(found).keys()
    assert (found.spec["workdir"], found.spec["script"]) == ("apps/one", "train.py")


def test_outputs_of_earlier_jobs_never_ship(make):
    place = make({"app/train.py": "1", "app/runs/kept/x": "2", "runs/y": "3"})
    write(place, {"app/runs/new/z": "4"})
    found = packed(place / "app", include=["runs", "runs/**"])
    assert [path for path in shipped(found) if "runs/" in path] == ["runs/y"]


def test_submodules_ship_where_they_are_checked_out(make, tmp_path):
    other = project(tmp_path / "other", {"lib.py": "1", ".gitignore": "*.log\n"})
    place = make({})
    git(place, "submodule", "--quiet", "add", os.fspath(other), "vendor/other")
    commit(place)
    write(place, {"vendor/other/changed.py": "2", "vendor/other/x.log": "3"})
    assert {"vendor/other/lib.py", "vendor/other/changed.py"} <= shipped(packed(place)).keys()
    assert "vendor/other/x.log" not in shipped(packed(place))
    copy = tmp_path / "work" / "copy"
    git(place, "clone", "--quiet", os.fspath(place), os.fspath(copy))
    found = packed(copy)
    assert not [path for path in shipped(found) if path.startswith("vendor/")]
    assert warned(found, "submodule that is not checked out")
    assert found.summary["left_out"] == ["vendor/other/ (submodule, not checked out)"]


def test_worktrees_shallow_and_sparse_checkouts_ship_what_they_hold(make, tmp_path):
    place = make({"a/x.py": "1", "b/y.py": "2"})
    work = tmp_path / "work"
    git(place, "worktree", "add", "--quiet", os.fspath(work / "tree"))
    assert sorted(shipped(packed(work / "tree"))) == ["a/x.py", "b/y.py", "train.py"]
    git(place, "clone", "--quiet", "--depth=1", place.as_uri(), os.fspath(work / "shallow"))
    assert sorted(shipped(packed(work / "shallow"))) == ["a/x.py", "b/y.py", "train.py"]
    git(work / "tree", "sparse-checkout", "set", "--sparse-index", "a")
    assert sorted(shipped(packed(work / "tree"))) == ["a/x.py", "train.py"]


def test_a_file_with_a_conflict_ships_once(make):
    place = make({"a.txt": "base\n"})
    git(place, "checkout", "--quiet", "-b", "other")
    write(place, {"a.txt": "other\n"})
    commit(place)
    git(place, "checkout", "--quiet", "main")
    write(place, {"a.txt": "ours\n"})
    commit(place)
    with pytest.raises(Exception, match="merge"):
        git(place, "merge", "other")
    assert b"<<<<<<<" in shipped(packed(place))["a.txt"]


def test_outside_git_all_ships_but_caches_and_outputs_and_that_is_told(tmp_path):
    place = tmp_path / "work" / "plain"
    kept = ("train.py", "src/a.py", ".gitignore", "my_dist/x", "data/y")
    left = (
        *(
            "__pycache__/a.pyc",
            "a.pyc",
            ".venv/x",
            "env/x",
            "node_modules/x",
            ".hg/x",
            "pkg.egg-info/x",
            "dist/x",
        ),
        *(
            "build/x",
            "runs/x",
            "wandb/x",
            "mlruns/x",
            "lightning_logs/x",
            "checkpoints/x",
            "outputs/x",
            ".idea/x",
        ),
    )
    write(place, dict.fromkeys((*kept, *left), "x"))
    found = packed(place)
    assert sorted(shipped(found)) == sorted(kept)
    assert warned(found, "in no git repository")
    assert found.spec["bundle"]["source"] == "walk"
    assert "outputs/x" in shipped(packed(place, include=["outputs"]))


def test_a_bundle_that_is_too_large_names_its_biggest_files(make, monkeypatch):
    monkeypatch.setattr("trainshed.sdk.packing.bundle.MAX_BUNDLE_BYTES", 1000)
    place = make({f"f{size}": "x" * size for size in range(100, 800, 100)})
    error = refusal(place, script="train.py")
    assert error.code == "invalid_spec"
    assert [each["path"] for each in error.detail["biggest"]] == ["f700", "f600", "f500", "f400", "f300"]
    assert "f700 (700 B)" in error.message


def test_a_repository_that_git_cannot_read_is_an_error_and_no_walk(make):
    place = make({})
    (place / ".git/HEAD").unlink()
    error = refusal(place, script="train.py")
    assert error.code == "invalid_spec"
    assert "git cannot list the repository" in error.message


def test_a_repository_of_another_user_is_refused_with_what_to_do(make, monkeypatch):
    place = make({})
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    monkeypatch.setattr("trainshed.sdk.packing.git._environment", lambda _root, environ: dict(environ))
    error = refusal(place, script="train.py")
    assert "belongs to another user" in error.message
    assert "safe.directory" in error.hint


def test_variables_that_point_git_elsewhere_are_not_followed(make, monkeypatch, tmp_path):
    other = project(tmp_path / "other", {"wrong.py": "1"})
    place = make({})
    monkeypatch.setenv("GIT_DIR", os.fspath(other / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", os.fspath(other))
    assert sorted(shipped(packed(place))) == ["train.py"]


def test_nothing_of_the_repository_is_run_or_changed(make, tmp_path):
    place = make({".gitattributes": "* filter=evil\n"})
    mark = tmp_path / "ran"
    hook = place / "hook.sh"
    hook.write_text(f"#!/bin/sh\ntouch {mark}\n")
    hook.chmod(0o755)
    for key in ("core.fsmonitor", "filter.evil.clean", "core.hooksPath", "core.pager", "core.sshCommand"):
        git(place, "config", key, os.fspath(hook))
    before = {path: path.stat().st_mtime_ns for path in (place / ".git").rglob("*")}
    packed(place)
    assert not mark.exists()
    assert {path: path.stat().st_mtime_ns for path in (place / ".git").rglob("*")} == before


def test_files_from_a_repository_without_any_commit_ship(make, tmp_path):
    place = project(tmp_path / "work" / "new", {"train.py": "1"}, tracked=False)
    assert sorted(shipped(pack(place, {"script": "train.py"}))) == ["train.py"]
