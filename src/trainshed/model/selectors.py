"""Names as callers write them: Runner selectors and image references."""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_NAME_PART_CHARS = 128
NAME_PART = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{MAX_NAME_PART_CHARS - 1}}}")
"""A Runner's namespace, or its name."""
FULL_COMMIT = re.compile(r"[0-9a-f]{40}")
MAX_SELECTOR_CHARS = 512
MAX_IMAGE_CHARS = 512
_REVISION_FORBIDDEN = re.compile(r"[~^:{}?*\[\\\s\x00-\x20\x7f]")
_HEAD_LIKE = re.compile(r"(?:.*/)?(?:[A-Z]+_)?HEAD|@")
_IMAGE = re.compile(
    r"(?:(?:[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?(?::[0-9]{1,5})?)/)?"
    r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-fA-F]{64})?",
)


@dataclass(frozen=True, slots=True)
class Selector:
    """``namespace/name@revision``; the revision is a full commit, a tag or a branch."""

    namespace: str
    name: str
    revision: str

    @property
    def full_name(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def pinned(self) -> bool:
        """Whether the revision is a full commit, which never moves (E8)."""
        return FULL_COMMIT.fullmatch(self.revision) is not None

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}@{self.revision}"


def name_part_fault(label: str, part: str) -> str | None:
    """Why ``part`` cannot be a Runner's namespace or name, whichever ``label`` says; or ``None``."""
    if len(part) > MAX_NAME_PART_CHARS:
        return f"the {label} has at most {MAX_NAME_PART_CHARS} characters, this one {len(part)}"
    if not NAME_PART.fullmatch(part):
        return f"the {label} must start with a letter or digit and hold only letters, digits, `.`, `_`, `-`"
    return None


def revision_fault(revision: str) -> str | None:
    """Why ``revision`` cannot be one (contract E b2), or ``None``."""
    if not revision:
        return "the revision after `@` is empty"
    if _HEAD_LIKE.fullmatch(revision):
        return f"`{revision}` moves with every checkout; name a commit, a tag or a branch"
    if revision.startswith("-") or ".." in revision or "@{" in revision:
        return "a revision may not start with `-` or contain `..` or `@{`"
    if _REVISION_FORBIDDEN.search(revision) or not revision.isprintable():
        return "a revision may not contain spaces, control characters or any of ~^:{}?*[\\"
    return None


def parse_selector(text: str) -> Selector:
    """Parse a selector; raises `ValueError` with a sentence that names the broken rule."""
    if len(text) > MAX_SELECTOR_CHARS:
        raise ValueError(f"a selector has at most {MAX_SELECTOR_CHARS} characters, this one {len(text)}")
    path, at, revision = text.partition("@")
    if not at:
        raise ValueError("write namespace/name@revision; the `@revision` is missing")
    parts = path.split("/")
    if len(parts) != 2:  # noqa: PLR2004 - a namespace and a name
        raise ValueError("write namespace/name@revision; there must be exactly one `/` before the `@`")
    for label, part in zip(("namespace", "name"), parts, strict=True):
        if fault := name_part_fault(label, part):
            raise ValueError(fault)
    if fault := revision_fault(revision):
        raise ValueError(fault)
    return Selector(parts[0], parts[1], revision)


def image_fault(text: str) -> str | None:
    """Why ``text`` is not an image reference (contract E b2), or ``None``."""
    if len(text) > MAX_IMAGE_CHARS:
        return f"an image reference has at most {MAX_IMAGE_CHARS} characters, this one has {len(text)}"
    if not _IMAGE.fullmatch(text):
        return "write [host[:port]/]repository[:tag][@sha256:<64 hex>] with a lower-case repository"
    return None
