"""Checkpoints of script Jobs: listing their files and downloading them, each verified (contract G, a.4)."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from trainshed.sdk.answers import LARGEST_PAGE
from trainshed.sdk.checkpoints import CheckpointFile
from trainshed.sdk.download import MAX_PARALLEL, Downloaded, Source, check_names, fetch_file
from trainshed.sdk.errors import InvalidAnswer, LocalFileError, TrainshedError
from trainshed.sdk.objects import Artifact, mapping, page, required
from trainshed.sdk.transport import Transport, route


def checkpoint_files(transport: Transport, reference: str, number: int) -> Sequence[CheckpointFile]:
    """The files of a checkpoint by path; sizes in bytes. Raises `NotFound` and `InvalidAnswer`."""
    found: list[CheckpointFile] = []
    path = route("scripts", reference, "checkpoints", str(number), "files")
    cursor = None
    while True:
        answer = page(transport.call("GET", path, query={"cursor": cursor, "limit": LARGEST_PAGE}), _file)
        found += answer
        if answer.next_cursor is None:
            return found
        if answer.next_cursor == cursor:
            raise InvalidAnswer("the list of a checkpoint's files does not end: its cursor repeats")
        cursor = answer.next_cursor


def download_checkpoint(
    transport: Transport, reference: str, number: int, folder: Path, *, overwrite: bool
) -> list[Downloaded]:
    """Download a checkpoint into ``folder``; one result a file.

    Raises `UnsafeName` before anything is written, `NotFound` and `LocalFileError`.
    """
    files = checkpoint_files(transport, reference, number)
    check_names(file.name for file in files)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LocalFileError(f"cannot make the folder {folder}: {error.strerror}") from error

    def one(file: CheckpointFile) -> Downloaded:
        key = f"{reference}/{number}/{file.name}"
        shown = Artifact(key, file.name, file.size, file.sha256, "uploaded", {})
        place = route("scripts", reference, "checkpoints", str(number), "files", *file.name.split("/"))
        source = Source(file.name, file.size, file.sha256, place, key)
        try:
            return Downloaded(shown, fetch_file(transport, source, folder, overwrite=overwrite))
        except TrainshedError as error:
            return Downloaded(shown, None, error)

    with ThreadPoolExecutor(max_workers=max(1, min(MAX_PARALLEL, len(files)))) as pool:
        return list(pool.map(one, files))


def _file(raw: Any) -> CheckpointFile:
    document = mapping(raw, "a file of a checkpoint")
    size = document.get("bytes")
    if type(size) is not int or size < 0:
        raise InvalidAnswer("a file's `bytes` is not a number of bytes")
    return CheckpointFile(required(document, "path"), size, required(document, "sha256"))
