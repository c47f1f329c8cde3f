"""Publishing one version of a content: verify its manifest, see that every blob is there, name it."""

from __future__ import annotations

import hashlib
import io
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from trainshed.content.blobs import BlobNotFound, BlobStore, DigestMismatch, FolderBlobStore
from trainshed.content.trees import VerifiedManifest, check_recipe, verify_manifest
from trainshed.model.access import Principal, Visibility
from trainshed.model.content import MAX_VERSION_CHARS, SHA256, ContentKind, ContentUri, version_fault
from trainshed.model.errors import Fault, FaultList, Refusal
from trainshed.model.manifests import MAX_ABOUT_BYTES, MAX_MANIFEST_BYTES
from trainshed.model.recipe import Recipe, judge_recipe, missing_source, recipe_from_about
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
    wanted = _parse(database, principal, kind, name, document)
    with database.read() as connection:
        known = contents.same_manifest(connection, kind, wanted.manifest_sha256)
        if known and not possession.may_name(connection, principal.project_id, wanted.manifest_sha256):
            # As if nobody had published it. Or damaged copies were taken out since.
            known = None
        if known is not None and kind is ContentKind.RECIPES:
            _check_dependencies(connection, principal, json.loads(known[0].about))
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


def _parse(
    database: Database, principal: Principal, kind: ContentKind, name: str, document: Mapping[str, Any]
) -> _Wanted:
    """The request; raises `Refusal` with every fault, also those of a manifest that came along."""
    body = Body(document, code="INVALID_CONTENT")
    body.known(_KEYS)
    for label, part in zip(("namespace", "name"), name.split("/", 1), strict=True):
        if fault := name_part_fault(label, part):
            body.fault("name", fault)
    digest = body.required_text("manifest_sha256")
    if digest and not SHA256.fullmatch(digest):
        body.fault("manifest_sha256", "must be 64 lower-case hex digits")
    version = body.text("version", most=MAX_VERSION_CHARS) or digest
    if version and (fault := version_fault(version)):
        body.fault("version", fault)
    elif version and SHA256.fullmatch(version) and version != digest:
        body.fault("version", "looks like a manifest's digest and is another one")
    word = body.word("visibility", [str(each) for each in Visibility])
    projects = sorted(set(body.words("projects")))
    if (word == Visibility.PROJECTS) != bool(projects):
        body.fault("projects", "visibility `projects` needs at least one, and only it takes any")
    size = body.whole("bytes", 0, MAX_BYTES)
    encoded = _manifest(body)
    if body.faults and encoded is not None:
        told = digest if SHA256.fullmatch(digest) else hashlib.sha256(encoded).hexdigest()
        _, faults, left_out = _judged(database, principal, kind, encoded, told)
        raise Refusal([*body.faults.faults, *faults], left_out=left_out)
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
        judged, faults, left_out = _judged(database, principal, kind, wanted.manifest, digest)
        if judged is None or faults:
            raise Refusal(faults, left_out=left_out)
        manifest = judged
    else:
        manifest = _stored_manifest(database, blobs, principal, kind, digest)
    _check_blobs(database, blobs, principal, manifest)
    if kind is ContentKind.RECIPES:
        check_recipe(manifest, blobs)
        with database.read() as connection:
            _check_dependencies(connection, principal, manifest.about)
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
    absent = unlike = 0
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
                elif found != said:
                    unlike += 1
                    if unlike <= _SHOWN:
                        message = f"blob {name} has {found} bytes, and the manifest says {said}"
                        faults.add("manifest.files", "INVALID_CONTENT", message)
    if faults:
        raise Refusal(faults.faults, left_out=unlike - len(faults.faults))
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


def _judged(
    database: Database, principal: Principal, kind: ContentKind, encoded: bytes, sha256: str
) -> tuple[VerifiedManifest | None, list[Fault], int]:
    """A sent manifest, proved, or ``None``; its faults, with what a Recipe lacks; how many more there are."""
    manifest: VerifiedManifest | None = None
    faults: list[Fault] = []
    left_out = 0
    try:
        manifest = verify_manifest(io.BytesIO(encoded).read, kind, sha256)
    except Refusal as refusal:
        faults += refusal.faults
        left_out = refusal.left_out
    about = json.loads(encoded).get("about") if manifest is None else manifest.about
    readable = isinstance(about, dict) and len(canonical_json(about)) <= MAX_ABOUT_BYTES
    if kind is ContentKind.RECIPES and readable:
        with database.read() as connection:
            faults += _dependency_faults(connection, principal, judge_recipe(about)[0])
    return manifest, faults, left_out


def _dependency_faults(connection: Connection, principal: Principal, recipe: Recipe) -> list[Fault]:
    """Which Recipes this one needs that its project cannot read, or that are others than meant (E102)."""

    def digest_of(uri: ContentUri) -> str | None:
        found = contents.resolve(connection, principal.project_id, uri)
        return None if found is None else found.manifest_sha256

    judged = (missing_source(name, needed, digest_of) for name, needed in recipe.dependencies.items())
    return [fault for fault in judged if fault is not None]


def _check_dependencies(connection: Connection, principal: Principal, about: Mapping[str, Any]) -> None:
    if faults := _dependency_faults(connection, principal, recipe_from_about(about)):
        raise Refusal(faults)
