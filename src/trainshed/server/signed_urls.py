"""Download URLs that need no key: signed with a secret of this deployment, good for a while.

A URL names one file of one Checkpoint, until when it is good, and the key that asked for it. It dies early
with that key and with the Checkpoint. Whoever holds it can read that one file and nothing else.
"""

from __future__ import annotations

import base64
import hmac
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

import structlog
from starlette.requests import HTTPConnection

from trainshed.model.errors import Refusal
from trainshed.store import settings
from trainshed.store.database import Connection, Database, DatabaseFull

log = structlog.get_logger(__name__)

_SECRET_BYTES = 32
_HOST = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252})|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?")
_EXPIRES = re.compile(r"[0-9]{1,12}")
_USE = b"trainshed download 1"


@dataclass(frozen=True, slots=True)
class SignedUrls:
    """Signs paths of this server and checks them. All times are Unix seconds."""

    secret: bytes
    seconds: float = 900.0
    """How long a URL is good."""
    public_url: str | None = None
    """How clients reach this server; ``None``: as the request that asks for URLs did."""

    def issue(self, request: HTTPConnection, path: str, *, key_id: str, now: float) -> str:
        """An absolute URL for ``path``, which begins with ``/v1/`` and is percent-encoded."""
        expires = str(int(now + self.seconds))
        signature = self._sign(path, key_id, expires)
        query = urlencode({"key": key_id, "expires": expires, "signature": signature})
        return f"{self.public_url or _base_url(request)}{path}?{query}"

    def check(self, path: str, query: Mapping[str, str], *, now: float) -> str:
        """The id of the key that asked for this URL; raises `Refusal` ``URL_EXPIRED``."""
        key_id, expires, signature = (query.get(name, "") for name in ("key", "expires", "signature"))
        genuine = self._sign(path, key_id, expires).encode()
        if not hmac.compare_digest(genuine, signature.encode("utf-8", "surrogatepass")):
            raise expired("this URL was not signed here, or was changed")
        if not _EXPIRES.fullmatch(expires) or now >= int(expires):
            raise expired("this URL has expired")
        return key_id

    def _sign(self, path: str, key_id: str, expires: str) -> str:
        said = b"\0".join(
            [_USE, *(text.encode("utf-8", "surrogatepass") for text in (path, key_id, expires))]
        )
        return base64.urlsafe_b64encode(hmac.digest(self.secret, said, "sha256")).rstrip(b"=").decode()


def expired(message: str) -> Refusal:
    """The one refusal of a URL that is no longer, or was never, good: its holder asks for a new one."""
    return Refusal.of("URL_EXPIRED", message, path="signature")


def ensure_secret(database: Database) -> bytes:
    """The secret of this deployment, made on first use and shared by all its processes."""
    with database.read() as connection:
        known = settings.get(connection, settings.URL_SECRET)
    try:
        return bytes.fromhex(known or database.write(_secret))
    except DatabaseFull as error:
        log.warning("the disk is full: download URLs are good until this process ends", reason=str(error))
        return secrets.token_bytes(_SECRET_BYTES)


def _secret(connection: Connection) -> str:
    there = settings.get(connection, settings.URL_SECRET)
    if there is None:
        there = secrets.token_hex(_SECRET_BYTES)
        settings.put(connection, settings.URL_SECRET, there)
    return there


def _base_url(request: HTTPConnection) -> str:
    """How the caller reached this server, by its own Host header; a header that is no host is not repeated.

    Only the caller itself reads the answer (it is never cached), so it can deceive nobody else.
    """
    host = request.headers.get("host", "")
    if not _HOST.fullmatch(host):
        address, port = request.scope.get("server") or ("localhost", None)
        host = f"[{address}]" if ":" in address else address
        host += f":{port}" if port else ""
    raw: bytes = request.scope.get("raw_path") or b""
    return f"{request.scope['scheme']}://{host}{'/api' if raw.startswith(b'/api/') else ''}"
