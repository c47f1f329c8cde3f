"""Asking a registry as nobody in particular: redirects, and tokens that are given to everybody (E44).

What a registry says decides where the next request goes, so it may lead only to https, or to plain HTTP where
that is allowed for the place it came from; a token is sent to nobody but the registry that asked for it.
"""

from __future__ import annotations

import email.utils
import ipaddress
import json
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from urllib.parse import urlencode, urljoin, urlsplit

from trainshed.content.registry_wire import Answer, Unanswered, Wire
from trainshed.model.images import RegistryRules, Source, is_loopback

MAX_REDIRECTS = 5
MAX_TOKEN_ANSWER_BYTES = 256 << 10
MAX_TOKEN_CHARS = 32 << 10
DEFAULT_TOKEN_SECONDS = 60.0
"""What the token protocol says of an answer without ``expires_in``."""
_TOKEN_MARGIN_SECONDS = 10.0
_LONGEST_TOKEN_SECONDS = 3600.0
_MAX_TOKENS = 1024
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_REFUSED = frozenset({400, 401, 403, 404})
_PARAMETER = re.compile(r'([A-Za-z_-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s",]+))')
_TOKEN = re.compile(r"[\x21-\x7e]+")


class Denied(Exception):
    """Nobody without credentials gets this; the message is a sentence."""


class Later(Unanswered):
    """The registry asks to come back in ``seconds``."""

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message)
        self.seconds = seconds


@dataclass(frozen=True, slots=True)
class Challenge:
    """What an answer 401 asks for."""

    realm: str
    service: str | None
    scope: str | None


@dataclass(frozen=True, slots=True)
class _Token:
    text: str
    good_until: float


class Access:
    """Asks sources as an anonymous client. Thread-safe; keeps tokens until they expire."""

    def __init__(self, rules: RegistryRules, wire: Wire, clock: Callable[[], float] = time.monotonic) -> None:
        self._rules = rules
        self._wire = wire
        self._clock = clock
        self._guard = threading.Lock()
        self._tokens: dict[tuple[str, str], _Token] = {}

    def ask(
        self,
        source: Source,
        method: str,
        path: str,
        headers: Mapping[str, str],
        *,
        most_bytes: int,
        deadline: float,
    ) -> Answer:
        """The answer for ``path`` below the source's repository, e.g. ``manifests/latest``.

        Raises `Denied` where a token for everybody does not open it, `Unanswered` for everything that may
        pass: no answer, 5xx, 429 (`Later`).
        """
        url = f"{source.url}/v2/{source.repository}/{path}"

        def once(token: str | None) -> Answer:
            given = {**headers, "Authorization": f"Bearer {token}"} if token else headers
            return self._follow(method, url, given, most_bytes=most_bytes, deadline=deadline)

        known = self._known_token(source)
        answer = once(known)
        if answer.status == HTTPStatus.UNAUTHORIZED:
            challenge = parse_challenge(answer.headers.get("www-authenticate", ""))
            if challenge is None:
                raise Denied("the registry wants a name and a password")
            answer = once(self._new_token(source, challenge, url, deadline))
        if answer.status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
            self._forget_token(source)
            raise Denied(f"the registry answers {answer.status} to those who do not log in")
        return answer

    def _follow(
        self, method: str, url: str, headers: Mapping[str, str], *, most_bytes: int, deadline: float
    ) -> Answer:
        for _ in range(MAX_REDIRECTS + 1):
            answer = self._wire.ask(method, url, headers, most_bytes=most_bytes, deadline=deadline)
            if answer.status not in _REDIRECTS:
                return _unless_it_may_pass(answer)
            target = self._target(url, answer.headers.get("location", ""))
            if urlsplit(target)[:2] != urlsplit(url)[:2]:
                headers = {name: value for name, value in headers.items() if name != "Authorization"}
            url = target
        raise Unanswered(f"it redirects more than {MAX_REDIRECTS} times")

    def _target(self, origin: str, place: str) -> str:
        """Where ``origin`` may lead: what it says, checked. Raises `Unanswered`."""
        try:
            target = urljoin(origin, place)
            parts = urlsplit(target)
            host = parts.hostname or ""
            named = f"{host}:{parts.port}" if parts.port else host
        except ValueError:
            raise Unanswered("it leads to an address that is none") from None
        inwards = _of_this_machine(host) and not is_loopback(urlsplit(origin).hostname or "")
        allowed = parts.scheme == "https" or (parts.scheme == "http" and self._rules.plain_http(named))
        if not host or parts.username is not None or inwards or not allowed:
            raise Unanswered(f"it leads to `{target[:120]}`; only https addresses elsewhere are followed")
        return target

    def _known_token(self, source: Source) -> str | None:
        with self._guard:
            found = self._tokens.get((source.url, source.repository))
        return found.text if found is not None and found.good_until > self._clock() else None

    def _forget_token(self, source: Source) -> None:
        with self._guard:
            self._tokens.pop((source.url, source.repository), None)

    def _new_token(self, source: Source, challenge: Challenge, url: str, deadline: float) -> str:
        asked = {"scope": challenge.scope or f"repository:{source.repository}:pull"}
        if challenge.service is not None:
            asked["service"] = challenge.service
        place = self._target(url, challenge.realm)
        place += ("&" if urlsplit(place).query else "?") + urlencode(asked)
        answer = self._follow("GET", place, {}, most_bytes=MAX_TOKEN_ANSWER_BYTES, deadline=deadline)
        if answer.status in _REFUSED:
            raise Denied(f"the registry's token service answers {answer.status} to those who do not log in")
        text, seconds = _token_of(answer)
        until = self._clock() + max(0.0, min(seconds, _LONGEST_TOKEN_SECONDS) - _TOKEN_MARGIN_SECONDS)
        with self._guard:
            if len(self._tokens) >= _MAX_TOKENS:
                self._tokens.clear()
            self._tokens[source.url, source.repository] = _Token(text, until)
        return text


def parse_challenge(header: str) -> Challenge | None:
    """The Bearer challenge in a ``WWW-Authenticate``; ``None`` where there is none (Basic alone, say)."""
    start = re.search(r"(?:^|[\s,])bearer\s+(?=[A-Za-z_-]+\s*=)", header, re.IGNORECASE)
    if start is None:
        return None
    found: dict[str, str] = {}
    for name, quoted, plain in _PARAMETER.findall(header[start.end() :]):
        found.setdefault(name.lower(), re.sub(r"\\(.)", r"\1", quoted) or plain)
    return Challenge(found["realm"], found.get("service"), found.get("scope")) if found.get("realm") else None


def _token_of(answer: Answer) -> tuple[str, float]:
    if answer.status != HTTPStatus.OK:
        raise Unanswered(f"its token service answers {answer.status}")
    try:
        document = json.loads(answer.body)
        text = document.get("token") or document.get("access_token")
        seconds = document.get("expires_in", DEFAULT_TOKEN_SECONDS)
    except (ValueError, AttributeError, RecursionError):
        raise Unanswered("its token service answers something else than a token") from None
    if not isinstance(text, str) or len(text) > MAX_TOKEN_CHARS or not _TOKEN.fullmatch(text):
        raise Unanswered("its token service answers something else than a token")
    lasting = isinstance(seconds, int | float) and not isinstance(seconds, bool) and seconds > 0
    return text, float(seconds) if lasting else DEFAULT_TOKEN_SECONDS


def _of_this_machine(host: str) -> bool:
    """Whether a URL's host is an address that leads back here, in any spelling of an address."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address.is_loopback or address.is_unspecified


def _unless_it_may_pass(answer: Answer) -> Answer:
    """The answer, unless the same question may be answered otherwise later."""
    if answer.status == HTTPStatus.TOO_MANY_REQUESTS:
        seconds = retry_after(answer.headers.get("retry-after", ""))
        raise Later(f"it takes no more requests from here for now (429), {seconds:.0f} s at least", seconds)
    if answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR or answer.status == HTTPStatus.REQUEST_TIMEOUT:
        raise Unanswered(f"it answers {answer.status}")
    return answer


def retry_after(text: str) -> float:
    """Seconds of a ``Retry-After``: a number or an HTTP date; one second where it is neither."""
    if text.strip().isdecimal():
        return float(text)
    try:
        moment = email.utils.parsedate_to_datetime(text)
    except ValueError:
        return 1.0
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(0.0, (moment - datetime.now(UTC)).total_seconds())
