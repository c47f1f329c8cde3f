"""What the runner prints: its own lines, and lines of the wire.

Nothing here raises: a log that nobody reads must not end a training.
"""

from __future__ import annotations

import json
import os
import threading

PREFIX = b"::gpu:: "
_STDOUT = 1
_lock = threading.Lock()


def raw(data: bytes) -> None:
    """Print bytes as they are."""
    view = memoryview(data)
    with _lock:
        try:
            while view:
                view = view[os.write(_STDOUT, view) :]
        except OSError:
            return


def note(text: str) -> None:
    """Print a line of the runner's own, which people read."""
    raw(b"gpu: " + text.replace("\n", " ").encode("utf-8", "replace") + b"\n")


def wire(kind: str, fields: dict[str, object]) -> None:
    """Print a line that the server reads."""
    raw(PREFIX + json.dumps({"t": kind, **fields}, separators=(",", ":")).encode() + b"\n")
