"""Runners: reading and listing what the caller may read (contract E b8, E5, E7, E9)."""

from __future__ import annotations

import json
from typing import Any

from starlette.responses import Response

from trainshed.control.snapshots import manifest_files
from trainshed.model.access import Permission
from trainshed.model.errors import Refusal
from trainshed.model.runner import definition_from_document
from trainshed.model.selectors import Selector
from trainshed.server import damage
from trainshed.server.documents import CURSOR, LIMIT
from trainshed.server.endpoints import Call, Operation, Routes
from trainshed.server.pages import cut_page, open_cursor, page_limit
from trainshed.server.ranges import download
from trainshed.server.routes.artifacts import IF_NONE_MATCH, RANGE, blob_chunks
from trainshed.server.shapes import runners as shapes
from trainshed.server.shapes.common import Page, iso
from trainshed.server.shapes.jobs import TreeFile
from trainshed.store import runners as store
from trainshed.store.database import Connection
from trainshed.store.records import Revision

routes = Routes("runners")

READ = (Permission.RUNNER_READ, Permission.TRAINING_RUN)


@routes.get(
    "",
    Operation(
        "List readable Runner Revisions, newest first",
        answer=Page[shapes.RunnerItem],
        any_of=READ,
        params=(CURSOR, LIMIT),
    ),
)
def list_runners(call: Call) -> Page[shapes.RunnerItem]:
    """One item per Revision. Reading reserves no GPU (E5)."""
    return _list(call, None, "runners")


@routes.get(
    "/{namespace}/{name}/revisions",
    Operation(
        "List a Runner's readable Revisions, newest first",
        answer=Page[shapes.RunnerItem],
        any_of=READ,
        params=(CURSOR, LIMIT),
        refuses=("RUNNER_NOT_FOUND",),
    ),
)
def list_revisions(call: Call, namespace: str, name: str) -> Page[shapes.RunnerItem]:
    """One item per Revision."""
    full = f"{namespace}/{name}"
    with call.services.database.read() as connection:
        _newest(call, connection, full)
    return _list(call, full, f"revisions:{full}")


@routes.get(
    "/{namespace}/{name}",
    Operation("Read a Runner", answer=shapes.RunnerDetail, any_of=READ, refuses=("RUNNER_NOT_FOUND",)),
)
def read_runner(call: Call, namespace: str, name: str) -> shapes.RunnerDetail:
    """The definition of the newest readable Revision, and where the moving refs point."""
    full = f"{namespace}/{name}"
    with call.services.database.read() as connection:
        revision, visibility = _newest(call, connection, full)
        refs = store.list_refs(connection, full)
        projects = store.list_grants(connection, full)
    return shapes.RunnerDetail(
        **_item_values(revision, visibility),
        definition=json.loads(revision.definition),
        refs=refs,
        projects=projects,
    )


@routes.get(
    "/{namespace}/{name}/{revision}",
    Operation(
        "Read a Runner Revision",
        answer=shapes.RevisionDetail,
        any_of=READ,
        refuses=("RUNNER_NOT_FOUND", "RUNNER_VERSION_AMBIGUOUS"),
    ),
)
def read_revision(call: Call, namespace: str, name: str, revision: str) -> shapes.RevisionDetail:
    """The execution definition and the files of one Revision (E9)."""
    found, visibility = _resolve(call, Selector(namespace, name, revision))
    files: list[Any] = [
        TreeFile.model_validate({"path": f.path, "mode": f.mode, "size": f.size, "sha256": f.sha256})
        for f in manifest_files(found.manifest)
    ]
    return shapes.RevisionDetail(
        **_item_values(found, visibility), definition=json.loads(found.definition), files=files
    )


@routes.get(
    "/{namespace}/{name}/{revision}/files/{path:path}",
    Operation(
        "Read a file of a Runner Revision",
        any_of=READ,
        params=(RANGE, IF_NONE_MATCH),
        refuses=(
            "RUNNER_NOT_FOUND",
            "RUNNER_VERSION_AMBIGUOUS",
            "NOT_FOUND",
            "RUNNER_HASH_MISMATCH",
            "STORAGE_UNAVAILABLE",
        ),
        answers={200: "The whole file; `ETag` is its SHA-256.", 206: "The range asked for."},
        plain_answers={304: "The caller has it already.", 416: "The range lies outside the file."},
        content="application/octet-stream",
    ),
)
def read_file(call: Call, namespace: str, name: str, revision: str, path: str) -> Response:
    """The published bytes."""
    found, _ = _resolve(call, Selector(namespace, name, revision))
    file = next((each for each in manifest_files(found.manifest) if each.path == path), None)
    if file is None:
        raise Refusal.of("NOT_FOUND", f"the Revision has no file `{path[:200]}`", path="path")
    blobs, sha256 = call.services.blobs, file.sha256
    damage.of_runner(path, f"{found.runner}@{found.revision}").size(blobs, sha256, file.size)
    return download(
        call.request.headers,
        sha256=sha256,
        size=file.size,
        head=call.head,
        chunks=lambda start, length: blob_chunks(blobs, sha256, start, length),
    )


def runner_item(revision: Revision, visibility: str) -> shapes.RunnerItem:
    return shapes.RunnerItem(**_item_values(revision, visibility))


def _item_values(revision: Revision, visibility: str) -> dict[str, Any]:
    definition = json.loads(revision.definition)
    wanted = definition.get("resources", {})
    gpu = {"gpu_type": wanted.get("gpu_type"), "gpus": wanted.get("gpus")}
    return {
        "name": revision.runner,
        "revision": revision.revision,
        "selector": revision.selector,
        "source_ref": revision.source_ref,
        "visibility": visibility,
        "snapshot_sha256": revision.snapshot_sha256,
        "entrypoint": definition["execution"]["entrypoint"],
        "params": sorted(definition.get("params", {})),
        "gpu": shapes.RunnerGpu(**gpu) if any(value is not None for value in gpu.values()) else None,
        "checkpoints": _checkpoints(definition),
        "abi": definition.get("abi"),
        "recipe_entrypoint": definition.get("recipe", {}).get("entrypoint"),
        "image": definition.get("image"),
        "execution": definition["execution"],
        "created_at": iso(revision.published_at),
        "published_by": revision.published_by,
    }


def _checkpoints(definition: dict[str, Any]) -> shapes.RunnerCheckpoints | None:
    """``[checkpoints]`` as it is understood, defaults filled in; ``None`` without the table."""
    if not definition.get("checkpoints"):
        return None
    rules = definition_from_document(definition).checkpoints
    best: Any = rules.best and {
        "metric": rules.best.metric,
        "mode": rules.best.mode.value,
        "keep": rules.best.keep,
    }
    return shapes.RunnerCheckpoints(resume=rules.resume, keep_last=rules.keep_last, best=best)


def _list(call: Call, name: str | None, use: str) -> Page[shapes.RunnerItem]:
    limit = page_limit(call.query)
    before = open_cursor(call.services.seal, use, call.query)
    with call.services.database.read() as connection:
        rows = store.list_revisions(connection, call.principal, before=before, limit=limit + 1, name=name)
    return cut_page(
        call.services.seal,
        use,
        rows,
        limit,
        key=lambda row: row[0].id,
        show=lambda kept: [runner_item(revision, visibility) for revision, visibility in kept],
    )


def _newest(call: Call, connection: Connection, name: str) -> tuple[Revision, str]:
    found = store.list_revisions(connection, call.principal, before=None, limit=1, name=name)
    if not found:
        raise Refusal.of("RUNNER_NOT_FOUND", f"there is no readable Runner `{name[:200]}`", path="name")
    return found[0]


def _resolve(call: Call, selector: Selector) -> tuple[Revision, str]:
    with call.services.database.read() as connection:
        revision, _ = store.resolve(connection, call.principal, selector)
        runner = store.find_runner(connection, revision.runner)
    assert runner is not None  # noqa: S101 - a Revision names its Runner by foreign key
    return revision, runner.visibility
