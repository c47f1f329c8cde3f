"""Publishing Runners: Revisions with proof, visibility, withdrawal (E8, promise P7)."""

from __future__ import annotations

from trainshed.model.access import Permission
from trainshed.model.errors import Refusal
from trainshed.model.selectors import name_part_fault
from trainshed.server.bodies import Body, visibility_of
from trainshed.server.endpoints import Call, Operation, Reply, Routes
from trainshed.server.publisher import publish
from trainshed.server.routes.runners import runner_item
from trainshed.server.shapes import requests
from trainshed.server.shapes import runners as shapes
from trainshed.store import access
from trainshed.store import runners as store
from trainshed.store.database import Connection
from trainshed.store.records import Runner

routes = Routes("runners")

PUBLISH = (Permission.RUNNER_PUBLISH,)


@routes.post(
    "/{namespace}/{name}/revisions",
    Operation(
        "Publish a Runner Revision",
        answer=shapes.RunnerItem,
        any_of=PUBLISH,
        takes=requests.PublishRevision,
        max_body=lambda services: services.bodies.revision,
        answers={201: "Published.", 200: "This commit was published before with the same bytes."},
        refuses=(
            "INVALID_RUNNER",
            "RUNNER_HASH_MISMATCH",
            "NAMESPACE_TAKEN",
            "BLOB_NOT_FOUND",
            "STORAGE_UNAVAILABLE",
        ),
    ),
)
def publish_revision(call: Call, namespace: str, name: str) -> Reply:
    """Freezes a directory of a git commit; a published Revision never changes.

    The git objects sent prove that the commit holds exactly these files.
    """
    if fault := name_part_fault("namespace", namespace) or name_part_fault("name", name):
        raise Refusal.of("INVALID_RUNNER", fault, path="name")
    services = call.services
    published = publish(
        services.database,
        services.blobs,
        call.principal,
        f"{namespace}/{name}",
        call.object(),
        at=call.now,
    )
    item = runner_item(published.revision, published.runner.visibility)
    return Reply(item, 201 if published.created else 200)


@routes.put(
    "/{namespace}/{name}/visibility",
    Operation(
        "Decide who may read a Runner",
        answer=shapes.RunnerVisibility,
        any_of=PUBLISH,
        takes=requests.SetVisibility,
        max_body=lambda services: services.bodies.other,
        refuses=("RUNNER_NOT_FOUND", "INVALID_SPEC", "PROJECT_NOT_FOUND"),
    ),
)
def set_visibility(call: Call, namespace: str, name: str) -> shapes.RunnerVisibility:
    """Revoking access refuses new submissions and retries; Trials that started go on (E30, A2)."""
    visibility, projects = visibility_of(Body(call.object()))
    full = f"{namespace}/{name}"

    def change(connection: Connection) -> None:
        _own(call, connection, full)
        for project in projects:
            access.get_project(connection, project)
        store.set_visibility(connection, full, visibility, projects)

    call.services.database.write(change)
    return shapes.RunnerVisibility.model_validate(
        {"name": full, "visibility": visibility, "projects": projects}
    )


@routes.delete(
    "/{namespace}/{name}/{revision}",
    Operation(
        "Withdraw a Runner Revision",
        answer=shapes.Withdrawn,
        any_of=PUBLISH,
        refuses=("RUNNER_NOT_FOUND",),
    ),
)
def withdraw(call: Call, namespace: str, name: str, revision: str) -> shapes.Withdrawn:
    """It is no longer found; queued Trials of it will not start, running ones go on.

    Publishing the same commit again brings it back.
    """
    full, at = f"{namespace}/{name}", call.now

    def change(connection: Connection) -> bool:
        _own(call, connection, full)
        return store.withdraw(connection, full, revision, at=at)

    if not call.services.database.write(change):
        raise Refusal.of("RUNNER_NOT_FOUND", f"there is no Revision `{revision[:80]}`", path="revision")
    call.services.wake()
    return shapes.Withdrawn(selector=f"{full}@{revision}", withdrawn=True)


def _own(call: Call, connection: Connection, name: str) -> Runner:
    """The Runner, if the caller's project owns it; others' are not found."""
    runner = store.find_runner(connection, name)
    if runner is None or not (call.principal.owner or runner.project_id == call.project):
        raise Refusal.of("RUNNER_NOT_FOUND", f"your project has no Runner `{name[:200]}`", path="name")
    return runner
