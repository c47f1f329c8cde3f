"""Images of containers by name, and which registries may be asked for them (E41-E44).

``[host[:port]/]repository[:tag][@sha256:…]``. As everywhere, the first part is a host only if it holds a dot
or a colon or is ``localhost``; a name without one belongs to the default registry.
"""

from __future__ import annotations

import ipaddress
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass

from trainshed.model.selectors import image_fault

DOCKER_HUB = "docker.io"
"""The one registry whose names may have a single part: ``ubuntu`` is ``docker.io/library/ubuntu``."""
DEFAULT_TAG = "latest"
SYSTEM = "linux"
_DOCKER_HUB_NAMES = frozenset({"docker.io", "index.docker.io", "registry-1.docker.io"})
_DOCKER_HUB_API = "registry-1.docker.io"
_HOST = re.compile(
    r"(?=.{1,253}(?::|$))[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*"
    r"(?::[0-9]{1,5})?"
)
_PLACE = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*")
_MAX_PORT = 65535
_ARCHITECTURES: Mapping[str, str] = {
    "x86_64": "amd64",
    "amd64": "amd64",
    "aarch64": "arm64",
    "arm64": "arm64",
    "armv7l": "arm",
    "i686": "386",
}


def machine_architecture() -> str:
    """This machine's architecture, in the words of images: ``amd64``."""
    return _ARCHITECTURES.get(platform.machine().lower(), platform.machine().lower())


@dataclass(frozen=True, slots=True)
class ImageReference:
    """A name with nothing left out. ``digest`` wins over ``tag`` where both are given, as in Docker."""

    host: str
    """Registry with its port, if it has one."""
    repository: str
    tag: str | None
    digest: str | None
    """``sha256:`` and 64 lower-case hex digits."""

    @property
    def name(self) -> str:
        """Without tag and digest."""
        return f"{self.host}/{self.repository}"

    def at(self, digest: str) -> str:
        """The name that never changes its meaning."""
        return f"{self.name}@{digest}"

    def __str__(self) -> str:
        return self.at(self.digest) if self.digest else f"{self.name}:{self.tag}"


@dataclass(frozen=True, slots=True)
class Mirror:
    """``place`` serves what ``registry`` holds, below a path of its own if it has one."""

    registry: str
    place: str
    """``host[:port][/path]``."""

    @property
    def host(self) -> str:
        return self.place.partition("/")[0]


@dataclass(frozen=True, slots=True)
class Source:
    """One place to ask for one image."""

    url: str
    """Scheme and host: ``https://registry.example:5000``."""
    host: str
    repository: str
    """As this place names it."""
    mirror: bool


@dataclass(frozen=True, slots=True)
class RegistryRules:
    """Which registries there are, as an administrator says it."""

    default_registry: str = DOCKER_HUB
    """For names without a host; empty: such names are refused."""
    mirrors: tuple[Mirror, ...] = ()
    insecure: frozenset[str] = frozenset()
    """Hosts that are asked over plain HTTP; those of this machine's loopback always are."""
    allowed: tuple[str, ...] = ()
    """``host[:port][/path]``; none: every registry may be named."""

    def parse(self, text: str) -> ImageReference:
        """A reference from what somebody wrote; raises `ValueError` with a sentence."""
        if fault := image_fault(text):
            raise ValueError(fault)
        rest, at, digest = text.partition("@")
        first, slash, path = rest.partition("/")
        has_host = bool(slash) and (first == "localhost" or "." in first or ":" in first)
        host, rest = (first, path) if has_host else (self.default_registry, rest)
        if not host:
            raise ValueError(
                "name the registry too, as in host/repository: this server has no default registry"
            )
        if fault := host_fault(host):
            raise ValueError(fault)
        repository, colon, tag = rest.partition(":")
        if not _PLACE.fullmatch(repository):
            raise ValueError(f"`{repository}` is no repository: write lower-case parts between `/`")
        if host in _DOCKER_HUB_NAMES:
            host = DOCKER_HUB
            repository = repository if "/" in repository else f"library/{repository}"
        return ImageReference(
            host=host,
            repository=repository,
            tag=tag if colon else None if at else DEFAULT_TAG,
            digest=digest.lower() if at else None,
        )

    def allows(self, reference: ImageReference) -> bool:
        """Whether images may come from there."""
        return not self.allowed or any(
            reference.name == place or reference.name.startswith(f"{place}/") for place in self.allowed
        )

    def plain_http(self, host: str) -> bool:
        """Whether ``host`` is asked without TLS."""
        return host in self.insecure or is_loopback(host)

    def sources(self, reference: ImageReference) -> tuple[Source, ...]:
        """Where to ask: the mirrors in their order, then the registry itself."""
        found = []
        for mirror in self.mirrors:
            if mirror.registry == reference.host:
                host, slash, prefix = mirror.place.partition("/")
                found.append(self._source(host, f"{prefix}{slash}{reference.repository}", mirror=True))
        return (*found, self._source(reference.host, reference.repository, mirror=False))

    def _source(self, host: str, repository: str, *, mirror: bool) -> Source:
        scheme = "http" if self.plain_http(host) else "https"
        address = _DOCKER_HUB_API if host in _DOCKER_HUB_NAMES else host
        return Source(f"{scheme}://{address}", host, repository, mirror)


def parse_mirror(text: str, default_registry: str) -> Mirror:
    """``REGISTRY=HOST[/PATH]``; without a registry it mirrors the default one. Raises `ValueError`."""
    registry, equals, place = text.partition("=")
    if not equals:
        registry, place = default_registry, text
    if fault := host_fault(registry) or place_fault(place):
        raise ValueError(f"write REGISTRY=HOST[:PORT][/PATH]; {fault}")
    return Mirror(DOCKER_HUB if registry in _DOCKER_HUB_NAMES else registry, place)


def host_fault(text: str) -> str | None:
    """Why ``text`` is not a registry's ``host[:port]``, or ``None``."""
    port = text.partition(":")[2]
    if not _HOST.fullmatch(text) or (port and not 0 < int(port) <= _MAX_PORT):
        return f"`{text[:80]}` is no host: write host or host:port in lower case"
    return None


def place_fault(text: str) -> str | None:
    """Why ``text`` is not ``host[:port][/path]``, or ``None``."""
    host, slash, path = text.partition("/")
    if fault := host_fault(host):
        return fault
    if slash and not _PLACE.fullmatch(path):
        return f"`{path[:80]}` is no path: write lower-case parts between `/`"
    return None


def is_loopback(host: str) -> bool:
    """Whether a ``host[:port]`` is this machine's own loopback."""
    name = host.partition(":")[0]
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
