"""What is known of providers between two looks: health, quotas, data that lies there (contract G, g)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update

from trainshed.store.replacing import replace_row
from trainshed.store.script_records import ProviderState, QuotaRow, StagedRow
from trainshed.store.script_tables import provider_states, quota_readings, staged_data


def states(connection: Connection) -> dict[str, ProviderState]:
    """Every provider that was ever looked at, by name."""
    rows = connection.execute(select(provider_states).order_by(provider_states.c.provider))
    return {row.provider: ProviderState(*row) for row in rows}


def state_of(connection: Connection, provider: str) -> ProviderState | None:
    row = connection.execute(select(provider_states).where(provider_states.c.provider == provider)).first()
    return None if row is None else ProviderState(*row)


def change_state(connection: Connection, provider: str, values: Mapping[str, Any]) -> None:
    """Set columns of a provider's state; its row is made where there is none."""
    mine = provider_states.c.provider == provider
    if not connection.execute(update(provider_states).where(mine).values(**values)).rowcount:
        connection.execute(insert(provider_states).values(provider=provider, **values))


def record_quota(connection: Connection, provider: str, values: Mapping[str, Any]) -> None:
    """Append a reading (columns of ``quota_readings``)."""
    connection.execute(insert(quota_readings).values(provider=provider, **values))


def newest_quota(connection: Connection, provider: str, *, live: bool | None = None) -> QuotaRow | None:
    """The last reading of a provider, of one kind where ``live`` says which."""
    query = select(quota_readings).where(quota_readings.c.provider == provider)
    if live is not None:
        query = query.where(quota_readings.c.live.is_(live))
    order = (quota_readings.c.observed_at.desc(), quota_readings.c.id.desc())
    row = connection.execute(query.order_by(*order).limit(1)).first()
    return None if row is None else QuotaRow(*row)


def forget_quota(connection: Connection, *, before: float) -> int:
    """Drop readings older than ``before`` (Unix seconds); how many."""
    gone = connection.execute(delete(quota_readings).where(quota_readings.c.observed_at < before))
    return int(gone.rowcount)


def staged(connection: Connection, provider: str, manifest_sha256: str) -> StagedRow | None:
    """A dataset that lies at a provider already."""
    row = connection.execute(
        select(staged_data).where(
            staged_data.c.provider == provider, staged_data.c.manifest_sha256 == manifest_sha256
        )
    ).first()
    return None if row is None else StagedRow(*row)


def put_staged(connection: Connection, row: StagedRow) -> None:
    """Note that a dataset lies at a provider, and that it was just used."""
    values = {column.name: getattr(row, column.name) for column in staged_data.c}
    replace_row(connection, staged_data, values, ("provider", "manifest_sha256"))


def unused_staged(connection: Connection, *, before: float) -> list[StagedRow]:
    """What lies at providers and was not used since ``before`` (Unix seconds)."""
    query = select(staged_data).where(staged_data.c.used_at < before).order_by(staged_data.c.used_at)
    return [StagedRow(*row) for row in connection.execute(query)]


def drop_staged(connection: Connection, provider: str, manifest_sha256: str) -> None:
    connection.execute(
        delete(staged_data).where(
            staged_data.c.provider == provider, staged_data.c.manifest_sha256 == manifest_sha256
        )
    )
