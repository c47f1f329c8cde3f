"""Opaque cursors that only this deployment can have issued."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from typing import Any

from pydantic_core import to_json

_MAC_BYTES = 9
MAX_CURSOR_CHARS = 8192


class CursorFault(ValueError):
    """The text is not a cursor that was issued here for this use."""


class CursorSeal:
    """Turns small JSON values into cursors and back.

    ``secret`` is shared by all processes of a deployment, so a cursor of one is good at another.
    """

    def __init__(self, secret: str) -> None:
        self._key = hashlib.sha256(b"trainshed cursor:" + secret.encode()).digest()

    def seal(self, use: str, value: Any) -> str:
        """The cursor for ``value``; it opens for the same ``use`` only."""
        body = to_json(value)
        # JSON first: a cursor that began with `-` would be an option to programs that are given it.
        return base64.urlsafe_b64encode(body + self._mac(use, body)).rstrip(b"=").decode()

    def open(self, use: str, cursor: str) -> Any:
        """The value that was sealed; raises `CursorFault`."""
        if len(cursor) > MAX_CURSOR_CHARS:
            raise CursorFault("too long")
        try:
            raw = base64.b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4), b"-_", validate=True)
        except (UnicodeEncodeError, binascii.Error) as error:
            raise CursorFault("not a cursor") from error
        body, mac = raw[:-_MAC_BYTES], raw[-_MAC_BYTES:]
        if not hmac.compare_digest(mac, self._mac(use, body)):
            raise CursorFault("not issued here for this list")
        return json.loads(body)

    def _mac(self, use: str, body: bytes) -> bytes:
        return hmac.digest(self._key, use.encode() + b"\0" + body, "sha256")[:_MAC_BYTES]
