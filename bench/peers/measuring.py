"""What the peers' modules share: the program they start, and how they answer."""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

STAMP = ["bash", "-c", "echo $EPOCHREALTIME"]
"""Says when its first line ran."""
NOOP = ["bash", "-c", "true"]
"""What the no-op Trial's bash costs anybody."""


def answer(measure: Callable[[int, Path], tuple[float, list[float]]]) -> None:
    """Print processes a second and the median milliseconds to a start. Says on stderr why it cannot."""
    with tempfile.TemporaryDirectory(prefix="bench-peer-") as place:
        try:
            rate, starts = measure(int(sys.argv[1]), Path(place))
        except ImportError as missing:
            sys.exit(f"not installed ({missing.name})")
    print(json.dumps({"rate": rate, "start_ms": statistics.median(starts) * 1000}), flush=True)
