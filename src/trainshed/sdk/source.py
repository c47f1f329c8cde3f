"""Who calls, as clients say it of themselves (contract G, c.6). There is no way for an agent to opt out."""

from __future__ import annotations

import os

from trainshed import __version__

MARKERS = ("CLAUDECODE", "CODEX_SANDBOX", "CODEX_SANDBOX_NETWORK_DISABLED", "TRAINSHED_AGENT")
"""Variables in the environment of what an agent runs."""
HEADER = "Trainshed-Source"
AGENT, CLI, SHELL, API = "agent", "cli", "shell", "api"


def marker() -> str | None:
    """The variable of this environment that says that an agent runs this; ``None`` if none does."""
    return next((name for name in MARKERS if os.environ.get(name)), None)


def standing_headers(said: str) -> dict[str, str]:
    """What every request says; ``said`` is what its client says of itself, unless an agent runs it."""
    source = AGENT if said == AGENT or marker() else said or API
    return {
        "User-Agent": f"trainshed/{__version__}",
        "Accept": "application/json, */*;q=0.1",
        HEADER: source,
    }
