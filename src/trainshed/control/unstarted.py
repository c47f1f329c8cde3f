"""Starts that certainly did not reach user code: again on the same frozen input, or never (A9)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import takewhile

from trainshed.control import metrics
from trainshed.control.crashpoints import Point, reach
from trainshed.control.launching import FailedStart
from trainshed.model.states import OutputStatus, State
from trainshed.policy.retry import Again, Outcome, after_failed_pull, after_failed_start
from trainshed.store import attempts, moves
from trainshed.store.attempts import End
from trainshed.store.database import Connection, Database
from trainshed.store.moves import Move

PULL_FAILED = "IMAGE_PULL_FAILED"
_ACTOR = "controller"
_NOT_STARTED, _NOT_PULLED = "not_started", "not_pulled"
"""How such an Attempt ended."""


def store_failed_starts(
    database: Database, failed: Sequence[FailedStart], *, pull_retries: int, now: float
) -> None:
    """Put these Trials back into the queue or end them, and make what they held due for release.

    Pulls that failed in a row are counted apart from other failures (C38); the rows of the Attempts say how
    many there were.
    """
    trials = {start.item.trial.id: start.item.trial for start in failed}
    with_image = [trial.id for trial in trials.values() if trial.image_resolved is not None]
    before = {}
    if with_image:
        with database.read() as connection:
            before = attempts.ends_of(connection, with_image)
    planned = [
        (start, _move(start, before.get(start.item.trial.id), pull_retries=pull_retries, now=now))
        for start in failed
    ]

    def store(connection: Connection) -> list[Move]:
        made = moves.apply(connection, [move for _, move in planned], at=now, actor=_ACTOR)
        mine = {move.trial.id for move in made}
        over = [start for start, _ in planned if start.item.trial.id in mine]
        ends = [End(each.item.allocation.attempt_id, now, _ended_by(each), each.detail) for each in over]
        attempts.end_all(connection, ends)
        attempts.let_go(connection, [each.item.allocation.id for each in over])
        reach(Point.UNSTARTED_BEFORE_COMMIT)
        return made

    made = database.write(store)
    reach(Point.UNSTARTED_AFTER_COMMIT)
    for move in made:
        if move.after is State.FAILED:
            metrics.ends.labels(status="failed", code=move.code).inc()


def _move(start: FailedStart, before: Sequence[str] | None, *, pull_retries: int, now: float) -> Move:
    trial = start.item.trial
    values: dict[str, object] = {
        "launch_failures": trial.launch_failures + 1,
        "error_message": start.detail,
    }
    decision = _decide(start, before, pull_retries=pull_retries, now=now)
    if isinstance(decision, Again):
        values["not_before"] = decision.not_before
        code = PULL_FAILED if start.code == PULL_FAILED else "LAUNCH_FAILED"
        return Move(trial, State.PREPARING, State.QUEUED, code, decision.message, values)
    code = decision.error_code or "LAUNCH_FAILED"
    values |= {"error_code": code, "error_message": decision.message, "output_status": OutputStatus.NONE}
    return Move(trial, State.PREPARING, State.FAILED, code, decision.message, values)


def _decide(
    start: FailedStart, before: Sequence[str] | None, *, pull_retries: int, now: float
) -> Again | Outcome:
    if start.code == PULL_FAILED and start.retryable:
        in_a_row = sum(1 for _ in takewhile(_NOT_PULLED.__eq__, before or ()))
        return after_failed_pull(
            failures=in_a_row + 1, error=start.detail, pull_retries=pull_retries, now=now
        )
    others = start.item.trial.launch_failures
    if before is not None:
        others = Counter(before)[_NOT_STARTED]
    return after_failed_start(
        failures=others + 1,
        error_code=start.code,
        error=start.detail,
        retryable=start.retryable,
        stop_requested=False,
        now=now,
    )


def _ended_by(start: FailedStart) -> str:
    return _NOT_PULLED if start.code == PULL_FAILED else _NOT_STARTED
