"""Manifests in the store: proving that one may be published, and reading the files of one that was."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from trainshed.content.blobs import BlobStore
from trainshed.model.about import AboutCheck, check_about
from trainshed.model.content import ContentFile, ContentKind
from trainshed.model.errors import Fault, Refusal
from trainshed.model.manifests import (
    ENTRY_START,
    MAX_ABOUT_BYTES,
    ManifestFault,
    ManifestScan,
    PathRules,
    read_entries,
)
from trainshed.model.recipe import MAX_RECIPE_BYTES, RECIPE_FILE, parse_recipe
from trainshed.model.runner_tree import path_text

_CODE = "INVALID_CONTENT"
_WINDOW = 64 << 10
"""Bytes; several times the longest entry."""
_AFTER_SLASH = "0"
"""The character that follows ``/``: with it a name is in order right behind everything below the folder."""


@dataclass(frozen=True, slots=True)
class VerifiedManifest:
    """A manifest whose own bytes, names and words were checked. Whether its blobs are stored is not."""

    kind: ContentKind
    sha256: str
    size: int
    about: dict[str, Any]
    files: int
    bytes: int
    blobs: dict[str, int] = field(repr=False)
    """SHA-256 of each file's bytes -> their number."""
    recipe_sha256: str | None = None
    """The blob of a Recipe's ``recipe.toml``."""


def verify_manifest(read: Callable[[int], bytes], kind: ContentKind, sha256: str) -> VerifiedManifest:
    """Verify the manifest that ``read`` answers piece by piece, in one pass.

    Raises `Refusal` ``INVALID_CONTENT`` with every fault found, ``CONTENT_HASH_MISMATCH`` where its SHA-256
    is not ``sha256``.
    """
    names = PathRules()
    blobs: dict[str, int] = {}
    recipe_sha256 = None
    try:
        scan = ManifestScan(read, lambda where, message: names.fault(where, f"`{where}`: {message}"))
        words = AboutCheck(kind, scan.about)
        for file in scan:
            names.add(file.path)
            words.see(file.path)
            if (size := blobs.setdefault(file.sha256, file.size)) != file.size:
                shown = path_text(file.path)
                names.fault(file.path, f"`{shown}` has {file.size} bytes, another file of its digest {size}")
            if file.path == RECIPE_FILE:
                recipe_sha256 = file.sha256
    except ManifestFault as fault:
        broken = Fault("manifest", _CODE, f"this is no manifest: {fault}")
        raise Refusal([broken, *names.finish()], left_out=names.left_out) from None
    faults = names.finish()
    if scan.sha256 != sha256:
        said = f"the manifest's SHA-256 is {scan.sha256}, not {sha256}"
        faults = [*faults, Fault("manifest_sha256", "CONTENT_HASH_MISMATCH", said)]
    if scan.kind is not kind:
        said = f"the manifest is one of {scan.kind}, and {kind} are published here"
        faults = [*faults, Fault("manifest.kind", _CODE, said)]
    else:
        # What no file seems to be may be one whose entry could not be read.
        faults = [*faults, *(check_about(kind, scan.about) if scan.unread else words.finish())]
    if not scan.files:
        faults = [*faults, Fault("manifest.files", _CODE, f"a {kind.noun} has one file at least")]
    if faults:
        raise Refusal(faults, left_out=names.left_out)
    return VerifiedManifest(
        kind, sha256, scan.size, scan.about, scan.files, scan.total_bytes, blobs, recipe_sha256
    )


def check_recipe(manifest: VerifiedManifest, blobs: BlobStore) -> None:
    """Prove that a Recipe's manifest says what its ``recipe.toml`` says; its blobs are stored.

    Raises `Refusal` ``INVALID_CONTENT``.
    """
    if manifest.recipe_sha256 is None:
        raise Refusal.of(_CODE, f"a Recipe needs a `{RECIPE_FILE}` at the top", path=RECIPE_FILE)
    with blobs.open(manifest.recipe_sha256, 0, MAX_RECIPE_BYTES + 1) as reader:
        recipe = parse_recipe(reader.read())
    if recipe.about() != manifest.about:
        raise Refusal.of(_CODE, f"`about` is not what {RECIPE_FILE} says", path="manifest.about")


class StoredTree:
    """The files of a published manifest, read where they are needed: none of it is ever loaded whole."""

    def __init__(self, blobs: BlobStore, sha256: str) -> None:
        self._blobs = blobs
        self._sha256 = sha256
        self._size = blobs.size(sha256)
        with blobs.open(sha256, 0, 2 * MAX_ABOUT_BYTES) as reader:
            self._start = ManifestScan(reader.read).files_start

    def page(self, offset: int | None, limit: int) -> tuple[list[ContentFile], int | None]:
        """At most ``limit`` files from byte ``offset`` (the first ones without), and where to go on."""
        place = self._start if offset is None else offset
        found: list[ContentFile] = []
        while len(found) < limit:
            window = self._read(place)
            ended = 0
            for end, file in read_entries(window):
                found.append(file)
                ended = end
                if len(found) == limit:
                    break
            if not ended:
                return found, None
            place += ended
        # What follows the last entry of all is no entry.
        more = next(read_entries(self._read(place)), None) is not None
        return found, place if more else None

    def find(self, path: str) -> ContentFile | None:
        """The file of that path, found by halving."""
        found = self._from(_order(path))
        return found[1] if found is not None and found[1].path == path else None

    def has(self, path: str) -> bool:
        """Whether there is a file of that path, or one below it."""
        below = self._from(_order(f"{path}/"))
        return (below is not None and below[1].path.startswith(f"{path}/")) or self.find(path) is not None

    def names(self, folder: str, limit: int) -> list[str]:
        """At most ``limit`` names in a folder (``""`` is the top); those of folders end in ``/``.

        Whatever lies below a folder is jumped over, so that this costs about one read for each name.
        """
        before = f"{folder}/" if folder else ""
        found: dict[str, None] = {}
        here = self._from(_order(before))
        while here is not None:
            last = ""
            for _, file in read_entries(self._read(here[0])):
                if not file.path.startswith(before):
                    return list(found)
                name, slash, _ = file.path.removeprefix(before).partition("/")
                last = f"{name}{slash}"
                found[last] = None
                if len(found) == limit:
                    return list(found)
            beyond = f"{last[:-1]}{_AFTER_SLASH}" if last.endswith("/") else f"{last}\0"
            here = self._from(_order(f"{before}{beyond}"))
        return list(found)

    def _from(self, wanted: bytes) -> tuple[int, ContentFile] | None:
        """The first file that is not in order before ``wanted``, and the byte where its entry starts."""
        low, high = self._start, self._size
        while high - low > _WINDOW:
            middle = (low + high) // 2
            window = self._read(middle)
            match = ENTRY_START.search(window)
            first = next(read_entries(window[match.start() + 1 :]), None) if match else None
            if match is None or first is None or middle + match.start() + 1 >= high:
                high = middle
                continue
            if _order(first[1].path) <= wanted:
                low = middle + match.start() + 1
            else:
                high = middle
        # The entry at `high` or after it is too far; one before may go on past it.
        place = low
        for end, file in read_entries(self._read(low, high - low + _WINDOW)):
            if _order(file.path) >= wanted:
                return place, file
            place = low + end
        return None

    def _read(self, start: int, length: int = _WINDOW) -> bytes:
        with self._blobs.open(self._sha256, start, length) as reader:
            return reader.read()


def _order(path: str) -> bytes:
    return path.encode("utf-8", "surrogatepass")
