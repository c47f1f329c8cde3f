"""Reading jobs of every kind: why one waits, what happened, what it printed, how two differ."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from trainshed.mcp.documents import without_nulls
from trainshed.mcp.errors import ToolError
from trainshed.model.scripts.guidance import UNTRUSTED
from trainshed.sdk.client import Client
from trainshed.sdk.errors import NotFound

_MOST_LINES = 200_000
"""So many lines are searched at most, the newest of them."""
_LINE_CHARACTERS = 500
_MOST_DIFFERENCES = 100
_SCRIPT_REF = re.compile(r"[0-9a-fA-F]{1,12}")


def jobs(client: Client, given: Mapping[str, Any]) -> dict[str, Any]:
    """The newest jobs of every kind."""
    page = client.jobs.list(status=given["status"], limit=given["limit"])
    items = [
        without_nulls(
            {
                "job_id": job.job_id,
                "short_id": job.raw.get("short_id"),
                "status": job.status,
                "trials": [{"name": trial.name, "state": trial.state} for trial in job.trials],
                "created_at": job.raw.get("created_at"),
                "finished_at": job.raw.get("finished_at"),
            }
        )
        for job in page.items
    ]
    return {"items": items, "untrusted": UNTRUSTED}


def why(client: Client, given: Mapping[str, Any]) -> dict[str, Any]:
    """What blocks a job that waits."""
    task = _task(client, given["job"])
    if task is not None:
        return {"why": [dict(client.tasks.why(given["job"]).raw)], "untrusted": UNTRUSTED}
    job = client.jobs.get(_job_id(client, given["job"]))
    found = []
    for trial in job.trials:
        waiting = trial.raw.get("waiting")
        said = waiting or {"message": f"It does not wait: it is {trial.state}."}
        found.append({"trial": trial.name, **without_nulls(said)})
    return {"why": found, "untrusted": UNTRUSTED}


def events(client: Client, given: Mapping[str, Any]) -> dict[str, Any]:
    """The newest events, oldest of them first."""
    newest: deque[dict[str, Any]] = deque(maxlen=given["limit"])
    if _task(client, given["job"]) is not None:
        after = 0
        while True:
            page = client.tasks.events(given["job"], after=after)
            newest.extend(without_nulls(event.raw) for event in page)
            if not page.more:
                break
            after = page.next_after
        return {"events": list(newest), "untrusted": UNTRUSTED}
    job_id, cursor = _job_id(client, given["job"]), None
    while True:
        found = client.jobs.events(job_id, cursor=cursor, limit=100)
        newest.extend(without_nulls(event.raw) for event in found.items)
        cursor = found.next_cursor
        if not cursor:
            return {"events": list(newest), "untrusted": UNTRUSTED}


def search_logs(client: Client, given: Mapping[str, Any]) -> dict[str, Any]:
    """Lines that hold a text, with those around them, oldest first."""
    wanted, around = given["text"].casefold(), given["around"]
    before: deque[str] = deque(maxlen=around)
    matches: list[dict[str, Any]] = []
    open_matches: list[tuple[dict[str, Any], int]] = []
    searched, more = 0, False
    for searched, line in enumerate(_lines(client, given["job"]), 1):
        short = line[:_LINE_CHARACTERS]
        for match, left in open_matches:
            if left:
                match["after"].append(short)
        open_matches = [(match, left - 1) for match, left in open_matches if left > 1]
        if wanted in line.casefold():
            if len(matches) == given["limit"]:
                more = True
                break
            match = {"line_number": searched, "line": short, "before": list(before), "after": []}
            matches.append(match)
            open_matches.append((match, around))
        before.append(short)
    return {"matches": matches, "searched_lines": searched, "more": more, "untrusted": UNTRUSTED}


def compare(client: Client, given: Mapping[str, Any]) -> dict[str, Any]:
    """What differs between what two jobs froze, and between how they ended."""
    one, two = (dict(_flat(_facts(client, given[side]))) for side in ("a", "b"))
    different = sorted(key for key in one.keys() | two.keys() if one.get(key) != two.get(key))
    shown = [{"field": key, "a": one.get(key), "b": two.get(key)} for key in different[:_MOST_DIFFERENCES]]
    found: dict[str, Any] = {
        "differences": shown,
        "same": len(one.keys() | two.keys()) - len(different),
        "untrusted": UNTRUSTED,
    }
    if len(different) > len(shown):
        found["differences_not_shown"] = len(different) - len(shown)
    return found


READERS: Mapping[str, Callable[[Client, Mapping[str, Any]], dict[str, Any]]] = {
    "trainshed_jobs": jobs,
    "trainshed_why": why,
    "trainshed_events": events,
    "trainshed_search_logs": search_logs,
    "trainshed_compare": compare,
}


def _task(client: Client, reference: str) -> Any:
    try:
        return client.tasks.get(reference)
    except NotFound:
        return None


def _script(client: Client, reference: str) -> Any:
    if not _SCRIPT_REF.fullmatch(reference):
        return None
    try:
        return client.scripts.get(reference).raw
    except NotFound:
        return None


def _job_id(client: Client, reference: str) -> str:
    """The full id: every door accepts short ones too."""
    script = _script(client, reference)
    return str(script["job"]["job_id"]) if script else reference


def _lines(client: Client, reference: str) -> Iterator[str]:
    """The log of a job of any kind, from its begin or from the last `_MOST_LINES`."""
    script = _script(client, reference)
    if script is not None:
        since: str | None = None
        while True:
            page = client.scripts.logs(reference, since=since)
            yield from page.lines
            if not page.lines or page.next_since is None:
                return
            since = page.next_since
    for record in client.jobs.logs(reference, tail=_MOST_LINES):
        yield record.text


def _facts(client: Client, reference: str) -> Mapping[str, Any]:
    """What was frozen of a job, and how it ended."""
    script = _script(client, reference)
    if script is not None:
        job = script["job"]
        ended = {key: job.get(key) for key in ("state", "exit_code", "provider", "gpu", "last_metrics")}
        return {"kind": "script", "spec": job["spec"], "bundle": job["bundle_sha256"], "end": ended}
    task = _task(client, reference)
    if task is not None:
        raw = task.raw
        return {"kind": raw.get("kind"), "spec": raw.get("spec"), "end": {"state": raw.get("state")}}
    job = client.jobs.get(reference)
    if len(job.trials) != 1:
        said = f"{reference} has {len(job.trials)} Trials; compare jobs with one each"
        raise ToolError("invalid_request", said)
    trial = job.trials[0]
    keys = ("runner", "image", "resources", "timeout_seconds", "command", "profile", "tags", "resume_from")
    frozen = {key: trial.raw.get(key) for key in keys}
    frozen["params"] = client.trials.snapshot(trial.trial_id).get("params")
    return {"kind": "runner", **frozen, "end": {"status": trial.status, "exit_code": trial.exit_code}}


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf with its path."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _flat(each, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from _flat(each, f"{path}[{number}]")
    else:
        yield path, value
