"""How script Jobs look: tables, bars of progress, courses of a loss."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from trainshed.cli.gpu_common import ASKS, ENDED
from trainshed.cli.output import Column, Fields, Table, duration, local_time, size

BAR = 20
COURSE = 40
"""How many values a course shows."""
FIRST_METRICS = ("loss", "train_loss", "val_loss", "acc", "accuracy")
MOST_METRICS = 6


def bar(progress: Mapping[str, Any] | None, width: int = BAR) -> str:
    """How far a program says it is; empty where it said nothing."""
    if not progress or progress.get("step") is None:
        return ""
    step, total = float(progress["step"]), progress.get("total")
    guessed = " (guessed)" if progress.get("source") not in {None, "helper"} else ""
    if not total:
        return f"step {step:g}{guessed}"
    share = min(1.0, max(0.0, step / float(total)))
    full, empty = _signs()
    drawn = full * round(share * width) + empty * (width - round(share * width))
    return f"{drawn} {share:.0%} ({step:g}/{float(total):g}){guessed}"


def metrics(job: Mapping[str, Any], most: int = MOST_METRICS) -> str:
    """The newest values, those that people look at first before the others."""
    found = job.get("last_metrics") or {}
    names = sorted(found, key=lambda name: (rank(name), name))
    more = f" +{len(names) - most} more" if len(names) > most else ""
    return ", ".join(f"{name} {found[name]:.4g}" for name in names[:most]) + more


def course(values: Sequence[float]) -> str:
    """Values as a line of bars between the least and the most of them, thinned out to fit."""
    from trainshed.cli.train_watch import sparkline  # noqa: PLC0415 - not for `--help`

    every = -(-len(values) // COURSE)
    return sparkline(values[::-1][::every][::-1]) if values else ""


def age(job: Mapping[str, Any]) -> str:
    """How long it has run, or waited; of one that ended how long it ran, if it did."""
    begun = _moment(job.get("started_at"))
    ended = _moment(job.get("finished_at"))
    if begun is None and ended is None:
        begun = _moment(job.get("created_at"))
    if begun is None:
        return ""
    return duration(max(0.0, ((ended or datetime.now(UTC)) - begun).total_seconds()))


def place(job: Mapping[str, Any]) -> str:
    """Provider and GPU; nothing before it is placed."""
    if not job.get("provider"):
        return ""
    label = "(simulated)" if job.get("simulated") else None
    return " ".join(str(part) for part in (job.get("provider"), job.get("gpu"), label) if part)


def say(job: Mapping[str, Any]) -> str:
    """The line below a Job: what it asks, what it waits for, why it failed."""
    if job["state"] == ASKS:
        return f"asks: {job.get('approval_reason')}"
    if job["state"] in ENDED:
        return job.get("message") or ""
    why = job.get("route_reason") or "" if job["state"] in {"queued", "migrating"} else ""
    if job.get("not_before"):
        again = f"looks again at {local_time(job['not_before'])} at the latest"
        return f"{why}; {again}" if why else again
    return why


def course_of(document: Mapping[str, Any]) -> str:
    """The course of each metric, a line each."""
    found = document["courses"]
    width = max((len(each["name"]) for each in found), default=0)
    return "\n".join(_course_line(each, width) for each in found)


def _course_line(each: Mapping[str, Any], width: int) -> str:
    values = each["values"]
    guessed = " (by its output)" if each["source"] == "guess" else ""
    return f"{each['name']:<{width}}  {course(values)}  {values[0]:.4g} → {values[-1]:.4g}{guessed}"


def outputs(job: Mapping[str, Any]) -> str:
    """Where its outputs are, or will be."""
    if job["outputs_fetched"]:
        return f"{job['outputs_dir']} ({job['outputs_count']})"
    return f"{job['outputs_dir']} (not there yet)"


def command(spec: Mapping[str, Any]) -> str:
    """What is run, as a shell would be told."""
    import shlex  # noqa: PLC0415 - not for `--help`

    words = spec.get("command") or [spec.get("script") or ""]
    return shlex.join([*words, *spec.get("args", ())])


def _moment(text: Any) -> datetime | None:
    return datetime.fromisoformat(text) if isinstance(text, str) else None


def rank(name: str) -> int:
    """The place of a metric: those that people look at first come first."""
    return FIRST_METRICS.index(name) if name in FIRST_METRICS else len(FIRST_METRICS)


def _signs() -> tuple[str, str]:
    try:
        "█░".encode(sys.stdout.encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return "#", "."
    return "█", "░"


_JOB = (
    Column("ID", "short_id"),
    Column("NAME", "name", rank=3, shortest=12),
    Column("STATE", "state"),
    Column("WHERE", place, rank=2),
)
ACTIVE = Table(
    (
        *_JOB,
        Column("PROGRESS", lambda job: bar(job.get("progress"), 10), rank=1),
        Column("NEWEST", lambda job: metrics(job, 2), rank=4),
        Column("SINCE", age, rank=1),
    ),
    empty="Nothing is going on.",
    rows="active",
    below=say,
)
ENDED_JOBS = Table(
    (
        *_JOB,
        Column("EXIT", "exit_code", rank=4),
        Column("RAN", age, rank=1),
        Column("ENDED", "finished_at", rank=1),
    ),
    empty="Nothing has ended.",
    rows="recent",
    below=say,
)
ONE = Fields(
    (
        ("id", "job.short_id"),
        ("name", "job.name"),
        ("state", "job.state"),
        ("meaning", "guidance.meaning"),
        ("asks", "guidance.tell_user"),
        ("where", lambda row: place(row["job"])),
        ("why", "job.route_reason"),
        ("progress", lambda row: bar(row["job"].get("progress"))),
        ("newest", lambda row: metrics(row["job"])),
        ("course", course_of),
        ("since", lambda row: "" if row["job"].get("finished_at") else age(row["job"])),
        ("ran", lambda row: age(row["job"]) if row["job"].get("finished_at") else ""),
        ("runs", lambda row: command(row["job"]["spec"])),
        ("hours", "job.spec.hours"),
        ("exit code", "job.exit_code"),
        ("message", "job.message"),
        ("checkpoints", lambda row: row["job"]["checkpoint_count"] or None),
        ("outputs", lambda row: outputs(row["job"])),
        ("submitted", "job.created_at"),
        ("ended", "job.finished_at"),
    )
)
ATTEMPTS = Table(
    (
        Column("ATTEMPT", "number"),
        Column("PROVIDER", "provider"),
        Column("GPU", "gpu", rank=2),
        Column("STATE", "state"),
        Column("FROM CHECKPOINT", "resumed_from", rank=3),
        Column("STARTED", "started_at", rank=1),
        Column("ENDED", "ended_at", rank=1),
    ),
    empty="It has not been started anywhere yet.",
    rows="attempts",
    below="message",
)
CHECKPOINTS = Table(
    (
        Column("CHECKPOINT", "number"),
        Column("STEP", "step"),
        Column("SIZE", lambda row: size(int(row["bytes"]))),
        Column("SAVED", "saved_at", rank=1),
    ),
    empty="No checkpoints.",
    rows="checkpoints",
)
EVENTS = Table(
    (
        Column("AT", "at", moments=True),
        Column("WHAT", lambda row: row["to"] or row["reason"]),
        Column("WHY", "message", rank=1),
    ),
    empty="Nothing happened.",
    rows="events",
)
QUOTA_LINES = Table((Column("QUOTA", lambda row: row["line"]),), empty="No providers.", rows="quota_lines")
