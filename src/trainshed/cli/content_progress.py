"""How far a publication or a download is: bars at a terminal, else a line now and then."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from trainshed.cli.output import size
from trainshed.cli.session import Session, interactive

if TYPE_CHECKING:
    from trainshed.sdk import PublishProgress

LINE_SECONDS = 5.0
_FILES = " files"
"""Ends the name of a stage that counts files."""


@contextlib.contextmanager
def bars(session: Session) -> Iterator[Callable[[PublishProgress], None] | None]:
    """What is to be told of the progress; nothing for who reads ids or documents."""
    if session.json or session.quiet:
        yield None
        return
    if not interactive():
        yield Lines(session.note)
        return
    from rich.console import Console  # noqa: PLC0415 - only for a person at a terminal
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn  # noqa: PLC0415 - as above

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[shown]}"),
        TimeRemainingColumn(),
    )
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=Console(stderr=True), transient=True) as drawn:

        def moved(state: PublishProgress) -> None:
            if state.stage not in tasks:
                tasks[state.stage] = drawn.add_task(state.stage, total=max(state.total, 1), shown="")
            drawn.update(tasks[state.stage], completed=state.done, shown=_amount(state))

        yield moved


class Lines:
    """A line every few seconds, for logs."""

    def __init__(self, tell: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._tell = tell
        self._clock = clock
        self._told_at = clock()
        self._states: dict[str, PublishProgress] = {}
        self._guard = threading.Lock()

    def __call__(self, state: PublishProgress) -> None:
        with self._guard:
            self._states[state.stage] = state
            now = self._clock()
            if now - self._told_at < LINE_SECONDS:
                return
            self._told_at = now
            stage = state.stage.removesuffix(_FILES)
            known = [self._states[key] for key in (stage + _FILES, stage) if key in self._states]
            self._tell(f"{stage}: {', '.join(map(_amount, known))}")


def _amount(state: PublishProgress) -> str:
    if state.stage.endswith(_FILES):
        return f"{state.done} of {state.total} files"
    return f"{size(state.done)} of {size(state.total)}"
