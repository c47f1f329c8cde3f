"""Downloading a Trial's artifacts: whole, verified, and never outside the target folder.

Each file is written to a hidden part file beside its place, continued where an earlier try ended, checked
for size and SHA-256, synced and renamed. Folders below the target are opened one by one without following
links, so no link (there before, or put there meanwhile) can lead a write elsewhere.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import stat
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from trainshed.sdk.errors import IntegrityError, LocalFileError, TrainshedError, UnsafeName
from trainshed.sdk.objects import Artifact
from trainshed.sdk.transport import ByteAnswer, Transport, route

MAX_PARALLEL = 4
_CHUNK = 1 << 20
_CONTROL_OR_DRIVE = re.compile(r"[\x00-\x1f\x7f]|^[A-Za-z]:")
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Progress(Protocol):
    """Told about every chunk, from several threads at once."""

    def __call__(self, artifact: Artifact, done: int, /) -> None:
        """``done`` bytes of ``artifact`` are here and ``artifact.size`` will be."""
        ...


@dataclass(frozen=True, slots=True)
class Downloaded:
    """One verified file, or why there is none (``error``, or not uploaded by the server)."""

    artifact: Artifact
    path: Path | None
    error: TrainshedError | None = None

    @property
    def skipped(self) -> bool:
        """The server does not hold it (``upload_state`` is not ``uploaded``)."""
        return self.path is None and self.error is None


def check_names(artifacts: Sequence[Artifact]) -> None:
    """Refuse a list in which any name could leave the folder or two meet; before anything is written.

    Raises `UnsafeName`.
    """
    folders: set[str] = set()
    names: set[str] = set()
    for artifact in artifacts:
        name = artifact.name
        parts = name.split("/")
        bad = any(part in {"", ".", ".."} for part in parts) or "\\" in name or _CONTROL_OR_DRIVE.search(name)
        if bad or name in names:
            raise UnsafeName(
                f"the artifact name {name!r} {'appears twice' if name in names else 'is not safe'}"
            )
        names.add(name)
        folders.update("/".join(parts[:count]) for count in range(1, len(parts)))
    if clash := names & folders:
        raise UnsafeName(f"{min(clash)!r} is both a file and a folder")


def download_all(
    transport: Transport,
    trial_id: str,
    artifacts: Sequence[Artifact],
    folder: Path,
    *,
    overwrite: bool = False,
    parallel: int = MAX_PARALLEL,
    progress: Progress | None = None,
) -> list[Downloaded]:
    """Download what is uploaded into ``folder``, several files at a time; the results in list order."""
    check_names(artifacts)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LocalFileError(f"cannot make the folder {folder}: {error.strerror}") from error

    def one(artifact: Artifact) -> Downloaded:
        if not artifact.downloadable:
            return Downloaded(artifact, None)
        try:
            path = download_one(transport, trial_id, artifact, folder, overwrite=overwrite, progress=progress)
        except TrainshedError as error:
            return Downloaded(artifact, None, error)
        return Downloaded(artifact, path)

    with ThreadPoolExecutor(max_workers=max(1, min(parallel, len(artifacts) or 1))) as pool:
        return list(pool.map(one, artifacts))


def download_one(
    transport: Transport,
    trial_id: str,
    artifact: Artifact,
    folder: Path,
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Download one artifact to ``folder / artifact.name`` and return that path.

    A file that is already there with the right bytes is kept. Raises `UnsafeName`, `LocalFileError`,
    `IntegrityError`, `ApiError` or `ConnectionFailed`.
    """
    check_names([artifact])
    target = folder / artifact.name
    try:
        with _open_parent(folder, artifact.name) as parent:
            if not _in_the_way(parent, target, artifact, overwrite=overwrite):
                _fetch(transport, trial_id, artifact, parent, target.name, progress)
    except OSError as error:
        raise LocalFileError(f"cannot write {target}: {error.strerror or error}") from error
    if progress is not None:
        progress(artifact, artifact.size)
    return target


def _in_the_way(parent: int, target: Path, artifact: Artifact, *, overwrite: bool) -> bool:
    """Whether the wanted file is there already; raises if something else is."""
    try:
        info = os.stat(target.name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return False
    if not stat.S_ISREG(info.st_mode):
        raise UnsafeName(f"{target} is a link, a folder or a device; nothing was written")
    if info.st_size == artifact.size and artifact.sha256:
        with os.fdopen(_open_at(parent, target.name, os.O_RDONLY), "rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() == artifact.sha256:
                return True
    if not overwrite:
        raise LocalFileError(
            f"{target} exists with other content",
            hint="Choose another folder, or replace it with `--overwrite` (`overwrite=True`).",
        )
    return False


def _fetch(
    transport: Transport,
    trial_id: str,
    artifact: Artifact,
    parent: int,
    name: str,
    progress: Progress | None,
) -> None:
    part = f".trainshed-{hashlib.sha256(artifact.artifact_id.encode()).hexdigest()[:16]}.part"
    descriptor = _open_at(parent, part, os.O_RDWR | os.O_CREAT)
    with os.fdopen(descriptor, "r+b", buffering=0):
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise UnsafeName(f"{part} is not a regular file")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LocalFileError(f"another download is writing {name} in the same folder") from None
        path = route("trials", trial_id, "artifacts", artifact.artifact_id, "content")

        def once() -> str:
            digest, start = _resume(descriptor, artifact.size)
            if start < artifact.size or artifact.size == 0:
                with transport.stream(path, start=start, etag=artifact.sha256) as answer:
                    digest = _write(answer, descriptor, digest, start, artifact, progress)
            return digest.hexdigest()

        found = transport.repeat(once)
        size = os.fstat(descriptor).st_size
        if size != artifact.size or (artifact.sha256 and found != artifact.sha256):
            os.unlink(part, dir_fd=parent)
            raise IntegrityError(
                f"{artifact.name}: got {size} bytes with SHA-256 {found}, "
                f"announced were {artifact.size} bytes with {artifact.sha256 or 'no digest'}",
                hint="Download it again; if it stays so, the stored artifact is damaged.",
            )
        os.fsync(descriptor)
        os.rename(part, name, src_dir_fd=parent, dst_dir_fd=parent)


def _resume(descriptor: int, size: int) -> tuple[hashlib._Hash, int]:
    """Hash what an earlier try left; a part that is too long is thrown away."""
    digest = hashlib.sha256()
    if os.fstat(descriptor).st_size > size:
        os.ftruncate(descriptor, 0)
    os.lseek(descriptor, 0, os.SEEK_SET)
    start = 0
    while chunk := os.read(descriptor, _CHUNK):
        digest.update(chunk)
        start += len(chunk)
    return digest, start


def _write(
    answer: ByteAnswer,
    descriptor: int,
    digest: hashlib._Hash,
    start: int,
    artifact: Artifact,
    progress: Progress | None,
) -> hashlib._Hash:
    if answer.start != start:
        os.ftruncate(descriptor, 0)
        os.lseek(descriptor, 0, os.SEEK_SET)
        digest, start = hashlib.sha256(), 0
    for chunk in answer.chunks():
        view = memoryview(chunk)
        while view:
            view = view[os.write(descriptor, view) :]
        digest.update(chunk)
        start += len(chunk)
        if start > artifact.size:
            break
        if progress is not None:
            progress(artifact, start)
    return digest


@contextlib.contextmanager
def _open_parent(folder: Path, name: str) -> Iterator[int]:
    """The folder that will hold ``name``, created as needed, reached without following any link."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in name.split("/")[:-1]:
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, 0o755, dir_fd=descriptor)
            try:
                below = os.open(part, _FOLDER_FLAGS, dir_fd=descriptor)
            except OSError as error:
                raise UnsafeName(
                    f"{part!r} in {folder} is a link or no folder; nothing was written"
                ) from error
            os.close(descriptor)
            descriptor = below
        yield descriptor
    finally:
        os.close(descriptor)


def _open_at(parent: int, name: str, flags: int) -> int:
    try:
        return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666, dir_fd=parent)
    except OSError as error:
        raise UnsafeName(f"{name!r} is a link or cannot be opened: {error.strerror}") from error
