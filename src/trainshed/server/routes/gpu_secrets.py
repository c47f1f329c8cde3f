"""Secrets that people keep for their Jobs: names are listed, values are never shown (contract G, h)."""

from __future__ import annotations

from trainshed.server.bodies import Body
from trainshed.server.endpoints import Call, Operation, Routes
from trainshed.server.routes.scripts import RUN, SOURCE, caller, peer, small
from trainshed.server.script_views import g_time_text
from trainshed.server.shapes import requests
from trainshed.server.shapes import scripts as shapes
from trainshed.server.shapes.common import Empty
from trainshed.store import user_secrets as store

routes = Routes("secrets")


@routes.get("", Operation("List the names of your secrets", answer=shapes.SecretNames, any_of=RUN))
def list_secrets(call: Call) -> shapes.SecretNames:
    """Those of the caller in this project."""
    who = caller(call)
    with call.services.database.read() as connection:
        rows = store.names(connection, who.project_id, who.person)
    return shapes.SecretNames(
        items=[shapes.SecretName(name=row.name, updated_at=g_time_text(row.updated_at)) for row in rows]
    )


@routes.put(
    "/{secret}",
    Operation(
        "Keep a secret",
        answer=shapes.SecretName,
        any_of=RUN,
        params=(SOURCE,),
        takes=requests.PutSecret,
        max_body=small,
        refuses=("FORBIDDEN", "INVALID_SPEC"),
    ),
)
def put_secret(call: Call, secret: str) -> shapes.SecretName:
    """For people only. It is kept sealed; Jobs of the same person get it where they list its name."""
    _require_no_agent(call)
    body = Body(call.object())
    body.known(["value"])
    body.finish()
    row = call.services.scripts.secrets.put(caller(call), secret, body.values.get("value"))
    return shapes.SecretName(name=row.name, updated_at=g_time_text(row.updated_at))


@routes.delete(
    "/{secret}",
    Operation(
        "Forget a secret",
        answer=Empty,
        any_of=RUN,
        params=(SOURCE,),
        refuses=("FORBIDDEN", "SECRET_NOT_FOUND"),
    ),
)
def delete_secret(call: Call, secret: str) -> Empty:
    """For people only. Jobs that list it and have not started will fail."""
    _require_no_agent(call)
    call.services.scripts.secrets.remove(caller(call), secret)
    return Empty()


def _require_no_agent(call: Call) -> None:
    hint = "Ask the user to run `gpu secrets set NAME` in a terminal of their own."
    call.services.scripts.approving.require_no_agent(caller(call), peer(call), "secrets", hint)
