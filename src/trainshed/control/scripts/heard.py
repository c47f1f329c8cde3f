"""What some lines of a log mean for a Job: how far it is, what it saved, where it runs, its end. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from trainshed.model.scripts import wire
from trainshed.model.scripts.wire import Progress

MOST_SAVES = 20
"""Saves that are told apart out of one reading; of more only the last ones are."""


@dataclass(slots=True)
class Heard:
    """Everything that some lines said."""

    progress: Progress
    saving: list[bool] = field(default_factory=list)
    """Begins (true) and ends (false) of saves, by turns."""
    stored: int = 0
    """Checkpoints that were stored meanwhile."""
    device: wire.Device | None = None
    exit: wire.Exit | None = None


def listen(lines: Iterable[str], progress: Progress, *, saves: bool) -> Heard:
    """What the lines say on top of what was known; ``saves``: whether it saves just now."""
    heard = Heard(progress)
    open_saves = int(saves)
    for line in lines:
        heard.progress = wire.follow(heard.progress, line)
        match wire.parse(line):
            case wire.CheckpointBegin():
                open_saves += 1
                if open_saves == 1:
                    heard.saving.append(True)
            case wire.CheckpointEnd() as end:
                heard.stored += end.stored and end.ok
                if open_saves == 1:
                    heard.saving.append(False)
                open_saves = max(0, open_saves - 1)
            case wire.Device() as device:
                heard.device = device
            case wire.Exit() as ended:
                heard.exit = ended
            case _:
                pass
    first = bool(heard.saving) and heard.saving[0] != heard.saving[-1]
    # A change that lasts is kept; of those that did not, the last ones.
    keep = 2 * MOST_SAVES + (1 if first else 0)
    heard.saving = heard.saving[-keep:]
    if heard.saving and heard.saving[0] == saves:
        heard.saving = heard.saving[1:]
    return heard


def known_progress(progress: str | None, metrics: str | None, *, declared: bool, worth: int) -> Progress:
    """What the columns of a script say, and what is remembered beside them of how that was learnt."""
    stored: dict[str, Any] = json.loads(progress or "{}")
    numbers = json.loads(metrics or "{}")
    return Progress.of({**stored, "metrics": numbers, "declared": declared, "worth": worth})


def progress_values(progress: Progress) -> dict[str, str | None]:
    """Columns of a script for what is known now."""
    said = {"step": progress.step, "total": progress.total, "source": progress.source}
    return {
        "progress": json.dumps(said) if progress.source is not None else None,
        "metrics": json.dumps(dict(progress.metrics)) if progress.metrics else None,
    }
