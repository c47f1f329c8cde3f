"""Checks of settings: each answers what is wrong with a text, to follow its name, or ``None``."""

from __future__ import annotations

from urllib.parse import urlsplit

from trainshed.engines.providers.registry import PROVIDERS
from trainshed.model.images import DOCKER_HUB, host_fault, parse_mirror
from trainshed.model.scripts.spec import RAY

_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


def registry_fault(text: str) -> str | None:
    """A registry, or nothing."""
    return host_fault(text) if text else None


def provider_fault(text: str) -> str | None:
    """A provider of packed projects that this server knows."""
    known = {*PROVIDERS, RAY}
    return None if text in known else f"must be one of {', '.join(sorted(known))}"


def public_url_fault(text: str) -> str | None:
    """Where clients reach the server."""
    try:
        url = urlsplit(text)
        usable = url.scheme in {"http", "https"} and bool(url.hostname) and url.port != 0
    except ValueError:
        usable = False
    if usable and text.isprintable() and not set(" @?#\\") & set(text):
        return None
    return "must be like https://train.example.org: http or https, without user, query and fragment"


def secure_url_fault(text: str) -> str | None:
    """A URL to which a login goes."""
    fault = public_url_fault(text)
    if fault is None and text.startswith("http:") and urlsplit(text).hostname not in _LOOPBACK:
        return "must be https, but for this machine: a login goes there"
    return fault


def mirror_fault(text: str) -> str | None:
    """A registry and its mirror."""
    try:
        parse_mirror(text, DOCKER_HUB)
    except ValueError as error:
        return str(error)
    return None
