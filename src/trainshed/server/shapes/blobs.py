"""Blobs, and what is asked of them."""

from __future__ import annotations

from pydantic import Field

from trainshed.server.shapes.common import Shape


class StoredBlob(Shape):
    """A stored, verified blob."""

    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    size: int


class StoredBlobs(Shape):
    """Blobs that were stored together."""

    stored: int
    bytes: int


class MissingAnswer(Shape):
    """The digests whose bytes must be uploaded."""

    missing: list[str]
    max_blob_bytes: int = Field(description="Largest blob, and largest part of one, that one request takes.")
    max_blobs: int = Field(description="As many small blobs are best sent together.")


class BlobUpload(Shape):
    """How far an upload has come."""

    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    offset: int = Field(description="So many bytes are durable; the next part begins here.")
    size: int | None = Field(description="Bytes of the whole blob; null where no upload was begun.")
    stored: bool = Field(description="The blob is stored and verified: nothing is left to do.")
