"""Checkpoints of script Jobs: brought from a run's store into our own, given to the next Attempt (g.9).

A checkpoint here is a manifest of everything in one folder of the run's store
(`trainshed.jobkit.gpu_runner`), so what the next runner is given is byte for byte what the last one wrote.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path, PurePosixPath
from typing import Any

import structlog

from trainshed.content.blobs import Blob, BlobError, BlobStore
from trainshed.content.local import LocalContent, LocalContentError
from trainshed.control.crashpoints import Point, reach
from trainshed.control.scripts.ground import Ground, Look
from trainshed.jobkit.walk import open_below
from trainshed.model.content import ContentFile, ContentKind, make_manifest
from trainshed.model.errors import Refusal
from trainshed.model.scripts.states import Note
from trainshed.model.words import counted
from trainshed.store import manifests, queue, script_attempts, scripts
from trainshed.store.database import Connection
from trainshed.store.script_records import ScriptAttempt, ScriptCheckpoint

KEPT = 3
_MANIFEST, _FILES = "manifest.json", "files"
_MOST_MANIFEST_BYTES = 64 << 20
_NUMBER = re.compile(r"[0-9]{1,18}")
_LARGEST_COUNT = 1 << 53
_LATEST = 1e11
"""Unix seconds: no time is that late."""

log = structlog.get_logger(__name__)


class Damaged(Exception):
    """A checkpoint in a store is not what its manifest says."""


@dataclass(frozen=True, slots=True)
class Found:
    """A checkpoint in a run's store that is what it says it is."""

    store: Path
    number: int
    """In that store."""
    step: int | None
    saved_at: float
    files: Mapping[str, Blob]
    """By path in the checkpoint's folder; its manifest among them."""
    bytes: int

    def open(self, path: str) -> BufferedReader:
        """One of its files. Raises `Damaged` and `OSError`."""
        return _open(self.store, self.number, path)


def newest_in(store: Path, after: float, skip: Callable[[str], None]) -> Found | None:
    """The newest intact checkpoint in a store that was saved later than ``after``; what is broken is told.

    The store is a program's, which may write anything there while it is read: no link is followed.
    """
    numbers = sorted((int(entry.name) for entry in _folders(store)), reverse=True)
    for number in numbers:
        try:
            if saved_at(store, number) <= after:
                return None
            found = read_checkpoint(store, number)
        except Damaged as damage:
            skip(f"checkpoint {number} of the run is damaged: {damage}")
            continue
        except OSError as error:
            skip(f"checkpoint {number} of the run cannot be read: {error.strerror}")
            continue
        return found
    return None


def saved_at(store: Path, number: int) -> float:
    """When a checkpoint was saved, by its own word (Unix seconds). Raises `Damaged` and `OSError`."""
    return _manifest(store, number)[2]


def _folders(store: Path) -> list[Path]:
    try:
        entries = [] if store.is_symlink() else list(store.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [each for each in entries if _NUMBER.fullmatch(each.name) and each.is_dir()]


def _open(store: Path, number: int, path: str) -> BufferedReader:
    file = os.fdopen(open_below(store.parent, f"{store.name}/{number}/{path}"), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise Damaged(f"{path} is no file")
    return file


def _manifest(store: Path, number: int) -> tuple[bytes, dict[str, Any], float]:
    with _open(store, number, _MANIFEST) as file:
        text = file.read(_MOST_MANIFEST_BYTES + 1)
    if len(text) > _MOST_MANIFEST_BYTES:
        raise Damaged("its manifest is too long")
    try:
        document = json.loads(text)
        at = float(document["created_at"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise Damaged("its manifest is none") from error
    if not 0 <= at < _LATEST:
        raise Damaged("its manifest says no time at which it was saved")
    return text, document, at


def read_checkpoint(store: Path, number: int) -> Found:
    """A checkpoint with every file verified. Raises `Damaged` and `OSError`."""
    text, document, at = _manifest(store, number)
    try:
        listed = [
            (_inside(each["path"]), _count(each["bytes"]), str(each["sha256"])) for each in document["files"]
        ]
        named = _count(document["n"])
    except (ValueError, KeyError, TypeError) as error:
        raise Damaged("its manifest is none") from error
    files = {_MANIFEST: Blob(hashlib.sha256(text).hexdigest(), len(text))}
    for path, size, sha256 in listed:
        inside = f"{_FILES}/{path}"
        with _open(store, number, inside) as content:
            if os.fstat(content.fileno()).st_size != size:
                raise Damaged(f"{path} is not as long as it was")
            if hashlib.file_digest(content, "sha256").hexdigest() != sha256:
                raise Damaged(f"{path} has other bytes than were saved")
        files[inside] = Blob(sha256, size)
    step = document.get("step")
    plain = step if type(step) is int and 0 <= step < _LARGEST_COUNT else None
    if named != number:
        raise Damaged(f"its manifest is that of checkpoint {named}")
    return Found(store, number, plain, at, files, sum(size for _, size, _ in listed))


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < _LARGEST_COUNT:
        raise ValueError("no count")
    return value


def _inside(path: Any) -> str:
    """A relative path that stays in its folder. Raises `ValueError`."""
    if not isinstance(path, str):
        raise ValueError("no path")  # noqa: TRY004 - one error for whatever is wrong with a manifest
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or not pure.parts or "\0" in path:
        raise ValueError("a path that leads out")
    path.encode()
    return pure.as_posix()


class Checkpoints:
    """Keeps checkpoints of script Jobs. Thread-safe for different Trials."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground

    def bring(self, look: Look, attempt: ScriptAttempt, store: Path) -> bool:
        """Take in the newest checkpoint of a run's store, if it is news; whether one was.

        Raises `BlobError` and `OSError`: nothing was taken in then, and it may be tried again.
        """
        ground = self._ground
        with ground.database.read() as connection:
            known = script_attempts.checkpoints_of(connection, look.trial.id, with_gone=True)
        newest = max((each.saved_at for each in known), default=float("-inf"))
        found = newest_in(
            store, newest, lambda said: log.warning("a checkpoint is skipped", trial=look.trial.id, why=said)
        )
        if found is None:
            return False
        reach(Point.SCRIPT_MID_CHECKPOINT)
        listed = self._store(ground.blobs, found)
        manifest = make_manifest(ContentKind.MODELS, listed, {"checkpoint": found.number, "step": found.step})
        data = manifest.encode()
        text = Blob(manifest.sha256, len(data))
        ground.blobs.put_many({text: data})
        number = max((each.number for each in known), default=0) + 1
        row = ScriptCheckpoint(
            trial_id=look.trial.id,
            number=number,
            attempt=attempt.number,
            step=found.step,
            manifest_sha256=manifest.sha256,
            files=len(found.files) - 1,
            bytes=found.bytes,
            saved_at=found.saved_at,
            gone_at=None,
        )
        now = ground.clock()
        first = not any(each.attempt == attempt.number for each in known)

        def save(connection: Connection) -> None:
            sizes = {file.sha256: file.size for file in listed} | {text.sha256: text.size}
            queue.put_blobs(connection, sizes, at=now)
            manifests.put_manifest(
                connection, manifest.sha256, ContentKind.MODELS, len(data), sorted(sizes), at=now
            )
            script_attempts.insert_checkpoint(connection, row)
            script = scripts.of_trials(connection, [look.trial.id])[look.trial.id]
            step = "" if found.step is None else f" of step {found.step}"
            what = f"{counted(row.files, 'file')}, {counted(row.bytes, 'byte')}"
            scripts.note(
                connection,
                look.trial.id,
                Note.CHECKPOINT_COPIED,
                f"Checkpoint {number}{step} is kept: {what}.",
                at=now,
                # An Attempt that got further costs nothing of the budget.
                values={"free_attempts": script.free_attempts + first},
            )
            for old in script_attempts.checkpoints_of(connection, look.trial.id)[KEPT:]:
                script_attempts.drop_checkpoint(connection, look.trial.id, old.number, at=now)

        try:
            ground.database.write(save)
        except Refusal as refusal:
            raise BlobError(refusal.message) from refusal
        return True

    def _store(self, blobs: BlobStore, found: Found) -> list[ContentFile]:
        listed = []
        for path, blob in found.files.items():
            try:
                with found.open(path) as content:
                    blobs.put(content, sha256=blob.sha256, size=blob.size)
            except Damaged as damage:
                raise BlobError(f"a checkpoint changed while it was read: {damage}") from damage
            listed.append(ContentFile(path, blob.size, blob.sha256))
        return listed

    def newest(self, look: Look, holder: str) -> tuple[ScriptCheckpoint, Path] | None:
        """The newest intact checkpoint as a folder here, held for ``holder``; broken ones are let go.

        Raises `LocalContentError` where only asking again can tell.
        """
        ground = self._ground
        with ground.database.read() as connection:
            known = script_attempts.checkpoints_of(connection, look.trial.id)
        for each in known:
            try:
                return each, self._tree(ground.content, each, holder)
            except LocalContentError as error:
                if error.retryable:
                    raise
                self._drop(look, each, error.message)
        return None

    def _tree(self, content: LocalContent, each: ScriptCheckpoint, holder: str) -> Path:
        return content.tree(each.manifest_sha256, holder, cancelled=self._ground.closing.is_set)

    def _drop(self, look: Look, each: ScriptCheckpoint, why: str) -> None:
        now = self._ground.clock()

        def store(connection: Connection) -> None:
            if script_attempts.drop_checkpoint(connection, look.trial.id, each.number, at=now):
                said = f"Checkpoint {each.number} is damaged and is not used: {why}"
                scripts.note(
                    connection, look.trial.id, Note.STORAGE_UNAVAILABLE, said, at=now, level="warning"
                )

        self._ground.database.write(store)
