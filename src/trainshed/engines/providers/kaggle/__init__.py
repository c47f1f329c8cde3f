"""The provider ``kaggle``: sessions of Kaggle's notebooks, over its public HTTP interface."""

from __future__ import annotations

from trainshed.engines.providers.kaggle.credentials import find_login
from trainshed.engines.providers.kaggle.provider import KaggleProvider
from trainshed.engines.providers.kaggle.wire import URL, Wire
from trainshed.engines.providers.registry import Setting

__all__ = ["KaggleProvider", "open_provider"]


def open_provider(setting: Setting) -> KaggleProvider:
    """As the server's configuration says: option ``url``, where it is not Kaggle's own address."""
    wire = Wire(str(setting.options.get("url") or URL), find_login, setting.clock)
    return KaggleProvider(wire, setting.folder, setting.clock)
