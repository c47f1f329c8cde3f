"""When a person is asked: the approval rules of the project (contract G, c.1)."""

from __future__ import annotations

import json

from trainshed.model.access import Permission
from trainshed.model.errors import FaultList
from trainshed.policy import approval
from trainshed.server.endpoints import Call, Operation, Routes
from trainshed.server.routes.scripts import READ, SOURCE, caller, peer, small
from trainshed.server.script_views import g_time
from trainshed.server.shapes import requests
from trainshed.server.shapes import scripts as shapes
from trainshed.store import policies as store

routes = Routes("approval policy")

_ADMIN = (Permission.ADMIN,)


@routes.get("", Operation("Read the approval rules", answer=shapes.ApprovalPolicy, any_of=READ))
def read_policy(call: Call) -> shapes.ApprovalPolicy:
    """All rules as they count now, and which of them the project changed."""
    return _shown(call)


def _shown(call: Call) -> shapes.ApprovalPolicy:
    with call.services.database.read() as connection:
        row = store.find(connection, call.project)
    changed = {} if row is None else dict(json.loads(row.document))
    return shapes.ApprovalPolicy(
        policy=approval.as_document(approval.read(changed, FaultList())),
        changed=changed,
        updated_at=g_time(row.updated_at) if row else None,
        updated_by=row.updated_by if row else None,
    )


@routes.put(
    "",
    Operation(
        "Set the approval rules",
        answer=shapes.ApprovalPolicy,
        any_of=_ADMIN,
        params=(SOURCE,),
        takes=requests.PutApprovalPolicy,
        max_body=small,
        refuses=("FORBIDDEN", "INVALID_SPEC"),
    ),
)
def put_policy(call: Call) -> shapes.ApprovalPolicy:
    """For people who administer the project. Keys that are left out have their defaults.

    On a person's own server the caller must be in the foreground of a terminal, as for an answer. Questions
    that are open stay open: a change answers none of them (c.5).
    """
    call.services.scripts.approving.require_person(caller(call), peer(call))
    document, faults = call.object(), FaultList()
    approval.read(document, faults)
    faults.raise_if_any()
    at, by = call.now, call.principal.actor
    call.services.database.write(lambda c: store.put(c, call.project, document, at=at, by=by))
    call.services.wake()
    return _shown(call)


@routes.delete(
    "",
    Operation(
        "Reset the approval rules",
        answer=shapes.ApprovalPolicy,
        any_of=_ADMIN,
        params=(SOURCE,),
        refuses=("FORBIDDEN",),
    ),
)
def reset_policy(call: Call) -> shapes.ApprovalPolicy:
    """Back to the defaults; for people who administer the project."""
    call.services.scripts.approving.require_person(caller(call), peer(call))
    call.services.database.write(lambda c: store.remove(c, call.project))
    call.services.wake()
    return _shown(call)
