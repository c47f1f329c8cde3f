"""Every refusal and failure as one JSON shape (`trainshed.model.errors.Refusal.body`)."""

from __future__ import annotations

import structlog
from pydantic_core import to_json
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from trainshed.content.blobs import DigestMismatch, StoreFull, StoreUnavailable
from trainshed.content.uploads import DiskReserved
from trainshed.model.errors import Refusal
from trainshed.model.words import bytes_text
from trainshed.server.limits import BodyStalled
from trainshed.store.database import DatabaseFull, DatabaseUnavailable

log = structlog.get_logger("trainshed.http")


def refusal_response(refusal: Refusal, request_id: str) -> Response:
    """The answer for a refusal."""
    headers = {}
    if refusal.retry_after is not None:
        headers["Retry-After"] = str(refusal.retry_after)
    if refusal.code == "AUTHENTICATION_REQUIRED":
        headers["WWW-Authenticate"] = "Bearer"
    if refusal.code == "REQUEST_TOO_LARGE":
        headers["Connection"] = "close"
    body = to_json({**refusal.body(), "request_id": request_id})
    return Response(body, refusal.status, headers, "application/json")


def refusal_of(error: Exception, request_id: str) -> Refusal:
    """What the caller is told of an error: refusals as they are, outages by name, anything else as ours."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, DiskReserved):
        log.warning("uploads are refused: the rest of the disk is left to everything else", reason=str(error))
        return Refusal.of(
            "STORAGE_FULL",
            f"{bytes_text(error.free)} are free on the server's disk, and uploads leave "
            f"{bytes_text(error.reserve)} to all else (the server's setting `content.upload_reserve_bytes`)",
            hint="Free space in the server's data folder, or lower `content.upload_reserve_bytes`.",
            free_bytes=error.free,
            upload_reserve_bytes=error.reserve,
        )
    for kind, code, message in _OUTAGES:
        if isinstance(error, kind):
            log.warning(message, request_id=request_id, reason=str(error))
            return Refusal.of(code, message)
    log.error("unhandled error", request_id=request_id, exc_info=error)
    return Refusal.of("INTERNAL_ERROR", f"the server failed on this request ({request_id})")


_OUTAGES: tuple[tuple[type[Exception], str, str], ...] = (
    (BodyStalled, "INVALID_REQUEST", "the body did not go on in time"),
    (ClientDisconnect, "INVALID_REQUEST", "the connection ended before the body did"),
    (DatabaseFull, "STORAGE_FULL", "the disk under the server's database is full"),
    (DatabaseUnavailable, "DATABASE_UNAVAILABLE", "the database did not answer"),
    (StoreFull, "STORAGE_FULL", "the disk under the server's data folder is full"),
    (DigestMismatch, "CONTENT_DAMAGED", "stored bytes that this needs are damaged"),
    (StoreUnavailable, "STORAGE_UNAVAILABLE", "the server's data folder cannot be used"),
)


def error_response(error: Exception, request_id: str) -> Response:
    """The answer for any exception."""
    answer = refusal_response(refusal_of(error, request_id), request_id)
    if isinstance(error, BodyStalled):
        # What may still come of the body would be read as the next request.
        answer.headers["Connection"] = "close"
    return answer
