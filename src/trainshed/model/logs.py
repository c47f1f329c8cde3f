"""Where the output of a replica lies."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class LogFiles:
    """Where the frames of one replica's output lie (format: ``trainshed.jobkit.frames``)."""

    frames: Path
    index: Path
    samples: Path = Path(os.devnull)
    """What was measured meanwhile, a JSON object a line; nothing where nothing is measured."""
