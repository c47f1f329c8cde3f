"""Datasets, Models, Recipes and Plugins: publish, read, share, withdraw (E92, E94, E101, E104)."""

from __future__ import annotations

import json
from urllib.parse import quote

from starlette.responses import Response

from trainshed.control.references import unknown_version
from trainshed.model.content import plain_ref
from trainshed.model.errors import Refusal
from trainshed.server import damage
from trainshed.server.bodies import Body, visibility_of
from trainshed.server.content_publisher import publish
from trainshed.server.content_views import (
    PUBLISH,
    READ,
    TEXT,
    UNKNOWN,
    content_bytes,
    content_item,
    file_item,
    full_name,
    item_values,
    kind_of,
    listed,
    not_found,
    one_listed,
    own_content,
    readable_version,
    stored_tree,
    version_detail,
    version_item,
    version_page,
    whole_blob,
)
from trainshed.server.documents import CURSOR, LIMIT
from trainshed.server.endpoints import Call, Operation, Reply, Routes
from trainshed.server.pages import MAX_PAGE, open_cursor, page_limit
from trainshed.server.routes.artifacts import IF_NONE_MATCH, RANGE
from trainshed.server.routes.blobs import MAX_BATCH, MAX_BATCH_BYTES
from trainshed.server.shapes import contents as shapes
from trainshed.server.shapes import requests
from trainshed.server.shapes.common import Page
from trainshed.store import access
from trainshed.store import contents as store
from trainshed.store.database import Connection
from trainshed.store.records import ContentVersion

routes = Routes("contents")

_BYTES = (*UNKNOWN, "NOT_FOUND", "CONTENT_DAMAGED", "STORAGE_UNAVAILABLE")


@routes.get(
    "/{kind}",
    Operation(
        "List readable contents of a kind, the newest first",
        answer=Page[shapes.ContentItem],
        any_of=READ,
        params=(CURSOR, LIMIT, TEXT),
        refuses=UNKNOWN,
    ),
)
def list_contents(call: Call, kind: str) -> Page[shapes.ContentItem]:
    """One item per name, with its newest version."""
    wanted = kind_of(kind)
    return listed(call, wanted, f"contents:{wanted}", show=content_item)


@routes.get(
    "/{kind}/{namespace}/{name}",
    Operation("Read a content", answer=shapes.ContentDetail, any_of=READ, refuses=UNKNOWN),
)
def read_content(call: Call, kind: str, namespace: str, name: str) -> shapes.ContentDetail:
    """What its newest version is, and who may read it."""
    wanted, full = kind_of(kind), full_name(namespace, name)
    with call.services.database.read() as connection:
        row = one_listed(call, connection, wanted, full)
        granted = store.list_grants(connection, wanted, full)
    return shapes.ContentDetail(
        **item_values(row),
        project_id=row.content.project_id,
        projects=granted,
        about=json.loads(row.newest.about),
    )


@routes.get(
    "/{kind}/{namespace}/{name}/versions",
    Operation(
        "List the versions of a content, newest first",
        answer=Page[shapes.ContentVersionItem],
        any_of=READ,
        params=(CURSOR, LIMIT),
        refuses=UNKNOWN,
    ),
)
def list_versions(call: Call, kind: str, namespace: str, name: str) -> Page[shapes.ContentVersionItem]:
    """Withdrawn ones are not among them."""
    return version_page(call, kind_of(kind), full_name(namespace, name), show=version_item)


@routes.post(
    "/{kind}/{namespace}/{name}/versions",
    Operation(
        "Publish a version of a content",
        answer=shapes.ContentVersionDetail,
        any_of=PUBLISH,
        takes=requests.PublishContent,
        max_body=lambda services: services.bodies.revision,
        answers={201: "Published.", 200: "This version was published before with the same manifest."},
        refuses=(
            *UNKNOWN,
            "INVALID_CONTENT",
            "CONTENT_HASH_MISMATCH",
            "CONTENT_VERSION_EXISTS",
            "CONTENT_QUOTA_EXCEEDED",
            "PROJECT_NOT_FOUND",
            "NAMESPACE_TAKEN",
            "BLOB_NOT_FOUND",
            "BLOB_BEING_DELETED",
            "STORAGE_FULL",
            "STORAGE_UNAVAILABLE",
            "UPLOAD_BUSY",
        ),
    ),
)
def publish_version(call: Call, kind: str, namespace: str, name: str) -> Reply:
    """A version never changes. All its files were uploaded as blobs before.

    With the digest alone a manifest that the server has is published; else send it along, or upload a long
    one as a blob first. `missing` of a refusal names blobs to upload.
    """
    wanted = kind_of(kind)
    services = call.services
    full = f"{namespace}/{name}"
    version, created = publish(
        services.database, services.blobs, call.principal, wanted, full, call.object(), at=call.now
    )
    with services.database.read() as connection:
        content = store.find_content(connection, wanted, full)
        assert content is not None  # noqa: S101 - published above; contents are never removed
        item = version_detail(connection, version, content)
    return Reply(item, 201 if created else 200)


@routes.get(
    "/{kind}/{namespace}/{name}/versions/{version}",
    Operation(
        "Read a version of a content", answer=shapes.ContentVersionDetail, any_of=READ, refuses=UNKNOWN
    ),
)
def read_version(
    call: Call, kind: str, namespace: str, name: str, version: str
) -> shapes.ContentVersionDetail:
    """By its label or its manifest's digest."""
    with call.services.database.read() as connection:
        found, content = readable_version(
            call, connection, kind_of(kind), full_name(namespace, name), version
        )
        return version_detail(connection, found, content)


@routes.get(
    "/{kind}/{namespace}/{name}/versions/{version}/files",
    Operation(
        "List the files of a version",
        answer=Page[shapes.ContentFileItem],
        any_of=READ,
        params=(CURSOR, LIMIT),
        refuses=(*UNKNOWN, "CONTENT_DAMAGED", "STORAGE_UNAVAILABLE"),
    ),
)
def list_files(
    call: Call, kind: str, namespace: str, name: str, version: str
) -> Page[shapes.ContentFileItem]:
    """In the order of their paths' bytes."""
    limit = page_limit(call.query, MAX_PAGE)
    found = _found(call, kind, namespace, name, version)
    use = f"files:{found.manifest_sha256}"
    offset = open_cursor(call.services.seal, use, call.query)
    files, following = stored_tree(call, found).page(offset, limit)
    return Page[shapes.ContentFileItem](
        items=[file_item(file) for file in files],
        next_cursor=None if following is None else call.services.seal.seal(use, following),
    )


@routes.get(
    "/{kind}/{namespace}/{name}/versions/{version}/files/{path:path}",
    Operation(
        "Read a file of a version",
        any_of=READ,
        params=(RANGE, IF_NONE_MATCH),
        refuses=_BYTES,
        answers={200: "The whole file; `ETag` is its SHA-256.", 206: "The range asked for."},
        plain_answers={304: "The caller has it already.", 416: "The range lies outside the file."},
        content="application/octet-stream",
    ),
)
def read_file(call: Call, kind: str, namespace: str, name: str, version: str, path: str) -> Response:
    """The published bytes."""
    found = _found(call, kind, namespace, name, version)
    file = stored_tree(call, found).find(path)
    if file is None:
        raise Refusal.of("NOT_FOUND", f"{found.uri} has no file `{path[:200]}`", path="path")
    disposition = f"attachment; filename*=UTF-8''{quote(path.rsplit('/', 1)[-1])}"
    hit = damage.of_version(call.services.blobs, found, path=path)
    return content_bytes(call, file.sha256, file.size, hit, {"Content-Disposition": disposition})


@routes.get(
    "/{kind}/{namespace}/{name}/versions/{version}/manifest",
    Operation(
        "Read the manifest of a version",
        any_of=READ,
        params=(RANGE, IF_NONE_MATCH),
        refuses=(*UNKNOWN, "CONTENT_DAMAGED", "STORAGE_UNAVAILABLE"),
        answers={200: "Canonical JSON; its SHA-256 names the content.", 206: "The range asked for."},
        plain_answers={304: "The caller has it already.", 416: "The range lies outside the manifest."},
    ),
)
def read_manifest(call: Call, kind: str, namespace: str, name: str, version: str) -> Response:
    """Every file with its size and SHA-256, and what the publisher says."""
    found = _found(call, kind, namespace, name, version)
    hit = damage.of_version(call.services.blobs, found)
    return content_bytes(call, found.manifest_sha256, None, hit, media_type="application/json")


@routes.get(
    "/{kind}/{namespace}/{name}/versions/{version}/blobs/{sha256}",
    Operation(
        "Read a file of a version by its digest",
        any_of=READ,
        params=(RANGE, IF_NONE_MATCH),
        refuses=_BYTES,
        answers={200: "The bytes; `ETag` is their SHA-256.", 206: "The range asked for."},
        plain_answers={304: "The caller has it already.", 416: "The range lies outside the bytes."},
        content="application/octet-stream",
    ),
)
def read_blob(call: Call, kind: str, namespace: str, name: str, version: str, sha256: str) -> Response:
    """For clients that read the manifest: nothing has to be searched in it."""
    with call.services.database.read() as connection:
        found, _ = readable_version(call, connection, kind_of(kind), full_name(namespace, name), version)
        size = store.blob_size(connection, found.manifest_sha256, sha256)
    if size is None:
        raise Refusal.of("NOT_FOUND", f"{found.uri} holds no blob `{sha256[:80]}`", path="sha256")
    return content_bytes(call, sha256, size, damage.of_version(call.services.blobs, found, sha256=sha256))


@routes.post(
    "/{kind}/{namespace}/{name}/versions/{version}/blobs",
    Operation(
        "Read several small files of a version by their digests",
        any_of=READ,
        takes=requests.ReadBlobs,
        max_body=lambda services: services.bodies.other,
        refuses=(*_BYTES, "INVALID_SPEC"),
        content="application/octet-stream",
    ),
)
def read_blobs(call: Call, kind: str, namespace: str, name: str, version: str) -> Response:
    """For each digest, in the order asked, a line with it and the size, and the bytes, as `POST blobs` takes.

    At most 200 files and 8 MiB. A request for each of ten thousand files takes longer than their bytes.
    """
    body = Body(call.object())
    body.known(["sha256"])
    asked = list(dict.fromkeys(body.words("sha256")))
    if not asked or len(asked) > MAX_BATCH:
        body.fault("sha256", f"must hold 1 to {MAX_BATCH} digests")
    body.finish()
    with call.services.database.read() as connection:
        found, _ = readable_version(call, connection, kind_of(kind), full_name(namespace, name), version)
        sizes = store.blob_sizes(connection, found.manifest_sha256, asked)
    if unknown := next((digest for digest in asked if digest not in sizes), None):
        raise Refusal.of("NOT_FOUND", f"{found.uri} holds no blob `{unknown[:80]}`", path="sha256")
    if sum(sizes.values()) > MAX_BATCH_BYTES:
        said = f"these have {sum(sizes.values())} bytes together; at most {MAX_BATCH_BYTES}"
        raise Refusal.of("INVALID_SPEC", said, path="sha256")
    packed = bytearray()
    for digest in asked:
        packed += b"%s %d\n" % (digest.encode(), sizes[digest])
        hit = damage.of_version(call.services.blobs, found, sha256=digest)
        packed += whole_blob(call, digest, sizes[digest], hit)
    return Response(bytes(packed), media_type="application/octet-stream")


@routes.put(
    "/{kind}/{namespace}/{name}/visibility",
    Operation(
        "Decide who may read a content",
        answer=shapes.ContentVisibility,
        any_of=PUBLISH,
        takes=requests.SetVisibility,
        max_body=lambda services: services.bodies.other,
        refuses=(*UNKNOWN, "INVALID_SPEC", "PROJECT_NOT_FOUND"),
    ),
)
def set_visibility(call: Call, kind: str, namespace: str, name: str) -> shapes.ContentVisibility:
    """Revoking access refuses new submissions and Trials that wait; those that started go on (A2)."""
    wanted, full = kind_of(kind), full_name(namespace, name)
    body = Body(call.object())
    word, projects = visibility_of(body)

    def change(connection: Connection) -> None:
        own_content(call, connection, wanted, full)
        for project in projects:
            access.get_project(connection, project)
        store.set_visibility(connection, wanted, full, word, projects)

    call.services.database.write(change)
    call.services.wake()
    return shapes.ContentVisibility.model_validate(
        {"kind": wanted.value, "name": full, "visibility": word, "projects": projects}
    )


@routes.delete(
    "/{kind}/{namespace}/{name}/versions/{version}",
    Operation(
        "Withdraw a version of a content",
        answer=shapes.ContentWithdrawn,
        any_of=PUBLISH,
        refuses=UNKNOWN,
    ),
)
def withdraw(call: Call, kind: str, namespace: str, name: str, version: str) -> shapes.ContentWithdrawn:
    """It is no longer found, and Trials that wait for it will not start; a digest withdraws all its labels.

    Publishing the same manifest under the same label brings it back.
    """
    wanted, full, at = kind_of(kind), full_name(namespace, name), call.now
    ref = plain_ref(version)

    def change(connection: Connection) -> list[str]:
        own_content(call, connection, wanted, full)
        labels = store.withdraw(connection, wanted, full, ref, at=at)
        if not labels:
            raise not_found(*unknown_version(connection, wanted, full, ref))
        return labels

    labels = call.services.database.write(change)
    call.services.wake()
    return shapes.ContentWithdrawn.model_validate({"kind": wanted.value, "name": full, "withdrawn": labels})


def _found(call: Call, kind: str, namespace: str, name: str, version: str) -> ContentVersion:
    with call.services.database.read() as connection:
        return readable_version(call, connection, kind_of(kind), full_name(namespace, name), version)[0]
