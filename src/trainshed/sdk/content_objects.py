"""Contents and their versions as the server answers them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from trainshed.sdk.answers import mapping, moment, required, text


@dataclass(frozen=True, slots=True)
class ContentVersion:
    """One published version. It never changes."""

    kind: str
    name: str
    version: str
    uri: str
    """``envloop://kind/namespace/name@version``."""
    manifest_sha256: str
    files: int
    bytes: int
    published_at: datetime | None
    about: Mapping[str, Any]
    """What its publisher says of it; empty in lists."""
    raw: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Content:
    """A content and the newest of its versions."""

    kind: str
    name: str
    visibility: str
    versions: int
    newest: ContentVersion
    raw: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True, slots=True)
class PublishedContent:
    """A published version, and what it took."""

    version: ContentVersion
    uploaded: int
    """Files whose bytes the server did not have yet."""
    hashed: int
    """Files that were read; the others were not touched since they were published last."""
    skipped: tuple[str, ...]
    """Paths that were left out; of a folder that was, nothing below it."""
    published_before: bool = False
    """The same version was there already, so nothing new was made."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Why each of ``skipped`` was: ``never published``, ``excluded``, ``git ignores it``, or ``looks like
    credentials (RULE)``."""


@dataclass(frozen=True, slots=True)
class PublishProgress:
    """Where a publication is: its stage (``reading``, ``uploading``) and bytes."""

    stage: str
    done: int
    total: int


def content(raw: Any) -> Content:
    """A content of an answer; raises `InvalidAnswer`."""
    row = mapping(raw, "a content")
    return Content(
        kind=text(row, "kind"),
        name=required(row, "name"),
        visibility=text(row, "visibility"),
        versions=int(row.get("versions") or 0),
        newest=content_version(row.get("newest")),
        raw=row,
    )


def content_version(raw: Any) -> ContentVersion:
    """A version of an answer; raises `InvalidAnswer`."""
    row = mapping(raw, "a version")
    about = row.get("about")
    return ContentVersion(
        kind=text(row, "kind"),
        name=required(row, "name"),
        version=text(row, "version"),
        uri=text(row, "uri"),
        manifest_sha256=required(row, "manifest_sha256"),
        files=int(row.get("files") or 0),
        bytes=int(row.get("bytes") or 0),
        published_at=moment(row, "published_at"),
        about=about if isinstance(about, dict) else {},
        raw=row,
    )
