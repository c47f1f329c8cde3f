"""A bare HTTP client: it sends exactly what a test says and hides nothing of the answer."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class Answer:
    """One HTTP answer; header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The error code of contract E b0."""
        return str(self.json["code"])


class Http:
    """Requests to one server, one connection each, with one key."""

    def __init__(self, url: str, key: str | None = None, timeout: float = 30.0) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self._host, self._port, self._prefix = parts.hostname, parts.port or 80, parts.path.rstrip("/")
        self._key = key
        self._timeout = timeout

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        raw: bytes | None = None,
    ) -> Answer:
        """Send ``body`` as JSON, or ``raw`` as it is; raises `OSError` where the network fails."""
        sent = {"Accept": "application/json", **(headers or {})}
        if self._key is not None:
            sent.setdefault("Authorization", f"Bearer {self._key}")
        payload = raw
        if body is not None:
            payload = json.dumps(body).encode()
        if payload is not None:
            sent.setdefault("Content-Type", "application/json")
        connection = http.client.HTTPConnection(self._host, self._port, timeout=self._timeout)
        try:
            connection.request(method, self._prefix + path, body=payload, headers=sent)
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, content)

    def get(self, path: str, **options: Any) -> Answer:
        return self.request("GET", path, **options)

    def post(self, path: str, body: Any = None, **options: Any) -> Answer:
        return self.request("POST", path, body, **options)
