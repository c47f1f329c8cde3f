"""Secrets do not come back: their values are masked in what a run elsewhere says, before it is kept (P9).

On an engine of the server that masks what a program prints.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from trainshed.control.scripts.ground import Ground, Look
from trainshed.model.scripts.spec import OWN_ENGINES

MASK = "***"
SHORTEST = 6
"""A shorter value is too common a text to be masked."""


def masker(ground: Ground, look: Look, provider: str) -> Callable[[str], str]:
    """What masks the values of a Job's secrets in a text."""
    if not look.spec.secrets or provider in OWN_ENGINES:
        return str
    with ground.database.read() as connection:
        values = ground.work.open_secrets(connection, look.script, look.spec.secrets).values()
    parts = {part for value in values for part in (value, *value.splitlines()) if len(part) >= SHORTEST}
    if not parts:
        return str
    # The longest first: one value may begin with another.
    hidden = re.compile("|".join(re.escape(part) for part in sorted(parts, key=len, reverse=True)))
    return lambda text: hidden.sub(MASK, text)
