"""Trials: read, stop, and fetch what they produced."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from trainshed.sdk.answers import LARGEST_PAGE
from trainshed.sdk.download import MAX_PARALLEL, Downloaded, Progress, check_names, download_all
from trainshed.sdk.errors import InvalidAnswer, NotFound
from trainshed.sdk.objects import Artifact, Page, Trial, artifact, mapping, page, trial
from trainshed.sdk.transport import Transport, route


class Trials:
    """``client.trials``: the Trials of the project's Jobs."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def get(self, trial_id: str) -> Trial:
        """The Trial as it is now."""
        return trial(self._transport.call("GET", route("trials", trial_id)))

    def list(
        self,
        *,
        job_id: str | None = None,
        type: str | None = None,  # noqa: A002 - the contract's word
        status: str | None = None,
        cursor: str | None = None,
        limit: int = 25,
    ) -> Page[Trial]:
        """One page of Trials, newest first."""
        query = {"type": type, "job_id": job_id, "status": status, "cursor": cursor, "limit": limit}
        return page(self._transport.call("GET", route("trials"), query=query), trial)

    def snapshot(self, trial_id: str) -> dict[str, Any]:
        """The frozen inputs of the Trial (E31)."""
        return mapping(self._transport.call("GET", route("trials", trial_id, "snapshot")), "a snapshot")

    def stop(self, trial_id: str) -> Trial:
        """Stop this Trial alone (A14). Repeatable; one that ended is returned unchanged."""
        path = route("trials", trial_id, "stop")
        return trial(self._transport.call("POST", path, content=b"", repeatable=True))

    def artifacts(
        self, trial_id: str, *, cursor: str | None = None, limit: int = LARGEST_PAGE
    ) -> Page[Artifact]:
        """One page of the Trial's declared outputs (E73)."""
        query = {"cursor": cursor, "limit": limit}
        return page(
            self._transport.call("GET", route("trials", trial_id, "artifacts"), query=query), artifact
        )

    def iter_artifacts(self, trial_id: str) -> Iterator[Artifact]:
        """All declared outputs, page by page."""
        cursor = None
        while True:
            found = self.artifacts(trial_id, cursor=cursor)
            yield from found
            if found.next_cursor is None:
                return
            if found.next_cursor == cursor:
                raise InvalidAnswer("the list of artifacts does not end: its cursor repeats")
            cursor = found.next_cursor

    def download(
        self,
        trial_id: str,
        folder: str | Path,
        *,
        names: Sequence[str] | None = None,
        overwrite: bool = False,
        parallel: int = MAX_PARALLEL,
        progress: Progress | None = None,
    ) -> Sequence[Downloaded]:
        """Download the Trial's artifacts (those in ``names``, else all) into ``folder``, verified.

        Every name is checked before anything is written. One result a file: a verified path, an error, or
        neither where the server does not hold the file. Raises `UnsafeName` for a list that cannot be
        written safely and `NotFound` for a name that is not in it.
        """
        found = list(self.iter_artifacts(trial_id))
        check_names(artifact.name for artifact in found)
        if names is not None:
            there = {each.name: each for each in found}
            if missing := [name for name in names if name not in there]:
                said = f"{trial_id} has no artifact {', '.join(missing)}"
                hint = f"`trainshed trial artifacts {trial_id}` lists them."
                raise NotFound(404, "ARTIFACT_NOT_FOUND", said, hint=hint)
            found = [there[name] for name in dict.fromkeys(names)]
        return download_all(
            self._transport,
            trial_id,
            found,
            Path(folder),
            overwrite=overwrite,
            parallel=parallel,
            progress=progress,
        )

    def raw_log(self, trial_id: str, stream: str = "stdout") -> Iterator[bytes]:
        """The exact bytes that the program wrote to ``stdout`` or ``stderr``, as far as they are there."""
        return self._transport.read(
            f"{route('trials', trial_id, 'logs', 'raw')}?{urlencode({'stream': stream})}"
        )
