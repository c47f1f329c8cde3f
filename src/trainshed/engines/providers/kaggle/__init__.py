"""The provider ``kaggle``: sessions of Kaggle's notebooks, over its public HTTP interface."""

from __future__ import annotations

from trainshed.engines.providers.kaggle.credentials import find_login
from trainshed.engines.providers.kaggle.provider import KaggleProvider
from trainshed.engines.providers.kaggle.wire import URL, Wire
from trainshed.engines.providers.registry import Setting

__all__ = ["KaggleProvider", "open_provider"]


def open_provider(setting: Setting) -> KaggleProvider:
    """As the server's configuration says: options ``url`` and ``poll_seconds``."""
    wire = Wire(str(setting.options.get("url") or URL), find_login, setting.clock)
    poll = setting.options.get("poll_seconds")
    return KaggleProvider(
        wire, setting.folder, setting.clock, poll_seconds=poll if isinstance(poll, float) else None
    )
