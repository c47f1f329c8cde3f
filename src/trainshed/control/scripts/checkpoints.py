"""Checkpoints of script Jobs: brought from a run's store into our own, given to the next Attempt (g.9).

A checkpoint here is a manifest of everything in one folder of the run's store
(`trainshed.jobkit.gpu_runner`), so what the next runner is given is byte for byte what the last one wrote.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import structlog

from trainshed.content.blobs import Blob, BlobError, BlobStore
from trainshed.content.local import LocalContent, LocalContentError
from trainshed.control.crashpoints import Point, reach
from trainshed.control.scripts.ground import Ground, Look
from trainshed.model.content import ContentFile, ContentKind, make_manifest
from trainshed.model.errors import Refusal
from trainshed.model.scripts.states import Note
from trainshed.store import manifests, queue, script_attempts, scripts
from trainshed.store.database import Connection
from trainshed.store.script_records import ScriptAttempt, ScriptCheckpoint

KEPT = 3
_MANIFEST, _FILES = "manifest.json", "files"
_MOST_MANIFEST_BYTES = 64 << 20

log = structlog.get_logger(__name__)


class Damaged(Exception):
    """A checkpoint in a store is not what its manifest says."""


@dataclass(frozen=True, slots=True)
class Found:
    """A checkpoint in a run's store that is what it says it is."""

    number: int
    """In that store."""
    step: int | None
    saved_at: float
    files: Sequence[tuple[str, Path]]
    """Path in the checkpoint's folder, and where it lies; its manifest among them."""
    bytes: int
    digests: dict[str, Blob]


def newest_in(store: Path, after: float, skip: Callable[[str], None]) -> Found | None:
    """The newest intact checkpoint in a store that was saved later than ``after``; what is broken is told."""
    numbers = sorted((int(entry.name) for entry in _folders(store)), reverse=True)
    for number in numbers:
        try:
            if saved_at(store / str(number)) <= after:
                return None
            found = read_checkpoint(store / str(number))
        except Damaged as damage:
            skip(f"checkpoint {number} of the run is damaged: {damage}")
            continue
        except OSError as error:
            skip(f"checkpoint {number} of the run cannot be read: {error.strerror}")
            continue
        return found
    return None


def saved_at(folder: Path) -> float:
    """When a checkpoint was saved, by its own word. Raises `Damaged` and `OSError`."""
    return float(_manifest(folder)[1]["created_at"])


def _folders(store: Path) -> list[Path]:
    try:
        entries = list(store.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [each for each in entries if each.name.isdecimal() and each.is_dir() and not each.is_symlink()]


def _manifest(folder: Path) -> tuple[bytes, dict[str, Any]]:
    place = folder / _MANIFEST
    if place.is_symlink() or not place.is_file():
        raise Damaged("it has no manifest")
    if place.stat().st_size > _MOST_MANIFEST_BYTES:
        raise Damaged("its manifest is too long")
    text = place.read_bytes()
    try:
        document = json.loads(text)
        float(document["created_at"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Damaged("its manifest is none") from error
    return text, document


def read_checkpoint(folder: Path) -> Found:
    """A checkpoint with every file verified. Raises `Damaged` and `OSError`."""
    text, document = _manifest(folder)
    try:
        listed = [
            (_inside(each["path"]), int(each["bytes"]), str(each["sha256"])) for each in document["files"]
        ]
        number, at = int(document["n"]), float(document["created_at"])
        step = document.get("step")
    except (ValueError, KeyError, TypeError) as error:
        raise Damaged("its manifest is none") from error
    files: list[tuple[str, Path]] = [(_MANIFEST, folder / _MANIFEST)]
    digests = {_MANIFEST: Blob(hashlib.sha256(text).hexdigest(), len(text))}
    for path, size, sha256 in listed:
        file = folder / _FILES / path
        if file.is_symlink() or not file.is_file() or file.stat().st_size != size:
            raise Damaged(f"{path} is not as long as it was")
        with file.open("rb") as content:
            if hashlib.file_digest(content, "sha256").hexdigest() != sha256:
                raise Damaged(f"{path} has other bytes than were saved")
        files.append((f"{_FILES}/{path}", file))
        digests[f"{_FILES}/{path}"] = Blob(sha256, size)
    total = sum(size for _, size, _ in listed)
    plain = step if isinstance(step, int) and not isinstance(step, bool) else None
    return Found(number, plain, at, files, total, digests)


def _inside(path: Any) -> str:
    """A relative path that stays in its folder. Raises `ValueError`."""
    pure = PurePosixPath(path)
    if not isinstance(path, str) or pure.is_absolute() or ".." in pure.parts or not pure.parts:
        raise ValueError("a path that leads out")
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
            scripts.note(
                connection,
                look.trial.id,
                Note.CHECKPOINT_COPIED,
                f"Checkpoint {number}{step} is kept: {row.files} files, {row.bytes} bytes.",
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
        for path, place in found.files:
            blob = found.digests[path]
            with place.open("rb") as content:
                blobs.put(content, sha256=blob.sha256, size=blob.size)
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
