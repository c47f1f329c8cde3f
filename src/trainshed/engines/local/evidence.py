"""Reading what an attempt folder proves."""

from __future__ import annotations

from math import isfinite
from pathlib import Path
from typing import Any

from trainshed.engines.contract import EndedBy, Exit, Observation, Phase
from trainshed.engines.local import feedback
from trainshed.jobkit import folder

_DETAIL_CHARS = 1000
_MOST_CODE = 255
_LATEST = 1e11
_STAGES = ("starting", "ready", "prechecking")


def observe(path: Path) -> Observation:
    """How far the attempt in ``path`` got.

    The start marker is read before the lock is tried and the exit record after it: only in that
    order can a shim that starts or ends meanwhile not be taken for one that died. An exit record counts
    only once its shim has let go of the lock: until then it is none, or one that the program forged.
    Where the program removed what says that it started, the note outside its folder still does.
    """
    started = folder.read(path, folder.STARTED)
    held = folder.is_held(path)
    ended = folder.read(path, folder.EXIT)
    if started is None and (held or ended is not None):
        started = folder.read(path, folder.STARTED)
    begun = started is not None or folder.has_begun(path)
    started_at = _time_or_none(started.get("at")) if started is not None else None
    if started is not None and started_at is None:
        started_at = _modified(path / folder.STARTED)  # its content did not survive a power loss
    enforcement = _texts((started or {}).get("enforcement"))
    exit_ = None if held or ended is None else _exit(ended)
    if exit_ is not None:
        began = None if exit_.code is None else started_at
        return Observation(
            Phase.EXITED, began, exit_, exit_.detail, reports=feedback.newest(path), enforcement=enforcement
        )
    if held:
        phase = Phase.RUNNING if begun else Phase.PREPARING
        running = phase is Phase.RUNNING
        return Observation(
            phase,
            started_at,
            stage="" if running else _stage(path),
            noticed=running and folder.exists(path, folder.NOTICE),
            reports=feedback.newest(path),
            enforcement=enforcement,
        )
    if begun:
        left = "no exit record" if ended is None else "a damaged exit record"
        detail = f"Whoever watched the program is gone and left {left}."
        if started is None:
            detail = "The program's own folder, with all that tells of it, was removed while it ran."
        count = feedback.newest(path)
        return Observation(Phase.LOST, started_at, detail=detail, reports=count, enforcement=enforcement)
    if folder.is_stopped(path):
        asked = folder.STOP if folder.exists(path, folder.STOP) else folder.NOTICE
        detail = "It was stopped before it started."
        stopped = Exit(None, None, EndedBy.STOP, _modified(path / asked), detail)
        return Observation(Phase.EXITED, exit=stopped, detail=stopped.detail)
    if folder.exists(path, folder.LAUNCH):
        return Observation(Phase.PREPARING, stage="starting", reports=feedback.newest(path))
    return Observation(Phase.ABSENT)


def _stage(path: Path) -> str:
    """How far one that prepares got, as its shim says."""
    said = (folder.read(path, folder.STAGE) or {}).get("stage")
    return said if said in _STAGES else "starting"


def _exit(record: dict[str, Any]) -> Exit | None:
    """The exit record, or nothing if it is not one that a shim writes (damaged, or made by the program)."""
    try:
        usage = {str(name): _finite(value) for name, value in record["usage"].items()}
        return Exit(
            code=_small(record["code"]),
            signal=_small(record["signal"]),
            ended_by=EndedBy(record["ended_by"]),
            finished_at=_time(record["finished_at"]),
            detail=str(record["detail"])[:_DETAIL_CHARS],
            usage=usage,
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return None


def _small(value: object) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_CODE):
        return value
    raise ValueError("not an exit code or signal")


def _finite(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise ValueError("not a finite number")
    return float(value)


def _time(value: object) -> float:
    """Unix seconds that a date can be made of."""
    seconds = _finite(value)
    if not 0 <= seconds <= _LATEST:
        raise ValueError("not a time")
    return seconds


def _time_or_none(value: object) -> float | None:
    try:
        return _time(value)
    except (ValueError, OverflowError):
        return None


def _texts(value: object) -> dict[str, str]:
    return {str(key): str(text) for key, text in value.items()} if isinstance(value, dict) else {}


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
