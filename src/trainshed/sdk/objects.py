"""What the server answers, as typed values.

Every value keeps the answer it was made from in ``raw``, so a field that a newer server adds is there
before this module knows it. Times are aware ``datetime`` objects; sizes are bytes, resources MiB.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from trainshed.sdk.answers import Page, Raw, mapping, moment, page, required, text
from trainshed.sdk.errors import InvalidAnswer

__all__ = [
    "JOB_ENDS",
    "TRIAL_ENDS",
    "Artifact",
    "Event",
    "Gpus",
    "Job",
    "LogRecord",
    "Page",
    "Problem",
    "Raw",
    "Runner",
    "Trial",
    "artifact",
    "event",
    "job",
    "log_record",
    "mapping",
    "moment",
    "page",
    "problem",
    "required",
    "runner",
    "text",
    "trial",
]

JOB_ENDS = frozenset({"completed", "failed", "cancelled"})
"""The terminal words of a Job (contract E b12)."""
TRIAL_ENDS = frozenset({"succeeded", "failed", "cancelled"})


@dataclass(frozen=True, slots=True)
class Problem:
    """Why something failed: a code and a sentence."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Gpus:
    """The GPUs that a Trial holds or held. ``simulated`` ones exist only in the accounting."""

    model: str
    indices: tuple[int, ...]
    simulated: bool
    node: str

    def __str__(self) -> str:
        places = ",".join(map(str, self.indices))
        return f"{len(self.indices)}x{self.model} [{places}]{' simulated' if self.simulated else ''}"


@dataclass(frozen=True, slots=True)
class Trial:
    """One independent run of a frozen spec (contract E b4)."""

    trial_id: str
    job_id: str
    name: str
    status: str
    """The contract's word: queued, preparing, running, stopping, succeeded, failed or cancelled."""
    state: str
    """The platform's own, finer word."""
    exit_code: int | None
    """Raw; ``None`` until the program ended, or if it never started."""
    output_status: str
    cleanup_confirmed: bool
    """Whether it was observed that nothing of this Trial is left; independent of ``status`` (E68)."""
    user_code_started: bool
    created_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    gpus: Gpus | None
    error: Problem | None
    waiting: Problem | None
    """While it waits: what blocks it."""
    tags: Mapping[str, str]
    raw: Raw = field(repr=False)

    @property
    def ended(self) -> bool:
        return self.status in TRIAL_ENDS

    @property
    def succeeded(self) -> bool:
        return self.status == "succeeded"


@dataclass(frozen=True, slots=True)
class Job:
    """One accepted submission (contract E b3)."""

    job_id: str
    status: str
    """The contract's word: queued, running, stopping, completed, failed or cancelled."""
    request_id: str
    created_at: datetime | None
    finished_at: datetime | None
    trials: tuple[Trial, ...]
    error: Problem | None
    tags: Mapping[str, str]
    raw: Raw = field(repr=False)
    accepted_before: bool = False
    """Answer to a submission: its request id named this Job already, so nothing new was made (E24)."""

    @property
    def ended(self) -> bool:
        return self.status in JOB_ENDS

    @property
    def succeeded(self) -> bool:
        return self.status == "completed"


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One line of a program or one sentence of the platform (contract E b5)."""

    id: str
    at: datetime | None
    source: str
    """``runtime`` for the program, ``system`` for the platform."""
    stream: str
    """``stdout`` or ``stderr``; empty for the platform."""
    data: bytes
    """Exactly what was written, without the line's own newline."""
    partial: bool
    """The line goes on in the next record of this stream, or the program ended without a newline."""
    trial_id: str
    trial_name: str
    raw: Raw = field(repr=False)

    @property
    def text(self) -> str:
        """``data`` as text; bytes that are not UTF-8 show as U+FFFD."""
        return self.data.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class Artifact:
    """One declared output of a Trial (contract E b6)."""

    artifact_id: str
    name: str
    size: int
    sha256: str
    upload_state: str
    raw: Raw = field(repr=False)

    @property
    def downloadable(self) -> bool:
        return self.upload_state == "uploaded"


@dataclass(frozen=True, slots=True)
class Event:
    """One move of a Job or Trial: what happened, why, and on whose account."""

    event_id: str
    resource_id: str
    status: str
    at: datetime | None
    source: str
    code: str
    message: str
    actor: str
    raw: Raw = field(repr=False)


@dataclass(frozen=True, slots=True)
class Runner:
    """One readable Revision of a published Runner (contract E b8)."""

    name: str
    revision: str
    """The full commit."""
    selector: str
    """``namespace/name@revision``: what a submission names."""
    source_ref: str | None
    visibility: str
    entrypoint: str
    params: tuple[str, ...]
    created_at: datetime | None
    raw: Raw = field(repr=False)


def job(raw: Any) -> Job:
    """Read a Job; raises `InvalidAnswer` without an id or a status."""
    document = mapping(raw, "a Job")
    training = document.get("training")
    trials = training.get("trials") if isinstance(training, dict) else None
    return Job(
        job_id=required(document, "job_id"),
        status=required(document, "status"),
        request_id=text(document, "request_id"),
        created_at=moment(document, "created_at"),
        finished_at=moment(document, "finished_at"),
        trials=tuple(trial(entry) for entry in trials) if isinstance(trials, list) else (),
        error=problem(document.get("error")),
        tags=_tags(document),
        raw=document,
    )


def trial(raw: Any) -> Trial:
    """Read a Trial; raises `InvalidAnswer` without an id or a status."""
    document = mapping(raw, "a Trial")
    code = document.get("exit_code")
    return Trial(
        trial_id=required(document, "trial_id"),
        job_id=text(document, "job_id"),
        name=text(document, "name"),
        status=required(document, "status"),
        state=text(document, "state") or text(document, "status"),
        exit_code=code if isinstance(code, int) else None,
        output_status=text(document, "output_status"),
        cleanup_confirmed=document.get("cleanup_confirmed") is True,
        user_code_started=document.get("user_code_started") is True,
        created_at=moment(document, "created_at"),
        started_at=moment(document, "started_at"),
        finished_at=moment(document, "finished_at"),
        gpus=_gpus(document.get("gpu")),
        error=problem(document.get("error")),
        waiting=problem(document.get("waiting")),
        tags=_tags(document),
        raw=document,
    )


def log_record(raw: Any) -> LogRecord:
    """Read a log record; its bytes come from ``content_base64`` where the text could not hold them."""
    document = mapping(raw, "a log record")
    encoded = document.get("content_base64")
    try:
        data = (
            base64.b64decode(encoded, validate=True)
            if isinstance(encoded, str)
            else text(document, "content").encode("utf-8", "surrogatepass")
        )
    except binascii.Error:
        raise InvalidAnswer("a log record's `content_base64` is not base64") from None
    return LogRecord(
        id=required(document, "id"),
        at=moment(document, "at"),
        source=text(document, "source"),
        stream=text(document, "stream"),
        data=data,
        partial=document.get("partial") is True,
        trial_id=text(document, "trial_id"),
        trial_name=text(document, "trial_name"),
        raw=document,
    )


def artifact(raw: Any) -> Artifact:
    """Read an artifact; raises `InvalidAnswer` without an id, a name or a size."""
    document = mapping(raw, "an artifact")
    size = document.get("size")
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise InvalidAnswer("an artifact's `size` is not a number of bytes")
    return Artifact(
        artifact_id=required(document, "artifact_id"),
        name=required(document, "name"),
        size=size,
        sha256=text(document, "sha256") or text(document, "content_sha256"),
        upload_state=text(document, "upload_state"),
        raw=document,
    )


def event(raw: Any) -> Event:
    """Read an event of a Job."""
    document = mapping(raw, "an event")
    return Event(
        event_id=str(document.get("event_id", "")),
        resource_id=text(document, "resource_id"),
        status=text(document, "status"),
        at=moment(document, "at"),
        source=text(document, "source"),
        code=text(document, "code"),
        message=text(document, "message"),
        actor=text(document, "actor"),
        raw=document,
    )


def runner(raw: Any) -> Runner:
    """Read a Runner Revision; raises `InvalidAnswer` without a name or a revision."""
    document = mapping(raw, "a Runner")
    name, revision = required(document, "name"), required(document, "revision")
    params = document.get("params")
    return Runner(
        name=name,
        revision=revision,
        selector=text(document, "selector") or f"{name}@{revision}",
        source_ref=text(document, "source_ref") or None,
        visibility=text(document, "visibility"),
        entrypoint=text(document, "entrypoint"),
        params=tuple(map(str, params)) if isinstance(params, list | dict) else (),
        created_at=moment(document, "created_at"),
        raw=document,
    )


def problem(raw: Any) -> Problem | None:
    """An ``error`` or ``waiting`` object, if there is one."""
    if not isinstance(raw, dict):
        return None
    return Problem(text(raw, "code"), text(raw, "message"))


def _gpus(raw: Any) -> Gpus | None:
    if not isinstance(raw, dict):
        return None
    indices = raw.get("indices")
    return Gpus(
        model=text(raw, "model"),
        indices=tuple(indices) if isinstance(indices, list) else (),
        simulated=raw.get("simulated") is True,
        node=text(raw, "node"),
    )


def _tags(document: Raw) -> dict[str, str]:
    tags = document.get("tags")
    return dict(tags) if isinstance(tags, dict) else {}
