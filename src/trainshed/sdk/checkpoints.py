"""Checkpoints: list, read, download verified, pin and delete (contract E b7)."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

from trainshed.sdk.answers import LARGEST_PAGE
from trainshed.sdk.download import MAX_PARALLEL, Downloaded, Progress, Source, check_names, fetch_file
from trainshed.sdk.errors import (
    InvalidAnswer,
    LocalFileError,
    NotFound,
    PermissionRefused,
    TrainshedError,
    WaitTimeout,
)
from trainshed.sdk.objects import Artifact, Page, Raw, mapping, moment, page, required, text
from trainshed.sdk.polling import FIRST_POLL_SECONDS, LONGEST_POLL_SECONDS, POLL_GROWTH
from trainshed.sdk.transport import Transport, route

DELETE_SECONDS = 600.0
_SCHEME = "envloop://"
_DOWNLOADS = "/v1/downloads/"
_DONE = "SUCCEEDED"
_GIVEN_UP = frozenset({"FAILED", "RETRYABLE_FAILED", "BLOCKED", "CANCELLED"})


@dataclass(frozen=True, slots=True)
class CheckpointFile:
    """One file of a Checkpoint; ``name`` is relative to its folder, ``size`` is in bytes."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A durable state that a Trial produced (E106)."""

    checkpoint_id: str
    job_id: str
    trial_id: str
    uri: str
    """``envloop://JOB_ID/CHECKPOINT_ID``: what ``resume_from`` takes."""
    checkpoint_type: str
    base_model: str
    step: int | None
    parent: str | None
    """The Checkpoint that its Trial resumed from."""
    pinned: bool
    files: tuple[CheckpointFile, ...]
    created_at: datetime | None
    raw: Raw = field(repr=False)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


def checkpoint(raw: Any) -> Checkpoint:
    """Read a Checkpoint; raises `InvalidAnswer` without an id, or with a file that is none."""
    document = mapping(raw, "a Checkpoint")
    checkpoint_id, step = required(document, "checkpoint_id"), document.get("step")
    files = document.get("files")
    return Checkpoint(
        checkpoint_id=checkpoint_id,
        job_id=text(document, "job_id"),
        trial_id=text(document, "trial_id"),
        uri=text(document, "uri") or text(document, "tinker_path"),
        checkpoint_type=text(document, "checkpoint_type"),
        base_model=text(document, "base_model"),
        step=step if isinstance(step, int) else None,
        parent=text(document, "parent") or None,
        pinned=document.get("pinned") is True,
        files=tuple(map(_file, files)) if isinstance(files, list) else (),
        created_at=moment(document, "created_at"),
        raw=document,
    )


def _file(raw: Any) -> CheckpointFile:
    document = mapping(raw, "a file of a Checkpoint")
    size = document.get("size_bytes")
    if type(size) is not int or size < 0:
        raise InvalidAnswer("a file's `size_bytes` is not a number of bytes")
    return CheckpointFile(required(document, "name"), size, required(document, "sha256"))


class Checkpoints:
    """``client.checkpoints``: what Trials of the project left to go on from.

    Wherever a Checkpoint is named, its id and its ``envloop://JOB_ID/CHECKPOINT_ID`` are the same.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(
        self,
        *,
        job_id: str | None = None,
        trial_id: str | None = None,
        cursor: str | None = None,
        limit: int = 25,
    ) -> Page[Checkpoint]:
        """One page, newest first."""
        query = {"job_id": job_id, "run_id": trial_id, "cursor": cursor, "limit": limit}
        return page(self._transport.call("GET", _route(), query=query), checkpoint)

    def iter_all(self, *, job_id: str | None = None, trial_id: str | None = None) -> Iterator[Checkpoint]:
        """All of them, page by page, newest first."""
        cursor = None
        while True:
            found = self.list(job_id=job_id, trial_id=trial_id, cursor=cursor, limit=LARGEST_PAGE)
            yield from found
            if found.next_cursor is None:
                return
            if found.next_cursor == cursor:
                raise InvalidAnswer("the list of Checkpoints does not end: its cursor repeats")
            cursor = found.next_cursor

    def get(self, name: str) -> Checkpoint:
        """One Checkpoint with its lineage and files."""
        return checkpoint(self._transport.call("GET", _route(_id(name))))

    def urls(self, name: str) -> Mapping[str, str]:
        """For each file an absolute URL that needs no key and expires: for other programs to fetch."""
        return mapping(self.signed(name).get("urls"), "download URLs")

    def signed(self, name: str) -> Raw:
        """As `urls`, with the time until when they are good: ``checkpoint_id``, ``urls``, ``expires_at``."""
        answer = self._transport.call("GET", _route("download"), query={"path": _id(name)})
        return mapping(answer, "download URLs")

    def download(
        self,
        name: str,
        folder: str | Path,
        *,
        names: Sequence[str] | None = None,
        overwrite: bool = False,
        parallel: int = MAX_PARALLEL,
        progress: Progress | None = None,
    ) -> Sequence[Downloaded]:
        """Download its files (those in ``names``, else all) into ``folder``, each verified.

        Files that are there with the right bytes are kept, interrupted ones continued. One result a file: a
        verified path, or an error. Raises `UnsafeName` before anything is written, `NotFound` for a file that
        the Checkpoint lacks.
        """
        found = self.get(name)
        check_names(file.name for file in found.files)
        files = list(found.files)
        if names is not None:
            there = {file.name: file for file in files}
            if missing := [each for each in names if each not in there]:
                said = f"{found.checkpoint_id} has no file {', '.join(missing)}"
                hint = f"`trainshed checkpoint show {found.checkpoint_id}` lists its files."
                raise NotFound(HTTPStatus.NOT_FOUND, "ARTIFACT_NOT_FOUND", said, hint=hint)
            files = [there[each] for each in dict.fromkeys(names)]
        target = Path(folder)
        try:
            target.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LocalFileError(f"cannot make the folder {target}: {error.strerror}") from error
        links = _Links(self, found.checkpoint_id)

        def one(file: CheckpointFile) -> Downloaded:
            shown = _shown(found, file)
            moved = None if progress is None else partial(progress, shown)
            try:
                path = self._fetch(links, found, file, target, overwrite=overwrite, progress=moved)
            except TrainshedError as error:
                return Downloaded(shown, None, error)
            return Downloaded(shown, path)

        with ThreadPoolExecutor(max_workers=max(1, min(parallel, len(files) or 1))) as pool:
            return list(pool.map(one, files))

    def pin(self, name: str) -> Checkpoint:
        """Keep it from every deletion. Repeatable."""
        path = _route(_id(name), "pin")
        return checkpoint(self._transport.call("POST", path, content=b"", repeatable=True))

    def unpin(self, name: str) -> Checkpoint:
        """Let it be deleted again, by its Runner's rules too. Repeatable."""
        path = _route(_id(name), "unpin")
        return checkpoint(self._transport.call("POST", path, content=b"", repeatable=True))

    def delete(self, name: str, *, wait: bool = True, timeout: float = DELETE_SECONDS) -> Raw:
        """Delete it; answers the receipt of the operation, the same one if asked again.

        With ``wait`` the receipt is that of a deletion that is done, which takes at most ``timeout`` seconds.
        Raises `Conflict` (``RESOURCE_IN_USE``) while it is pinned or a Trial resumes from it.
        """
        receipt = mapping(self._transport.call("DELETE", _route(_id(name))), "a receipt")
        deadline, pause = time.monotonic() + timeout, FIRST_POLL_SECONDS
        while wait and (status := required(receipt, "status")) != _DONE:
            if status in _GIVEN_UP:
                raise TrainshedError(f"deleting {_id(name)} ended as {status}", hint="Delete it again.")
            if time.monotonic() > deadline or not self._transport.sleep(pause):
                raise WaitTimeout(f"deleting {_id(name)} has not ended within {timeout:g} s")
            pause = min(LONGEST_POLL_SECONDS, pause * POLL_GROWTH)
            project = required(receipt, "project_id")
            path = route("projects", project, "operations", required(receipt, "operation_id"))
            receipt = mapping(self._transport.call("GET", path), "a receipt")
        return receipt

    def _fetch(
        self,
        links: _Links,
        found: Checkpoint,
        file: CheckpointFile,
        folder: Path,
        *,
        overwrite: bool,
        progress: Any,
    ) -> Path:
        """Download one file; what expired meanwhile is asked for anew, once, and gone on with."""

        def fetch(link: str) -> Path:
            key = f"{found.checkpoint_id}/{file.name}"
            source = Source(file.name, file.size, file.sha256, link, key)
            return fetch_file(self._transport, source, folder, overwrite=overwrite, progress=progress)

        link = links.of(file.name)
        try:
            return fetch(link)
        except PermissionRefused:
            return fetch(links.of(file.name, instead_of=link))


class _Links:
    """The signed URLs of one Checkpoint, asked for when needed. Thread-safe.

    They are fetched from the server in use, whatever name it gives itself in them.
    """

    def __init__(self, checkpoints: Checkpoints, checkpoint_id: str) -> None:
        self._checkpoints = checkpoints
        self._checkpoint_id = checkpoint_id
        self._lock = threading.Lock()
        self._links: dict[str, str] = {}

    def of(self, name: str, *, instead_of: str | None = None) -> str:
        with self._lock:
            if not self._links or self._links.get(name) == instead_of:
                urls = self._checkpoints.urls(self._checkpoint_id)
                self._links = {each: _path(str(url)) for each, url in urls.items()}
            if name not in self._links:
                raise InvalidAnswer(f"the server gave no URL for {name!r} of {self._checkpoint_id}")
            return self._links[name]


def _path(url: str) -> str:
    _, found, rest = url.rpartition(_DOWNLOADS)
    if not found:
        raise InvalidAnswer("a download URL of a Checkpoint leads to another place than this API's")
    return found + rest


def _shown(found: Checkpoint, file: CheckpointFile) -> Artifact:
    """A file in the words of downloads."""
    key = f"{found.checkpoint_id}/{file.name}"
    return Artifact(key, file.name, file.size, file.sha256, "uploaded", {})


def _route(*parts: str) -> str:
    return route("jobs", "checkpoints", *parts)


def _id(name: str) -> str:
    """The id alone; the server judges what is none."""
    return name.rpartition("/")[2] if name.startswith(_SCHEME) else name
