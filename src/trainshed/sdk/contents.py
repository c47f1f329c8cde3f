"""Datasets, Models, Recipes and Plugins: publish, read, download, and decide who may read them."""

from __future__ import annotations

import hashlib
import io
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from trainshed.sdk.answers import LARGEST_PAGE, Page, mapping, page, split_name
from trainshed.sdk.content_objects import (
    Content,
    ContentVersion,
    PublishedContent,
    PublishProgress,
    content,
    content_version,
)
from trainshed.sdk.errors import (
    DAMAGED_HINT,
    ConfigurationError,
    IntegrityError,
    InvalidAnswer,
    LocalFileError,
    NotFound,
)
from trainshed.sdk.transport import Transport, route

if TYPE_CHECKING:
    from trainshed.model.content import ContentFile

PARALLEL = 4
T = TypeVar("T")
R = TypeVar("R")


class Contents:
    """The contents of one kind that this key may read: ``client.datasets`` and its siblings."""

    def __init__(self, transport: Transport, kind: str) -> None:
        self._transport = transport
        self.kind = kind

    def list(self, *, cursor: str | None = None, limit: int = 25, q: str | None = None) -> Page[Content]:
        """One page, the newest first; ``q`` is part of a name."""
        query = {"cursor": cursor, "limit": limit, "q": q}
        return page(self._transport.call("GET", self._route(), query=query), content)

    def iter_all(self, *, q: str | None = None) -> Iterator[Content]:
        """Every readable one, page by page as they are needed."""
        return _walk(lambda cursor: self.list(cursor=cursor, limit=LARGEST_PAGE, q=q))

    def get(self, name: str) -> Content:
        """``namespace/name``: what it is, who may read it (``raw``), and its newest version."""
        full, ref = self._split(name)
        if ref:
            raise ConfigurationError(f"`{name}`: `version` reads one version; leave out the `@…` here")
        return content(self._transport.call("GET", self._route(*full)))

    def version(self, name: str) -> ContentVersion:
        """``namespace/name@ref``, where the ref is a label or a manifest's digest; without one the newest."""
        full, ref = self._split(name)
        ref = ref or self.get(name).newest.manifest_sha256
        return content_version(self._transport.call("GET", self._route(*full, "versions", ref)))

    def versions(self, name: str, *, cursor: str | None = None, limit: int = 25) -> Page[ContentVersion]:
        """One page of the versions that are not withdrawn, newest first."""
        full, _ = self._split(name)
        query = {"cursor": cursor, "limit": limit}
        return page(self._transport.call("GET", self._route(*full, "versions"), query=query), content_version)

    def files(
        self, name: str, *, cursor: str | None = None, limit: int = LARGEST_PAGE
    ) -> Page[Mapping[str, Any]]:
        """One page of the files of a version, each with ``path``, ``size``, ``sha256``, ``executable``."""
        version = self.version(name)
        where = self._version_route(version, "files")
        answer = self._transport.call("GET", where, query={"cursor": cursor, "limit": limit})
        return page(answer, lambda raw: mapping(raw, "a file"))

    def read_file(self, name: str, path: str) -> Iterator[bytes]:
        """The bytes of one file of a version, as they arrive.

        They are proved on the way, and the end is the proof: raises `IntegrityError` there (at once where
        there are too many) unless they are those of the version's manifest. Raises `NotFound`.
        """
        version = self.version(name)
        file = next((each for each in self._listed(version) if each.path == path), None)
        if file is None:
            noun = self.kind.removesuffix("s")
            raise NotFound(
                HTTPStatus.NOT_FOUND,
                "NOT_FOUND",
                f"{version.uri} has no file `{path}`",
                hint=f"`trainshed {noun} files {version.name}@{version.version}` lists them.",
            )
        return _proved(self._transport.read(self._version_route(version, "blobs", file.sha256)), file)

    def manifest(self, name: str) -> bytes:
        """The manifest of a version: canonical JSON, proved to be what its digest names.

        Raises `IntegrityError`.
        """
        return self._manifest(self.version(name))

    def _manifest(self, version: ContentVersion) -> bytes:
        data = b"".join(self._transport.read(self._version_route(version, "manifest")))
        if (found := hashlib.sha256(data).hexdigest()) != version.manifest_sha256:
            raise IntegrityError(
                f"the manifest of {version.uri} has SHA-256 {found}, not {version.manifest_sha256}",
                hint=DAMAGED_HINT,
            )
        return data

    def publish(
        self,
        path: str | Path,
        *,
        name: str,
        version: str | None = None,
        visibility: str | None = None,
        projects: Sequence[str] = (),
        exclude: Sequence[str] = (),
        parallel: int = PARALLEL,
        progress: Callable[[PublishProgress], None] | None = None,
    ) -> PublishedContent:
        """Publish a folder, or one file, as a version of ``name`` (``namespace/name``).

        A name that is there keeps its visibility unless one is given; ``projects`` names who may read with
        visibility ``projects``. What ``exclude`` names, each as a line of a ``.gitignore``, is left out; of a
        Recipe or Plugin also what git ignores there and what looks like credentials, which ``skipped`` and
        ``reasons`` of the answer tell. Only what the server lacks is uploaded, and only files that were
        touched since the last publication are read. Without ``version`` the manifest's digest is its label.
        Publishing the same again changes nothing. Raises `NotFreezable` with every fault before anything is
        sent, `LocalFileError`, `ApiError`.
        """
        full, ref = self._split(name, "namespace/name")
        if ref:
            raise ConfigurationError(
                f"`{name}`: a name to publish under has no `@…`; give the version apart",
                hint=f"Name it {'/'.join(full)}, and its version {ref} (`--version {ref}`).",
            )
        if (visibility == "projects") != bool(projects):
            raise ConfigurationError("visibility `projects` needs `projects`, and only it takes any")
        from trainshed.sdk.publication import Publication  # noqa: PLC0415 - publishing only

        if isinstance(exclude, str):
            raise ConfigurationError(f"exclude is a list of patterns: [{exclude!r}]")
        said = {"version": version, "visibility": visibility, "projects": list(projects) or None}
        task = Publication(self._transport, self.kind, full, said, exclude, parallel, progress)
        return task.run(Path(path))

    def download(
        self,
        name: str,
        folder: str | Path,
        *,
        overwrite: bool = False,
        parallel: int = PARALLEL,
        progress: Callable[[int, int], None] | None = None,
        files_progress: Callable[[int, int], None] | None = None,
    ) -> ContentVersion:
        """Download every file of a version into ``folder``; each is verified before it has its name.

        What is there already with the right bytes is kept, and a file that was begun is gone on with, so
        calling again finishes what was interrupted. ``progress`` is told bytes done and bytes in all,
        ``files_progress`` files done and files in all. Raises
        `UnsafeName`, `LocalFileError`, `IntegrityError`, `NotFound` (it may be withdrawn meanwhile).
        """
        from trainshed.model.manifests import tree_faults  # noqa: PLC0415 - downloads only

        version = self.version(name)
        files = self._listed(version)
        if faults := tree_faults(file.path for file in files):
            raise IntegrityError(f"{version.uri} holds a name that no folder can: {faults[0].message}")
        self._fetch(
            version,
            files,
            Path(folder),
            overwrite=overwrite,
            parallel=parallel,
            progress=progress,
            files_progress=files_progress,
        )
        return version

    def withdraw(self, name: str) -> Mapping[str, Any]:
        """Make a version unfindable for new submissions: by its label, or all labels of a digest."""
        full, ref = self._split(name)
        if not ref:
            raise ConfigurationError(f"`{name}`: name the version to withdraw after an `@`")
        answer = self._transport.call("DELETE", self._route(*full, "versions", ref))
        return mapping(answer, "a withdrawal")

    def set_visibility(self, name: str, visibility: str, projects: Sequence[str] = ()) -> Mapping[str, Any]:
        """Who may read it: ``public``, ``project`` (its owner), or ``projects`` (also those named)."""
        full, ref = self._split(name)
        if ref:
            raise ConfigurationError("visibility belongs to a name, not to one version: leave out the `@…`")
        body: dict[str, Any] = {"visibility": visibility}
        if projects:
            body["projects"] = list(projects)
        return mapping(
            self._transport.call("PUT", self._route(*full, "visibility"), body=body), "a visibility"
        )

    def _listed(self, version: ContentVersion) -> Sequence[ContentFile]:
        """The files of a version, out of its proved manifest."""
        from trainshed.model.manifests import ManifestFault, ManifestScan  # noqa: PLC0415 - reading files only

        data = self._manifest(version)
        try:
            return list(ManifestScan(io.BytesIO(data).read))
        except ManifestFault as fault:
            raise InvalidAnswer(f"the manifest of {version.uri} is none: {fault}") from None

    def _fetch(
        self,
        version: ContentVersion,
        files: Sequence[ContentFile],
        folder: Path,
        *,
        overwrite: bool,
        parallel: int,
        progress: Callable[[int, int], None] | None,
        files_progress: Callable[[int, int], None] | None,
    ) -> None:
        from trainshed.sdk.download import Source, check_names, fetch_file  # noqa: PLC0415 - downloads only
        from trainshed.sdk.small_files import MAX_THREADS, SMALL_BYTES, SmallFiles, batches, sync_folders  # noqa: PLC0415 - as above

        check_names(file.path for file in files)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LocalFileError(f"cannot make the folder {folder}: {error.strerror}") from error
        meter = _Meter(sum(file.size for file in files), len(files), progress, files_progress)

        def one(source: Source) -> None:
            moved = partial(meter.moved, source.name)
            fetch_file(self._transport, source, folder, overwrite=overwrite, progress=moved)
            meter.named()

        def small_one(source: Source) -> None:
            meter.moved(source.name, source.size)
            meter.named()

        together = SmallFiles(
            self._transport, self._version_route(version, "blobs"), folder, overwrite, small_one
        )
        sources = [
            Source(
                file.path,
                file.size,
                file.sha256,
                self._version_route(version, "blobs", file.sha256),
                f"{file.sha256} {file.path}",
                executable=file.executable,
            )
            for file in files
        ]
        small = [source for source in sources if source.size <= SMALL_BYTES]
        large = [source for source in sources if source.size > SMALL_BYTES]
        try:
            _all_of(one, large, parallel)
            left = _all_of(together.fetch, list(batches(small)), min(parallel, MAX_THREADS))
            _all_of(one, [source for some in left for source in some], parallel)
        except NotFound as error:
            hint = "It was withdrawn meanwhile; what is here stays, and goes on once it is published again."
            raise NotFound(error.status, error.code, error.message, hint=hint) from error
        sync_folders(folder, (file.path for file in files))

    def _split(self, name: str, form: str = "namespace/name[@version]") -> tuple[tuple[str, str], str]:
        """``namespace/name[@ref]``, or the same as ``envloop://KIND/…``; raises `ConfigurationError`."""
        return split_name(plain_name(self.kind, name), form)

    def _route(self, *parts: str) -> str:
        return route("content", self.kind, *parts)

    def _version_route(self, version: ContentVersion, *parts: str) -> str:
        return self._route(*version.name.split("/"), "versions", version.manifest_sha256, *parts)


class Plugins(Contents):
    """``client.plugins``: as other contents, and approved or not on this deployment (E94)."""

    def __init__(self, transport: Transport) -> None:
        super().__init__(transport, "plugins")

    def approve(self, name: str) -> Mapping[str, Any]:
        """Allow the package ``namespace/name@ref`` here, by its digest. Needs the owner key."""
        return self._decide("PUT", name)

    def revoke(self, name: str) -> Mapping[str, Any]:
        """Stop allowing a package. Trials that wait with it will not start. Needs the owner key."""
        return self._decide("DELETE", name)

    def approvals(self, *, cursor: str | None = None, limit: int = 25) -> Page[Mapping[str, Any]]:
        """One page of approved and revoked packages."""
        query = {"cursor": cursor, "limit": limit}
        answer = self._transport.call("GET", self._route("approvals"), query=query)
        return page(answer, lambda raw: mapping(raw, "an approval"))

    def _decide(self, method: str, name: str) -> Mapping[str, Any]:
        full, ref = self._split(name)
        if not ref:
            raise ConfigurationError(f"`{name}`: name the version or digest to decide of after an `@`")
        where = self._route(*full, "versions", ref, "approval")
        return mapping(self._transport.call(method, where), "an approval")


@dataclass(slots=True)
class _Meter:
    """How far a download is."""

    bytes: int
    files: int
    tell_bytes: Callable[[int, int], None] | None
    tell_files: Callable[[int, int], None] | None
    _here: dict[str, int] = field(default_factory=dict)
    _bytes_done: int = 0
    _files_done: int = 0
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def moved(self, path: str, count: int) -> None:
        with self._guard:
            self._bytes_done += count - self._here.get(path, 0)
            self._here[path] = count
            if self.tell_bytes is not None:
                self.tell_bytes(self._bytes_done, self.bytes)

    def named(self) -> None:
        with self._guard:
            self._files_done += 1
            if self.tell_files is not None:
                self.tell_files(self._files_done, self.files)


def _all_of(do: Callable[[T], R], things: Sequence[T], parallel: int) -> list[R]:
    """What ``do`` makes of each thing, several at a time; the first failure ends the others."""
    from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait  # noqa: PLC0415 - downloads only

    if not things:
        return []
    with ThreadPoolExecutor(max_workers=max(1, parallel)) as pool:
        tasks = [pool.submit(do, thing) for thing in things]
        try:
            for task in wait(tasks, return_when=FIRST_EXCEPTION).done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
        return [task.result() for task in tasks]


def _proved(pieces: Iterator[bytes], file: ContentFile) -> Iterator[bytes]:
    """The pieces, as long as they can be the file's; raises `IntegrityError` where they are not."""
    digest, size = hashlib.sha256(), 0
    for piece in pieces:
        digest.update(piece)
        size += len(piece)
        if size > file.size:
            break
        yield piece
    if (size, digest.hexdigest()) != (file.size, file.sha256):
        found = "more" if size > file.size else f"{size} bytes with SHA-256 {digest.hexdigest()}"
        raise IntegrityError(
            f"{file.path}: what arrived is damaged: announced were {file.size} bytes with {file.sha256}, "
            f"got {found}",
            hint="Do not use what was read. Read it again; if it stays so, the stored bytes are damaged, "
            "and `trainshed content verify` names them.",
        )


def plain_name(kind: str, name: str) -> str:
    """``name`` without ``envloop://KIND/``; raises `ConfigurationError` where it is of another kind."""
    scheme, _, rest = name.partition("envloop://")
    if scheme or not rest:
        return name
    found, _, plain = rest.partition("/")
    if found != kind:
        raise ConfigurationError(f"`{name}` names one of the {found}, and one of the {kind} is meant here")
    return plain


def _walk(fetch: Callable[[str | None], Page[Content]]) -> Iterator[Content]:
    cursor = None
    while True:
        found = fetch(cursor)
        yield from found
        if found.next_cursor is None:
            return
        if found.next_cursor == cursor:
            raise InvalidAnswer("the list does not end: its cursor repeats")
        cursor = found.next_cursor
