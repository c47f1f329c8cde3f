"""One HTTP call with its retries: the only module that knows how HTTP is spoken.

Calls to a server on this machine go by `trainshed.sdk.loopback`; TLS, proxies and streams are what ``httpx2``
is for, and it is imported when there are any.

A call is repeated when no harm can come of it: reads, and writes that name what they do (a submission by
its request id, a stop, an upload by its hash). Any other write is repeated only if it certainly did not
reach the server. Pauses grow and are random, and a ``Retry-After`` is obeyed.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qs, quote

from trainshed.sdk.discovery import Connection
from trainshed.sdk.errors import (
    ApiError,
    ConfigurationError,
    ConnectionFailed,
    InvalidAnswer,
    RateLimited,
    ServerUnavailable,
    api_error,
)
from trainshed.sdk.loopback import Content, Loopback, NoAnswer, Reply, Streamed
from trainshed.sdk.retry_after import retry_after
from trainshed.sdk.source import standing_headers
from trainshed.sdk.tls import refuse_untrusted, verifier

if TYPE_CHECKING:
    import httpx2

CONNECT_SECONDS = 5.0
MAX_RETRY_AFTER_SECONDS = 30.0
MAX_OUTAGE_PAUSE_SECONDS = 10.0
_LASTING_CODES = frozenset({"EXECUTOR_UNAVAILABLE", "RUNNER_GPU_UNAVAILABLE", "STORAGE_FULL"})
"""5xx codes that a repetition within seconds does not cure."""
_REPEATED_STATUSES = frozenset({429, 500, 502, 503, 504})
_OUTAGE_STATUSES = frozenset({502, 503, 504})
"""What a server, or the proxy before it, says while something is down that comes back."""
_SHORTEST_TRY_SECONDS = 0.5
"""A call is tried at least for so long, however little time is left."""
_HTTP_ERROR = 400
_PARTIAL_CONTENT = 206
_RANGE_NOT_SATISFIABLE = 416
_TOO_MANY_REQUESTS = 429
_ADMIN_PREFIX = "/v1/admin/"
_IDENTITY = frozenset({"Authorization", "X-Project-ID"})
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a call is repeated. Pauses double from ``first`` to ``longest`` seconds, with jitter."""

    attempts: int = 5
    first: float = 0.2
    longest: float = 4.0

    def pause(self, attempt: int) -> float:
        """Seconds to wait after failed attempt number ``attempt`` (from 1)."""
        import random  # noqa: PLC0415 - most calls succeed

        ceiling = min(self.longest, self.first * 2 ** (attempt - 1))
        return random.uniform(ceiling / 2, ceiling)  # noqa: S311 - spreads load, protects nothing


@dataclass(frozen=True, slots=True)
class Answer:
    """A decoded answer, its status, and after how many tries it came."""

    document: Any
    status: int
    tries: int


class Transport:
    """Calls one server; safe to share between threads.

    ``rediscover`` may name a new address after a connection failed: an embedded server comes back on
    another port.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        timeout: float = 30.0,
        retry: RetryPolicy | None = None,
        rediscover: Callable[[], Connection | None] | None = None,
        on_retry: Callable[[str], None] | None = None,
    ) -> None:
        self.connection = connection
        self.timeout = timeout
        self.retry = retry or RetryPolicy()
        self.on_retry, self._rediscover = on_retry, rediscover
        self.said = ""
        """What this client says of itself (`trainshed.sdk.source`)."""
        self._lost = False
        self._guard = threading.Lock()
        self._closed = threading.Event()
        self._near = Loopback()
        self._library: httpx2.Client | None = None

    def close(self) -> None:
        """Close the connections. A call in progress in another thread fails; no new one is repeated."""
        self._closed.set()
        self._near.close()
        with self._guard:
            if self._library is not None:
                self._library.close()

    def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        content: Content | None = None,
        repeatable: bool | None = None,
        timeout: float | None = None,
        deadline: float | None = None,
    ) -> Any:
        """The decoded JSON answer of one call; ``None`` for an empty one.

        ``repeatable`` defaults to true for GET, PUT and DELETE. ``timeout`` bounds each wait for the network
        (seconds), ``deadline`` all tries together (``time.monotonic``). Raises `ApiError`,
        `ConnectionFailed` or `InvalidAnswer`.
        """
        return self.ask(
            method,
            path,
            query=query,
            body=body,
            content=content,
            repeatable=repeatable,
            timeout=timeout,
            deadline=deadline,
        ).document

    def ask(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        content: Content | None = None,
        repeatable: bool | None = None,
        timeout: float | None = None,
        deadline: float | None = None,
    ) -> Answer:
        """As `call`, with the status of the answer and the number of tries."""
        if body is not None:
            content = json.dumps(body, ensure_ascii=True).encode()
        kind = "application/json" if body is not None else "application/octet-stream"
        safe = method in {"GET", "PUT", "DELETE"} if repeatable is None else repeatable
        tries = 0

        def once() -> Answer:
            nonlocal tries
            tries += 1
            patience = self.timeout if timeout is None else timeout
            if deadline is not None:
                patience = min(patience, max(deadline - time.monotonic(), _SHORTEST_TRY_SECONDS))
            headers = self._headers(path, {"Content-Type": kind} if content is not None else {})
            given = content if method != "GET" else None
            reply = self._exchange(method, path, headers, given, query=_clean(query), patience=patience)
            if reply.status >= _HTTP_ERROR:
                raise _refusal(reply.status, reply.headers, reply.content)
            return Answer(_decode(reply, self._url(path)), reply.status, tries)

        return self._repeat(once, safe=safe, deadline=deadline)

    @contextlib.contextmanager
    def stream(
        self,
        path: str,
        *,
        start: int = 0,
        etag: str | None = None,
        further: Mapping[str, str] | None = None,
    ) -> Iterator[ByteAnswer]:
        """The raw bytes of one resource from ``start`` on; one try, no repetition.

        ``etag`` guards a range: if the resource has changed, the answer begins at zero again. ``further``
        are headers.
        """
        headers = {"Accept-Encoding": "identity", **(further or {})}
        if start:
            headers["Range"] = f"bytes={start}-"
            if etag:
                headers["If-Range"] = f'"{etag}"'
        import httpx2  # noqa: PLC0415 - streams need it, most commands have none

        try:
            with self._http.stream("GET", self._url(path), headers=self._headers(path, headers)) as response:
                if response.status_code >= _HTTP_ERROR:
                    raise _refusal(response.status_code, response.headers, response.read())
                yield ByteAnswer(response, start)
        except httpx2.TransportError as error:
            refuse_untrusted(self.connection.url, error)
            self._look_again()
            raise ConnectionFailed(_sentence(self.connection.url, error)) from error

    def ask_bytes(self, path: str, body: Any) -> bytes:
        """What a question that changes nothing (a POST with a JSON body) is answered with, as bytes."""
        content = json.dumps(body).encode()

        def once() -> bytes:
            headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
            reply = self._exchange("POST", path, self._headers(path, headers), content)
            if reply.status >= _HTTP_ERROR:
                raise _refusal(reply.status, reply.headers, reply.content)
            return reply.content

        return self._repeat(once, safe=True)

    def identity(self, path: str) -> dict[str, str]:
        """The headers that say who calls."""
        return {key: value for key, value in self._headers(path, {}).items() if key in _IDENTITY}

    def forward(
        self, method: str, path: str, headers: Mapping[str, str], content: bytes | None
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Somebody else's request, sent once with our key: status, headers and bytes of whatever answers."""
        try:
            path, _, text = path.partition("?")
            query = parse_qs(text, keep_blank_values=True)
            reply = self._exchange(method, path, {**headers, **self.identity(path)}, content, query=query)
        except NoAnswer as error:
            self._look_again()
            raise ConnectionFailed(_sentence(self.connection.url, error)) from error
        return reply.status, reply.headers, reply.content

    def read(self, path: str) -> Iterator[bytes]:
        """All bytes of one resource as they arrive, continued where a connection broke."""
        done, attempt = 0, 0
        while True:
            try:
                with self.stream(path, start=done) as answer:
                    seen = answer.start
                    for chunk in answer.chunks():
                        fresh = chunk[max(0, done - seen) :]
                        seen += len(chunk)
                        done += len(fresh)
                        attempt = 0
                        if fresh:
                            yield fresh
            except (ApiError, ConnectionFailed) as error:
                if isinstance(error, ApiError):
                    # The connection broke after the last byte: there is nothing left to ask for.
                    if done and error.status == _RANGE_NOT_SATISFIABLE:
                        return
                    if not _worth_repeating(error, safe=True):
                        raise
                attempt += 1
                if attempt >= self.retry.attempts or not self.sleep(self.retry.pause(attempt)):
                    raise
            else:
                return

    def repeat(self, once: Callable[[], T]) -> T:
        """Run ``once`` under the retry policy of repeatable calls."""
        return self._repeat(once, safe=True)

    def patiently(self, once: Callable[[], T], *, outage_seconds: float, deadline: float | None = None) -> T:
        """Run ``once``, itself a call with retries, again and again through an outage of the server.

        An outage is: no connection, 429, or 502, 503 and 504 whose code can pass. Any other answer counts
        after the retries of ``once``. Raises what ``once`` raised last when the outage lasts for
        ``outage_seconds``, or until ``deadline`` (``time.monotonic``).
        """
        failed_since: float | None = None
        attempt = 0
        pauses = replace(self.retry, longest=MAX_OUTAGE_PAUSE_SECONDS)
        while True:
            try:
                return once()
            except (ConnectionFailed, ServerUnavailable, RateLimited) as error:
                now = time.monotonic()
                failed_since = now if failed_since is None else failed_since
                attempt += 1
                left = failed_since + outage_seconds - now
                if deadline is not None:
                    left = min(left, deadline - now)
                if _lasting(error) or left <= 0 or not self.sleep(min(pauses.pause(attempt), left)):
                    raise

    def sleep(self, seconds: float) -> bool:
        """Wait, but not beyond `close`; whether the transport is still open."""
        return not self._closed.wait(seconds)

    def _repeat(self, once: Callable[[], T], *, safe: bool, deadline: float | None = None) -> T:
        attempt = 0
        while True:
            attempt += 1
            try:
                found = once()
            except ApiError as error:
                failure: ApiError | ConnectionFailed = error
                again = _worth_repeating(error, safe=safe)
                if not again:
                    self._tell_back()
            except NoAnswer as error:
                failure = ConnectionFailed(
                    _sentence(self.connection.url, error),
                    hint="Is the server up? `trainshed status` shows which one is used and why.",
                )
                failure.__cause__ = error
                again = safe or not error.reached
                self._look_again()
            except ConnectionFailed as error:
                failure, again = error, safe
            else:
                self._tell_back()
                return found
            if not again or attempt >= self.retry.attempts or self._closed.is_set():
                raise failure
            pause = self.retry.pause(attempt)
            if isinstance(failure, ApiError) and failure.retry_after is not None:
                pause = min(failure.retry_after, MAX_RETRY_AFTER_SECONDS)
            left = pause if deadline is None else deadline - time.monotonic()
            self._tell_lost(failure)
            if not self.sleep(max(0.0, min(pause, left))) or left < pause:
                raise failure

    def _tell_lost(self, failure: ApiError | ConnectionFailed) -> None:
        """Say once that calls are being repeated, and why."""
        with self._guard:
            first, self._lost = not self._lost, True
        if first and self.on_retry is not None:
            what = "lost the server" if isinstance(failure, ConnectionFailed) else "the server cannot answer"
            self.on_retry(f"{what} ({failure}); trying again …")

    def _tell_back(self) -> None:
        with self._guard:
            back, self._lost = self._lost, False
        if back and self.on_retry is not None:
            self.on_retry("the server answers again")

    def _look_again(self) -> None:
        found = self._rediscover() if self._rediscover is not None else None
        if found is not None:
            self.connection = found

    def _url(self, path: str) -> str:
        return f"{self.connection.url}{path}"

    def _exchange(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        content: Content | None,
        *,
        query: Mapping[str, Any] | None = None,
        patience: float | None = None,
    ) -> Reply:
        """One request and its whole answer, whatever its status. Raises `NoAnswer`."""
        seconds = self.timeout if patience is None else patience
        connect = min(CONNECT_SECONDS, seconds)
        if self._plain:
            return self._near.request(
                method,
                self._url(path),
                query=query,
                headers=headers,
                content=content,
                timeout=seconds,
                connect_timeout=connect,
            )
        import httpx2  # noqa: PLC0415 - 100 ms that calls to this machine do not pay

        length = {"Content-Length": str(len(content))} if isinstance(content, Streamed) else {}
        try:
            response = self._http.request(
                method,
                self._url(path),
                params=query,
                content=content,
                headers={**headers, **length},
                timeout=httpx2.Timeout(seconds, connect=connect),
            )
        except httpx2.TransportError as error:
            refuse_untrusted(self.connection.url, error)
            reached = not isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout)
            raise NoAnswer(str(error) or type(error).__name__, reached=reached) from error
        return Reply(response.status_code, response.headers, response.content)

    @property
    def _plain(self) -> bool:
        return self.connection.loopback and self.connection.url.startswith("http:")

    @property
    def _http(self) -> httpx2.Client:
        """The library's client, made on first use."""
        import httpx2  # noqa: PLC0415 - as above

        with self._guard:
            if self._library is None:
                self._library = httpx2.Client(
                    verify=verifier(self.connection.url),
                    # A proxy of the environment cannot reach this machine's own loopback addresses.
                    trust_env=not self.connection.loopback,
                    timeout=httpx2.Timeout(self.timeout, connect=min(CONNECT_SECONDS, self.timeout)),
                    limits=httpx2.Limits(
                        max_connections=32, max_keepalive_connections=16, keepalive_expiry=3.0
                    ),
                )
            return self._library

    def _headers(self, path: str, extra: Mapping[str, str]) -> dict[str, str]:
        headers = {**standing_headers(self.said), **extra}
        if self.connection.api_key:
            headers["Authorization"] = f"Bearer {self.connection.api_key}"
        # Administration names its project in the path, and may name another one than the key's.
        if self.connection.project and not path.startswith(_ADMIN_PREFIX):
            headers["X-Project-ID"] = _sendable(self.connection.project)
        return headers


class ByteAnswer:
    """A streamed answer: where its bytes begin, and the bytes."""

    def __init__(self, response: httpx2.Response, asked: int) -> None:
        partial = response.status_code == _PARTIAL_CONTENT
        self.start = asked if partial else 0
        """The offset of the first byte; zero if the server sent the whole resource after all."""
        self._response = response

    def chunks(self) -> Iterator[bytes]:
        """The bytes as they arrive. Nothing is held back, so what came before a cut is not lost."""
        return self._response.iter_raw()


def route(*segments: str) -> str:
    """``/v1/…`` with every segment percent-encoded, nothing left safe (contract E b0)."""
    for segment in segments:
        if not isinstance(segment, str):
            raise TypeError(f"an id or a name is a str, not {type(segment).__name__}")
        if not segment:
            raise ValueError("an id or a name is empty")
    return "/v1/" + "/".join(quote(segment, safe="") for segment in segments)


def _clean(query: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return {key: value for key, value in query.items() if value is not None} if query else None


def _sendable(project: str) -> str:
    if not (project.isascii() and project.isprintable()):
        raise ConfigurationError(f"`{project}` is no project: it holds more than printable ASCII")
    return project


def _lasting(error: ConnectionFailed | ApiError) -> bool:
    """Whether waiting longer than a call does by itself is of no use."""
    if not isinstance(error, ServerUnavailable):
        return False
    return error.status not in _OUTAGE_STATUSES or error.code in _LASTING_CODES


def _worth_repeating(error: ApiError, *, safe: bool) -> bool:
    if error.status not in _REPEATED_STATUSES or error.code in _LASTING_CODES:
        return False
    return safe or error.status == _TOO_MANY_REQUESTS


def _decode(reply: Reply, url: str) -> Any:
    if not reply.content:
        return None
    try:
        return json.loads(reply.content)
    except ValueError:
        raise InvalidAnswer(f"the answer of {url} is not JSON") from None


def _refusal(status: int, headers: Mapping[str, str], content: bytes) -> ApiError:
    try:
        body = json.loads(content)
    except ValueError:
        body = None
    return api_error(status, body, retry_after(headers.get("retry-after")))


def _sentence(url: str, error: Exception) -> str:
    said = str(error) or type(error).__name__
    return f"no answer from {url}: {said}"
