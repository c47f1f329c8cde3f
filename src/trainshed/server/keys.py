"""Whether the keys behind open streams still hold: a stream outlives the check that opened it.

Streams of one key share one look at the database a second.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from starlette.concurrency import run_in_threadpool

from trainshed.model.access import Permission, Principal
from trainshed.server import auth
from trainshed.store import access
from trainshed.store.database import Database

RECHECK_SECONDS = 1.0
_KEPT = 1024


@dataclass(frozen=True, slots=True)
class _Look:
    at: float
    found: asyncio.Task[Principal | None]


class KeyWatch:
    """Answers for keys that opened streams. ``clock`` answers Unix seconds. Used on the event loop only."""

    def __init__(self, database: Database, clock: Callable[[], float]) -> None:
        self._database = database
        self._clock = clock
        self._looks: dict[str, _Look] = {}

    async def check(self, hashed: str, any_of: Collection[Permission]) -> None:
        """Raise `Refusal` as `auth` does, once the key with this hash was revoked, expired or cut down."""
        now = time.monotonic()
        look = self._looks.get(hashed)
        if look is None or now - look.at >= RECHECK_SECONDS or look.found.cancelled():
            found = asyncio.create_task(run_in_threadpool(self._find, hashed))
            look = self._looks[hashed] = _Look(now, found)
            if len(self._looks) > _KEPT:
                self._looks = {key: each for key, each in self._looks.items() if each.at == now}
        # Shielded: whoever asked first may go away, and others wait for the same answer.
        auth.require(auth.held(await asyncio.shield(look.found)), any_of)

    def _find(self, hashed: str) -> Principal | None:
        with self._database.read() as connection:
            return access.find_principal(connection, hashed, at=self._clock())
