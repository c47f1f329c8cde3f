"""Health, metrics, the OpenAPI document, the machine."""

from __future__ import annotations

import json
import shutil
from http import HTTPStatus

from prometheus_client import REGISTRY, generate_latest
from starlette.responses import Response

from trainshed import __version__
from trainshed.control.fleet import decode_nodes
from trainshed.model.access import Permission
from trainshed.model.resources import Amounts
from trainshed.server.endpoints import Call, Operation, Reply, Routes
from trainshed.server.metrics import state_metrics
from trainshed.server.shapes import system as shapes
from trainshed.store import jobs, queue, settings
from trainshed.store.database import DatabaseUnavailable

public_routes = Routes("system")
routes = Routes("system")


@public_routes.get("/healthz", Operation("Is the process alive", answer=shapes.Health, public=True))
def healthz(call: Call) -> shapes.Health:
    """Says only that requests are answered."""
    return shapes.Health()


@public_routes.get(
    "/readyz",
    Operation(
        "Is the server ready",
        answer=shapes.Readiness,
        public=True,
        answers={200: "Ready.", 503: "Not ready; `checks` says why."},
    ),
)
def readyz(call: Call) -> Reply:
    """The database answers, the data folder can be written, the controller has looked once."""
    checks = {"database": "ok", **call.services.ready_checks()}
    try:
        call.services.database.check_file()
        with call.services.database.read() as connection:
            settings.get(connection, settings.INSTANCE_ID)
    except DatabaseUnavailable as error:
        checks["database"] = f"does not answer: {error}"
    ready = all(said == "ok" for said in checks.values())
    status = HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE
    return Reply(shapes.Readiness(status="ready" if ready else "not ready", checks=checks), status)


@public_routes.get(
    "/metrics",
    Operation("Prometheus metrics", public=True, content="text/plain; version=0.0.4; charset=utf-8"),
)
def metrics(call: Call) -> Response:
    """Queue, starts, ends, durations, leaks, HTTP latencies."""
    services = call.services
    with services.database.read() as connection:
        state = state_metrics(connection)
    text = (
        generate_latest(REGISTRY).decode() + state + services.http_metrics.text() + services.extra_metrics()
    )
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


@public_routes.get("/openapi.json", Operation("This document", public=True))
def openapi(call: Call) -> Response:
    """OpenAPI 3.1."""
    return Response(call.request.app.state.openapi(), media_type="application/json")


@routes.get(
    "/system",
    Operation(
        "What the server runs on",
        answer=shapes.System,
        any_of=(Permission.TRAINING_READ, Permission.TRAINING_RUN, Permission.ADMIN),
    ),
)
def read_system(call: Call) -> shapes.System:
    """Nodes with totals and free amounts, enforcement of limits, database, data folder."""
    services = call.services
    with services.database.read() as connection:
        nodes = decode_nodes(settings.get(connection, settings.NODES))
        facts = json.loads(settings.get(connection, settings.MACHINE) or "{}")
        held = queue.unreleased(connection)
        states = jobs.count_by_state(connection)
    views = []
    for node in nodes:
        used = sum((each.amounts for each in held if each.node == node.name), Amounts())
        views.append(
            shapes.SystemNode(
                name=node.name,
                gpus=[
                    shapes.SystemGpu(
                        index=gpu.index,
                        model=gpu.model,
                        uuid=gpu.uuid,
                        memory_mb=gpu.memory_mb,
                        simulated=gpu.simulated,
                    )
                    for gpu in node.gpus
                ],
                simulated=node.simulated,
                total=_amounts(node.amounts),
                free=_amounts(node.amounts - used),
            )
        )
    machine = services.machine
    disk = shutil.disk_usage(machine.data_dir)
    return shapes.System.model_validate(
        {
            "version": __version__,
            "role": machine.role,
            "database": services.database.dialect,
            "data_folder": shapes.DataFolder(
                path=str(machine.data_dir), free_bytes=disk.free, total_bytes=disk.total
            ),
            "content_store": shapes.ContentStore.model_validate(
                {"kind": machine.content.scheme, "place": machine.content.place}
            ),
            "nodes": views,
            "simulated": any(node.simulated for node in nodes),
            "enforcement": facts.get("enforcement", {}),
            "isolation": facts.get("isolation", "unknown: no controller has run yet"),
            "images": shapes.SystemImages(
                runtime=facts.get("image_runtime"), reason=facts.get("images", "no controller has run yet")
            ),
            "queue": states,
        }
    )


def _amounts(amounts: Amounts) -> shapes.SystemAmounts:
    return shapes.SystemAmounts(
        gpus=amounts.gpus,
        cpus=amounts.cpus,
        memory_mb=amounts.memory_mb,
        storage_mb=amounts.storage_mb,
        shm_mb=amounts.shm_mb,
    )
