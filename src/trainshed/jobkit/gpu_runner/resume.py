"""Where a program goes on from: the newest checkpoint that is intact, or nowhere."""

from __future__ import annotations

import os
import shutil
from typing import Any

from trainshed.jobkit.gpu_runner import say, store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainshed.jobkit.gpu_runner.jobs import Place

FOLDER = "restored"


def restore(place: Place) -> dict[str, Any] | None:
    """Bring the checkpoint to begin from to ``restored/``: its manifest, or ``None`` for a fresh start.

    The engine's choice first, then the pointer, then older ones. What is damaged is said and passed over.
    """
    into = os.path.join(place.work, FOLDER)
    shutil.rmtree(into, ignore_errors=True)
    damaged = False
    for folder, sha256, name in _candidates(place):
        try:
            manifest = store.restore(folder, into, sha256)
        except store.Damaged as problem:
            say.note(f"{name} is damaged and is passed over: {problem}")
            damaged = True
            continue
        step = manifest.get("step")
        say.note(f"resuming from {name}" + (f", step {step}" if step is not None else ""))
        return manifest
    if damaged:
        say.note("no checkpoint is intact: the program starts fresh")
    elif place.attempt > 1:
        say.note("there is no checkpoint yet: the program starts fresh")
    return None


def _candidates(place: Place) -> Iterator[tuple[str, str | None, str]]:
    """Folder, SHA-256 of its manifest where known, name."""
    if place.engine_choice:
        yield os.path.join(place.work, place.engine_choice), None, "the chosen checkpoint"
    for folder, sha256 in store.candidates(place.store, place.job):
        yield folder, sha256, f"checkpoint {os.path.basename(folder)}"
