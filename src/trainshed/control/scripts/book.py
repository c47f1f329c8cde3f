"""What is known of the providers: asked now and then, kept in the database for every process (g.6, g.7)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import structlog

from trainshed.control.background import Background
from trainshed.control.scripts.ground import Ground
from trainshed.control.scripts.routing import offers_document, publish_capabilities
from trainshed.engines.providers.contract import GpuOffer, Health, Provider, ProviderError, QuotaReading
from trainshed.policy.migration import recheck
from trainshed.store import providers
from trainshed.store.database import Connection, Database

FRESH_SECONDS = 900.0
"""How long an answer of a provider that is well is believed."""
KEPT_QUOTA_SECONDS = 60 * 86_400.0

log = structlog.get_logger(__name__)


class Book:
    """Keeps the states of providers. `look` is called by the controller's thread."""

    def __init__(self, ground: Ground, background: Background) -> None:
        self._ground = ground
        self._background = background
        self._due: dict[str, float] = {}
        self._published = False

    def look(self) -> None:
        """Ask those whose last answer is old."""
        ground = self._ground
        if not self._published:
            able = {name: each.capabilities() for name, each in ground.providers.items()}
            ground.database.write(lambda connection: publish_capabilities(connection, able))
            self._published = True
        now = ground.clock()
        for name in ground.providers:
            if self._due.get(name, 0.0) <= now:
                self._background.start(_key(name), partial(self._check, name))

    def due(self) -> dict[str, float]:
        """When each is asked (Unix seconds), by the key of that work in the background."""
        return {_key(name): at for name, at in self._due.items()}

    def again(self, name: str) -> None:
        """Have one asked soon, because something about it changed."""
        self._due.pop(name, None)

    def _check(self, name: str) -> bool:
        ground = self._ground
        health = check_provider(ground.database, ground.providers[name], ground.clock())
        with ground.database.read() as connection:
            state = providers.state_of(connection, name)
        failures = state.failures if state else 0
        pause = FRESH_SECONDS if health.ok else recheck(failures)
        self._due[name] = ground.clock() + pause
        return True


def _key(name: str) -> str:
    return f"provider {name}"


def check_provider(database: Database, provider: Provider, now: float) -> Health:
    """Ask a provider how it is, what it offers and what is left, and keep the answers."""
    offers: list[GpuOffer] | None = None
    reading: QuotaReading | None = None
    try:
        health = provider.healthcheck()
        if health.ok:
            offers = list(provider.offers())
            reading = provider.quota()
    except ProviderError as error:
        health = Health(ok=False, code=error.code, message=error.message)
        log.warning("a provider does not answer", provider=provider.name, reason=error.message)

    def store(connection: Connection) -> None:
        known = providers.state_of(connection, provider.name)
        said = " ".join(part for part in (health.message, health.hint) if part)
        values: dict[str, object] = {
            "health": "ok" if health.ok else health.code,
            "message": said or None,
            "checked_at": now,
        }
        if offers is not None:
            values["offers"] = offers_document(offers)
        if health.ok:
            values["failures"] = 0
        else:
            values["failures"] = (known.failures if known else 0) + 1
        if known is None or _differs(known, values):
            providers.change_state(connection, provider.name, values)
        if reading is not None:
            providers.record_quota(connection, provider.name, _quota_values(reading, now))
            providers.forget_quota(connection, before=now - KEPT_QUOTA_SECONDS)

    database.write(store)
    return health


def _differs(known: object, values: Mapping[str, object]) -> bool:
    return any(getattr(known, key) != value for key, value in values.items())


def _quota_values(reading: QuotaReading, now: float) -> dict[str, object]:
    return {
        "used": reading.used,
        "quota_limit": reading.limit,
        "unit": reading.unit,
        "resets_at": reading.resets_at,
        "live": reading.live,
        "detail": reading.detail,
        "observed_at": reading.observed_at or now,
    }
