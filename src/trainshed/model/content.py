"""Named, immutable content: Datasets, Models, Recipes and Plugins, their manifests and their URIs.

A content is a list of files with their SHA-256 and what its publisher says about it. Both together, as
canonical JSON, are its manifest; the SHA-256 of the manifest names the content for good (E92, E99).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from trainshed.model.selectors import name_part_fault
from trainshed.model.strict_json import canonical_json

SCHEME = "envloop://"
MANIFEST_SCHEMA = "trainshed.manifest/1"
MAX_VERSION_CHARS = 128
_LATEST = "latest"
SHA256 = re.compile(r"[0-9a-f]{64}")
DIGEST_PREFIX = "sha256:"
VERSION = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._+-]{{0,{MAX_VERSION_CHARS - 1}}}")
"""A version label; a manifest's digest is one too."""


class ContentKind(StrEnum):
    """What a content is; the words are those of its URI (E104)."""

    DATASETS = "datasets"
    MODELS = "models"
    RECIPES = "recipes"
    PLUGINS = "plugins"

    @property
    def noun(self) -> str:
        """One of them, for sentences: ``Dataset``."""
        return self.value[:-1].capitalize()


@dataclass(frozen=True, slots=True)
class ContentUri:
    """``envloop://kind/namespace/name@ref``; the ref is a version label or a manifest's SHA-256.

    A digest may be written `sha256:HEX`, as in the contract's example of C11; here it is the HEX alone.
    """

    kind: ContentKind
    namespace: str
    name: str
    ref: str

    @property
    def full_name(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def pinned(self) -> bool:
        """Whether the ref is a manifest's digest, which never changes its meaning."""
        return SHA256.fullmatch(self.ref) is not None

    def __str__(self) -> str:
        return f"{SCHEME}{self.kind}/{self.full_name}@{self.ref}"


@dataclass(frozen=True, slots=True)
class ContentFile:
    """One file of a content. ``path`` is relative and POSIX."""

    path: str
    size: int
    sha256: str
    executable: bool = False


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a content is, wholly. Equal manifests have equal bytes and so equal names."""

    kind: ContentKind
    files: tuple[ContentFile, ...]
    """In the order of their paths' UTF-8 bytes."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """What its publisher says: configs and splits of a Dataset, ``recipe.toml`` of a Recipe. JSON values."""

    @property
    def total_bytes(self) -> int:
        return sum(file.size for file in self.files)

    def encode(self) -> bytes:
        """The canonical bytes."""
        files = [
            {"path": file.path, "size": file.size, "sha256": file.sha256}
            | ({"executable": True} if file.executable else {})
            for file in self.files
        ]
        document = {
            "schema": MANIFEST_SCHEMA,
            "kind": self.kind.value,
            "files": files,
            "about": dict(self.about),
        }
        return canonical_json(document).encode()

    @property
    def sha256(self) -> str:
        """The content's name: 64 lower-case hex digits over `encode`."""
        return hashlib.sha256(self.encode()).hexdigest()


def _order(file: ContentFile) -> bytes:
    return file.path.encode("utf-8", "surrogateescape")


def make_manifest(
    kind: ContentKind, files: Iterable[ContentFile], about: Mapping[str, Any] | None = None
) -> Manifest:
    """A manifest with its files in the canonical order."""
    ordered = tuple(sorted(files, key=_order))
    return Manifest(kind, ordered, about or {})


def version_fault(version: str) -> str | None:
    """Why ``version`` cannot be a version's label, or ``None``."""
    if not VERSION.fullmatch(version):
        return (
            "must start with a letter or digit, then hold letters, digits, `.`, `_`, `+`, `-`;"
            f" at most {MAX_VERSION_CHARS}, not {version[:80]!r}"
        )
    if version.lower() == _LATEST:
        return "`latest` would have to move, and a version never does; leave it out to use the digest"
    return None


def plain_ref(ref: str) -> str:
    """The digest of a ref that is written ``sha256:HEX``; any other ref as it is."""
    digest = ref.removeprefix(DIGEST_PREFIX)
    return digest if SHA256.fullmatch(digest) else ref


def parse_content_uri(text: str) -> ContentUri:
    """Parse a content URI; raises `ValueError` with a sentence that names the broken rule."""
    if not text.startswith(SCHEME):
        raise ValueError(f"write {SCHEME}KIND/namespace/name@ref; `{text[:80]}` does not start so")
    path, at, ref = text.removeprefix(SCHEME).partition("@")
    parts = path.split("/")
    if not at or len(parts) != 3:  # noqa: PLR2004 - kind, namespace, name
        raise ValueError(f"write {SCHEME}KIND/namespace/name@ref")
    if parts[0] not in set(ContentKind):
        raise ValueError(f"`{parts[0][:40]}` is no kind of content; use {', '.join(ContentKind)}")
    for label, part in zip(("namespace", "name"), parts[1:], strict=True):
        if fault := name_part_fault(label, part):
            raise ValueError(fault)
    ref = plain_ref(ref)
    if ref.startswith(DIGEST_PREFIX):
        raise ValueError(
            f"after `{DIGEST_PREFIX}` stand the 64 lower-case hex digits of a manifest's SHA-256"
        )
    if not VERSION.fullmatch(ref):
        raise ValueError("the ref after `@` must be a version label or a manifest's SHA-256")
    return ContentUri(ContentKind(parts[0]), parts[1], parts[2], ref)
