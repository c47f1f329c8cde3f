"""The catalogue: what an administrator declares, and the help about the task file (contract C1, C16)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pydantic_core import to_json
from starlette.responses import Response

from trainshed.control.training.channels import APPRISE_MISSING, apprise_is_there
from trainshed.model.errors import Refusal
from trainshed.model.training.catalog import ChannelType
from trainshed.model.training.catalog_document import to_document
from trainshed.model.training.explain import explain, field_names
from trainshed.model.training.schema import task_schema
from trainshed.server.bodies import Body
from trainshed.server.documents import Param
from trainshed.server.endpoints import Call, Operation, Routes
from trainshed.server.routes.jobs import READ
from trainshed.server.routes.places import ADMIN
from trainshed.server.shapes import places as shapes
from trainshed.server.shapes import requests
from trainshed.server.shapes.common import iso
from trainshed.store import catalogs

routes = Routes("catalog")

_EXPLAIN = ("`trainshed train explain", "`trainshed catalog explain")
NAME = Param(
    "name",
    {"type": "string"},
    "A field by its dotted name, as `instance.specs`; left out, the fields of a spec.",
    refuses=("NOT_FOUND",),
)


@routes.get("/catalog", Operation("Read the catalogue", answer=shapes.CatalogView, any_of=READ))
def read_catalog(call: Call) -> shapes.CatalogView:
    """What counts now; URLs of alarm channels are masked."""
    with call.services.database.read() as connection:
        revision, catalog = call.services.catalogs.current(connection)
        stored = catalogs.find(connection, revision) if revision else None
    return shapes.CatalogView(
        revision=revision,
        document=to_document(catalog, masked=True),
        applied_at=None if stored is None else iso(stored.applied_at),
        applied_by=None if stored is None else stored.applied_by,
    )


@routes.put(
    "/catalog",
    Operation(
        "Apply a catalogue",
        answer=shapes.AppliedCatalog,
        any_of=ADMIN,
        takes=requests.ApplyCatalog,
        max_body=lambda services: services.bodies.submission,
        refuses=("INVALID_SPEC", "PRECONDITION_FAILED"),
    ),
)
def apply_catalog(call: Call) -> shapes.AppliedCatalog:
    """The document becomes the whole catalogue; with `dry_run` it is only compared. For the owner key.

    A masked URL means the stored one. `expected_revision` refuses what somebody changed meanwhile.
    """
    if not call.principal.owner:
        raise Refusal.of("PERMISSION_DENIED", "only the owner key applies a catalogue: all projects share it")
    body = Body(call.object())
    body.known(["document", "expected_revision", "dry_run"])
    document = body.values.get("document")
    if not isinstance(document, dict):
        body.fault("document", "must be an object")
    if isinstance(document, dict):
        _refuse_what_cannot_be_sent(document, body)
    expected, dry_run = body.whole("expected_revision", 0, 2**31 - 1), body.boolean("dry_run")
    body.finish()
    try:
        applied = call.services.catalogs.apply(
            document, expected=expected, dry_run=dry_run, at=call.now, by=call.principal.actor
        )
    except Refusal as refusal:
        # Codes are shared with tasks, whose fields another command explains.
        faults = [replace(each, hint=each.hint.replace(*_EXPLAIN)) for each in refusal.faults]
        raise Refusal(faults, extra=refusal.extra) from refusal
    if applied.stored:
        call.services.outlook.forget()
        call.services.wake()
    changes = [shapes.CatalogChange(**_change(each.as_dict())) for each in applied.changes]
    return shapes.AppliedCatalog(revision=applied.revision, changes=changes, applied=applied.stored)


def _refuse_what_cannot_be_sent(document: dict[str, Any], body: Body) -> None:
    """A channel that this server has no program for would stay silent (C40)."""
    rows = document.get("alarm_channels")
    for place, row in enumerate(rows if isinstance(rows, list) else ()):
        if isinstance(row, dict) and row.get("type") == ChannelType.APPRISE and not apprise_is_there():
            body.faults.add(f"alarm_channels[{place}].type", "ALARM_CHANNEL_UNAVAILABLE", APPRISE_MISSING)


def _change(row: dict[str, str]) -> dict[str, Any]:
    return dict(row)


@routes.get("/train/schema", Operation("Read the JSON Schema of the task file", any_of=READ))
def read_schema(_: Call) -> Response:
    """JSON Schema 2020-12, for editors; what it refuses is refused by submission too, but not conversely."""
    return Response(to_json(task_schema()), media_type="application/json")


@routes.get(
    "/train/fields",
    Operation(
        "Explain fields of the task file",
        answer=shapes.FieldsHelp,
        any_of=READ,
        params=(NAME,),
        refuses=("NOT_FOUND",),
    ),
)
def read_fields(call: Call) -> shapes.FieldsHelp:
    """What each means, its limits, its default, and with which codes a wrong value is refused."""
    wanted = call.query.get("name")
    try:
        found = [explain(name) for name in (field_names() if wanted is None else (wanted,))]
    except ValueError as error:
        raise Refusal.of("NOT_FOUND", str(error), path="name") from None
    return shapes.FieldsHelp(items=[shapes.FieldHelp(**each.as_dict()) for each in found])
