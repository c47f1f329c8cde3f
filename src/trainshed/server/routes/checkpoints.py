"""Checkpoints: list, download, delete, pin; and the receipts of operations (contract E b7, b11)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from starlette.responses import Response

from trainshed.control.checkpoints import delete_checkpoint, pin_checkpoint
from trainshed.model.access import Permission
from trainshed.model.checkpoints import checkpoint_uri, parse_checkpoint_ref
from trainshed.model.errors import Refusal
from trainshed.server import damage
from trainshed.server.documents import CURSOR, LIMIT, Param
from trainshed.server.endpoints import Call, Operation, Routes
from trainshed.server.pages import cut_page, open_cursor, page_limit
from trainshed.server.routes.artifacts import IF_NONE_MATCH, RANGE, stored_file
from trainshed.server.routes.jobs import READ
from trainshed.server.shapes import checkpoints as shapes
from trainshed.server.shapes.common import Page, iso
from trainshed.server.signed_urls import expired
from trainshed.store import access, jobs
from trainshed.store import checkpoints as store
from trainshed.store.database import Connection
from trainshed.store.records import Checkpoint, CheckpointFile
from trainshed.store.records import Operation as Receipt

routes = Routes("checkpoints")
trial_routes = Routes("checkpoints")
download_routes = Routes("checkpoints")
operation_routes = Routes("operations")

MAX_FILES_A_PAGE = 10_000
"""The published client takes no answer over 16 MiB."""
_WRITE = (Permission.CONTENT_PUBLISH,)
_UNKNOWN = ("CHECKPOINT_NOT_FOUND",)
_NO_JOB = ("JOB_NOT_FOUND",)
JOB_ID = Param("job_id", {"type": "string"}, "Only Checkpoints of this Job.", refuses=_NO_JOB)
TRAIN_JOB_ID = Param("train_job_id", {"type": "string"}, "The same as `job_id`.", refuses=_NO_JOB)
RUN_ID = Param(
    "run_id",
    {"type": "string"},
    "Only Checkpoints of this Trial: a run is a Trial here.",
    refuses=("TRIAL_NOT_FOUND",),
)
PATH = Param(
    "path",
    {"type": "string"},
    "A Checkpoint's id or its `envloop://JOB_ID/CHECKPOINT_ID`.",
    refuses=_UNKNOWN,
)


@routes.get(
    "",
    Operation(
        "List Checkpoints, newest first",
        answer=Page[shapes.Checkpoint],
        any_of=READ,
        params=(TRAIN_JOB_ID, JOB_ID, RUN_ID, CURSOR, LIMIT),
        refuses=("JOB_NOT_FOUND", "TRIAL_NOT_FOUND"),
    ),
)
def list_checkpoints(call: Call) -> Page[shapes.Checkpoint]:
    """The project's Checkpoints. A page is shorter than `limit` where they have thousands of files."""
    wanted = {call.query[name] for name in ("train_job_id", "job_id") if name in call.query}
    run_id = call.query.get("run_id")
    with call.services.database.read() as connection:
        for job_id in sorted(wanted):
            jobs.get_job(connection, call.project, job_id, viewer=call.viewer)
        if run_id is not None:
            jobs.get_trial(connection, call.project, run_id, viewer=call.viewer)
        if len(wanted) > 1:
            return Page(items=[])
        return _page(call, connection, "checkpoints", next(iter(wanted), None), run_id)


@trial_routes.get(
    "/{trial_id}/checkpoints",
    Operation(
        "List a Trial's Checkpoints",
        answer=Page[shapes.Checkpoint],
        any_of=READ,
        params=(CURSOR, LIMIT),
        refuses=("TRIAL_NOT_FOUND",),
    ),
)
def list_trial_checkpoints(call: Call, trial_id: str) -> Page[shapes.Checkpoint]:
    """The Checkpoints that this Trial left, newest first; no other output is one (E74, E108)."""
    with call.services.database.read() as connection:
        jobs.get_trial(connection, call.project, trial_id, viewer=call.viewer)
        return _page(call, connection, f"checkpoints:{trial_id}", None, trial_id)


def _page(
    call: Call, connection: Connection, use: str, job_id: str | None, trial_id: str | None
) -> Page[shapes.Checkpoint]:
    limit = page_limit(call.query)
    before = open_cursor(call.services.seal, use, call.query)
    rows = store.list_checkpoints(
        connection, call.project, job_id=job_id, trial_id=trial_id, before=before, limit=limit + 1
    )
    counts = store.count_files(connection, [row.id for row in rows])
    return cut_page(
        call.services.seal,
        use,
        rows,
        _affordable(rows, counts, limit),
        key=lambda row: row.id,
        show=lambda kept: _views(connection, kept),
    )


def _affordable(rows: Sequence[Checkpoint], counts: dict[str, int], limit: int) -> int:
    """How many of ``rows`` fit one page, at least one."""
    files = 0
    for place, row in enumerate(rows[:limit]):
        files += counts.get(row.id, 0)
        if place and files > MAX_FILES_A_PAGE:
            return place
    return limit


@routes.get(
    "/download",
    Operation(
        "Get download URLs of a Checkpoint's files",
        answer=shapes.CheckpointDownload,
        any_of=READ,
        params=(PATH, JOB_ID, RUN_ID),
        refuses=_UNKNOWN,
    ),
)
def sign_downloads(call: Call) -> shapes.CheckpointDownload:
    """One absolute URL a file: signed, good for a while, fetched without a key, ranges included.

    Ask again once a URL answers 403.
    """
    row = _selected(call)
    with call.services.database.read() as connection:
        files = store.files_of(connection, row.id)
    urls = call.services.urls

    def signed(file: CheckpointFile) -> str:
        path = f"/v1/downloads/{row.id}/{quote(file.name, safe='')}"
        return urls.issue(call.request, path, key_id=call.principal.key_id, now=call.now)

    return shapes.CheckpointDownload(
        checkpoint_id=row.id,
        urls={file.name: signed(file) for file in files},
        expires_at=iso(call.now + urls.seconds),
    )


def _selected(call: Call) -> Checkpoint:
    """The Checkpoint that the query names; raises `Refusal` ``CHECKPOINT_NOT_FOUND``."""
    text = call.query.get("path", "")
    try:
        wanted = parse_checkpoint_ref(text)
    except ValueError as error:
        raise Refusal.of(
            "CHECKPOINT_NOT_FOUND", f"`path` names no Checkpoint: {error}", path="path"
        ) from None
    with call.services.database.read() as connection:
        row = store.find_checkpoint(connection, call.project, wanted.checkpoint_id)
    job_ids = {wanted.job_id, call.query.get("job_id")} - {None}
    run_id = call.query.get("run_id")
    if row is None or job_ids - {row.job_id} or run_id not in {None, row.trial_id}:
        raise store.not_found(text, path="path")
    return row


@download_routes.get(
    "/downloads/{checkpoint_id}/{path}",
    Operation(
        "Download a file of a Checkpoint by a signed URL",
        public=True,
        params=(
            Param("key", {"type": "string"}, "The key that asked for the URL.", refuses=("URL_EXPIRED",)),
            Param("expires", {"type": "string"}, "Until when it is good.", refuses=("URL_EXPIRED",)),
            Param("signature", {"type": "string"}, "Proves the rest.", refuses=("URL_EXPIRED",)),
            RANGE,
            IF_NONE_MATCH,
        ),
        answers={
            200: "The whole content; `ETag` is its SHA-256.",
            206: "The range asked for.",
        },
        plain_answers={304: "The caller has it already.", 416: "The range lies outside the content."},
        refuses=("URL_EXPIRED", "CHECKPOINT_NOT_FOUND", "CONTENT_DAMAGED", "STORAGE_UNAVAILABLE"),
        content="application/octet-stream",
    ),
)
def download_file(call: Call, checkpoint_id: str, path: str) -> Response:
    """The bytes, directly. The URL is its own permission: it needs no key, and no key changes it."""
    key_id = call.services.urls.check(call.request.scope["path"], call.query, now=call.now)
    with call.services.database.read() as connection:
        if not access.is_valid(connection, key_id, at=call.now):
            raise expired("the key that asked for this URL was revoked or has expired")
        file = store.find_file(connection, checkpoint_id, path)
        found = store.by_ids(connection, [checkpoint_id]).get(checkpoint_id)
    if file is None or found is None:
        raise store.not_found(checkpoint_id)
    hit = damage.of_output("Checkpoint", file.name, found.job_id)
    return stored_file(call, file.sha256, file.size, file.name, hit)


@routes.get(
    "/{checkpoint_id}",
    Operation("Read a Checkpoint", answer=shapes.Checkpoint, any_of=READ, refuses=_UNKNOWN),
)
def read_checkpoint(call: Call, checkpoint_id: str) -> shapes.Checkpoint:
    """A Checkpoint with its lineage and its files."""
    with call.services.database.read() as connection:
        row = store.get_checkpoint(connection, call.project, checkpoint_id)
        return _views(connection, [row])[0]


@routes.delete(
    "/{checkpoint_id}",
    Operation(
        "Delete a Checkpoint",
        answer=shapes.OperationReceipt,
        any_of=_WRITE,
        refuses=(*_UNKNOWN, "RESOURCE_IN_USE"),
    ),
)
def remove_checkpoint(call: Call, checkpoint_id: str) -> shapes.OperationReceipt:
    """It is gone when this answers; its bytes go when nothing else needs them.

    Refused while it is pinned or a Trial that has not ended resumes from it. Asked again, the same receipt.
    """
    receipt = delete_checkpoint(
        call.services.database,
        call.services.ids,
        call.project,
        checkpoint_id,
        at=call.now,
        actor=call.principal.actor,
    )
    return _receipt(receipt)


def _pinning(word: str, *, pinned: bool, about: str) -> None:
    @routes.post(
        f"/{{checkpoint_id}}/{word}",
        Operation(
            f"{word.capitalize()} a Checkpoint",
            answer=shapes.Checkpoint,
            any_of=_WRITE,
            refuses=_UNKNOWN,
            description=about,
        ),
    )
    def act(call: Call, checkpoint_id: str) -> shapes.Checkpoint:
        row = pin_checkpoint(
            call.services.database,
            call.project,
            checkpoint_id,
            pinned=pinned,
            at=call.now,
            actor=call.principal.actor,
        )
        with call.services.database.read() as connection:
            return _views(connection, [row])[0]


_pinning("pin", pinned=True, about="Neither rules nor people delete it from now on; repeatable.")
_pinning("unpin", pinned=False, about="It may be deleted again, by its Runner's rules too; repeatable.")


def read_operation(call: Call, project: str, operation_id: str) -> shapes.OperationReceipt:
    """The receipt. Deleting is done when its receipt is written, so there is nothing to try again."""
    if project != call.project:
        raise Refusal.of("PROJECT_ACCESS_DENIED", f"the key belongs to project `{call.project}`")
    with call.services.database.read() as connection:
        found = store.find_operation(connection, project, operation_id)
    if found is None:
        said = f"there is no operation `{operation_id[:80]}` in this project"
        raise Refusal.of("OPERATION_NOT_FOUND", said, path="operation_id")
    return _receipt(found)


for _method, _path, _summary, _any_of in (
    (operation_routes.get, "/projects/{project}/operations/{operation_id}", "Read an operation", READ),
    (
        operation_routes.post,
        "/projects/{project}/operations/{operation_id}/retry",
        "Retry an operation",
        _WRITE,
    ),
):
    _method(
        _path,
        Operation(_summary, answer=shapes.OperationReceipt, any_of=_any_of, refuses=("OPERATION_NOT_FOUND",)),
    )(read_operation)


def _views(connection: Connection, rows: Sequence[Checkpoint]) -> list[shapes.Checkpoint]:
    files = store.files_of_all(connection, [row.id for row in rows])
    return [_view(row, files[row.id]) for row in rows]


def _view(row: Checkpoint, files: Sequence[CheckpointFile]) -> shapes.Checkpoint:
    kind: Any = row.checkpoint_type
    uri = checkpoint_uri(row.job_id, row.id)
    return shapes.Checkpoint(
        checkpoint_id=row.id,
        job_id=row.job_id,
        train_job_id=row.job_id,
        trial_id=row.trial_id,
        attempt_id=row.attempt_id,
        checkpoint_type=kind,
        base_model=row.base_model,
        lora_rank=row.lora_rank,
        step=row.step,
        parent=row.parent_id,
        metric=row.metric,
        metric_value=row.metric_value,
        metric_fault=row.metric_fault,
        folder=row.folder,
        uri=uri,
        tinker_path=uri,
        durable=True,
        pinned=row.pinned,
        superseded=row.superseded,
        size_bytes=sum(file.size for file in files),
        files=[shapes.CheckpointFile(name=f.name, size_bytes=f.size, sha256=f.sha256) for f in files],
        created_at=iso(row.created_at),
    )


def _receipt(row: Receipt) -> shapes.OperationReceipt:
    status: Any = row.status
    return shapes.OperationReceipt(
        operation_id=row.id,
        project_id=row.project_id,
        kind=row.kind,
        resource_id=row.resource_id,
        status=status,
        errors=[],
        created_at=iso(row.created_at),
        updated_at=iso(row.updated_at),
    )
