"""Checkpoints of script Jobs: which files they have, and the bytes of these (contract G, a.4)."""

from __future__ import annotations

from urllib.parse import quote

from starlette.responses import Response

from trainshed.content.trees import StoredTree
from trainshed.model.errors import Refusal
from trainshed.server import damage
from trainshed.server.content_views import content_bytes, read_tree
from trainshed.server.documents import CURSOR, LIMIT
from trainshed.server.endpoints import Call, Operation, Routes
from trainshed.server.pages import MAX_PAGE, open_cursor, page_limit
from trainshed.server.routes.artifacts import IF_NONE_MATCH, RANGE
from trainshed.server.routes.scripts import READ, UNKNOWN
from trainshed.server.routes.scripts import read as find
from trainshed.server.shapes import scripts as shapes
from trainshed.server.shapes.common import Page
from trainshed.store import script_attempts
from trainshed.store.script_records import ScriptCheckpoint

routes = Routes("scripts")

_FILES = "files/"
"""Below it lie a checkpoint's files in what is stored; beside it is the runner's own record of them."""
_LARGEST_NUMBER = 2**31 - 1
_REFUSES = (*UNKNOWN, "CHECKPOINT_NOT_FOUND", "CONTENT_DAMAGED", "STORAGE_UNAVAILABLE")


@routes.get(
    "/{ref}/checkpoints/{number}/files",
    Operation(
        "List the files of a script Job's checkpoint",
        answer=Page[shapes.ScriptCheckpointFile],
        any_of=READ,
        params=(CURSOR, LIMIT),
        refuses=_REFUSES,
    ),
)
def list_files(call: Call, ref: str, number: str) -> Page[shapes.ScriptCheckpointFile]:
    """By path, as they lay in `gpu.checkpoint_dir()`. `GET /v1/scripts/{ref}` has the numbers."""
    limit = page_limit(call.query, MAX_PAGE)
    found, job_id = _found(call, ref, number)
    use = f"files:{found.manifest_sha256}"
    offset = open_cursor(call.services.seal, use, call.query)
    files, following = _tree(call, found, job_id).page(offset, limit)
    return Page[shapes.ScriptCheckpointFile](
        items=[
            shapes.ScriptCheckpointFile(
                path=file.path.removeprefix(_FILES), bytes=file.size, sha256=file.sha256
            )
            for file in files
            if file.path.startswith(_FILES)
        ],
        next_cursor=None if following is None else call.services.seal.seal(use, following),
    )


@routes.get(
    "/{ref}/checkpoints/{number}/files/{path:path}",
    Operation(
        "Read a file of a script Job's checkpoint",
        any_of=READ,
        params=(RANGE, IF_NONE_MATCH),
        refuses=(*_REFUSES, "NOT_FOUND"),
        answers={200: "The whole file; `ETag` is its SHA-256.", 206: "The range asked for."},
        plain_answers={304: "The caller has it already.", 416: "The range lies outside the file."},
        content="application/octet-stream",
    ),
)
def read_file(call: Call, ref: str, number: str, path: str) -> Response:
    """The bytes that the program saved."""
    found, job_id = _found(call, ref, number)
    file = _tree(call, found, job_id).find(f"{_FILES}{path}")
    if file is None:
        said = f"checkpoint {found.number} has no file `{path[:200]}`"
        raise Refusal.of("NOT_FOUND", said, path="path")
    disposition = f"attachment; filename*=UTF-8''{quote(path.rsplit('/', 1)[-1])}"
    hit = damage.of_output(f"Job's checkpoint {found.number}", path, job_id)
    return content_bytes(call, file.sha256, file.size, hit, {"Content-Disposition": disposition})


def _found(call: Call, ref: str, number: str) -> tuple[ScriptCheckpoint, str]:
    """The checkpoint of that number, while its bytes are kept, and its Job's id. Raises `Refusal`."""
    wanted = int(number) if number.isascii() and number.isdigit() and len(number) <= 10 else 0  # noqa: PLR2004 - digits of the largest one
    with call.services.database.read() as connection:
        _, trial, _ = find(call, connection, ref)
        if 0 < wanted <= _LARGEST_NUMBER:
            for each in script_attempts.checkpoints_of(connection, trial.id):
                if each.number == wanted:
                    return each, trial.job_id
    raise Refusal.of(
        "CHECKPOINT_NOT_FOUND",
        f"no checkpoint `{number[:20]}` of this Job is kept",
        path="number",
        hint="`gpu status ID` lists those that are.",
    )


def _tree(call: Call, found: ScriptCheckpoint, job_id: str) -> StoredTree:
    hit = damage.of_output(f"Job's checkpoint {found.number}", "the list of files", job_id)
    return read_tree(call, found.manifest_sha256, hit)
