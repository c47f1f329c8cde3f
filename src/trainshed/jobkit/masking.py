"""Hidden values in a stream of output become ``***``, wherever reads happen to cut it (C9, P9).

What may be the beginning of a value is held back until it is known whether it is one: so a value that is
written in pieces, with pauses between them, is found as well, and the output is the same however it is cut.
"""

from __future__ import annotations

MASK = b"***"
SHORTEST = 4
"""Shorter values would mask half of what every program prints."""
_SHORTEST_LINE = 8
"""Lines of a value of several lines are values of their own, if they are no shorter."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


def values(hidden: Iterable[str]) -> list[bytes]:
    """What is to be masked for these values: each of them, and each line of those with several."""
    found = set()
    for value in hidden:
        data = value.encode("utf-8", "surrogateescape")
        if len(data) >= SHORTEST:
            found.add(data)
        stripped = data.strip()
        if len(stripped) >= SHORTEST:
            found.add(stripped)
        for line in data.splitlines():
            if len(line) >= _SHORTEST_LINE and line != data:
                found.add(line)
    return sorted(found)


class Masker:
    """Masks one stream. Values that overlap are one ``***``; values that only touch are two."""

    __slots__ = ("_begins", "_carry", "_covered", "_longest", "_values")

    def __init__(self, hidden: list[bytes]) -> None:
        self._values = [value for value in hidden if value]
        self._longest = max(map(len, self._values), default=0)
        self._begins = {value[:1] for value in self._values}
        self._carry = b""
        self._covered = 0
        """How much of what is carried belongs to a value whose mask was written already."""

    def feed(self, data: bytes) -> bytes:
        """What can be said of the stream up to the end of ``data``."""
        data = self._carry + data
        spans = self._spans(data)
        keep = self._held_from(data)
        written: list[bytes] = []
        at = done = self._covered
        for begin, end in spans:
            if begin >= keep:
                break
            if begin >= at:
                written += (data[done:begin], MASK)
            at = done = max(at, end)
        if done < keep:
            written.append(data[done:keep])
        self._carry = data[keep:]
        self._covered = max(0, at - keep)
        return b"".join(written)

    def finish(self) -> bytes:
        """What was held back, now that nothing follows."""
        data, covered = self._carry, self._covered
        self._carry, self._covered = b"", 0
        written: list[bytes] = []
        at = done = covered
        for begin, end in self._spans(data):
            if begin >= at:
                written += (data[done:begin], MASK)
            at = done = max(at, end)
        return b"".join([*written, data[done:]])

    def _spans(self, data: bytes) -> list[tuple[int, int]]:
        """Where values stand, by their beginnings; longer ones of those that begin together first."""
        found = []
        for value in self._values:
            at = data.find(value)
            while at >= 0:
                found.append((at, at + len(value)))
                at = data.find(value, at + 1)
        found.sort(key=lambda span: (span[0], -span[1]))
        return found

    def _held_from(self, data: bytes) -> int:
        """Where the longest ending of ``data`` begins that may be the beginning of a value."""
        first = max(0, len(data) - self._longest + 1)
        ending = data[first:]
        at = len(ending)
        for begin in self._begins:
            place = ending.find(begin)
            while 0 <= place < at:
                rest = ending[place:]
                if any(len(rest) < len(value) and value.startswith(rest) for value in self._values):
                    at = place
                    break
                place = ending.find(begin, place + 1)
        return first + at
