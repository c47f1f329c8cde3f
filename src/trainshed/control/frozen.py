"""What acceptance freezes beside the Runner: the image, the profile with its contents, the Checkpoint."""

from __future__ import annotations

from dataclasses import dataclass

from trainshed.model.content import ContentKind


@dataclass(frozen=True, slots=True)
class FrozenImage:
    """An image as it was named and as it will run (E42)."""

    requested: str
    resolved: str
    """``repository@sha256:…``."""

    @property
    def digest(self) -> str:
        return self.resolved.partition("@")[2]


@dataclass(frozen=True, slots=True)
class ContentUse:
    """One content that a Trial will consume."""

    role: str
    """``recipe``, ``input:NAME``, ``plugin:NAME``, ``dependency:NAME``, ``mount:PATH``."""
    kind: ContentKind
    name: str
    """``namespace/name``."""
    version: str
    manifest_sha256: str


@dataclass(frozen=True, slots=True)
class FrozenProfile:
    """The snapshot that the Runner is handed, and everything it names (E91, E95, E103)."""

    document: str
    """Canonical JSON."""
    sha256: str
    contents: tuple[ContentUse, ...]
