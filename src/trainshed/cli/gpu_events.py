"""What happened to a Job as people read it: saves of checkpoints come in pairs, and are counted instead."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

_BEGIN, _END, _KEPT = "checkpoint_begin", "checkpoint_end", "checkpoint_copied"
SAVES = "checkpoint"
"""What the row about saves has for a reason."""


class Counted:
    """Events without the pairs of saves; those are one row. Programs are given every event instead."""

    def __init__(self) -> None:
        self._saves = 0
        """The program's own: a copy that is kept is begun and ended like one, and is taken off again."""
        self._kept: Mapping[str, Any] | None = None
        self._last: Mapping[str, Any] | None = None
        self._begun: Mapping[str, Any] | None = None

    def so_far(self, events: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
        """Rows for events that came just now, while more come.

        Saves wait until one of them is kept or something else happens.
        """
        yield from self._rows(events)
        if self._kept is not None:
            yield from self._counted()

    def all(self, events: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Rows for all events that there are."""
        rows = [*self._rows(events), *self._counted()]
        return rows if self._begun is None else [*rows, self._begun]

    def _rows(self, events: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
        for event in events:
            if event["reason"] == _BEGIN:
                self._begun = event
            elif event["reason"] == _END:
                self._saves, self._last, self._begun = self._saves + 1, event, None
            elif event["reason"] == _KEPT:
                self._saves, self._kept, self._last = self._saves - 1, event, event
            else:
                self._begun = None
                yield from self._counted()
                yield event

    def _counted(self) -> Iterator[Mapping[str, Any]]:
        """One row for the saves since the last such row, if there were any."""
        last, kept, saves = self._last, self._kept, self._saves
        self._saves, self._kept, self._last = 0, None, None
        if last is None:
            return
        said = [f"Saved {saves} times."] if saves > 1 else []
        if kept is not None or not said:
            said.append(str((kept or last)["message"]))
        message = " ".join(said)
        yield {**last, "kind": "note", "from": None, "to": None, "reason": SAVES, "message": message}


def counted(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document about one Job with its events as people read them."""
    return {**document, "events": Counted().all(document["events"])}
