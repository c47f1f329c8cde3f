"""Why Trials wait and where they stand (promise P10), from what the controller wrote, kept for a moment.

Nothing here asks the controller: the reasons are one small document in the database, and the order of the
queue is read from its index.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from trainshed.model.states import State
from trainshed.policy.reasons import Board, answer, from_json, retry_answer
from trainshed.policy.waiting import TrialClass
from trainshed.server.shapes.common import iso_or_none
from trainshed.server.shapes.jobs import Waiting
from trainshed.store import jobs, settings
from trainshed.store.database import Connection
from trainshed.store.records import Trial

BOARD_SECONDS = 0.25
ORDER_SECONDS = 1.0
_ORDER_SHARE = 20
"""Reading the order may take at most one part in so many of a reader's time."""
EXACT_TRIALS = 16
"""For so many Trials the place is counted; longer lists take it from the remembered order."""


class QueueReader:
    """Answers for waiting Trials. Thread-safe; one a process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._guard = threading.Lock()
        self._board: Board | None = None
        self._board_until = float("-inf")
        self._places: dict[str, int] = {}
        self._places_until = float("-inf")

    def answers(self, connection: Connection, waiting: Sequence[Trial], *, now: float) -> dict[str, Waiting]:
        """What each of these waiting Trials says about itself, by Trial id."""
        queued = [trial for trial in waiting if trial.state is State.QUEUED]
        if not waiting:
            return {}
        places: Mapping[str, int]
        if len(queued) <= EXACT_TRIALS:
            places = jobs.places_in_queue(connection, queued)
        else:
            places = self._order(connection)
        board = self._newest_board(connection) if queued else None
        return {trial.id: _answer(trial, board, places.get(trial.id), now) for trial in waiting}

    def _newest_board(self, connection: Connection) -> Board | None:
        with self._guard:
            if self._clock() >= self._board_until:
                text = settings.get(connection, settings.PLACEMENT)
                self._board = from_json(json.loads(text)) if text else None
                self._board_until = self._clock() + BOARD_SECONDS
            return self._board

    def _order(self, connection: Connection) -> Mapping[str, int]:
        with self._guard:
            started = self._clock()
            if started >= self._places_until:
                order = jobs.queue_order(connection)
                self._places = {trial_id: place for place, trial_id in enumerate(order, start=1)}
                ended = self._clock()
                self._places_until = ended + max(ORDER_SECONDS, (ended - started) * _ORDER_SHARE)
            return self._places


def _answer(trial: Trial, board: Board | None, position: int | None, now: float) -> Waiting:
    if trial.state is State.AWAITING_APPROVAL:
        return Waiting(
            code="AWAITING_APPROVAL",
            message="a person must approve it first",
            position=None,
            estimated_start_at=None,
        )
    if trial.launch_failures and trial.not_before > now:
        found = retry_answer(
            trial.not_before,
            trial.launch_failures,
            trial.error_message or trial.error_code or "unknown",
            position=position or 1,
            waiting=max(position or 1, board.waiting if board else 1),
            now=now,
        )
    else:
        key = TrialClass(
            trial.project_id, trial.priority, trial.gpu_type, trial.amounts, trial.timeout_seconds
        )
        found = answer(board, key, trial.id, position=position, now=now)
    return Waiting(
        code=found.code,
        message=f"{found.message}; {found.unblock}",
        position=found.position,
        estimated_start_at=iso_or_none(found.estimated_start),
    )
