"""The server's proof that published files are exactly a directory of a commit."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.examples import examples
from trainshed.content.gitobjects import (
    MalformedObject,
    TreeEntry,
    build_trees,
    commit_tree,
    encode_tree,
    object_id,
    parse_tree,
)
from trainshed.content.runner_revision import (
    BlobsMissing,
    RevisionMismatch,
    RevisionRefused,
    verify_revision,
)
from trainshed.model.errors import Refusal
from trainshed.model.publication import Publication
from trainshed.model.runner_tree import RunnerFile, snapshot_sha256
from trainshed.sdk.runner_tree import FrozenRunner, freeze

TOML = '[execution]\nentrypoint = "main.sh"\noutputs = ["outputs/**"]\n'
WHO = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")


def git(place: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", place, *WHO, *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def commit_all(place: Path) -> None:
    git(place, "add", "--all", "--force")
    git(place, "commit", "--quiet", "--message", "x")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A Runner two directories down, beside files whose order in git's trees is unusual."""
    place = tmp_path / "repository"
    runner = place / "runners" / "demo"
    for folder in ("lib", "lib.d", "lib/deep/er"):
        (runner / folder).mkdir(parents=True, exist_ok=True)
    git(place, "init", "--quiet")
    (runner / "runner.toml").write_text(TOML)
    (runner / "main.sh").write_text("echo hello\n")
    for path in ("lib-a", "lib/x", "lib.d/y", "lib/deep/er/ü", "lib0"):
        (runner / path).write_text(path)
    (runner / "tool").write_bytes(os.urandom(100))
    (runner / "tool").chmod(0o755)
    (place / "README").write_text("outside")
    commit_all(place)
    return place


@pytest.fixture
def frozen(repository) -> FrozenRunner:
    return freeze(repository / "runners" / "demo")


@pytest.fixture
def upload(store):
    def upload(frozen: FrozenRunner) -> Publication:
        for file in frozen.files:
            store.put(io.BytesIO(file.read()), sha256=file.sha256, size=file.size)
        return frozen.publication()

    return upload


def test_E8_a_published_directory_is_proved_to_be_that_of_the_commit(repository, frozen, upload, store):
    verified = verify_revision(upload(frozen), store)
    assert verified.commit == git(repository, "rev-parse", "HEAD")
    assert verified.tree_id == git(repository, "rev-parse", "HEAD:runners/demo")
    assert verified.definition.entrypoint == "main.sh"
    assert verified.definition_path == "runner.toml"
    assert verified.snapshot_sha256 == hashlib.sha256(verified.manifest).hexdigest()
    assert verified.snapshot_sha256 == snapshot_sha256(frozen.publication().files)
    assert len(json.loads(verified.manifest)["files"]) == 8
    assert verified.notes == ()


def test_the_root_of_a_repository_can_be_published_too(repository, upload, store):
    (repository / "task.toml").write_text(TOML)
    (repository / "main.sh").write_text("true\n")
    commit_all(repository)
    verified = verify_revision(upload(freeze(repository)), store)
    assert verified.tree_id == git(repository, "rev-parse", "HEAD^{tree}")
    assert verified.definition_path == "task.toml"


def test_the_wire_form_says_the_same(frozen, upload, store):
    publication = upload(frozen)
    text = json.dumps(publication.as_document())
    assert Publication.from_document(json.loads(text)) == publication


def test_files_that_were_not_uploaded_are_listed(frozen, store):
    publication = frozen.publication()
    store.put(io.BytesIO(b"echo hello\n"))
    with pytest.raises(BlobsMissing) as caught:
        verify_revision(publication, store)
    assert set(caught.value.missing) == {f.sha256 for f in publication.files if f.path != "main.sh"}


def tampered(publication: Publication, store) -> dict[str, Publication]:
    """Every way in which a publication may lie about one thing."""
    files = {file.path: file for file in publication.files}
    other = store.put(io.BytesIO(b"echo evil!\n"))
    swap = {**files, "main.sh": dataclasses.replace(files["main.sh"], sha256=other.sha256)}
    mode = {**files, "main.sh": dataclasses.replace(files["main.sh"], mode="100755")}
    size = {**files, "main.sh": dataclasses.replace(files["main.sh"], size=10)}
    less = {path: file for path, file in files.items() if path != "lib/x"}
    more = {**files, "lib/extra": dataclasses.replace(files["lib/x"], path="lib/extra")}
    moved = {**less, "lib/X": dataclasses.replace(files["lib/x"], path="lib/X")}
    trees = publication.tree_objects
    variants = {"swap": swap, "mode": mode, "size": size, "less": less, "more": more, "moved": moved}
    lies = {
        key: dataclasses.replace(publication, files=tuple(value.values())) for key, value in variants.items()
    }
    replace = dataclasses.replace
    return lies | {
        "other commit": replace(publication, commit="0" * 40),
        "commit object": replace(publication, commit_object=publication.commit_object + b"\n"),
        "root tree": replace(publication, tree_objects=(trees[1], *trees[1:])),
        "cut tree": replace(publication, tree_objects=(trees[0][:-1], *trees[1:])),
        "published tree": replace(publication, tree_objects=(*trees[:2], trees[1])),
        "other directory": replace(publication, subdirectory="runners/other"),
        "file as directory": replace(publication, subdirectory="README/demo"),
    }


def test_P7_every_single_lie_is_found(frozen, upload, store):
    publication = upload(frozen)
    for lie, changed in tampered(publication, store).items():
        with pytest.raises(RevisionMismatch) as caught:
            verify_revision(changed, store)
        assert str(caught.value), lie
        assert caught.value.code == "RUNNER_HASH_MISMATCH"


def test_a_difference_is_named(frozen, upload, store):
    with pytest.raises(RevisionMismatch, match=r"`main\.sh` differ"):
        verify_revision(tampered(upload(frozen), store)["swap"], store)


def test_P7_a_blob_damaged_after_its_upload_is_found(frozen, upload, store):
    publication = upload(frozen)
    place = store.path(publication.files[0].sha256)
    place.chmod(0o600)
    place.write_bytes(place.read_bytes()[::-1])
    with pytest.raises(RevisionMismatch, match="damaged"):
        verify_revision(publication, store)


def bare_publication(files: list[RunnerFile]) -> Publication:
    return Publication("0" * 40, b"", (b"",), "", tuple(files))


@pytest.mark.parametrize(
    ("path", "mode", "word"),
    [
        ("../escape", "100644", "leaves"),
        ("/etc/passwd", "100644", "absolute"),
        (".git/hooks/x", "100644", ".git"),
        ("link", "120000", "symbolic link"),
        ("module", "160000", "submodule"),
    ],
)
def test_trees_that_may_not_be_published_are_refused_before_anything_is_read(store, path, mode, word):
    with pytest.raises(RevisionRefused) as caught:
        verify_revision(bare_publication([RunnerFile(path, mode, 1, "0" * 64)]), store)
    assert word in caught.value.faults[0].message


def test_a_directory_that_escapes_is_refused(store):
    lie = dataclasses.replace(bare_publication([]), subdirectory="../..")
    with pytest.raises(RevisionRefused, match="leaves"):
        verify_revision(lie, store)
    with pytest.raises(RevisionRefused, match="needs 3 tree objects"):
        verify_revision(dataclasses.replace(lie, subdirectory="a/b"), store)


def published(runner: Path, upload, store):
    """Publishes past the client's own checks, as a hostile client would."""
    repository = runner.parent.parent
    commit_all(repository)
    listing = git(repository, "ls-tree", "-r", "-z", "HEAD:runners/demo").rstrip("\0").split("\0")
    files = []
    for record in listing:
        attributes, _, path = record.partition("\t")
        mode, _, name = attributes.split()
        content = subprocess.run(
            ["git", "-C", repository, "cat-file", "blob", name], check=True, capture_output=True
        ).stdout
        blob = store.put(io.BytesIO(content))
        files.append(RunnerFile(path, mode, blob.size, blob.sha256))

    def raw(kind: str, name: str) -> bytes:
        command = ["git", "-C", repository, "cat-file", kind, name]
        return subprocess.run(command, check=True, capture_output=True).stdout

    trees = tuple(raw("tree", f"HEAD:{place}") for place in ("", "runners", "runners/demo"))
    commit = git(repository, "rev-parse", "HEAD")
    return Publication(commit, raw("commit", "HEAD"), trees, "runners/demo", tuple(files))


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda runner: (runner / "runner.toml").unlink(), "no `runner.toml`"),
        (lambda runner: (runner / "task.toml").write_text(TOML), "both"),
        (lambda runner: (runner / "main.sh").unlink(), "entrypoint `main.sh`"),
        (lambda runner: (runner / "runner.toml").write_text("x = 1"), "`execution.entrypoint`"),
        (lambda runner: (runner / "main.sh").write_bytes(b"\xff"), "not UTF-8"),
    ],
)
def test_a_hostile_client_cannot_publish_what_is_no_runner(repository, upload, store, change, word):
    runner = repository / "runners" / "demo"
    change(runner)
    with pytest.raises(RevisionRefused) as caught:
        verify_revision(published(runner, upload, store), store)
    assert any(word in fault.message for fault in caught.value.faults)


def test_names_that_differ_only_in_case_are_published_and_noted(repository, upload, store):
    (repository / "runners" / "demo" / "MAIN.sh").write_text("x")
    commit_all(repository)
    verified = verify_revision(upload(freeze(repository / "runners" / "demo")), store)
    assert verified.notes == ("`MAIN.sh` and `main.sh` differ only in case",)


@pytest.mark.parametrize(
    ("key", "value", "path"),
    [
        ("commit", "abc", "commit"),
        ("commit", None, "commit"),
        ("commit_object", "***", "commit_object"),
        ("commit_object", 3, "commit_object"),
        ("tree_objects", [], "tree_objects"),
        ("tree_objects", ["é"], "tree_objects[0]"),
        ("subdirectory", 3, "subdirectory"),
        ("files", {}, "files"),
        ("files", [3], "files[0]"),
        ("files", [{"path": "a", "mode": "x", "size": -1, "sha256": "0"}], "files[0].size"),
        ("files", [{"path": "a", "mode": "100644", "size": True, "sha256": "0" * 64}], "files[0].size"),
        ("files", [{}] * 10_001, "files"),
    ],
)
def test_a_malformed_wire_form_is_refused_with_its_place(frozen, key, value, path):
    with pytest.raises(Refusal) as caught:
        Publication.from_document(frozen.publication().as_document() | {key: value})
    assert path in {fault.path for fault in caught.value.faults}
    assert caught.value.code == "INVALID_RUNNER"


names = st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=6)


@given(
    st.lists(
        st.tuples(names, st.sampled_from(["40000", "100644"]), st.binary(min_size=20, max_size=20)),
        unique_by=lambda entry: entry[0],
    )
)
def test_a_tree_survives_encoding_and_parsing(entries):
    given_entries = {TreeEntry(mode, name.encode(), raw.hex()) for name, mode, raw in entries}
    assert set(parse_tree(encode_tree(given_entries))) == given_entries


@given(st.binary(max_size=80))
def test_any_bytes_are_a_tree_or_malformed(content):
    try:
        entries = parse_tree(content)
    except MalformedObject:
        return
    assert sum(len(entry.mode) + len(entry.name) + 22 for entry in entries) == len(content)


@given(
    st.dictionaries(
        st.lists(st.sampled_from(["a", "b", "a.b", "a-b", "a0"]), min_size=1, max_size=3).map("/".join),
        st.binary(max_size=5),
        min_size=1,
    )
)
@settings(
    max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_E8_rebuilt_trees_have_the_ids_that_git_gives_them(tmp_path_factory, tree):
    place = tmp_path_factory.mktemp("git")
    git(place, "init", "--quiet")
    written = {}
    for path, data in tree.items():
        if (place / path).exists() or any((place / above).is_file() for above in Path(path).parents):
            continue
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_bytes(data)
        written[path] = ("100644", object_id("blob", data))
    git(place, "add", "--all")
    assert object_id("tree", build_trees(written)[""]) == git(place, "write-tree")


def test_a_commit_that_does_not_start_with_its_tree_is_malformed():
    with pytest.raises(MalformedObject):
        commit_tree(b"parent 00\n")
