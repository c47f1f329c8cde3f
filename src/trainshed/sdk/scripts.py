"""Script Jobs: submit a packed project, ask where it would run, watch, cancel, fetch (contract G)."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainshed.sdk.checkpoints import CheckpointFile
from trainshed.sdk.download import MAX_PARALLEL, Downloaded, Progress, check_names, download_all
from trainshed.sdk.errors import ConfigurationError, WaitTimeout
from trainshed.sdk.logs import OUTAGE_SECONDS
from trainshed.sdk.script_checkpoints import checkpoint_files, download_checkpoint
from trainshed.sdk.script_objects import (
    CancelledScript,
    Plain,
    ScriptDetail,
    ScriptJob,
    ScriptList,
    ScriptLog,
    SubmittedScript,
    cancelled_script,
    plain,
    script_detail,
    script_job,
    script_list,
    script_log,
    submitted_script,
)
from trainshed.sdk.source import AGENT, API, CLI, SHELL
from trainshed.sdk.transport import Transport, route
from trainshed.sdk.trials import Trials

MAX_WAIT_SECONDS = 50.0
"""So long the server waits at most for one answer."""
FOLLOW_SECONDS = 1.0
"""How often a log is read on while nothing comes."""
_GRACE_SECONDS = 15.0
_OUTPUTS = "outputs/"
_SOURCES = {"user": API, AGENT: AGENT, CLI: CLI, SHELL: SHELL, API: API}


class Scripts:
    """``client.scripts``: Jobs of packed projects. A Job is named by its digits, a prefix of them, or its id.

    What does not exist raises `NotFound` ``JOB_NOT_FOUND``, a prefix of several `Conflict`
    ``AMBIGUOUS_JOB_REF``. ``source`` says who asks: ``agent`` has the rules for agents applied, ``cli`` and
    ``shell`` name the door; what an agent's environment runs counts as the agent's whatever is given.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def submit(
        self, spec: Mapping[str, Any], *, request_id: str | None = None, source: str | None = None
    ) -> SubmittedScript:
        """Submit a packed project (`trainshed.sdk.packing`) and return once it is durable.

        Without ``request_id`` the same spec names the same Job while that has not ended, so repeating a call
        whose answer was lost is safe either way. Raises `ApiError` with every fault at once.
        """
        body = {"type": "train", "spec": dict(spec)}
        if request_id is not None:
            body["request_id"] = request_id
        said = self._as(source)
        return submitted_script(said.call("POST", route("jobs"), body=body, repeatable=True))

    def route(self, spec: Mapping[str, Any], *, source: str | None = None) -> Plain:
        """Where it would run and whether a person would be asked; nothing is created (a.7)."""
        body = {"spec": dict(spec)}
        path = route("scripts", "route")
        return plain(self._as(source).call("POST", path, body=body, repeatable=True))

    def get(self, reference: str, *, wait_s: float = 0, version: int | None = None) -> ScriptDetail:
        """The Job with its history; with ``wait_s`` as soon as something happens to it (`MAX_WAIT_SECONDS`).

        ``version`` is the one that is known already: another one is answered at once.
        """
        query = {"wait_s": min(wait_s, MAX_WAIT_SECONDS) if wait_s > 0 else None, "version": version}
        timeout = self._transport.timeout + wait_s if wait_s > 0 else None
        path = route("scripts", reference)
        return script_detail(self._transport.call("GET", path, query=query, timeout=timeout))

    def list(
        self,
        *,
        active: bool | None = None,
        project_dir: str | None = None,
        since: float | None = None,
        cursor: str | None = None,
        limit: int = 25,
    ) -> ScriptList:
        """One page, newest first. ``active``: only those that have not ended, or only those that have.

        ``since``: of those that have, only what ended later (Unix seconds).
        """
        query = {
            "active": None if active is None else str(int(active)),
            "project_dir": project_dir,
            "since": since,
            "cursor": cursor,
            "limit": limit,
        }
        return script_list(self._transport.call("GET", route("scripts"), query=query))

    def events(self, reference: str, *, after: int = 0, limit: int = 100) -> Plain:
        """Transitions and notes past the id ``after``, oldest first (section b)."""
        query = {"after": after, "limit": limit}
        return plain(self._transport.call("GET", route("scripts", reference, "events"), query=query))

    def logs(
        self,
        reference: str,
        *,
        since: str | None = None,
        tail: int | None = None,
        attempt: int | None = None,
        limit: int | None = None,
        places: bool = False,
    ) -> ScriptLog:
        """Lines of the program: the last ``tail``, or from ``since`` on (``next_since`` of the page before).

        Without either, from the begin of ``attempt`` or of the first one. With ``places`` each line has the
        place behind it.
        """
        offset: str | None = None
        if since is not None:
            number, colon, place = since.rpartition(":")
            if not place.isdigit() or (colon and not number.isdigit()) or len(since) > 32:  # noqa: PLR2004 - a.3
                raise ConfigurationError(f"`{since[:40]}` is no place in a log; it is ATTEMPT:OFFSET")
            offset, tail = place, None
            attempt = int(number) if colon else attempt
        query = {
            "attempt": attempt,
            "offset": offset,
            "tail": tail,
            "limit": limit,
            "places": "1" if places else None,
        }
        return script_log(self._transport.call("GET", route("scripts", reference, "logs"), query=query))

    def follow(
        self,
        reference: str,
        *,
        since: str | None = None,
        timeout: float | None = None,
        places: bool = False,
        all_pages: bool = False,
    ) -> Iterator[ScriptLog]:
        """Pages of the log until its end, waiting for more. Raises `WaitTimeout`; the Job goes on.

        ``all_pages``: also those without a line, about every `FOLLOW_SECONDS` while nothing comes.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            place = since
            page = self._transport.patiently(
                lambda: self.logs(reference, since=place, places=places),  # noqa: B023 - called before the next turn
                outage_seconds=OUTAGE_SECONDS,
                deadline=deadline,
            )
            since = page.next_since or since
            if page.lines or all_pages:
                yield page
            if page.finished:
                return
            if not page.lines:
                if deadline is not None and time.monotonic() >= deadline:
                    raise WaitTimeout(f"{reference} had not ended after {timeout:g} s")
                self._transport.sleep(FOLLOW_SECONDS)

    def metrics(self, reference: str) -> Plain:
        """How its metrics went: ``series`` with ``name``, ``steps`` and ``values``, by the end of its log."""
        return plain(self._transport.call("GET", route("scripts", reference, "metrics")))

    def cancel(self, reference: str, *, source: str | None = None) -> CancelledScript:
        """Cancel the Job; repeatable. What was saved is kept (a.5)."""
        path = route("scripts", reference, "cancel")
        return cancelled_script(self._as(source).call("POST", path, content=b"", repeatable=True))

    def outputs(self, reference: str) -> Plain:
        """What the Job wrote, as far as it was brought to the server: ``items`` with path, bytes, sha256."""
        return plain(self._transport.call("GET", route("scripts", reference, "outputs")))

    def fetch(
        self,
        reference: str,
        dest: str | Path | None = None,
        *,
        refetch: bool = False,
        timeout: float | None = None,
        overwrite: bool = True,
        progress: Progress | None = None,
    ) -> Sequence[Downloaded]:
        """Have the server bring the outputs, where it has not (or again); with ``dest`` download them there.

        Without ``dest`` it returns at once and with nothing: the server writes them to ``outputs_dir`` where
        that is on its machine. With it, the Job is waited for, ``timeout`` seconds at most; every file is
        verified and none leaves ``dest``. Raises `WaitTimeout`, `UnsafeName`.
        """
        path = route("scripts", reference, "fetch")
        asked = self._transport.call("POST", path, body={"refetch": refetch}, repeatable=True)
        job = script_job(asked["job"])
        if dest is None:
            return ()
        self.wait(reference, timeout=timeout)
        found = [
            replace(each, name=each.name.removeprefix(_OUTPUTS))
            for each in Trials(self._transport).iter_artifacts(job.trial_id)
        ]
        check_names(each.name for each in found)
        return download_all(
            self._transport,
            job.trial_id,
            found,
            Path(dest),
            overwrite=overwrite,
            parallel=MAX_PARALLEL,
            progress=progress,
        )

    def checkpoint_files(self, reference: str, number: int) -> Sequence[CheckpointFile]:
        """What a checkpoint holds, by path. Raises `NotFound` ``CHECKPOINT_NOT_FOUND``; `get` lists them."""
        return checkpoint_files(self._transport, reference, number)

    def fetch_checkpoint(
        self, reference: str, number: int, dest: str | Path, *, overwrite: bool = True
    ) -> Sequence[Downloaded]:
        """Download a checkpoint into ``dest``, of a Job that goes on too; every file is verified.

        One result a file: a path, or an error. None leaves ``dest``. Raises `NotFound`, `UnsafeName`.
        """
        return download_checkpoint(self._transport, reference, number, Path(dest), overwrite=overwrite)

    def wait(self, reference: str, *, timeout: float | None = None) -> ScriptJob:
        """Wait until the Job has ended, however it ended. Raises `WaitTimeout`; the Job goes on."""
        deadline = None if timeout is None else time.monotonic() + timeout
        job = self.get(reference).job
        while not job.ended:
            left = MAX_WAIT_SECONDS if deadline is None else deadline - time.monotonic()
            if left <= 0:
                raise WaitTimeout(f"{job.short_id} is {job.state} after {timeout:g} s")
            known, seconds = job.version, min(left, MAX_WAIT_SECONDS)
            job = self._transport.patiently(
                lambda: self.get(reference, wait_s=seconds, version=known).job,  # noqa: B023 - as above
                outage_seconds=OUTAGE_SECONDS,
                deadline=None if deadline is None else deadline + _GRACE_SECONDS,
            )
        return job

    def _as(self, source: str | None) -> Transport:
        """The same transport for calls that are somebody's."""
        if source is None:
            return self._transport
        if source not in _SOURCES:
            raise ConfigurationError(f"`{source[:40]}` is no source; use {', '.join(_SOURCES)}")
        twin = copy.copy(self._transport)
        twin.said = _SOURCES[source]
        return twin
