"""When the program's checkpoints are copied to the store, and which of them are whole.

A thread looks twice a second whether somebody asked for one, or it is time. What is taken must have been left
alone for two seconds, or the helper must have said that it is saved, and it must be the same after it was
copied. After the program has ended there is a last look; a program that was killed may have been writing
until then, so that the same rule holds for the moment it died.
"""

from __future__ import annotations

import os
import threading
import time

from trainshed.jobkit.gpu_runner import say, store

STEADY_SECONDS = 2.0
TMP = ".gpu-tmp"
"""The helper's folder for what is not finished."""
_LOOK_SECONDS = 0.5
_WAIT_SECONDS = 30.0
"""How long an entry may take to be left alone; the others are then taken without it."""
_TRIES = 3
_REST_SECONDS = 60.0
"""After what could not be stored, before it is tried again."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainshed.jobkit.gpu_runner.program import Ended

    Files = dict[str, store.Print]


class Sync:
    """The checkpoints of one program. ``interval`` is in seconds; 0: only when asked, and at the end."""

    def __init__(self, kept: store.Store, source: str, request: str, interval: float) -> None:
        self._store = kept
        self._source = source
        self._request = request
        self._interval = interval
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="checkpoints", daemon=True)
        self._saved: dict[str, tuple[float, int | None]] = {}
        """What the helper said is saved, by entry: when (Unix seconds), and the step."""
        self._seen: dict[str, tuple[Files, float]] = {}
        self._fenced = False
        self._said = ""
        self._last = time.monotonic()
        self._rest_until = self._last
        self.stored: store.Stored | None = None

    def start(self) -> None:
        """Begin to watch."""
        try:
            self._store.claim()
        except (OSError, store.Superseded) as problem:
            self._fence(problem)
            return
        self._thread.start()

    def heard(self, kind: str, fields: dict[str, object]) -> None:
        """Take note of what the helper said."""
        name, step = fields.get("name"), fields.get("step")
        if kind == "ckpt_end" and fields.get("ok") and isinstance(name, str):
            self._saved[name.split("/", 1)[0]] = (time.time(), step if isinstance(step, int) else None)

    def end(self, ended: Ended, *, stopped: bool) -> None:
        """Store what there is now that the program has ended."""
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()
        if self._fenced:
            return
        clean = ended.signal is None and (stopped or ended.code == 0)
        entries = self._scan()
        whole = [
            name
            for name, files in entries.items()
            if clean or self._whole(name, files, ended.at) or self._unchanged(name, files)
        ]
        torn = [name for name in entries if name not in whole and self._store.holds(name)]
        if torn:
            say.note(f"{torn[0]} may have been cut short: the checkpoint stored before stays the newest")
            return
        self._save({name: entries[name] for name in whole}, "stop" if stopped else "exit")

    def _watch(self) -> None:
        while not self._over.wait(_LOOK_SECONDS) and not self._fenced:
            if time.monotonic() < self._rest_until:
                continue
            asked = self._asked()
            if asked is not None:
                self._round("requested", asked)
            elif self._saved and self.stored is None:
                self._round("saved")
            elif self._interval and time.monotonic() - self._last >= self._interval:
                self._round("interval")

    def _asked(self) -> float | None:
        """When somebody asked for a checkpoint, Unix seconds."""
        try:
            return os.stat(self._request).st_mtime
        except OSError:
            return None

    def _round(self, reason: str, asked: float | None = None) -> None:
        until = time.monotonic() + _WAIT_SECONDS
        for _ in range(_TRIES):
            files = self._steady(until)
            if self._over.is_set():
                return  # the last look does better
            if self._save(files, reason) is not False:
                break
        self._last = time.monotonic()
        answered = [found for entry in files.values() for found in entry.values()]
        if asked is not None and self.stored and any(found.mtime_ns / 1e9 > asked for found in answered):
            try:
                os.unlink(self._request)
            except OSError:
                pass

    def _steady(self, until: float) -> dict[str, Files]:
        """The entries that nobody writes to; waits a while for all of them."""
        while True:
            entries = self._scan()
            steady = {name: files for name, files in entries.items() if self._left_alone(name, files)}
            if len(steady) == len(entries) or time.monotonic() >= until or self._over.wait(_LOOK_SECONDS):
                return steady

    def _scan(self) -> dict[str, Files]:
        return store.scan(self._source, TMP)

    def _left_alone(self, name: str, files: Files) -> bool:
        return self._unchanged(name, files) or self._whole(name, files, time.time())

    def _unchanged(self, name: str, files: Files) -> bool:
        """Whether an entry has been the same for a while by our own clock."""
        now = time.monotonic()
        before, since = self._seen.get(name, (None, now))
        if before != files:
            since = now
        self._seen[name] = (files, since)
        return now - since >= STEADY_SECONDS

    def _whole(self, name: str, files: Files, at: float) -> bool:
        """Whether nobody had written to an entry for a while at a time, or since it was said to be saved."""
        written = max(found.written_at for found in files.values())
        saved = self._saved.get(name)
        return at - written >= STEADY_SECONDS or (saved is not None and written <= saved[0])

    def _save(self, entries: dict[str, Files], reason: str) -> bool | None:
        """Store these entries if they are others than before; false if one was written meanwhile."""
        files = {path: found for entry in entries.values() for path, found in entry.items()}
        if not files or not self._store.differs(files):
            return None
        steps = [self._saved[name][1] for name in entries if name in self._saved]
        step = max((step for step in steps if step is not None), default=None)
        about: dict[str, object] = {"where": "store", "name": None, "step": step}
        say.wire("ckpt_begin", about)
        done: store.Stored | None = None
        try:
            done = self._store.save(self._source, files, reason, step)
        except (store.Changed, FileNotFoundError):
            return False
        except store.Superseded as problem:
            self._fence(problem)
        except OSError as problem:
            self._complain(problem)
        finally:
            n, size = (done.n, done.bytes) if done else (None, None)
            say.wire("ckpt_end", {**about, "ok": done is not None, "n": n, "bytes": size})
        if done:
            self.stored = done
        return done is not None or None

    def _fence(self, problem: Exception) -> None:
        self._fenced = True
        say.note(f"checkpoints are not stored any more: {problem}")

    def _complain(self, problem: Exception) -> None:
        self._rest_until = time.monotonic() + _REST_SECONDS
        text = f"a checkpoint could not be stored: {problem}"
        if text != self._said:
            say.note(text)
        self._said = text
