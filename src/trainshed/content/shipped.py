"""The Runners that come with Trainshed, and how they become Revisions with a commit id that never changes.

The id depends on the files alone: author, date and message are fixed and file modes are normalised. It is the
same whether git makes the commit (`shipped_repository`) or we do (`publish_shipped`).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import trainshed
from trainshed.content.blobs import BlobStore
from trainshed.content.gitobjects import blob_ids, build_trees, encode_commit, object_id
from trainshed.content.runner_revision import VerifiedRevision, verify_revision
from trainshed.model.publication import Publication
from trainshed.model.runner_tree import REGULAR_MODE, RunnerFile

SHIPPED_RUNNERS = {"envloop/bash": "bash", "examples/digits": "digits"}
"""Name -> folder of the package data."""
BRANCH = "main"
_AUTHOR = ("Trainshed", "runners@trainshed.invalid")
_UNIX_TIME = 1767225600


def shipped_runner(name: str) -> Path:
    """The folder of a shipped Runner, to be read only. Raises `KeyError` for another name."""
    return Path(trainshed.__file__).parent / "runners" / SHIPPED_RUNNERS[name]


def publish_shipped(name: str, blobs: BlobStore) -> VerifiedRevision:
    """Store a shipped Runner's files and verify them as any published Revision; needs no git.

    Repeatable. Raises `BlobError` where the store fails, `KeyError` for another name.
    """
    files, git_files = [], {}
    for path, place in _files(shipped_runner(name)):
        with place.open("rb", buffering=0) as source:
            blob = blobs.put(source)
        with blobs.open(blob.sha256) as reader:
            git_files[path] = (REGULAR_MODE, blob_ids(reader, blob.size)[0])
        files.append(RunnerFile(path, REGULAR_MODE, blob.size, blob.sha256))
    tree = build_trees(git_files)[""]
    author, email = _AUTHOR
    commit = encode_commit(object_id("tree", tree), f"{author} <{email}>", _UNIX_TIME, _message(name))
    publication = Publication(object_id("commit", commit), commit, (tree,), "", tuple(files))
    return verify_revision(publication, blobs)


def shipped_repository(name: str, place: Path) -> str:
    """Make ``place`` a git repository that holds a shipped Runner as one commit; returns the commit's id.

    ``place`` must be absent or an empty directory. Raises `FileNotFoundError` where git is missing.
    """
    place.mkdir(parents=True, exist_ok=True)
    for path, source in _files(shipped_runner(name)):
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, place / path)
        (place / path).chmod(0o644)
    _git(place, "init", "--quiet", "--template=", "--object-format=sha1", f"--initial-branch={BRANCH}")
    _git(place, "add", "--all", "--force")
    _git(place, "commit", "--quiet", "--message", _message(name))
    return _git(place, "rev-parse", "HEAD")


def _message(name: str) -> str:
    return f"{name}, as shipped with Trainshed"


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    # Installers compile every .py file of a package, also those that only travel in it.
    for place in sorted(folder.rglob("*")):
        if place.is_file() and "__pycache__" not in place.parts:
            yield place.relative_to(folder).as_posix(), place


def _git(place: Path, *arguments: str) -> str:
    author, email = _AUTHOR
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment |= {
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        **dict.fromkeys(("GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME"), author),
        **dict.fromkeys(("GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"), email),
        **dict.fromkeys(("GIT_AUTHOR_DATE", "GIT_COMMITTER_DATE"), f"{_UNIX_TIME} +0000"),
    }
    command = ["git", "-C", os.fspath(place), *arguments]
    done = subprocess.run(command, check=True, capture_output=True, env=environment)  # noqa: S603 - no shell
    return done.stdout.decode().strip()
