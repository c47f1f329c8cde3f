"""What the server answers about script Jobs, as values (contract G). ``raw`` keeps the whole answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainshed.sdk.answers import Raw, mapping, required, text
from trainshed.sdk.errors import InvalidAnswer

SCRIPT_ENDS = frozenset({"done", "failed", "cancelled", "denied"})
"""The words of a Job that has ended."""


@dataclass(frozen=True, slots=True)
class ScriptJob:
    """A script Job as it was (a.1)."""

    id: str
    """Twelve hexadecimal digits."""
    short_id: str
    job_id: str
    trial_id: str
    name: str
    state: str
    provider: str
    version: int
    approval_id: int | None
    """The question that waits for a person."""
    outputs_dir: str
    outputs_fetched: bool
    message: str
    raw: Raw = field(repr=False)

    @property
    def ended(self) -> bool:
        return self.state in SCRIPT_ENDS


@dataclass(frozen=True, slots=True)
class SubmittedScript:
    """What a submission came to."""

    job: ScriptJob
    submitted: bool
    """False: it named a Job that was there before."""
    message: str
    bundle: Raw
    raw: Raw = field(repr=False)


@dataclass(frozen=True, slots=True)
class ScriptDetail:
    """A script Job with its history."""

    job: ScriptJob
    attempts: tuple[Raw, ...]
    checkpoints: tuple[Raw, ...]
    events: tuple[Raw, ...]
    route: Raw | None
    raw: Raw = field(repr=False)


@dataclass(frozen=True, slots=True)
class ScriptList:
    """One page of script Jobs, newest first. Iterating yields its Jobs."""

    items: tuple[ScriptJob, ...]
    next_cursor: str | None
    counts: Mapping[str, int]
    """Of all the project's Jobs, by state."""
    raw: Raw = field(repr=False)

    def __iter__(self) -> Iterator[ScriptJob]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)


@dataclass(frozen=True, slots=True)
class ScriptLog:
    """Lines of a Job's log (a.3)."""

    attempt: int | None
    lines: tuple[str, ...]
    next_since: str | None
    """Reading on from here yields what comes, each line once."""
    finished: bool
    """No more will come."""
    places: tuple[tuple[int, int], ...]
    """Of each line, its Attempt and the offset behind it; empty unless they were asked for."""
    raw: Raw = field(repr=False)


@dataclass(frozen=True, slots=True)
class CancelledScript:
    """What a cancel came to."""

    job: ScriptJob
    changed: bool
    raw: Raw = field(repr=False)


@dataclass(frozen=True, slots=True)
class Plain:
    """An answer that is shown as it is. Iterating yields its ``items``."""

    raw: Raw = field(repr=False)

    @property
    def items(self) -> tuple[Raw, ...]:
        found = self.raw.get("items")
        return tuple(found) if isinstance(found, list) else ()

    def __iter__(self) -> Iterator[Raw]:
        return iter(self.items)

    def __getitem__(self, key: str) -> Any:
        return self.raw[key]


def plain(raw: Any) -> Plain:
    return Plain(mapping(raw, "an object"))


def script_job(raw: Any) -> ScriptJob:
    """Raises `InvalidAnswer` for what is no script Job."""
    document = mapping(raw, "a script Job")
    approval, version = document.get("approval_id"), document.get("version")
    if not isinstance(version, int):
        raise InvalidAnswer("the answer lacks `version`")
    return ScriptJob(
        id=required(document, "id"),
        short_id=required(document, "short_id"),
        job_id=required(document, "job_id"),
        trial_id=required(document, "trial_id"),
        name=text(document, "name"),
        state=required(document, "state"),
        provider=text(document, "provider"),
        version=version,
        approval_id=approval if isinstance(approval, int) else None,
        outputs_dir=text(document, "outputs_dir"),
        outputs_fetched=document.get("outputs_fetched") is True,
        message=text(document, "message"),
        raw=document,
    )


def submitted_script(raw: Any) -> SubmittedScript:
    document = mapping(raw, "a submitted script Job")
    return SubmittedScript(
        job=script_job(document.get("job")),
        submitted=document.get("submitted") is True,
        message=text(document, "message"),
        bundle=mapping(document.get("bundle"), "a bundle"),
        raw=document,
    )


def script_detail(raw: Any) -> ScriptDetail:
    document = mapping(raw, "a script Job")
    route = document.get("route")
    return ScriptDetail(
        job=script_job(document.get("job")),
        attempts=_objects(document, "attempts"),
        checkpoints=_objects(document, "checkpoints"),
        events=_objects(document, "events"),
        route=route if isinstance(route, dict) else None,
        raw=document,
    )


def script_list(raw: Any) -> ScriptList:
    document = mapping(raw, "a page of script Jobs")
    cursor = document.get("next_cursor")
    return ScriptList(
        items=tuple(script_job(each) for each in _objects(document, "items")),
        next_cursor=cursor if isinstance(cursor, str) else None,
        counts=mapping(document.get("counts"), "counts"),
        raw=document,
    )


def script_log(raw: Any) -> ScriptLog:
    document = mapping(raw, "a log")
    attempt, lines, since = (document.get(key) for key in ("attempt", "lines", "next_since"))
    if not isinstance(lines, list):
        raise InvalidAnswer("the answer is not a log: it has no list `lines`")
    return ScriptLog(
        attempt=attempt if isinstance(attempt, int) else None,
        lines=tuple(map(str, lines)),
        next_since=since if isinstance(since, str) else None,
        finished=document.get("finished") is True,
        places=tuple(_place(each) for each in document.get("places") or ()),
        raw=document,
    )


def _place(raw: Any) -> tuple[int, int]:
    number, _, offset = str(raw).partition(":")
    if not number.isdigit() or not offset.isdigit():
        raise InvalidAnswer("a line of the log has no place")
    return int(number), int(offset)


def cancelled_script(raw: Any) -> CancelledScript:
    document = mapping(raw, "a cancelled script Job")
    return CancelledScript(script_job(document.get("job")), document.get("changed") is True, document)


def _objects(document: Raw, key: str) -> tuple[Raw, ...]:
    found = document.get(key)
    if not isinstance(found, list):
        raise InvalidAnswer(f"the answer lacks the list `{key}`")
    return tuple(mapping(each, "an object") for each in found)
