"""Downloading artifacts and contents: whole, verified, and never outside the target folder.

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
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from trainshed.sdk.errors import DAMAGED_HINT, IntegrityError, LocalFileError, TrainshedError, UnsafeName
from trainshed.sdk.objects import Artifact
from trainshed.sdk.transport import ByteAnswer, Transport, route

MAX_PARALLEL = 4
_CHUNK = 1 << 20
_READABLE = stat.S_IRUSR | stat.S_IRGRP | stat.S_IROTH
_CONTROL_OR_DRIVE = re.compile(r"[\x00-\x1f\x7f]|^[A-Za-z]:")
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Progress(Protocol):
    """Told about every chunk, from several threads at once."""

    def __call__(self, artifact: Artifact, done: int, /) -> None:
        """``done`` bytes of ``artifact`` are here and ``artifact.size`` will be."""
        ...


@dataclass(frozen=True, slots=True)
class Source:
    """One file to download: what it is called, what it must be, and where its bytes are."""

    name: str
    size: int
    sha256: str
    """Empty where nobody announced it."""
    route: str
    key: str
    """What its part file is named after: a download goes on only for the same thing."""
    executable: bool = False


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


def check_names(names: Iterable[str]) -> None:
    """Refuse a list in which any name could leave the folder or two meet; before anything is written.

    Raises `UnsafeName`.
    """
    folders: set[str] = set()
    known: set[str] = set()
    for name in names:
        parts = name.split("/")
        bad = any(part in {"", ".", ".."} for part in parts) or "\\" in name or _CONTROL_OR_DRIVE.search(name)
        if bad or name in known:
            raise UnsafeName(f"the name {name!r} {'appears twice' if name in known else 'is not safe'}")
        known.add(name)
        folders.update("/".join(parts[:count]) for count in range(1, len(parts)))
    if clash := known & folders:
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
    check_names(artifact.name for artifact in artifacts)
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
    source = Source(
        artifact.name,
        artifact.size,
        artifact.sha256,
        route("trials", trial_id, "artifacts", artifact.artifact_id, "content"),
        artifact.artifact_id,
    )
    moved = None if progress is None else partial(progress, artifact)
    return fetch_file(transport, source, folder, overwrite=overwrite, progress=moved)


def fetch_file(
    transport: Transport,
    source: Source,
    folder: Path,
    *,
    overwrite: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Path:
    """Download one file to ``folder / source.name`` and return that path; raises as `download_one` does.

    ``progress`` is told how many bytes of it are here.
    """
    check_names([source.name])
    target = folder / source.name
    try:
        with open_parent(folder, source.name) as parent:
            if not in_the_way(parent, target, source, overwrite=overwrite):
                _fetch(transport, source, parent, target.name, progress)
    except OSError as error:
        raise LocalFileError(f"cannot write {target}: {error.strerror or error}") from error
    if progress is not None:
        progress(source.size)
    return target


def in_the_way(parent: int, target: Path, source: Source, *, overwrite: bool) -> bool:
    """Whether the wanted file is there already; raises if something else is."""
    try:
        info = os.stat(target.name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return False
    if not stat.S_ISREG(info.st_mode):
        raise UnsafeName(f"{target} is a link, a folder or a device; nothing was written")
    if info.st_size == source.size and source.sha256:
        with os.fdopen(_open_at(parent, target.name, os.O_RDONLY), "rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() == source.sha256:
                return True
    if not overwrite:
        raise LocalFileError(
            f"{target} exists with other content",
            hint="Choose another folder, or replace it with `--overwrite` (`overwrite=True`).",
        )
    return False


def _fetch(
    transport: Transport, source: Source, parent: int, name: str, progress: Callable[[int], None] | None
) -> None:
    part, descriptor = open_part(source, parent, name)
    with os.fdopen(descriptor, "r+b", buffering=0):

        def once() -> str:
            digest, start = _resume(descriptor, source.size)
            if start < source.size or source.size == 0:
                with transport.stream(source.route, start=start, etag=source.sha256) as answer:
                    digest = _write(answer, descriptor, digest, start, source.size, progress)
            return digest.hexdigest()

        try:
            found = transport.repeat(once)
        except TrainshedError:
            # An empty part is nothing to go on with.
            if os.fstat(descriptor).st_size == 0:
                os.unlink(part, dir_fd=parent)
            raise
        size = os.fstat(descriptor).st_size
        if size != source.size or (source.sha256 and found != source.sha256):
            os.unlink(part, dir_fd=parent)
            raise IntegrityError(
                f"{source.name}: got {size} bytes with SHA-256 {found}, "
                f"announced were {source.size} bytes with {source.sha256 or 'no digest'}",
                hint=DAMAGED_HINT,
            )
        set_mode(source, descriptor)
        os.fsync(descriptor)
        os.rename(part, name, src_dir_fd=parent, dst_dir_fd=parent)


def open_part(source: Source, parent: int, name: str) -> tuple[str, int]:
    """The name and the descriptor of the part file, locked against other downloads."""
    part = f".trainshed-{hashlib.sha256(source.key.encode()).hexdigest()[:16]}.part"
    descriptor = _open_at(parent, part, os.O_RDWR | os.O_CREAT)
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, descriptor)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise UnsafeName(f"{part} is not a regular file")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LocalFileError(f"another download is writing {name} in the same folder") from None
        stack.pop_all()
    return part, descriptor


def set_mode(source: Source, descriptor: int) -> None:
    """What was published executable is so for all who may read it."""
    if source.executable:
        mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
        os.fchmod(descriptor, mode | (mode & _READABLE) >> 2)


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
    size: int,
    progress: Callable[[int], None] | None,
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
        if start > size:
            break
        if progress is not None:
            progress(start)
    return digest


@contextlib.contextmanager
def open_parent(folder: Path, name: str) -> Iterator[int]:
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
