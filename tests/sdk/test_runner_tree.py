"""Freezing a git commit on the client."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from trainshed.sdk.runner_tree import FreezeError, freeze

TOML = '[execution]\nentrypoint = "main.sh"\n'
WHO = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")


def git(place: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", place, *WHO, *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def commit_all(place: Path, message: str = "change") -> str:
    git(place, "add", "--all", "--force")
    git(place, "commit", "--quiet", "--allow-empty", "--message", message)
    return git(place, "rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    place = tmp_path / "repository"
    place.mkdir()
    git(place, "init", "--quiet", "--initial-branch=main")
    (place / "runner.toml").write_text(TOML)
    (place / "main.sh").write_text("echo hello\n")
    commit_all(place)
    return place


def refusal(place: Path, ref: str | None = None) -> FreezeError:
    with pytest.raises(FreezeError) as caught:
        freeze(place, ref)
    assert caught.value.message
    return caught.value


def test_E8_the_tree_of_the_commit_is_frozen_with_its_modes_and_digests(repository):
    (repository / "lib").mkdir()
    (repository / "lib" / "ü b.sh").write_bytes(b"\xff\r\n")
    (repository / "lib" / "ü b.sh").chmod(0o755)
    commit = commit_all(repository)
    frozen = freeze(repository)
    assert frozen.commit == commit
    assert [(file.path, file.mode, file.size) for file in frozen.files] == [
        ("lib/ü b.sh", "100755", 3),
        ("main.sh", "100644", 11),
        ("runner.toml", "100644", len(TOML)),
    ]
    assert frozen.files[0].read() == b"\xff\r\n"
    assert frozen.source_ref == "main"
    assert (frozen.dirty, frozen.untracked) == (False, 0)
    assert frozen.definition.entrypoint == "main.sh"
    assert frozen.name is None


def test_P7_what_is_only_in_the_work_tree_is_never_frozen_and_told(repository):
    before = freeze(repository)
    (repository / "main.sh").write_text("echo changed\n")
    (repository / "new").mkdir()
    (repository / "new" / "a").touch()
    (repository / "new" / "b").touch()
    (repository / "staged").touch()
    git(repository, "add", "staged")
    after = freeze(repository)
    assert after.publication() == before.publication()
    assert (after.dirty, after.untracked) == (True, 2)


def test_ignored_files_do_not_count_as_untracked(repository):
    (repository / ".gitignore").write_text("*.log\n")
    commit_all(repository)
    (repository / "x.log").touch()
    assert freeze(repository).untracked == 0


def test_a_subdirectory_is_frozen_with_the_trees_above_it(repository):
    place = repository / "runners" / "bash"
    place.mkdir(parents=True)
    (place / "runner.toml").write_text(TOML)
    (place / "main.sh").write_text("true\n")
    commit_all(repository)
    (repository / "main.sh").write_text("dirty, but elsewhere\n")
    frozen = freeze(place)
    assert frozen.subdirectory == "runners/bash"
    assert [file.path for file in frozen.files] == ["main.sh", "runner.toml"]
    assert len(frozen.tree_objects) == 3
    assert not frozen.dirty


def test_branches_tags_and_short_commits_are_resolved(repository):
    first = git(repository, "rev-parse", "HEAD")
    git(repository, "tag", "v1")
    git(repository, "tag", "--annotate", "--message=x", "v1-signed")
    second = commit_all(repository)
    git(repository, "branch", "feature/x")
    resolved = {
        ref: freeze(repository, ref) for ref in ("v1", "v1-signed", "main", "feature/x", first[:10], "HEAD~1")
    }
    assert {ref: (each.commit, each.source_ref) for ref, each in resolved.items()} == {
        "v1": (first, "v1"),
        "v1-signed": (first, "v1-signed"),
        "main": (second, "main"),
        "feature/x": (second, "feature/x"),
        first[:10]: (first, None),
        "HEAD~1": (first, None),
    }


def test_a_detached_head_has_no_source_ref(repository):
    git(repository, "checkout", "--quiet", "--detach")
    assert freeze(repository).source_ref is None


def test_a_bare_repository_can_be_published_from(repository, tmp_path):
    git(tmp_path, "clone", "--quiet", "--bare", str(repository), "bare")
    frozen = freeze(tmp_path / "bare")
    assert frozen.publication() == freeze(repository).publication()
    assert (frozen.dirty, frozen.untracked) == (False, 0)


def test_line_ending_settings_change_nothing(repository):
    git(repository, "config", "core.autocrlf", "true")
    (repository / ".gitattributes").write_text("* text eol=crlf\n")
    commit_all(repository)
    assert next(file for file in freeze(repository).files if file.path == "main.sh").read() == b"echo hello\n"


def test_replacement_objects_and_a_redirected_environment_are_not_believed(repository, tmp_path, monkeypatch):
    honest = freeze(repository)
    other = git(repository, "commit-tree", "-m", "other", git(repository, "mktree", "--missing"))
    git(repository, "replace", honest.commit, other)
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "index"))
    assert freeze(repository).publication() == honest.publication()


def test_the_index_is_not_touched(repository):
    (repository / "main.sh").touch()
    index = (repository / ".git" / "index").read_bytes()
    freeze(repository)
    assert (repository / ".git" / "index").read_bytes() == index


def test_what_is_no_repository_is_named(tmp_path):
    assert refusal(tmp_path).code == "NOT_A_REPOSITORY"
    assert refusal(tmp_path / "absent").code == "NOT_A_DIRECTORY"


def test_a_repository_without_commits_is_named(tmp_path):
    git(tmp_path, "init", "--quiet")
    assert refusal(tmp_path).code == "NO_COMMITS"
    assert refusal(tmp_path, "main").code == "UNKNOWN_REF"


@pytest.mark.parametrize("ref", ["absent", "--all", "-h", "", "a b", "deadbeef", "HEAD:main.sh", "v1\0"])
def test_a_ref_that_names_no_commit_is_named(repository, ref):
    assert refusal(repository, ref).code == "UNKNOWN_REF"


def test_a_directory_that_the_commit_does_not_hold_is_named(repository):
    (repository / "later").mkdir()
    error = refusal(repository / "later")
    assert error.code == "NOT_IN_COMMIT"
    assert "`later`" in error.message


def test_a_commit_without_definition_is_named_with_the_directory_that_has_one(repository):
    (repository / "sub").mkdir()
    git(repository, "mv", "runner.toml", "main.sh", "sub")
    commit_all(repository)
    error = refusal(repository)
    assert error.code == "INVALID_RUNNER"
    assert "`sub/runner.toml`" in error.message


def test_every_fault_of_the_definition_is_listed(repository):
    (repository / "runner.toml").write_text('[execution]\nentrypoint = "x"\noutputs = ["../a"]\n')
    commit_all(repository)
    assert {fault.path for fault in refusal(repository).faults} == {
        "execution.entrypoint",
        "execution.outputs[0]",
    }
    assert all(fault.message.startswith("runner.toml: ") for fault in refusal(repository).faults)


def test_an_entrypoint_that_is_not_in_the_commit_is_named(repository):
    (repository / "runner.toml").write_text('[execution]\nentrypoint = "main.py"\n')
    commit_all(repository)
    assert "`main.py` is not in the commit" in refusal(repository).message


def test_links_and_submodules_are_refused(repository, tmp_path):
    (repository / "link").symlink_to("main.sh")
    git(repository, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(repository), "sub")
    commit_all(repository)
    error = refusal(repository)
    assert error.code == "INVALID_RUNNER"
    assert "`link` is a symbolic link" in error.message
    assert "`sub` is a submodule" in error.message


def test_an_oversized_tree_is_refused(repository):
    with (repository / "big").open("wb") as file:
        file.truncate(65 << 20)
    commit_all(repository)
    assert "at most 67108864" in refusal(repository).message


def test_lfs_pointers_are_named(repository):
    (repository / "weights.bin").write_text(
        f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 5\n"
    )
    commit_all(repository)
    error = refusal(repository)
    assert error.code == "GIT_LFS_POINTER"
    assert "`weights.bin`" in error.message


def test_names_that_are_not_utf8_are_refused(repository):
    Path(os.fsdecode(os.fsencode(repository) + b"/\xff")).touch()
    commit_all(repository)
    assert "not UTF-8" in refusal(repository).message


def test_a_sha256_repository_is_named(tmp_path):
    git(tmp_path, "init", "--quiet", "--object-format=sha256")
    assert refusal(tmp_path).code == "UNSUPPORTED_OBJECT_FORMAT"


def test_a_missing_git_is_named(repository, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    assert refusal(repository).code == "GIT_MISSING"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a repository to somebody else")
def test_a_repository_of_another_user_is_explained(repository, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    os.chown(repository, 65534, 65534)
    os.chown(repository / ".git", 65534, 65534)
    error = refusal(repository)
    assert error.code == "UNTRUSTED_REPOSITORY"
    assert "safe.directory" in error.hint


def test_a_damaged_repository_is_named(repository):
    blob = git(repository, "rev-parse", "HEAD:main.sh")
    (repository / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    assert refusal(repository).code == "GIT_FAILED"
