"""A Job's manifest: everything that was frozen, with its digest."""

from __future__ import annotations

from starlette.responses import Response

from trainshed.model.strict_json import canonical_json
from trainshed.server.endpoints import Call, Operation, Routes
from trainshed.server.provenance import manifest_of
from trainshed.server.routes.jobs import READ
from trainshed.server.shapes.manifest import JobManifest
from trainshed.store import jobs

routes = Routes("jobs")


@routes.get(
    "/{job_id}/manifest",
    Operation("Read a Job's manifest", answer=JobManifest, any_of=READ, refuses=("JOB_NOT_FOUND",)),
)
def read_manifest(call: Call, job_id: str) -> Response:
    """One canonical JSON document. `digest` is the SHA-256 of `frozen`, and never changes.

    `frozen` is what was accepted and what runs: Runner files, image, profile, content, Checkpoint, each by
    digest; of a packed project its spec with names of secrets, of a training task its effective spec without
    hidden values. `outcome` is what came of it so far, with each Attempt.
    """
    with call.services.database.snapshot() as connection:
        document = manifest_of(connection, jobs.get_job(connection, call.project, job_id, viewer=call.viewer))
    return Response(canonical_json(document), media_type="application/json")
