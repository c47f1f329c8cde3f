"""What a shim does besides for a replica of a training task: gang, check, notice, measurements, reports.

Everything here works without the server. The shim asks through one descriptor that is readable when there
is something to look at, and through times by when to look anyway.
"""

from __future__ import annotations

import os
import select
import time

from trainshed.jobkit import folder, gang, masking, notice, procs, reporting, reports

GANG, PRECHECK = "gang", "precheck"
STOP_PATIENCE, NOTICE_PATIENCE = 5.0, 30.0
"""How long the others wait for their own stop or timeout, or notice, after one of the gang ended by such."""
_CHECK_SPARE = 30.0
"""How long other members' checks may take beyond their time."""
_LISTEN_SECONDS = 1.0
"""How often to look for what a program of ours says, where one runs beside user code."""
_CHUNK = 1 << 16

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from trainshed.jobkit import child
    from trainshed.jobkit.checking import Findings
    from trainshed.jobkit.folder import Json
    from trainshed.jobkit.measuring import Sampler

Ending = tuple[str, str]
"""How an exit record says why, and its detail."""


class Training:
    """All of it for one attempt, while its shim holds the lock."""

    def __init__(self, path: str, hint: Callable[[], object]) -> None:
        self._path = path
        self._settings: Json = folder.read(path, folder.TRAINING) or {}
        hidden = folder.read(path, folder.SECRETS) or {}
        texts = [*hidden.get("env", {}).values(), *hidden.get("check", {}).values()]
        self._hidden = masking.values(texts)
        self._epoll = select.epoll()
        self.fd = self._epoll.fileno()
        self._members: Callable[[], set[int]] = set
        self._say = reports.Reports(path, hint, self.hide)
        place = self._settings.get("gang")
        self._gang = gang.Gang(path, place, self._epoll) if place else None
        self._notice: notice.Notice | None = None
        self._sampler: Sampler | None = None
        self._check: _Check | None = None
        self._check_until: float | None = None
        self._waits = False
        self._work = os.path.join(path, folder.WORK)
        self._said = -1
        """How much of what the program says was taken; negative where it says nothing."""
        self._listen_at = 0.0
        self.detail = ""
        """Why its gang has it end."""

    def masker(self) -> masking.Masker | None:
        """What hides values in one stream of output; ``None`` if there are none."""
        return masking.Masker(self._hidden) if self._hidden else None

    def hide(self, text: str) -> str:
        """The text without hidden values."""
        if not self._hidden:
            return text
        masker = masking.Masker(self._hidden)
        data = masker.feed(text.encode("utf-8", "surrogateescape")) + masker.finish()
        return data.decode("utf-8", "replace")

    def drain(self) -> None:
        """Take the events that made `fd` readable."""
        for fd, _ in self._epoll.poll(0):
            if self._check is not None and self._check.drain(fd):
                continue
            if self._notice is not None and self._notice.drain(fd):
                continue
            if self._gang is not None:
                self._gang.drain(fd)

    def due(self) -> float:
        """By when to look again, on the monotonic clock."""
        times = [float("inf")]
        if self._gang is not None:
            times.append(self._gang.due())
            if self._waits and self._check is None:
                times.append(time.monotonic() + self._gang.until_late())
        if self._notice is not None:
            times.append(self._notice.due())
        if self._check is not None and self._check.is_running():
            times.append(self._check.until)
        if self._check_until is not None:
            times.append(self._check_until)
        if self._said >= 0:
            times.append(self._listen_at)
        return min(times)

    # Before user code

    def opening(self, waiting: child.Child) -> bool | Ending:
        """Whether user code may start now, or why it never does. To be asked until it is one of the two."""
        if self._check is None and not self._waits:
            for code, message in self._settings.get("caveats", []):
                self._say.say(code, message, reports.WARNING)
            if self._gang is not None:
                self._stage("ready")
                self._gang.get_ready()
                self._say.say("READY", f"Replica {self._gang.rank} is ready and waits for its gang.")
            self._waits = True
        if self._gang is not None:
            if self._check is None:
                opened = self._gang.opened()
                self._gang.look_at_others(strict=self._settings.get("precheck") is not None)
            else:
                opened = True
                self._gang.look_at_others(strict=True)
            if (ending := self._fault()) is not None:
                return ending
            if not opened:
                return False
        if self._settings.get("precheck") is None:
            return True
        return self._checked(waiting)

    def _fault(self) -> Ending | None:
        found = self._gang.fault() if self._gang is not None else None
        return None if found is None else (GANG, found[0])

    def _checked(self, waiting: child.Child) -> bool | Ending:
        settings = self._settings["precheck"]
        if self._check is None:
            self._stage("prechecking")
            self._say.say("PRECHECK_STARTED", "The check before training begins.")
            self._check = _Check(settings, self._gang.rank if self._gang else 0, waiting, self._epoll)
        if self._check_until is None:
            if not self._check.is_over():
                return False
            failure = self.hide(self._check.findings.failure(late=self._check.late()))
            if failure:
                self._say.say("PRECHECK_FAILED", failure, reports.ERROR, **self._check.findings.numbers())
                return PRECHECK, failure
            findings = self._check.findings
            self._say.say("PRECHECK_PASSED", findings.sentence(), **findings.numbers())
            if self._gang is None:
                return True
            self._gang.check_passed()
            self._check_until = self._check.until + _CHECK_SPARE
        if self._gang is None or self._gang.all_checked():
            return True
        if time.monotonic() >= self._check_until:
            return PRECHECK, "PRECHECK_FAILED: the checks of other replicas did not end in time"
        return False

    def _stage(self, name: str) -> None:
        try:
            folder.write_durably(self._path, folder.STAGE, {"stage": name})
        except OSError:
            return  # it is only told

    # While it runs

    def started(self, members: Callable[[], set[int]], main: int) -> None:
        """User code runs: measure it, and listen for notices."""
        self._members = members
        self._waits = False
        self._check_until = None
        if self._check is not None:
            self._check.close()
            self._check = None
        settings = self._settings
        if os.path.isdir(os.path.join(self._work, reporting.FOLDER)):
            self._said = 0
        if settings.get("notice"):
            self._notice = notice.Notice(self._path, settings["notice"], self._say, self._epoll, members)
        if settings.get("sample_seconds"):
            from trainshed.jobkit.measuring import Sampler  # noqa: PLC0415 - costs memory beside user code

            self._sampler = Sampler(self._path, settings, self._say, members, main, self.hide)
            self._sampler.start()

    def hear(self) -> None:
        """Look for a notice: something was asked of the shim."""
        if self._notice is not None:
            self._notice.begin()

    def step(self) -> tuple[str, float | None] | None:
        """Whether the program is to end now: the reason, and its grace if that is another than its own."""
        if self._said >= 0 and time.monotonic() >= self._listen_at:
            self._listen()
        if self._notice is not None and self._notice.step():
            return "stop", notice.GRACE_SECONDS
        if self._gang is None or (self._notice is not None and (self._notice.active or self._notice.over)):
            return None
        self._gang.look_at_others(strict=False)
        found = self._gang.fault()
        if found is not None and time.time() >= found[1]:
            self.detail = found[0]
            return GANG, None
        return None

    def _listen(self) -> None:
        """Make reports of what a program of ours beside user code says (`trainshed.jobkit.reporting`)."""
        self._listen_at = time.monotonic() + _LISTEN_SECONDS
        said, self._said = reporting.said(self._work, self._said)
        for each in said:
            level = each.get("level")
            known = level if level in {reports.WARNING, reports.ERROR} else reports.INFO
            data = each.get("data")
            named = {str(name): value for name, value in data.items()} if isinstance(data, dict) else {}
            for taken in ("code", "message", "level"):  # names of our own call
                named.pop(taken, None)
            self._say.say(str(each["code"])[:64], str(each.get("message", "")), known, **named)

    def noticed(self) -> bool:
        """Whether the program was told to go."""
        return self._notice is not None and (self._notice.active or self._notice.over)

    # Afterwards

    def program_ended(self) -> None:
        """The program is gone: nothing is measured any more, and the notice is answered."""
        if self._said >= 0:
            self._listen()
            self._said = -1
        if self._sampler is not None:
            self._sampler.stop()
            self._sampler = None
        if self._notice is not None:
            self._notice.program_ended()

    def ended(self, ending: Json) -> None:
        """Tell the gang how this member ended, before it is recorded; forget what was hidden."""
        self.program_ended()
        if self._ends_others(ending) and self._gang is not None:
            patience = 0.0
            if ending["ended_by"] in {"stop", "timeout"} and ending.get("code") is not None:
                patience = NOTICE_PATIENCE if self.noticed() else STOP_PATIENCE
            why = f"rank {self._gang.rank} {gang.describe(ending)}"
            try:
                self._gang.end(self._gang.rank, why, patience)
            except OSError:
                pass  # a full disk: the others find out from our record
        folder.forget_secrets(self._path)

    def _ends_others(self, ending: Json) -> bool:
        """Whether the gang has to end because this member ended so."""
        if self._gang is None or ending.get("code") == 0 or ending["ended_by"] == GANG:
            return False
        if self._gang.joins:
            return False
        return ending.get("code") is None or not self._gang.may_leave()

    def close(self) -> None:
        """Let go of everything."""
        if self._check is not None:
            self._check.close()
        if self._gang is not None:
            self._gang.close()
        self._say.close()
        self._epoll.close()


class _Check:
    """The check of this member, under way."""

    def __init__(self, settings: Json, rank: int, waiting: child.Child, epoll: select.epoll) -> None:
        from trainshed.jobkit.checking import Findings  # noqa: PLC0415 - costs memory beside user code

        self.findings: Findings = Findings(settings, rank)
        self._seconds = float(settings["timeout"])
        self.until = time.monotonic() + self._seconds
        self._pid = waiting.pid
        self._output = waiting.check()
        self._epoll = epoll
        self._late = False
        os.set_blocking(self._output, False)
        epoll.register(self._output, select.EPOLLIN)

    def drain(self, fd: int) -> bool:
        if fd != self._output:
            return False
        try:
            while data := os.read(fd, _CHUNK):
                self.findings.take(data)
        except BlockingIOError:
            return True
        self.close()
        return True

    def is_running(self) -> bool:
        """Whether some of its processes may still be there."""
        return self._output >= 0

    def is_over(self) -> bool:
        """Whether all its processes are gone; those that take too long are ended."""
        if self._output >= 0 and time.monotonic() >= self.until:
            self._late = True
            for pid in procs.descendants(self._pid):
                procs.send(pid, 9)
            self.until = time.monotonic() + 1.0
        return self._output < 0

    def late(self) -> float | None:
        return self._seconds if self._late else None

    def close(self) -> None:
        if self._output >= 0:
            self._epoll.unregister(self._output)
            os.close(self._output)
            self._output = -1
