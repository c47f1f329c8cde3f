"""What is known of notebook providers and may be out of date: ``facts.toml``, with the day of it (g.5).

Routing reckons with it where a provider does not say itself; ``gpu doctor`` can set it beside what they say.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

from trainshed.engines.providers.contract import GpuOffer


@dataclass(frozen=True, slots=True)
class Facts:
    """Of one provider. Hours are wall-clock hours."""

    checked: str
    """The day, ``YYYY-MM-DD``."""
    source: str
    quota_hours: float
    """GPU-hours that are commonly granted in ``quota_period_hours``."""
    quota_period_hours: float
    session_hours: float
    session_margin_minutes: float
    """So much less than a whole session is asked for."""
    max_concurrency: int
    poll_seconds: float
    offers: tuple[GpuOffer, ...]
    shapes: Mapping[str, str] = field(default_factory=dict)
    """Type of accelerator -> the provider's own word for it."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """Sizes and other things that only this provider has."""

    @property
    def asked_session_hours(self) -> float:
        """What is asked for, of ``session_hours``."""
        return self.session_hours - self.session_margin_minutes / 60.0


_COMMON = (
    "source",
    "quota_hours",
    "quota_period_hours",
    "session_hours",
    "session_margin_minutes",
    "max_concurrency",
    "poll_seconds",
)


@cache
def all_facts() -> Mapping[str, Facts]:
    """By provider."""
    text = resources.files(__package__).joinpath("facts.toml").read_text(encoding="utf-8")
    document = tomllib.loads(text)
    checked = document.pop("checked").isoformat()
    return {name: _facts(table, checked) for name, table in document.items()}


def _facts(table: dict[str, Any], checked: str) -> Facts:
    gpus = table.pop("gpus")
    common = {name: table.pop(name) for name in _COMMON}
    return Facts(
        checked=checked,
        offers=tuple(_offer(gpu) for gpu in gpus),
        shapes={gpu["type"]: gpu["shape"] for gpu in gpus},
        more=table,
        **common,
    )


def _offer(gpu: Mapping[str, Any]) -> GpuOffer:
    return GpuOffer(gpu["type"], gpu["vram_gb"], gpu["count"])
