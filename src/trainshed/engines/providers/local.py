"""The provider ``local``: this machine, through the server's own engine (g.5)."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from trainshed.engines.contract import Engine, Phase
from trainshed.engines.providers.contract import (
    Capabilities,
    Fetched,
    GpuOffer,
    InvalidJob,
    Run,
    Submission,
    Unavailable,
)
from trainshed.engines.providers.engine_runs import ASKED, EngineRuns, Room, offers_of_nodes
from trainshed.jobkit.walk import touch_below
from trainshed.model.resources import Node
from trainshed.model.scripts.spec import LOCAL

CAPABILITIES = Capabilities(
    lookup_by_key=False, named_by_attempt=True, interactive=True, max_concurrency=1, poll_interval_s=5.0
)


class LocalProvider(EngineRuns):
    """Runs packed projects on this machine.

    ``room`` answers what an Attempt was given; ``nodes`` which machines there are.
    """

    name = LOCAL

    def __init__(
        self, engine: Engine, room: Callable[[str], Room], nodes: Callable[[], Iterable[Node]]
    ) -> None:
        self._engine = engine
        self._room = room
        self._nodes = nodes

    def engine(self) -> Engine:
        return self._engine

    def room(self, attempt_id: str) -> Room:
        return self._room(attempt_id)

    def _python(self, submission: Submission) -> str:
        """Also that it is there: a run whose interpreter is not would be tried again as if it were lost.

        One that was begun keeps its answer, whatever became of the interpreter since.
        """
        named = super()._python(submission)
        if "python" not in submission.options or shutil.which(named, path=submission.env.get("PATH")):
            return named
        run = submission.attempt_id
        if self._engine.observe([run])[run].phase is Phase.ABSENT:
            raise InvalidJob(
                f"provider_options.{self.name}.python: {named!r} is no program on this machine "
                "that the server may start"
            )
        return named

    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    def offers(self) -> Iterable[GpuOffer]:
        return offers_of_nodes(self._nodes())

    def folder(self, run: Run) -> Path:
        """Where what it wrote lies: nothing needs to be fetched from this machine."""
        return self._engine.work_directory(run.ref)

    def fetch(self, run: Run, into: Path) -> Fetched:
        """Copy what it wrote; links and what is no file stay behind."""
        work = self.folder(run)
        files = size = 0
        skipped: list[str] = []
        try:
            for name, target in (("outputs", "outputs"), ("checkpoint_store", "checkpoints")):
                for file, inside in _files(work / name, skipped):
                    place = into / target / inside
                    place.parent.mkdir(parents=True, exist_ok=True)
                    digest = hashlib.sha256(os.fsencode(place.name)).hexdigest()[:32]
                    part = place.with_name(f".{digest}.part")  # a name may be as long as names can be
                    shutil.copyfile(file, part, follow_symlinks=False)
                    part.replace(place)
                    files, size = files + 1, size + place.stat().st_size
        except OSError as error:
            raise Unavailable(f"what it wrote cannot be copied: {error.strerror}") from error
        return Fetched(files, size, tuple(skipped))

    def request_checkpoint(self, run: Run) -> bool:
        """Put the file there that the program looks for; no link of the program's is followed."""
        try:
            touch_below(self.folder(run), ASKED)
        except OSError:
            return False
        return True


def _files(top: Path, skipped: list[str]) -> Iterator[tuple[Path, Path]]:
    """Plain files below ``top`` with their places in it; links are listed in ``skipped``."""
    if top.is_symlink():
        skipped.append(top.name)
        return
    for folder, folders, names in os.walk(top):
        for name in [*folders, *names]:
            path = Path(folder, name)
            if path.is_symlink():
                skipped.append(path.relative_to(top.parent).as_posix())
            elif name in names and path.is_file():
                yield path, path.relative_to(top)
