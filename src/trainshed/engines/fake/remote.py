"""A fake engine of machines elsewhere: what a program wrote has to be copied from there."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from trainshed.engines.contract import EngineError, Launch, Phase
from trainshed.engines.fake.engine import FakeEngine


class FakeRemoteEngine(FakeEngine):
    """Has what engines of other machines have beside the contract (`trainshed.engines.providers.ray.Remote`).

    ``asked`` lists ``(attempt, path)`` of the files that programs were asked with; ``launched`` what was
    launched, by Attempt.
    """

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **options)  # type: ignore[arg-type] # passed on as they are
        self.asked: list[tuple[str, str]] = []
        self.launched: dict[str, Launch] = {}

    def launch(self, launch: Launch) -> None:
        """See `Engine.launch`."""
        super().launch(launch)
        self.launched.setdefault(launch.attempt_id, launch)

    def pull(self, attempt_id: str, names: Sequence[str], into: Path) -> Sequence[str]:
        """Copy what lies below these folders of the work folder now. Raises `EngineError` once it is gone."""
        work = self.work_directory(attempt_id)
        if self.observe([attempt_id])[attempt_id].phase is Phase.ABSENT or not work.is_dir():
            raise EngineError("ATTEMPT_GONE", f"nothing is left of {attempt_id}", retryable=False)
        for name in names:
            shutil.rmtree(into / name, ignore_errors=True)
            if (work / name).is_dir():
                shutil.copytree(work / name, into / name)
        return ()

    def ask(self, attempt_id: str, path: str) -> bool:
        """Make an empty file in the work folder; whether the program runs."""
        runs = self.observe([attempt_id])[attempt_id].phase is Phase.RUNNING
        if runs:
            self.asked.append((attempt_id, path))
        return runs
