"""How training tasks, pools and quotas look to people. Each view draws from the server's own document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from trainshed.cli.output import (
    Column,
    Fields,
    Sentence,
    Table,
    cell,
    count,
    duration,
    local_time,
    pick,
    sentence,
)

Document = Mapping[str, Any]


def state_text(row: Document) -> str:
    """The page's word; between brackets what it does within it."""
    state, sub = str(row.get("state") or "-"), row.get("sub_state")
    return f"{state} ({sub})" if sub and str(sub) != state else state


def age(row: Document) -> str | None:
    """How long ago it was submitted."""
    return _span(row.get("submitted_at"), None)


def ran(row: Document) -> str | None:
    """How long it has run; of one that has ended, until then."""
    return _span(row.get("started_at"), row.get("finished_at"))


def _span(start: Any, end: Any) -> str | None:
    if not isinstance(start, str):
        return None
    until = datetime.fromisoformat(end) if isinstance(end, str) else datetime.now(UTC)
    return duration(max(0.0, (until - datetime.fromisoformat(start)).total_seconds()))


def place_text(row: Document) -> str | None:
    """Region, cluster and pool."""
    return " / ".join(str(row[key]) for key in ("region", "cluster", "pool") if row.get(key)) or None


def scaling_text(row: Document) -> str | None:
    """How many workers a cluster has that follows its load (C51)."""
    own = row.get("scaling")
    if not own:
        return None
    span = f"{own['min']} to {own['max']}"
    if own.get("workers") is None:
        return span
    wanted = "" if own.get("wanted") is None else f"; the load wants {own['wanted']}"
    waits = own.get("waits_for")
    return f"{own['workers']} of {span}{wanted}" + (f" ({waits['code']})" if waits else "")


def position_text(row: Document) -> str | None:
    """The place in the queue, and within the project."""
    position, own = row.get("position"), row.get("position_in_project")
    if position is None:
        return None
    return f"{position} in its queue" + (f", {own} in its project" if own is not None else "")


def reason_text(row: Document) -> str | None:
    """Why it waits."""
    found = row.get("reason")
    if not isinstance(found, Mapping):
        return None
    parts = [str(found[key]) for key in ("code", "message") if found.get(key)]
    return sentence(": ".join(parts)) or None


def estimate_text(row: Document) -> str | None:
    """When it is expected to start."""
    found = row.get("estimated_start")
    if isinstance(found, str):
        return local_time(found)
    if not isinstance(found, Mapping):
        return None
    ends = [local_time(str(found[key])) for key in ("earliest", "latest") if found.get(key)]
    return " to ".join(dict.fromkeys(ends)) or None


def failure_text(row: Document) -> str | None:
    """Code, class, whose failure it was, the sentence."""
    found = row.get("failure")
    if not isinstance(found, Mapping):
        return None
    marks = [f"class {found['class']}"] if found.get("class") else []
    marks += [f"replica {found['replica']}"] if found.get("replica") is not None else []
    marks += [f"exit {found['exit_code']}"] if found.get("exit_code") is not None else []
    said = f"{found.get('code')}" + (f" ({', '.join(marks)})" if marks else "")
    return sentence(f"{said}: {found['message']}" if found.get("message") else said)


def resubmissions_text(row: Document) -> str | None:
    """How many of the automatic resubmissions are spent (C33)."""
    most = row.get("max_resubmissions")
    return f"{row.get('resubmissions') or 0} of {most}" if most else None


def visible_text(row: Document) -> str:
    """Who sees it besides its owner and the project's admins (C5)."""
    shares = row.get("shares") or ()
    if row.get("public"):
        named = f"; without that, to {', '.join(map(str, shares))}" if shares else ""
        return f"to its project{named}"
    return f"to its owner and {', '.join(map(str, shares))}" if shares else "to its owner"


def detail_text(row: Document) -> str | None:
    """What it does within its state, with times as people here read them."""
    return sentence(str(row["detail"])) if row.get("detail") else None


def note_of(row: Document) -> str | None:
    """What stands below a task in a list."""
    return detail_text(row) or reason_text(row)


def hardware_text(totals: Any) -> str | None:
    """Replicas and hardware of a task, in words."""
    if not isinstance(totals, Mapping):
        return None
    names = (("pods", "replica"), ("units", "unit"), ("gpus", "GPU"), ("cpus", "CPU"))
    parts = [count(totals[key], name) for key, name in names if totals.get(key) is not None]
    parts += [f"{gib} GiB of memory"] if (gib := _gib(totals)) else []
    return ", ".join(parts) or None


def _gib(row: Document) -> str | None:
    """Memory without digits that say nothing."""
    found = row.get("memory_gib")
    return f"{found:.10g}" if isinstance(found, int | float) else None


def price_text(totals: Any) -> str | None:
    """What an hour of it costs, where the catalogue has prices."""
    prices = totals.get("price_per_hour") if isinstance(totals, Mapping) else None
    if isinstance(prices, list):
        return " + ".join(f"{each['amount']} {each['currency']}" for each in prices) or None
    return str(prices) if prices else None


def gpus_text(row: Document) -> str | None:
    """The GPUs of a replica by index."""
    indices = row.get("gpu_indices") or ()
    return f"[{','.join(map(str, indices))}]" if indices else None


def told(row: Document) -> str:
    """What an event says."""
    return sentence(str(row.get("message") or ""))


_BETWEEN = frozenset({"Queuing", "Replacing"})


def _newest_replicas(row: Document) -> Sequence[Document]:
    attempts = row.get("attempts") or ()
    if not attempts or (row.get("state") in _BETWEEN and attempts[-1].get("ended_at")):
        return ()  # those of an Attempt that is over are no replicas of a task that waits again
    found: Sequence[Document] = attempts[-1].get("replicas") or ()
    return found


def _last_lines(row: Document) -> str:
    lines = pick(row, "failure.last_lines") or ()
    return "\n".join(["The end of its log:", *(f"  {line}" for line in lines)]) if lines else ""


def _took(row: Document) -> str | None:
    return _span(row.get("started_at"), row.get("ended_at"))


def command_text(row: Document) -> str | None:
    """The command; of one with several lines the first, `train edit` prints all."""
    lines = str(pick(row, "spec.cmd") or "").splitlines()
    more = len(lines) - 1
    return f"{lines[0]} … ({count(more, 'more line')})" if more > 0 else "".join(lines) or None


TASKS = Table(
    (
        Column("NAME", "name"),
        Column("KIND", "kind", rank=2),
        Column("STATE", "state"),
        Column("REPLICAS", "replicas", rank=3),
        Column("GPUS", "gpus"),
        Column("TYPE", "resource_type", rank=1),
        Column("PRIORITY", "priority", rank=4),
        Column("POOL", "pool", rank=5, shortest=6),
        Column("OWNER", "owner", rank=6, shortest=6),
        Column("RAN", ran, rank=4),
        Column("AGE", age, rank=2),
    ),
    empty="No tasks.",
    below=note_of,
)
RECEIPT = Fields(
    (
        ("task", "name"),
        ("state", state_text),
        ("job", "job_id"),
        ("uuid", "task_uuid"),
    )
)
PLACED = Fields((*RECEIPT.fields, ("position", position_text)))
TASK = Fields(
    (
        ("task", "name"),
        ("state", state_text),
        ("detail", detail_text),
        ("waits for", reason_text),
        ("position", position_text),
        ("expected", estimate_text),
        ("failure", failure_text),
        ("kind", "kind"),
        ("job", "job_id"),
        ("uuid", "task_uuid"),
        ("owner", "owner"),
        ("visible", visible_text),
        ("project", "project"),
        ("place", place_text),
        ("resource type", "resource_type"),
        ("guarantee", "guarantee"),
        ("priority", "priority"),
        ("instance spec", "chosen_spec"),
        ("size", lambda row: hardware_text(row.get("totals"))),
        ("workers", scaling_text),
        ("price an hour", lambda row: price_text(row.get("totals"))),
        ("labels", lambda row: row.get("labels") or None),
        ("resubmissions", resubmissions_text),
        ("submitted", "submitted_at"),
        ("queued", "queued_at"),
        ("started", "started_at"),
        ("finished", "finished_at"),
        ("image", "spec.image"),
        ("command", command_text),
    )
)
REPLICAS = Table(
    (
        Column("RANK", "rank"),
        Column("ROLE", "role"),
        Column("STATE", "state"),
        Column("NODE", "node", rank=1, shortest=8),
        Column("ADDRESS", "address", rank=3),
        Column("GPUS", gpus_text, rank=2),
        Column("EXIT", "exit_code"),
        Column("RESTARTS", "restarts", rank=4),
        Column("RAN", _took, rank=3),
    ),
    empty="No replicas now.",
    rows=_newest_replicas,
    below="detail",
)
ATTEMPTS = Table(
    (
        Column("ATTEMPT", "number"),
        Column("CAUSE", "cause"),
        Column("STATE", "state"),
        Column("CLASS", "exit_class", rank=1),
        Column("STARTED", "started_at", rank=2),
        Column("RAN", _took, rank=1),
    ),
    empty="No Attempts yet.",
    rows="attempts",
    below="detail",
)
LAST_LINES = Sentence(_last_lines)
EVENTS = Table(
    (
        Column("AT", "at", moments=True),
        Column("LEVEL", "level", rank=2),
        Column("EVENT", "code"),
        Column("REPLICA", "replica", rank=1),
        Column("BY", "actor", rank=3),
    ),
    empty="No events.",
    below=told,
)
ALARMS = Table(
    (
        Column("AT", "created_at"),
        Column("ABOUT", "subject"),
        Column("CHANNEL", "channel"),
        Column("DELIVERED", "delivered_at"),
        Column("TRIES", "tries", rank=1),
        Column("AGAIN", "next_at", rank=2),
    ),
    empty="No alarm so far.",
    below=lambda row: None if row.get("delivered_at") else row.get("last_error"),
)
VALIDATION = Fields(
    (
        ("would start", lambda row: "now" if row.get("would_start") else "later"),
        ("waits for", reason_text),
        ("position", position_text),
        ("expected", estimate_text),
        ("size", lambda row: hardware_text(row.get("totals"))),
        ("price an hour", lambda row: price_text(row.get("totals"))),
    )
)
ROLES = Table(
    (
        Column("ROLE", "role"),
        Column("COUNT", "count"),
        Column("SPEC", "spec"),
        Column("UNITS", "units"),
        Column("GPUS", "gpus"),
        Column("CPUS", "cpus"),
        Column("MEMORY GIB", _gib),
        Column("CHARGED", "charged", rank=1),
    ),
    empty="No replicas.",
    rows="totals.roles",
)
QUOTA_OF_TASK = Table(
    (
        Column("SPEC", "spec"),
        Column("TYPE", "resource_type", rank=1),
        Column("REQUESTED", "requested"),
        Column("LIMIT", "limit"),
        Column("USED", "used", rank=1),
        Column("FREE", "free"),
    ),
    empty="No quota applies.",
    rows="quota",
)
_UNITS = {"requested": "units asked for", "available": "units left now", "limit": "most units ever"}
_HARDWARE = {
    "requested": "GPUs or cores asked for",
    "available": "GPUs or cores free",
    "limit": "replicas asked for",
    "largest": "replicas that fit now",
}
_NUMBERS: Mapping[str, Mapping[str, str]] = {
    "NoMatchingSpec": {"requested": "replicas asked for", "largest": "replicas that ever fit"},
    "ExceedsMaxQuota": {key: _UNITS[key] for key in ("requested", "limit")},
    "WaitingForQuota": _UNITS,
    "WaitingForResources": _HARDWARE,
    "Fragmented": _HARDWARE,
    "WaitingForPreempted": {"requested": "tasks that make room", "available": "of them gone"},
    "Behind": {"requested": "replicas asked for"},
}
"""What the numbers of a reason count; those that it has no use for are not shown."""


def numbers_text(row: Document) -> str | None:
    """The facts behind a reason, each with what it counts."""
    found = row.get("blocked_by") or {}
    counted = _NUMBERS.get(str(row.get("code")), {})
    labels = {"spec": "spec", "pool": "pool", **counted, "until": "expected by"}
    lines = [f"{label}: {cell(found[key])}" for key, label in labels.items() if found.get(key) is not None]
    return "\n".join(lines) or None


def _waiting(length: int) -> str:
    return f"{count(length, 'task')} {'waits' if length == 1 else 'wait'}"


WHY = Fields(
    (
        ("reason", lambda row: reason_text({"reason": row})),
        (
            "position",
            lambda row: (
                f"{position_text(row)}, {_waiting(row['queue_length'])} there"
                if row.get("queue_length") is not None and position_text(row)
                else position_text(row)
            ),
        ),
        (
            "ahead",
            lambda row: (
                ", ".join(f"{each.get('tasks')} of priority {each.get('priority')}" for each in row["ahead"])
                if row.get("ahead")
                else None
            ),
        ),
        ("numbers", numbers_text),
        ("expected", estimate_text),
    )
)
PASSED_OVER = Table(
    (Column("SPEC", "spec"), Column("PASSED OVER BECAUSE", lambda row: sentence(str(row.get("why") or "")))),
    empty="",
    rows="passed_over",
)


def unblock_text(row: Document) -> str:
    """What would let it start."""
    sentences = row.get("unblock") or ()
    return "\n".join(
        ["What would let it start:", *(f"  - {sentence(str(each))}" for each in sentences)]
    ) * bool(sentences)


UNBLOCK = Sentence(unblock_text)


def warnings_of(document: Document) -> list[str]:
    """The warnings of an answer, a sentence each."""
    return [
        f"{each.get('message')} ({each.get('code')})"
        for each in document.get("warnings") or ()
        if isinstance(each, Mapping)
    ]
