"""The answer to "why does my Trial wait, and until when" (promise P10), from one small stored document.

The controller makes a `Board` from a pass and a forecast and stores it as JSON, about once a second at most.
A reader turns it into an answer for one Trial without looking at any other row, except that it brings the
Trial's place in the queue.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from trainshed.policy.estimate import Forecast
from trainshed.policy.placement import Decision
from trainshed.policy.waiting import Queue, TrialClass
from trainshed.policy.words import WaitCode, WaitReason, iso, sentence

MAX_CLASSES = 500
"""So many classes have their own reason in the document; later ones get the general one."""
_VERSION = 1


@dataclass(frozen=True, slots=True)
class WaitAnswer:
    """What a waiting Trial says about itself."""

    code: str
    message: str
    """What blocks it, with numbers."""
    unblock: str
    """What would unblock it."""
    position: int
    """Place in the queue; 1 is next."""
    waiting: int
    """How many Trials wait, this one included."""
    estimated_start: float | None
    """Unix seconds, if every Trial runs for its whole timeout; ``None`` if nobody can say."""

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON, with the time in ISO 8601."""
        start = None if self.estimated_start is None else iso(self.estimated_start)
        return {
            "code": self.code,
            "message": self.message,
            "unblock": self.unblock,
            "position": self.position,
            "waiting": self.waiting,
            "estimated_start": start,
        }


@dataclass(frozen=True, slots=True)
class Board:
    """One pass and one forecast, as far as readers need them."""

    at: float
    waiting: int
    classes: Mapping[str, WaitReason]
    """By `TrialClass.token`."""
    rest: WaitReason
    pools: Mapping[str, tuple[int, int, int]]
    """GPU type -> GPUs in all, free, most free on one node."""
    starts: Mapping[str, tuple[int, float | None]]
    """Of the first Trials: place in the queue, and start."""
    backlogs: Mapping[str, tuple[tuple[int, int, int], ...]]
    """GPU type -> ``(priority, Trials, GPU-seconds)`` that wait for the same GPUs."""
    busy: Mapping[str, float]
    """GPU type -> GPU-seconds that what runs may still take."""
    priorities: tuple[tuple[int, int], ...]
    """``(priority, Trials)`` of everything that waits, highest first."""


def make_board(decision: Decision, forecast: Forecast, queue: Queue) -> Board:
    """Put a pass and a forecast together; call it when the pass's placements have left ``queue``."""
    classes: dict[str, WaitReason] = {}
    for _, _, line in queue.heads[:MAX_CLASSES]:
        reason = decision.reason(line.key)
        if reason is not None:
            classes[line.key.token] = reason
    # A class that is not listed came after the pass, or there are too many to list.
    usual = WaitCode.NEXT_TURN if len(queue.heads) <= MAX_CLASSES else WaitCode.GPUS_BUSY
    counts: dict[int, int] = {}
    backlogs: dict[str, list[tuple[int, int, int]]] = {}
    for line in queue.lines():
        counts[line.key.priority] = counts.get(line.key.priority, 0) + len(line.entries)
    for backlog in forecast.backlogs:
        for kind in backlog.gpu_types:
            entry = (backlog.priority, backlog.trials, backlog.gpu_seconds)
            backlogs.setdefault(kind, []).append(entry)
    pools = {
        kind: (pool.total, pool.free, pool.largest_free)
        for kind in forecast.gpus
        if (pool := decision.pools.get(kind)) is not None
    }
    for kind, total in forecast.gpus.items():
        pools.setdefault(kind, (total, 0, 0))
    return Board(
        at=decision.at,
        waiting=len(queue),
        classes=classes,
        rest=decision.rest or WaitReason(usual),
        pools=pools,
        starts={
            trial_id: (place, forecast.starts.get(trial_id))
            for place, trial_id in enumerate(forecast.order, start=1)
        },
        backlogs={kind: tuple(entries) for kind, entries in backlogs.items()},
        busy=dict(forecast.busy_gpu_seconds),
        priorities=tuple(sorted(counts.items(), reverse=True)),
    )


def answer(
    board: Board | None,
    key: TrialClass,
    trial_id: str,
    *,
    position: int | None,
    now: float,
) -> WaitAnswer:
    """What the Trial says at ``now``.

    ``position`` is its place in the queue where the reader knows it better than the board (which only knows
    the first Trials exactly). Without a board, or for a Trial that came after it, the answer is `NEXT_TURN`.
    """
    if board is None:
        reason = WaitReason(WaitCode.NEXT_TURN)
        message, unblock = sentence(key, reason, None)
        return WaitAnswer(reason.code, message, unblock, position or 1, max(position or 1, 1), None)
    reason = board.classes.get(key.token, board.rest)
    place, start = board.starts.get(trial_id, (None, None))
    if place is None:
        place = position or board.waiting + 1
        start = _extrapolated(board, key, place)
    elif position is not None:
        place = position
    if reason.never or reason.code in {WaitCode.NO_NODE, WaitCode.PROJECT_BUDGET}:
        start = None
    message, unblock = sentence(key, reason, board.pools.get(key.gpu_type))
    return WaitAnswer(
        code=reason.code,
        message=message,
        unblock=unblock,
        position=place,
        waiting=max(board.waiting, place),
        estimated_start=None if start is None else max(start, now),
    )


def retry_answer(
    not_before: float,
    failures: int,
    error: str,
    *,
    position: int,
    waiting: int,
    now: float,
) -> WaitAnswer:
    """What a Trial says while it waits for the next try to start it (A9)."""
    seconds = max(0, round(not_before - now))
    return WaitAnswer(
        code=WaitCode.STARTING_RETRY,
        message=f"the start failed {failures} times before user code ran (last: {error})",
        unblock=f"the next try comes in {seconds} s, at {iso(not_before)}",
        position=position,
        waiting=waiting,
        estimated_start=max(not_before, now),
    )


def to_json(board: Board) -> dict[str, Any]:
    """The board as plain JSON values."""
    return {
        "version": _VERSION,
        "at": board.at,
        "waiting": board.waiting,
        "classes": {token: _reason_json(reason) for token, reason in board.classes.items()},
        "rest": _reason_json(board.rest),
        "pools": {kind: list(pool) for kind, pool in board.pools.items()},
        "starts": {trial_id: list(start) for trial_id, start in board.starts.items()},
        "backlogs": {kind: [list(entry) for entry in found] for kind, found in board.backlogs.items()},
        "busy": dict(board.busy),
        "priorities": [list(pair) for pair in board.priorities],
    }


def from_json(document: Mapping[str, Any]) -> Board | None:
    """The board of `to_json`; ``None`` if another version of the program wrote it."""
    if document.get("version") != _VERSION:
        return None
    return Board(
        at=document["at"],
        waiting=document["waiting"],
        classes=MappingProxyType(
            {token: _reason_of(reason) for token, reason in document["classes"].items()},
        ),
        rest=_reason_of(document["rest"]),
        pools={kind: (pool[0], pool[1], pool[2]) for kind, pool in document["pools"].items()},
        starts={trial_id: (start[0], start[1]) for trial_id, start in document["starts"].items()},
        backlogs={
            kind: tuple((entry[0], entry[1], entry[2]) for entry in found)
            for kind, found in document["backlogs"].items()
        },
        busy=document["busy"],
        priorities=tuple((pair[0], pair[1]) for pair in document["priorities"]),
    )


def _extrapolated(board: Board, key: TrialClass, position: int) -> float | None:
    """Work ahead over GPUs: all of higher priority, and the share of its own that its place says."""
    total = board.pools.get(key.gpu_type, (0, 0, 0))[0]
    if not total:
        return None
    higher = sum(trials for priority, trials in board.priorities if priority > key.priority)
    equal = dict(board.priorities).get(key.priority, 0)
    share = min(max((position - 1 - higher) / equal, 0.0), 1.0) if equal else 1.0
    ahead = board.busy.get(key.gpu_type, 0.0)
    for priority, _, work in board.backlogs.get(key.gpu_type, ()):
        if priority > key.priority:
            ahead += work
        elif priority == key.priority:
            ahead += work * share
    return board.at + ahead / total


def _reason_json(reason: WaitReason) -> list[Any]:
    return [reason.code, reason.have, reason.behind, reason.until, reason.own, reason.never]


def _reason_of(fields: list[Any]) -> WaitReason:
    code, have, behind, until, own, never = fields
    return WaitReason(WaitCode(code), have, behind, until, own, never)
