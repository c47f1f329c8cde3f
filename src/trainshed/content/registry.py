"""A client of OCI registries: what does this name mean now, and can it run here (E42-E45).

Only digests that were computed from the bytes are believed. A tag is asked for every time; what a digest
means never changes, so that is remembered.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from trainshed.content.registry_access import Access, Denied, Later
from trainshed.content.registry_wire import Answer, Unanswered, Wire
from trainshed.model.images import SYSTEM, ImageReference, RegistryRules, Source

OCI_INDEX = "application/vnd.oci.image.index.v1+json"
DOCKER_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
INDEX_TYPES = frozenset({OCI_INDEX, DOCKER_LIST})
MANIFEST_TYPES = frozenset({OCI_MANIFEST, DOCKER_MANIFEST})
CONFIG_TYPES = frozenset(
    {"application/vnd.oci.image.config.v1+json", "application/vnd.docker.container.image.v1+json"}
)
ACCEPT = f"{OCI_INDEX}, {DOCKER_LIST}, {OCI_MANIFEST}, {DOCKER_MANIFEST}"
"""All four, always: asked for fewer, registries convert, with another digest, or say 404."""
MAX_MANIFEST_BYTES = 4 << 20
MAX_CONFIG_BYTES = 8 << 20
REMEMBERED_SECONDS = 300.0
"""For how long a digest that was named by itself is not asked for again."""
_MAX_REMEMBERED = 4096
_MIRROR_REST_SECONDS = 30.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 2.0
_SHOWN_PLATFORMS = 12
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_SCHEMA_1 = "application/vnd.docker.distribution.manifest.v1"


class ImageRefused(Exception):
    """The image cannot be used here, and asking again does not change that. The message is a sentence."""


class RegistryUnavailable(Exception):
    """No registry gave a usable answer; asking again may help, in ``retry_after`` seconds if it says so."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """What a name meant when it was asked for."""

    reference: ImageReference
    digest: str
    """Of the index where the image has one, else of its manifest."""
    platform_digest: str
    """Of the manifest for the machine's platform."""

    @property
    def resolved(self) -> str:
        return self.reference.at(self.digest)


@dataclass(frozen=True, slots=True)
class _Manifest:
    digest: str
    kind: str
    document: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Known:
    platform_digest: str
    since: float


class RegistryClient:
    """Asks registries for images. Thread-safe; its connections are reused."""

    def __init__(self, rules: RegistryRules, *, timeout_seconds: float = 20.0, attempts: int = 3) -> None:
        self.timeout_seconds = timeout_seconds
        self._rules = rules
        self._attempts = attempts
        self._wire = Wire()
        self._access = Access(rules, self._wire)
        self._closed = threading.Event()
        self._guard = threading.Lock()
        self._known: OrderedDict[tuple[str, str, str], _Known] = OrderedDict()
        self._resting: dict[str, float] = {}

    def close(self) -> None:
        """Stop waiting for registries, and let go of connections."""
        self._closed.set()
        self._wire.close()

    def resolve(self, text: str, architecture: str, *, deadline: float | None = None) -> ImageFacts:
        """What the image ``text`` means now, for Linux on ``architecture`` (``amd64``).

        Mirrors are asked first, then the registry; what does not answer is asked again with growing pauses,
        until ``deadline`` (of ``time.monotonic``). Raises `ImageRefused` and `RegistryUnavailable`.
        """
        deadline = time.monotonic() + self.timeout_seconds if deadline is None else deadline
        try:
            reference = self._rules.parse(text)
        except ValueError as error:
            raise ImageRefused(f"the image `{text[:200]}`: {error}") from None
        if not self._rules.allows(reference):
            raise ImageRefused(
                f"the image `{reference}` comes from a place that this server takes no images from; it takes"
                f" those of {', '.join(self._rules.allowed)}"
            )
        return self._insist(reference, architecture, deadline)

    def layers(self, text: str, architecture: str) -> Mapping[str, int]:
        """Sizes in bytes of an image's layers as they are sent, by digest; empty if nobody says it at once.

        They are what the manifest claims, for who tells how far a pull is.
        """
        deadline = time.monotonic() + self.timeout_seconds
        with suppress(ValueError):
            reference = self._rules.parse(text)
            for source in self._rules.sources(reference):
                with suppress(Unanswered, ImageRefused, Denied):
                    return _Asking(self, source, reference, architecture, deadline).layers()
        return {}

    def _insist(self, reference: ImageReference, architecture: str, deadline: float) -> ImageFacts:
        for attempt in range(1, self._attempts + 1):
            causes: dict[str, Unanswered] = {}
            sources = [source for source in self._rules.sources(reference) if not self._rests(source)]
            for place, source in enumerate(sources):
                now = time.monotonic()
                share = now + (deadline - now) / (len(sources) - place)
                try:
                    return _Asking(self, source, reference, architecture, share).facts()
                except Unanswered as error:
                    causes[source.host] = error
                    self._rest(source)
                except (ImageRefused, Denied) as error:
                    if not source.mirror:
                        raise _refused(reference, error) from None
            pause = _pause(attempt, causes)
            out_of_time = time.monotonic() + pause >= deadline
            if attempt == self._attempts or out_of_time or self._closed.wait(pause):
                raise _unavailable(reference, causes)
        raise AssertionError("the last attempt returns or raises")

    def _rests(self, source: Source) -> bool:
        with self._guard:
            return source.mirror and self._resting.get(source.host, 0.0) > time.monotonic()

    def _rest(self, source: Source) -> None:
        """Leave a mirror that does not answer alone for a while: every submission would wait for it."""
        if source.mirror:
            with self._guard:
                self._resting[source.host] = time.monotonic() + _MIRROR_REST_SECONDS

    def recall(self, reference: ImageReference, digest: str, architecture: str) -> str | None:
        """The platform's digest, if this digest was found before; one named by itself is asked for again."""
        with self._guard:
            found = self._known.get((reference.name, digest, architecture))
        if found is None:
            return None
        fresh = time.monotonic() - found.since < REMEMBERED_SECONDS
        return found.platform_digest if fresh or reference.digest is None else None

    def remember(self, reference: ImageReference, digest: str, architecture: str, platform: str) -> None:
        with self._guard:
            key = (reference.name, digest, architecture)
            self._known[key] = _Known(platform, time.monotonic())
            self._known.move_to_end(key)
            if len(self._known) > _MAX_REMEMBERED:
                self._known.popitem(last=False)

    def ask(
        self, source: Source, method: str, path: str, accept: str, *, most_bytes: int, deadline: float
    ) -> Answer:
        headers = {"Accept": accept}
        return self._access.ask(source, method, path, headers, most_bytes=most_bytes, deadline=deadline)


class _Asking:
    """One image asked for at one source."""

    def __init__(
        self,
        client: RegistryClient,
        source: Source,
        reference: ImageReference,
        architecture: str,
        deadline: float,
    ) -> None:
        self._client = client
        self._source = source
        self._reference = reference
        self._architecture = architecture
        self._deadline = deadline

    def facts(self) -> ImageFacts:
        named = self._reference.digest
        digest = named or self._digest_of_tag()
        if digest and (known := self._client.recall(self._reference, digest, self._architecture)):
            return ImageFacts(self._reference, digest, known)
        found = self._manifest(digest) if digest else self._manifest(str(self._reference.tag))
        chosen = found
        if found.kind in INDEX_TYPES:
            chosen = self._manifest(_platform(found, self._architecture))
            if chosen.kind not in MANIFEST_TYPES:
                raise ImageRefused("its index names another index as the image of a platform")
        self._check_config(chosen)
        self._client.remember(self._reference, found.digest, self._architecture, chosen.digest)
        return ImageFacts(self._reference, found.digest, chosen.digest)

    def layers(self) -> Mapping[str, int]:
        found = self._manifest(self._reference.digest or str(self._reference.tag))
        if found.kind in INDEX_TYPES:
            found = self._manifest(_platform(found, self._architecture))
        layers = found.document.get("layers")
        listed = [each for each in layers if isinstance(each, dict)] if isinstance(layers, list) else []
        sizes = {str(each.get("digest")): each.get("size") for each in listed}
        return {digest: size for digest, size in sizes.items() if isinstance(size, int) and size > 0}

    def _digest_of_tag(self) -> str | None:
        """What a HEAD says, which registries do not count as a pull; ``None`` if that is of no use."""
        answer = self._ask("HEAD", f"manifests/{self._reference.tag}", ACCEPT, MAX_MANIFEST_BYTES)
        digest = answer.headers.get("docker-content-digest", "")
        usable = answer.content_type in INDEX_TYPES | MANIFEST_TYPES and _DIGEST.fullmatch(digest)
        return digest if answer.status == HTTPStatus.OK and usable else None

    def _manifest(self, wanted: str) -> _Manifest:
        """A manifest or index by tag or digest, its bytes checked against every digest that was said."""
        answer = self._ask("GET", f"manifests/{wanted}", ACCEPT, MAX_MANIFEST_BYTES)
        if answer.status != HTTPStatus.OK:
            raise self._no_manifest(answer, wanted)
        kind = answer.content_type
        if kind.startswith(_SCHEMA_1):
            raise ImageRefused(
                "it is stored in Docker's old format (schema 1); push it again with a newer tool"
            )
        if kind not in INDEX_TYPES | MANIFEST_TYPES:
            raise Unanswered(f"it answers `{kind[:80] or 'nothing'}` where a manifest belongs")
        digest = self._checked(answer, wanted)
        document = _object(answer.body, "a manifest")
        if document.get("mediaType", kind) != kind or ("manifests" in document) != (kind in INDEX_TYPES):
            raise Unanswered(f"it says `{kind}` of a manifest that says otherwise of itself")
        return _Manifest(digest, kind, document)

    def _no_manifest(self, answer: Answer, wanted: str) -> Exception:
        if answer.status == HTTPStatus.NOT_FOUND and _DIGEST.fullmatch(wanted) and not self._reference.digest:
            return Unanswered(f"it names the digest {wanted} and then does not have it")
        codes = _error_codes(answer.body)
        if answer.status == HTTPStatus.NOT_FOUND:
            what = f"the digest {wanted}" if _DIGEST.fullmatch(wanted) else f"the tag `{wanted}`"
            if "NAME_UNKNOWN" in codes or not self._has_repository():
                what = f"the repository `{self._source.repository}`"
            return ImageRefused(f"the registry does not have {what}")
        said = f", {codes[0]}" if codes else ""
        return ImageRefused(f"the registry answers {answer.status}{said} to this name")

    def _has_repository(self) -> bool:
        """Whether the registry knows the repository: many say of a manifest only that it is unknown."""
        try:
            answer = self._ask("GET", "tags/list?n=1", "application/json", MAX_MANIFEST_BYTES)
        except (Unanswered, Denied):
            return True
        return answer.status != HTTPStatus.NOT_FOUND or "NAME_UNKNOWN" not in _error_codes(answer.body)

    def _check_config(self, manifest: _Manifest) -> None:
        """Check that the image says of itself that it is for Linux and this architecture (E45)."""
        config = manifest.document.get("config")
        if not isinstance(config, dict):
            raise ImageRefused("its manifest has no config, so it is not an image of a container")
        kind, digest = str(config.get("mediaType")), config.get("digest")
        if kind not in CONFIG_TYPES:
            raise ImageRefused(f"it is not an image of a container: its config is of type `{kind[:80]}`")
        if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
            raise ImageRefused("its manifest names a config without a SHA-256 digest")
        answer = self._ask("GET", f"blobs/{digest}", "*/*", MAX_CONFIG_BYTES)
        if answer.status != HTTPStatus.OK:
            raise ImageRefused(f"its config {digest} cannot be read: the registry answers {answer.status}")
        self._checked(answer, digest)
        document = _object(answer.body, "the config of an image")
        system, architecture = document.get("os"), document.get("architecture")
        if (system, architecture) != (SYSTEM, self._architecture):
            raise ImageRefused(
                f"it is for {_named(system, architecture)}; here it has to be for"
                f" {SYSTEM}/{self._architecture}"
            )

    def _checked(self, answer: Answer, wanted: str) -> str:
        """The digest of the bytes. Raises `Unanswered` if it is not the one asked for, or the one said."""
        digest = f"sha256:{hashlib.sha256(answer.body).hexdigest()}"
        said = answer.headers.get("docker-content-digest", "")
        for other in (wanted, said):
            if _DIGEST.fullmatch(other) and other != digest:
                raise Unanswered(f"it sent bytes with the digest {digest} as those of {other}")
        return digest

    def _ask(self, method: str, path: str, accept: str, most_bytes: int) -> Answer:
        return self._client.ask(
            self._source, method, path, accept, most_bytes=most_bytes, deadline=self._deadline
        )


def _platform(index: _Manifest, architecture: str) -> str:
    """The digest of the image for Linux on ``architecture`` in an index. Raises `ImageRefused`."""
    entries = index.document["manifests"]
    present: list[str] = []
    fitting: list[tuple[bool, str]] = []
    for entry in entries if isinstance(entries, list) else ():
        platform = entry.get("platform") if isinstance(entry, dict) else None
        digest = entry.get("digest") if isinstance(entry, dict) else None
        if not isinstance(platform, dict) or not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
            continue
        system, kind, variant = (platform.get(key) for key in ("os", "architecture", "variant"))
        if "unknown" not in (system, kind):  # signatures and attestations name themselves so
            present.append(_named(system, kind, variant))
        if (system, kind) == (SYSTEM, architecture):
            fitting.append((variant is not None, digest))
    if fitting:
        return min(fitting, key=lambda each: each[0])[1]
    shown = list(dict.fromkeys(present))
    names = ", ".join(shown[:_SHOWN_PLATFORMS]) or "none"
    more = f" and {len(shown) - _SHOWN_PLATFORMS} more" if len(shown) > _SHOWN_PLATFORMS else ""
    raise ImageRefused(f"it has no {SYSTEM}/{architecture}; its platforms: {names}{more}")


def _named(system: object, architecture: object, variant: object = None) -> str:
    parts = [str(part)[:40] for part in (system or "unnamed", architecture or "unnamed", variant) if part]
    return "/".join(parts)


def _object(body: bytes, what: str) -> Mapping[str, Any]:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise Unanswered(f"it answers something that is not {what}")
    return document


def _error_codes(body: bytes) -> list[str]:
    """The codes in a registry's error answer; its sentences are not repeated to anybody."""
    try:
        errors = json.loads(body)["errors"]
        codes = [error["code"] for error in errors]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []
    return [code for code in codes if isinstance(code, str) and re.fullmatch(r"[A-Z_]{1,40}", code)]


def _pause(attempt: int, causes: Mapping[str, Unanswered]) -> float:
    ceiling = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** (attempt - 1))
    asked = min((cause.seconds for cause in causes.values() if isinstance(cause, Later)), default=0.0)
    return max(asked, random.uniform(ceiling / 2, ceiling))  # noqa: S311 - spreads load, protects nothing


def _refused(reference: ImageReference, error: Exception) -> ImageRefused:
    if isinstance(error, Denied):
        return ImageRefused(
            f"the image `{reference}` needs credentials, or does not exist: {error}. Only images that"
            " everybody may pull can be used"
        )
    return ImageRefused(f"the image `{reference}` cannot be used: {error}")


def _unavailable(reference: ImageReference, causes: Mapping[str, Unanswered]) -> RegistryUnavailable:
    said = "; ".join(f"{host}: {cause}" for host, cause in causes.items())
    waits = [cause.seconds for cause in causes.values() if isinstance(cause, Later)]
    return RegistryUnavailable(
        f"the image `{reference}` could not be asked for: {said}", min(waits) if waits else None
    )
