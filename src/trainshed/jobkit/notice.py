"""The exit notice: a program is told to save, and gets its time for it (C36).

A file appears with the reason and the deadline; the signal goes, on each branch of the process tree, to the
topmost process that catches it. So no process dies of a signal that it does not know, and children that
inherited a handler, as data loaders do, are left alone. The program answers by ending, by making
``FILE.done``, or with ``FILE.ack`` if it only wants to say that it heard.
"""

from __future__ import annotations

import json
import os
import select
import time

from trainshed.jobkit import folder, linux, procs, reports

FILE = "trainshed-notice.json"
"""Where it appears in the program's folder of temporary files."""
GRACE_SECONDS = 10.0
"""From SIGTERM after a notice to SIGKILL."""
_UNHEARD_SECONDS = 15.0
_LOOK_SECONDS = 1.0
_DONE, _ACK = f"{FILE}.done", f"{FILE}.ack"
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from trainshed.jobkit.folder import Json


class Notice:
    """The notice of one attempt. ``members`` says which processes are the program's now."""

    def __init__(
        self,
        path: str,
        settings: Json,
        say: reports.Reports,
        epoll: select.epoll,
        members: Callable[[], set[int]],
    ) -> None:
        self._path = path
        self._signal = int(settings["signal"])
        self._name = str(settings["name"])
        self._say = say
        self._epoll = epoll
        self._members = members
        self._place = -1
        self._inotify = -1
        self._told: dict[int, str | None] = {}
        """Processes that got the signal, with when they started."""
        self._begun_at = self._over_at = self._look_at = 0.0
        self._answered = False
        self.active = False
        """Whether the program was told and its time is not over."""
        self.over = False

    def begin(self) -> None:
        """Tell the program, if that is asked for and was not done."""
        if self.active or self.over:
            return
        request = folder.read(self._path, folder.NOTICE)
        if request is None:
            return
        self.active = True
        self._begun_at = time.monotonic()
        try:
            deadline, reason = float(request["deadline"]), str(request["reason"])
        except (KeyError, TypeError, ValueError):
            deadline, reason = time.time(), "unknown"
        allowed = max(0.0, deadline - time.time())
        self._over_at = self._begun_at + allowed
        try:
            self._show({"reason": reason, "deadline": deadline})
        except OSError as error:
            words = f"Its notice file cannot be written: {error.strerror}."
            self._say.say("EXIT_NOTICE_FILE", words, reports.WARNING)
        count = self._signal_new()
        self._look_at = self._begun_at + _LOOK_SECONDS
        words = (
            f"It was told to save within {allowed:.0f} seconds and go ({reason}):"
            f" {self._name} to {count} process(es)."
        )
        self._say.say("EXIT_NOTICE_SENT", words, reason=reason, deadline=deadline, processes=count)

    def drain(self, fd: int) -> bool:
        """Take an event of ``fd``; whether it was ours."""
        if fd != self._inotify:
            return False
        linux.read_all(fd)
        return True

    def due(self) -> float:
        """When to look again, by the monotonic clock."""
        if not self.active:
            return float("inf")
        if self._answered and self._inotify >= 0:
            return self._over_at
        if self._told and self._inotify >= 0:
            return (
                min(self._over_at, self._begun_at + _UNHEARD_SECONDS) if self._is_quiet() else self._over_at
            )
        return min(self._over_at, self._look_at)

    def _is_quiet(self) -> bool:
        return time.monotonic() < self._begun_at + _UNHEARD_SECONDS

    def step(self) -> bool:
        """See what became of it; whether the program is to be stopped now."""
        if not self.active:
            return False
        now = time.monotonic()
        if self._there(_DONE):
            self._hear("says that it is done", now)
            return self._finish()
        if not self._answered and self._there(_ACK):
            self._hear("says that it heard", now)
        if now >= self._over_at:
            if not self._answered:
                self._unheard(now)
            return self._finish()
        if self._answered or self._told:
            return False
        if now >= self._begun_at + _UNHEARD_SECONDS:
            self._unheard(now)
            return self._finish()
        if now >= self._look_at:
            self._look_at = now + _LOOK_SECONDS
            self._signal_new()  # it may not have had its handler before
        return False

    def program_ended(self) -> None:
        """The program went by itself: that is the best answer."""
        if self.active:
            self._hear("ended", time.monotonic())
            self._finish()

    def _finish(self) -> bool:
        self.active, self.over = False, True
        if self._inotify >= 0:
            self._epoll.unregister(self._inotify)
            os.close(self._inotify)
            self._inotify = -1
        if self._place >= 0:
            os.close(self._place)
            self._place = -1
        return True

    def _hear(self, how: str, now: float) -> None:
        if self._answered:
            return
        self._answered = True
        seconds = round(now - self._begun_at, 3)
        words = f"The program {how}, {seconds:.1f} seconds after its notice."
        self._say.say("EXIT_NOTICE_HEARD", words, seconds=seconds, processes=sorted(self._told))

    def _unheard(self, now: float) -> None:
        seconds = round(now - self._begun_at, 3)
        if self._told:
            words = (
                f"{len(self._told)} process(es) caught {self._name}, but none was done"
                f" within {seconds:.0f} seconds."
            )
        else:
            words = f"Nobody catches {self._name}, and nobody answered within {seconds:.0f} seconds."
        self._say.say(
            "EXIT_NOTICE_UNHEARD", words, reports.WARNING, seconds=seconds, processes=sorted(self._told)
        )

    # Signals

    def _signal_new(self) -> int:
        """Signal those that catch it and did not get it; returns how many got it so far."""
        for pid in topmost_catchers(self._members(), self._signal):
            started = procs.start_time(pid)
            if self._told.get(pid, "") != started and procs.send(pid, self._signal):
                self._told[pid] = started
        return len(self._told)

    # Files, in a folder where the program may have made anything

    def _show(self, content: Json) -> None:
        self._place = os.open(os.path.join(self._path, folder.TEMPORARY), _DIRECTORY)
        for name in (_DONE, _ACK):
            try:
                os.unlink(name, dir_fd=self._place)
            except OSError:
                pass
        self._inotify = linux.watch_names(os.path.join(self._path, folder.TEMPORARY))
        if self._inotify >= 0:
            self._epoll.register(self._inotify, select.EPOLLIN)
        temporary = f".{FILE}.{os.urandom(4).hex()}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(temporary, flags, 0o644, dir_fd=self._place)
        try:
            os.write(fd, json.dumps(content).encode())
            os.fchmod(fd, 0o644)
        finally:
            os.close(fd)
        os.rename(temporary, FILE, src_dir_fd=self._place, dst_dir_fd=self._place)

    def _there(self, name: str) -> bool:
        if self._place < 0:
            return False
        try:
            os.stat(name, dir_fd=self._place, follow_symlinks=False)
        except OSError:
            return False
        return True


def topmost_catchers(members: set[int], number: int) -> list[int]:
    """Of these processes, those that catch the signal and have none above them that does."""
    parents = {pid: parent for pid in members if (parent := _parent(pid)) is not None}
    catching = {pid for pid in parents if _catches(pid, number)}
    found = []
    for pid in sorted(catching):
        above, seen = parents[pid], {pid}
        while above in parents and above not in catching and above not in seen:
            seen.add(above)
            above = parents[above]
        if above not in catching:
            found.append(pid)
    return found


def _parent(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return None


def _catches(pid: int, number: int) -> bool:
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            lines = file.read().splitlines()
    except OSError:
        return False
    names = {line.partition(b":")[0]: line.partition(b":")[2].strip() for line in lines}
    if names.get(b"Name") == b"sshd":
        return False  # it serves logins; what was started by one is below it
    return bool(int(names.get(b"SigCgt", b"0"), 16) >> (number - 1) & 1)
