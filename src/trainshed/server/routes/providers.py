"""Providers of script Jobs and what is left at them (contract G, a.6, g)."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from trainshed.control.scripts.book import check_provider
from trainshed.control.scripts.routing import RoutePlanner, known_capabilities, offers_of
from trainshed.model.errors import Refusal
from trainshed.policy.routing.ledger import Ledger
from trainshed.server.documents import Param
from trainshed.server.endpoints import Call, Operation, Routes
from trainshed.server.routes.scripts import READ, RUN
from trainshed.server.script_views import g_time, g_time_text
from trainshed.server.shapes import scripts as shapes
from trainshed.store import providers as store
from trainshed.store import script_work
from trainshed.store.database import Connection

routes = Routes("providers")

_REFRESH = Param("refresh", {"type": "string", "enum": ["1"]}, "Ask the providers now.")
_USABLE = frozenset({"ok", "unknown"})
_UNITS = {"gpu_hours": "GPU-hours", "credits": "credits", "usd": "USD"}


@routes.get("/providers", Operation("List providers", answer=shapes.Providers, any_of=READ))
def list_providers(call: Call) -> shapes.Providers:
    """Every one that this server knows, as it was when it was asked last."""
    with call.services.database.read() as connection:
        return shapes.Providers(items=[_view(connection, name) for name in known_capabilities(connection)])


@routes.post(
    "/providers/{provider}/healthcheck",
    Operation(
        "Ask a provider whether it can be used",
        answer=shapes.Provider,
        any_of=RUN,
        refuses=("PROVIDER_NOT_FOUND",),
    ),
)
def check_health(call: Call, provider: str) -> shapes.Provider:
    """Where another process controls, the answer is what that found last."""
    asked = call.services.scripts.providers().get(provider)
    if asked is not None:
        check_provider(call.services.database, asked, call.now)
    with call.services.database.read() as connection:
        if provider not in known_capabilities(connection):
            said = f"there is no provider `{provider[:40]}`"
            raise Refusal.of("PROVIDER_NOT_FOUND", said, path="provider")
        return _view(connection, provider)


@routes.get(
    "/provider-quota",
    Operation("What is left at providers", answer=shapes.Quotas, any_of=READ, params=(_REFRESH,)),
)
def read_quota(call: Call) -> shapes.Quotas:
    """As they say, or as this server reckons; each says which. A provider without a login is listed too."""
    if call.query.get("refresh") == "1":
        for provider in call.services.scripts.providers().values():
            check_provider(call.services.database, provider, call.now)
    planner, now = call.services.scripts.planner, call.now
    with call.services.database.read() as connection:
        found = [_quota(connection, planner, name, now) for name in known_capabilities(connection)]
    return shapes.Quotas(quota=found, summary=[_sentence(each) for each in found])


def _view(connection: Connection, name: str) -> shapes.Provider:
    state = store.state_of(connection, name)
    return shapes.Provider(
        name=name,
        enabled=state.enabled if state else True,
        health=state.health if state else "unknown",
        message=state.message if state else None,
        checked_at=g_time(state.checked_at) if state else None,
        cooldown_until=g_time(state.cooldown_until) if state else None,
        exhausted_until=g_time(state.exhausted_until) if state else None,
        gpus=[asdict(each) for each in offers_of(state)],
        capabilities=asdict(known_capabilities(connection)[name]),
        running=script_work.busy(connection)[name],
    )


def _quota(connection: Connection, planner: RoutePlanner, name: str, now: float) -> shapes.Quota:
    newest = store.newest_quota(connection, name)
    ledger: Ledger | None = planner.ledger(connection, name, now)
    if newest is not None and newest.unit != "gpu_hours":
        return shapes.Quota(
            provider=name,
            used=newest.used,
            limit=newest.quota_limit,
            unit=newest.unit,
            resets_at=g_time(newest.resets_at),
            source="live" if newest.live else "estimate",
            detail=newest.detail,
            observed_at=g_time_text(newest.observed_at),
        )
    state = store.state_of(connection, name)
    unusable = state.message if state and state.health not in _USABLE else None
    if ledger is None:
        detail = unusable or "no limit is known"
        return shapes.Quota(
            provider=name,
            used=None,
            limit=None,
            unit="gpu_hours",
            resets_at=None,
            source="estimate",
            detail=detail,
            observed_at=None,
        )
    source: Any = ledger.source
    return shapes.Quota(
        provider=name,
        used=round(ledger.used, 3),
        limit=ledger.limit,
        unit="gpu_hours",
        resets_at=g_time(ledger.resets_at),
        source=source,
        detail=unusable or ledger.detail,
        observed_at=g_time(ledger.observed_at),
    )


def _sentence(quota: shapes.Quota) -> str:
    if quota.limit is None or quota.used is None:
        return f"{quota.provider}: {quota.detail}"
    left = max(0.0, quota.limit - quota.used)
    unit = _UNITS.get(quota.unit, quota.unit)
    until = f", renewed {quota.resets_at}" if quota.resets_at else ""
    return f"{quota.provider}: {left:g} of {quota.limit:g} {unit} left ({quota.source}){until}"
