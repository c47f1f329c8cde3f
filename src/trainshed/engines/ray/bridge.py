"""How the members of one gang see each other although each is on a node of its own (C27, c8).

`trainshed.jobkit.gang` lets members on one machine find each other by a folder, by each other's attempt
folders, and by locks. A bridge keeps, on each node, a stand-in for every remote member: an attempt folder
whose lock the bridge holds for as long as that member lives. What a member shows travels through the host of
rank 0, the hub, which alone decides the start; the server is not needed for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trainshed.jobkit import folder, gang

Json = dict[str, Any]
Exchange = Callable[[int, Json], Mapping[str, Json]]
"""Hands a member's state to the hub; answers with all that the hub knows, by rank. Raises `HubGone`."""

_FAST_SECONDS, _SLOW_SECONDS = 0.25, 1.0
_SILENT_SECONDS = 20.0
"""A member that was heard of and then not for so long is lost; far below the 60 s of c8."""
EXTRA_SECONDS = 120.0
"""Added to the time for which others than the hub wait: it is the hub's decision that counts."""


class HubGone(Exception):
    """The host of rank 0 is no more."""


class HubSlow(Exception):
    """It did not answer in time; it may yet."""


class Hub:
    """What the host of rank 0 knows of all members. Thread-safe."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._states: dict[int, Json] = {}
        self._heard: dict[int, float] = {}

    def exchange(self, rank: int, state: Json) -> Mapping[str, Json]:
        """Take a member's state; give everybody's."""
        now = time.monotonic()
        with self._guard:
            known = self._states.get(rank)
            if known is None or "lost" not in known:
                self._states[rank] = state
            self._heard[rank] = now
            for other, at in self._heard.items():
                if now - at > _SILENT_SECONDS and "exit" not in self._states[other]:
                    self._states[other] |= {"lost": "its host was not heard of any more"}
            return {str(other): dict(state) for other, state in self._states.items()}

    def lost(self, rank: int, why: str) -> None:
        """Somebody knows that a member is gone."""
        with self._guard:
            self._states[rank] = {**self._states.get(rank, {}), "lost": why}
            self._heard.setdefault(rank, time.monotonic())


class Bridge:
    """The stand-ins of one member's node, kept by a thread of its own."""

    def __init__(self, engine_root: Path, gang_id: str, rank: int, size: int, exchange: Exchange) -> None:
        self._attempts = engine_root / "attempts"
        self._folder = engine_root / folder.GANGS / gang_id
        self._gang_id = gang_id
        self._rank = rank
        self._exchange = exchange
        self._locks: dict[int, int] = {}
        self._stop = threading.Event()
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for other in range(size):
            if other != rank:
                self._stand_in(other)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Let go of the stand-ins: they are for members that need nobody any more."""
        self._stop.set()
        self._thread.join(5)
        for other in list(self._locks):
            self._let_go(other)

    def _member(self, rank: int) -> Path:
        return self._attempts / f"{self._gang_id}.{rank}"

    def _stand_in(self, other: int) -> None:
        place = self._member(other)
        place.mkdir(mode=0o700, exist_ok=True)
        lock = folder.acquire(place)
        if lock is not None:
            self._locks[other] = lock

    def _let_go(self, other: int) -> None:
        lock = self._locks.pop(other, None)
        if lock is not None:
            os.close(lock)

    def _run(self) -> None:
        while not self._stop.wait(self._pause()):
            try:
                others = self._exchange(self._rank, self._state())
            except HubSlow:
                continue
            except HubGone:
                self._lose(0, "its host is gone")
                continue
            with contextlib.suppress(OSError):  # a full disk: it is tried again
                self._follow({int(rank): state for rank, state in others.items()})

    def _pause(self) -> float:
        begun = folder.exists(self._member(self._rank), folder.STARTED)
        return _SLOW_SECONDS if begun else _FAST_SECONDS

    def _state(self) -> Json:
        """What this member shows to the others."""
        own = self._member(self._rank)
        state: Json = {
            name: folder.exists(self._folder, f"{name}.{self._rank}") for name in (gang.READY, gang.CHECKED)
        }
        state["started"] = folder.exists(own, folder.STARTED)
        ended = None if folder.is_held(own) else folder.read(own, folder.EXIT)
        if ended:
            state["exit"] = {name: ended.get(name) for name in ("code", "signal", "ended_by")}
        for name in (gang.START, gang.ENDED):
            if (said := folder.read(self._folder, name)) is not None:
                state[name] = said
        return state

    def _follow(self, states: Mapping[int, Json]) -> None:
        """Make the stand-ins show what their members show."""
        hub = states.get(0, {})
        start = hub.get(gang.START)
        if self._rank and start is not None and not start.get("start"):
            self._create(gang.START, start)
        # One that ended is no member that is ready: our own shim has to see first that all were.
        opens = bool((start or {}).get("start")) and not folder.exists(self._folder, gang.START)
        for other, state in states.items():
            if other == self._rank:
                continue
            if gang.ENDED in state:
                self._create(gang.ENDED, state[gang.ENDED])
            if "lost" in state:
                self._lose(other, str(state["lost"]))
                continue
            # Only the hub is shown who is ready before the start is decided: one place decides.
            if state.get(gang.READY) and (self._rank == 0 or (start or {}).get("start")):
                self._mark(gang.READY, other)
            if state.get(gang.CHECKED):
                self._mark(gang.CHECKED, other)
            if not opens:
                self._show_end(other, state)

    def _show_end(self, other: int, state: Json) -> None:
        place = self._member(other)
        if state.get("started") and not folder.exists(place, folder.STARTED):
            folder.create_durably(place, folder.STARTED, b"{}")
        if "exit" in state and other in self._locks:
            folder.write_durably(place, folder.EXIT, state["exit"])
            self._let_go(other)

    def _lose(self, other: int, why: str) -> None:
        if other == self._rank or other not in self._locks:
            return
        place = self._member(other)
        with contextlib.suppress(FileExistsError):
            # Whether it had started or not: nobody replaces a host, so its gang is over.
            folder.create_durably(place, folder.STARTED, json.dumps({"lost": why}).encode())
        # Said as well: who watches our process, which holds the lock, does not see it let go of one.
        ended = {"rank": other, "why": f"rank {other} is lost: {why}", "at": time.time(), "patience": 0.0}
        self._create(gang.ENDED, ended)
        if not folder.exists(self._folder, gang.START):
            self._create(gang.START, {"start": False, "why": f"Another member is lost: rank {other}."})
        self._let_go(other)

    def _create(self, name: str, content: Json) -> None:
        with contextlib.suppress(FileExistsError):
            folder.create_durably(self._folder, name, json.dumps(content).encode())

    def _mark(self, name: str, other: int) -> None:
        if other in self._locks and not folder.exists(self._folder, f"{name}.{other}"):
            folder.write_durably(self._folder, f"{name}.{other}", {"pid": os.getpid()})
