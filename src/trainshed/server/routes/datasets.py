"""Datasets as the published client lists them, read only (contract E b9)."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable
from typing import Any

from trainshed.content.trees import StoredTree
from trainshed.model.about import DATASET_TYPES
from trainshed.model.access import Visibility
from trainshed.model.content import ContentKind
from trainshed.model.errors import Refusal
from trainshed.model.splits import SPLIT_WORDS
from trainshed.server.content_views import (
    READ,
    TEXT,
    listed,
    one_listed,
    readable_version,
    stored_tree,
    version_page,
)
from trainshed.server.documents import CURSOR, LIMIT, Param
from trainshed.server.endpoints import Call, Operation, Routes
from trainshed.server.pages import open_cursor, page_limit
from trainshed.server.shapes import datasets as shapes
from trainshed.server.shapes.common import Page, iso
from trainshed.store import contents as store
from trainshed.store.content_lists import Listed
from trainshed.store.database import Connection
from trainshed.store.records import ContentVersion

routes = Routes("datasets")

TASK_FILE = "task.toml"
_KIND = ContentKind.DATASETS
_UNKNOWN = ("DATASET_NOT_FOUND",)
_UNKNOWN_VERSION = ("DATASET_NOT_FOUND", "DATASET_REVISION_NOT_FOUND")
_SCANNED_FILES = 2_000
_TYPE = Param(
    "type",
    {"type": "string", "enum": list(DATASET_TYPES)},
    "Only Datasets of this type.",
    refuses=("INVALID_SPEC",),
)
_VERSION = Param(
    "version", {"type": "string"}, "Only the version of this label.", refuses=("DATASET_REVISION_NOT_FOUND",)
)


@routes.get(
    "",
    Operation(
        "List readable Datasets",
        answer=shapes.DatasetPage,
        any_of=READ,
        params=(CURSOR, LIMIT, _TYPE, TEXT),
    ),
)
def list_datasets(call: Call) -> shapes.DatasetPage:
    """One item per name, the newest first; `observed_at` is now."""
    wanted = call.query.get("type") or None
    if wanted is not None and wanted not in DATASET_TYPES:
        raise Refusal.of("INVALID_SPEC", f"`type` is one of {', '.join(DATASET_TYPES)}", path="type")
    page = listed(call, _KIND, f"datasets:{wanted}", show=dataset_item, of_type=wanted)
    return shapes.DatasetPage(items=page.items, next_cursor=page.next_cursor, observed_at=iso(call.now))


@routes.get(
    "/{encoded_name}",
    Operation("Read a Dataset", answer=shapes.DatasetDetail, any_of=READ, refuses=_UNKNOWN),
)
def read_dataset(call: Call, encoded_name: str) -> shapes.DatasetDetail:
    """With the configs and splits of its newest version."""
    with call.services.database.read() as connection:
        row = _readable(call, connection, _name(encoded_name))
    about = json.loads(row.newest.about)
    return shapes.DatasetDetail(
        **_values(row),
        version=row.newest.version,
        manifest_sha256=row.newest.manifest_sha256,
        description=about.get("description"),
        license=about.get("license"),
        configs=about["configs"],
    )


@routes.get(
    "/{encoded_name}/versions",
    Operation(
        "List the versions of a Dataset, newest first",
        answer=Page[shapes.DatasetVersion],
        any_of=READ,
        params=(CURSOR, LIMIT, _VERSION),
        refuses=_UNKNOWN,
    ),
)
def list_dataset_versions(call: Call, encoded_name: str) -> Page[shapes.DatasetVersion]:
    """With `version` at most the one of that label."""
    name = _name(encoded_name)
    label = call.query.get("version")
    with call.services.database.read() as connection:
        _readable(call, connection, name)
        if label is None:
            return version_page(call, _KIND, name, show=_version_item)
        found = store.find_version(connection, _KIND, name, label)
    items = [found] if found is not None and found.withdrawn_at is None and found.version == label else []
    return Page[shapes.DatasetVersion](items=[_version_item(each) for each in items])


@routes.get(
    "/{encoded_name}/versions/{version}",
    Operation(
        "Read a version of a Dataset",
        answer=shapes.DatasetVersionDetail,
        any_of=READ,
        refuses=_UNKNOWN_VERSION,
    ),
)
def read_dataset_version(call: Call, encoded_name: str, version: str) -> shapes.DatasetVersionDetail:
    """By its label or its manifest's digest."""
    with call.services.database.read() as connection:
        found = _version(call, connection, _name(encoded_name), version)
    about = json.loads(found.about)
    return shapes.DatasetVersionDetail(
        name=found.name,
        version=found.version,
        manifest_sha256=found.manifest_sha256,
        type=about["type"],
        splits=_splits(about),
        configs=about["configs"],
        files=found.files,
        bytes=found.bytes,
        created_at=iso(found.published_at),
    )


@routes.get(
    "/{encoded_name}/versions/{version}/tasks",
    Operation(
        "List the tasks of a version",
        answer=Page[shapes.DatasetTask],
        any_of=READ,
        params=(CURSOR, LIMIT),
        refuses=(*_UNKNOWN_VERSION, "CONTENT_DAMAGED", "STORAGE_UNAVAILABLE"),
    ),
)
def list_tasks(call: Call, encoded_name: str, version: str) -> Page[shapes.DatasetTask]:
    """The folders of an environment Dataset that hold a `task.toml`; other Datasets have no tasks.

    A page may be short or empty and still not be the last.
    """
    limit = page_limit(call.query)
    with call.services.database.read() as connection:
        found = _version(call, connection, _name(encoded_name), version)
    use = f"tasks:{found.manifest_sha256}"
    offset = open_cursor(call.services.seal, use, call.query)
    if json.loads(found.about)["type"] != "environment":
        return Page[shapes.DatasetTask](items=[])
    tasks, following = _tasks(stored_tree(call, found), offset, limit)
    return Page[shapes.DatasetTask](
        items=[
            shapes.DatasetTask(name=found.name, version=found.version, task_id=task, path=task)
            for task in tasks
        ],
        next_cursor=None if following is None else call.services.seal.seal(use, following),
    )


def dataset_item(row: Listed) -> shapes.DatasetItem:
    return shapes.DatasetItem(**_values(row))


def _tasks(tree: StoredTree, offset: int | None, limit: int) -> tuple[list[str], int | None]:
    """The next tasks and where to go on; a bounded part of the files is looked through."""
    found: list[str] = []
    looked = 0
    while True:
        files, offset = tree.page(offset, min(_SCANNED_FILES, limit - len(found)))
        found += [file.path.rpartition("/")[0] for file in files if file.path.endswith(f"/{TASK_FILE}")]
        looked += len(files)
        if offset is None or len(found) >= limit or looked >= _SCANNED_FILES:
            return found, offset


def _readable(call: Call, connection: Connection, name: str) -> Listed:
    """The Dataset; its codes are those that the published client prints by name."""
    try:
        return one_listed(call, connection, _KIND, name)
    except Refusal as refusal:
        raise Refusal.of("DATASET_NOT_FOUND", refusal.message, path="name") from None


def _version(call: Call, connection: Connection, name: str, ref: str) -> ContentVersion:
    _readable(call, connection, name)
    try:
        return readable_version(call, connection, _KIND, name, ref)[0]
    except Refusal as refusal:
        hint = refusal.faults[0].hint
        raise Refusal.of("DATASET_REVISION_NOT_FOUND", refusal.message, path="version", hint=hint) from None


def _name(encoded: str) -> str:
    """The name in URL-safe base64; raises `Refusal` ``DATASET_NOT_FOUND``."""
    try:
        raw = base64.b64decode(encoded.encode("ascii") + b"=" * (-len(encoded) % 4), b"-_", validate=True)
        name = raw.decode()
    except (UnicodeError, binascii.Error):
        name = ""
    if not name or "\0" in name:
        said = "the name is not URL-safe base64 without padding"
        raise Refusal.of("DATASET_NOT_FOUND", said, path="name")
    return name


def _values(row: Listed) -> dict[str, Any]:
    about = json.loads(row.newest.about)
    return {
        "name": row.content.name,
        "type": about["type"],
        # The client knows public, private and mixed; a content has one visibility for all its versions.
        "visibility": "public" if row.content.visibility == Visibility.PUBLIC else "private",
        "splits": _splits(about),
        "authors": about.get("authors", []),
        "version_count": row.versions,
        "catalog_updated_at": iso(row.content.updated_at),
    }


def _splits(about: dict[str, Any]) -> list[str]:
    """All splits of all configs, the usual ones first and in their usual order."""
    configs: Iterable[dict[str, Any]] = about["configs"].values()
    usual = list(SPLIT_WORDS)
    found = {split for splits in configs for split in splits}
    return sorted(found, key=lambda split: (usual.index(split) if split in usual else len(usual), split))


def _version_item(version: ContentVersion) -> shapes.DatasetVersion:
    return shapes.DatasetVersion(
        name=version.name,
        version=version.version,
        manifest_sha256=version.manifest_sha256,
        created_at=iso(version.published_at),
    )
