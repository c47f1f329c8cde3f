"""What the operations on named contents share: names, lists, readable versions and how they look."""

from __future__ import annotations

import json
from typing import Any

from starlette.responses import Response

from trainshed.content.blobs import BlobNotFound, DigestMismatch
from trainshed.content.trees import StoredTree
from trainshed.control.references import list_hint, unknown_version
from trainshed.model.access import Permission
from trainshed.model.content import VERSION, ContentFile, ContentKind, ContentUri, plain_ref
from trainshed.model.errors import Refusal
from trainshed.model.manifests import ManifestFault
from trainshed.model.selectors import name_part_fault
from trainshed.server import damage
from trainshed.server.damage import Hit
from trainshed.server.documents import Param
from trainshed.server.endpoints import Call
from trainshed.server.pages import cut_page, open_cursor, page_limit
from trainshed.server.ranges import download
from trainshed.server.routes.artifacts import blob_chunks
from trainshed.server.shapes import contents as shapes
from trainshed.server.shapes.common import Page, iso, iso_or_none
from trainshed.store import contents as store
from trainshed.store.content_lists import Listed, list_contents
from trainshed.store.database import Connection
from trainshed.store.records import Content, ContentVersion, PluginApproval

READ = (Permission.CONTENT_READ,)
PUBLISH = (Permission.CONTENT_PUBLISH,)
UNKNOWN = ("CONTENT_NOT_FOUND",)
MAX_QUERY_CHARS = 200
TEXT = Param(
    "q", {"type": "string", "maxLength": MAX_QUERY_CHARS}, "Part of a name.", refuses=("INVALID_SPEC",)
)


def kind_of(word: str) -> ContentKind:
    """The kind; raises `Refusal` ``CONTENT_NOT_FOUND``."""
    if word not in set(ContentKind):
        raise not_found(f"`{word[:40]}` is no kind of content; they are {', '.join(ContentKind)}")
    return ContentKind(word)


def full_name(namespace: str, name: str) -> str:
    """``namespace/name``; raises `Refusal` ``CONTENT_NOT_FOUND`` for one that nothing can have."""
    if fault := name_part_fault("namespace", namespace) or name_part_fault("name", name):
        raise not_found(fault)
    return f"{namespace}/{name}"


def listed(call: Call, kind: ContentKind, use: str, *, show: Any, of_type: str | None = None) -> Page[Any]:
    """A page of readable contents. ``show`` makes an item of a `Listed`."""
    limit = page_limit(call.query)
    after = open_cursor(call.services.seal, use, call.query)
    text = call.query.get("q") or None
    if text is not None and len(text) > MAX_QUERY_CHARS:
        raise Refusal.of("INVALID_SPEC", f"`q` has at most {MAX_QUERY_CHARS} characters", path="q")
    with call.services.database.read() as connection:
        rows = list_contents(
            connection,
            call.principal,
            kind,
            after=None if after is None else (after[0], after[1]),
            limit=limit + 1,
            text=text,
            of_type=of_type,
        )
    return cut_page(
        call.services.seal,
        use,
        rows,
        limit,
        key=lambda row: [row.content.created_at, row.content.name],
        show=lambda kept: [show(row) for row in kept],
    )


def one_listed(call: Call, connection: Connection, kind: ContentKind, name: str) -> Listed:
    """A readable content by name; raises `Refusal` ``CONTENT_NOT_FOUND``."""
    found = list_contents(connection, call.principal, kind, after=None, limit=1, name=name)
    if not found:
        raise not_found(f"there is no readable {kind.noun} `{name[:200]}`", list_hint(kind))
    return found[0]


def version_page(call: Call, kind: ContentKind, name: str, *, show: Any) -> Page[Any]:
    """A page of the versions of a readable content."""
    limit = page_limit(call.query)
    use = f"versions:{kind}:{name}"
    before = open_cursor(call.services.seal, use, call.query)
    with call.services.database.read() as connection:
        one_listed(call, connection, kind, name)
        rows = store.list_versions(connection, kind, name, before=before, limit=limit + 1)
    return cut_page(
        call.services.seal,
        use,
        rows,
        limit,
        key=lambda row: row.id,
        show=lambda kept: [show(row) for row in kept],
    )


def readable_version(
    call: Call, connection: Connection, kind: ContentKind, name: str, ref: str
) -> tuple[ContentVersion, Content]:
    """A readable version; raises `Refusal` ``CONTENT_NOT_FOUND``.

    Of a content that the caller may read it says which versions there are; else unknown and unreadable are
    one answer.
    """
    found, ref = None, plain_ref(ref)
    if VERSION.fullmatch(ref):
        if call.principal.owner:
            found = store.find_version(connection, kind, name, ref)
        else:
            namespace, _, short = name.partition("/")
            found = store.resolve(connection, call.project, ContentUri(kind, namespace, short, ref))
    content = store.find_content(connection, kind, name)
    if found is None or found.withdrawn_at is not None or content is None:
        if list_contents(connection, call.principal, kind, after=None, limit=1, name=name):
            raise not_found(*unknown_version(connection, kind, name, ref))
        raise not_found(f"there is no readable {kind.noun} {name}@{ref[:80]}", list_hint(kind))
    return found, content


def stored_tree(call: Call, version: ContentVersion) -> StoredTree:
    """The files of a version; raises `Refusal` ``CONTENT_DAMAGED``."""
    return read_tree(call, version.manifest_sha256, damage.of_version(call.services.blobs, version))


def read_tree(call: Call, manifest_sha256: str, hit: Hit) -> StoredTree:
    """The files of a stored manifest; raises `Refusal` ``CONTENT_DAMAGED``."""
    try:
        return StoredTree(call.services.blobs, manifest_sha256)
    except BlobNotFound:
        raise hit.refusal(f"its stored bytes are gone (blob {manifest_sha256})") from None
    except (DigestMismatch, ManifestFault) as error:
        raise hit.refusal(str(error)) from None


def content_item(row: Listed) -> shapes.ContentItem:
    return shapes.ContentItem(**item_values(row))


def version_item(version: ContentVersion) -> shapes.ContentVersionItem:
    return shapes.ContentVersionItem(**_version_values(version))


def approval_item(row: PluginApproval) -> shapes.PluginApproval:
    return shapes.PluginApproval(
        name=row.name,
        manifest_sha256=row.manifest_sha256,
        approved=row.revoked_at is None,
        approved_at=iso(row.approved_at),
        approved_by=row.approved_by,
        revoked_at=iso_or_none(row.revoked_at),
        revoked_by=row.revoked_by,
    )


def content_bytes(
    call: Call,
    sha256: str,
    size: int | None,
    hit: Hit,
    extra: dict[str, str] | None = None,
    media_type: str = "application/octet-stream",
) -> Response:
    """A stored blob, or the range of it that is asked for; raises as ``hit`` does where it is damaged."""
    blobs = call.services.blobs
    return download(
        call.request.headers,
        sha256=sha256,
        size=hit.size(blobs, sha256, size),
        head=call.head,
        chunks=lambda start, length: blob_chunks(blobs, sha256, start, length),
        media_type=media_type,
        extra=extra,
    )


def whole_blob(call: Call, sha256: str, size: int, hit: Hit) -> bytes:
    """All bytes of a small blob; raises as ``hit`` does where there are not so many."""
    try:
        with call.services.blobs.open(sha256) as reader:
            data = b"".join(reader.chunks())
    except (BlobNotFound, DigestMismatch):
        data = b""
    if len(data) != size or not data:
        # Asks once more, and says what it is.
        hit.size(call.services.blobs, sha256, size)
    return data


def own_content(call: Call, connection: Connection, kind: ContentKind, name: str) -> Content:
    """The content, if the caller's project owns it; others' are not found."""
    content = store.find_content(connection, kind, name)
    if content is None or not (call.principal.owner or content.project_id == call.project):
        raise not_found(f"your project has no {kind.noun} `{name[:200]}`", list_hint(kind))
    return content


def item_values(row: Listed) -> dict[str, Any]:
    content = row.content
    return {
        "kind": content.kind,
        "name": content.name,
        "visibility": content.visibility,
        "description": json.loads(row.newest.about).get("description"),
        "versions": row.versions,
        "newest": version_item(row.newest),
        "created_at": iso(content.created_at),
        "updated_at": iso(content.updated_at),
    }


def _version_values(version: ContentVersion) -> dict[str, Any]:
    return {
        "kind": version.kind,
        "name": version.name,
        "version": version.version,
        "uri": version.uri,
        "manifest_sha256": version.manifest_sha256,
        "files": version.files,
        "bytes": version.bytes,
        "published_at": iso(version.published_at),
        "published_by": version.published_by,
    }


def version_detail(
    connection: Connection, version: ContentVersion, content: Content
) -> shapes.ContentVersionDetail:
    decided = None
    if version.kind == ContentKind.PLUGINS:
        decided = store.approval(connection, version.name, version.manifest_sha256)
    values: dict[str, Any] = {
        **_version_values(version),
        "about": json.loads(version.about),
        "visibility": content.visibility,
        "approval": None if decided is None else approval_item(decided),
    }
    return shapes.ContentVersionDetail(**values)


def file_item(file: ContentFile) -> shapes.ContentFileItem:
    return shapes.ContentFileItem(
        path=file.path, size=file.size, sha256=file.sha256, executable=file.executable
    )


def not_found(message: str, hint: str = "") -> Refusal:
    return Refusal.of("CONTENT_NOT_FOUND", message, path="name", hint=hint)
