"""What tests of stores of blobs share: contents, addresses of S3 servers, a source that breaks."""

from __future__ import annotations

import hashlib
import io
import os
import uuid
from typing import Any

from support.s3 import BUCKET, REGION, S3Server
from trainshed.content.addresses import StoreAddress
from trainshed.content.blobs import (
    Blob,
    BlobStore,
)

SMALL = b"some bytes\n" * 1000
LARGE = os.urandom(1 << 20) * 9 + b"and an odd end"
ABSENT = "0" * 64


def name_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def address_of(server: S3Server, **changes: Any) -> StoreAddress:
    facts = {
        "url": f"s3://{BUCKET}/{uuid.uuid4().hex}/prefix",
        "endpoint": server.endpoint,
        "region": REGION,
        "allow_http": True,
        "timeout_seconds": 10.0,
        "retry_seconds": 2.0,
    }
    return StoreAddress(**(facts | changes))


def put(store: BlobStore, data: bytes, **promised: Any) -> Blob:
    return store.put(io.BytesIO(data), **promised)


class Torn(io.RawIOBase):
    """A sender that goes away after so many bytes."""

    def __init__(self, after: int, error: BaseException) -> None:
        super().__init__()
        self._left = after
        self._error = error

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:
        if self._left <= 0:
            raise self._error
        self._left -= len(buffer)
        return len(buffer)
