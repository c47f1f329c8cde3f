"""The application: every operation under ``/v1`` and ``/api/v1``, those of Jobs under both spellings."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from functools import cache

from fastapi import FastAPI
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import ASGIApp

from trainshed.model.errors import Refusal
from trainshed.server import documents
from trainshed.server.errors import error_response, refusal_response
from trainshed.server.gate import Gate
from trainshed.server.routes import (
    admin,
    alarms,
    approval_policy,
    approvals,
    artifacts,
    blobs,
    catalog,
    checkpoints,
    content_admin,
    contents,
    datasets,
    gpu_secrets,
    job_events,
    jobs,
    logs,
    manifest,
    places,
    plugins,
    project,
    providers,
    publishing,
    runners,
    script_checkpoints,
    scripts,
    system,
    task_doors,
    task_logs,
    tasks,
    trials,
    validate,
)
from trainshed.server.services import Services

_METHOD_NOT_ALLOWED = 405
_JOB_ROUTES = (
    validate.routes,
    alarms.job_routes,
    jobs.routes,
    artifacts.job_routes,
    job_events.routes,
    logs.routes,
    manifest.routes,
)
# Before the Jobs' own: no Job is called `checkpoints`.
_CHECKPOINTS = (checkpoints.routes,)
_ROUTES = (
    ("/v1/jobs/checkpoints", _CHECKPOINTS),
    ("/v1/job/checkpoints", _CHECKPOINTS),
    ("/v1/jobs", _JOB_ROUTES),
    ("/v1/job", _JOB_ROUTES),
    ("/v1/trials", (trials.routes, artifacts.routes, checkpoints.trial_routes, logs.trial_routes)),
    ("/v1/tasks", (tasks.routes, task_logs.routes, task_doors.routes)),
    ("/v1/scripts", (scripts.routes, script_checkpoints.routes)),
    ("/v1/approvals", (approvals.routes,)),
    ("/v1/approval-policy", (approval_policy.routes,)),
    ("/v1/secrets", (gpu_secrets.routes,)),
    ("/v1/runners", (runners.routes, publishing.routes)),
    ("/v1/content", (blobs.routes,)),
    ("/v1/content/plugins", (plugins.routes,)),
    ("/v1/content", (contents.routes,)),
    ("/v1/datasets", (datasets.routes,)),
    ("/v1/admin", (admin.routes,)),
    ("/v1/admin/content", (content_admin.routes,)),
    ("/v1/alarms", (alarms.routes,)),
    ("/v1", (places.routes, catalog.routes, providers.routes)),
    ("/v1", (project.routes, system.routes, checkpoints.download_routes, checkpoints.operation_routes)),
)


def create_app(services: Services, *, public_only: bool = False) -> ASGIApp:
    """The ASGI application for these services; ``public_only`` leaves health and metrics alone.

    Streams need the lifespan events: they start what wakes followers.
    """

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await services.watch.start()
        yield
        await services.watch.stop()

    api = FastAPI(
        title="Trainshed",
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
        exception_handlers={HTTPException: _no_such_operation, Exception: _failed},
    )
    api.state.services = services
    system.public_routes.mount(api, "")
    for prefix, routers in () if public_only else _ROUTES:
        for each in routers:
            each.mount(api, prefix)

    @cache
    def openapi() -> bytes:
        return to_json(documents.build(api))

    api.state.openapi = openapi
    return Gate(api, services.limiter, services.http_metrics)


async def _no_such_operation(request: Request, error: Exception) -> Response:
    """404 and 405 of the router, in our shape."""
    request_id = request.scope["trainshed.request_id"]
    status = error.status_code if isinstance(error, HTTPException) else 0
    if status == _METHOD_NOT_ALLOWED:
        allowed = ", ".join(_methods(request))
        refusal = Refusal.of(
            "METHOD_NOT_ALLOWED", f"{request.method[:20]} is not offered here; {allowed} are", path="method"
        )
        answer = refusal_response(refusal, request_id)
        answer.headers["Allow"] = allowed
        return answer
    return refusal_response(Refusal.of("NOT_FOUND", "this server serves no such path"), request_id)


async def _failed(request: Request, error: Exception) -> Response:
    return error_response(error, request.scope["trainshed.request_id"])


def _methods(request: Request) -> list[str]:
    """Methods that the path is served with."""
    found: set[str] = set()
    for route in request.app.routes:
        match, _ = route.matches({**request.scope, "method": "GET"})
        if match is not Match.NONE:
            found |= route.methods
    return sorted(found | ({"HEAD"} if "GET" in found else set()))
