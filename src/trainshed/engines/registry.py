"""Engines by name. One is imported when it is asked for, so an engine's libraries cost nothing unused."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import cast

from trainshed.engines.contract import Engine

ENGINES: Mapping[str, str] = {
    "fake": "trainshed.engines.fake:FakeEngine",
    "local": "trainshed.engines.local:LocalEngine",
    "ray": "trainshed.engines.ray:RayEngine",
}
"""Name -> ``module:class``. A new engine adds its line here."""


def load(name: str) -> type[Engine]:
    """The class of an engine, to be made with its own settings. Raises `KeyError` for a name unknown."""
    module, _, attribute = ENGINES[name].partition(":")
    return cast("type[Engine]", getattr(import_module(module), attribute))
