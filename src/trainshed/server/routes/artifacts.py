"""Artifacts: listing and downloading declared outputs (contract E b6)."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

from starlette.responses import Response

from trainshed.content.blobs import BlobStore
from trainshed.control.artifacts import delete_artifacts, would_delete
from trainshed.model.access import Permission
from trainshed.model.errors import Refusal
from trainshed.model.globs import OutputPatterns, pattern_fault
from trainshed.server import damage
from trainshed.server.damage import Hit
from trainshed.server.documents import CURSOR, LIMIT, Param
from trainshed.server.endpoints import Call, Operation, Routes
from trainshed.server.pages import MAX_PAGE, cut_page, open_cursor, page_limit
from trainshed.server.ranges import download
from trainshed.server.routes.jobs import READ
from trainshed.server.shapes import jobs as shapes
from trainshed.server.shapes.common import Page
from trainshed.server.views import artifact_view
from trainshed.store import jobs as store
from trainshed.store.records import Artifact

routes = Routes("artifacts")
job_routes = Routes("artifacts")

RANGE = Param("Range", {"type": "string"}, "One byte range, e.g. `bytes=0-1023`.", where="header")
IF_NONE_MATCH = Param("If-None-Match", {"type": "string"}, "An ETag: 304 if it still holds.", where="header")
CHUNK_BYTES = 1 << 20
_DELETE = (Permission.CONTENT_PUBLISH,)
_DELETE_REFUSES = ("RESOURCE_IN_USE", "INVALID_REQUEST")
_WHICH = (
    Param(
        "name",
        {"type": "string"},
        "Only those whose names match this pattern, as in `outputs` of Runners.",
        refuses=("INVALID_REQUEST",),
    ),
    Param(
        "dry_run",
        {"type": "string", "enum": ["true", "false"]},
        "Only say what would be deleted.",
        refuses=("INVALID_REQUEST",),
    ),
)


@routes.get(
    "/{trial_id}/artifacts",
    Operation(
        "List a Trial's Artifacts",
        answer=Page[shapes.Artifact],
        any_of=READ,
        params=(CURSOR, LIMIT),
        refuses=("TRIAL_NOT_FOUND",),
    ),
)
def list_artifacts(call: Call, trial_id: str) -> Page[shapes.Artifact]:
    """Declared outputs with upload state, size and SHA-256, in the order they were collected (E73)."""
    limit = page_limit(call.query, MAX_PAGE)
    use = f"artifacts:{trial_id}"
    after = open_cursor(call.services.seal, use, call.query)
    with call.services.database.read() as connection:
        store.get_trial(connection, call.project, trial_id, viewer=call.viewer)
        rows = store.list_artifacts(connection, trial_id, after=after, limit=limit + 1)
    return cut_page(
        call.services.seal,
        use,
        rows,
        limit,
        key=lambda artifact: artifact.id,
        show=lambda kept: [artifact_view(artifact) for artifact in kept],
    )


@routes.delete(
    "/{trial_id}/artifacts",
    Operation(
        "Delete Artifacts of a Trial",
        answer=shapes.ArtifactsDeleted,
        any_of=_DELETE,
        params=_WHICH,
        refuses=("TRIAL_NOT_FOUND", *_DELETE_REFUSES),
    ),
)
def delete_of_trial(call: Call, trial_id: str) -> shapes.ArtifactsDeleted:
    """Of one that has ended: all, or those with such names. They stay listed; repeatable.

    Their bytes go when nothing else needs them; a Checkpoint that is not deleted keeps its files.
    """
    with call.services.database.read() as connection:
        trial = store.get_trial(connection, call.project, trial_id, viewer=call.viewer)
    return _deleted(call, trial.job_id, trial.id)


@job_routes.delete(
    "/{job_id}/artifacts",
    Operation(
        "Delete Artifacts of a Job",
        answer=shapes.ArtifactsDeleted,
        any_of=_DELETE,
        params=_WHICH,
        refuses=("JOB_NOT_FOUND", *_DELETE_REFUSES),
    ),
)
def delete_of_job(call: Call, job_id: str) -> shapes.ArtifactsDeleted:
    """As of a Trial, of all Trials of a Job; refused, and nothing deleted, while one of them runs."""
    with call.services.database.read() as connection:
        job = store.get_job(connection, call.project, job_id, viewer=call.viewer)
    return _deleted(call, job.id, None)


def _deleted(call: Call, job_id: str, trial_id: str | None) -> shapes.ArtifactsDeleted:
    names = call.query.get("name")
    patterns = None
    if names is not None:
        if fault := pattern_fault(names):
            raise Refusal.of("INVALID_REQUEST", f"`name` {fault}", path="name")
        patterns = OutputPatterns([names])
    word = call.query.get("dry_run", "false")
    if word not in {"true", "false"}:
        raise Refusal.of("INVALID_REQUEST", "`dry_run` is true or false", path="dry_run")
    database = call.services.database
    if word == "true":
        found = would_delete(database, job_id, trial_id, patterns)
    else:
        actor = call.principal.actor
        found = delete_artifacts(database, job_id, trial_id, patterns, at=call.now, actor=actor)
    return shapes.ArtifactsDeleted(
        job_id=job_id,
        trial_id=trial_id,
        artifacts=found.count,
        size_bytes=found.bytes,
        kept_bytes=found.kept_bytes,
        dry_run=word == "true",
    )


@routes.get(
    "/{trial_id}/artifacts/{artifact_id}/content",
    Operation(
        "Download an Artifact",
        any_of=READ,
        params=(RANGE, IF_NONE_MATCH),
        answers={
            200: "The whole content; `ETag` is its SHA-256.",
            206: "The range asked for.",
        },
        plain_answers={304: "The caller has it already.", 416: "The range lies outside the content."},
        refuses=(
            "TRIAL_NOT_FOUND",
            "ARTIFACT_NOT_FOUND",
            "ARTIFACT_NOT_READY",
            "CONTENT_DAMAGED",
            "STORAGE_UNAVAILABLE",
        ),
        content="application/octet-stream",
    ),
)
def download_artifact(call: Call, trial_id: str, artifact_id: str) -> Response:
    """The bytes, directly; one byte range may be asked for."""
    with call.services.database.read() as connection:
        trial = store.get_trial(connection, call.project, trial_id, viewer=call.viewer)
        artifact = store.get_artifact(connection, trial_id, artifact_id)
    sha256 = artifact.sha256
    if artifact.upload_state != "uploaded" or sha256 is None:
        raise _not_ready(artifact, trial.job_id)
    hit = damage.of_output("Trial", artifact.name, trial.job_id)
    return stored_file(call, sha256, artifact.size, artifact.name, hit)


def _not_ready(artifact: Artifact, job_id: str) -> Refusal:
    """The refusal of bytes that are not there; what is listed is known, so it is no 404 (contract E b6)."""
    if artifact.upload_state != "deleted":
        said = f"its upload_state is `{artifact.upload_state}`"
        return Refusal.of("ARTIFACT_NOT_READY", said, path="artifact_id")
    said = f"`{artifact.name}` was {artifact.deletion or 'deleted'}"
    hint = f"Its bytes are given up. `trainshed job rerun {job_id}` makes it anew."
    return Refusal.of("ARTIFACT_NOT_READY", said, path="artifact_id", hint=hint)


def stored_file(call: Call, sha256: str, expected: int, path: str, hit: Hit) -> Response:
    """The ``expected`` bytes of a stored file, or the range of them that is asked for, under its name.

    Raises `Refusal` as ``hit`` does where they are damaged.
    """
    blobs = call.services.blobs
    size = hit.size(blobs, sha256, expected)
    name = quote(path.rsplit("/", 1)[-1])
    return download(
        call.request.headers,
        sha256=sha256,
        size=size,
        head=call.head,
        chunks=lambda start, length: blob_chunks(blobs, sha256, start, length),
        extra={"Content-Disposition": f"attachment; filename*=UTF-8''{name}"},
    )


def blob_chunks(blobs: BlobStore, sha256: str, start: int, length: int) -> Iterator[bytes]:
    """The bytes of a blob in pieces that are worth a thread's while."""
    with blobs.open(sha256, start, length) as reader:
        yield from reader.chunks(CHUNK_BYTES)
