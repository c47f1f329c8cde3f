"""Providers by name. One is imported when it is asked for, so a provider's libraries cost nothing unused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import cast

from trainshed.engines.providers.contract import Provider
from trainshed.model.scripts.spec import RAY

PROVIDERS: Mapping[str, str] = {
    "colab": "trainshed.engines.providers.colab:open_provider",
    "fake": "trainshed.engines.providers.fake:open_provider",
    "kaggle": "trainshed.engines.providers.kaggle:open_provider",
}
"""Name -> ``module:function``, which takes a `Setting`. A new provider adds its line here; this machine and a
cluster of the catalogue are no lines: they are made of engines of the server (modules ``local``, ``ray``)."""

NAMED = frozenset({*PROVIDERS, RAY}) - {"fake"}
"""Those that people are told of; `fake` serves tests."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What a provider is opened with."""

    folder: Path
    """For what it keeps on this machine between two calls; it is there, readable by us alone."""
    clock: Callable[[], float]
    """Unix seconds."""
    options: Mapping[str, object] = field(default_factory=dict)
    """Its part of the server's configuration."""


def open_provider(name: str, setting: Setting) -> Provider:
    """The provider of that name. Raises `KeyError` for a name unknown."""
    module, _, function = PROVIDERS[name].partition(":")
    return cast("Callable[[Setting], Provider]", getattr(import_module(module), function))(setting)
