"""Which plugins this deployment allows: approving and revoking, by name and digest (E94, promise P13)."""

from __future__ import annotations

from trainshed.control.references import list_hint, unknown_version
from trainshed.model.content import ContentKind, plain_ref
from trainshed.model.errors import Refusal
from trainshed.server.content_views import PUBLISH, READ, UNKNOWN, approval_item, full_name, not_found
from trainshed.server.documents import CURSOR, LIMIT
from trainshed.server.endpoints import Call, Operation, Routes
from trainshed.server.pages import cut_page, open_cursor, page_limit
from trainshed.server.routes.scripts import SOURCE, caller, peer
from trainshed.server.shapes import contents as shapes
from trainshed.server.shapes.common import Page
from trainshed.store import contents as store
from trainshed.store import plugins
from trainshed.store.database import Connection
from trainshed.store.records import PluginApproval

routes = Routes("plugins")

_OWNER_KEY = (
    "Use the owner key of the server, which its operator holds; no project admin can give that permission."
)
_OWN_TERMINAL = "Ask the user to run `trainshed plugin approve` in a terminal of their own."


@routes.get(
    "/approvals",
    Operation(
        "List approved and revoked plugins, the newest first",
        answer=Page[shapes.PluginApproval],
        any_of=READ,
        params=(CURSOR, LIMIT),
    ),
)
def list_approvals(call: Call) -> Page[shapes.PluginApproval]:
    """What this deployment allows, and what it allowed once, of what the caller may read (E94)."""
    limit = page_limit(call.query)
    after = open_cursor(call.services.seal, "approvals", call.query)
    with call.services.database.read() as connection:
        rows = plugins.list_approvals(
            connection,
            reader=None if call.principal.owner else call.principal.project_id,
            after=None if after is None else (after[0], after[1], after[2]),
            limit=limit + 1,
        )
    return cut_page(
        call.services.seal,
        "approvals",
        rows,
        limit,
        key=lambda row: [row.approved_at, row.name, row.manifest_sha256],
        show=lambda kept: [approval_item(row) for row in kept],
    )


_APPROVING = Operation(
    "Approve a plugin on this deployment",
    answer=shapes.PluginApproval,
    any_of=PUBLISH,
    params=(SOURCE,),
    refuses=(*UNKNOWN, "FORBIDDEN"),
)


@routes.put("/{namespace}/{name}/versions/{version}/approval", _APPROVING)
def approve(call: Call, namespace: str, name: str, version: str) -> shapes.PluginApproval:
    """With the owner key only. What is approved is the digest under this name, and nothing else.

    For people and services: refused for whatever an agent runs, also with the owner key.
    """
    full, at, by = _decider(call, namespace, name), call.now, call.principal.actor
    # Whoever can bind a package to a Job says yes to all that its code will do (P13).
    call.services.scripts.approving.require_no_agent(
        caller(call), peer(call), "which plugins are approved", _OWN_TERMINAL
    )
    ref = plain_ref(version)

    def change(connection: Connection) -> PluginApproval:
        found = store.find_version(connection, ContentKind.PLUGINS, full, ref)
        if found is None or found.withdrawn_at is not None:
            raise not_found(*_no_version(connection, full, ref))
        return plugins.approve_plugin(connection, full, found.manifest_sha256, at=at, by=by)

    return approval_item(call.services.database.write(change))


@routes.delete(
    "/{namespace}/{name}/versions/{version}/approval",
    Operation(
        "Revoke the approval of a plugin", answer=shapes.PluginApproval, any_of=PUBLISH, refuses=UNKNOWN
    ),
)
def revoke(call: Call, namespace: str, name: str, version: str) -> shapes.PluginApproval:
    """With the owner key only. Trials that wait with it will not start; running ones go on.

    An agent with that key may: it takes away only.
    """
    full, at, by = _decider(call, namespace, name), call.now, call.principal.actor
    ref = plain_ref(version)

    def change(connection: Connection) -> PluginApproval:
        found = store.find_version(connection, ContentKind.PLUGINS, full, ref)
        digest = ref if found is None else found.manifest_sha256
        revoked = plugins.revoke_plugin(connection, full, digest, at=at, by=by)
        if revoked is None:
            said = f"the Plugin {full}@{ref[:80]} was never approved"
            raise not_found(said, "List what was approved with `trainshed plugin approved`.")
        return revoked

    item = approval_item(call.services.database.write(change))
    call.services.wake()
    return item


def _no_version(connection: Connection, name: str, ref: str) -> tuple[str, str]:
    """Why there is no such version, and the hint; the owner key may read everything."""
    if store.find_content(connection, ContentKind.PLUGINS, name) is None:
        return f"there is no Plugin {name}", list_hint(ContentKind.PLUGINS)
    return unknown_version(connection, ContentKind.PLUGINS, name, ref)


def _decider(call: Call, namespace: str, name: str) -> str:
    """The plugin's name, for whoever may decide of it: the owner of the server."""
    if not call.principal.owner:
        said = "only the owner key approves and revokes plugins"
        raise Refusal.of("PERMISSION_DENIED", said, hint=_OWNER_KEY)
    return full_name(namespace, name)
