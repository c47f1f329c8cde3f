"""The contents that a task mounts, as the door sees them: which versions, and whether a `sub_path` is there.

Serves C11: a manifest never changes, so what is not in it now is never there; that is refused before a node
is taken for it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from trainshed.content.blobs import BlobNotFound, BlobStore
from trainshed.content.trees import StoredTree
from trainshed.control.references import command, list_hint, unknown_version
from trainshed.model.content import ContentKind, ContentUri, parse_content_uri
from trainshed.model.errors import Fault, Refusal
from trainshed.model.manifests import ManifestFault
from trainshed.model.training.reading import SPEC_PATH
from trainshed.model.training.resolve_parts import ResolvedMount
from trainshed.store import contents
from trainshed.store.database import Connection
from trainshed.store.records import ContentVersion, TrialContent

SUB_PATH_UNKNOWN = "MOUNT_SUB_PATH_UNKNOWN"
_LOOKED_AT = 50
"""Names of a folder that are compared with one that is not in it."""
_SHOWN, _PROPOSED = 5, 2


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a content that is to be mounted; ``path`` is where the document names it."""

    path: str
    version: ContentVersion
    sub_path: str


@dataclass(frozen=True, slots=True)
class Mounted:
    """What the contents that a task mounts are; they are those of no Trial yet."""

    contents: tuple[TrialContent, ...]
    parts: tuple[Part, ...]
    faults: tuple[Fault, ...]


def find_mounted(connection: Connection, project_id: str, mounts: Iterable[ResolvedMount]) -> Mounted:
    """The manifests of what is mounted, pinned now, and what this project may not read or nobody has."""
    found, parts, faults = [], [], []
    for mount in mounts:
        if mount.content is None:
            continue
        where = f"{SPEC_PATH}.mounts[{mount.place}]"
        uri = parse_content_uri(mount.content)
        version = contents.resolve(connection, project_id, uri)
        if version is None:
            faults.append(_unreadable(connection, project_id, uri, f"{where}.ref"))
            continue
        if mount.mount.sub_path is not None:
            parts.append(Part(f"{where}.sub_path", version, mount.mount.sub_path))
        found.append(
            TrialContent(
                trial_id="",
                role=f"mount:{mount.mount.mount_path}",
                kind=version.kind,
                name=version.name,
                version=version.version,
                manifest_sha256=version.manifest_sha256,
            )
        )
    return Mounted(tuple(found), tuple(parts), tuple(faults))


def sub_path_faults(blobs: BlobStore, parts: Iterable[Part]) -> list[Fault]:
    """A fault for each part that its content has not. A few reads of a manifest, however long it is.

    Raises `BlobError`, and `Refusal` ``STORAGE_UNAVAILABLE`` where a manifest cannot be read.
    """
    return [fault for part in parts if (fault := _fault(blobs, part)) is not None]


def _fault(blobs: BlobStore, part: Part) -> Fault | None:
    version = part.version
    try:
        tree = StoredTree(blobs, version.manifest_sha256)
        if tree.has(part.sub_path):
            return None
        said = _missing(tree, part.sub_path)
    except (BlobNotFound, ManifestFault):
        gone = f"the manifest of {version.uri} is missing or damaged"
        raise Refusal.of("STORAGE_UNAVAILABLE", gone, path=part.path) from None
    kind = ContentKind(version.kind)
    message = f"{kind.noun} {version.name}@{version.version} has no file or folder `{part.sub_path}`; {said}"
    hint = f"`{command(kind)} files {version.name}@{version.version}` lists its files."
    return Fault(part.path, SUB_PATH_UNKNOWN, message, hint)


def _missing(tree: StoredTree, path: str) -> str:
    """What there is where ``path`` leaves the content, and which of its paths come near."""
    folder, names = path, list[str]()
    while folder and not names:
        folder = folder.rpartition("/")[0]
        names = tree.names(folder, _LOOKED_AT)
    before = f"{folder}/" if folder else ""
    wrong, _, rest = path.removeprefix(before).partition("/")
    near = []
    for name in difflib.get_close_matches(wrong, [name.removesuffix("/") for name in names], _PROPOSED):
        whole = f"{before}{name}/{rest}"
        near.append(f"`{whole}`" if rest and tree.has(whole) else f"`{before}{name}`")
    where = f"in `{folder}`" if folder else "at its top"
    shown = ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
    return f"{where} it has {shown}" + (f" (did you mean {' or '.join(near)}?)" if near else "")


def _unreadable(connection: Connection, project_id: str, uri: ContentUri, path: str) -> Fault:
    if not contents.readable(connection, project_id, uri.kind, uri.full_name):
        said = f"there is no {uri.kind.noun} {uri.full_name} that this project may read"
        return Fault(path, "MOUNT_DENIED", said, list_hint(uri.kind))
    return Fault(path, "MOUNT_REF_INVALID", *unknown_version(connection, uri.kind, uri.full_name, uri.ref))
