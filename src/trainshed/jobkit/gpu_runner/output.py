"""What a program prints on its way to the log: lines as they are, bars now and then, the helper's apart.

A progress bar redraws its line with carriage returns. Of those the newest text is shown every few seconds,
and the last when the line ends. A line of the helper may stand behind a bar in the same line of bytes; it is
passed on as a line of its own, if a helper may say it.
"""

from __future__ import annotations

import json
import math
import re
import time

from trainshed.jobkit.gpu_runner import say

PROGRESS_SECONDS = 5.0
_LONGEST = 1 << 16
"""Bytes of one line; what is longer is broken."""
_UP = b"\x1b[A"
"""Moves the cursor up: how bars below one another go back to their line."""
_MARK = say.PREFIX + b"{"
_BURST, _PER_SECOND = 100.0, 10.0
"""Lines with metrics that are passed on at once, and for ever; between them the newest values wait."""
_NAME = re.compile(r"[A-Za-z0-9_.:/@%+-]{1,64}")
_MOST_VALUES = 32
_LONGEST_NAME = 300

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class Relay:
    """Takes what a program prints, in whatever pieces, and hands on lines."""

    def __init__(
        self,
        write: Callable[[bytes], None] = say.raw,
        wire: Callable[[str, dict[str, object]], None] = say.wire,
        heard: Callable[[str, dict[str, object]], None] = lambda _kind, _fields: None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._write = write
        self._now = now
        self._rest = b""
        """The begin of a line whose end has not come; what follows the last carriage return."""
        self._latest = b""
        """The last whole text of a progress bar that was not shown."""
        self._bar = False
        self._shown_at = -PROGRESS_SECONDS
        self._helper = Helper(wire, heard, now)

    def feed(self, data: bytes) -> None:
        """Take more of the output."""
        data = self._rest + data
        if not self._bar and b"\r" not in data and _MARK not in data:
            whole, end, self._rest = data.rpartition(b"\n")
            self._write(whole + end)
        else:
            *lines, rest = data.split(b"\n")
            begun = b""
            for line in lines:
                begun = self._line(begun + line)
            self._rest = begun + rest
            self._redrawn()
        if len(self._rest) > _LONGEST:
            self._line(self._rest)
            self._rest = b""

    def _line(self, line: bytes) -> bytes:
        """Show a line that has ended; what of it has not, where the helper broke in."""
        before, mark, after = line.rpartition(_MARK)
        said = mark + after.rstrip(b"\r")
        if mark and self._helper.say(said[len(say.PREFIX) :]):
            drawn, again, newest = before.rpartition(b"\r")
            if again:
                self._latest = _newest(drawn) or self._latest
                self._bar = True
            return newest
        if _UP in line:
            self._latest = _newest(line.replace(_UP, b"")) or self._latest
            self._bar = True
            self._show_now_and_then()
            return b""
        text = _newest(line) if self._bar or b"\r" in line else line
        text = text or self._latest
        if text or not self._bar:  # the text of a bar may have been shown already
            self._show(text)
        self._latest, self._bar = b"", False
        return b""

    def _show(self, text: bytes) -> None:
        """Write a line of the program's, which nobody takes for one of the runner's.

        Not only at its begin: the server reads a very long line in pieces, and one may begin anywhere.
        """
        self._write(text.replace(_MARK, say.PREFIX + b" {") + b"\n")

    def _redrawn(self) -> None:
        """Keep of the unfinished line what was drawn last."""
        drawn, again, rest = self._rest.rpartition(b"\r")
        if again:
            self._latest = _newest(drawn) or self._latest
            self._rest, self._bar = rest, True
        if self._bar:
            self._show_now_and_then()

    def _show_now_and_then(self) -> None:
        if self._latest and self._now() - self._shown_at >= PROGRESS_SECONDS:
            self._show(self._latest)
            self._latest, self._shown_at = b"", self._now()

    def tick(self) -> None:
        """Show what waits, where it is time; called now and then while nothing is printed."""
        self._helper.tick()
        if self._bar and self._rest and self._now() - self._shown_at >= PROGRESS_SECONDS:
            self._latest, self._rest = self._rest, b""
        self._show_now_and_then()

    def close(self) -> None:
        """Show what is left; no more will come."""
        if self._rest:
            self._line(self._rest)
        elif self._latest:
            self._show(self._latest)
        self._rest = self._latest = b""
        self._helper.flush()


def _newest(line: bytes) -> bytes:
    """What a line shows after all its carriage returns."""
    return line.rstrip(b"\r").rpartition(b"\r")[2]


class Helper:
    """The lines of the helper: only what it may say, and metrics no more often than anybody reads them."""

    def __init__(
        self,
        wire: Callable[[str, dict[str, object]], None],
        heard: Callable[[str, dict[str, object]], None],
        now: Callable[[], float],
    ) -> None:
        self._wire = wire
        self._heard = heard
        self._now = now
        self._left, self._at = _BURST, now()
        self._waiting: dict[str, object] = {}
        self._step: object = None

    def say(self, text: bytes) -> bool:
        """Pass a line on; false if it is none of a helper, and so something that the program printed."""
        try:
            message = json.loads(text.decode())
        except (ValueError, RecursionError):
            return False
        if not isinstance(message, dict):
            return False
        kind = message.get("t")
        if kind == "metric":
            self._metric(message)
        elif kind == "total":
            total = count(message.get("n"))
            if total:
                self._pass(kind, {"n": total})
        elif kind in ("ckpt_begin", "ckpt_end"):
            name = message.get("name")
            fields: dict[str, object] = {
                "where": "script",
                "name": name[:_LONGEST_NAME] if isinstance(name, str) else None,
                "step": count(message.get("step")),
            }
            if kind == "ckpt_end":
                fields["ok"] = message.get("ok") is True
            self._pass(kind, fields)
        return True

    def _pass(self, kind: str, fields: dict[str, object]) -> None:
        self.flush()
        self._wire(kind, fields)
        self._heard(kind, fields)

    def _metric(self, message: dict[str, object]) -> None:
        values = message.get("values")
        if not isinstance(values, dict):
            return
        good = {name: value for name, value in values.items() if _NAME.fullmatch(name) and _finite(value)}
        step = count(message.get("step"))
        if step is not None:
            self._step = step
        self._waiting.update(list(good.items())[:_MOST_VALUES])
        self._heard("metric", {"step": step})
        if good or step is not None:
            self._dirty = True
        self.tick()

    _dirty = False

    def tick(self) -> None:
        """Pass on what waits, if that may be done again."""
        now = self._now()
        self._left = min(_BURST, self._left + (now - self._at) * _PER_SECOND)
        self._at = now
        if self._left >= 1:
            self.flush()

    def flush(self) -> None:
        """Pass on what waits."""
        if self._dirty:
            self._left -= 1
            self._wire("metric", {"step": self._step, "values": self._waiting})
            self._waiting, self._dirty = {}, False


def _finite(value: object) -> bool:
    """Whether it is a number that a float can hold."""
    try:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False


def count(value: object) -> int | None:
    """A count that is no nonsense, or ``None``."""
    return value if type(value) is int and 0 <= value < 1 << 53 else None
