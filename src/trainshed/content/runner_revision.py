"""Proving that published files are exactly a directory of the commit they claim (contract E8, promise P7).

The server has no repository. It recomputes the commit's id from the raw commit, follows the raw trees down to
the published directory, hashes every stored blob the way git does, rebuilds the directory's tree from them
and compares: one byte, mode or name that differs changes the id.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass

from trainshed.content.blobs import BlobStore
from trainshed.content.gitobjects import (
    TREE_MODE,
    MalformedObject,
    TreeEntry,
    blob_ids,
    build_trees,
    commit_tree,
    object_id,
    parse_tree,
)
from trainshed.model.errors import Fault
from trainshed.model.publication import Publication
from trainshed.model.runner import DefinitionError, RunnerDefinition, definition_file, parse_definition
from trainshed.model.runner_tree import (
    RunnerFile,
    case_collisions,
    path_fault,
    snapshot_sha256,
    tree_faults,
    tree_manifest,
)

_SHOWN = 5


class RevisionRefused(Exception):
    """The tree may not be published as a Runner; ``faults`` holds every reason found."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = tuple(faults)
        super().__init__("; ".join(fault.message for fault in self.faults[:_SHOWN]))


class RevisionMismatch(Exception):
    """The files are not what the commit says they are."""

    code = "RUNNER_HASH_MISMATCH"


class BlobsMissing(Exception):
    """Files were not uploaded yet; ``missing`` holds their SHA-256. Upload them and publish again."""

    def __init__(self, missing: Iterable[str]) -> None:
        self.missing = tuple(missing)
        super().__init__(f"{len(self.missing)} of the Runner's blobs were not uploaded")


@dataclass(frozen=True, slots=True)
class VerifiedRevision:
    """A Runner Revision whose every file is stored and proved to belong to ``commit``."""

    commit: str
    tree_id: str
    """Git's id of the published directory."""
    files: tuple[RunnerFile, ...]
    """In the order of their paths."""
    definition: RunnerDefinition
    definition_path: str
    manifest: bytes
    snapshot_sha256: str
    """SHA-256 of ``manifest``: the name of this content."""
    notes: tuple[str, ...] = ()
    """What is allowed and worth telling, in sentences."""


def verify_revision(
    publication: Publication, blobs: BlobStore, own: Container[str] | None = None
) -> VerifiedRevision:
    """Verify a publication whose blobs were uploaded. Nothing is written.

    ``own`` are the digests of what the publisher has sent, all if not given: what others sent is missing too.

    Raises `RevisionRefused` (the tree may not be published), `BlobsMissing`, or `RevisionMismatch`.
    """
    files = tuple(sorted(publication.files, key=lambda file: file.path.encode("utf-8", "surrogatepass")))
    if faults := _place_faults(publication) + tree_faults(files):
        raise RevisionRefused(faults)
    gone = set(blobs.missing(file.sha256 for file in files))
    names = dict.fromkeys(file.sha256 for file in files)
    if missing := [name for name in names if name in gone or (own is not None and name not in own)]:
        raise BlobsMissing(missing)
    try:
        published = _published_tree(publication)
        rebuilt = build_trees({file.path: (file.mode, _blob_id(file, blobs)) for file in files})[""]
        if rebuilt != published:
            raise RevisionMismatch(_difference(parse_tree(published), parse_tree(rebuilt)))
    except MalformedObject as error:
        raise RevisionMismatch(str(error)) from error
    definition_path, definition = _definition(files, blobs)
    return VerifiedRevision(
        commit=publication.commit,
        tree_id=object_id("tree", published),
        files=files,
        definition=definition,
        definition_path=definition_path,
        manifest=tree_manifest(files),
        snapshot_sha256=snapshot_sha256(files),
        notes=tuple(
            f"{' and '.join(f'`{path}`' for path in group)} differ only in case"
            for group in case_collisions(file.path for file in files)
        ),
    )


def _place_faults(publication: Publication) -> list[Fault]:
    where = publication.subdirectory
    fault = path_fault(where) if where else None
    depth = len(where.split("/")) if where else 0
    if fault is None and len(publication.tree_objects) != depth + 1:
        fault = f"needs {depth + 1} tree objects, {len(publication.tree_objects)} were sent"
    return [Fault("subdirectory", "INVALID_RUNNER", f"the directory `{where}` {fault}")] if fault else []


def _published_tree(publication: Publication) -> bytes:
    """The raw tree of the published directory, once the commit and every tree above it vouch for it."""
    if (found := object_id("commit", publication.commit_object)) != publication.commit:
        raise RevisionMismatch(f"the commit object sent is {found}, not {publication.commit}")
    expected = commit_tree(publication.commit_object)
    walked = ""
    parts = publication.subdirectory.split("/") if publication.subdirectory else []
    for tree, part in zip(publication.tree_objects, [*parts, None], strict=True):
        if (found := object_id("tree", tree)) != expected:
            raise RevisionMismatch(
                f"the tree of `{walked or '/'}` is {expected} in the commit, {found} was sent"
            )
        if part is None:
            return tree
        walked = f"{walked}/{part}".lstrip("/")
        entry = next((each for each in parse_tree(tree) if each.name == part.encode()), None)
        if entry is None or entry.mode != TREE_MODE:
            raise RevisionMismatch(f"`{walked}` is not a directory in commit {publication.commit}")
        expected = entry.object_id
    raise AssertionError("the last tree ends the walk")


def _blob_id(file: RunnerFile, blobs: BlobStore) -> str:
    with blobs.open(file.sha256) as reader:
        if reader.remaining != file.size:
            raise RevisionMismatch(f"`{file.path}`: {file.size} bytes announced, {reader.remaining} stored")
        git_id, sha256 = blob_ids(reader, file.size)
    if sha256 != file.sha256:
        raise RevisionMismatch(f"`{file.path}`: the stored bytes of blob {file.sha256} are damaged")
    return git_id


def _difference(published: Iterable[TreeEntry], rebuilt: Iterable[TreeEntry]) -> str:
    """What differs between the commit's directory and the one made of the files, at its top."""
    want, have = set(published), set(rebuilt)
    names = sorted({entry.name.decode("utf-8", "backslashreplace") for entry in want ^ have})
    listed = ", ".join(f"`{name}`" for name in names[:_SHOWN])
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"the files are not those of the commit: {listed}{more} differ in content, mode or presence"


def _definition(files: tuple[RunnerFile, ...], blobs: BlobStore) -> tuple[str, RunnerDefinition]:
    by_path = {file.path: file for file in files}
    try:
        path = definition_file(by_path)
        with blobs.open(by_path[path].sha256) as reader:
            definition = parse_definition(reader.read())
    except DefinitionError as error:
        raise RevisionRefused(error.faults) from error
    entrypoint = definition.entrypoint
    if entrypoint not in by_path:
        message = f"the entrypoint `{entrypoint}` is not among the files"
        raise RevisionRefused([Fault("execution.entrypoint", "INVALID_RUNNER", message)])
    with blobs.open(by_path[entrypoint].sha256) as reader:
        try:
            reader.read().decode()
        except UnicodeDecodeError:
            message = f"the entrypoint `{entrypoint}` is not UTF-8 text"
            raise RevisionRefused([Fault(entrypoint, "INVALID_RUNNER", message)]) from None
    return path, definition
