"""Publishing one version of a content: verify its manifest, see that every blob is there, name it."""

from __future__ import annotations

import hashlib
import io
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from trainshed.content.blobs import BlobNotFound, BlobStore, DigestMismatch, FolderBlobStore
from trainshed.content.trees import VerifiedManifest, check_recipe, verify_manifest
from trainshed.model.access import Principal, Visibility
from trainshed.model.content import SHA256, VERSION, ContentKind
from trainshed.model.errors import Fault, FaultList, Refusal
from trainshed.model.manifests import MAX_MANIFEST_BYTES
from trainshed.model.recipe import Recipe, recipe_from_about
from trainshed.model.selectors import name_part_fault
from trainshed.model.strict_json import canonical_json
from trainshed.server.bodies import Body
from trainshed.server.storage import record_stored, reserved
from trainshed.store import access, contents, holders, possession
from trainshed.store.contents import Release
from trainshed.store.database import Connection, Database
from trainshed.store.namespaces import holder_of
from trainshed.store.records import ContentVersion
from trainshed.store.usage import check_quota

_KEYS = ("version", "visibility", "projects", "manifest_sha256", "manifest", "bytes")
MAX_BYTES = 2**63 - 1
_LATEST = "latest"
_ASKED_AT_ONCE = 500
_STAGED_FROM = 5_000
_STAGED_AT_ONCE = 1_000
_SHOWN = 50
_MOST_ASKED_REMOTELY = 10_000
"""Of a longer list only the rows are asked where each look is a request; `content verify` finds the rest."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A request that is well formed."""

    version: str
    visibility: Visibility | None
    projects: list[str]
    manifest_sha256: str
    manifest: bytes | None
    bytes: int | None
    """What the publisher says its files have together: too much is refused before anything is sent."""


def publish(
    database: Database,
    blobs: BlobStore,
    principal: Principal,
    kind: ContentKind,
    name: str,
    document: Mapping[str, Any],
    *,
    at: float,
) -> tuple[ContentVersion, bool]:
    """Publish ``document`` (version, visibility, manifest_sha256, manifest) as a version of ``name``.

    ``name`` is ``namespace/name`` as the caller wrote it. The manifest may be left out where its project has
    sent it before, as a blob or for another version. What the project has not sent itself it may not name:
    digests prove nothing, and a version gives its bytes away. So that nobody learns what others have, it is
    refused as what nobody has.

    Raises `Refusal` ``INVALID_CONTENT``, ``CONTENT_HASH_MISMATCH``, ``BLOB_NOT_FOUND`` with ``missing``,
    ``BLOB_BEING_DELETED``, ``CONTENT_VERSION_EXISTS``, ``CONTENT_QUOTA_EXCEEDED``, ``NAMESPACE_TAKEN``.
    """
    wanted = _parse(kind, name, document)
    with database.read() as connection:
        known = contents.same_manifest(connection, kind, wanted.manifest_sha256)
        if known and not possession.may_name(connection, principal.project_id, wanted.manifest_sha256):
            # As if nobody had published it. Or damaged copies were taken out since.
            known = None
        if known is not None and kind is ContentKind.RECIPES:
            _check_dependencies(connection, principal, recipe_from_about(json.loads(known[0].about)))
        if known is None and wanted.bytes is not None:
            holder = holder_of(connection, principal, name)
            own = 0 if wanted.manifest is None else len(wanted.manifest)
            check_quota(connection, holder, wanted.manifest_sha256, wanted.bytes, own)
    if known is not None and _lost(database, blobs, wanted.manifest_sha256, known[1]):
        # Looked at as if it were new, which says what to send again.
        known = None
    if known is not None:
        like, size = known
        release = Release(
            kind, name, wanted.version, wanted.manifest_sha256, size, like.about, like.files, like.bytes, ()
        )
    else:
        manifest = _verified(database, blobs, principal, kind, wanted, at)
        release = Release(
            kind,
            name,
            wanted.version,
            manifest.sha256,
            manifest.size,
            canonical_json(manifest.about),
            manifest.files,
            manifest.bytes,
            manifest.blobs.keys(),
        )
    _stage(database, release, at)

    def change(connection: Connection) -> tuple[ContentVersion, bool]:
        for project in wanted.projects:
            access.get_project(connection, project)
        return contents.publish(
            connection, principal, release, wanted.visibility, at=at, granted=wanted.projects
        )

    return database.write(change)


def _parse(kind: ContentKind, name: str, document: Mapping[str, Any]) -> _Wanted:
    """The request; raises `Refusal` with every fault, also those of a manifest that came along."""
    body = Body(document, code="INVALID_CONTENT")
    body.known(_KEYS)
    for label, part in zip(("namespace", "name"), name.split("/", 1), strict=True):
        if fault := name_part_fault(label, part):
            body.fault("name", fault)
    digest = body.required_text("manifest_sha256")
    if digest and not SHA256.fullmatch(digest):
        body.fault("manifest_sha256", "must be 64 lower-case hex digits")
    version = body.text("version") or digest
    if version and (fault := _version_fault(version, digest)):
        body.fault("version", fault)
    word = body.word("visibility", [str(each) for each in Visibility])
    projects = sorted(set(body.words("projects")))
    if (word == Visibility.PROJECTS) != bool(projects):
        body.fault("projects", "visibility `projects` needs at least one, and only it takes any")
    size = body.whole("bytes", 0, MAX_BYTES)
    encoded = _manifest(body)
    if body.faults and encoded is not None:
        told = digest if SHA256.fullmatch(digest) else hashlib.sha256(encoded).hexdigest()
        try:
            verify_manifest(io.BytesIO(encoded).read, kind, told)
        except Refusal as refusal:
            body.faults.faults += refusal.faults
    body.finish()
    return _Wanted(version, Visibility(word) if word else None, projects, digest, encoded, size)


def _manifest(body: Body) -> bytes | None:
    """The canonical bytes of a manifest that was sent along."""
    manifest = body.values.get("manifest")
    if isinstance(manifest, dict):
        try:
            return canonical_json(manifest).encode()
        except RecursionError:
            body.fault("manifest", "is nested too deeply")
    elif manifest is not None:
        body.fault("manifest", "must be the manifest as a JSON object")
    return None


def _version_fault(version: str, digest: str) -> str | None:
    if not VERSION.fullmatch(version):
        return "must start with a letter or digit, then hold letters, digits, `.`, `_`, `+`, `-`; at most 128"
    if version.lower() == _LATEST:
        return "`latest` would have to move, and a version never does; leave it out to use the digest"
    if SHA256.fullmatch(version) and version != digest:
        return "looks like a manifest's digest and is another one"
    return None


def _verified(
    database: Database,
    blobs: BlobStore,
    principal: Principal,
    kind: ContentKind,
    wanted: _Wanted,
    at: float,
) -> VerifiedManifest:
    """The manifest, proved wholly, with every blob of it stored and its own bytes too."""
    digest = wanted.manifest_sha256
    if wanted.manifest is not None:
        manifest = verify_manifest(io.BytesIO(wanted.manifest).read, kind, digest)
    else:
        manifest = _stored_manifest(database, blobs, principal, kind, digest)
    _check_blobs(database, blobs, principal, manifest)
    if kind is ContentKind.RECIPES:
        check_recipe(manifest, blobs)
        with database.read() as connection:
            _check_dependencies(connection, principal, recipe_from_about(manifest.about))
    if wanted.manifest is not None:
        sizes, project = {digest: manifest.size}, principal.project_id
        with reserved(database, project, sizes, request=secrets.token_hex(), at=at) as reservation:
            blobs.put(io.BytesIO(wanted.manifest), sha256=digest)
            record_stored(database, blobs, sizes, at=at, sender=project, reservation=reservation)
    return manifest


def _stored_manifest(
    database: Database, blobs: BlobStore, principal: Principal, kind: ContentKind, digest: str
) -> VerifiedManifest:
    with database.read() as connection:
        size = possession.sizes(connection, principal.project_id, [digest]).get(digest)
    if size is None:
        raise _missing([digest], 1, "the manifest is not stored; send it, or upload it as a blob")
    if size > MAX_MANIFEST_BYTES:
        said = f"the manifest has {size} bytes; at most {MAX_MANIFEST_BYTES}"
        raise Refusal.of("INVALID_CONTENT", said, path="manifest_sha256")
    try:
        with blobs.open(digest) as reader:
            return verify_manifest(reader.read, kind, digest)
    except (BlobNotFound, DigestMismatch):
        raise _missing([digest], 1, "the manifest's bytes are gone; send it again") from None


def _lost(database: Database, blobs: BlobStore, manifest_sha256: str, manifest_bytes: int) -> bool:
    """Whether bytes of a known manifest are gone from the store or cut off, whatever the rows say.

    A remote store is asked for the manifest alone: publishing what did not change shall stay quick.
    """
    sizes: dict[str, int | None] = {manifest_sha256: manifest_bytes}
    if isinstance(blobs, FolderBlobStore):
        with database.read() as connection:
            sizes |= holders.held_by(connection, manifest_sha256)
    recorded = {name: size for name, size in sizes.items() if size is not None}
    return len(recorded) < len(sizes) or bool(blobs.unlike(recorded))


def _check_blobs(
    database: Database, blobs: BlobStore, principal: Principal, manifest: VerifiedManifest
) -> None:
    """Every blob was sent by the project, is stored, and as long as the manifest says."""
    faults = FaultList()
    missing: list[str] = []
    absent = 0
    names = list(manifest.blobs)
    with database.read() as connection:
        for start in range(0, len(names), _ASKED_AT_ONCE):
            asked = names[start : start + _ASKED_AT_ONCE]
            stored = possession.sizes(connection, principal.project_id, asked)
            for name in asked:
                said, found = manifest.blobs[name], stored.get(name)
                if found is None:
                    absent += 1
                    missing += [name] if len(missing) < _SHOWN else []
                elif found != said and len(faults.faults) < _SHOWN:
                    message = f"blob {name} has {found} bytes, and the manifest says {said}"
                    faults.add("manifest.files", "INVALID_CONTENT", message)
    faults.raise_if_any()
    if not absent and (len(names) <= _MOST_ASKED_REMOTELY or isinstance(blobs, FolderBlobStore)):
        gone = blobs.unlike(manifest.blobs)
        missing, absent = gone[:_SHOWN], len(gone)
    if absent:
        raise _missing(missing, absent, f"{absent} of the {len(names)} blobs are not stored; upload them")


def _stage(database: Database, release: Release, at: float) -> None:
    """Write most of a large release's rows in small transactions, between which others have their turn."""
    # In their order each transaction writes one stretch of the indexes instead of pages all over them.
    names = sorted(release.blobs)
    if len(names) > _STAGED_FROM:
        for start in range(0, len(names), _STAGED_AT_ONCE):
            some = names[start : start + _STAGED_AT_ONCE]
            database.write(partial(contents.stage, release=release, some=some, at=at))


def _missing(names: list[str], count: int, message: str) -> Refusal:
    return Refusal.of("BLOB_NOT_FOUND", message, path="manifest", missing=names, missing_count=count)


def _check_dependencies(connection: Connection, principal: Principal, recipe: Recipe) -> None:
    """Every Recipe that this one needs is there, readable by its project, and the one meant (E102)."""
    faults = []
    for name, needed in recipe.dependencies.items():
        where = f"dependencies.{name}"
        found = contents.resolve(connection, principal.project_id, needed.uri)
        if found is None or found.manifest_sha256 != needed.manifest_sha256:
            # The digest names it for good; on another server its label may be that of something else.
            by_digest = replace(needed.uri, ref=needed.manifest_sha256)
            found = contents.resolve(connection, principal.project_id, by_digest) or found
        if found is None:
            said = f"there is no readable {needed.uri}"
            faults.append(Fault(f"{where}.uri", "CONTENT_NOT_FOUND", said))
        elif found.manifest_sha256 != needed.manifest_sha256:
            said = f"{needed.uri} is {found.manifest_sha256}, not {needed.manifest_sha256}"
            faults.append(Fault(f"{where}.manifest_sha256", "CONTENT_HASH_MISMATCH", said))
    if faults:
        raise Refusal(faults)
