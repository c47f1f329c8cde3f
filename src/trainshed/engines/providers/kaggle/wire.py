"""Kaggle's HTTP interface, as its own package speaks it (kaggle 2.2.5, kagglesdk 0.1.38).

Calls are ``POST {base}/v1/{service}/{method}`` with JSON in camel case. An error may come with status 200 and
a ``code`` in its body, and what is no JSON is no answer. Uploads and downloads go to signed addresses, which
are shown to nobody and get no credentials.
"""

from __future__ import annotations

import email.utils
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2

from trainshed.engines.providers.contract import (
    AuthRequired,
    InvalidJob,
    ProviderError,
    RateLimited,
    RemoteNotFound,
    Unavailable,
)
from trainshed.engines.providers.kaggle.credentials import LOG_IN, Login
from trainshed.engines.providers.limits import Deadline

URL = "https://api.kaggle.com"
_CONNECT, _CALL, _TRANSFER = 10.0, 25.0, 120.0
_WHOLE, _MOST_BYTES = 30.0, 64 << 20
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_SERVER_FAULTS = 500
_RESUMES = 5
_MOST_TEXT = 300
_DENIED = re.compile(r"permission '[\w.]+' was denied", re.IGNORECASE)
"""How Kaggle says of something private, or of nothing, that it is not there for us."""


class Wire:
    """Calls. Thread-safe; holds no connection between two calls. Raises the contract's errors alone.

    Nothing waits for longer than ``deadline`` allows.
    """

    def __init__(
        self,
        url: str,
        login: Callable[[], Login | None],
        now: Callable[[], float],
        deadline: Deadline | None = None,
    ) -> None:
        self.deadline = deadline or Deadline()
        self._url = url.rstrip("/")
        self._login = login
        self._now = now
        self._names: dict[str, str] = {}

    def login(self) -> Login:
        found = self._login()
        if found is None:
            raise AuthRequired(f"nobody is logged in. {LOG_IN}")
        return found

    def username(self) -> str:
        """Whose account it is; of a token Kaggle is asked, once."""
        login = self.login()
        if login.username:
            return login.username
        if login.secret not in self._names:
            said = self.call("security.OAuthService", "IntrospectToken", {"token": login.secret})
            if not said.get("active") or not said.get("username"):
                raise AuthRequired(f"Kaggle does not know this token any more. {LOG_IN}")
            self._names[login.secret] = str(said["username"])
        return self._names[login.secret]

    def call(self, service: str, method: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """One call; what it answers."""
        login = self.login()
        try:
            with (
                self._client(self._url, _CALL) as client,
                client.stream(
                    "POST", f"{self._url}/v1/{service}/{method}", json=dict(body), **_authority(login)
                ) as answer,
            ):
                data = self._whole(answer, method)
        except httpx2.HTTPError as error:
            raise Unavailable(f"Kaggle does not answer {method}: {type(error).__name__}") from None
        return self._document(answer, data, method, login)

    @contextmanager
    def stream(self, path: str, params: Mapping[str, str], read_seconds: float) -> Iterator[httpx2.Response]:
        """An answer that is read as it comes; a pause of ``read_seconds`` raises `httpx2.ReadTimeout`."""
        login = self.login()
        headers = {"Accept": "text/event-stream, */*"}
        try:
            with (
                self._client(self._url, read_seconds) as client,
                client.stream(
                    "GET", f"{self._url}/v1/{path}", params=params, **_authority(login, headers)
                ) as answer,
            ):
                if answer.status_code != httpx2.codes.OK:
                    self._document(answer, self._whole(answer, "the log"), "the log", login)
                    raise Unavailable(f"Kaggle answers for the log with status {answer.status_code}")
                yield answer
        except httpx2.ReadTimeout:
            raise
        except httpx2.HTTPError as error:
            raise Unavailable(f"Kaggle does not send the log: {type(error).__name__}") from None

    def put(self, address: str, file: Path) -> None:
        """Send a file to a signed address, going on where an interrupted try ended."""
        size, start = file.stat().st_size, 0
        for _ in range(_RESUMES):
            try:
                answer = self._put(address, file, start, size)
                if answer.is_success:
                    return
                if answer.status_code < _SERVER_FAULTS:
                    raise Unavailable(f"the upload is refused with status {answer.status_code}")
            except httpx2.HTTPError:
                pass  # how much arrived is asked next
            reached = self._reached(address, size)
            if reached is None:
                return
            start = reached
        raise Unavailable("the upload was interrupted too often")

    def download(self, address: str) -> Iterator[bytes]:
        """A file at a signed address, in blocks; a short one raises `Unavailable`."""
        try:
            with (
                self._client(address, _TRANSFER, follow_redirects=True) as client,
                client.stream("GET", address) as answer,
            ):
                if not answer.is_success:
                    raise Unavailable(f"an output cannot be fetched: status {answer.status_code}")
                for block in answer.iter_bytes(1 << 20):
                    self.deadline.left(_TRANSFER)
                    yield block
        except httpx2.HTTPError as error:
            raise Unavailable(f"an output cannot be fetched: {type(error).__name__}") from None

    def _put(self, address: str, file: Path, start: int, size: int) -> httpx2.Response:
        headers = {"Content-Length": str(size - start)}
        if start:
            headers["Content-Range"] = f"bytes {start}-{size - 1}/{size}"
        with self._client(address, _TRANSFER) as client, file.open("rb") as content:
            content.seek(start)
            blocks = (self._in_time(block) for block in iter(lambda: content.read(1 << 20), b""))
            return client.put(address, content=blocks, headers=headers)

    def _reached(self, address: str, size: int) -> int | None:
        """How many bytes of an upload arrived; ``None``: all of it."""
        try:
            with self._client(address, _CALL) as client:
                answer = client.put(
                    address, headers={"Content-Length": "0", "Content-Range": f"bytes */{size}"}
                )
        except httpx2.HTTPError as error:
            raise Unavailable(f"an upload was interrupted: {type(error).__name__}") from None
        if answer.is_success:
            return None
        if answer.status_code != httpx2.codes.PERMANENT_REDIRECT:
            raise Unavailable(f"an upload cannot go on: status {answer.status_code}")
        found = re.fullmatch(r"bytes=0-(\d+)", answer.headers.get("Range", ""))
        return int(found[1]) + 1 if found else 0

    def _document(self, answer: httpx2.Response, data: bytes, method: str, login: Login) -> dict[str, Any]:
        document: Any = None
        try:
            document = json.loads(data)
        except (ValueError, RecursionError):
            if answer.is_success:
                raise Unavailable(f"Kaggle answers {method} with something that is no JSON") from None
        fields = document if isinstance(document, dict) else {}
        inner = fields.get("code")
        code = inner if isinstance(inner, int) and inner >= httpx2.codes.BAD_REQUEST else answer.status_code
        if code < httpx2.codes.BAD_REQUEST:
            if not isinstance(document, dict):
                raise Unavailable(f"Kaggle answers {method} with status {code} and no object")
            return fields
        said = self._clean(str(fields.get("message") or fields.get("error") or ""), login)
        raise self._error(code, f"Kaggle refuses {method} ({code})" + (f": {said}" if said else ""), answer)

    def _error(self, code: int, said: str, answer: httpx2.Response) -> ProviderError:
        if code == httpx2.codes.UNAUTHORIZED:
            return AuthRequired(f"{said}. {LOG_IN}")
        if code == httpx2.codes.FORBIDDEN:
            return RemoteNotFound(said) if _DENIED.search(said) else AuthRequired(f"{said}. {LOG_IN}")
        if code == httpx2.codes.NOT_FOUND:
            return RemoteNotFound(said)
        if code == httpx2.codes.TOO_MANY_REQUESTS:
            return RateLimited(said, retry_after=self._retry_after(answer))
        if code >= _SERVER_FAULTS or code == httpx2.codes.REQUEST_TIMEOUT:
            return Unavailable(said, retry_after=self._retry_after(answer))
        return InvalidJob(said)

    def _retry_after(self, answer: httpx2.Response) -> float | None:
        """Seconds; the header may also be a moment."""
        text = answer.headers.get("Retry-After", "")
        try:
            return max(0.0, float(text))
        except ValueError:
            pass
        try:
            return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - self._now())
        except (ValueError, TypeError):
            return None

    @staticmethod
    def _clean(text: str, login: Login) -> str:
        for word in login.words:
            text = text.replace(word, "***")
        return " ".join(text.split())[:_MOST_TEXT]

    def _whole(self, answer: httpx2.Response, method: str) -> bytes:
        """A body, which ends in time and is not large; each piece alone has a limit of its own."""
        data, until = bytearray(), time.monotonic() + self.deadline.left(_WHOLE)
        for block in answer.iter_bytes():
            data += block
            if len(data) > _MOST_BYTES or time.monotonic() > until:
                raise Unavailable(f"Kaggle's answer to {method} has no end")
        return bytes(data)

    def _in_time(self, block: bytes) -> bytes:
        self.deadline.left(_TRANSFER)
        return block

    def _client(self, url: str, seconds: float, *, follow_redirects: bool = False) -> httpx2.Client:
        elsewhere = urlsplit(url).hostname not in _LOOPBACK
        limit = httpx2.Timeout(self.deadline.left(seconds), connect=self.deadline.left(_CONNECT))
        return httpx2.Client(timeout=limit, trust_env=elsewhere, follow_redirects=follow_redirects)


def _authority(login: Login, headers: Mapping[str, str] | None = None) -> dict[str, Any]:
    """How a request says who sends it."""
    if login.is_token:
        return {"headers": {**(headers or {}), "Authorization": f"Bearer {login.secret}"}}
    return {"headers": dict(headers or {}), "auth": (login.username or "", login.secret)}


def events(answer: httpx2.Response) -> Iterator[dict[str, Any] | None]:
    """Entries of a log: ``{stream_name, time, data}``; ``None`` once it is certain that no more will come.

    A session that runs sends them as events from the first on, one that is over as one JSON array.
    """
    if answer.headers.get("Content-Type", "").lower().startswith("text/event-stream"):
        for line in answer.iter_lines():
            if not line.startswith("data:"):
                continue
            text = line[len("data:") :].strip()
            if text == "END_OF_LOG":
                yield None
                return
            yield _entry(text)
        return
    answer.read()
    yield from stored_events(answer.text)
    yield None


def stored_events(text: str) -> Iterator[dict[str, Any]]:
    """Entries of a log that is over."""
    try:
        document = json.loads(text) if text.strip() else []
    except ValueError:
        yield from ({"data": line + "\n"} for line in text.splitlines())
        return
    for entry in document if isinstance(document, list) else [document]:
        if isinstance(entry, dict):
            yield entry


def _entry(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {"data": text + "\n"}
    return found if isinstance(found, dict) else {"data": str(found)}
