"""The provider ``colab``: sessions of Google Colab, over Google's own command line."""

from __future__ import annotations

from trainshed.engines.providers.colab.command import Command
from trainshed.engines.providers.colab.provider import ColabProvider
from trainshed.engines.providers.registry import Setting

__all__ = ["ColabProvider", "open_provider"]


def open_provider(setting: Setting) -> ColabProvider:
    """As the server's configuration says: options ``program`` and ``poll_seconds``."""
    command = Command(str(setting.options.get("program") or "colab"), setting.folder / "sessions.json")
    poll = setting.options.get("poll_seconds")
    return ColabProvider(
        command, setting.folder, setting.clock, poll_seconds=poll if isinstance(poll, float) else None
    )
