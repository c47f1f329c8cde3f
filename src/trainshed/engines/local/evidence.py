"""Reading what an attempt folder proves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainshed.engines.contract import EndedBy, Exit, Observation, Phase
from trainshed.jobkit import folder


def observe(path: Path) -> Observation:
    """How far the attempt in ``path`` got.

    The start marker is read before the lock is tried and the exit record after it: only in that
    order can a shim that starts or ends meanwhile not be taken for one that died.
    """
    started = folder.read(path, folder.STARTED)
    held = folder.is_held(path)
    ended = folder.read(path, folder.EXIT)
    if held and started is None:
        started = folder.read(path, folder.STARTED)
    started_at = _number(started.get("at")) if started is not None else None
    if started is not None and started_at is None:
        started_at = _modified(path / folder.STARTED)  # its content did not survive a power loss
    enforcement = dict((started or {}).get("enforcement") or {})
    if ended is not None:
        exit_ = _exit(ended)
        began = None if exit_.code is None else started_at
        return Observation(Phase.EXITED, began, exit_, exit_.detail, enforcement)
    if held:
        phase = Phase.PREPARING if started is None else Phase.RUNNING
        return Observation(phase, started_at, enforcement=enforcement)
    if started is not None:
        detail = "Whoever watched the program is gone and left no exit record."
        return Observation(Phase.LOST, started_at, detail=detail, enforcement=enforcement)
    if folder.exists(path, folder.STOP):
        stopped = Exit(
            None, None, EndedBy.STOP, _modified(path / folder.STOP), "It was stopped before it started."
        )
        return Observation(Phase.EXITED, exit=stopped, detail=stopped.detail)
    if folder.exists(path, folder.LAUNCH):
        return Observation(Phase.PREPARING)
    return Observation(Phase.ABSENT)


def _exit(record: dict[str, Any]) -> Exit:
    return Exit(
        code=record.get("code"),
        signal=record.get("signal"),
        ended_by=EndedBy(record.get("ended_by", EndedBy.EXIT)),
        finished_at=float(record.get("finished_at", 0.0)),
        detail=str(record.get("detail", "")),
        usage={str(name): float(value) for name, value in (record.get("usage") or {}).items()},
    )


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
