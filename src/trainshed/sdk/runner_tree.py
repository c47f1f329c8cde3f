"""Freezing a Runner on the client: the tree of one git commit, never the work tree (contract E8).

Everything is asked of ``git``, so the answer is git's own; the rules of what may be published are those that
the server applies again (``trainshed.model.runner_tree``).
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from trainshed.model.errors import Fault
from trainshed.model.publication import Publication
from trainshed.model.runner import DefinitionError, RunnerDefinition, definition_file, parse_definition
from trainshed.model.runner_tree import MAX_TREE_BYTES, RunnerFile, tree_faults

_LFS_HEADER = b"version https://git-lfs.github.com/spec/v1\n"
_LFS_POINTER_BYTES = 1024
_SHOWN = 5
# Variables through which a caller's shell (a git hook, say) would point git at another repository or content.
_REDIRECTING = (
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_COMMON_DIR",
    "GIT_NAMESPACE",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_PREFIX",
    "GIT_REPLACE_REF_BASE",
    "GIT_GRAFT_FILE",
)


class FreezeError(Exception):
    """The tree cannot be frozen. ``code`` names the cause, ``hint`` says what to do about it."""

    def __init__(self, code: str, message: str, hint: str = "", faults: Iterable[Fault] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint
        self.faults = tuple(faults)


@dataclass(frozen=True, slots=True)
class FrozenFile:
    """One file of the frozen tree, with its bytes as the commit holds them."""

    path: str
    mode: str
    size: int
    sha256: str
    content: bytes = field(repr=False)

    def read(self) -> bytes:
        """The file's bytes."""
        return self.content


@dataclass(frozen=True, slots=True)
class FrozenRunner:
    """The tree of one commit, checked and ready to be published."""

    commit: str
    commit_object: bytes = field(repr=False)
    tree_objects: tuple[bytes, ...] = field(repr=False)
    """Raw trees: the repository's root first, the published directory last."""
    subdirectory: str
    """The published directory, relative to the root of the repository; empty for the root."""
    files: tuple[FrozenFile, ...]
    definition: RunnerDefinition
    source_ref: str | None
    """The branch or tag that was frozen, ``None`` for a commit given by its id."""
    dirty: bool
    """Tracked files below the published directory differ from HEAD; those changes are not published."""
    untracked: int
    """Files below the published directory that git does not know; they are not published."""

    @property
    def name(self) -> str | None:
        """``namespace/name`` where the definition gives one."""
        return self.definition.name

    def publication(self) -> Publication:
        """What is sent to the server, next to the files' bytes."""
        files = tuple(RunnerFile(file.path, file.mode, file.size, file.sha256) for file in self.files)
        return Publication(self.commit, self.commit_object, self.tree_objects, self.subdirectory, files)


def freeze(path: Path, ref: str | None = None) -> FrozenRunner:
    """Freeze the directory ``path`` of a git repository as commit ``ref`` (default: HEAD) holds it.

    Raises `FreezeError` with code ``GIT_MISSING``, ``NOT_A_DIRECTORY``, ``NOT_A_REPOSITORY``,
    ``UNTRUSTED_REPOSITORY``, ``UNSUPPORTED_OBJECT_FORMAT``, ``NO_COMMITS``, ``UNKNOWN_REF``,
    ``NOT_IN_COMMIT``, ``GIT_LFS_POINTER``, ``INVALID_RUNNER`` or ``GIT_FAILED``.
    """
    if not path.is_dir():
        raise FreezeError(
            "NOT_A_DIRECTORY", f"{path} is not a directory", "Give the directory of runner.toml."
        )
    git = _Git(path)
    subdirectory = git.prefix()
    commit = git.commit(ref)
    tree_objects = git.trees(commit, subdirectory)
    files = git.files(commit, subdirectory)
    if faults := tree_faults([RunnerFile(file.path, file.mode, file.size, file.sha256) for file in files]):
        raise _refused(faults)
    _refuse_lfs_pointers(files)
    dirty, untracked = git.changes()
    return FrozenRunner(
        commit=commit,
        commit_object=git.objects([commit])[0],
        tree_objects=tree_objects,
        subdirectory=subdirectory,
        files=files,
        definition=_definition(files),
        source_ref=git.source_ref(ref),
        dirty=dirty,
        untracked=untracked,
    )


def _definition(files: Sequence[FrozenFile]) -> RunnerDefinition:
    by_path = {file.path: file for file in files}
    try:
        name = definition_file(by_path)
    except DefinitionError as error:
        raise _refused(error.faults) from error
    try:
        definition = parse_definition(by_path[name].content)
    except DefinitionError as error:
        raise _refused(replace(each, message=f"{name}: {each.message}") for each in error.faults) from error
    if definition.entrypoint not in by_path:
        message = f"{name}: the entrypoint `{definition.entrypoint}` is not in the commit"
        raise _refused([Fault("execution.entrypoint", "INVALID_RUNNER", message)])
    return definition


def _refused(faults: Iterable[Fault]) -> FreezeError:
    faults = tuple(faults)
    message = "; ".join(fault.message for fault in faults[:_SHOWN])
    more = f"; and {len(faults) - _SHOWN} more" if len(faults) > _SHOWN else ""
    return FreezeError("INVALID_RUNNER", message + more, "Correct it, commit, and publish again.", faults)


def _damaged(what: str) -> FreezeError:
    return FreezeError("GIT_FAILED", f"the repository is damaged or incomplete: {what}", "Run `git fsck`.")


def _refuse_lfs_pointers(files: Sequence[FrozenFile]) -> None:
    pointers = [
        file.path
        for file in files
        if file.size <= _LFS_POINTER_BYTES and file.content.startswith(_LFS_HEADER)
    ]
    if pointers:
        listed = ", ".join(f"`{path}`" for path in pointers[:_SHOWN])
        more = f" and {len(pointers) - _SHOWN} more" if len(pointers) > _SHOWN else ""
        raise FreezeError(
            "GIT_LFS_POINTER",
            f"the commit holds Git LFS pointers, not the files themselves: {listed}{more}",
            "Commit these files without LFS, or fetch them from the program when it runs.",
        )


@dataclass(frozen=True, slots=True)
class _Git:
    """Questions to git about one repository. Nothing is written, not even the index."""

    path: Path

    def prefix(self) -> str:
        """The directory of ``path`` relative to the root; empty for the root and for a bare repository."""
        object_format = self.ask("rev-parse", "--show-object-format").strip()
        if object_format != "sha1":
            raise FreezeError(
                "UNSUPPORTED_OBJECT_FORMAT",
                f"the repository uses {object_format} object names; Runner Revisions are SHA-1 commits",
                "Publish from a repository with the sha1 object format.",
            )
        return self.ask("rev-parse", "--show-prefix").removesuffix("\n").rstrip("/")

    def commit(self, ref: str | None) -> str:
        """The full id of the commit that ``ref`` names."""
        wanted = "HEAD" if ref is None else ref
        # A leading dash would be an option, and an empty name means HEAD to git.
        if not wanted or wanted.startswith("-") or "\0" in wanted:
            raise self._unknown_ref(wanted)
        done = self.run("rev-parse", "--verify", "--quiet", f"{wanted}^{{commit}}")
        if done.returncode == 0:
            return done.stdout.decode().strip()
        if ref is None:
            raise FreezeError("NO_COMMITS", "the repository has no commits", "Commit the Runner first.")
        raise self._unknown_ref(wanted)

    def _unknown_ref(self, ref: str) -> FreezeError:
        return FreezeError(
            "UNKNOWN_REF",
            f"`{ref}` names no commit, or more than one, in this repository",
            "Give a branch, a tag or a longer commit id; `git fetch` if it is on a remote.",
        )

    def source_ref(self, ref: str | None) -> str | None:
        """The short name of the branch or tag that was named, if one was."""
        if ref is None:
            full = self.run("symbolic-ref", "--quiet", "HEAD").stdout.decode().strip()
        else:
            full = self.ask(
                "rev-parse", "--symbolic-full-name", "--verify", "--quiet", ref, fails=True
            ).strip()
        for start in ("refs/heads/", "refs/tags/", "refs/remotes/"):
            if full.startswith(start):
                return full.removeprefix(start)
        return None

    def trees(self, commit: str, subdirectory: str) -> tuple[bytes, ...]:
        """Raw trees from the root down to the published directory."""
        parts = subdirectory.split("/") if subdirectory else []
        places = ["/".join(parts[:depth]) for depth in range(len(parts) + 1)]
        return tuple(self.objects([self._tree_id(commit, place) for place in places]))

    def _tree_id(self, commit: str, place: str) -> str:
        listing = self.run("rev-parse", "--verify", "--quiet", f"{commit}:{place}")
        name = listing.stdout.decode().strip()
        if listing.returncode or self.ask("cat-file", "-t", name).strip() != "tree":
            raise FreezeError(
                "NOT_IN_COMMIT",
                f"commit {commit} has no directory `{place}`",
                "Give --ref with a commit that has it, or commit it first.",
            )
        return name

    def files(self, commit: str, subdirectory: str) -> tuple[FrozenFile, ...]:
        """The files below the published directory as the commit holds them."""
        listing = self.ask("ls-tree", "-r", "-z", "-l", "--full-tree", f"{commit}:{subdirectory}")
        entries = []
        for record in filter(None, listing.split("\0")):
            attributes, _, path = record.partition("\t")
            mode, kind, name, size = attributes.split()
            if size == "BAD":
                raise _damaged(f"blob {name} of `{path}` is missing")
            entries.append((path, mode, kind, name, int(size) if size != "-" else 0))
        total = sum(size for *_, size in entries)
        if total > MAX_TREE_BYTES:
            message = f"the tree has {total} bytes; at most {MAX_TREE_BYTES}"
            raise _refused([Fault("", "INVALID_RUNNER", message)])
        # A submodule is a commit of another repository: there is nothing here to read.
        contents = iter(self.objects([name for _, _, kind, name, _ in entries if kind == "blob"]))
        return tuple(
            _frozen_file(path, mode, next(contents) if kind == "blob" else b"")
            for path, mode, kind, _, _ in entries
        )

    def changes(self) -> tuple[bool, int]:
        """Whether tracked files below ``path`` changed, and how many files there git does not know."""
        if self.ask("rev-parse", "--is-inside-work-tree").strip() != "true":
            return False, 0
        status = self.ask(
            "status", "--porcelain=v1", "-z", "--no-renames", "--untracked-files=all", "--", "."
        )
        lines = [line for line in status.split("\0") if line]
        untracked = sum(line.startswith("??") for line in lines)
        return len(lines) > untracked, untracked

    def objects(self, ids: Sequence[str]) -> list[bytes]:
        """The raw contents of objects, in order."""
        done = self.run("cat-file", "--batch", stdin="".join(f"{each}\n" for each in ids).encode())
        self._check(done)
        contents, place = [], 0
        for _ in ids:
            # "<id> <kind> <size>\n<content>\n"; a damaged repository says "<id> missing" instead.
            end = done.stdout.index(b"\n", place)
            header = done.stdout[place:end].decode()
            if header.endswith(" missing"):
                raise FreezeError(
                    "GIT_FAILED", f"the repository is damaged: object {header}", "Run `git fsck`."
                )
            size = int(header.rpartition(" ")[2])
            contents.append(done.stdout[end + 1 : end + 1 + size])
            place = end + 1 + size + 1
        return contents

    def ask(self, *arguments: str, fails: bool = False) -> str:
        """What git prints. Raises `FreezeError` if it fails, unless ``fails`` says that it may."""
        done = self.run(*arguments)
        if not fails:
            self._check(done)
        return done.stdout.decode("utf-8", "surrogateescape")

    def run(self, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        environment = {name: value for name, value in os.environ.items() if name not in _REDIRECTING}
        # Replacement objects would show another content under a commit's id.
        environment |= {
            "GIT_NO_REPLACE_OBJECTS": "1",
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_TERMINAL_PROMPT": "0",
            "LC_ALL": "C",
        }
        command = ["git", "-c", "core.fsmonitor=false", "-C", os.fspath(self.path), *arguments]
        try:
            return subprocess.run(command, input=stdin, capture_output=True, check=False, env=environment)  # noqa: S603 - a fixed program, no shell
        except FileNotFoundError:
            raise FreezeError("GIT_MISSING", "the program `git` was not found", "Install git.") from None

    def _check(self, done: subprocess.CompletedProcess[bytes]) -> None:
        if done.returncode == 0:
            return
        said = done.stderr.decode("utf-8", "replace").strip()
        if "dubious ownership" in said:
            raise FreezeError(
                "UNTRUSTED_REPOSITORY",
                f"the repository of {self.path} belongs to another user, so git does not read it",
                f"If you trust it: git config --global --add safe.directory {self.path.resolve()}",
            )
        if "not a git repository" in said:
            raise FreezeError(
                "NOT_A_REPOSITORY",
                f"{self.path} is not in a git repository",
                "A Runner is a commit: `git init`, `git add`, `git commit`.",
            )
        raise FreezeError("GIT_FAILED", f"git failed: {said.removeprefix('fatal: ') or done.returncode}")


def _frozen_file(path: str, mode: str, content: bytes) -> FrozenFile:
    return FrozenFile(path, mode, len(content), hashlib.sha256(content).hexdigest(), content)
