"""What is said of a reference to content that cannot be followed: why, and what to do next."""

from __future__ import annotations

from trainshed.model.content import ContentKind
from trainshed.store import contents
from trainshed.store.database import Connection

SHOWN_VERSIONS = 5
_LATEST = "latest"
_MAX_REF_CHARS = 80


def unknown_version(connection: Connection, kind: ContentKind, name: str, ref: str) -> tuple[str, str]:
    """Why ``ref`` is no version of a content that the caller may read, and the hint."""
    there = contents.list_versions(connection, kind, name, before=None, limit=SHOWN_VERSIONS + 1)
    labels = ", ".join(each.version for each in there[:SHOWN_VERSIONS]) or "none"
    more = ", …" if len(there) > SHOWN_VERSIONS else ""
    said = f"there is no version `{ref[:_MAX_REF_CHARS]}` of {kind.noun} {name}; newest first: {labels}{more}"
    if ref.lower() == _LATEST:
        said += "; `latest` is no version: a reference takes a label or a manifest's digest"
    else:
        said += "; a reference takes a label or a manifest's digest"
    return said, versions_hint(kind, name)


def versions_hint(kind: ContentKind, name: str) -> str:
    """What to do where a version of a content that may be read is unknown or withdrawn."""
    return f"List its versions with `{command(kind)} versions {name}`."


def list_hint(kind: ContentKind) -> str:
    """What to do where a content is unknown or may not be read."""
    return f"List what you may read with `{command(kind)} list`."


def denied_hint(kind: ContentKind) -> str:
    """The same where access is at stake: unknown and forbidden are one answer, so it is for either (E94)."""
    return (
        f"Check the name: `{command(kind)} list` shows what you may read. If it is another project's, ask "
        "its owner for access."
    )


def approval_hint(name: str, manifest_sha256: str) -> str:
    """What to do where a plugin package is readable and not approved (E94)."""
    return f"With the owner key of the server: `trainshed plugin approve {name}@{manifest_sha256}`."


def command(kind: ContentKind) -> str:
    """The commands of a kind."""
    return f"trainshed {kind.removesuffix('s')}"
