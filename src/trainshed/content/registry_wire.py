"""HTTP to servers that nobody here vouches for: every wait ends at one deadline, every answer has a bound.

The timeouts of an HTTP client hold for single reads, so a server that sends a byte now and then is waited
for without end. Here the deadline is enforced below HTTP, in each read of the socket: a public place of
``httpcore2``, the layer under ``httpx2``. Nothing else happens by itself: no redirects, no cookies, no
passwords from files.
"""

from __future__ import annotations

import re
import socket
import ssl
import threading
import time
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

import httpcore2

from trainshed import __version__
from trainshed.model.images import is_loopback

CONNECT_SECONDS = 5.0
_MAX_CONNECTIONS = 64
_IDLE_SECONDS = 30.0
_ERRNO = re.compile(r"\[Errno -?\d+\]:? ?")


class Unanswered(Exception):
    """There was no usable answer; the message says why. Asking again may help."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer as it came; header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    """Empty for HEAD."""

    @property
    def content_type(self) -> str:
        """Without parameters, in lower case."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()


class Wire:
    """Pools of connections, one for each way out. Thread-safe; opens nothing before it is used."""

    def __init__(self) -> None:
        self._clock = _Clock()
        self._guard = threading.Lock()
        self._ways: dict[tuple[bool, str | None], httpcore2.ConnectionPool] = {}

    def ask(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str] | None = None,
        *,
        most_bytes: int,
        deadline: float,
    ) -> Answer:
        """One request, one answer. ``deadline`` is of ``time.monotonic``. Raises `Unanswered`."""
        sent = {"User-Agent": f"trainshed/{__version__}", "Accept-Encoding": "identity", **(headers or {})}
        timeouts = {"timeout": {"connect": CONNECT_SECONDS, "pool": CONNECT_SECONDS}}
        with self._clock.until(deadline), _failures():
            way = self._way(url)
            with way.stream(method, url, headers=list(sent.items()), extensions=timeouts) as answer:
                found = {
                    name.decode("latin-1").lower(): value.decode("latin-1") for name, value in answer.headers
                }
                body = b"" if method == "HEAD" else _body(answer.iter_stream(), found, most_bytes)
                return Answer(answer.status, found, body)

    def close(self) -> None:
        """End all connections that are not in use."""
        with self._guard:
            ways, self._ways = self._ways, {}
        for way in ways.values():
            way.close()

    def _way(self, url: str) -> httpcore2.ConnectionPool:
        """Straight, or through the proxy that the environment names for this host."""
        parts = urlsplit(url)
        host, secure = parts.hostname or "", parts.scheme == "https"
        proxy = None if is_loopback(host) else _proxy(parts.scheme, host)
        with self._guard:
            if (secure, proxy) not in self._ways:
                self._ways[secure, proxy] = self._new_way(proxy, secure=secure)
            return self._ways[secure, proxy]

    def _new_way(self, proxy: str | None, *, secure: bool) -> httpcore2.ConnectionPool:
        # Reading the certificate store costs 20 ms, which plain HTTP need not pay.
        trust = ssl.create_default_context() if secure else None
        shared: Any = {
            "ssl_context": trust,
            "network_backend": _BoundedBackend(self._clock),
            "max_connections": _MAX_CONNECTIONS,
            "keepalive_expiry": _IDLE_SECONDS,
        }
        if proxy is None:
            return httpcore2.ConnectionPool(**shared)
        parts = urlsplit(proxy)
        secrets = (unquote(parts.username), unquote(parts.password or "")) if parts.username else None
        port = parts.port or (443 if parts.scheme == "https" else 80)
        return httpcore2.HTTPProxy(f"{parts.scheme}://{parts.hostname}:{port}", proxy_auth=secrets, **shared)


def _proxy(scheme: str, host: str) -> str | None:
    found = urllib.request.getproxies()
    proxy = found.get(scheme) or found.get("all")
    if not proxy or urllib.request.proxy_bypass(host):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _body(chunks: Iterable[bytes], headers: Mapping[str, str], most_bytes: int) -> bytes:
    said = headers.get("content-length", "")
    body = bytearray()
    if not (said.isdecimal() and int(said) > most_bytes):
        for chunk in chunks:
            body += chunk
            if len(body) > most_bytes:
                break
        else:
            return bytes(body)
    raise Unanswered(f"its answer is larger than the {most_bytes} bytes that such an answer may have")


@contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except httpcore2.ConnectTimeout:
        raise Unanswered("it does not take connections") from None
    except httpcore2.TimeoutException:
        raise Unanswered("it did not answer in time") from None
    except httpcore2.ConnectError as error:
        raise Unanswered(f"no connection can be made: {_plain(error)}") from None
    except (httpcore2.NetworkError, httpcore2.ProxyError) as error:
        raise Unanswered(f"the connection broke: {_plain(error)}") from None
    except (httpcore2.ProtocolError, httpcore2.UnsupportedProtocol) as error:
        raise Unanswered(f"it does not speak HTTP as it should: {error}") from None
    except ValueError as error:
        raise Unanswered(f"it names an address that is none: {error}") from None


def _plain(error: Exception) -> str:
    """What the system says, without its numbers."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, socket.gaierror):
            return "no address is known for the name of its host (DNS)"
        if isinstance(cause, ConnectionRefusedError):
            return "nothing takes connections there (connection refused)"
        cause = cause.__cause__ or cause.__context__
    return _ERRNO.sub("", str(error)) or type(error).__name__


class _Clock(threading.local):
    """Until when the exchange of this thread may last."""

    deadline: float | None = None

    @contextmanager
    def until(self, deadline: float) -> Iterator[None]:
        self.deadline = deadline
        try:
            yield
        finally:
            self.deadline = None

    def left(self, wanted: float | None) -> float:
        """How long the next wait may be. Raises the timeout of ``httpcore2`` where no time is left."""
        left = CONNECT_SECONDS if self.deadline is None else self.deadline - time.monotonic()
        if left <= 0:
            raise httpcore2.ReadTimeout("the time is over")
        return left if wanted is None else min(left, wanted)


class _BoundedBackend(httpcore2.SyncBackend):
    """Connections whose every wait ends at the deadline of the thread that waits."""

    def __init__(self, clock: _Clock) -> None:
        self._clock = clock

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.NetworkStream:
        stream = super().connect_tcp(host, port, self._clock.left(timeout), local_address, socket_options)
        return _BoundedStream(stream, self._clock)


class _BoundedStream(httpcore2.NetworkStream):
    def __init__(self, inner: httpcore2.NetworkStream, clock: _Clock) -> None:
        self._inner = inner
        self._clock = clock

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._inner.read(max_bytes, self._clock.left(timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._inner.write(buffer, self._clock.left(timeout))

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.NetworkStream:
        inner = self._inner.start_tls(ssl_context, server_hostname, self._clock.left(timeout))
        return _BoundedStream(inner, self._clock)

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)
