"""The members of a gang on one machine: they begin together, and what fails of one ends all (C27, c8).

They share a folder, and need nobody else. A member that is ready says so in ``ready.RANK``, with the process
id of its shim: it counts for as long as that shim lives. Then whoever sees all of them ready decides the
start, or, once the time is over, that there is none; ``start.json`` is linked into place, so the first
decision stands. Whoever ends with anything but success leaves ``ended.json``, or the others do it for one
that is lost. They see it at once: the kernel tells of new names in the folder, and of shims that end.
"""

from __future__ import annotations

import json
import os
import select
import time

from trainshed.jobkit import folder, linux

BEGUN, START, ENDED = "begun.json", "start.json", "ended.json"
READY, CHECKED = "ready", "checked"
OVER_PATIENCE = 30.0
"""How long members that may leave have to end by themselves once rank 0 has ended well."""
_LOOK_SECONDS = 5.0
_BLIND_SECONDS = 0.5
"""How often to look where the kernel tells of nothing."""
_RETURN_SECONDS = 20.0
"""How long a shim that vanished before user code may take to be replaced, once the start is decided."""
_EVENT_BYTES = 1 << 14

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainshed.jobkit.folder import Json


class Gang:
    """One member's view of its gang, while its shim holds the attempt's lock."""

    def __init__(self, path: str, settings: Json, epoll: select.epoll) -> None:
        self.rank = int(settings["rank"])
        self._size = int(settings["size"])
        self._optional = frozenset(settings.get("optional") or ())
        """Members whose end, once their user code began, ends nobody (rule 19)."""
        self.joins = self.rank >= self._size
        self._first_over: float | None = None
        """When rank 0 was seen to have ended well."""
        self._id = settings["id"]
        self._folder = settings["folder"]
        self._attempts = os.path.dirname(path)
        self._epoll = epoll
        self._handles: dict[int, int] = {}
        """Process handles of other members' shims -> their ranks."""
        self._vanished: dict[int, float] = {}
        self._over: set[int] = set()
        """Members that ended well."""
        self._look_at = 0.0
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        for name in (READY, CHECKED):  # of an earlier shim, which is gone
            self._remove(f"{name}.{self.rank}")
        self._decide(BEGUN, {"at": time.time()})
        begun = (folder.read(self._folder, BEGUN) or {}).get("at")
        self._late_at = float(begun or time.time()) + float(settings["start_seconds"])
        self._start_seconds = float(settings["start_seconds"])
        self._inotify = linux.watch_names(self._folder)
        if self._inotify >= 0:
            epoll.register(self._inotify, select.EPOLLIN)

    def drain(self, fd: int) -> bool:
        """Take an event of ``fd``; whether it was one of ours."""
        if fd == self._inotify:
            linux.read_all(fd)
            return True
        if fd in self._handles:
            self._let_go(fd)
            self._look_at = 0.0
            return True
        return False

    def due(self) -> float:
        """When to look again, by the monotonic clock, if nothing happens before."""
        pause = _LOOK_SECONDS if self._inotify >= 0 else _BLIND_SECONDS
        if self._vanished:
            pause = min(pause, 1.0)
        return time.monotonic() + pause

    # Beginning

    def get_ready(self) -> None:
        """Say that this member waits for the others."""
        self._mark(READY)

    def opened(self) -> bool:
        """Whether the start is decided; `fault` says whether there is none."""
        start = folder.read(self._folder, START)
        if start is None:
            if not self.joins and self._all_ready():
                self._decide(START, {"start": True})
            elif time.time() >= self._late_at:
                names = ", ".join(str(rank) for rank in range(self._size) if not self._is_ready(rank))
                late = f"Not all members of its gang were ready within {self._start_seconds:g} seconds"
                self._decide(START, {"start": False, "why": f"{late}; missing: rank {names}."})
            start = folder.read(self._folder, START)
        return bool(start and start.get("start"))

    def until_late(self) -> float:
        """Seconds until the members have waited for one another for long enough."""
        return max(0.0, self._late_at - time.time())

    def check_passed(self) -> None:
        """Say that this member's check before training passed."""
        self._mark(CHECKED)

    def all_checked(self) -> bool:
        """Whether all members' checks passed."""
        return all(folder.exists(self._folder, f"{CHECKED}.{rank}") for rank in range(self._size))

    def _all_ready(self) -> bool:
        names = os.listdir(self._folder)
        if sum(name.startswith(f"{READY}.") for name in names) < self._size:
            return False
        return all(self._is_ready(rank) for rank in range(self._size))

    def _is_ready(self, rank: int) -> bool:
        said = folder.read(self._folder, f"{READY}.{rank}")
        member = self._member(rank)
        return bool(said and folder.is_held(member) and folder.holder(member) == said.get("pid"))

    # Ending

    def fault(self) -> tuple[str, float] | None:
        """Why this member must not go on, and when by the clock; ``None`` while all is well."""
        start = folder.read(self._folder, START)
        if start is not None and not start.get("start"):
            return str(start.get("why", "Its gang does not start.")), 0.0
        ended = folder.read(self._folder, ENDED)
        if ended is None:
            if self._first_over is not None and self.may_leave():
                return "Its gang is over: rank 0 ended.", self._first_over + OVER_PATIENCE
            return None
        at = float(ended.get("at", 0.0)) + float(ended.get("patience", 0.0))
        return f"Another member of its gang ended: {ended.get('why', 'it is lost')}.", at

    def may_leave(self) -> bool:
        """Whether this member's end, once its user code began, is no end of the gang (rule 19)."""
        return self.joins or self.rank in self._optional

    def end(self, rank: int, why: str, patience: float = 0.0) -> None:
        """Leave word that a member ended as it must not. The first one's stands.

        The others wait ``patience`` seconds for a request of their own before they end.
        """
        if not folder.exists(self._folder, START):
            self._decide(START, {"start": False, "why": f"Another member of its gang ended: {why}."})
        self._decide(ENDED, {"rank": rank, "why": why, "at": time.time(), "patience": patience})

    def look_at_others(self, *, strict: bool) -> None:
        """Notice members that are lost, or that ended while nobody of theirs could say so.

        Once the start is decided, one that vanished before user code may be replaced meanwhile, but not if
        ``strict``: in a check all of them must stay.
        """
        now = time.monotonic()
        if now < self._look_at or folder.exists(self._folder, ENDED):
            return
        self._look_at = now + (1.0 if self._vanished else _LOOK_SECONDS)
        decided = folder.exists(self._folder, START)
        watched = set(self._handles.values()) | self._over | {self.rank}
        for rank in range(self._size):
            if rank not in watched and not self._watch(rank):
                self._look_at_absent(rank, now, decided=decided, strict=strict)

    def _watch(self, rank: int) -> bool:
        """Have the kernel tell when the member's shim ends; ``False`` if there is none."""
        member = self._member(rank)
        if not folder.is_held(member):
            return False
        pid = folder.holder(member)
        try:
            handle = os.pidfd_open(pid) if pid else -1
        except OSError:
            return False
        # Only now is it certain that the id was not another process's.
        if handle < 0 or not folder.is_held(member) or folder.holder(member) != pid:
            if handle >= 0:
                os.close(handle)
            return False
        self._handles[handle] = rank
        self._vanished.pop(rank, None)
        self._epoll.register(handle, select.EPOLLIN)
        return True

    def _look_at_absent(self, rank: int, now: float, *, decided: bool, strict: bool) -> None:
        member = self._member(rank)
        ended = folder.read(member, folder.EXIT)
        if ended is not None:
            if ended.get("code") == 0:
                self._over.add(rank)
                if rank == 0 and self._first_over is None:
                    self._first_over = time.time()
            elif rank in self._optional and ended.get("code") is not None:
                self._over.add(rank)
            else:
                self.end(rank, f"rank {rank} {describe(ended)}")
        elif folder.has_begun(member):
            if rank in self._optional:
                self._over.add(rank)
            else:
                self.end(rank, f"rank {rank} is lost")
        elif decided:
            since = self._vanished.setdefault(rank, now)
            if strict or now - since >= _RETURN_SECONDS:
                self.end(rank, f"rank {rank} vanished before it started")

    def close(self) -> None:
        """Let go of what the kernel tells."""
        for handle in list(self._handles):
            self._let_go(handle)
        if self._inotify >= 0:
            os.close(self._inotify)

    def _let_go(self, handle: int) -> None:
        del self._handles[handle]
        self._epoll.unregister(handle)
        os.close(handle)

    # The folder

    def _member(self, rank: int) -> str:
        return os.path.join(self._attempts, f"{self._id}.{rank}")

    def _mark(self, name: str) -> None:
        temporary = os.path.join(self._folder, f".{name}.{self.rank}")
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump({"pid": os.getpid()}, file)
        os.rename(temporary, os.path.join(self._folder, f"{name}.{self.rank}"))

    def _decide(self, name: str, content: Json) -> None:
        """Write a fact that is decided once: whole or not at all, and never again."""
        if folder.exists(self._folder, name):
            return
        temporary = f".{name}.{self.rank}"
        folder.write_durably(self._folder, temporary, content)
        temporary = os.path.join(self._folder, temporary)
        try:
            os.link(temporary, os.path.join(self._folder, name))
            folder.sync_directory(self._folder)
        except FileExistsError:
            pass
        finally:
            os.unlink(temporary)

    def _remove(self, name: str) -> None:
        try:
            os.unlink(os.path.join(self._folder, name))
        except FileNotFoundError:
            pass


def describe(ended: Json) -> str:
    """An exit record as the end of a sentence about a rank."""
    if ended.get("ended_by") == "lost":
        return "is lost"
    if ended.get("code") is None:
        return f"did not start ({ended.get('ended_by')})"
    if ended.get("signal"):
        return f"was ended by signal {ended['signal']}"
    return f"exited with {ended['code']}"
