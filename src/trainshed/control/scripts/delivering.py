"""DELIVER: outputs are written into the project's folder, where that is on this machine (section i).

Nothing that is there is overwritten but files of the same names; no link is followed, neither one that leads
there nor one among what was written. Each file appears wholly or not at all.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from trainshed.content.blobs import BlobError, BlobStore
from trainshed.control.crashpoints import Point, reach
from trainshed.control.scripts.ending import OUTPUTS
from trainshed.control.scripts.ground import Ground, look_at
from trainshed.model.scripts.states import Note
from trainshed.model.words import counted
from trainshed.store import jobs, scripts
from trainshed.store.database import Connection
from trainshed.store.records import Artifact

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_PAGE = 500


class Undelivered(Exception):
    """Why outputs are not where they belong, in a sentence."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """What was written."""

    files: int
    bytes: int


class Deliverer:
    """Writes outputs of Jobs of this machine. Thread-safe for different Trials; may be repeated at will."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground

    def wanted(self, host: str) -> bool:
        """Whether outputs for a folder on ``host`` are written by this server."""
        work = self._ground.work
        return work.deliver and bool(host) and host == work.host

    def deliver(self, trial_id: str) -> Delivered:
        """Write all outputs of a Job that has ended, and note it. Raises `Undelivered`."""
        ground, now = self._ground, self._ground.clock()
        with ground.database.read() as connection:
            look = look_at(connection, trial_id, now)
            if look is None or not self.wanted(look.script.host):
                raise Undelivered("its folder is not on this server's machine")
            listed = list(_artifacts(connection, trial_id))
        try:
            done = write_outputs(Path(look.script.outputs_dir), listed, ground.blobs)
        except OSError as error:
            where = error.filename or look.script.outputs_dir
            raise Undelivered(f"{where} cannot be written: {error.strerror}") from error
        except BlobError as error:
            raise Undelivered(f"an output cannot be read: {error}") from error
        reach(Point.SCRIPT_AFTER_DELIVERY)

        def store(connection: Connection) -> None:
            what = f"{counted(done.files, 'file')}, {counted(done.bytes, 'byte')}"
            said = f"{what}, brought to {look.script.outputs_dir}."
            values = {"outputs_fetched": True, "outputs_count": done.files}
            scripts.note(connection, trial_id, Note.FETCHED, said, at=now, values=values)

        ground.database.write(store)
        return done

    def note_nothing(self, trial_id: str) -> None:
        """Say that there is nothing to write: of a Job that never ran there is no folder either (i.1)."""
        now = self._ground.clock()
        said = "It never ran, so there is nothing to bring."
        values = {"outputs_fetched": True, "outputs_count": 0}
        self._ground.database.write(
            lambda connection: scripts.note(connection, trial_id, Note.FETCHED, said, at=now, values=values)
        )

    def note_failure(self, trial_id: str, why: str) -> None:
        """Say that nothing more is tried by itself (i.2)."""
        now = self._ground.clock()
        said = f"Outputs are not in the project's folder: {why}. `gpu fetch` tries again."
        self._ground.database.write(
            lambda connection: scripts.note(
                connection,
                trial_id,
                Note.FETCH_FAILED,
                said,
                at=now,
                level="warning",
                values={"message": said},
            )
        )


def _artifacts(connection: Connection, trial_id: str) -> Iterator[Artifact]:
    after: str | None = None
    while page := jobs.list_artifacts(connection, trial_id, after=after, limit=_PAGE):
        yield from (each for each in page if each.sha256 is not None and each.upload_state == "uploaded")
        after = page[-1].id


def write_outputs(target: Path, outputs: list[Artifact], blobs: BlobStore) -> Delivered:
    """Write ``outputs`` below ``target``, made if it is missing. Raises `OSError` and `BlobError`."""
    size = 0
    with _opened(target.parent, target.name) as top:
        for each in outputs:
            path = PurePosixPath(each.name)
            inside = path.relative_to(OUTPUTS) if path.parts[0] == OUTPUTS else path
            with _below(top, inside.parent.parts) as folder:
                _write(folder, inside.name, blobs, each.sha256 or "")
            size += each.size
    return Delivered(len(outputs), size)


@contextmanager
def _opened(parent: Path, name: str) -> Iterator[int]:
    """``parent/name`` as a directory that is no link; ``parent`` may be made, what is above it may not."""
    above = os.open(parent.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with _below(above, (parent.name, name)) as top:
            yield top
    finally:
        os.close(above)


@contextmanager
def _below(top: int, parts: tuple[str, ...]) -> Iterator[int]:
    """The directory ``parts`` below ``top``, made as far as it is missing; no part may be a link."""
    here = os.dup(top)
    try:
        for part in parts:
            with suppress(FileExistsError):
                os.mkdir(part, 0o755, dir_fd=here)
            inner = os.open(part, _DIRECTORY, dir_fd=here)
            os.close(here)
            here = inner
        yield here
    finally:
        os.close(here)


def _write(folder: int, name: str, blobs: BlobStore, sha256: str) -> None:
    part = f".{secrets.token_hex(16)}.part"  # a name may be as long as names can be
    fd = os.open(part, _NEW, 0o644, dir_fd=folder)
    try:
        with os.fdopen(fd, "wb") as file, blobs.open(sha256) as source:
            for chunk in source.chunks():
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        os.unlink(part, dir_fd=folder)
        raise
