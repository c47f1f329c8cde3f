"""Whole lines out of a log that comes from its begin each time, each line once (rule 6)."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from trainshed.engines.providers.framelog import MARK


@dataclass(slots=True)
class LineCount:
    """How many lines of each stream were read. A cursor is ``STDOUT:STDERR``."""

    out: int = 0
    err: int = 0

    @classmethod
    def of(cls, cursor: str | None) -> LineCount:
        out, _, err = (cursor or "0:0").partition(":")
        return cls(int(out), int(err or 0))

    def text(self) -> str:
        return f"{self.out}:{self.err}"


@dataclass(slots=True)
class Lines:
    """Takes pieces of both streams as they come."""

    known: LineCount
    most: int
    """Lines that are found at once."""
    found: list[str] = field(default_factory=list)
    _seen: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    _rest: dict[str, str] = field(default_factory=lambda: defaultdict(str))

    @property
    def full(self) -> bool:
        return len(self.found) >= self.most

    def add(self, stream: str, data: str) -> None:
        """A piece of a stream; pieces end anywhere."""
        stream = "err" if stream == "stderr" else "out"
        *whole, self._rest[stream] = (self._rest[stream] + data).split("\n")
        for line in whole:
            if self.full:
                return
            self._line(stream, line)

    def end(self) -> None:
        """Nothing follows: a line without its end is one too."""
        for stream, rest in list(self._rest.items()):
            if rest and not self.full:
                self._line(stream, rest)
                self._rest[stream] = ""

    def cursor(self) -> str:
        out = max(self.known.out, self._seen["out"])
        return f"{out}:{max(self.known.err, self._seen['err'])}"

    def _line(self, stream: str, line: str) -> None:
        self._seen[stream] += 1
        read = self.known.err if stream == "err" else self.known.out
        if self._seen[stream] <= read:
            return
        # What goes to standard error is never a word of the runner.
        shown = f" {line}" if stream == "err" and line.startswith(MARK) else line
        self.found.append(shown.removesuffix("\r"))
